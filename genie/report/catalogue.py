"""Every figure that a run is judged by: its unit, which way is better, and what it is. docs/metrics.md says more."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Better(StrEnum):
    """Which way a figure improves."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure.

    Attributes:
        unit: as it is written; "" for a ratio or count.
        better: which way is good.
        about: what it is, in a few words.
        primary: whether a comparison tests it; others are shown only.
    """

    unit: str
    better: Better
    about: str
    primary: bool = False


_L, _H, _N = Better.LOWER, Better.HIGHER, Better.NEITHER

METRICS: Final[dict[str, Metric]] = {
    "iteration_ns": Metric("ns", _L, "iteration time: finish of the last rank", primary=True),
    "jct_ratio": Metric("", _L, "iteration time / roofline: compute + busiest direction of the rank's link"),
    "exposed_share": Metric("", _L, "share of a rank's time that is not compute, median over ranks"),
    "exposed_ns": Metric("ns", _L, "communication that no compute hides, median over ranks"),
    "overlap": Metric("", _H, "hidden share of the smaller of compute and communication, median over ranks"),
    "compute_spread": Metric("", _L, "(most - median) / median of the ranks' compute times"),
    "fct_p50_ns": Metric("ns", _L, "message completion, median"),
    "fct_p99_ns": Metric("ns", _L, "message completion, 99th percentile", primary=True),
    "fct_max_ns": Metric("ns", _L, "message completion, slowest"),
    "fct_gap_ns": Metric("ns", _L, "slowest - fastest completion of messages of one size, largest over sizes"),
    "goodput_gb_per_s": Metric("GB/s", _H, "bytes of all messages / sum of their completion times"),
    "slowdown_p50": Metric("", _L, "completion / unloaded completion, median"),
    "slowdown_p99": Metric("", _L, "completion / unloaded completion, 99th percentile"),
    "incast_tail": Metric("", _L, "p99 / p50 completion of messages that share their receiver with another sender's"),
    "collective_ns": Metric("ns", _L, "a collective, first issue to last completion", primary=True),
    "algbw_gb_per_s": Metric("GB/s", _H, "a collective's total bytes / its time"),
    "busbw_gb_per_s": Metric("GB/s", _H, "algbw x nccl-tests' factor of the collective"),
    "skew_ns": Metric("ns", _L, "first to last member that issues a collective"),
    "straggler_gap_ns": Metric("ns", _L, "first to last member that is done with a collective"),
    "link_load_max": Metric("", _N, "payload / (rate x iteration time), busiest link"),
    "link_load_mean": Metric("", _N, "the same, mean over the links that carry anything"),
    "path_mmr": Metric("", _L, "max / mean payload of parallel links, worst set of them"),
    "path_jain": Metric("", _H, "Jain's index of parallel links' payload, worst set of them"),
    "dropped_packets": Metric("", _L, "packets that ports dropped, whole replay"),
    "drop_share": Metric("", _L, "dropped / (sent + dropped) packets, all ports, whole replay"),
    "ecn_share": Metric("", _L, "packets marked CE / sent packets, all ports, whole replay"),
    "retransmit_share": Metric("", _L, "packets sent again / sent packets, whole replay"),
    "pause_ns": Metric("ns", _L, "time for which PFC paused ports, summed, whole replay"),
    "operator_late_p50_ns": Metric("ns", _L, "issue of an operator after it could be issued, median"),
    "operator_late_p99_ns": Metric("ns", _L, "the same, 99th percentile"),
    "message_late_p50_ns": Metric("ns", _L, "post of a message after the schedule allowed it, median"),
    "message_late_p99_ns": Metric("ns", _L, "the same, 99th percentile"),
    "own_share": Metric("", _L, "share of a rank's time in which an allowed message waited for the tool, median"),
    "failed_checks": Metric("", _L, "self-checks that do not hold, warnings included"),
    "cpu_pressure": Metric("", _L, "share of the replay in which a process of this machine waited for a processor"),
    "clock_bound_ns": Metric("ns", _L, "bound of the error of one-way times between hosts"),
}
"""Name -> figure; names end in their unit where they have one."""
