"""Workloads made to measure: single collectives, and the communication of the usual ways to train in parallel.

Every function gives a checked Workload; durations are whole microseconds, since that is what traces can hold. The
parameters of a function carry their meaning and least value (`About`), so that PATTERNS can describe and check them.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, Final, get_args, get_type_hints

from genie.core.columns import csr_from_lists
from genie.core.workload import ALL_DIMENSIONS, NONE, CollectiveKind, Group, NodeKind, Nodes, RankTrace, Workload
from genie.errors import InputError
from genie.units import NS_PER_US

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class About:
    """What a pattern's parameter means, and the least value that it may have."""

    text: str
    least: float = 1


Ranks = Annotated[int, About("ranks of the job", least=2)]
Layers = Annotated[int, About("layers of the model")]
Microbatches = Annotated[int, About("microbatches of an iteration")]


class TraceBuilder:
    """One rank's nodes in the making; every method gives the new node's row."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._rows: list[tuple[Any, ...]] = []
        self._deps: list[list[int]] = []

    def _add(self, kind: NodeKind, name: str, after: Iterable[int], **values: Any) -> int:
        row = {
            "node_id": len(self._rows),
            "kind": kind,
            "name": name,
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
        } | values
        self._rows.append(tuple(row[column] for column in Nodes.SCHEMA))
        self._deps.append(sorted(set(after)))
        return len(self._rows) - 1

    def compute(self, name: str, duration_us: int, after: Iterable[int] = ()) -> int:
        """Compute of so many microseconds (at least one)."""
        return self._add(NodeKind.COMP, name, after, duration_ns=max(1, duration_us) * NS_PER_US)

    def collective(
        self,
        name: str,
        kind: CollectiveKind,
        size_bytes: int,
        after: Iterable[int] = (),
        group: str = "",
        root: int = 0,
    ) -> int:
        """A collective; size_bytes as comm_size means it for that kind."""
        return self._add(
            NodeKind.COLLECTIVE, name, after, comm_type=kind, size_bytes=size_bytes, group=group, root=root
        )

    def all_reduce(self, name: str, size_bytes: int, after: Iterable[int], group: Group | None = None) -> int:
        """An all-reduce over a group (None: all ranks), of at least a byte a member; nothing in a group of one."""
        after = list(after)
        if group is not None and len(group.ranks) == 1:
            return after[-1]
        size_bytes = max(size_bytes, len(group.ranks) if group else 1)
        return self.collective(name, CollectiveKind.ALL_REDUCE, size_bytes, after, group.name if group else "")

    def send(self, name: str, peer: int, size_bytes: int, tag: int, after: Iterable[int] = ()) -> int:
        """A message to a peer."""
        return self._add(NodeKind.SEND, name, after, peer=peer, size_bytes=size_bytes, tag=tag)

    def receive(self, name: str, peer: int, size_bytes: int, tag: int, after: Iterable[int] = ()) -> int:
        """A message from a peer."""
        return self._add(NodeKind.RECV, name, after, peer=peer, size_bytes=size_bytes, tag=tag)

    def finish(self) -> RankTrace:
        """The trace."""
        offsets, deps = csr_from_lists(self._deps)
        return RankTrace(self.rank, Nodes.from_rows(self._rows), offsets, deps, f"rank {self.rank}")


def as_workload(name: str, traces: Iterable[TraceBuilder], groups: Iterable[Group] = ()) -> Workload:
    """The traces as a workload; groups of one member are left out."""
    spoken_of = tuple(group for group in groups if len(group.ranks) > 1)
    return Workload(name, tuple(trace.finish() for trace in traces), spoken_of)


def collective(
    kind: CollectiveKind, ranks: Ranks, size_bytes: Annotated[int, About("comm_size: see docs/formats.md")]
) -> Workload:
    """One collective over all ranks."""
    traces = [TraceBuilder(rank) for rank in range(ranks)]
    for trace in traces:
        trace.collective(kind.name.lower(), kind, size_bytes)
    return as_workload(kind.name.lower(), traces)


def data_parallel(
    ranks: Ranks,
    size_bytes: Annotated[int, About("gradients of the largest layer; layer k of n has (k + 1) / n of that")],
    layers: Layers = 4,
    compute_us: Annotated[int, About("forward compute of a layer, us; backward takes twice that")] = 200,
    bucket_bytes: Annotated[int, About("gradients that share an all-reduce (0: every layer has its own)", 0)] = 0,
    gather: Annotated[int, About("1: the optimizer is sharded, an all-gather of the weights follows it", 0)] = 1,
) -> Workload:
    """Transformer step: gradient all-reduces overlap the backward pass, then a sharded optimizer and an all-gather.

    Layers differ in size, so that messages of several sizes are seen. An all-reduce starts as soon as the gradients of
    its layers are there, while the backward compute of the layers before them goes on.
    """
    traces = [TraceBuilder(rank) for rank in range(ranks)]
    buckets = _buckets([max(ranks, size_bytes * (layer + 1) // layers) for layer in range(layers)], bucket_bytes)
    for trace in traces:
        last: list[int] = []
        for layer in range(layers):
            last = [trace.compute(f"forward {layer}", compute_us, last)]
        reduced = []
        for bucket, gradients_bytes in buckets:
            for layer in bucket:
                last = [trace.compute(f"backward {layer}", 2 * compute_us, last)]
            name = f"all-reduce gradients {'+'.join(map(str, bucket))}"
            reduced.append(trace.all_reduce(name, gradients_bytes, last))
        step = trace.compute("optimizer", compute_us, reduced)
        if gather:
            trace.collective("all-gather weights", CollectiveKind.ALL_GATHER, max(1, size_bytes // ranks), [step])
    return as_workload("data_parallel", traces)


def _buckets(layer_bytes: list[int], bucket_bytes: int) -> list[tuple[list[int], int]]:
    """(layers, bytes) in the order of the backward pass; a bucket is closed when it holds `bucket_bytes`."""
    buckets: list[tuple[list[int], int]] = []
    layers, total = list[int](), 0
    for layer in reversed(range(len(layer_bytes))):
        layers, total = [*layers, layer], total + layer_bytes[layer]
        if total >= bucket_bytes or layer == 0:
            buckets.append((layers, total))
            layers, total = [], 0
    return buckets


def pipeline(
    ranks: Ranks,
    size_bytes: Annotated[int, About("activations of a microbatch, between two stages, in either direction")],
    microbatches: Microbatches = 4,
    compute_us: Annotated[int, About("forward compute of a stage, us; backward takes twice that")] = 200,
    replicas: Annotated[int, About("copies of the pipeline; equal stages form a data-parallel group")] = 1,
) -> Workload:
    """One-forward-one-backward pipeline; with replicas, an all-reduce over the copies of a stage at the end.

    The gradients are as large as the activations. Rank = replica + replicas x stage.
    """
    return _parallel("pipeline", _Grid(ranks, 1, replicas), size_bytes, microbatches, compute_us)


def hybrid(
    ranks: Ranks,
    size_bytes: Annotated[int, About("gradients of a stage; activations between stages have a quarter of that")],
    tensor: Annotated[int, About("ranks that share a layer (neighbours)")] = 2,
    replicas: Annotated[int, About("data-parallel copies; the rest are pipeline stages")] = 2,
    microbatches: Microbatches = 2,
    compute_us: Annotated[int, About("forward compute of a stage, us; backward takes twice that")] = 200,
) -> Workload:
    """Tensor, data and pipeline parallel at once (2 x 2 x 2 on eight ranks), a process group for each neighbourhood.

    Rank = tensor position + tensor x (replica + replicas x stage). Every compute ends in an all-reduce of its tensor
    group; stages pass activations point to point; the copies of a stage reduce their gradients at the end.
    """
    grid = _Grid(ranks, tensor, replicas)
    return _parallel("hybrid", grid, max(1, size_bytes // 4), microbatches, compute_us, gradient_bytes=size_bytes)


class _Grid:
    """Who is who in a job that is tensor, data and pipeline parallel."""

    def __init__(self, ranks: int, tensor: int, replicas: int) -> None:
        if ranks % (tensor * replicas):
            raise InputError(
                f"{ranks} ranks cannot be cut into {replicas} replicas of stages of {tensor} ranks.",
                fix="make ranks a multiple of tensor x replicas.",
            )
        self.ranks, self.tensor, self.replicas = ranks, tensor, replicas
        self.stages = ranks // (tensor * replicas)

    def rank(self, position: int, replica: int, stage: int) -> int:
        """The rank at these coordinates."""
        return position + self.tensor * (replica + self.replicas * stage)

    def place(self, rank: int) -> tuple[int, int, int]:
        """(tensor position, replica, stage) of a rank."""
        return rank % self.tensor, rank // self.tensor % self.replicas, rank // (self.tensor * self.replicas)

    @cached_property
    def tensor_groups(self) -> list[Group]:
        """One a stage and replica; numbered from 1, since "0" means all ranks."""
        count = self.ranks // self.tensor
        return [Group(str(1 + k), tuple(range(k * self.tensor, (k + 1) * self.tensor))) for k in range(count)]

    @cached_property
    def data_groups(self) -> list[Group]:
        """One a stage and tensor position; numbered after the tensor groups."""
        first = 1 + len(self.tensor_groups)
        heads = [(position, stage) for stage in range(self.stages) for position in range(self.tensor)]
        return [
            Group(str(first + k), tuple(self.rank(position, replica, stage) for replica in range(self.replicas)))
            for k, (position, stage) in enumerate(heads)
        ]

    def groups_of(self, rank: int) -> tuple[Group, Group]:
        """(tensor group, data group) of a rank."""
        position, _, stage = self.place(rank)
        return self.tensor_groups[rank // self.tensor], self.data_groups[stage * self.tensor + position]


def _parallel(
    name: str, grid: _Grid, activation_bytes: int, microbatches: int, compute_us: int, gradient_bytes: int | None = None
) -> Workload:
    traces = [TraceBuilder(rank) for rank in range(grid.ranks)]
    for trace in traces:
        last = _one_forward_one_backward(trace, grid, microbatches, activation_bytes, compute_us)
        _, replicas = grid.groups_of(trace.rank)
        trace.all_reduce("all-reduce gradients", gradient_bytes or activation_bytes, [last], replicas)
    return as_workload(name, traces, (*grid.tensor_groups, *grid.data_groups))


def _one_forward_one_backward(
    trace: TraceBuilder, grid: _Grid, microbatches: int, size_bytes: int, compute_us: int
) -> int:
    """A stage's computes and messages in 1F1B order; the row of the last compute (or its all-reduce)."""
    position, replica, stage = grid.place(trace.rank)
    tensor_group, _ = grid.groups_of(trace.rank)
    last: list[int] = []
    for way, microbatch in _order(min(grid.stages - stage - 1, microbatches), microbatches):
        step, share = (1, 1) if way == "F" else (-1, 2)
        label, tag, needs = f"{way}{microbatch}", 2 * microbatch + (way == "B"), list(last)
        if 0 <= stage - step < grid.stages:
            source = grid.rank(position, replica, stage - step)
            needs.append(trace.receive(f"receive {label}", source, size_bytes, tag))
        work = trace.compute(label, share * compute_us, needs)
        last = [trace.all_reduce(f"tensor all-reduce {label}", size_bytes, [work], tensor_group)]
        if 0 <= stage + step < grid.stages:
            trace.send(f"send {label}", grid.rank(position, replica, stage + step), size_bytes, tag, last)
    return last[0]


