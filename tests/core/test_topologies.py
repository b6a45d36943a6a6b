from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.core import testbed as core
from genie.core.testbed import Endpoint, LinkSpec
from genie.core.topologies import dumbbell, fat_tree, rail_optimised
from genie.errors import InputError
from genie.testbed.files import parse_testbed

LINK = LinkSpec(200_000_000_000, 1000, 1 << 20)


def bed(graph, placement=None, **more):
    nodes, cables = graph
    hosts = [node.name for node in nodes if node.role is core.Role.HOST]
    return core.Testbed("t", nodes, cables, tuple(placement or hosts), **more)


def written(**changes):
    links = {"host": {"rate": "200 Gb/s"}, "fabric": {"rate": "200 Gb/s"}}
    return {"name": "x", "kind": "emulated", "links": links} | changes


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3))
def test_fat_tree_counts_and_ways(pods, leaves, spines, per_spine, per_leaf):
    made = bed(fat_tree(pods, leaves, spines, spines * per_spine, per_leaf, (LINK, LINK, LINK), 1))
    hosts = pods * leaves * per_leaf
    assert len(made.hosts) == hosts
    kinds = Counter(cable.klass for cable in made.cables)
    assert kinds == {"host": hosts, "fabric": pods * leaves * spines, "core": pods * spines * per_spine}
    hops = made.next_hops(made.hosts[-1])
    if pods > 1:
        assert len(hops["pod0-leaf0"]) == spines
        assert len(hops["pod0-spine0"]) == per_spine
        assert len(made.route("h0", made.hosts[-1], lambda _, near: near[-1])) == 6


def test_a_k_port_fat_tree_is_the_classical_one():
    links = {"host": {"rate": "100 Gb/s"}, "fabric": {"rate": "100 Gb/s"}, "core": {"rate": "100 Gb/s"}}
    made = parse_testbed(written(topology={"kind": "fat-tree", "k": 4}, links=links), "x")
    assert len(made.hosts) == 16
    assert len(made.nodes) - 16 == 20
    assert all(len(made.neighbours()[node.name]) == 4 for node in made.nodes if node.role is core.Role.SWITCH)


def test_cores_are_shared_evenly():
    with pytest.raises(InputError, match="3 cores"):
        fat_tree(2, 2, 2, 3, 1, (LINK, LINK, LINK), 1)


def test_rails_of_one_unit_meet_in_one_leaf():
    made = bed(rail_optimised(4, 2, 2, 2, (LINK, LINK), 1))
    near = made.neighbours()
    assert near["h0"] == ["unit0-rail0", "unit0-rail1"]
    assert near["h3"] == ["unit1-rail0", "unit1-rail1"]
    assert made.route("h0", "h1", lambda _, hops: hops[0]) == ("h0>unit0-rail0", "unit0-rail0>h1")


def test_ranks_of_a_host_take_its_nics_in_turn_and_their_rails():
    made = bed(rail_optimised(2, 2, 2, 1, (LINK, LINK), 1), ["h0"] * 4 + ["h1"] * 4, intra_host=LINK)
    assert made.endpoints[:4] == (Endpoint("h0"), Endpoint("h0", 1), Endpoint("h0", 0, 1), Endpoint("h0", 1, 1))
    first = lambda _, hops: hops[0]  # noqa: E731 - a choice
    assert made.route(made.endpoints[1], made.endpoints[5], first) == ("h0>unit0-rail1", "unit0-rail1>h1")
    assert made.route(made.endpoints[1], made.endpoints[4], first) == (
        "h0>unit0-rail1",
        "unit0-rail1>spine0",
        "spine0>unit0-rail0",
        "unit0-rail0>h1",
    )


