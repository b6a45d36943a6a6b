"""ASTRA-sim's two analytical networks, against formulas worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.core.netmodel import Dimension, DimensionModel, Estimate, FabricModel, Topology
from genie.errors import InputError
from genie.network.fabric import FabricNetwork
from genie.network.models import AwareNetwork, UnawareNetwork, build, charged_dimension, hops
from genie.network.queue import EventQueue
from genie.units import astra_gbps_to_bps

GIB_PER_NS = 2**30 / 1e9


def dimension(topology, size, gbps=50.0, latency_ns=500.0):
    return Dimension(topology, size, Estimate(astra_gbps_to_bps(gbps)), Estimate(latency_ns))


def one(topology, size, *, aware=False, gbps=50.0, latency_ns=500.0):
    return DimensionModel((dimension(topology, size, gbps, latency_ns),), aware)


def deliveries(model, messages):
    """Delivery ticks of (post tick, src, dst, bytes), in input order, and the order in which they came."""
    queue = EventQueue()
    network, ticks, order = build(model, queue), [0] * len(messages), []

    def delivered(number):
        ticks[number] = queue.now_ns
        order.append(number)

    for number, (when, src, dst, size) in enumerate(messages):
        queue.at(when, network.send, src, dst, size, delivered, number)
    queue.run()
    assert len(order) == len(messages)
    return ticks, order


def test_build_picks_by_model():
    queue = EventQueue()
    assert isinstance(build(one(Topology.RING, 4), queue), UnawareNetwork)
    assert isinstance(build(one(Topology.RING, 4, aware=True), queue), AwareNetwork)
    assert isinstance(build(FabricModel(2, (), {}), queue), FabricNetwork)


@pytest.mark.parametrize(
    ("topology", "dst", "expected"),
    [
        (Topology.FULLY_CONNECTED, 5, 1),
        (Topology.SWITCH, 5, 2),
        (Topology.RING, 1, 1),
        (Topology.RING, 5, 3),
        (Topology.RING, 4, 4),
        (Topology.RING, 7, 1),
    ],
)
def test_hops(topology, dst, expected):
    assert hops(topology, 0, dst, 8) == expected


@given(
    st.sampled_from(Topology),
    st.integers(3, 16),
    st.integers(1, 1 << 34),
    st.floats(0.1, 1000),
    st.floats(0, 1e5),
    st.data(),
)
def test_unaware_is_hops_latencies_and_one_serialisation_rounded_down(topology, size, volume, gbps, latency_ns, data):
    src = data.draw(st.integers(0, size - 1))
    dst = data.draw(st.integers(0, size - 1).filter(lambda rank: rank != src))
    ticks, _ = deliveries(one(topology, size, gbps=gbps, latency_ns=latency_ns), [(7, src, dst, volume)])
    bytes_per_ns = gbps * 2**30 / 1e9
    assert ticks[0] == 7 + math.floor(hops(topology, src, dst, size) * latency_ns + volume / bytes_per_ns)


def test_unaware_knows_no_contention():
    model = one(Topology.SWITCH, 8)
    alone, _ = deliveries(model, [(0, 1, 0, 1 << 20)])
    incast, _ = deliveries(model, [(0, src, 0, 1 << 20) for src in range(1, 8)])
    assert incast == alone * 7


def test_unaware_charges_only_the_lowest_dimension_in_which_ranks_differ():
    model = DimensionModel(
        (
            dimension(Topology.RING, 4, 100.0, 10.0),
            dimension(Topology.SWITCH, 2, 10.0, 1000.0),
            dimension(Topology.FULLY_CONNECTED, 2, 1.0, 5000.0),
        )
    )
    assert charged_dimension(model, 0, 2) == (0, 2)
    assert charged_dimension(model, 0, 4) == (1, 2)
    assert charged_dimension(model, 0, 8) == (2, 1)
    assert charged_dimension(model, 3, 12) == (0, 1)
    ticks, _ = deliveries(model, [(0, 0, 2, 4096), (0, 0, 4, 4096), (0, 0, 8, 4096), (0, 3, 12, 4096)])
    per_byte = 4096 / GIB_PER_NS
    assert ticks == [
        math.floor(20 + per_byte / 100),
        math.floor(2000 + per_byte / 10),
        math.floor(5000 + per_byte),
        math.floor(10 + per_byte / 100),
    ]


def test_aware_stores_and_forwards_whole_messages_each_hop_rounded_down():
    one_hop = math.floor(500 + (1 << 20) / (50 * GIB_PER_NS))
    ticks, _ = deliveries(one(Topology.SWITCH, 4, aware=True), [(3, 0, 2, 1 << 20)])
    assert ticks == [3 + 2 * one_hop]
    ticks, _ = deliveries(one(Topology.RING, 8, aware=True), [(0, 0, 5, 1 << 20)])
    assert ticks == [3 * one_hop]


def test_aware_link_takes_messages_in_turn():
    serialisation = math.floor((1 << 20) / (50 * GIB_PER_NS))
    arrival = math.floor(500 + (1 << 20) / (50 * GIB_PER_NS))
    ticks, order = deliveries(one(Topology.FULLY_CONNECTED, 4, aware=True), [(0, 0, 1, 1 << 20)] * 3)
    assert ticks == [arrival, serialisation + arrival, 2 * serialisation + arrival]
    assert order == [0, 1, 2]


def test_aware_links_have_two_directions_and_pairs_of_a_mesh_have_their_own():
    mesh = one(Topology.FULLY_CONNECTED, 3, aware=True)
    alone, _ = deliveries(mesh, [(0, 0, 1, 1 << 20)])
    both, _ = deliveries(mesh, [(0, 0, 1, 1 << 20), (0, 1, 0, 1 << 20), (0, 0, 2, 1 << 20)])
    assert both == alone * 3


def test_aware_incast_queues_on_the_switch_port():
    """7 senders of 1 MB to one receiver: the figure that ASTRA-sim itself gives."""
    ticks, _ = deliveries(one(Topology.SWITCH, 8, aware=True), [(1, src, 0, 1_000_000) for src in range(1, 8)])
    serialisation, hop = (math.floor(lat + 1e6 / (50 * GIB_PER_NS)) for lat in (0, 500))
    assert max(ticks) == 1 + 2 * hop + 6 * serialisation


def test_aware_ring_goes_anticlockwise_only_where_that_is_strictly_shorter():
    """On a ring of 4, 0 -> 2 shares its first link with 0 -> 1 (clockwise), not with 0 -> 3."""
    model = one(Topology.RING, 4, aware=True)
    alone, _ = deliveries(model, [(0, 0, 1, 1 << 20)])
    clockwise, _ = deliveries(model, [(0, 0, 2, 1 << 20), (0, 0, 1, 1 << 20)])
    anticlockwise, _ = deliveries(model, [(0, 0, 2, 1 << 20), (0, 0, 3, 1 << 20)])
    assert clockwise[1] > alone[0]
    assert anticlockwise[1] == alone[0]


def test_aware_arrival_comes_before_the_link_is_free():
    """Without latency both fall on one tick: a message takes its next link before the waiting one starts."""
    messages = [(0, 0, 2, 1 << 20), (0, 0, 1, 1 << 20)]
    ticks, order = deliveries(one(Topology.RING, 4, aware=True, latency_ns=0.0), messages)
    assert ticks == [2 * math.floor((1 << 20) / (50 * GIB_PER_NS))] * 2
    assert order == [0, 1]


@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.parametrize(
    ("src", "dst", "size", "match"),
    [
        (1, 1, 8, "cannot send to rank 1"),
        (0, 4, 8, "network of 4 ranks"),
        (-1, 0, 8, "network of 4 ranks"),
        (0, 1, 0, "0 bytes"),
        (0, 1, -5, "-5 bytes"),
    ],
)
def test_impossible_messages_are_refused(aware, src, dst, size, match):
    network = build(one(Topology.SWITCH, 4, aware=aware), EventQueue())
    with pytest.raises(InputError, match=match):
        network.send(src, dst, size, lambda: None)


def test_a_refused_size_is_refused_also_on_a_known_path():
    network = build(one(Topology.SWITCH, 4), EventQueue())
    network.send(0, 1, 8, lambda: None)
    with pytest.raises(InputError, match="0 bytes"):
        network.send(0, 1, 0, lambda: None)
