"""A schedule as tables for the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from genie.core.netmodel import DimensionModel, Topology
from genie.core.schedule import (
    STREAMS_PER_GROUP,
    Collective,
    GraphProgram,
    Lane,
    Operators,
    OpKind,
    Phase,
    Program,
    Reduce,
    Schedule,
    Slot,
    TokenProgram,
)
from genie.core.timeline import UNKNOWN
from genie.simulate.compiled_memory import Integers, Memory, at_rest, integers
from genie.simulate.kernel import layout
from genie.units import bps_to_bytes_per_ns

_LANES: Final = {Lane.ANY: 0, Lane.LOWER: 1, Lane.UPPER: 2}
_REDUCES: Final = {Reduce.NEVER: 0, Reduce.LATER_RUNS: 1, Reduce.ODD_RUNS: 2}
TOPOLOGIES: Final = {Topology.RING: 0, Topology.FULLY_CONNECTED: 1, Topology.SWITCH: 2}


@dataclass(frozen=True, slots=True)
class _Line:
    """Rows of a static table in the making, and how to make its array."""

    rows: list[tuple[int, ...]]
    width: int

    def add(self, *row: int) -> int:
        """The new row's number."""
        self.rows.append(row)
        return len(self.rows) - 1

    def array(self) -> Integers:
        return np.array(self.rows or [(0,) * self.width], np.int64)


