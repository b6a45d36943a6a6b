"""The compiled path: a schedule as tables for kernel.py, and its arrays as an Outcome."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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
from genie.core.system import MemoryKind, Profile
from genie.core.timeline import UNKNOWN, Messages
from genie.network.queue import zero_delay
from genie.simulate.outcome import ArrayRecord, Outcome
from genie.units import bps_to_bytes_per_ns

Integers = NDArray[np.int64]

_LANES: Final = {Lane.ANY: 0, Lane.LOWER: 1, Lane.UPPER: 2}
_REDUCES: Final = {Reduce.NEVER: 0, Reduce.LATER_RUNS: 1, Reduce.ODD_RUNS: 2}
_TOPOLOGIES: Final = {Topology.RING: 0, Topology.FULLY_CONNECTED: 1, Topology.SWITCH: 2}
_MAX_LINKS: Final = 1 << 24
_MAX_COUNTERS: Final = 1 << 26
_FIRST_WAITS: Final = 1024


class Refused(Exception):  # noqa: N818 - no error: the plain path tells what is wrong
    """A message cannot be sent."""


def why_not(schedule: Schedule, network: DimensionModel) -> str:
    """Why the compiled path cannot run this; "" if it can."""
    system = schedule.system
    if system.profile is not Profile.ASTRA:
        return "the profile is not astra"
    if system.rendezvous:
        return "the rendezvous protocol"
    if system.memory.kind not in {MemoryKind.NONE, MemoryKind.PER_NPU} and any(
        (part.operators.kind == OpKind.MEMORY).any() for part in schedule.ranks
    ):
        return "remote memory is shared"
    ranks, groups = len(schedule.ranks), len({collective.group for collective in schedule.collectives})
    if network.aware and network.dimensions[0].topology is Topology.FULLY_CONNECTED and ranks**2 > _MAX_LINKS:
        return "too many links"
    return "too many groups" if ranks * groups > _MAX_COUNTERS else ""


def simulate_compiled(
    schedule: Schedule, network: DimensionModel, *, strict_zero: bool, keep_messages: bool
) -> Outcome:
    """Run the kernel.

    Args:
        schedule: what every rank does; `why_not` must have nothing against it.
        network: as many ranks.
        strict_zero: refuse what has no duration at tick 0.
        keep_messages: record every message.

    Raises:
        InputError: something without duration at tick 0 under `strict_zero`.
        Refused: a message that the network cannot carry.
    """
    from genie.simulate import kernel  # noqa: PLC0415 - imports numba, which takes half a second

    tables = _Tables(schedule, network, kernel)
    memory = tables.memory(strict_zero=strict_zero, keep_messages=keep_messages)
    started = 0
    while True:
        stopped, started = kernel.advance(memory.m, memory.f, started)
        if stopped != kernel.LOW:
            break
        memory.enlarge()
    if stopped == kernel.ZERO_DELAY:
        raise zero_delay()
    if stopped == kernel.REFUSED:
        raise Refused
    return _outcome(schedule, memory, kernel)


def _outcome(schedule: Schedule, memory: Memory, kernel: Any) -> Outcome:
    issue_ns, done_ns = memory.table("issue_ns")[:, 0], memory.table("done_ns")[:, 0]
    columns = memory.table("rank")[
        :, [kernel.RANK_ROW, kernel.RANK_ROWS, kernel.RANK_FINISH_NS, kernel.RANK_COMPUTE_NS]
    ]
    records = [
        ArrayRecord(issue_ns[row : row + rows], done_ns[row : row + rows], finish_ns, compute_ns)
        for row, rows, finish_ns, compute_ns in columns.tolist()
    ]
    if not memory.registers[kernel.KEEP]:
        return Outcome(records, None, None)
    rows = memory.table("log")[: int(memory.registers[kernel.LOGGED])]
    log = dict(zip(kernel.TABLES["log"], rows.T, strict=True))
    return Outcome(records, None, _messages(schedule, log))


def _messages(schedule: Schedule, log: dict[str, Integers]) -> Messages:
    count = len(log["src"])
    node_id = np.empty(count, np.uint64)
    by_sender = np.argsort(log["src"], kind="stable")
    bounds = np.searchsorted(log["src"][by_sender], np.arange(len(schedule.ranks) + 1))
    for trace, begin, end in zip(schedule.workload.traces, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        mine = by_sender[begin:end]
        node_id[mine] = trace.nodes.node_id[log["row"][mine]]
    zeros = np.zeros(count, np.int64)
    columns: dict[str, Any] = {
        name: log[name] for name in ("src", "dst", "tag", "chunk", "phase", "step", "posted_ns", "delivered_ns")
    }
    columns |= dict.fromkeys(("iteration", "flow", "status"), zeros)
    return Messages(
        **columns,
        size_bytes=log["size"],
        index=_running_index(log),
        node_id=node_id,
        caused_ns=log["posted_ns"],
        first_byte_ns=log["delivered_ns"],
        acknowledged_ns=np.full(count, UNKNOWN),
    )


def _running_index(log: dict[str, Integers]) -> Integers:
    """0, 1, ... among the messages of equal source, destination, tag and size, in order of posting."""
    count = len(log["src"])
    index = np.zeros(count, np.int64)
    if count:
        names = ("size", "tag", "dst", "src")
        order = np.lexsort([log[name] for name in names])
        new = np.zeros(count, bool)
        new[0] = True
        for name in names:
            column = log[name][order]
            new[1:] |= column[1:] != column[:-1]
        first = np.flatnonzero(new)
        index[order] = np.arange(count) - np.repeat(first, np.diff([*first, count]))
    return index


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


class _Tables:
    """Makes a State."""

    def __init__(self, schedule: Schedule, network: DimensionModel, kernel: Any) -> None:
        self.schedule, self.network, self.kernel = schedule, network, kernel
        names = ("collective", "phase", "token", "step", "graph", "graph_step")
        self.line = {name: _Line([], len(kernel.TABLES[name])) for name in names}
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
            return (self._graph(program), *(0,) * (len(self.kernel.TABLES["token"]) - 1))
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
        return np.concatenate(tables), _integers(np.concatenate(children)), starts

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
        return np.stack([columns[name].astype(np.int64) for name in self.kernel.TABLES["op"]], 1)

    def _ranks(self, starts: dict[int, int]) -> Integers:
        parts = self.schedule.ranks
        counts = {id(p.operators): np.bincount(p.operators.slot + 1, minlength=len(Slot)) for p in parts}
        by_slot = np.array([counts[id(part.operators)] for part in parts])
        rows = by_slot.sum(1)
        row = np.cumsum(rows) - rows
        heaps = row[:, None] + np.cumsum(by_slot, 1) - by_slot
        columns = {"op": [starts[id(part.operators)] for part in parts], "rows": rows, "row": row}
        columns |= dict(zip(("heap_none", "heap_cpu", "heap_compute", "heap_comm"), heaps.T, strict=True))
        fields = self.kernel.TABLES["rank"]
        table = np.zeros((len(parts), len(fields)), np.int64)
        for name, column in columns.items():
            table[:, fields.index(name)] = column
        table[:, [self.kernel.RANK_FINISH_NS, self.kernel.RANK_LISTS]] = -1
        return table

    def memory(self, *, strict_zero: bool, keep_messages: bool) -> Memory:
        """The memory, ready to be advanced."""
        schedule, network = self.schedule, self.network
        op, child, starts = self._operators()
        rank = self._ranks(starts)
        static = {name: line.array() for name, line in self.line.items()}
        made = {"op": op, "rank": rank, "child": child} | static | self._state(rank)
        made |= {
            "graph_child": _integers(self.graph_children),
            "member": _integers(self.members),
            "size": _integers([d.size for d in network.dimensions]),
            "topology": _integers([_TOPOLOGIES[d.topology] for d in network.dimensions]),
        }
        memory = Memory(self.kernel, made)
        self._set_registers(memory, strict_zero, keep_messages)
        for at, dimension in enumerate(network.dimensions):
            memory.f[2 * at : 2 * at + 2] = (
                dimension.latency_ns.value,
                bps_to_bytes_per_ns(dimension.bandwidth_bps.value),
            )
        memory.registers[self.kernel.SPARE] = self._spare(memory, schedule)
        memory.enlarge()
        return memory

    def _state(self, rank: Integers) -> dict[str, Integers]:
        """Tables of what changes, as it is at the start."""
        kernel, schedule = self.kernel, self.schedule
        ranks, rows = len(rank), int(rank[:, kernel.RANK_ROWS].sum())
        queues, dimensions = schedule.system.queues_per_dim, len(schedule.dimensions)
        turn = np.zeros((ranks, dimensions, len(Lane)), np.int64)
        turn[:, :, _LANES[Lane.UPPER]] = queues // 2
        groups = [int(name) * STREAMS_PER_GROUP if name.isdigit() else 0 for name in self.groups]
        return {
            "queue": _at_rest(ranks * dimensions * queues, kernel.QUEUE_WIDTH),
            "link": _at_rest(self._links(), kernel.LINK_WIDTH),
            "missing": _integers(np.concatenate([part.dep_counts for part in schedule.ranks])),
            "issue_ns": np.full(rows, UNKNOWN, np.int64),
            "done_ns": np.full(rows, UNKNOWN, np.int64),
            "heap_row": np.zeros(rows, np.int64),
            "released_row": np.zeros(rows, np.int64),
            "turn": turn.ravel(),
            "variant": np.zeros(max(1, ranks * len(self.turns)), np.int64),
            "group_stream": _integers(np.tile(np.array(groups, np.int64), ranks)),
        }

    def _links(self) -> int:
        ranks, topology = self.network.ranks, self.network.dimensions[0].topology
        if not self.network.aware:
            return 1
        return ranks * ranks if topology is Topology.FULLY_CONNECTED else 2 * ranks

    def _set_registers(self, memory: Memory, strict_zero: bool, keep_messages: bool) -> None:
        kernel, system = self.kernel, self.schedule.system
        for at, value in {
            kernel.RUNNING_LIST: -1,
            kernel.STRICT: strict_zero,
            kernel.AWARE: self.network.aware,
            kernel.TOPOLOGY: _TOPOLOGIES[self.network.dimensions[0].topology],
            kernel.QUEUES: system.queues_per_dim,
            kernel.LIMIT: -(-system.active_chunks // system.queues_per_dim),
            kernel.GROUPS: len(self.groups),
            kernel.TURNS: len(self.turns),
            kernel.DIMENSIONS: len(self.schedule.dimensions),
            kernel.RANKS: len(self.schedule.ranks),
            kernel.PHASES: max(1, int(memory.table("collective")[:, kernel.COLLECTIVE_PHASES].max())),
            kernel.STEPS: int(memory.table("graph")[:, kernel.GRAPH_STEPS].max()),
            kernel.KEEP: keep_messages,
        }.items():
            memory.registers[at] = value

    def _spare(self, memory: Memory, schedule: Schedule) -> int:
        """What one continuation may take from a pool at most.

        It may issue all receives of a rank, launch a collective with all its chunks, and start as many phases as may
        run at once.
        """
        kernel, system = self.kernel, schedule.system
        token, graph = memory.table("token")[:, kernel.TOKEN_START], memory.table("graph")[:, kernel.GRAPH_STEPS]
        starts = max(int(token.max()), int(graph.max()), 1)
        chunks = int(memory.table("collective")[:, kernel.COLLECTIVE_CHUNKS].max())
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


def _integers(values: Iterable[int] | NDArray[Any]) -> Integers:
    """An array of at least one."""
    array = np.array(values if isinstance(values, np.ndarray) else list(values), np.int64)
    return array if len(array) else np.zeros(1, np.int64)


def _at_rest(rows: int, width: int) -> Integers:
    """Queues and links: idle (0), nobody first or last in line (-1)."""
    table = np.full((rows, width), -1, np.int64)
    table[:, 0] = 0
    return table


class Memory:
    """The kernel's arrays, and how they grow.

    Attributes:
        m, f: see kernel.py.
    """

    def __init__(self, kernel: Any, tables: dict[str, Integers]) -> None:
        self._kernel = kernel
        self._width = {name: len(fields) for name, fields in kernel.TABLES.items()} | dict.fromkeys(kernel.PLAIN, 1)
        self._rows = dict.fromkeys(self._width, 0)
        self._spares: list[Integers] = [np.empty(0, np.int64)] * len(kernel.POOLS)
        self.m = np.zeros(kernel.REGISTERS, np.int64)
        self.f = np.zeros(2 * len(tables["size"]), np.float64)
        self._lay_out({name: len(table) for name, table in tables.items()} | {"wait": _FIRST_WAITS})
        for name, table in tables.items():
            self.table(name)[:] = table.reshape(-1, self._width[name])
        self.table("wait")[:, kernel.WAIT_PAIR] = -1

    @property
    def registers(self) -> Integers:
        """The first part of `m`."""
        return self.m[: self._kernel.REGISTERS]

    def table(self, name: str) -> Integers:
        """A table, a row each."""
        at = int(self.m[getattr(self._kernel, f"AT_{name.upper()}")])
        return self.m[at : at + self._rows[name] * self._width[name]].reshape(-1, self._width[name])

    def _lay_out(self, rows: dict[str, int]) -> None:
        """Move everything into a larger `m`; tables not named keep their length."""
        kernel, old = self._kernel, {name: self.table(name) for name, count in self._rows.items() if count}
        self._rows |= rows
        pools = [self._rows[name] for name in kernel.POOLS]
        size = kernel.REGISTERS + sum(count * self._width[name] for name, count in self._rows.items()) + sum(pools)
        new = np.zeros(size, np.int64)
        new[: kernel.REGISTERS] = self.registers
        self.m, at = new, kernel.REGISTERS
        for name, count in self._rows.items():
            new[getattr(kernel, f"AT_{name.upper()}")] = at
            if name in old:
                self.table(name)[: len(old[name])] = old[name]
            at += count * self._width[name]
        for pool, count in enumerate(pools):
            new[kernel.AT_SPARES + pool] = at
            new[kernel.SPARE_OF + pool] = len(self._spares[pool])
            new[at : at + len(self._spares[pool])] = self._spares[pool]
            at += count
        new[[kernel.CAP_EVENT, kernel.CAP_WAIT, kernel.CAP_LOG]] = [self._rows[n] for n in ("event", "wait", "log")]

    def _free(self, pool: int) -> Integers:
        at = int(self.m[self._kernel.AT_SPARES + pool])
        return self.m[at : at + int(self.m[self._kernel.SPARE_OF + pool])].copy()

    def enlarge(self) -> None:
        """At least double everything of which less is left than one continuation may take."""
        kernel, registers = self._kernel, self.registers
        need = int(registers[kernel.SPARE])
        rows: dict[str, int] = {}
        for pool, name in enumerate(kernel.POOLS):
            self._spares[pool] = self._free(pool)
            if len(self._spares[pool]) < need:
                have = self._rows[name]
                rows[name] = max(2 * have, have + 2 * need)
                self._spares[pool] = np.concatenate([np.arange(rows[name] - 1, have - 1, -1), self._spares[pool]])
        streams = rows.get("stream", self._rows["stream"])
        rows["plan_queue"] = rows["plan_turn"] = streams * int(registers[kernel.PHASES])
        rows["step_missing"] = max(1, streams * int(registers[kernel.STEPS]))
        if int(registers[kernel.EVENTS]) + 2 * need > self._rows["event"]:
            rows["event"] = 2 * self._rows["event"] + 4 * need
        if registers[kernel.KEEP] and int(registers[kernel.LOGGED]) + need > self._rows["log"]:
            rows["log"] = 2 * self._rows["log"] + 2 * need
        waits = old = self._rows["wait"]
        while 2 * (int(registers[kernel.WAITS]) + need) > waits:
            waits *= 2
        if waits == old:
            self._lay_out(rows)
            return
        before = self.table("wait").ravel().copy()
        self._lay_out(rows | {"wait": waits})
        self.table("wait")[:, kernel.WAIT_PAIR] = -1
        kernel.rehash(self.m, self.f, before)
