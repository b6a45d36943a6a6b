"""ASTRA-sim's record of a run as a Timeline, also where it was handed messages in place of collectives."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np

from genie.core.schedule import COLLECTIVE_TAGS, OpKind, Schedule, Slot
from genie.core.timeline import UNKNOWN, Messages, Operators, Ranks, Timeline
from genie.core.workload import NONE, NodeKind, RankTrace
from genie.lower.point_to_point import PointToPoint
from genie.simulate.astra_parse import Flow, Spoken, Ticks

EXECUTOR: Final = "astra-sim"
_NO_TICKS: Final = "this version of ASTRA-sim does not tell when nodes began and ended"


def timeline_of(schedule: Schedule, spoken: Spoken, ticks: Ticks, flows: list[Flow]) -> Timeline:
    """The timeline of a run that was handed the schedule's own workload.

    Args:
        schedule: what was run.
        spoken: what ASTRA-sim said; every rank has finished.
        ticks: when nodes began and ended.
        flows: a packet simulator's; they take the place of the trace's own sends.
    """
    finished = spoken.finished
    ranks = [(0, rank, finished[rank].finish_ns, finished[rank].exposed_ns) for rank in sorted(finished)]
    traces = schedule.workload.traces
    messages = [_flow_row(flow, index) for flow, index in _numbered(flows)] if flows else _plain_sends(schedule, ticks)
    notes = () if ticks.issued else (_NO_TICKS,)
    return Timeline(
        executor=EXECUTOR,
        measured=False,
        ranks=Ranks.from_rows(ranks),
        operators=Operators.concat([_operators(trace, ticks) for trace in traces]),
        messages=Messages.from_rows(messages),
        notes=notes,
    )


def _operators(trace: RankTrace, ticks: Ticks) -> Operators:
    nodes = trace.nodes
    ids = nodes.node_id.tolist()
    rows = np.array([row for row, node in enumerate(ids) if (trace.rank, node) in ticks.issued], np.int64)
    keys = [(trace.rank, ids[row]) for row in rows.tolist()]
    return Operators(
        iteration=np.zeros(len(rows), np.int32),
        rank=np.full(len(rows), trace.rank, np.int32),
        node_id=nodes.node_id[rows],
        kind=nodes.kind[rows],
        comm_type=nodes.comm_type[rows],
        group=nodes.group[rows],
        name=nodes.name[rows],
        size_bytes=np.where(nodes.size_bytes[rows] == NONE, 0, nodes.size_bytes[rows]),
        issue_ns=np.array([ticks.issued[key] for key in keys], np.int64),
        done_ns=np.array([ticks.done.get(key, UNKNOWN) for key in keys], np.int64),
        late_ns=np.zeros(len(rows), np.int64),
    )


def _plain_sends(schedule: Schedule, ticks: Ticks) -> list[tuple[Any, ...]]:
    """The trace's own sends: issue is the post, completion the delivery. Of a collective's messages nothing is told."""
    rows = []
    counts: Counter[tuple[int, ...]] = Counter()
    for trace in schedule.workload.traces:
        nodes = trace.nodes
        sends = [
            (ticks.issued[key], node, row)
            for row, node in enumerate(nodes.node_id.tolist())
            if nodes.kind[row] == NodeKind.SEND and (key := (trace.rank, node)) in ticks.issued
        ]
        for posted_ns, node, row in sorted(sends):
            tag, size = max(0, int(nodes.tag[row])) % COLLECTIVE_TAGS, int(nodes.size_bytes[row])
            message = (trace.rank, int(nodes.peer[row]), tag, size)
            times_ns = posted_ns, ticks.done[trace.rank, node]
            rows.append(_message_row(message, counts[message], node, times_ns))
            counts[message] += 1
    return rows


def _numbered(flows: list[Flow]) -> list[tuple[Flow, int]]:
    """Flows with their running number among equal ones."""
    counts: Counter[tuple[int, int, int]] = Counter()
    numbered = []
    for flow in flows:
        key = (flow.src, flow.dst, flow.size_bytes)
        numbered.append((flow, counts[key]))
        counts[key] += 1
    return numbered


def _flow_row(flow: Flow, index: int) -> tuple[Any, ...]:
    """A packet simulator's flow: its end is when the sender knows, which its front end takes as the delivery too."""
    message = (flow.src, flow.dst, UNKNOWN, flow.size_bytes)
    return _message_row(message, index, 0, (flow.start_ns, flow.end_ns), flow=flow.port)


