"""Before a replay counts as good: did it send what the schedule says, in order, on time, and at whose cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from genie.core.columns import Columns
from genie.core.schedule import GRANT_TAGS, Schedule
from genie.core.timeline import UNKNOWN, Timeline
from genie.units import ns_to_us

MAX_OWN_SHARE: Final = 0.02
"""A rank that spends more of an iteration than this between causes and the posts they allow is warned of."""

MAX_NAMED: Final = 4

Moved = Mapping[int, Mapping[str, Mapping[int, Sequence[int]]]]
"""rank -> "sent" or "received" -> peer -> [messages, bytes]"""


@dataclass(frozen=True, slots=True)
class Check:
    """One statement about a run.

    Attributes:
        name: the statement.
        ok: whether it holds.
        value: what was found; `limit`: what it must be.
        hard: if it does not hold, the run has failed; else it is a warning.
        detail: more, for people.
    """

    name: str
    ok: bool
    value: str
    limit: str
    hard: bool = True
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def self_check(schedule: Schedule, timeline: Timeline, moved: Moved, iterations: int) -> list[Check]:
    """All checks of a replay.

    Args:
        schedule: what should have happened.
        timeline: what did, in the recorded iterations.
        moved: what the transports counted, in all `iterations`, warm-up included.
        iterations: see there.
    """
    return [
        _bytes_and_counts(schedule, moved, iterations),
        _by_group(schedule, timeline),
        _moved_something(schedule, timeline),
        _causality(timeline),
        _dependencies(schedule, timeline),
        _lateness(timeline),
        _own_share(timeline),
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
    value = f"{len(wrong)} pairs differ" if wrong else f"{total} messages between {len(expected)} pairs of ranks"
    name = "messages and bytes equal the schedule's, per rank and peer"
    return Check(name, not wrong, value, "equal", detail="; ".join(wrong[:MAX_NAMED]))


def _by_group(schedule: Schedule, timeline: Timeline) -> Check:
    """Per process group and iteration, payload bytes recorded against those of its collectives and sends."""
    groups = _node_groups(schedule)
    recorded: dict[str, int] = {}
    messages = timeline.messages
    payload = messages.take(~_is_grant(messages.tag))
    columns = (payload.src, payload.node_id, payload.size_bytes)
    for src, node, size in zip(*(column.tolist() for column in columns), strict=True):
        name = groups.get((src, node), "unknown")
        recorded[name] = recorded.get(name, 0) + size
    count = int(timeline.ranks.iteration.max()) + 1 if len(timeline.ranks) else 0
    wanted = {name: total * count for name, total in schedule.bytes_by_group().items()}
    name = "bytes per process group equal the schedule's"
    return Check(name, recorded == wanted, _totals(recorded), _totals(wanted))


def _is_grant(tag: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rendezvous grants belong to no group: they are the protocol's, and `Schedule.bytes_by_group` leaves them out."""
    found: NDArray[np.bool_] = tag >= GRANT_TAGS
    return found


def _totals(by_group: Mapping[str, int]) -> str:
    return ", ".join(f"{name or 'all ranks'}: {total}" for name, total in sorted(by_group.items())) or "none"


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
    """Every message was allowed, then posted, then delivered.

    One that no receive asked for has no time of delivery; that it was acknowledged is enough then.
    """
    messages = timeline.messages
    arrived = messages.delivered_ns != UNKNOWN
    lost = ~arrived & (messages.acknowledged_ns == UNKNOWN)
    early = (messages.delivered_ns < messages.posted_ns) & arrived | (messages.posted_ns < messages.caused_ns)
    value = f"{int(lost.sum())} not delivered, {int(early.sum())} early"
    name = "every message was delivered, and none before it was posted"
    return Check(name, not (lost | early).any(), value, "none", detail=_rows(messages.take(lost | early), _MESSAGE))


_MESSAGE: Final = ("iteration", "src", "dst", "tag", "size_bytes", "posted_ns", "delivered_ns")


def _rows(table: Columns, names: Iterable[str]) -> str:
    """The first rows of a table in words."""
    few = table.take(np.arange(min(MAX_NAMED, len(table))))
    rows = zip(*(few.columns()[name].tolist() for name in names), strict=True)
    return "; ".join(", ".join(f"{name} {value}" for name, value in zip(names, row, strict=True)) for row in rows)


