"""Custom collectives: one small trace a position, with sends, receives and compute only."""

from __future__ import annotations

from genie.core.schedule import COLLECTIVE_TAGS, GraphProgram, GraphStep, StepKind
from genie.core.workload import NodeKind, RankTrace
from genie.errors import InputError


def program(trace: RankTrace, members: int) -> GraphProgram:
    """The trace of one position as a graph program; compute without a duration takes 1 ns, as in ASTRA-sim.

    Raises:
        InputError: a node of another kind, a peer out of range, an empty message.
    """
    return GraphProgram(tuple(_step(trace, row, members) for row in range(len(trace.nodes))), await_sends=True)


def _step(trace: RankTrace, row: int, members: int) -> GraphStep:
    nodes = trace.nodes
    kind, where = int(nodes.kind[row]), f"{trace.source}: node {nodes.node_id[row]}"
    deps = tuple(int(d) for d in trace.deps[trace.dep_offsets[row] : trace.dep_offsets[row + 1]])
    if kind == NodeKind.COMP:
        return GraphStep(StepKind.COMPUTE, deps, duration_ns=int(nodes.duration_ns[row]) or 1)
    if kind not in {NodeKind.SEND, NodeKind.RECV}:
        raise InputError(
            f"a custom collective may hold sends, receives and compute, not {NodeKind(kind).name}.",
            where=where,
        )
    peer, size_bytes = int(nodes.peer[row]), int(nodes.size_bytes[row])
    if not 0 <= peer < members:
        raise InputError(f"position {peer} is not among the {members} members.", where=where)
    if size_bytes <= 0:
        raise InputError("a message needs at least one byte.", where=where, fix="give the node a comm_size.")
    step = StepKind.SEND if kind == NodeKind.SEND else StepKind.RECV
    return GraphStep(step, deps, peer, size_bytes, tag=max(0, int(nodes.tag[row])) % COLLECTIVE_TAGS)
