"""A schedule's collectives as plain sends and receives, for simulators that do not tell of a collective's messages.

What a trace of sends and receives can say of ASTRA-sim's collectives, and what not: docs/astra-sim.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from genie.core.columns import csr_from_lists
from genie.core.schedule import (
    Collective,
    GraphProgram,
    OpKind,
    Phase,
    Reduce,
    Schedule,
    Slot,
    StepKind,
    TokenProgram,
    Turns,
)
from genie.core.system import System
from genie.core.workload import ALL_DIMENSIONS, NONE, NodeKind, Nodes, RankTrace, Workload
from genie.errors import InputError

MAX_NODES: Final = 4_000_000
"""More nodes than this are no small trace any more."""

_OPERATIONS_PER_NS: Final = 1000
_HALF: Final = 500
_PEAK_FLOPS: Final = 1e12
_ENDLESS_BYTES_PER_S: Final = 1e15
"""Under these a computation of 1000 t + 500 operations on a byte takes floor(t + 0.5) = t ns: traces hold only whole
microseconds, but operations can say any time."""


@dataclass(frozen=True, slots=True, eq=False)
class RankOrigins:
    """Where one rank's nodes come from: int64 columns, one entry a node.

    Attributes:
        row: of the original trace.
        chunk, phase, step: of the collective, -1 for others.
        ends: of each original row, the rows here with which it ends.
    """

    row: NDArray[np.int64]
    chunk: NDArray[np.int64]
    phase: NDArray[np.int64]
    step: NDArray[np.int64]
    ends: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class PointToPoint:
    """A workload without collectives, the system to run it under, and where its nodes come from."""

    workload: Workload
    system: System
    origins: tuple[RankOrigins, ...]


def point_to_point(schedule: Schedule, order: Sequence[Sequence[int]], *, delays: bool = True) -> PointToPoint:
    """Write every message of a schedule as a send and a receive.

    Args:
        schedule: under the profile that keeps one communication operator in flight.
        order: per rank the rows of its collectives and sends in the order in which they are issued: it is kept.
        delays: with the endpoint delays and reductions of collectives. They take the place of a computation, so where
            computation overlaps communication they would wait for it, and are better left out.

    Raises:
        InputError: it would be more than MAX_NODES nodes.
    """
    _refuse_too_many(schedule)
    tags = _Tags(schedule)
    parts = [_Rank(schedule, rank, order[rank], tags, delays=delays).go() for rank in range(len(schedule.ranks))]
    system = replace(
        schedule.system,
        roofline=True,
        peak_flops=_PEAK_FLOPS,
        local_mem_bytes_per_s=_ENDLESS_BYTES_PER_S,
        custom={},
        custom_by_node={},
        extended=False,
    )
    workload = Workload(f"{schedule.workload.name}-messages", tuple(trace for trace, _ in parts))
    return PointToPoint(workload, system, tuple(origins for _, origins in parts))


def _refuse_too_many(schedule: Schedule) -> None:
    total = 0
    for rank in range(len(schedule.ranks)):
        total += 3 * sum(count for _, _, count in schedule.sends(rank))
        if total > MAX_NODES:
            raise InputError(
                f"written as messages the workload would have more than {MAX_NODES:,} nodes.",
                where=schedule.workload.name,
                fix="use fewer chunks or ranks, or hand over collectives.",
            )


class _Tags:
    """Tags that all members of a collective agree on: their collectives are numbered alike, group by group."""

    def __init__(self, schedule: Schedule) -> None:
        plain = (int(part.operators.tag.max(initial=0)) for part in schedule.ranks)
        self._next = 1 + max(plain, default=0)
        self._known: dict[Any, int] = {}

    def of(self, key: Any) -> int:
        """The tag of a stream."""
        return self._known.setdefault(key, self._next + len(self._known))


@dataclass(slots=True)
class _Made:
    """Nodes in the making: a list a column."""

    values: list[dict[str, Any]] = field(default_factory=list)
    deps: list[list[int]] = field(default_factory=list)
    origin: list[tuple[int, int, int, int]] = field(default_factory=list)


_EMPTY: Final[dict[str, Any]] = {
    "node_id": 0,
    "kind": NodeKind.COMP,
    "name": "",
    "duration_ns": 0,
    "size_bytes": NONE,
    "tensor_bytes": NONE,
    "num_ops": NONE,
    "comm_type": NONE,
    "peer": NONE,
    "tag": NONE,
    "group": "",
    "is_cpu": False,
    "priority": 0,
    "involved_dims": ALL_DIMENSIONS,
    "root": 0,
}


class _Rank:
    """One rank's trace."""

    def __init__(self, schedule: Schedule, rank: int, order: Sequence[int], tags: _Tags, *, delays: bool) -> None:
        self.schedule, self.rank, self.tags, self.delays = schedule, rank, tags, delays
        self.trace = schedule.workload.traces[rank]
        self.columns = {name: column.tolist() for name, column in schedule.ranks[rank].operators.columns().items()}
        self.turns = Turns(schedule.system.queues_per_dim)
        self.limit = -(-schedule.system.active_chunks // schedule.system.queues_per_dim)
        self.streams: dict[str, int] = {}
        self.made = _Made()
        self.ends: list[tuple[int, ...]] = [()] * len(self.trace.nodes)
        self.before = dict(zip(order[1:], order, strict=False))
        self.at = (0, -1, -1, -1)

    def go(self) -> tuple[RankTrace, RankOrigins]:
        """The trace, and where its nodes come from."""
        for row in self._in_order():
            self.at = (row, -1, -1, -1)
            self.ends[row] = tuple(self._operator(row, self._after(row)))
        offsets, deps = csr_from_lists([sorted(set(row)) for row in self.made.deps])
        nodes = Nodes.from_rows([tuple(values.values()) for values in self.made.values])
        trace = RankTrace(self.rank, nodes, offsets, deps, self.trace.source)
        rows, chunk, phase, step = np.array(self.made.origin, np.int64).reshape(-1, 4).T
        return trace, RankOrigins(rows, chunk, phase, step, tuple(self.ends))

    def _needs(self, row: int) -> list[int]:
        """Rows that must be done before: its dependencies, and the communication before it."""
        offsets = self.trace.dep_offsets
        deps: list[int] = self.trace.deps[offsets[row] : offsets[row + 1]].tolist()
        return [*deps, self.before[row]] if row in self.before else deps

    def _in_order(self) -> list[int]:
        """Rows such that what a row needs comes before it; low rows first."""
        done: dict[int, None] = {}
        for first in range(len(self.trace.nodes)):
            stack = [first]
            while stack:
                row = stack[-1]
                missing = [need for need in self._needs(row) if need not in done]
                if missing and row not in done:
                    stack.append(missing[-1])
                else:
                    done[row] = None
                    stack.pop()
        return list(done)

    def _after(self, row: int) -> list[int]:
        return [end for need in self._needs(row) for end in self.ends[need]]

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _add(self, after: Iterable[int], **values: Any) -> int:
        made = self.made
        number = len(made.values)
        made.values.append(_EMPTY | {"node_id": number, "name": str(self.trace.nodes.name[self.at[0]])} | values)
        made.deps.append(list(after))
        made.origin.append(self.at)
        return number

    def _wait(self, after: list[int], duration_ns: int) -> list[int]:
        """Time that passes on the GPU; none needs no node."""
        if duration_ns <= 0:
            return after
        operations = duration_ns * _OPERATIONS_PER_NS + _HALF
        return [self._add(after, num_ops=operations, tensor_bytes=1)]

    def _exchange(self, after: list[int], kind: NodeKind, peer: int, tag: int, size_bytes: int) -> int:
        return self._add(after, kind=kind, peer=peer, tag=tag, size_bytes=size_bytes)

    def _operator(self, row: int, after: list[int]) -> list[int]:
        columns = self.columns
        kind, duration_ns = columns["kind"][row], columns["duration_ns"][row]
        if kind == OpKind.SKIP:
            return after
        if kind == OpKind.COLLECTIVE:
            return self._collective(self.schedule.collectives[columns["collective"][row]], after)
        if kind == OpKind.MEMORY:
            kept = {name: self.trace.nodes.columns()[name][row] for name in ("kind", "tensor_bytes", "is_cpu")}
            return [self._add(after, **kept)]
        if kind in {OpKind.SEND, OpKind.RECV}:
            node = NodeKind.SEND if kind == OpKind.SEND else NodeKind.RECV
            return [self._exchange(after, node, *(columns[name][row] for name in ("peer", "tag", "size_bytes")))]
        if columns["slot"][row] == Slot.CPU:
            return [self._add(after, is_cpu=True, duration_ns=self.trace.nodes.duration_ns[row])]
        return self._wait(after, duration_ns)

    # --- collectives --------------------------------------------------------------------------------------------------

    def _collective(self, collective: Collective, after: list[int]) -> list[int]:
        """Chunks go through the phases in order; of a queue's chunks as many at a time as the system allows."""
        row, first = self.at[0], self.streams.get(collective.group, 0)
        self.streams[collective.group] = first + collective.chunks
        queues: dict[tuple[int, int], list[list[int]]] = {}
        ends: list[int] = []
        for chunk in range(collective.chunks):
            left = after
            for number, phase in enumerate(collective.phases):
                queue, clockwise = (
                    (0, True) if collective.fixed_queue else self.turns.queue(phase.dimension, phase.lane)
                )
                earlier = queues.setdefault((phase.dimension, queue), [])
                entered = left + (earlier[-self.limit] if len(earlier) >= self.limit else [])
                self.at = (row, chunk, number, -1)
                left = self._phase(phase, (collective.group, first + chunk), entered, clockwise=clockwise)
                earlier.append(left)
            ends += left
        return ends or after

    def _phase(self, phase: Phase, stream: tuple[str, int], after: list[int], *, clockwise: bool) -> list[int]:
        members = phase.members
        ranks, position = members.of(self.rank), members.position(self.rank)
        program = phase.program(self.turns.variant(phase), position)
        seat = _Seat(ranks, position, stream, phase.endpoint_delay_ns if self.delays else 0, clockwise)
        if isinstance(program, TokenProgram):
            return self._tokens(program, seat, after)
        return self._graph(program, seat, after)

    def _step(self, step: int) -> None:
        self.at = (*self.at[:3], step)

    def _tokens(self, program: TokenProgram, seat: _Seat, after: list[int]) -> list[int]:
        """Token k allows exchange k, and is made by the receive of exchange k - start_tokens."""
        tokens = [self._wait(after, seat.delay_ns) for _ in range(program.start_tokens)]
        exchanges = _exchanges(program)
        for step, (offset, size_bytes) in enumerate(exchanges):
            self._step(step)
            allowed = tokens[step]
            if 0 <= program.gate_step <= step:
                behind = tokens[program.start_tokens : program.start_tokens + program.gate_step]
                allowed = [*allowed, *(node for token in behind for node in token)]
            to, source = (
                seat.ranks[peer(seat.position, offset, len(seat.ranks), clockwise=seat.clockwise)]
                for peer in (program.send_peer, program.recv_peer)
            )
            tag = self.tags.of(seat.stream)
            self._exchange(allowed, NodeKind.SEND, to, tag, size_bytes)
            received = self._exchange(allowed, NodeKind.RECV, source, tag, size_bytes)
            tokens.append(self._wait([received], seat.delay_ns + self._token_reduction_ns(program, len(tokens))))
        return [node for token in tokens[-program.start_tokens :] for node in token]

    def _token_reduction_ns(self, program: TokenProgram, token: int) -> int:
        run, place = divmod(token, program.start_tokens + program.marked_run)
        marked = program.reduce is Reduce.LATER_RUNS or (program.reduce is Reduce.ODD_RUNS and run % 2 == 0)
        if place < program.start_tokens or not marked:
            return 0
        exchanges = _exchanges(program)
        return self._reduction_ns(exchanges[min(token, len(exchanges) - 1)][1])

    def _reduction_ns(self, size_bytes: int) -> int:
        rate = self.schedule.system.local_mem_bytes_per_s
        return 3 * int(size_bytes / rate * 1e9) if rate and self.delays else 0

    def _graph(self, program: GraphProgram, seat: _Seat, after: list[int]) -> list[int]:
        """A send that nobody awaits ends when it is posted: what waits for it waits for what it waited for."""
        ends: list[list[int]] = []
        for number, step in enumerate(program.steps):
            self._step(number)
            needs = [node for dep in step.deps for node in ends[dep]] or after
            tag = self.tags.of(seat.stream if step.tag < 0 else (seat.stream, step.tag))
            if step.kind in {StepKind.SEND, StepKind.RECV}:
                kind = NodeKind.SEND if step.kind is StepKind.SEND else NodeKind.RECV
                node = self._exchange(needs, kind, seat.ranks[step.peer], tag, step.size_bytes)
                ends.append([node] if kind is NodeKind.RECV or program.await_sends else needs)
            elif step.kind is StepKind.COMPUTE:
                ends.append(self._wait(needs, step.duration_ns))
            else:
                reduction_ns = self._reduction_ns(step.size_bytes) if step.kind is StepKind.REDUCE else 0
                ends.append(self._wait(needs, seat.delay_ns + reduction_ns))
        waited_for = {dep for step in program.steps for dep in step.deps}
        return sorted({node for number, end in enumerate(ends) if number not in waited_for for node in end})


@dataclass(frozen=True, slots=True)
class _Seat:
    """Where a phase runs."""

    ranks: tuple[int, ...]
    position: int
    stream: tuple[str, int]
    delay_ns: int
    clockwise: bool


def _exchanges(program: TokenProgram) -> list[tuple[int, int]]:
    """(offset, size_bytes) of every exchange."""
    runs = zip(program.offsets, program.sizes_bytes, program.counts, strict=True)
    return [(offset, size_bytes) for offset, size_bytes, count in runs for _ in range(count)]
