"""Tidy pandas tables of a run; every column that has a unit says it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from genie.core.columns import Columns
from genie.core.timeline import UNKNOWN, Timeline
from genie.core.workload import CollectiveKind, NodeKind

if TYPE_CHECKING:
    from genie.formats.runfile import Run


def table(columns: Columns) -> pd.DataFrame:
    """A table's columns as they are."""
    return pd.DataFrame(columns.columns())


def flows(timeline: Timeline) -> pd.DataFrame:
    """One row a message: Messages' columns, fct_ns (post to delivery), late_ns (how much later than allowed posted)."""
    frame = table(timeline.messages)
    delivered = frame["delivered_ns"] != UNKNOWN
    frame["fct_ns"] = (frame["delivered_ns"] - frame["posted_ns"]).where(delivered)
    frame["late_ns"] = frame["posted_ns"] - frame["caused_ns"]
    return frame


def operators(timeline: Timeline) -> pd.DataFrame:
    """One row an executed node: Operators' columns, duration_ns, kinds by name."""
    frame = table(timeline.operators)
    frame["duration_ns"] = frame["done_ns"] - frame["issue_ns"]
    frame["kind"] = frame["kind"].map(lambda kind: NodeKind(kind).name)
    frame["collective"] = frame["comm_type"].map(lambda kind: CollectiveKind(kind).name if kind >= 0 else "")
    return frame


def rounds(run: Run) -> pd.DataFrame:
    """One row a round and fitted parameter of a loop."""
    rows: list[dict[str, Any]] = []
    for entry in run.results.get("rounds", []):
        base = {key: entry[key] for key in ("round", "predicted_ns", "measured_ns", "error", "run")}
        rows += [base | {f"parameter_{key}": value for key, value in p.items()} for p in entry["fitted"]] or [base]
    return pd.DataFrame(rows)
