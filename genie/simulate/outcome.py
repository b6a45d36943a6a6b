"""What a simulation found, rank by rank or class by class, and the Timeline made from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from genie.core.schedule import Schedule
from genie.core.timeline import UNKNOWN, Messages, Operators, Ranks, Timeline
from genie.core.workload import NONE
from genie.errors import InputError

Places = NDArray[np.int64]


@dataclass(slots=True)
class RankRecord:
    """One rank's times in ns; the dictionaries are by row of its operators."""

    issued: dict[int, int] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    finish_ns: int = UNKNOWN
    compute_ns: int = 0

    def columns(self, rows: int) -> tuple[Places, Places]:
        """Issue and completion of every row, UNKNOWN where there was none."""
        return _column(self.issued, rows), _column(self.done, rows)


@dataclass(frozen=True, slots=True)
class ArrayRecord:
    """The same as arrays by row."""

    issue_ns: Places
    done_ns: Places
    finish_ns: int
    compute_ns: int

    def columns(self, rows: int) -> tuple[Places, Places]:
        """See RankRecord."""
        return self.issue_ns[:rows], self.done_ns[:rows]


def _column(times: dict[int, int], rows: int) -> Places:
    column = np.full(rows, UNKNOWN, np.int64)
    if times:
        column[np.fromiter(times.keys(), np.int64, len(times))] = np.fromiter(times.values(), np.int64, len(times))
    return column


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a path of the simulator hands back.

    Attributes:
        records: of the ranks that were simulated.
        record_of: for every rank its position in `records`; None: each has its own.
        messages: all of them; None when they are too many to be kept.
    """

    records: Sequence[RankRecord | ArrayRecord]
    record_of: Places | None
    messages: Messages | None

    def timeline(self, schedule: Schedule, notes: tuple[str, ...] = ()) -> Timeline:
        """The timeline of all ranks.

        Raises:
            InputError: ranks that never finish: says what they wait for.
        """
        ranks = len(schedule.ranks)
        record_of = np.arange(ranks) if self.record_of is None else self.record_of
        finish_ns, compute_ns = (
            np.array([getattr(r, name) for r in self.records], np.int64)[record_of]
            for name in ("finish_ns", "compute_ns")
        )
        _refuse_stuck(schedule, np.flatnonzero(finish_ns == UNKNOWN), [self.records[at] for at in record_of.tolist()])
        return Timeline(
            executor="builtin",
            measured=False,
            ranks=Ranks(np.zeros(ranks, np.int32), np.arange(ranks, dtype=np.int32), finish_ns, finish_ns - compute_ns),
            operators=self._operators(schedule, record_of),
            messages=Messages.empty() if self.messages is None else self.messages,
            notes=notes,
        )

    def _operators(self, schedule: Schedule, record_of: Places) -> Operators:
        """One table for all ranks, made without a loop over them: equal ranks share their nodes and their record."""
        traces = schedule.workload.traces
        owners = dict(zip(record_of.tolist(), traces, strict=True))
        times = [self.records[at].columns(len(owners[at].nodes)) for at in range(len(self.records))]
        distinct = {id(trace.nodes): trace.nodes for trace in traces}
        rows = np.array([len(trace.nodes) for trace in traces], np.int64)
        within = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
        starts = dict(zip(distinct, _starts([len(nodes) for nodes in distinct.values()]), strict=True))
        node = np.repeat(np.array([starts[id(trace.nodes)] for trace in traces], np.int64), rows) + within
        time = np.repeat(_starts([len(issue) for issue, _ in times])[record_of], rows) + within
        issue_ns, done_ns = (np.concatenate([pair[at] for pair in times])[time] for at in (0, 1))
        seen = issue_ns != UNKNOWN
        node = node[seen]
        names = ("node_id", "kind", "comm_type", "group", "name", "size_bytes")
        columns = {name: np.concatenate([getattr(n, name) for n in distinct.values()])[node] for name in names}
        return Operators(
            **{**columns, "size_bytes": np.where(columns["size_bytes"] == NONE, 0, columns["size_bytes"])},
            iteration=np.zeros(len(node), np.int32),
            rank=np.repeat(np.arange(len(traces), dtype=np.int32), rows)[seen],
            issue_ns=issue_ns[seen],
            done_ns=done_ns[seen],
            late_ns=np.zeros(len(node), np.int64),
        )


def _starts(lengths: list[int]) -> Places:
    return np.cumsum([0, *lengths], dtype=np.int64)[:-1]


def _refuse_stuck(schedule: Schedule, stuck: Places, records: Sequence[RankRecord | ArrayRecord]) -> None:
    if len(stuck):
        stories = "; ".join(_story(schedule, rank, records[rank]) for rank in stuck[:4].tolist())
        raise InputError(
            f"{len(stuck)} of {len(records)} ranks never finish: {stories}.",
            where=schedule.workload.name,
            fix="genie trace check finds sends without receives and collectives that not all members issue.",
        )


def _story(schedule: Schedule, rank: int, record: RankRecord | ArrayRecord) -> str:
    nodes = schedule.workload.traces[rank].nodes
    issue_ns, done_ns = record.columns(len(nodes))
    running = np.flatnonzero((issue_ns != UNKNOWN) & (done_ns == UNKNOWN))[:3]
    waiting = ", ".join(f"node {nodes.node_id[row]} ({nodes.name[row]})" for row in running)
    return f"rank {rank} waits in {waiting or 'nothing (its last node released nobody)'}"