def test_what_ranks_of_one_host_send_each_other_is_on_no_wire():
    made = bed(dumbbell(1, 1, LINK, LINK, 1), ["h0", "h0", "h1"], intra_host=LINK)
    way = made.route(made.endpoints[1], made.endpoints[0], lambda _, hops: hops[0])
    assert way == ("h0/0.1>h0",)
    assert made.links()["h0/0.1>h0"].klass == core.INTRA_HOST
    assert made.links()["h0>h0"].klass == core.INTRA_HOST
    assert "h1>h1" not in made.links()
    assert {link.name for link in core.fabric_links(made)} == set(made.links())


def test_hosts_must_fill_units():
    with pytest.raises(InputError, match="units of 3"):
        rail_optimised(4, 2, 3, 2, (LINK, LINK), 1)


def test_oversubscription_gives_the_rate_above_a_leaf():
    shape = {"kind": "leaf-spine", "hosts": 16, "leaves": 2, "spines": 4, "oversubscription": 2}
    made = parse_testbed(written(topology=shape, links={"host": {"rate": "200 Gb/s"}, "fabric": {}}), "x")
    below, above = 8 * 200e9, 4 * made.links()["leaf0>spine0"].rate_bps
    assert below / above == 2


def test_oversubscription_of_a_fat_tree_goes_on_upwards():
    shape = {"kind": "fat-tree", "k": 4, "oversubscription": 4}
    made = parse_testbed(written(topology=shape, links={"host": {"rate": "200 Gb/s"}, "fabric": {}, "core": {}}), "x")
    assert made.links()["pod0-leaf0>pod0-spine0"].rate_bps == 50_000_000_000
    assert made.links()["pod0-spine0>core0"].rate_bps == 50_000_000_000


def test_one_cable_can_differ_and_is_a_class_of_its_own():
    shape = {"kind": "leaf-spine", "hosts": 4, "leaves": 2, "spines": 2}
    cables = {"spine1-leaf0": {"rate": "100 Gb/s", "delay": "5 us", "ecn": "64 KiB", "loss": "0.1 %", "buffer": "1 MB"}}
    cable = parse_testbed(written(topology=shape, cables=cables), "x").links()["leaf0>spine1"]
    told = (cable.rate_bps, cable.delay_ns, cable.ecn_bytes, cable.loss_ppm, cable.buffer_bytes, cable.klass)
    assert told == (100_000_000_000, 5000, 65_536, 1000, 1_000_000, "leaf0-spine1")


SWITCH = {"kind": "leaf-spine", "hosts": 4, "leaves": 2, "spines": 2}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"topology": SWITCH, "cables": {"leaf0-leaf1": {"rate": "1 Gb/s"}}}, "leaf0-leaf1"),
        ({"topology": SWITCH | {"oversubscription": 2}}, "fabric"),
        ({"topology": SWITCH | {"oversubscription": 0}}, "oversubscription"),
        ({"topology": SWITCH, "links": {"host": {"rate": "200 Gb/s"}, "fabric": {}}}, "fabric.rate"),
        ({"topology": SWITCH, "ranks_per_host": 2}, "intra_host"),
        ({"topology": SWITCH, "intra_host": {"rate": "100 Gb/s"}}, "intra_host"),
        ({"topology": SWITCH, "ranks_per_host": 2, "placement": ["h0"]}, "placement"),
        ({"topology": {"kind": "fat-tree", "k": 4, "pods": 2}}, "either k"),
        ({"topology": {"kind": "fat-tree", "k": 3}}, "fat-tree.k"),
        ({"topology": {"kind": "dumbbell", "left": 2, "right": 2}}, "bottleneck"),
        ({"topology": SWITCH, "cables": {"h0-leaf0": {"rate": "100 Tb/s"}}}, "h0-leaf0"),
        ({"topology": SWITCH, "cables": {"h0-leaf0": {"loss": "0.1"}}}, "share"),
        ({"topology": SWITCH, "ecmp": "random"}, "ecmp"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes, told):
    with pytest.raises(InputError) as error:
        parse_testbed(written(**changes), "lab.yml")
    assert "lab.yml" in str(error.value)
    assert told in str(error.value)
