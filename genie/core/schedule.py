"""Schedule: a workload with its collectives turned into messages, but never one object a message.

A collective becomes chunks, a chunk a series of phases, a phase a *program*: the same few columns for every member,
peers relative to its position. So a ring of 4,096 ranks and one of four cost the same memory. `Schedule.expected`
counts messages and bytes per pair of ranks without making them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genie.core.columns import Columns
from genie.core.system import System
from genie.core.workload import CollectiveKind, Workload

COLLECTIVE_TAGS = 500_000_000
"""Plain sends use tags below this number, collectives use it plus their stream id (ASTRA-sim's convention)."""

STREAMS_PER_GROUP = 1_000_000
"""Stream ids of group g start at g times this (ASTRA-sim's convention)."""

GRANT_TAGS = 1_000_000_000
"""Added to a message's tag by the rendezvous grant that precedes it."""

GRANT_BYTES = 8192
"""Size of a rendezvous grant (ASTRA-sim's)."""


class Reduce(Enum):
    """Which of a program's deliveries cost a local reduction."""

    NEVER = "never"
    LATER_RUNS = "always"
    ODD_RUNS = "odd"


@dataclass(frozen=True, slots=True)
class TokenProgram:
    """Ring, direct and halving-doubling: tokens that each allow one exchange (send to a peer, receive from one).

    `start_tokens` exist at the start; every delivery makes one more; a token is usable `endpoint delay` (and, if it
    is marked, a reduction) after it was made. The phase ends when all exchanges are posted and `start_tokens` are
    usable again. From exchange `gate_step` on, nothing is sent until `gate_step` messages have been delivered; then
    each token may start up to `start_tokens` exchanges.

    Attributes:
        xor: peers are position XOR offset instead of position + offset (sends) and - offset (receives).
        offsets, sizes_bytes: int64, one entry per *distinct run* of exchanges, `counts` of each.
        start_tokens: tokens at the start.
        marked_run: tokens come in runs: `start_tokens` unmarked, then this many that `reduce` may mark.
        reduce: which runs are marked.
        gate_step: first exchange behind the gate; -1 without one.
        sizes_bytes must not be zero.
    Source: ASTRA-sim's collective implementations, section "Collectives" of docs/simulator.md.
    """

    xor: bool
    offsets: tuple[int, ...]
    sizes_bytes: tuple[int, ...]
    counts: tuple[int, ...]
    start_tokens: int
    marked_run: int
    reduce: Reduce
    gate_step: int = -1

    @property
    def steps(self) -> int:
        """Exchanges of one member."""
        return sum(self.counts)

    def send_peer(self, position: int, offset: int, size: int, *, clockwise: bool) -> int:
        """Position that receives from `position` in an exchange of that offset."""
        if self.xor:
            return position ^ offset
        return (position + offset if clockwise else position - offset) % size

    def recv_peer(self, position: int, offset: int, size: int, *, clockwise: bool) -> int:
        """Position that sends to `position` in an exchange of that offset."""
        return self.send_peer(position, offset, size, clockwise=not clockwise)


class StepKind(IntEnum):
    """Kinds of a graph program's steps."""

    SEND = 0
    RECV = 1
    DELAY = 2
    REDUCE = 3
    COMPUTE = 4


class GraphStep(NamedTuple):
    """One step of a graph program.

    SEND, RECV: `peer` is a position; DELAY: endpoint delay; REDUCE: endpoint delay, then the reduction of `size_bytes`;
    COMPUTE: `duration_ns`. `tag` is -1 for the stream's own tag.
    """

    kind: StepKind
    deps: tuple[int, ...] = ()
    peer: int = -1
    size_bytes: int = 0
    duration_ns: int = 0
    tag: int = -1


@dataclass(frozen=True, slots=True)
class GraphProgram:
    """Trees and custom collectives: a small dependency graph a position.

    `await_sends`: a send counts as done at its delivery (custom collectives) instead of at its post (trees).
    """

    steps: tuple[GraphStep, ...]
    await_sends: bool = False


Program = TokenProgram | GraphProgram


@dataclass(frozen=True, slots=True)
class Members:
    """Who takes part: explicit ranks, or `size` ranks `stride` apart that include the asking rank."""

    size: int
    stride: int = 1
    ranks: tuple[int, ...] = ()

    def position(self, rank: int) -> int:
        """Position of `rank` among the members."""
        return self.ranks.index(rank) if self.ranks else (rank // self.stride) % self.size

    def of(self, rank: int) -> tuple[int, ...]:
        """Global ranks by position, of the line that `rank` is on."""
        if self.ranks:
            return self.ranks
        first = rank - self.position(rank) * self.stride
        return tuple(range(first, first + self.size * self.stride, self.stride))


class Lane(Enum):
    """From which of a dimension's queues a phase takes the next, in turn: all, the lower half, the upper half."""

    ANY = "any"
    LOWER = "lower"
    UPPER = "upper"


@dataclass(frozen=True, slots=True)
class Phase:
    """One algorithm on one dimension.

    Attributes:
        dimension: whose queues it uses.
        kind: what it computes here (an all-reduce over several dimensions has reduce-scatter phases).
        members: who takes part.
        variants: programs used in turn by successive chunks (two for the double binary tree); a graph program is
            per position: ``variants[v][position]``; a token program is the same for all: ``variants[v][0]``.
        lane: which queues.
        endpoint_delay_ns: before each step.
        turn_key: phases with an equal key share one turn counter a rank ("" when there is only one variant).
    """

    dimension: int
    kind: CollectiveKind
    members: Members
    variants: tuple[tuple[Program, ...], ...]
    lane: Lane
    endpoint_delay_ns: int
    turn_key: str = ""

    def program(self, turn: int, position: int) -> Program:
        """The program of a position on its `turn`-th use."""
        programs = self.variants[turn % len(self.variants)]
        return programs[position if len(programs) > 1 else 0]


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective as its members run it: `chunks` equal chunks, each through `phases` in order.

    Attributes:
        group: comm-group name, "" for all ranks.
        group_ranks: its members in list order; empty for all ranks.
        fixed_queue: custom collectives always use queue 0.
    """

    kind: CollectiveKind
    size_bytes: int
    group: str
    group_ranks: tuple[int, ...]
    chunks: int
    chunk_bytes: int
    phases: tuple[Phase, ...]
    fixed_queue: bool = False


class OpKind(IntEnum):
    """What the engine does with an operator. WAIT takes its duration as COMPUTE does, but is no compute time."""

    COMPUTE = 0
    COLLECTIVE = 1
    SEND = 2
    RECV = 3
    MEMORY = 4
    SKIP = 5
    WAIT = 6


class Slot(IntEnum):
    """Resource that an operator occupies, one at a time each; NONE for receives."""

    NONE = -1
    CPU = 0
    COMPUTE = 1
    COMMUNICATION = 2


@dataclass(frozen=True, slots=True, eq=False)
class Operators(Columns):
    """One rank's operators, a row per trace node, in the order in which ties are issued.

    Attributes:
        kind: OpKind. slot: Slot.
        duration_ns: of COMPUTE and WAIT.
        peer, tag, size_bytes: of SEND, RECV; size_bytes of MEMORY too.
        collective: position in Schedule.collectives, or -1.
        first_stream: OVERLAP profile: stream id of the collective's first chunk, the same on every member; else -1.
        lane: OVERLAP profile: operators of one lane are issued one after another; -1 for none.
    """

    SCHEMA: ClassVar[dict[str, Any]] = {
        "kind": np.int8,
        "slot": np.int8,
        "duration_ns": np.int64,
        "peer": np.int64,
        "tag": np.int64,
        "size_bytes": np.int64,
        "collective": np.int32,
        "first_stream": np.int64,
        "lane": np.int32,
    }

    kind: NDArray[np.int8]
    slot: NDArray[np.int8]
    duration_ns: NDArray[np.int64]
    peer: NDArray[np.int64]
    tag: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    collective: NDArray[np.int32]
    first_stream: NDArray[np.int64]
    lane: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class RankOperators:
    """One rank's operators with, per row, how many rows it waits for and which rows wait for it (CSR)."""

    rank: int
    operators: Operators
    dep_counts: NDArray[np.int64]
    child_offsets: NDArray[np.int64]
    children: NDArray[np.int64]


class MessageCount(NamedTuple):
    """Messages and payload bytes."""

    messages: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """What every rank will do: executors turn it into a Timeline.

    `dimensions`: logical sizes, dimension 0 varies fastest; their product is the number of ranks.
    """

    workload: Workload
    system: System
    dimensions: tuple[int, ...]
    ranks: tuple[RankOperators, ...]
    collectives: tuple[Collective, ...]
    notes: tuple[str, ...] = field(default=())

    def sends(self, rank: int) -> Iterator[tuple[int, int, int]]:
        """(peer, size_bytes, count) of every message that `rank` sends, collectives included, in no promised order.

        With several queues a dimension, which chunks go around a ring anticlockwise depends on how many came before;
        they are counted in the order of the rows.

        Raises:
            InternalError: a collective names a member that is not there.
        """
        operators = self.ranks[rank].operators
        for row in np.flatnonzero(operators.kind == OpKind.SEND):
            yield int(operators.peer[row]), int(operators.size_bytes[row]), 1
        turns = Turns(self.system.queues_per_dim)
        for at in operators.collective[operators.collective >= 0].tolist():
            yield from collective_sends(self.collectives[at], rank, turns)

    def bytes_by_group(self) -> dict[str, int]:
        """Payload bytes of one iteration by process group ("" for all ranks and for plain sends)."""
        totals: dict[str, int] = {}
        for part in self.ranks:
            groups = self.workload.traces[part.rank].nodes.group.tolist()
            turns = Turns(self.system.queues_per_dim)
            columns = (part.operators.kind, part.operators.collective, part.operators.size_bytes)
            for row, (kind, at, message_bytes) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
                if kind == OpKind.COLLECTIVE:
                    sends = collective_sends(self.collectives[at], part.rank, turns)
                    sent = sum(size * count for _, size, count in sends)
                else:
                    sent = message_bytes if kind == OpKind.SEND else 0
                if sent:
                    totals[groups[row]] = totals.get(groups[row], 0) + sent
        return totals

    def expected(self) -> dict[tuple[int, int], MessageCount]:
        """Messages and bytes for every ordered pair of ranks that talk: what a replay is held against.

        The 8,192-byte grants of the rendezvous protocol are included where the system asks for it.
        """
        totals: dict[tuple[int, int], list[int]] = {}
        for rank in range(len(self.ranks)):
            for peer, size_bytes, count in self.sends(rank):
                _add(totals, (rank, peer), count, size_bytes)
                if self.system.rendezvous:
                    _add(totals, (peer, rank), count, GRANT_BYTES)
        return {pair: MessageCount(*total) for pair, total in totals.items()}


def _add(totals: dict[tuple[int, int], list[int]], pair: tuple[int, int], count: int, size_bytes: int) -> None:
    total = totals.setdefault(pair, [0, 0])
    total[0] += count
    total[1] += count * size_bytes


class Turns:
    """What one rank hands out in turn: a dimension's queues, and with them directions; a phase's program variants.

    Source: ASTRA-sim's baseline queue choice, section "Queues" of docs/simulator.md.
    """

    __slots__ = ("_next", "_variants", "queues")

    def __init__(self, queues: int) -> None:
        self.queues = queues
        self._next: dict[tuple[int, Lane], int] = {}
        self._variants: dict[str, int] = {}

    def queue(self, dimension: int, lane: Lane) -> tuple[int, bool]:
        """(queue number within the dimension, clockwise?) for the next phase."""
        half = self.queues // 2
        at = self._next.get((dimension, lane), half if lane is Lane.UPPER else 0)
        following = at + 1
        if lane is Lane.LOWER:
            self._next[dimension, lane] = 0 if following >= half else following
            return at, True
        if following >= self.queues:
            following = half if lane is Lane.UPPER else 0
        self._next[dimension, lane] = following
        return at, lane is Lane.ANY and (self.queues == 1 or at < half)

    def variant(self, phase: Phase) -> int:
        """Which of the phase's program variants is next."""
        if not phase.turn_key:
            return 0
        turn = self._variants.get(phase.turn_key, 0)
        self._variants[phase.turn_key] = turn + 1
        return turn


def collective_sends(collective: Collective, rank: int, turns: Turns) -> Iterator[tuple[int, int, int]]:
    """(peer, size_bytes, count) of what `rank` sends in one run of the collective."""
    lines = [(phase, phase.members.position(rank), phase.members.of(rank)) for phase in collective.phases]
    for _ in range(collective.chunks):
        for phase, position, ranks in lines:
            clockwise = collective.fixed_queue or turns.queue(phase.dimension, phase.lane)[1]
            program = phase.program(turns.variant(phase), position)
            for peer, size_bytes, count in program_sends(program, position, len(ranks), clockwise=clockwise):
                yield ranks[peer], size_bytes, count


def program_sends(program: Program, position: int, size: int, *, clockwise: bool) -> Iterator[tuple[int, int, int]]:
    """(peer position, size_bytes, count) of one member's sends in a program."""
    if isinstance(program, GraphProgram):
        for step in program.steps:
            if step.kind is StepKind.SEND:
                yield step.peer, step.size_bytes, 1
        return
    for offset, size_bytes, count in zip(program.offsets, program.sizes_bytes, program.counts, strict=True):
        yield program.send_peer(position, offset, size, clockwise=clockwise), size_bytes, count
