"""Figures, drawn without pyplot's global state."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from genie.core.timeline import UNKNOWN, Timeline
from genie.core.workload import NodeKind
from genie.units import ns_to_us

PREDICTED, MEASURED, COMPUTE, COLLECTIVE, POINT = "#8a8f98", "#1666c5", "#c9ced6", "#1666c5", "#e08a1e"
MAX_BARS: Final = 6000


def svg(figure: Figure) -> str:
    """The figure as an svg element."""
    out = io.StringIO()
    FigureCanvasSVG(figure).print_svg(out)  # type: ignore[no-untyped-call]
    text = out.getvalue()
    return text[text.index("<svg") :]


def _axes(width: float, height: float, xlabel: str, ylabel: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def rounds(rows: Sequence[dict[str, Any]]) -> Figure:
    """Predicted and measured iteration time, round by round."""
    figure, axes = _axes(7, 3, "round", "iteration time (us)")
    at = [row["round"] for row in rows]
    axes.plot(at, [ns_to_us(row["predicted_ns"]) for row in rows], "o--", color=PREDICTED, label="predicted")
    axes.plot(at, [ns_to_us(row["measured_ns"]) for row in rows], "o-", color=MEASURED, label="measured")
    axes.set_xticks(at)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return figure


def fct_cdf(timelines: Sequence[tuple[str, Timeline]]) -> Figure:
    """Share of messages whose completion took at most so long."""
    figure, axes = _axes(7, 3, "message completion time (us)", "share of messages")
    for (label, timeline), colour in zip(timelines, (MEASURED, PREDICTED), strict=False):
        messages = timeline.messages
        good = messages.delivered_ns != UNKNOWN
        times = np.sort(messages.delivered_ns[good] - messages.posted_ns[good])
        if len(times):
            share = np.arange(1, len(times) + 1) / len(times)
            axes.step(np.maximum(ns_to_us(1) * times, 1e-3), share, where="post", color=colour, label=label)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.01)
    axes.legend(frameon=False)
    return figure


def timeline(source: Timeline, iteration: int = 0) -> Figure:
    """Who did what when, a row a rank: compute above, communication below."""
    operators = source.operators
    ranks = sorted(set(operators.rank.tolist()))
    figure, axes = _axes(9, 1 + 0.35 * min(len(ranks), 32), "time (us)", "rank")
    chosen = np.flatnonzero((operators.iteration == iteration) & (operators.done_ns != UNKNOWN))[:MAX_BARS]
    for kinds, colour, offset, label in (
        ({NodeKind.COMP}, COMPUTE, 0.0, "compute"),
        ({NodeKind.COLLECTIVE}, COLLECTIVE, -0.4, "collective"),
        ({NodeKind.SEND, NodeKind.RECV}, POINT, -0.4, "send, receive"),
    ):
        rows = chosen[np.isin(operators.kind[chosen], list(kinds))]
        if len(rows):
            start = operators.issue_ns[rows] * ns_to_us(1)
            width = (operators.done_ns[rows] - operators.issue_ns[rows]) * ns_to_us(1)
            axes.barh(operators.rank[rows] + offset, width, 0.36, start, color=colour, align="edge", label=label)
    axes.set_yticks(ranks if len(ranks) <= 32 else ranks[:: len(ranks) // 16])  # noqa: PLR2004 - as many as are legible
    axes.invert_yaxis()
    axes.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure
