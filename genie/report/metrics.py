"""Metrics with one definition each; docs/metrics.md says them in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from genie.core.timeline import Timeline
from genie.core.workload import CollectiveKind
from genie.report.frames import flows, operators
from genie.units import bps_to_gigabytes, transfer_ns

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def bus_factor(kind: CollectiveKind, members: int) -> float:
    """Busbw / algbw: what share of the bytes has to cross a rank's link (n = members of the group)."""
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (members - 1) / members
    if kind in {CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL}:
        return (members - 1) / members
    return 1.0


def total_bytes(kind: CollectiveKind, comm_size_bytes: int, members: int) -> int:
    """nccl-tests' size: the whole array; an all-gather's comm_size is what one rank contributes."""
    return comm_size_bytes * members if kind is CollectiveKind.ALL_GATHER else comm_size_bytes


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """algbw = total bytes / time, busbw = algbw x bus factor, both bit/s."""

    algbw_bps: float
    busbw_bps: float


def collective_bandwidth(kind: CollectiveKind, comm_size_bytes: int, members: int, time_ns: int) -> Bandwidth:
    """Bandwidths of one collective that took `time_ns` on its slowest rank."""
    algbw_bps = total_bytes(kind, comm_size_bytes, members) * 8e9 / time_ns
    return Bandwidth(algbw_bps, algbw_bps * bus_factor(kind, members))


def fct_by_size(timeline: Timeline) -> pd.DataFrame:
    """Per message size: count, FCT percentiles (ns), and mean goodput (GB/s, decimal)."""
    frame = flows(timeline).dropna(subset=["fct_ns"])
    if frame.empty:
        return pd.DataFrame(columns=["size_bytes", "messages", *(f"fct_{q}_ns" for q in QUANTILES), "goodput_gb_per_s"])
    grouped = frame.groupby("size_bytes")["fct_ns"]
    result = pd.DataFrame({"messages": grouped.size()})
    for name, quantile in QUANTILES.items():
        result[f"fct_{name}_ns"] = grouped.quantile(quantile)
    rates = result.index.to_numpy() * 8e9 / grouped.mean()
    result["goodput_gb_per_s"] = [bps_to_gigabytes(rate) for rate in rates]
    return result.reset_index()


def slowdown(timeline: Timeline, rate_bps: float, base_ns: float) -> pd.Series:
    """FCT / (size / line rate + unloaded base time) of every message."""
    frame = flows(timeline).dropna(subset=["fct_ns"])
    ideal = frame["size_bytes"].map(lambda size: transfer_ns(size, rate_bps)) + base_ns
    return frame["fct_ns"] / ideal


def collectives(timeline: Timeline, members: dict[str, int]) -> pd.DataFrame:
    """Per collective (median over iterations): time of its slowest rank, straggler gap, algbw and busbw.

    `members` gives the size of each process group, "" being all ranks. The straggler gap is the time between the first
    and the last rank that finish it.
    """
    frame = operators(timeline)
    frame = frame[frame["comm_type"] >= 0]
    rows: list[dict[str, Any]] = []
    keys = ["node_id", "name", "comm_type", "group", "size_bytes"]
    for _, part in frame.groupby(keys, sort=False):
        node, name, kind, group, size = (part[key].iloc[0] for key in keys)
        spans = part.groupby("iteration").agg(
            start=("issue_ns", "min"), first=("done_ns", "min"), last=("done_ns", "max")
        )
        time_ns = int((spans["last"] - spans["start"]).median())
        bandwidth = collective_bandwidth(CollectiveKind(kind), int(size), members.get(str(group), 1), max(time_ns, 1))
        rows.append(
            {
                "node_id": node,
                "name": name,
                "collective": CollectiveKind(kind).name,
                "group": group,
                "size_bytes": size,
                "time_ns": time_ns,
                "straggler_gap_ns": int((spans["last"] - spans["first"]).median()),
                "algbw_gb_per_s": bps_to_gigabytes(bandwidth.algbw_bps),
                "busbw_gb_per_s": bps_to_gigabytes(bandwidth.busbw_bps),
            }
        )
    return pd.DataFrame(rows)


def exposed_share(timeline: Timeline) -> float:
    """Median over ranks and iterations of exposed communication / finish time."""
    ranks = timeline.ranks
    finished = ranks.finish_ns > 0
    return float(np.median(ranks.exposed_ns[finished] / ranks.finish_ns[finished])) if finished.any() else 0.0
