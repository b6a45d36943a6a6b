"""Workload + System -> Schedule: each trace node becomes an operator, equal collectives share one description."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genie.core.columns import csr_transpose
from genie.core.schedule import (
    COLLECTIVE_TAGS,
    STREAMS_PER_GROUP,
    Collective,
    Lane,
    Members,
    Operators,
    OpKind,
    Phase,
    RankOperators,
    Schedule,
    Slot,
)
from genie.core.system import MemoryKind, Profile, System
from genie.core.workload import CollectiveKind, Group, NodeKind, RankTrace, Workload
from genie.errors import InputError
from genie.lower import custom
from genie.lower.phases import Request, expand


def lower(
    workload: Workload,
    system: System,
    dimensions: tuple[int, ...] | None = None,
    custom_traces: Mapping[str, tuple[RankTrace, ...]] | None = None,
) -> Schedule:
    """Turn a workload into a schedule.

    Args:
        workload: what the ranks do.
        system: how they schedule it, and by which algorithms.
        dimensions: logical sizes, dimension 0 varying fastest; one dimension of all ranks when absent.
        custom_traces: for every ET prefix that the system names as a custom collective, a trace a position.

    Raises:
        InputError: dimensions that do not multiply to the ranks, a node that cannot be scheduled, a dependency cycle:
            names rank, node and remedy.
    """
    sizes = dimensions or (workload.ranks,)
    if math.prod(sizes) != workload.ranks:
        raise InputError(
            f"the network has {' x '.join(map(str, sizes))} = {math.prod(sizes)} ranks, "
            f"the workload has {workload.ranks}.",
            where=workload.name,
            fix="use a network of as many ranks as there are trace files.",
        )
    context = _Lowering(workload, system, sizes, custom_traces or {})
    ranks = tuple(context.rank(trace) for trace in workload.traces)
    return Schedule(workload, system, sizes, ranks, tuple(context.collectives))


class _Lowering:
    """The collectives met so far, so that equal requests are expanded once."""

    def __init__(
        self,
        workload: Workload,
        system: System,
        dimensions: tuple[int, ...],
        custom_traces: Mapping[str, tuple[RankTrace, ...]],
    ) -> None:
        self.workload, self.system, self.dimensions = workload, system, dimensions
        self.custom_traces = custom_traces
        self.collectives: list[Collective] = []
        self._known: dict[Any, int] = {}
        self._groups = {group.name: group for group in workload.groups}
        self._members = {group.name: frozenset(group.ranks) for group in workload.groups}
        self._ranks: dict[tuple[int, int, int], RankOperators] = {}
        self._named: dict[int, tuple[set[str], set[int]]] = {}

    def rank(self, trace: RankTrace) -> RankOperators:
        """One rank's operators and who waits for whom; ranks with the same nodes share them."""
        key = id(trace.nodes), id(trace.deps), id(trace.dep_offsets)
        made = self._ranks.get(key)
        if made is not None and self._fits(trace):
            return replace(made, rank=trace.rank)
        counts = np.diff(trace.dep_offsets)
        offsets, children = csr_transpose(trace.dep_offsets, trace.deps, len(trace.nodes))
        refuse_cycle(trace, counts, offsets, children)
        table = Operators.from_rows(list(_Rows(self, trace)))
        made = self._ranks[key] = RankOperators(trace.rank, table, counts, offsets, children)
        return made

    def _fits(self, trace: RankTrace) -> bool:
        """Nothing of another rank's nodes is refused on this one: its groups hold it, no message goes to itself."""
        nodes = trace.nodes
        groups, peers = self._named.setdefault(id(nodes), (set(nodes.group.tolist()), set(nodes.peer.tolist())))
        members = (self._members.get(name) for name in groups)
        return trace.rank not in peers and all(ranks is None or trace.rank in ranks for ranks in members)

    def collective(self, key: Any, make: Any) -> int:
        """Position of the collective made by `make()`, which is called for a new key only."""
        at = self._known.get(key)
        if at is None:
            at = self._known[key] = len(self.collectives)
            self.collectives.append(make())
        return at

    def group_of(self, name: str, rank: int) -> Group | None:
        """The node's process group, checked to hold the rank."""
        group = self._groups.get(name) or self.workload.group_named(name)
        if group is not None and rank not in group.ranks:
            raise InputError(
                f"rank {rank} issues a collective of group {name}, of which it is no member.",
                fix="correct the comm-group file: it lists global ranks.",
            )
        return group

    def custom(self, prefix: str, request: Request) -> Collective:
        """A custom collective: one phase that bypasses chunks and algorithms."""
        traces = self.custom_traces.get(prefix)
        group = request.group
        members = Members(len(group.ranks), ranks=group.ranks) if group else Members(self.workload.ranks)
        if traces is None or len(traces) < members.size:
            raise InputError(
                f"the custom collective {prefix} has {len(traces or ())} positions, {members.size} are needed.",
                fix=f"provide {prefix}.0.et to {prefix}.{members.size - 1}.et.",
            )
        programs = tuple(custom.program(trace, members.size) for trace in traces[: members.size])
        phase = Phase(0, request.kind, members, (programs,), Lane.ANY, self.system.endpoint_delay_ns)
        return Collective(
            kind=request.kind,
            size_bytes=request.size_bytes,
            group=group.name if group else "",
            group_ranks=group.ranks if group else (),
            chunks=1,
            chunk_bytes=request.size_bytes,
            phases=(phase,),
            fixed_queue=True,
        )


