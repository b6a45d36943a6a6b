"""Figures, drawn without pyplot's global state. Each takes frames (see `frames`, `metrics`) and gives a Figure."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from genie.core.workload import NodeKind
from genie.report import show
from genie.report.metrics import cdf, size_bins

INK, FAINT, PAPER, MEASURED, PREDICTED = "#1b1f24", "#d8dde5", "#fefefe", "#0b63ce", "#d9730d"
COMPUTE, COLLECTIVE, POINT = "#aeb7c4", "#0b63ce", "#7c3aed"
THEME: Final = {
    INK: "var(--ink)",
    FAINT: "var(--line)",
    PAPER: "var(--paper)",
    MEASURED: "var(--measured)",
    PREDICTED: "var(--predicted)",
    COMPUTE: "var(--compute)",
    POINT: "var(--point)",
}
"""Colour of a figure -> the style sheet's name for it, so that a page's figures follow its light and dark."""

_STYLE: Final[dict[Any, Any]] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "font.size": 9,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "genie",
}

MAX_RANKS: Final = 40
MAX_TIPS: Final = 2_000
"""So many bars of a timeline are drawn one by one, each with its tip; more are joined where they touch."""

FINEST: Final = 2_000
"""Gaps below 1 / FINEST of the time axis are closed when bars are joined."""


def svg(figure: Figure, prefix: str = "figure") -> str:
    """The figure as an svg element for a page: themed, ids made unique by `prefix`, artists' tips as titles."""
    out = io.StringIO()
    with mpl.rc_context(_STYLE):
        FigureCanvasSVG(figure).print_svg(  # type: ignore[no-untyped-call]
            out, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = text.replace("xlink:href", "href")
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{prefix}-", text)
    for artist in figure.findobj(lambda one: str(one.get_gid() or "").startswith("tip")):
        mark = f'<g id="{prefix}-{artist.get_gid()}">'
        text = text.replace(mark, f"{mark}<title>{escape(str(artist.get_label()))}</title>")
    for colour, name in THEME.items():
        text = text.replace(colour, name)
    return text


class Drawing(Figure):
    """A figure that notebooks show by themselves."""

    def _repr_svg_(self) -> str:
        out = io.StringIO()
        with mpl.rc_context(_STYLE):
            self.savefig(out, format="svg", facecolor="white")
        return out.getvalue()


def _axes(width: float, height: float, xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    with mpl.rc_context(_STYLE):
        figure = Drawing(figsize=(width, height), layout="constrained", facecolor="none")
        axes = figure.add_subplot(facecolor="none")
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
    return figure, axes


def _legend(axes: Axes, handles: Sequence[Any] | None = None) -> None:
    """Above the axes, where it hides nothing."""
    handles = axes.get_legend_handles_labels()[0] if handles is None else handles
    if handles:
        with mpl.rc_context(_STYLE):
            axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0.2)


def _thousands(value: float, _: object) -> str:
    return f"{value:,g}"


def rounds(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Predicted and measured iteration time, round by round, and how far the prediction is off."""
    unit = show.time_unit([row[key] for row in rows for key in ("predicted_ns", "measured_ns")])
    figure, axes = _axes(4.8, 2.9, "round", f"iteration time, {unit.name}")
    at = [row["round"] for row in rows]
    predicted, measured = ([unit.of_ns(row[key]) for row in rows] for key in ("predicted_ns", "measured_ns"))
    axes.plot(at, predicted, "o--", color=PREDICTED, label="predicted")
    axes.plot(at, measured, "s-", color=MEASURED, label="measured", markersize=5)
    for row in rows:
        where: dict[str, Any] = {"ha": "center", "va": "top", "transform": axes.get_xaxis_transform()}
        axes.text(row["round"], 0.99, show.change(row["error"]), color=INK, fontsize=9, fontweight="bold", **where)
    axes.set_xticks(at)
    axes.set_xlim(min(at) - 0.5, max(at) + 0.5)
    axes.set_ylim(0, 1.2 * max(*predicted, *measured) or 1)
    axes.yaxis.set_major_formatter(_thousands)
    _legend(axes)
    return figure


def parameter(rows: Sequence[Mapping[str, Any]], name: str) -> Figure:
    """A fitted parameter round by round, with its 95 % interval where it has one."""
    known = [(row["round"], p) for row in rows for p in row["fitted"] if p["name"] == name]
    unit, of = show.parameter_unit(max((p for _, p in known), key=lambda p: abs(p["value"])))
    figure, axes = _axes(4.8, 2.9, "round", f"{name}, {unit}")
    at, values = [number for number, _ in known], [of(p["value"]) for _, p in known]
    below = [value - of(p["low"]) for value, (_, p) in zip(values, known, strict=True)]
    above = [of(p["high"]) - value for value, (_, p) in zip(values, known, strict=True)]
    axes.errorbar(at, values, [below, above], fmt="o", color=MEASURED, capsize=4)
    axes.set_xticks(at)
    axes.set_xlim(min(at) - 0.5, max(at) + 0.5)
    axes.yaxis.set_major_formatter(_thousands)
    return figure


def fct_cdf(series: Mapping[str, pd.Series[Any]]) -> Figure:
    """Share of messages that are complete within so much time; `series` are FCTs in ns by label ("measured", ...)."""
    known = {label: cdf(values) for label, values in series.items()}
    unit = show.time_unit([values[-1] for values, _ in known.values() if len(values)])
    figure, axes = _axes(4.8, 2.9, f"message completion time (FCT), {unit.name}", "share of messages")
    for label, (values, shares) in known.items():
        if len(values):
            x, y = np.concatenate((values[:1], values)), np.concatenate(([0], shares))
            predicted = label == "predicted"
            colour, dashes = (PREDICTED, "--") if predicted else (MEASURED, "-")
            axes.step([unit.of_ns(v) for v in x], y, dashes, where="post", color=colour, label=label, linewidth=1.6)
    if any((values > 0).all() and values[-1] > 20 * values[0] for values, _ in known.values() if len(values)):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(_thousands)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    _legend(axes)
    return figure


def error_by_size(matched: pd.DataFrame) -> Figure:
    """How far predictions of single messages are off, by size: median, half of them (thick), 90 % of them (thin)."""
    figure, axes = _axes(4.8, 2.9, "message size", "error of the predicted FCT")
    bins = pd.concat([matched["error"], size_bins(matched["size_bytes"])], axis=1)
    labels = []
    for at, (high, part) in enumerate(bins.groupby("size_to_bytes")):
        p5, p25, p50, p75, p95 = np.percentile(part["error"], (5, 25, 50, 75, 95))
        axes.plot([at, at], [p5, p95], color=MEASURED, linewidth=1.2)
        axes.plot([at, at], [p25, p75], color=MEASURED, linewidth=6, solid_capstyle="butt")
        axes.plot(at, p50, "o", color=PREDICTED, markersize=5)
        low = part["size_from_bytes"].iloc[0]
        labels.append(f"{show.size_range(low, float(str(high)))}\n{len(part):,}")
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xticks(range(len(labels)), labels, rotation=0 if len(labels) <= 5 else 45)  # noqa: PLR2004 - as they fit
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+.1%}")
    return figure


def slowdown(flows: pd.DataFrame) -> Figure:
    """Slowdown against size: median, and the range from the 5th to the 95th and up to the 99th percentile."""
    figure, axes = _axes(4.8, 2.9, "message size", "slowdown (FCT / unloaded FCT)")
    good = flows[flows["slowdown"].notna()]
    bins = pd.concat([good["slowdown"], size_bins(good["size_bytes"])], axis=1)
    labels = []
    for at, (_, part) in enumerate(bins.groupby("size_to_bytes")):
        p5, p50, p95, p99 = np.percentile(part["slowdown"], (5, 50, 95, 99))
        axes.plot([at, at], [p5, p95], color=MEASURED, linewidth=6, solid_capstyle="butt")
        axes.plot([at, at], [p95, p99], color=MEASURED, linewidth=1.2)
        axes.plot(at, p50, "o", color=PREDICTED, markersize=5)
        low, high = (float(part[name].iloc[0]) for name in ("size_from_bytes", "size_to_bytes"))
        labels.append(f"{show.size_range(low, high)}\n{len(part):,}")
    axes.axhline(1, color=INK, linewidth=0.8)
    axes.set_xticks(range(len(labels)), labels, rotation=0 if len(labels) <= 5 else 45)  # noqa: PLR2004 - as they fit
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.yaxis.set_major_formatter(_thousands)
    return figure


MAX_LINKS: Final = 60


def link_heat(profile: pd.DataFrame) -> Figure:
    """How busy links are over time (see metrics.link_profile), a row a link; of many, the busiest."""
    busiest = profile.loc[
        profile.sum(axis=1).sort_values(ascending=False, kind="stable").index[:MAX_LINKS]
    ].sort_index()
    edges = [float(at) for at in profile.columns]
    step = edges[1] - edges[0] if len(edges) > 1 else 1.0
    unit = show.time_unit([edges[-1] + step])
    figure, axes = _axes(9.2, 1.1 + 0.19 * max(len(busiest), 3), f"time, {unit.name}", "")
    extent = (0.0, unit.of_ns(edges[-1] + step), len(busiest) - 0.5, -0.5)
    image = axes.imshow(busiest.to_numpy(), aspect="auto", extent=extent, cmap=_HEAT, vmin=0, vmax=1)
    image.set_interpolation("nearest")
    axes.set_yticks(range(len(busiest)), [str(name) for name in busiest.index], fontsize=7)
    axes.xaxis.set_major_formatter(_thousands)
    axes.grid(visible=False)
    with mpl.rc_context(_STYLE):
        figure.colorbar(image, ax=axes, label="busy", format=lambda value, _: f"{value:.0%}")
    return figure


MAX_DRAWN: Final = 200


def fabric(load: pd.DataFrame) -> Figure:
    """The fabric: hosts below, switches above; every cable coloured by the busier of its directions.

    Args:
        load: from `metrics.link_load`.
    """
    busy: dict[tuple[str, str], float] = {}
    for link, share in load[["link", "load"]].itertuples(index=False):
        source, _, target = str(link).partition(">")
        ends = (source, target) if source < target else (target, source)
        busy[ends] = max(busy.get(ends, 0.0), float(share))
    place = _tiers(list(busy))
    figure, axes = _axes(9.2, 3.4, "", "")
    for (a, b), share in sorted(busy.items(), key=lambda one: one[1]):
        (ax, ay), (bx, by) = place[a], place[b]
        (line,) = axes.plot([ax, bx], [ay, by], color=_HEAT(min(share, 1.0)), linewidth=1 + 3 * min(share, 1.0))
        line.set_gid(f"tip{len(axes.lines)}")
        line.set_label(f"{a} - {b}: {show.share(share)}")
    for name, (x, y) in place.items():
        box = {"boxstyle": "round", "facecolor": PAPER, "edgecolor": FAINT}
        axes.text(x, y, name, ha="center", va="center", fontsize=7, bbox=box, rotation=90 if len(place) > 40 else 0)  # noqa: PLR2004 - as they fit
    axes.set_ylim(-0.4, max(y for _, y in place.values()) + 0.4)
    axes.set_axis_off()
    with mpl.rc_context(_STYLE):
        figure.colorbar(
            ScalarMappable(Normalize(0, 1), _HEAT), ax=axes, label="load", format=lambda value, _: f"{value:.0%}"
        )
    return figure


def _tiers(cables: Sequence[tuple[str, str]]) -> dict[str, tuple[float, float]]:
    """Places of nodes: hosts (one cable) on tier 0, each switch one above the nearest tier below it."""
    near: dict[str, list[str]] = {}
    for a, b in cables:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    tier = {name: 0 for name, others in near.items() if len(others) == 1}
    level = 0
    while len(tier) < len(near) and level < len(near):
        level += 1
        above = [n for n in near if n not in tier and any(tier.get(o) == level - 1 for o in near[n])]
        tier |= dict.fromkeys(above or [n for n in near if n not in tier], level)
    found: dict[str, tuple[float, float]] = {}
    for height in set(tier.values()):
        names = sorted(
            (n for n in near if tier[n] == height), key=lambda n: [(len(p), p) for p in re.split(r"(\d+)", n)]
        )
        found |= {name: ((at + 0.5) / len(names), float(height)) for at, name in enumerate(names)}
    return found


_HEAT: Final = LinearSegmentedColormap.from_list("busy", ["#eef3fb", "#7fb0ea", "#0b63ce", "#d9730d", "#8c1d18"])


_LANES: Final = (
    ({NodeKind.COMP.name}, COMPUTE, 0.06, "compute"),
    ({NodeKind.COLLECTIVE.name}, COLLECTIVE, 0.5, "collective"),
    ({NodeKind.SEND.name, NodeKind.RECV.name}, POINT, 0.5, "send, receive"),
)


def timeline(activity: pd.DataFrame, iteration: int | None = None, end_ns: float | None = None) -> Figure:
    """Who did what when (see metrics.activity), a row a rank: compute above, communication below.

    Args:
        activity: from `metrics.activity`.
        iteration: which; the first one when absent.
        end_ns: where the time axis ends.
    """
    iteration = activity["iteration"].min() if iteration is None else iteration
    done = activity[activity["iteration"] == iteration]
    ranks = _evenly(sorted(set(done["rank"].tolist())), MAX_RANKS)
    done = done[done["rank"].isin(ranks)]
    end_ns = max(float(done["done_ns"].max()) if end_ns is None else end_ns, 1.0)
    unit = show.time_unit([end_ns])
    figure, axes = _axes(9.2, 0.9 + 0.27 * max(len(ranks), 2), f"time, {unit.name}", "rank")
    place = {rank: row for row, rank in enumerate(ranks)}
    handles = []
    for kinds, colour, offset, label in _LANES:
        lane = done[done["kind"].isin(kinds)]
        if len(lane):
            handles.append(Patch(color=colour, label=label))
            _bars(axes, lane if len(done) <= MAX_TIPS else _joined(lane, end_ns), place, unit, colour, offset)
    axes.set_xlim(0, unit.of_ns(end_ns) * 1.01)
    axes.xaxis.set_major_formatter(_thousands)
    axes.set_ylim(len(ranks), 0)
    axes.set_yticks([row + 0.5 for row in range(len(ranks))], [str(rank) for rank in ranks])
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    _legend(axes, handles)
    return figure


def _evenly(ranks: list[int], limit: int) -> list[int]:
    """At most so many of the ranks, from first to last."""
    if len(ranks) <= limit:
        return ranks
    return [ranks[at] for at in np.unique(np.linspace(0, len(ranks) - 1, limit).round().astype(int))]


def _bars(
    axes: Axes, lane: pd.DataFrame, place: Mapping[int, int], unit: show.TimeUnit, colour: str, offset: float
) -> None:
    columns = [lane[name].tolist() for name in ("rank", "issue_ns", "done_ns", "name")]
    for at, (rank, start_ns, done_ns, name) in enumerate(zip(*columns, strict=True), len(axes.patches)):
        corner = (unit.of_ns(start_ns), place[rank] + offset)
        bar = Rectangle(corner, unit.of_ns(done_ns - start_ns), 0.4, facecolor=colour, edgecolor=PAPER)
        bar.set_linewidth(0.5)
        bar.set_in_layout(False)
        bar.set_gid(f"tip{at}")
        bar.set_label(f"{name}, rank {rank}: {unit(start_ns)} to {unit(done_ns)} {unit.name}")
        axes.add_patch(bar)


def _joined(lane: pd.DataFrame, end_ns: float) -> pd.DataFrame:
    """Intervals of a rank joined where they overlap or nearly touch."""
    gap_ns, rows = end_ns / FINEST, []
    for rank, own in lane.sort_values(["rank", "issue_ns"]).groupby("rank"):
        start, reach = own["issue_ns"].to_numpy(), np.maximum.accumulate(own["done_ns"].to_numpy())
        new = np.concatenate(([True], start[1:] > reach[:-1] + gap_ns))
        first = np.flatnonzero(new)
        last = np.concatenate((first[1:], [len(start)])) - 1
        counts = last - first + 1
        names = [
            f"{count:,} operators" if count > 1 else str(own["name"].iloc[at])
            for at, count in zip(first, counts, strict=True)
        ]
        rows.append(pd.DataFrame({"rank": rank, "issue_ns": start[first], "done_ns": reach[last], "name": names}))
    return pd.concat(rows, ignore_index=True)
