"""A run without a network: who waits for whom, and in which order collectives are issued.

The issue rules are ASTRA-sim's (one operator at a time on the CPU, on the GPU and in communication, lowest id first);
computation takes its duration, communication next to nothing. A job that gets stuck here is stuck by its own order, on
whatever network.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from genie.core.workload import NONE, Group, NodeKind
from genie.formats.chakra import RawTrace
from genie.formats.graph import Graph

_CPU, _COMPUTE, _COMMUNICATION, _FREE = range(4)
_MESSAGE_NS = 1
Place = tuple[int, int]
"""(rank, row)"""
MessageKey = tuple[int, int, int, int]
"""(source, destination, tag, size_bytes)"""


@dataclass(frozen=True, slots=True)
class Wait:
    """A node that was issued and never finished, and the ranks that it waits for."""

    rank: int
    row: int
    ranks: tuple[int, ...]


@dataclass(slots=True)
class DryRun:
    """Outcome.

    Attributes:
        issued: (group, rank) -> rows of its collectives, in the order in which they were issued.
        waits: what is left waiting at the end.
    """

    issued: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    waits: list[Wait] = field(default_factory=list)


def group_key(name: str) -> str:
    """A group's name, "" for all ranks however they are written."""
    return "" if name == "0" else name


def dry_run(
    raws: Mapping[int, RawTrace], graphs: Mapping[int, Graph], groups: Mapping[str, Group], skip: Mapping[int, set[int]]
) -> DryRun:
    """Run all ranks.

    Args:
        raws: rank -> trace.
        graphs: rank -> its dependencies.
        groups: name -> group.
        skip: rank -> rows that do nothing (they are reported otherwise).
    """
    return _Job(raws, graphs, groups, skip).run()


class _Rank:
    """One rank's readiness: what is ready for each slot, lowest id first."""

    def __init__(self, raw: RawTrace, graph: Graph, skip: set[int]) -> None:
        self.missing: list[int] = (graph.dep_offsets[1:] - graph.dep_offsets[:-1]).tolist()
        self.first, self.children = graph.child_offsets.tolist(), graph.children.tolist()
        self.place = [0] * len(graph)
        for at, row in enumerate(graph.order.tolist()):
            self.place[row] = at
        self.slot = [_FREE if row in skip else _slot(kind, cpu) for row, kind, cpu in _kinds(raw)]
        self.waiting: list[list[Place]] = [[], [], [], []]
        self.busy = [False] * 4

    def release(self, row: int) -> None:
        heapq.heappush(self.waiting[self.slot[row]], (self.place[row], row))

    def done(self, row: int) -> None:
        """Free the slot and release the children."""
        self.busy[self.slot[row]] = False
        for child in self.children[self.first[row] : self.first[row + 1]]:
            self.missing[child] -= 1
            if self.missing[child] == 0:
                self.release(child)

    def next(self) -> int | None:
        """A row that may be issued now; takes its slot."""
        for slot in (_FREE, _CPU, _COMPUTE, _COMMUNICATION):
            if self.waiting[slot] and not self.busy[slot]:
                self.busy[slot] = slot != _FREE
                return heapq.heappop(self.waiting[slot])[1]
        return None


def _kinds(raw: RawTrace) -> Iterable[tuple[int, int, bool]]:
    kinds, cpu = raw.nodes.kind.tolist(), raw.nodes.is_cpu.tolist()
    return zip(range(len(kinds)), kinds, cpu, strict=True)


def _slot(kind: int, cpu: bool) -> int:
    if kind in {NodeKind.RECV, NodeKind.INVALID, NodeKind.METADATA}:
        return _FREE
    if cpu:
        return _CPU
    return _COMPUTE if kind == NodeKind.COMP else _COMMUNICATION