def _message_row(
    message: tuple[int, int, int, int],
    index: int,
    node: int,
    times_ns: tuple[int, int],
    *,
    flow: int = 0,
    part: tuple[int, int, int] = (-1, -1, -1),
) -> tuple[Any, ...]:
    """`message` is (src, dst, tag, size), `part` (chunk, phase, step)."""
    posted_ns, delivered_ns = times_ns
    return (0, *message, index, flow, node, *part, posted_ns, posted_ns, UNKNOWN, delivered_ns, delivered_ns, 0)


def timeline_of_messages(schedule: Schedule, written: PointToPoint, spoken: Spoken, ticks: Ticks) -> Timeline:
    """The timeline of a run that was handed messages in place of the schedule's collectives.

    An operator begins with its first node and ends with those that it ends with. Time that collectives spend locally is
    no computation: exposed communication is told as if they had been handed over.
    """
    ranks, operators, messages = [], [], []
    counts: Counter[tuple[int, ...]] = Counter()
    for trace in schedule.workload.traces:
        finish_ns = spoken.finished[trace.rank].finish_ns
        ranks.append((0, trace.rank, finish_ns, finish_ns - _computed_ns(schedule, trace.rank)))
        operators.append(_operators(trace, _gathered(trace, written, ticks)))
        messages += _sends(trace, written, ticks, counts)
    return Timeline(
        executor=EXECUTOR,
        measured=False,
        ranks=Ranks.from_rows(ranks),
        operators=Operators.concat(operators),
        messages=Messages.from_rows(messages),
        notes=() if ticks.issued else (_NO_TICKS,),
    )


def _computed_ns(schedule: Schedule, rank: int) -> int:
    operators = schedule.ranks[rank].operators
    return int(operators.duration_ns[(operators.kind == OpKind.COMPUTE) & (operators.slot != Slot.CPU)].sum())


def _gathered(trace: RankTrace, written: PointToPoint, ticks: Ticks) -> Ticks:
    """Ticks of the original trace's nodes from those of the nodes that they were written as."""
    gathered = Ticks()
    origins, ids = written.origins[trace.rank], trace.nodes.node_id.tolist()
    for node, row in enumerate(origins.row.tolist()):
        begin_ns = ticks.issued.get((trace.rank, node))
        key = trace.rank, ids[row]
        if begin_ns is not None:
            gathered.issued[key] = min(begin_ns, gathered.issued.get(key, begin_ns))
    for row, ends in enumerate(origins.ends):
        times = [ticks.done[trace.rank, end] for end in ends if (trace.rank, end) in ticks.done]
        if times and (trace.rank, ids[row]) in gathered.issued:
            gathered.done[trace.rank, ids[row]] = max(times)
    return gathered


def _sends(
    trace: RankTrace, written: PointToPoint, ticks: Ticks, counts: Counter[tuple[int, ...]]
) -> list[tuple[Any, ...]]:
    nodes, origins = written.workload.traces[trace.rank].nodes, written.origins[trace.rank]
    ids = trace.nodes.node_id.tolist()
    columns = (nodes.peer.tolist(), nodes.tag.tolist(), nodes.size_bytes.tolist())
    parts = list(zip(*(column.tolist() for column in (origins.chunk, origins.phase, origins.step)), strict=True))
    sends = [
        (ticks.issued[trace.rank, at], at)
        for at in np.flatnonzero(nodes.kind == NodeKind.SEND).tolist()
        if (trace.rank, at) in ticks.issued
    ]
    rows = []
    for posted_ns, at in sorted(sends):
        message = (trace.rank, *(column[at] for column in columns))
        times_ns = posted_ns, ticks.done[trace.rank, at]
        node = ids[int(origins.row[at])]
        rows.append(_message_row(message, counts[message], node, times_ns, part=parts[at]))
        counts[message] += 1
    return rows
