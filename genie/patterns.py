"""Workloads made to measure: single collectives, and the communication of the usual ways to train in parallel.

Every function gives a checked Workload; durations are whole microseconds, since that is what traces can hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from genie.core.columns import csr_from_lists
from genie.core.workload import ALL_DIMENSIONS, NONE, CollectiveKind, Group, NodeKind, Nodes, RankTrace, Workload
from genie.errors import InputError
from genie.units import NS_PER_US

MIB: Final = 1 << 20


class _Trace:
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


def _workload(name: str, traces: list[_Trace], groups: tuple[Group, ...] = ()) -> Workload:
    return Workload(name, tuple(trace.finish() for trace in traces), groups)


def collective(kind: CollectiveKind, ranks: int, size_bytes: int) -> Workload:
    """One collective over all ranks; size_bytes is its comm_size."""
    traces = [_Trace(rank) for rank in range(ranks)]
    for trace in traces:
        trace.collective(kind.name.lower(), kind, size_bytes)
    return _workload(kind.name.lower(), traces)


def data_parallel(ranks: int, size_bytes: int, layers: int = 4, compute_us: int = 200) -> Workload:
    """A transformer step: forward, backward with an all-reduce a layer behind it, sharded optimizer, all-gather.

    `size_bytes` are the gradients of the largest layer; layer k has (k + 1) / layers of that, so that messages of
    several sizes are seen. The all-reduce of a layer overlaps the backward compute of the layers before it.
    """
    traces = [_Trace(rank) for rank in range(ranks)]
    for trace in traces:
        last = -1
        for layer in range(layers):
            last = trace.compute(f"forward {layer}", compute_us, [last] if last >= 0 else [])
        reduced = []
        for layer in reversed(range(layers)):
            last = trace.compute(f"backward {layer}", 2 * compute_us, [last])
            gradients = max(ranks, size_bytes * (layer + 1) // layers)
            reduced.append(
                trace.collective(f"all-reduce gradients {layer}", CollectiveKind.ALL_REDUCE, gradients, [last])
            )
        step = trace.compute("optimizer", compute_us, reduced)
        trace.collective("all-gather weights", CollectiveKind.ALL_GATHER, max(1, size_bytes // ranks), [step])
    return _workload("data_parallel", traces)


def pipeline(ranks: int, size_bytes: int, microbatches: int = 4, compute_us: int = 200) -> Workload:
    """One-forward-one-backward pipeline, a stage a rank; `size_bytes` pass between stages in either direction."""
    traces = [_Trace(rank) for rank in range(ranks)]
    for stage, trace in enumerate(traces):
        _one_forward_one_backward(trace, stage, ranks, microbatches, size_bytes, compute_us)
    return _workload("pipeline", traces)


def _one_forward_one_backward(
    trace: _Trace, stage: int, stages: int, microbatches: int, size_bytes: int, compute_us: int
) -> None:
    warmup = min(stages - stage - 1, microbatches)
    order = [("F", m) for m in range(warmup)]
    for m in range(microbatches - warmup):
        order += [("F", warmup + m), ("B", m)]
    order += [("B", m) for m in range(microbatches - warmup, microbatches)]
    last = -1
    for way, microbatch in order:
        forward = way == "F"
        source, sink = (stage - 1, stage + 1) if forward else (stage + 1, stage - 1)
        needs = [last] if last >= 0 else []
        tag = 2 * microbatch + (0 if forward else 1)
        if 0 <= source < stages:
            needs.append(trace.receive(f"receive {way}{microbatch}", source, size_bytes, tag))
        last = trace.compute(f"{way}{microbatch}", compute_us if forward else 2 * compute_us, needs)
        if 0 <= sink < stages:
            trace.send(f"send {way}{microbatch}", sink, size_bytes, tag, [last])


def tensor_parallel(ranks: int, size_bytes: int, layers: int = 4, compute_us: int = 200) -> Workload:
    """Two all-reduces a layer (after attention and after the feed-forward block), each on the critical path."""
    traces = [_Trace(rank) for rank in range(ranks)]
    for trace in traces:
        last: list[int] = []
        for layer in range(layers):
            for block, share in (("attention", 1), ("feed-forward", 2)):
                work = trace.compute(f"{block} {layer}", share * compute_us, last)
                name = f"all-reduce {block} {layer}"
                last = [trace.collective(name, CollectiveKind.ALL_REDUCE, max(ranks, size_bytes * share // 2), [work])]
    return _workload("tensor_parallel", traces)


def mixture_of_experts(ranks: int, size_bytes: int, layers: int = 2, compute_us: int = 200, seed: int = 1) -> Workload:
    """Router, all-to-all, experts of unequal load, all-to-all back, a layer; a gradient all-reduce at the end."""
    traces = [_Trace(rank) for rank in range(ranks)]
    load = random.Random(seed)
    shares = [[load.uniform(0.8, 1.2) for _ in range(layers)] for _ in range(ranks)]
    for trace in traces:
        last: list[int] = []
        for layer in range(layers):
            router = trace.compute(f"router {layer}", compute_us // 4, last)
            there = trace.collective(f"dispatch {layer}", CollectiveKind.ALL_TO_ALL, size_bytes, [router])
            expert = trace.compute(f"expert {layer}", round(compute_us * shares[trace.rank][layer]), [there])
            last = [trace.collective(f"combine {layer}", CollectiveKind.ALL_TO_ALL, size_bytes, [expert])]
        trace.collective("all-reduce gradients", CollectiveKind.ALL_REDUCE, max(ranks, size_bytes // 2), last)
    return _workload("mixture_of_experts", traces)


def hybrid(ranks: int, size_bytes: int, layers: int = 2, compute_us: int = 200) -> Workload:
    """Tensor parallel in pairs of neighbours, data parallel across the pairs: collectives of several groups."""
    if ranks % 2:
        raise InputError(f"pairs of ranks need an even number of them, not {ranks}.")
    pairs = [Group(str(1 + k), (2 * k, 2 * k + 1)) for k in range(ranks // 2)]
    across = [Group(str(1 + len(pairs) + k), tuple(range(k, ranks, 2))) for k in range(2)]
    traces = [_Trace(rank) for rank in range(ranks)]
    for trace in traces:
        pair, replicas = pairs[trace.rank // 2].name, across[trace.rank % 2].name
        last: list[int] = []
        for layer in range(layers):
            work = trace.compute(f"layer {layer}", compute_us, last)
            name = f"tensor all-reduce {layer}"
            last = [trace.collective(name, CollectiveKind.ALL_REDUCE, max(ranks, size_bytes // 2), [work], pair)]
            gradients = f"data all-reduce {layer}"
            trace.collective(gradients, CollectiveKind.ALL_REDUCE, max(ranks, size_bytes), [work], replicas)
    return _workload("hybrid", traces, (*pairs, *across) if ranks > 2 else (*pairs,))  # noqa: PLR2004


def incast(ranks: int, size_bytes: int) -> Workload:
    """Every rank sends one message to rank 0 at once."""
    traces = [_Trace(rank) for rank in range(ranks)]
    for rank in range(1, ranks):
        traces[0].receive(f"from {rank}", rank, size_bytes, rank)
        traces[rank].send("to 0", 0, size_bytes, rank)
    return _workload("incast", traces)


def shift(ranks: int, size_bytes: int, by: int | None = None) -> Workload:
    """Every rank sends one message to the rank `by` further on (half of them when absent: all cross the core)."""
    by = ranks // 2 if by is None else by
    traces = [_Trace(rank) for rank in range(ranks)]
    for rank, trace in enumerate(traces):
        trace.send("send", (rank + by) % ranks, size_bytes, 0)
        trace.receive("receive", (rank - by) % ranks, size_bytes, 0)
    return _workload("shift", traces)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A named generator: `make(ranks, size_bytes)`."""

    make: Callable[[int, int], Workload]
    about: str


