"""What property tests draw from: small workloads, systems and networks."""

import hypothesis.strategies as st
import numpy as np

from genie.core.columns import csr_from_lists
from genie.core.netmodel import Dimension, DimensionModel, Estimate, Topology
from genie.core.system import Optimization, Profile, System
from genie.core.workload import ALL_DIMENSIONS, NONE, CollectiveKind, Group, NodeKind, Nodes, RankTrace, Workload
from genie.patterns import PATTERNS, TraceBuilder, as_workload

KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)


@st.composite
def dags(draw, ranks: int = 4, *, equal: bool = False) -> Workload:
    """A random graph of compute and collectives, the same on every rank but (unless `equal`) for compute times."""
    count = draw(st.integers(1, 6))
    shape = []
    for row in range(count):
        after = draw(st.lists(st.integers(0, row - 1), max_size=2, unique=True)) if row else []
        kind = draw(st.sampled_from([None, *KINDS]))
        shape.append((kind, after, draw(st.integers(64, 1 << 20)), draw(st.integers(1, 50))))
    traces = [TraceBuilder(rank) for rank in range(ranks)]
    for trace in traces:
        for row, (kind, after, size, duration) in enumerate(shape):
            if kind is None:
                trace.compute(f"c{row}", duration if equal else draw(st.integers(1, 50)), after)
            else:
                trace.collective(f"k{row}", kind, size, after)
    return as_workload("random", traces)


def patterns(ranks: int = 4) -> st.SearchStrategy[Workload]:
    return st.builds(
        lambda name, size: PATTERNS[name].make(ranks, size), st.sampled_from(sorted(PATTERNS)), st.integers(64, 1 << 20)
    )


def systems() -> st.SearchStrategy[System]:
    names = st.sampled_from(["ring", "direct", "direct2", "halvingDoubling", "doubleBinaryTree", "oneRing"])
    safe = st.sampled_from(["ring", "direct", "direct2"])
    return st.builds(
        lambda splits, active, queues, delay, optimization, reduce, other: System(
            splits=splits,
            active_chunks=active,
            queues_per_dim=queues,
            endpoint_delay_ns=delay,
            optimization=optimization,
            algorithms={kind: (reduce if kind is CollectiveKind.ALL_REDUCE else other,) for kind in KINDS},
            local_mem_bytes_per_s=1.6e12,
            extended=True,
        ),
        st.integers(1, 3),
        st.integers(1, 3),
        st.integers(1, 2),
        st.integers(1, 50),
        st.sampled_from(list(Optimization)),
        names,
        safe,
    )


def networks(ranks: int = 4) -> st.SearchStrategy[DimensionModel]:
    return st.builds(
        lambda topology, gigabits, latency, aware: DimensionModel(
            (Dimension(topology, ranks, Estimate(gigabits * 1e9), Estimate(latency)),), aware
        ),
        st.sampled_from(list(Topology)),
        st.floats(1, 800),
        st.floats(1, 2000),
        st.booleans(),
    )


def fixed_network(ranks: int) -> DimensionModel:
    """A plain network for tests in which it does not matter."""
    return DimensionModel((Dimension(Topology.RING, ranks, Estimate(400e9), Estimate(500.0)),))


ALGORITHMS = ("ring", "direct", "direct2", "halvingDoubling", "doubleBinaryTree")


@st.composite
def jobs(draw) -> tuple[Workload, System, DimensionModel]:
    """A job whose ranks may do the same: digits of the rank decide on compute, peers and groups.

    Delays, sizes and bandwidths are few and small, so that events tie.
    """
    sizes = draw(st.sampled_from([(4,), (5,), (8,), (2, 4), (4, 2), (3, 2), (4, 4), (2, 2, 2)]))
    ranks = int(np.prod(sizes))
    flat = len(sizes) == 1 or draw(st.booleans())
    network = draw(_tying_network((ranks,) if flat else sizes))
    workload = _job(ranks, sizes, draw(st.lists(_job_step(len(sizes)), min_size=1, max_size=5)))
    return workload, draw(_tying_system(len(network.dimensions), ranks)), network


@st.composite
def _tying_network(draw, sizes: tuple[int, ...]) -> DimensionModel:
    aware = len(sizes) == 1 and draw(st.booleans())
    dimensions = []
    for size in sizes:
        topology = draw(st.sampled_from([t for t in Topology if not (size == 2 and t is Topology.RING)]))
        latency_ns = draw(st.sampled_from([0.0, 1.0, 10.0, 10.5, 100.0]))
        dimensions.append(Dimension(topology, size, Estimate(draw(st.sampled_from([8e9, 80e9]))), Estimate(latency_ns)))
    return DimensionModel(tuple(dimensions), aware)