Row = tuple[int, int, int, int, int, int, int, int, int]


class _Rows:
    """Iterates over one trace's nodes as operator rows (in the order of Operators.SCHEMA)."""

    def __init__(self, context: _Lowering, trace: RankTrace) -> None:
        self.context, self.trace, self.system = context, trace, context.system
        self.columns = {name: column.tolist() for name, column in trace.nodes.columns().items()}
        self.streams: dict[str, int] = {}
        self.lanes: dict[str, int] = {}

    def __iter__(self) -> Any:
        for row in range(len(self.trace.nodes)):
            try:
                yield self.row(row)
            except InputError as error:
                raise InputError(error.what, where=error.where or self._where(row), fix=error.fix) from error

    def _where(self, row: int) -> str:
        source = self.trace.source or f"rank {self.trace.rank}"
        return f"{source}: node {self.columns['node_id'][row]} ({self.columns['name'][row]})"

    def row(self, row: int) -> Row:
        kind = self.columns["kind"][row]
        slot = self._slot(row, kind)
        if self.system.replay_only:
            return self._timed(row, OpKind.COMPUTE, slot)
        if kind == NodeKind.COMP:
            return self._compute(row, slot)
        if kind in {NodeKind.SEND, NodeKind.RECV}:
            return self._point_to_point(row, kind, slot)
        if kind == NodeKind.COLLECTIVE:
            return self._collective(row, slot)
        if kind in {NodeKind.MEM_LOAD, NodeKind.MEM_STORE}:
            return self._memory(row, slot)
        if kind == NodeKind.INVALID:
            return _row(OpKind.SKIP, slot)
        raise InputError(
            "METADATA nodes cannot be run (ASTRA-sim aborts on them).",
            fix="genie trace check --fix writes a copy without them.",
        )

    def _slot(self, row: int, kind: int) -> Slot:
        if self.columns["is_cpu"][row]:
            return Slot.CPU
        if kind == NodeKind.COMP:
            return Slot.COMPUTE
        return Slot.NONE if kind == NodeKind.RECV else Slot.COMMUNICATION

    def _timed(self, row: int, op: OpKind, slot: Slot) -> Row:
        return _row(op, slot, duration_ns=self.columns["duration_ns"][row] or 1)

    def _compute(self, row: int, slot: Slot) -> Row:
        if not self.system.roofline or slot is Slot.CPU:
            return self._timed(row, OpKind.COMPUTE, slot)
        tensor_bytes, num_ops = self.columns["tensor_bytes"][row], self.columns["num_ops"][row]
        if tensor_bytes < 0 or num_ops < 0:
            raise InputError(
                "the roofline needs num_ops and tensor_size.", fix="add them, or set roofline-enabled to 0."
            )
        if tensor_bytes == 0:
            return _row(OpKind.SKIP, slot)
        rate = min(self.system.local_mem_bytes_per_s * (num_ops / tensor_bytes), self.system.peak_flops)
        if rate <= 0:
            raise InputError("the roofline needs local-mem-bw, peak-perf and operations above zero.")
        return _row(OpKind.COMPUTE, slot, duration_ns=int(num_ops / rate * 1e9))

    def _point_to_point(self, row: int, kind: int, slot: Slot) -> Row:
        peer, size_bytes = self.columns["peer"][row], self.columns["size_bytes"][row]
        if not 0 <= peer < self.context.workload.ranks or peer == self.trace.rank:
            raise InputError(f"rank {self.trace.rank} cannot talk to rank {peer}.", fix="peers are global ranks.")
        if size_bytes <= 0:
            raise InputError(f"a message of {size_bytes} bytes.", fix="give the node a comm_size above zero.")
        op = OpKind.SEND if kind == NodeKind.SEND else OpKind.RECV
        if self.system.profile is Profile.OVERLAP:
            slot = Slot.NONE
        tag = max(0, self.columns["tag"][row]) % COLLECTIVE_TAGS
        return _row(op, slot, peer=peer, tag=tag, size_bytes=size_bytes)

    def _memory(self, row: int, slot: Slot) -> Row:
        if self.system.memory.kind is MemoryKind.NONE:
            raise InputError(
                "a remote memory access, but the memory file says NO_MEMORY_EXPANSION.",
                fix="pass --memory FILE.",
            )
        if self.columns["tensor_bytes"][row] < 0:
            raise InputError("a remote memory access without tensor_size.")
        return _row(OpKind.MEMORY, slot, size_bytes=self.columns["tensor_bytes"][row])

    def _collective(self, row: int, slot: Slot) -> Row:
        kind = CollectiveKind(self._comm_type(row))
        if kind is CollectiveKind.BROADCAST and not self.system.extended:
            return self._timed(row, OpKind.WAIT, slot)
        if kind not in _IN_ASTRA_SIM and not self.system.extended:
            raise InputError(f"ASTRA-sim cannot run {kind.name}.", fix="pass --extended to send it as a tree.")
        group = self.context.group_of(self.columns["group"][row], self.trace.rank)
        request = Request(
            kind=kind,
            size_bytes=max(0, self.columns["size_bytes"][row]),
            group=group,
            involved_dims=self.columns["involved_dims"][row],
            root=max(0, self.columns["root"][row]),
        )
        if request.size_bytes == 0 and kind is not CollectiveKind.BARRIER:
            raise InputError("a collective of zero bytes.", fix="give the node a comm_size above zero.")
        return self._issue(row, slot, request)

    def _comm_type(self, row: int) -> int:
        comm_type: int = self.columns["comm_type"][row]
        if comm_type < 0:
            raise InputError("a collective without comm_type.", fix="genie trace check names all of them.")
        if comm_type == CollectiveKind.REDUCE_SCATTER_BLOCK and self.system.extended:
            return CollectiveKind.REDUCE_SCATTER
        return comm_type

    def _issue(self, row: int, slot: Slot, request: Request) -> Row:
        prefix = self._custom_prefix(row, request.kind)
        if prefix is None:
            at = self.context.collective(request, lambda: expand(request, self.system, self.context.dimensions))
        else:
            at = self.context.collective((prefix, request), lambda: self.context.custom(prefix, request))
        if self.context.collectives[at].chunks == 0:
            return _row(OpKind.WAIT, slot, duration_ns=1)
        if self.system.profile is Profile.ASTRA:
            return _row(OpKind.COLLECTIVE, slot, collective=at)
        return self._overlapping(request, at)

    def _custom_prefix(self, row: int, kind: CollectiveKind) -> str | None:
        by_node = self.system.custom_by_node.get(self.columns["node_id"][row])
        return by_node or self.system.custom.get(kind)

    def _overlapping(self, request: Request, at: int) -> Row:
        """Stream ids are counted over the rows, so that members agree on them however they interleave groups."""
        name = request.group.name if request.group else ""
        lane = self.lanes.setdefault(name, len(self.lanes))
        first = self.streams.get(name, self.group_number(name) * STREAMS_PER_GROUP)
        self.streams[name] = first + self.context.collectives[at].chunks
        return _row(OpKind.COLLECTIVE, Slot.NONE, collective=at, first_stream=first, lane=lane)

    def group_number(self, name: str) -> int:
        """1, 2, ... by position in the comm-group file; 0 for all ranks."""
        names = [group.name for group in self.context.workload.groups]
        return names.index(name) + 1 if name else 0


