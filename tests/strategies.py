"""What property tests draw from: small workloads, systems and networks."""

import hypothesis.strategies as st
import numpy as np

from genie.core.columns import csr_from_lists
from genie.core.netmodel import Dimension, DimensionModel, Estimate, Topology
from genie.core.system import Optimization, System
from genie.core.workload import ALL_DIMENSIONS, NONE, CollectiveKind, NodeKind, Nodes, RankTrace, Workload
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