def _order(warmup: int, microbatches: int) -> list[tuple[str, int]]:
    """("F" or "B", microbatch): forwards of the warm-up, one forward one backward, the backwards that are left."""
    order = [("F", m) for m in range(warmup)]
    for m in range(microbatches - warmup):
        order += [("F", warmup + m), ("B", m)]
    return order + [("B", m) for m in range(microbatches - warmup, microbatches)]


def tensor_parallel(
    ranks: Ranks,
    size_bytes: Annotated[int, About("activations after the feed-forward block; after attention half of that")],
    layers: Layers = 4,
    compute_us: Annotated[int, About("attention of a layer, us; the feed-forward block takes twice that")] = 200,
) -> Workload:
    """Two all-reduces a layer (after attention and after the feed-forward block), each on the critical path."""
    traces = [TraceBuilder(rank) for rank in range(ranks)]
    for trace in traces:
        last: list[int] = []
        for layer in range(layers):
            for block, share in (("attention", 1), ("feed-forward", 2)):
                work = trace.compute(f"{block} {layer}", share * compute_us, last)
                activations = max(ranks, size_bytes * share // 2)
                last = [trace.all_reduce(f"all-reduce {block} {layer}", activations, [work])]
    return as_workload("tensor_parallel", traces)


def mixture_of_experts(
    ranks: Ranks,
    size_bytes: Annotated[int, About("tokens that a rank gives to an all-to-all; the gradients are half of that")],
    layers: Annotated[int, About("expert layers")] = 2,
    compute_us: Annotated[int, About("mean compute of the experts of a rank, us; the router takes a quarter")] = 200,
    imbalance: Annotated[float, About("experts take 1 -/+ this times their mean", 0)] = 0.2,
    seed: Annotated[int, About("of the imbalance", 0)] = 1,
) -> Workload:
    """Router, all-to-all, experts of unequal load, all-to-all back, a layer; a gradient all-reduce at the end."""
    load = random.Random(seed)
    shares = [[load.uniform(1 - imbalance, 1 + imbalance) for _ in range(layers)] for _ in range(ranks)]
    traces = [TraceBuilder(rank) for rank in range(ranks)]
    for trace in traces:
        last: list[int] = []
        for layer in range(layers):
            router = trace.compute(f"router {layer}", compute_us // 4, last)
            there = trace.collective(f"dispatch {layer}", CollectiveKind.ALL_TO_ALL, size_bytes, [router])
            expert = trace.compute(f"expert {layer}", round(compute_us * shares[trace.rank][layer]), [there])
            last = [trace.collective(f"combine {layer}", CollectiveKind.ALL_TO_ALL, size_bytes, [expert])]
        trace.all_reduce("all-reduce gradients", max(ranks, size_bytes // 2), last)
    return as_workload("mixture_of_experts", traces)


def incast(
    ranks: Ranks,
    size_bytes: Annotated[int, About("of each message")],
    target: Annotated[int, About("the rank that receives", 0)] = 0,
) -> Workload:
    """Every other rank sends one message to the target at once."""
    if target >= ranks:
        raise InputError(f"target {target} is none of {ranks} ranks.")
    traces = [TraceBuilder(rank) for rank in range(ranks)]
    for trace in traces:
        if trace.rank != target:
            traces[target].receive(f"from {trace.rank}", trace.rank, size_bytes, trace.rank)
            trace.send(f"to {target}", target, size_bytes, trace.rank)
    return as_workload("incast", traces)


def shift(
    ranks: Ranks,
    size_bytes: Annotated[int, About("of each message")],
    by: Annotated[int, About("how far; 0: half the ranks, so that all messages cross the core", 0)] = 0,
) -> Workload:
    """Every rank sends one message to the rank `by` further on."""
    by = by or ranks // 2
    if by % ranks == 0:
        raise InputError(f"a shift by {by} sends every one of {ranks} ranks a message of its own.")
    traces = [TraceBuilder(rank) for rank in range(ranks)]
    for rank, trace in enumerate(traces):
        trace.send("send", (rank + by) % ranks, size_bytes, 0)
        trace.receive("receive", (rank - by) % ranks, size_bytes, 0)
    return as_workload("shift", traces)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a pattern: `default` is None for those that must be given (ranks, size_bytes)."""

    name: str
    type: type[int | float]
    about: str
    least: float
    default: float | None

    def checked(self, value: Any) -> float:
        """The value as this parameter's type, from a number or a text.

        Raises:
            InputError: no such number, or below the least.
        """
        try:
            number = self.type(value)
        except ValueError as error:
            raise InputError(f"{self.name} must be a number, not {value!r}.") from error
        if number < self.least:
            raise InputError(f"{self.name} must be at least {self.least:g}, not {number:g}.", fix=f"{self.about}.")
        return number


@dataclass(frozen=True)
class Pattern:
    """A named generator: `make(ranks, size_bytes, **others)`, others being those of `parameters` with a default."""

    make: Callable[..., Workload]
    about: str

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Its parameters in order, as its signature declares them."""
        function = self.make.func if isinstance(self.make, partial) else self.make
        hints = get_type_hints(function, include_extras=True)
        found = []
        for name, parameter in inspect.signature(self.make).parameters.items():
            kind, *notes = get_args(hints[name]) or (hints[name],)
            if notes:
                default = None if parameter.default is parameter.empty else parameter.default
                found.append(Parameter(name, kind, notes[0].text, notes[0].least, default))
        return tuple(found)

    def table(self, name: str) -> list[dict[str, Any]]:
        """One row a parameter that has a default, for people."""
        return [
            {"pattern": name, "parameter": p.name, "default": p.default, "meaning": p.about}
            for p in self.parameters
            if p.default is not None
        ]

    def checked(self, given: Mapping[str, Any]) -> dict[str, float]:
        """Parameters by name, each of its type.

        Raises:
            InputError: an unknown name, or an impossible value.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in given:
            if name not in known:
                raise InputError(f"there is no parameter {name!r}.", fix=f"use one of {', '.join(known)}.")
        return {name: known[name].checked(value) for name, value in given.items()}


MAX_RANKS: Final = 65_536
"""A trace is made in memory, a file a rank: more would be a slip of the pen."""

_SINGLE: Final = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.BROADCAST,
    CollectiveKind.REDUCE,
    CollectiveKind.BARRIER,
)

PATTERNS: Final[dict[str, Pattern]] = {
    **{
        kind.name.lower(): Pattern(partial(collective, kind), f"one {kind.name.lower()} of all ranks")
        for kind in _SINGLE
    },
    "data_parallel": Pattern(data_parallel, "transformer step with overlapped gradient all-reduces and an all-gather"),
    "pipeline": Pattern(pipeline, "1F1B pipeline, a stage a rank"),
    "tensor_parallel": Pattern(tensor_parallel, "two all-reduces a layer on the critical path"),
    "mixture_of_experts": Pattern(mixture_of_experts, "all-to-all dispatch and combine around unequal experts"),
    "hybrid": Pattern(hybrid, "tensor, data and pipeline parallel with a process group each"),
    "incast": Pattern(incast, "everybody to one rank at once"),
    "shift": Pattern(shift, "everybody to the rank half a job away"),
}


def generate(name: str, ranks: int, size_bytes: int, /, **others: Any) -> Workload:
    """A pattern by name; `others` are further parameters of that pattern, as numbers or texts.

    Raises:
        InputError: unknown name or parameter, or an impossible value.
    """
    if ranks > MAX_RANKS:
        raise InputError(f"{ranks:,} ranks are more than a pattern is made for ({MAX_RANKS:,}).")
    pattern = PATTERNS.get(name)
    if pattern is None:
        raise InputError(f"no pattern {name!r}.", fix=f"use one of {', '.join(PATTERNS)}.")
    return pattern.make(**pattern.checked({"ranks": ranks, "size_bytes": size_bytes, **others}))