class Tables:
    """Makes a Memory."""

    def __init__(self, schedule: Schedule, network: DimensionModel) -> None:
        self.schedule, self.network = schedule, network
        names = ("collective", "phase", "token", "step", "graph", "graph_step")
        self.line = {name: _Line([], len(layout.TABLES[name])) for name in names}
        self.members: list[int] = []
        self.graph_children: list[int] = []
        self._member_at: dict[tuple[int, ...], int] = {}
        self._token_at: dict[int, int] = {}
        self._kept: list[Program] = []
        self.turns: dict[str, int] = {}
        self.groups: dict[str, int] = {}
        self.positions = 1
        for collective in schedule.collectives:
            self._add_collective(collective)

    def _add_collective(self, collective: Collective) -> None:
        group = self.groups.setdefault(collective.group, len(self.groups)) if collective.group else -1
        first = len(self.line["phase"].rows)
        places = [self._phase_row(phase) for phase in collective.phases]
        for row in places:
            self.line["phase"].add(*row)
        self.line["collective"].add(
            collective.chunks, first, len(collective.phases), group, int(collective.fixed_queue)
        )

    def _phase_row(self, phase: Phase) -> tuple[int, ...]:
        members = phase.members
        ranks = -1
        if members.ranks:
            if members.ranks not in self._member_at:
                self._member_at[members.ranks] = len(self.members)
                self.members += members.ranks
            ranks = self._member_at[members.ranks]
        turn = self.turns.setdefault(phase.turn_key, len(self.turns)) if phase.turn_key else -1
        first, positions = self._variants(phase.variants, phase.endpoint_delay_ns)
        return (
            phase.dimension,
            _LANES[phase.lane],
            phase.endpoint_delay_ns,
            turn,
            members.size,
            members.stride,
            ranks,
            len(phase.variants),
            first,
            positions,
        )

    def _variants(self, variants: tuple[tuple[Program, ...], ...], _delay_ns: int) -> tuple[int, int]:
        """(row of the first program, programs a variant); equal variants share their rows."""
        if id(variants) not in self._token_at:
            self._kept.append(variants)  # type: ignore[arg-type]  # keeps the id from being used again
            rows = [self._program(program) for programs in variants for program in programs]
            self._token_at[id(variants)] = len(self.line["token"].rows)
            for row in rows:
                self.line["token"].add(*row)
        return self._token_at[id(variants)], len(variants[0])

    def _program(self, program: Program) -> tuple[int, ...]:
        if isinstance(program, GraphProgram):
            return (self._graph(program), *(0,) * (len(layout.TABLES["token"]) - 1))
        first = len(self.line["step"].rows)
        for offset, size_bytes in zip(program.offsets, program.sizes_bytes, strict=True):
            self.line["step"].add(offset, size_bytes, self._reduce_ns(size_bytes))
        return self._token(program, first)

    @staticmethod
    def _token(program: TokenProgram, first: int) -> tuple[int, ...]:
        return (
            -1,
            int(program.xor),
            program.steps,
            program.start_tokens,
            program.marked_run,
            _REDUCES[program.reduce],
            program.gate_step,
            int(len(program.counts) == 1),
            first,
        )

    def _graph(self, program: GraphProgram) -> int:
        children: list[list[int]] = [[] for _ in program.steps]
        for at, step in enumerate(program.steps):
            for dep in step.deps:
                children[dep].append(at)
        first = len(self.line["graph_step"].rows)
        for step, mine in zip(program.steps, children, strict=True):
            begin = len(self.graph_children)
            self.graph_children += mine
            self.line["graph_step"].add(
                int(step.kind),
                len(step.deps),
                step.peer,
                step.size_bytes,
                step.duration_ns,
                step.tag,
                self._reduce_ns(step.size_bytes),
                begin,
                len(self.graph_children),
            )
        return self.line["graph"].add(int(program.await_sends), len(program.steps), first)

    def _reduce_ns(self, size_bytes: int) -> int:
        """See Streams.reduction_ns."""
        rate = self.schedule.system.local_mem_bytes_per_s
        return 3 * int(size_bytes / rate * 1e9) if rate else 0

    # --- operators

    def _operators(self) -> tuple[Integers, Integers, dict[int, int]]:
        """(rows of all distinct operator tables, children, first row by identity of the table)."""
        tables, children, starts = [], [], {}
        rows = edges = 0
        for part in self.schedule.ranks:
            key = id(part.operators)
            if key in starts:
                continue
            starts[key] = rows
            table = self._operator_rows(part.operators, part.child_offsets + edges)
            tables.append(table)
            children.append(part.children)
            rows += len(table)
            edges += len(part.children)
        return np.concatenate(tables), integers(np.concatenate(children)), starts

    def _operator_rows(self, operators: Operators, offsets: Integers) -> Integers:
        duration_ns = operators.duration_ns.copy()
        memory = self.schedule.system.memory
        for row in np.flatnonzero(operators.kind == OpKind.MEMORY).tolist():
            duration_ns[row] = memory.latency_ns + int(int(operators.size_bytes[row]) / memory.bytes_per_ns)
        columns = {
            "duration_ns": duration_ns,
            "size": operators.size_bytes,
            "first_child": offsets[:-1],
            "last_child": offsets[1:],
        }
        columns |= {name: getattr(operators, name) for name in ("kind", "slot", "peer", "tag", "collective")}
        return np.stack([columns[name].astype(np.int64) for name in layout.TABLES["op"]], 1)

    def _ranks(self, starts: dict[int, int]) -> Integers:
        parts = self.schedule.ranks
        counts = {id(p.operators): np.bincount(p.operators.slot + 1, minlength=len(Slot)) for p in parts}
        by_slot = np.array([counts[id(part.operators)] for part in parts])
        rows = by_slot.sum(1)
        row = np.cumsum(rows) - rows
        heaps = row[:, None] + np.cumsum(by_slot, 1) - by_slot
        columns = {"op": [starts[id(part.operators)] for part in parts], "rows": rows, "row": row}
        columns |= dict(zip(("heap_none", "heap_cpu", "heap_compute", "heap_comm"), heaps.T, strict=True))
        fields = layout.TABLES["rank"]
        table = np.zeros((len(parts), len(fields)), np.int64)
        for name, column in columns.items():
            table[:, fields.index(name)] = column
        table[:, [layout.RANK_FINISH_NS, layout.RANK_LISTS]] = -1
        return table

    def memory(self, *, strict_zero: bool, keep_messages: bool) -> Memory:
        """The memory, ready to be advanced."""
        schedule, network = self.schedule, self.network
        op, child, starts = self._operators()
        rank = self._ranks(starts)
        static = {name: line.array() for name, line in self.line.items()}
        made = {"op": op, "rank": rank, "child": child} | static | self._state(rank)
        made |= {
            "graph_child": integers(self.graph_children),
            "member": integers(self.members),
            "size": integers([d.size for d in network.dimensions]),
            "topology": integers([TOPOLOGIES[d.topology] for d in network.dimensions]),
        }
        memory = Memory(made)
        self._set_registers(memory, strict_zero, keep_messages)
        for at, dimension in enumerate(network.dimensions):
            memory.f[2 * at : 2 * at + 2] = (
                dimension.latency_ns.value,
                bps_to_bytes_per_ns(dimension.bandwidth_bps.value),
            )
        memory.registers[layout.SPARE] = self._spare(memory, schedule)
        memory.enlarge()
        return memory

    def _state(self, rank: Integers) -> dict[str, Integers]:
        """Tables of what changes, as it is at the start."""
        schedule = self.schedule
        ranks, rows = len(rank), int(rank[:, layout.RANK_ROWS].sum())
        queues, dimensions = schedule.system.queues_per_dim, len(schedule.dimensions)
        turn = np.zeros((ranks, dimensions, len(Lane)), np.int64)
        turn[:, :, _LANES[Lane.UPPER]] = queues // 2
        groups = [int(name) * STREAMS_PER_GROUP if name.isdigit() else 0 for name in self.groups]
        return {
            "queue": at_rest(ranks * dimensions * queues, layout.QUEUE_WIDTH),
            "link": at_rest(self._links(), layout.LINK_WIDTH),
            "missing": integers(np.concatenate([part.dep_counts for part in schedule.ranks])),
            "issue_ns": np.full(rows, UNKNOWN, np.int64),
            "done_ns": np.full(rows, UNKNOWN, np.int64),
            "heap_row": np.zeros(rows, np.int64),
            "released_row": np.zeros(rows, np.int64),
            "turn": turn.ravel(),
            "variant": np.zeros(max(1, ranks * len(self.turns)), np.int64),
            "group_stream": integers(np.tile(np.array(groups, np.int64), ranks)),
        }

    def _links(self) -> int:
        ranks, topology = self.network.ranks, self.network.dimensions[0].topology
        if not self.network.aware:
            return 1
        return ranks * ranks if topology is Topology.FULLY_CONNECTED else 2 * ranks

    def _set_registers(self, memory: Memory, strict_zero: bool, keep_messages: bool) -> None:
        system = self.schedule.system
        for at, value in {
            layout.RUNNING_LIST: -1,
            layout.STRICT: strict_zero,
            layout.AWARE: self.network.aware,
            layout.TOPOLOGY: TOPOLOGIES[self.network.dimensions[0].topology],
            layout.QUEUES: system.queues_per_dim,
            layout.LIMIT: -(-system.active_chunks // system.queues_per_dim),
            layout.GROUPS: len(self.groups),
            layout.TURNS: len(self.turns),
            layout.DIMENSIONS: len(self.schedule.dimensions),
            layout.RANKS: len(self.schedule.ranks),
            layout.PHASES: max(1, int(memory.table("collective")[:, layout.COLLECTIVE_PHASES].max())),
            layout.STEPS: int(memory.table("graph")[:, layout.GRAPH_STEPS].max()),
            layout.KEEP: keep_messages,
        }.items():
            memory.registers[at] = value

    def _spare(self, memory: Memory, schedule: Schedule) -> int:
        """What one continuation may take from a pool at most.

        It may issue all receives of a rank, launch a collective with all its chunks, and start as many phases as may
        run at once.
        """
        system = schedule.system
        token, graph = memory.table("token")[:, layout.TOKEN_START], memory.table("graph")[:, layout.GRAPH_STEPS]
        starts = max(int(token.max()), int(graph.max()), 1)
        chunks = int(memory.table("collective")[:, layout.COLLECTIVE_CHUNKS].max())
        started = min(system.active_chunks + system.queues_per_dim, chunks) + 4
        return 64 + _most_issued_at_once(schedule) + started * starts + chunks


def _most_issued_at_once(schedule: Schedule) -> int:
    """Receives take no slot, so all of a rank's may be issued by one event; and skipped rows each free theirs again."""
    known: dict[int, int] = {}
    for part in schedule.ranks:
        if id(part.operators) not in known:
            kinds = part.operators.kind
            known[id(part.operators)] = int(((kinds == OpKind.RECV) | (kinds == OpKind.SKIP)).sum())
    return 4 + max(known.values())
