"""Before a replay counts as good: did it send what the schedule says, in order, on time, and at whose cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from genie.core.schedule import Schedule
from genie.core.timeline import UNKNOWN, Timeline
from genie.replay.record import RankRecord

MAX_LATE_SHARE: Final = 0.02
"""Median share of the iteration that a rank may spend between a cause and the post it allows, before it is warned of."""

Moved = Mapping[int, Mapping[str, Mapping[int, Sequence[int]]]]
"""rank -> "sent" or "received" -> peer -> [messages, bytes]"""


@dataclass(frozen=True, slots=True)
class Check:
    """One statement about a run. A `hard` one that is not ok makes the run a failed one."""

    name: str
    ok: bool
    value: str
    limit: str
    hard: bool = True

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"name": self.name, "ok": self.ok, "value": self.value, "limit": self.limit, "hard": self.hard}


def self_check(schedule: Schedule, timeline: Timeline, moved: Moved, iterations: int, records: Any = ()) -> list[Check]:
    """All checks of a replay of `iterations` (warm-up included, since the transport counts those too).

    `records` are the recorded iterations' rank records, for the tool's own share of the time.
    """
    return [
        _bytes_and_counts(schedule, moved, iterations),
        _by_group(schedule, timeline),
        _moved_something(schedule, timeline),
        _causality(timeline),
        _dependencies(schedule, timeline),
        *_lateness(timeline),
        _own_share(timeline, records),
    ]


def _bytes_and_counts(schedule: Schedule, moved: Moved, iterations: int) -> Check:
    """Per rank and peer, what the transports counted at both ends against the schedule."""
    expected = schedule.expected()
    pairs = set(expected)
    pairs |= {(rank, peer) for rank, ways in moved.items() for peer in ways.get("sent", {})}
    pairs |= {(peer, rank) for rank, ways in moved.items() for peer in ways.get("received", {})}
    wrong = []
    for source, destination in sorted(pairs):
        want = [iterations * n for n in expected.get((source, destination), (0, 0))]
        sent = list(moved.get(source, {}).get("sent", {}).get(destination, [0, 0]))
        received = list(moved.get(destination, {}).get("received", {}).get(source, [0, 0]))
        if sent != want or received != want:
            wrong.append(f"{source}->{destination}: scheduled {want}, sent {sent}, received {received}")
    total = sum(count.messages for count in expected.values()) * iterations
    value = "; ".join(wrong[:4]) if wrong else f"{total} messages between {len(expected)} pairs of ranks"
    return Check("messages and bytes equal the schedule's, per rank and peer", not wrong, value, "equal")


def _by_group(schedule: Schedule, timeline: Timeline) -> Check:
    """Per process group and iteration, payload bytes recorded against those of its collectives and sends."""
    groups = _node_groups(schedule)
    recorded: dict[str, int] = {}
    messages = timeline.messages
    for src, node, size in zip(
        messages.src.tolist(), messages.node_id.tolist(), messages.size_bytes.tolist(), strict=True
    ):
        name = groups.get((src, node), "?")
        recorded[name] = recorded.get(name, 0) + size
    count = int(timeline.ranks.iteration.max()) + 1 if len(timeline.ranks) else 0
    wanted = {name: total * count for name, total in schedule.bytes_by_group().items()}
    return Check(
        "bytes per process group equal the schedule's",
        recorded == wanted,
        ", ".join(f"{name or 'all ranks'}: {total}" for name, total in sorted(recorded.items())) or "none",
        ", ".join(f"{name or 'all ranks'}: {total}" for name, total in sorted(wanted.items())) or "none",
    )


def _node_groups(schedule: Schedule) -> dict[tuple[int, int], str]:
    return {
        (trace.rank, node): group
        for trace in schedule.workload.traces
        for node, group in zip(trace.nodes.node_id.tolist(), trace.nodes.group.tolist(), strict=True)
    }


def _moved_something(schedule: Schedule, timeline: Timeline) -> Check:
    wanted = any(count.messages for count in schedule.expected().values())
    total = int(timeline.messages.size_bytes.sum())
    return Check("something was sent", total > 0 or not wanted, f"{total} bytes", "more than none")


def _causality(timeline: Timeline) -> Check:
    """No message was delivered before it was posted, or not at all."""
    messages = timeline.messages
    lost = int((messages.delivered_ns == UNKNOWN).sum())
    early = int((messages.delivered_ns < messages.posted_ns).sum()) - lost
    return Check(
        "every message was delivered, after it was posted", lost + early <= 0, f"{lost} lost, {early} early", "none"
    )


def _dependencies(schedule: Schedule, timeline: Timeline) -> Check:
    """No operator was issued before what it depends on was done."""
    operators = timeline.operators
    when = {
        (iteration, rank, node): (issue, done)
        for iteration, rank, node, issue, done in zip(
            operators.iteration.tolist(),
            operators.rank.tolist(),
            operators.node_id.tolist(),
            operators.issue_ns.tolist(),
            operators.done_ns.tolist(),
            strict=True,
        )
    }
    early = 0
    for iteration in sorted({key[0] for key in when}):
        for trace in schedule.workload.traces:
            ids = trace.nodes.node_id.tolist()
            rows = np.repeat(np.arange(len(ids)), np.diff(trace.dep_offsets)).tolist()
            for row, dep in zip(rows, trace.deps.tolist(), strict=True):
                after, before = when.get((iteration, trace.rank, ids[row])), when.get((iteration, trace.rank, ids[dep]))
                early += after is not None and (before is None or before[1] > after[0])
    return Check("no operator was issued before its dependencies were done", early == 0, f"{early} early", "none")


def _lateness(timeline: Timeline) -> list[Check]:
    late = timeline.operators.late_ns
    if not len(late):
        return []
    p50, p99 = (int(np.percentile(late, q)) for q in (50, 99))
    return [
        Check("operators were issued on time", ok=True, value=f"p50 {p50} ns, p99 {p99} ns late", limit="", hard=False)
    ]


def _own_share(timeline: Timeline, records: Sequence[Mapping[int, RankRecord]]) -> Check:
    """Time between a cause (a last byte at the wire, a timer) and the post it allowed: what the tool itself adds."""
    shares = []
    for iteration in records:
        for record in iteration.values():
            own = int((record.sends.posted_ns - record.sends.caused_ns).clip(min=0).sum())
            if record.finish_ns > 0:
                shares.append(own / record.finish_ns)
    share = float(np.median(shares)) if shares else 0.0
    return Check(
        "the tool's own share of the iteration time",
        share <= MAX_LATE_SHARE,
        f"{share:.2%} (summed over a rank's posts)",
        f"{MAX_LATE_SHARE:.0%}",
        hard=False,
    )
