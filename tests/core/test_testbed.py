import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from genie.core import testbed as core
from genie.core.testbed import Cable, LinkSpec, Node, Role, fabric_links, leaf_spine, single_switch
from genie.errors import InputError, RunError
from genie.testbed.files import load_testbed, parse_testbed, schema

ROOT = Path(__file__).resolve().parents[2]
LINK = LinkSpec(200_000_000_000, 1000, 1 << 20)
SPEC = {"rate_bps": LINK.rate_bps, "delay_ns": 0, "buffer_bytes": 1 << 20, "klass": "host"}


def made(**changes):
    nodes, cables = leaf_spine(4, 2, 2, LINK, LINK, 7)
    fields = {"name": "t", "nodes": nodes, "cables": cables, "placement": ("h0", "h1", "h2", "h3")} | changes
    return core.Testbed(**fields)


def made_cables(**changes):
    link = LinkSpec(**({"rate_bps": LINK.rate_bps, "delay_ns": 1000, "buffer_bytes": 1 << 20} | changes))
    return leaf_spine(4, 2, 2, link, link, 7)[1]


def test_leaf_spine_routes_are_shortest_and_equal():
    hops = made().next_hops("h3")
    assert hops["h0"] == ["leaf0"]
    assert hops["leaf0"] == ["spine0", "spine1"]
    assert hops["spine0"] == ["leaf1"]
    assert hops["leaf1"] == ["h3"]


def test_wire_rate_makes_room_for_frames():
    testbed = made(mtu=9000)
    assert testbed.wire_bps(testbed.cables[0]) == round(200_000_000 * 9014 / 8948)


@pytest.mark.parametrize(
    "changes",
    [
        {"dilation": 0},
        {"dilation": 1},
        {"dilation": 1_000_000},
        {"mtu": 100},
        {"placement": ("leaf0",)},
        {"placement": ("nobody",)},
        {"placement": ("h0", "h0")},
        {"cables": made_cables(buffer_bytes=8000)},
        {"cables": made_cables(buffer_bytes=1 << 31)},
        {"cables": made_cables(delay_ns=-1)},
        {"cables": made_cables(delay_ns=2_000_000_000)},
        {"cables": made_cables(rate_bps=20_000_000_000_000)},
        {"cables": made_cables(ecn_bytes=100)},
        {"cables": made_cables(ecn_bytes=2 << 20)},
        {"cables": made_cables(loss_ppm=1_000_000)},
        {"intra_host": LINK},
        {"intra_host": LinkSpec(20_000_000_000_000, 0, 1 << 20), "placement": ("h0", "h0")},
    ],
)
def test_out_of_range_is_refused(changes):
    with pytest.raises(InputError):
        made(**changes)


def test_a_host_without_a_link_is_refused():
    nodes, cables = single_switch(2, LINK, 1)
    with pytest.raises(InputError, match="has no link"):
        core.Testbed("t", nodes, cables[:1], ("h0",))


def test_schema_is_current():
    assert json.loads((ROOT / "testbed/testbed.schema.json").read_text()) == schema()


@pytest.mark.parametrize("path", sorted((ROOT / "testbed").glob("*.yml")), ids=lambda p: p.name)
def test_shipped_testbeds_load(path):
    assert load_testbed(path).hosts


def test_every_wrong_field_is_named():
    content = {
        "name": "x",
        "kind": "emulated",
        "topology": {"kind": "single-switch", "hosts": 2},
        "links": {"host": {"rate": 200, "delay": "1 parsec"}},
        "colour": "red",
    }
    with pytest.raises(InputError) as error:
        parse_testbed(content, "file.yml")
    assert all(part in str(error.value) for part in ("file.yml", "rate", "delay", "colour"))


def test_custom_topologies():
    content = {
        "name": "dumbbell",
        "kind": "emulated",
        "topology": {
            "kind": "custom",
            "hosts": ["a", "b"],
            "switches": ["l", "r"],
            "cables": [["a", "l", "host"], ["l", "r", "core"], ["r", "b", "host"]],
        },
        "links": {"host": {"rate": "100 Gb/s"}, "core": {"rate": "50 Gb/s"}},
    }
    testbed = parse_testbed(content, "here")
    assert testbed.next_hops("b")["a"] == ["l"]
    assert testbed.links()["l>r"].rate_bps == 50_000_000_000


