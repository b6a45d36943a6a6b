"""Messages in place of collectives: the same bytes between the same ranks, and the same finish where that can be."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, reject, settings
from strategies import patterns, systems

from genie.core.netmodel import Dimension, DimensionModel, Estimate, Topology
from genie.core.schedule import MessageCount
from genie.core.system import Optimization, System
from genie.core.workload import CollectiveKind, NodeKind
from genie.errors import InputError
from genie.lower import lower, point_to_point
from genie.lower.point_to_point import point_to_point as as_messages
from genie.patterns import collective, generate
from genie.simulate.astra_messages import as_messages as with_order
from genie.simulate.builtin import simulate


def network(*sizes, topology=Topology.RING, aware=False):
    dimensions = tuple(Dimension(topology, size, Estimate(4e11), Estimate(500.0)) for size in sizes)
    return DimensionModel(dimensions, aware)


def system(*algorithms, **more):
    return System(
        splits=1,
        algorithms=dict.fromkeys(CollectiveKind, algorithms),
        local_mem_bytes_per_s=1.6e12,
        **more,
    )


def sent(workload):
    totals = Counter(), Counter()
    for trace in workload.traces:
        nodes = trace.nodes
        for row in (nodes.kind == NodeKind.SEND).nonzero()[0]:
            pair = trace.rank, int(nodes.peer[row])
            totals[0][pair] += 1
            totals[1][pair] += int(nodes.size_bytes[row])
    return {pair: MessageCount(totals[0][pair], totals[1][pair]) for pair in totals[0]}


def rows(schedule):
    """Collectives and sends by row."""
    return [[row for row, kind in enumerate(part.operators.kind.tolist()) if kind in {1, 2}] for part in schedule.ranks]


@settings(max_examples=40, deadline=None)
@given(patterns(), systems())
def test_every_message_is_there_and_nothing_else(workload, rules):
    try:
        schedule = lower(workload, replace(rules, extended=True))
    except InputError:  # a tree in a process group, say
        reject()
    written = as_messages(schedule, rows(schedule))
    assert sent(written.workload) == schedule.expected()
    kinds = {kind for trace in written.workload.traces for kind in trace.nodes.kind.tolist()}
    assert NodeKind.COLLECTIVE not in kinds


@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.parametrize("algorithm", ["ring", "direct1", "halvingDoubling"])
@pytest.mark.parametrize("pattern", ["all_reduce", "all_gather", "reduce_scatter", "tensor_parallel", "pipeline"])
def test_one_message_at_a_time_finishes_at_the_same_tick(pattern, algorithm, aware):
    schedule = lower(generate(pattern, 4, 1 << 20), system(algorithm))
    topology = Topology.RING if algorithm == "ring" else Topology.SWITCH
    found = with_order(schedule, network(4, topology=topology, aware=aware))
    assert found.with_messages_ns == found.with_collectives_ns
    assert found.delays


def test_several_dimensions_and_chunks_one_after_another():
    rules = replace(system("ring", "ring", optimization=Optimization.LOCAL_BW_AWARE), splits=1)
    schedule = lower(collective(CollectiveKind.ALL_REDUCE, 8, 1 << 20), rules, (4, 2))
    found = with_order(schedule, network(4, 2))
    assert found.error == 0
    chunks = lower(collective(CollectiveKind.ALL_REDUCE, 4, 1 << 20), replace(system("ring"), splits=4))
    assert with_order(chunks, network(4)).error == 0


def test_delays_are_left_out_where_computation_would_hold_them_up():
    schedule = lower(generate("data_parallel", 4, 1 << 20), system("ring"))
    found = with_order(schedule, network(4))
    assert not found.delays
    assert 0 < abs(found.error) < 0.01
    assert "without endpoint delays" in found.note


def test_barriers_broadcasts_and_reductions_become_messages_too():
    rules = system("ring", extended=True)
    for kind in (CollectiveKind.BARRIER, CollectiveKind.BROADCAST, CollectiveKind.REDUCE):
        schedule = lower(collective(kind, 8, 4096), rules)
        found = with_order(schedule, network(8, topology=Topology.SWITCH))
        timeline = simulate(found.schedule, network(8, topology=Topology.SWITCH))
        assert timeline.iteration_ns == found.with_messages_ns


def test_what_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(point_to_point, "MAX_NODES", 10)
    schedule = lower(collective(CollectiveKind.ALL_REDUCE, 8, 4096), system("ring"))
    with pytest.raises(InputError, match="more than 10 nodes"):
        as_messages(schedule, rows(schedule))