class _Job:
    def __init__(
        self,
        raws: Mapping[int, RawTrace],
        graphs: Mapping[int, Graph],
        groups: Mapping[str, Group],
        skip: Mapping[int, set[int]],
    ) -> None:
        self.skip = skip
        self.members = {"": frozenset(raws)} | {n: frozenset(g.ranks) & frozenset(raws) for n, g in groups.items()}
        self.columns = {
            rank: {name: column.tolist() for name, column in raw.nodes.columns().items()} for rank, raw in raws.items()
        }
        self.ranks = {rank: _Rank(raws[rank], graphs[rank], skip[rank]) for rank in raws}
        self.outcome = DryRun()
        self.events: list[tuple[int, int, int, int]] = []
        self.sequence = 0
        self.arrived: dict[tuple[str, int], list[Place]] = {}
        self.sent: dict[MessageKey, int] = {}
        self.posted: dict[MessageKey, deque[Place]] = {}

    def run(self) -> DryRun:
        for rank, state in sorted(self.ranks.items()):
            for row, count in enumerate(state.missing):
                if count == 0:
                    state.release(row)
            self.issue(rank, 0)
        while self.events:
            now, _, rank, row = heapq.heappop(self.events)
            self.ranks[rank].done(row)
            self.issue(rank, now)
        self.outcome.waits = [*self.stuck_collectives(), *self.stuck_receives()]
        return self.outcome

    def issue(self, rank: int, now: int) -> None:
        while (row := self.ranks[rank].next()) is not None:
            self.start(rank, row, now)

    def finish(self, place: Place, at: int) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (at, self.sequence, *place))

    def start(self, rank: int, row: int, now: int) -> None:
        columns = self.columns[rank]
        kind = columns["kind"][row]
        if row in self.skip[rank] or kind in {NodeKind.INVALID, NodeKind.METADATA}:
            self.finish((rank, row), now)
        elif kind == NodeKind.COLLECTIVE:
            self.join(rank, row, now)
        elif kind == NodeKind.SEND:
            self.send(rank, row, now)
        elif kind == NodeKind.RECV:
            self.receive(rank, row, now)
        else:
            self.finish((rank, row), now + max(1, columns["duration_ns"][row]))

    def join(self, rank: int, row: int, now: int) -> None:
        """The nth collective of a group on one rank meets the nth of every other member."""
        name = group_key(self.columns[rank]["group"][row])
        issued = self.outcome.issued.setdefault((name, rank), [])
        issued.append(row)
        members = self.members.get(name, frozenset())
        if rank not in members:
            self.finish((rank, row), now + _MESSAGE_NS)
            return
        arrived = self.arrived.setdefault((name, len(issued)), [])
        arrived.append((rank, row))
        if len(arrived) == len(members):
            for place in self.arrived.pop((name, len(issued))):
                self.finish(place, now + _MESSAGE_NS)

    def send(self, rank: int, row: int, now: int) -> None:
        key = message_key(self.columns[rank], rank, row)
        self.finish((rank, row), now + _MESSAGE_NS)
        if self.posted.get(key):
            self.finish(self.posted[key].popleft(), now + _MESSAGE_NS)
        else:
            self.sent[key] = self.sent.get(key, 0) + 1

    def receive(self, rank: int, row: int, now: int) -> None:
        key = message_key(self.columns[rank], rank, row)
        if self.sent.get(key):
            self.sent[key] -= 1
            self.finish((rank, row), now + _MESSAGE_NS)
        else:
            self.posted.setdefault(key, deque()).append((rank, row))

    def stuck_collectives(self) -> list[Wait]:
        return [
            Wait(rank, row, tuple(sorted(self.members[name] - {there for there, _ in arrived})))
            for (name, _), arrived in self.arrived.items()
            for rank, row in arrived
        ]

    def stuck_receives(self) -> list[Wait]:
        return [Wait(rank, row, (key[0],)) for key, places in self.posted.items() for rank, row in places]


def message_key(columns: Mapping[str, list[int]], rank: int, row: int) -> MessageKey:
    """What a send and its receive have in common."""
    peer, tag, size_bytes = columns["peer"][row], columns["tag"][row], columns["size_bytes"][row]
    ends = (rank, peer) if columns["kind"][row] == NodeKind.SEND else (peer, rank)
    return *ends, 0 if tag == NONE else tag, size_bytes