def test_a_second_cable_between_two_nodes_is_refused():
    nodes, cables = single_switch(2, LINK, 1)
    twice = (*cables, Cable("switch0", "s1", **SPEC), Cable("s1", "switch0", **SPEC))
    with pytest.raises(InputError, match="two links join"):
        core.Testbed("t", (*nodes, Node("s1", Role.SWITCH)), twice, ("h0",))


def test_hosts_without_a_way_to_each_other_are_refused():
    nodes = (Node("a", Role.HOST), Node("b", Role.HOST), Node("s", Role.SWITCH), Node("r", Role.SWITCH))
    with pytest.raises(InputError, match="no way from b to a"):
        core.Testbed("t", nodes, (Cable("a", "s", **SPEC), Cable("b", "r", **SPEC)), ("a",))


def test_both_directions_of_every_cable_are_links():
    links = {link.name: link for link in fabric_links(made())}
    assert len(links) == 2 * len(made().cables)
    assert (links["h0>leaf0"].source, links["h0>leaf0"].klass) == ("h0", "host")
    assert links["spine1>leaf0"].klass == "fabric"
    assert set(links) == set(made().links())


@pytest.mark.parametrize("spine", [0, 1])
def test_a_route_follows_the_choices(spine):
    way = made().route("h0", "h3", lambda _, hops: hops[spine % len(hops)])
    assert way == ("h0>leaf0", f"leaf0>spine{spine}", f"spine{spine}>leaf1", "leaf1>h3")


def test_a_choice_off_the_shortest_ways_is_refused():
    with pytest.raises(RunError, match="no shortest way"):
        made().route("h0", "h3", lambda _at, _hops: "h1")


@pytest.mark.parametrize(("dilation", "window"), [(1000, 128 << 10), (100, 1_259_218)])
def test_windows_cover_what_a_link_carries_while_a_process_waits(dilation, window):
    """5 ms of the wire rate, at least 128 KiB: 2 Gb/s of payload at mtu 9000 are 2,014,751,900 bit/s."""
    assert made(mtu=9000, dilation=dilation).window_bytes == pytest.approx(window, abs=2)


@pytest.mark.parametrize("path", sorted((ROOT / "testbed").glob("*.yml")), ids=lambda p: p.name)
def test_shipped_testbeds_follow_the_published_schema(path):
    jsonschema.validate(
        yaml.safe_load(path.read_text()), json.loads((ROOT / "testbed/testbed.schema.json").read_text())
    )


def star(**changes):
    content = {
        "name": "x",
        "kind": "emulated",
        "topology": {"kind": "single-switch", "hosts": 2},
        "links": {"host": {"rate": "200 Gb/s"}},
    }
    return content | changes


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"mtu": 70_000}, "mtu"),
        ({"dilation": 0}, "dilation"),
        ({"links": {"host": {"rate": "200 Gb/s"}, "fabric": {"rate": "1 Gb/s"}}}, "fabric"),
        ({"links": {}}, "host"),
        ({"topology": {"kind": "leaf-spine", "leaves": 2, "spines": 2}}, "hosts_per_leaf"),
        ({"topology": {"kind": "leaf-spine", "hosts": 4, "hosts_per_leaf": 2, "leaves": 2, "spines": 2}}, "either"),
        ({"congestion_control": "Cubic!"}, "congestion_control"),
    ],
)
def test_wrong_files_are_refused_with_file_and_field(changes, told):
    with pytest.raises(InputError) as error:
        parse_testbed(star(**changes), "lab.yml")
    assert "lab.yml" in str(error.value)
    assert told in str(error.value)


def test_hosts_per_leaf():
    shape = {"kind": "leaf-spine", "hosts_per_leaf": 3, "leaves": 2, "spines": 1}
    links = {"host": {"rate": "200 Gb/s"}, "fabric": {"rate": "200 Gb/s"}}
    assert parse_testbed(star(topology=shape, links=links), "x").hosts == tuple(f"h{i}" for i in range(6))
