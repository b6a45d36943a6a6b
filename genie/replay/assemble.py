"""The ranks' records -> one Timeline: operators get their names back, both halves of every message are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from genie.core.schedule import Schedule
from genie.core.timeline import UNKNOWN, Messages, Operators, Ranks, Status, Timeline
from genie.core.workload import NONE
from genie.replay.record import RankRecord

_KEY = ("peer", "tag", "size_bytes", "index")


def assemble(
    schedule: Schedule, iterations: Sequence[Mapping[int, RankRecord]], executor: str, status: Status
) -> Timeline:
    """One timeline of all iterations; messages whose arrival nobody recorded keep UNKNOWN there."""
    ranks, operators, messages = [], [], []
    for iteration, records in enumerate(iterations):
        for rank, record in sorted(records.items()):
            exposed = record.finish_ns - record.compute_ns if record.finish_ns >= 0 else UNKNOWN
            ranks.append((iteration, rank, record.finish_ns, exposed))
            operators.append(_operators(schedule, iteration, rank, record))
        messages.append(_messages(iteration, records))
    return Timeline(
        executor=executor,
        measured=True,
        ranks=Ranks.from_rows(ranks),
        operators=Operators.concat(operators),
        messages=Messages.concat(messages),
        status=status,
    )


def _operators(schedule: Schedule, iteration: int, rank: int, record: RankRecord) -> Operators:
    nodes, rows = schedule.workload.traces[rank].nodes, record.operators.row
    size_bytes = nodes.size_bytes[rows]
    return Operators(
        iteration=np.full(len(rows), iteration, np.int32),
        rank=np.full(len(rows), rank, np.int32),
        node_id=nodes.node_id[rows],
        kind=nodes.kind[rows],
        comm_type=nodes.comm_type[rows],
        group=nodes.group[rows],
        name=nodes.name[rows],
        size_bytes=np.where(size_bytes == NONE, 0, size_bytes),
        issue_ns=record.operators.issue_ns,
        done_ns=record.operators.done_ns,
        late_ns=record.operators.late_ns,
    )


def _arrivals(records: Mapping[int, RankRecord]) -> dict[tuple[int, ...], tuple[int, int]]:
    """(src, dst, tag, size, index) -> (first byte, delivered)."""
    found = {}
    for rank, record in records.items():
        table = record.receives
        keys = zip(*(getattr(table, name).tolist() for name in _KEY), strict=True)
        times = zip(table.first_byte_ns.tolist(), table.delivered_ns.tolist(), strict=True)
        for (peer, *rest), time in zip(keys, times, strict=True):
            found[peer, rank, *rest] = time
    return found


def _messages(iteration: int, records: Mapping[int, RankRecord]) -> Messages:
    arrivals = _arrivals(records)
    tables = []
    for rank, record in sorted(records.items()):
        sends = record.sends
        keys = zip(*(getattr(sends, name).tolist() for name in _KEY), strict=True)
        times = [arrivals.get((rank, *key), (UNKNOWN, UNKNOWN)) for key in keys]
        count = len(sends)
        tables.append(
            Messages(
                iteration=np.full(count, iteration, np.int32),
                src=np.full(count, rank, np.int32),
                dst=sends.peer.astype(np.int32),
                tag=sends.tag,
                size_bytes=sends.size_bytes,
                index=sends.index,
                flow=sends.flow.astype(np.int32),
                node_id=sends.node_id.astype(np.uint64),
                chunk=sends.chunk.astype(np.int32),
                phase=sends.phase.astype(np.int32),
                step=sends.step.astype(np.int32),
                caused_ns=sends.caused_ns,
                posted_ns=sends.posted_ns,
                first_byte_ns=np.array([t[0] for t in times], np.int64),
                delivered_ns=np.array([t[1] for t in times], np.int64),
                acknowledged_ns=sends.acknowledged_ns,
                status=np.zeros(count, np.int16),
            )
        )
    return Messages.concat(tables)