def _single(kind: CollectiveKind) -> Pattern:
    return Pattern(
        lambda ranks, size_bytes: collective(kind, ranks, size_bytes), f"one {kind.name.lower()} of all ranks"
    )


PATTERNS: Final[dict[str, Pattern]] = {
    **{
        kind.name.lower(): _single(kind)
        for kind in (
            CollectiveKind.ALL_REDUCE,
            CollectiveKind.ALL_GATHER,
            CollectiveKind.REDUCE_SCATTER,
            CollectiveKind.ALL_TO_ALL,
            CollectiveKind.BROADCAST,
            CollectiveKind.REDUCE,
            CollectiveKind.BARRIER,
        )
    },
    "data_parallel": Pattern(data_parallel, "transformer step with overlapped gradient all-reduces and an all-gather"),
    "pipeline": Pattern(pipeline, "1F1B pipeline, a stage a rank"),
    "tensor_parallel": Pattern(tensor_parallel, "two all-reduces a layer on the critical path"),
    "mixture_of_experts": Pattern(mixture_of_experts, "all-to-all dispatch and combine around unequal experts"),
    "hybrid": Pattern(hybrid, "tensor parallel pairs within data parallel groups"),
    "incast": Pattern(incast, "everybody to rank 0 at once"),
    "shift": Pattern(shift, "everybody to the rank half a job away"),
}


def generate(name: str, ranks: int, size_bytes: int) -> Workload:
    """A pattern by name.

    Raises:
        InputError: unknown name, fewer than two ranks, or no bytes.
    """
    pattern = PATTERNS.get(name)
    if pattern is None:
        raise InputError(f"no pattern {name!r}.", fix=f"use one of {', '.join(PATTERNS)}.")
    if ranks < 2 or size_bytes < 1:  # noqa: PLR2004 - communication takes two
        raise InputError(f"{ranks} ranks and {size_bytes} bytes make no communication.")
    return pattern.make(ranks, size_bytes)