_IN_ASTRA_SIM = frozenset(
    {
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.ALL_GATHER,
        CollectiveKind.ALL_TO_ALL,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.BROADCAST,
    }
)


def _row(
    kind: OpKind,
    slot: Slot,
    *,
    duration_ns: int = 0,
    peer: int = -1,
    tag: int = -1,
    size_bytes: int = 0,
    collective: int = -1,
    first_stream: int = -1,
    lane: int = -1,
) -> Row:
    return kind, slot, duration_ns, peer, tag, size_bytes, collective, first_stream, lane


def refuse_cycle(
    trace: RankTrace, counts: NDArray[np.int64], offsets: NDArray[np.int64], children: NDArray[np.int64]
) -> None:
    """Raise InputError naming some nodes that wait for each other, if there are any."""
    waiting = counts.tolist()
    ready = [row for row, count in enumerate(waiting) if count == 0]
    first, kids = offsets.tolist(), children.tolist()
    for row in ready:
        for child in kids[first[row] : first[row + 1]]:
            waiting[child] -= 1
            if waiting[child] == 0:
                ready.append(child)
    if len(ready) < len(waiting):
        stuck = [int(trace.nodes.node_id[row]) for row, count in enumerate(waiting) if count > 0]
        raise InputError(
            f"{len(stuck)} nodes wait for each other in a cycle or behind one, nodes {stuck[:5]} among them.",
            where=trace.source or f"rank {trace.rank}",
            fix="genie trace check names one cycle.",
        )
