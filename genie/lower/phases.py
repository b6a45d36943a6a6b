"""One collective -> chunks and phases, over one dimension, several, or a process group.

Source of every rule: ASTRA-sim's system layer; sections "Chunks" and "Phases" of docs/simulator.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from genie.core.schedule import Collective, Lane, Members, Phase, Program
from genie.core.system import Optimization, System
from genie.core.workload import ALL_DIMENSIONS, CollectiveKind, Group
from genie.errors import InputError
from genie.lower import exchanges, trees

GROUP_ENDPOINT_DELAY_NS = 10
"""ASTRA-sim's endpoint delay inside a process group smaller than the job, whatever the system file says."""

DEFAULT_DIMENSIONS = 4
"""A collective that names no dimensions uses the first four in ASTRA-sim."""

FILE_NAMES = {
    CollectiveKind.ALL_REDUCE: "all-reduce",
    CollectiveKind.ALL_GATHER: "all-gather",
    CollectiveKind.REDUCE_SCATTER: "reduce-scatter",
    CollectiveKind.ALL_TO_ALL: "all-to-all",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What a trace node asks for: equal requests share one Collective."""

    kind: CollectiveKind
    size_bytes: int
    group: Group | None
    involved_dims: int
    root: int = 0


@dataclass(frozen=True, slots=True)
class _Line:
    """One dimension as a collective sees it: who is on it, and by which algorithm they exchange."""

    dimension: int
    members: Members
    algorithm: str
    in_group: bool


@dataclass(frozen=True, slots=True)
class _Context:
    request: Request
    system: System
    lines: tuple[_Line, ...]


def expand(request: Request, system: System, dimensions: tuple[int, ...]) -> Collective:
    """Chunks and phases of a request.

    Raises:
        InputError: no algorithm or chunk count configured, or the algorithm cannot do it: says which key to set.
    """
    ranks = math.prod(dimensions)
    if request.kind not in FILE_NAMES:
        return _expand_tree(request, system, ranks)
    if system.splits < 1:
        raise InputError(
            "preferred-dataset-splits is missing or zero (ASTRA-sim crashes on the first collective).",
            fix="set it to the number of chunks per collective, at least 1.",
        )
    chunks, chunk_bytes = _chunks(request, system.splits, ranks)
    lines = _lines(request, system, dimensions)
    phases = _phases(_Context(request, system, lines), chunk_bytes)
    if not phases and not system.extended:
        raise InputError(
            "the collective has nobody to talk to: one member, or no involved dimension (ASTRA-sim never finishes it).",
            fix="remove the node, or pass --extended to let it finish at once.",
        )
    return _collective(request, chunks if phases else 0, chunk_bytes, phases)


def _collective(request: Request, chunks: int, chunk_bytes: int, phases: tuple[Phase, ...]) -> Collective:
    group = request.group
    return Collective(
        kind=request.kind,
        size_bytes=request.size_bytes,
        group=group.name if group else "",
        group_ranks=group.ranks if group else (),
        chunks=chunks,
        chunk_bytes=chunk_bytes,
        phases=phases,
    )


def _chunks(request: Request, splits: int, ranks: int) -> tuple[int, int]:
    """(number of chunks, bytes of each): every chunk has full size, the last one too."""
    size_bytes = request.size_bytes
    chunk_bytes = size_bytes // splits
    if request.kind is not CollectiveKind.ALL_GATHER and ranks > chunk_bytes:
        chunk_bytes = ranks
        size_bytes = splits * chunk_bytes
    if chunk_bytes < 1:
        raise InputError(
            f"{size_bytes} bytes cannot be split into {splits} chunks (ASTRA-sim never ends on it).",
            fix="lower preferred-dataset-splits or gather more bytes.",
        )
    return -(-size_bytes // chunk_bytes), chunk_bytes


def _algorithms(request: Request, system: System) -> tuple[str, ...]:
    names = system.algorithms.get(request.kind)
    if not names:
        key = f"{FILE_NAMES[request.kind]}-implementation"
        raise InputError(f"the system file has no {key}.", fix=f'add "{key}": ["ring"], one name a dimension.')
    return names


def _lines(request: Request, system: System, dimensions: tuple[int, ...]) -> tuple[_Line, ...]:
    names, ranks = _algorithms(request, system), math.prod(dimensions)
    if request.group is not None and len(request.group.ranks) != ranks:
        name = names[0] if len(names) == 1 else "ring"
        if name == "doubleBinaryTree":
            raise InputError("doubleBinaryTree cannot serve a process group (ASTRA-sim crashes).", fix="use ring.")
        return (_Line(0, Members(len(request.group.ranks), ranks=request.group.ranks), name, in_group=True),)
    if len(names) > len(dimensions):
        raise InputError(
            f"{len(names)} algorithms for {len(dimensions)} dimensions.",
            fix="name one algorithm a dimension.",
        )
    if names[-1] == "doubleBinaryTree" and len(names) < len(dimensions) and not system.extended:
        raise InputError(
            "doubleBinaryTree is the last of fewer algorithms than there are dimensions (ASTRA-sim crashes).",
            fix="name one algorithm a dimension.",
        )
    return tuple(_of_all_ranks(names, dimensions))


def _of_all_ranks(names: tuple[str, ...], dimensions: tuple[int, ...]) -> Iterator[_Line]:
    """A line a dimension; the first flat algorithm spans all ranks and ends the list (ASTRA-sim reads no further)."""
    stride, ranks = 1, math.prod(dimensions)
    for at, (name, size) in enumerate(zip(names, dimensions, strict=False)):
        if name.startswith("one"):
            yield _Line(at, Members(ranks), name, in_group=False)
            return
        yield _Line(at, Members(size, stride), name, in_group=False)
        stride *= size


def _involved(context: _Context, line: _Line) -> bool:
    request = context.request
    if line.members.size == 1:
        return False
    if request.group is not None:
        return True
    if request.involved_dims == ALL_DIMENSIONS:
        return context.system.extended or line.dimension < DEFAULT_DIMENSIONS
    return bool(request.involved_dims >> line.dimension & 1)


def _phases(context: _Context, chunk_bytes: int) -> tuple[Phase, ...]:
    kind = context.request.kind
    lines = [line for line in context.lines if _involved(context, line)]
    if not lines:
        return ()
    if kind is CollectiveKind.ALL_REDUCE and context.system.optimization is Optimization.LOCAL_BW_AWARE:
        return _hierarchical(context, lines, chunk_bytes)
    phases, data_bytes = [], chunk_bytes
    for line in reversed(lines) if kind is CollectiveKind.ALL_GATHER else lines:
        phases.append(_phase(context, line, kind, data_bytes, Lane.ANY))
        data_bytes = _after(kind, line, data_bytes)
    return tuple(phases)


def _hierarchical(context: _Context, lines: list[_Line], chunk_bytes: int) -> tuple[Phase, ...]:
    """Reduce-scatter inwards, all-reduce on the last dimension, all-gather outwards."""
    phases, data_bytes = [], chunk_bytes
    for line in lines[:-1]:
        phases.append(_phase(context, line, CollectiveKind.REDUCE_SCATTER, data_bytes, Lane.LOWER))
        data_bytes = _after(CollectiveKind.REDUCE_SCATTER, line, data_bytes)
    phases.append(_phase(context, lines[-1], CollectiveKind.ALL_REDUCE, data_bytes, Lane.LOWER))
    for line in reversed(lines[:-1]):
        phases.append(_phase(context, line, CollectiveKind.ALL_GATHER, data_bytes, Lane.UPPER))
        data_bytes = _after(CollectiveKind.ALL_GATHER, line, data_bytes)
    return tuple(phases)


def _after(kind: CollectiveKind, line: _Line, data_bytes: int) -> int:
    """Bytes that a rank holds when the phase is over."""
    if line.algorithm == "doubleBinaryTree":
        return data_bytes
    if kind is CollectiveKind.ALL_GATHER:
        return data_bytes * line.members.size
    if kind is CollectiveKind.REDUCE_SCATTER:
        return data_bytes // line.members.size
    return data_bytes


def _phase(context: _Context, line: _Line, kind: CollectiveKind, data_bytes: int, lane: Lane) -> Phase:
    tree = line.algorithm == "doubleBinaryTree"
    variants = (
        trees.double_binary_tree(data_bytes, line.members.size) if tree else ((_exchange(line, kind, data_bytes),),)
    )
    return Phase(
        dimension=line.dimension,
        kind=kind,
        members=line.members,
        variants=variants,
        lane=lane,
        endpoint_delay_ns=GROUP_ENDPOINT_DELAY_NS if line.in_group else context.system.endpoint_delay_ns,
        turn_key=f"{context.request.kind.name}/{line.dimension}" if tree else "",
    )


def _exchange(line: _Line, kind: CollectiveKind, data_bytes: int) -> Program:
    name = line.algorithm.removeprefix("one")
    name = name[:1].lower() + name[1:]
    if name == "ring":
        program = exchanges.ring(kind, data_bytes, line.members.size)
    elif name == "halvingDoubling":
        program = exchanges.halving_doubling(kind, data_bytes, line.members.size)
    elif name.startswith("direct"):
        window = _window(line.algorithm, name.removeprefix("direct"))
        program = exchanges.direct(kind, data_bytes, line.members.size, window, in_group=line.in_group)
    else:
        raise InputError(
            f"unknown collective algorithm {line.algorithm!r}.",
            fix="use ring, direct, halvingDoubling, doubleBinaryTree, oneRing, oneDirect or oneHalvingDoubling.",
        )
    if min(program.sizes_bytes) < 1:
        raise InputError(f"a chunk of {data_bytes} bytes leaves empty messages on dimension {line.dimension}.")
    return program


def _window(algorithm: str, digits: str) -> int | None:
    if not digits:
        return None
    if not digits.isdigit() or int(digits) < 1:
        raise InputError(f"the window of {algorithm!r} must be a number above zero.", fix='write "direct4", say.')
    return int(digits)


def _expand_tree(request: Request, system: System, ranks: int) -> Collective:
    """Broadcast, reduce and barrier, which ASTRA-sim does not send: one phase over all members."""
    members = Members(len(request.group.ranks), ranks=request.group.ranks) if request.group else Members(ranks)
    if members.size == 1:
        return _collective(request, 0, 0, ())
    chunks = max(1, min(system.splits, request.size_bytes))
    chunk_bytes = -(-max(1, request.size_bytes) // chunks)
    if request.kind is CollectiveKind.BARRIER:
        chunks, chunk_bytes = 1, 1
    phase = Phase(
        dimension=0,
        kind=request.kind,
        members=members,
        variants=(_tree_programs(request, chunk_bytes, members.size),),
        lane=Lane.ANY,
        endpoint_delay_ns=system.endpoint_delay_ns,
    )
    return _collective(request, chunks, chunk_bytes, (phase,))


def _tree_programs(request: Request, chunk_bytes: int, members: int) -> tuple[Program, ...]:
    if request.kind is CollectiveKind.BARRIER:
        return (exchanges.dissemination(members),)
    if not 0 <= request.root < members:
        raise InputError(f"root {request.root} is not among the {members} members of the group.")
    if request.kind is CollectiveKind.BROADCAST:
        return trees.broadcast(chunk_bytes, members, request.root)
    if request.kind is CollectiveKind.REDUCE:
        return trees.reduce(chunk_bytes, members, request.root)
    raise InputError(
        f"{request.kind.name} is not supported.",
        fix="express it as sends and receives, or as an all-gather, reduce-scatter or all-to-all.",
    )