@st.composite
def _tying_system(draw, dimensions: int, ranks: int) -> System:
    known = [a for a in ALGORITHMS if ranks & (ranks - 1) == 0 or not a.endswith(("Doubling", "Tree"))]
    names = st.sampled_from(known)
    safe = st.sampled_from(["ring", "direct", "direct2"])
    reduce, other = draw(st.lists(names, min_size=dimensions, max_size=dimensions)), draw(safe)
    algorithms = {kind: tuple(reduce) if kind is CollectiveKind.ALL_REDUCE else (other,) * dimensions for kind in KINDS}
    return System(
        splits=draw(st.integers(1, 3)),
        active_chunks=draw(st.integers(1, 3)),
        queues_per_dim=draw(st.integers(1, 2)),
        endpoint_delay_ns=draw(st.sampled_from([1, 10, 100])),
        optimization=draw(st.sampled_from(list(Optimization))),
        algorithms=algorithms,
        local_mem_bytes_per_s=draw(st.sampled_from([0.0, 1e9, 1e12])),
        rendezvous=draw(st.booleans()) and draw(st.booleans()),
        profile=draw(st.sampled_from([Profile.ASTRA, Profile.ASTRA, Profile.OVERLAP])),
    )


def _job_step(axes: int) -> st.SearchStrategy[tuple[str, int, int, int, CollectiveKind]]:
    """(what, axis, size or duration, variation, kind)."""
    return st.tuples(
        st.sampled_from(["compute", "uneven", "all", "group", "shift", "pipeline"]),
        st.integers(0, axes - 1),
        st.sampled_from([1, 2]),
        st.integers(0, 2),
        st.sampled_from(KINDS),
    )


def _job(ranks: int, sizes: tuple[int, ...], steps: list[tuple[str, int, int, int, CollectiveKind]]) -> Workload:
    """Every step waits for the one before it, but for the steps of variation 2."""
    strides = [int(np.prod(sizes[:k])) for k in range(len(sizes))]
    groups: dict[int, dict[int, Group]] = {}
    traces = [TraceBuilder(rank) for rank in range(ranks)]
    last: list[list[int]] = [[] for _ in traces]
    for number, (what, axis, amount, variation, kind) in enumerate(steps):
        stride, size = strides[axis], sizes[axis]
        for trace in traces:
            rank, digit = trace.rank, trace.rank // stride % size
            after = [] if variation == 2 else last[rank]
            if what == "compute":
                made = [trace.compute("c", amount, after)]
            elif what == "uneven":
                made = [trace.compute("u", amount + digit, after)]
            elif what == "all":
                made = [trace.collective("a", kind, 100 * amount * ranks, after)]
            elif what == "group":
                group = _group_along(groups, axis, rank - digit * stride, stride, size)
                made = [trace.collective("g", kind, 64 * amount * size, after, group.name)]
            else:
                by = stride * ((digit + 1) % size - digit), stride * ((digit - 1) % size - digit)
                made = _messages(trace, by, number, amount, after, digit, size if what == "pipeline" else 0)
            last[rank] = made or last[rank]
    return as_workload("job", traces, [group for line in groups.values() for group in line.values()])


def _group_along(groups: dict[int, dict[int, Group]], axis: int, first: int, stride: int, size: int) -> Group:
    line = groups.setdefault(axis, {})
    if first not in line:
        number = 1 + sum(len(other) for other in groups.values())
        line[first] = Group(str(number), tuple(range(first, first + size * stride, stride)))
    return line[first]


def _messages(
    trace: TraceBuilder, by: tuple[int, int], tag: int, amount: int, after: list[int], digit: int, length: int
) -> list[int]:
    """To the next rank and from the one before; along a pipeline of some length its ends do less."""
    made = []
    if not length or digit > 0:
        made.append(trace.receive("r", trace.rank + by[1], 80 * amount, tag, after))
    if not length or digit < length - 1:
        made.append(trace.send("s", trace.rank + by[0], 80 * amount, tag, after))
    return made


SIZES = st.integers(NONE, (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)


@st.composite
def rank_traces(draw, rank: int = 3) -> RankTrace:
    """Any trace that a file can hold: every kind of node and attribute, values up to the limits, any acyclic graph."""
    ids = sorted(draw(st.sets(st.integers(0, (1 << 64) - 1), min_size=1, max_size=6)))
    rows = [_row(draw, node_id) for node_id in ids]
    deps = [draw(st.sets(st.integers(0, row - 1), max_size=3)) if row else set() for row in range(len(ids))]
    nodes = Nodes.from_rows([tuple(row[name] for name in Nodes.SCHEMA) for row in rows])
    return RankTrace(rank, nodes, *csr_from_lists([sorted(row) for row in deps]))


def _row(draw, node_id):
    kind = draw(st.sampled_from(NodeKind))
    message = kind in {NodeKind.SEND, NodeKind.RECV}
    types = st.sampled_from([NONE, *CollectiveKind]) if kind is NodeKind.COLLECTIVE else st.just(NONE)
    dimensions = st.one_of(st.just(ALL_DIMENSIONS), st.integers(0, 15))
    return {
        "node_id": np.uint64(node_id),
        "kind": kind,
        "name": draw(TEXT),
        "duration_ns": draw(st.integers(0, ((1 << 63) - 1) // 1000)) * 1000,
        "size_bytes": draw(SIZES),
        "tensor_bytes": draw(SIZES),
        "num_ops": draw(SIZES),
        "comm_type": draw(types),
        "peer": draw(SIZES) if message else NONE,
        "tag": draw(SIZES) if message else NONE,
        "group": draw(TEXT),
        "is_cpu": draw(st.booleans()),
        "priority": draw(st.integers(0, (1 << 63) - 1)),
        "involved_dims": draw(dimensions),
        "root": draw(st.integers(0, (1 << 63) - 1)),
    }
