import json
from pathlib import Path

import pytest

from genie.core import testbed as core
from genie.core.testbed import LinkSpec, leaf_spine, single_switch
from genie.errors import InputError
from genie.testbed.files import load_testbed, parse_testbed, schema

ROOT = Path(__file__).resolve().parents[2]
LINK = LinkSpec(200_000_000_000, 1000, 1 << 20)


def made(**changes):
    nodes, cables = leaf_spine(4, 2, 2, LINK, LINK, 7)
    fields = {"name": "t", "nodes": nodes, "cables": cables, "placement": ("h0", "h1", "h2", "h3")} | changes
    return core.Testbed(**fields)


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
    ],
)
def test_out_of_range_is_refused(changes):
    with pytest.raises(InputError):
        made(**changes)


def test_a_host_has_exactly_one_link():
    nodes, cables = single_switch(2, LINK, 1)
    with pytest.raises(InputError, match="0 links"):
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