def _dependencies(schedule: Schedule, timeline: Timeline) -> Check:
    """No operator was issued before what it depends on was done."""
    early, detail = 0, ""
    for iteration in np.unique(timeline.operators.iteration).tolist():
        for rank, (issued_ns, done_ns) in _operator_times(schedule, timeline, iteration).items():
            trace = schedule.workload.traces[rank]
            rows = np.repeat(np.arange(len(issued_ns)), np.diff(trace.dep_offsets))
            issue, before = issued_ns[rows], done_ns[trace.deps]
            wrong = np.flatnonzero((issue != UNKNOWN) & ((before == UNKNOWN) | (before > issue)))
            early += len(wrong)
            if len(wrong) and not detail:
                node, dep = (trace.nodes.node_id[at[wrong[0]]] for at in (rows, trace.deps))
                detail = f"rank {rank}, iteration {iteration}: node {node} before node {dep}"
    name = "no operator was issued before its dependencies were done"
    return Check(name, early == 0, f"{early} early", "none", detail=detail)


def _operator_times(
    schedule: Schedule, timeline: Timeline, iteration: int
) -> dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Rank -> (issue_ns, done_ns) by row of its trace, UNKNOWN where there is none."""
    operators = timeline.operators.take(timeline.operators.iteration == iteration)
    found = {}
    for rank in np.unique(operators.rank).tolist():
        nodes = schedule.workload.traces[rank].nodes
        own = operators.take(operators.rank == rank)
        at = np.searchsorted(nodes.node_id, own.node_id)
        issued_ns, done_ns = np.full(len(nodes), UNKNOWN), np.full(len(nodes), UNKNOWN)
        issued_ns[at], done_ns[at] = own.issue_ns, own.done_ns
        found[rank] = issued_ns, done_ns
    return found


def _lateness(timeline: Timeline) -> Check:
    """How long after it could have been issued an operator was; told, not judged: `_own_share` judges."""
    late_ns = timeline.operators.late_ns
    return Check("how late operators were issued", ok=True, value=_percentiles(late_ns), limit="", hard=False)


def _percentiles(values_ns: NDArray[np.int64]) -> str:
    if not len(values_ns):
        return "none"
    p50, p99 = (ns_to_us(float(np.percentile(values_ns, q))) for q in (50, 99))
    return f"p50 {p50:.3g} us, p99 {p99:.3g} us"


def busy_ns(begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> int:
    """Length of the union of intervals."""
    if not len(begin_ns):
        return 0
    order = np.argsort(begin_ns, kind="stable")
    begin_ns, reach_ns = begin_ns[order], np.maximum.accumulate(end_ns[order])
    covered_until = np.concatenate(([begin_ns[0]], reach_ns[:-1]))
    return int(np.clip(reach_ns - np.maximum(begin_ns, covered_until), 0, None).sum())


def own_shares(timeline: Timeline) -> dict[tuple[int, int], float]:
    """(iteration, rank) -> share of its time in which a message was allowed but not yet posted.

    That is the tool's own time: from a cause (a last byte at the wire plus its modelled delay, a timer) to the post
    that follows from it; times that several posts waited side by side count once.
    """
    messages, shares = timeline.messages, {}
    columns = (timeline.ranks.iteration, timeline.ranks.rank, timeline.ranks.finish_ns)
    for iteration, rank, finish_ns in zip(*(column.tolist() for column in columns), strict=True):
        own = (messages.iteration == iteration) & (messages.src == rank)
        if finish_ns > 0:
            shares[iteration, rank] = busy_ns(messages.caused_ns[own], messages.posted_ns[own]) / finish_ns
    return shares


def _own_share(timeline: Timeline) -> Check:
    shares = own_shares(timeline)
    worst = max(shares, key=lambda key: shares[key], default=None)
    median = float(np.median(list(shares.values()))) if shares else 0.0
    late = _percentiles(timeline.messages.posted_ns - timeline.messages.caused_ns)
    more = "" if worst is None else f"; most: {shares[worst]:.2%} on rank {worst[1]}, iteration {worst[0]}"
    return Check(
        "the tool's own share of the iteration time",
        median <= MAX_OWN_SHARE,
        f"{median:.2%}, median over ranks",
        f"{MAX_OWN_SHARE:.0%}",
        hard=False,
        detail=f"from a cause to the post it allows: {late}{more}",
    )
