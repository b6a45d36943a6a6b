"""Paths by source port: looked up, probed with packets, and the ports that spread over them."""

from pathlib import Path

import pytest

from genie.errors import InputError
from genie.stages import paths_of_experiment, paths_of_ports
from genie.testbed.emulated import EmulatedFabric
from genie.testbed.files import load_testbed
from genie.testbed.namespaces import inside
from genie.testbed.paths import looked_up, probed, shared_links, spread

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "testbed/leaf-spine-8.yml"
PORTS = range(49_152, 49_168)


@pytest.mark.netns
def test_probes_take_the_paths_that_the_tables_say():
    with EmulatedFabric(load_testbed(FILE)) as fabric:
        told = looked_up(fabric, "h0", "h7", PORTS)
        with inside(fabric.namespace_fd("h0")):
            met = probed(fabric.address("h0"), fabric.address("h7"), PORTS)
        links = fabric.arrivals()
        assert {port: tuple(links[hop] for hop in hops) for port, hops in met.items()} == told
        assert len(set(told.values())) == 2
        assert all(len(path) == 4 for path in told.values())
        with pytest.raises(InputError, match="leaf0 is no host"):
            looked_up(fabric, "h0", "leaf0", PORTS)


@pytest.mark.netns
def test_what_the_command_shows():
    about = paths_of_ports(FILE, None, "h4", "49152-49155,50000", probe=False, spread=2)
    assert [row["port"] for row in about["rows"]] == [49_152, 49_153, 49_154, 49_155, 50_000]
    assert (about["from"], about["to"]) == ("h0", "h4")
    assert len(about["chosen"]) == 2
    probes = paths_of_ports(FILE, None, "h4", "49152-49155,50000", probe=True, spread=None)
    assert probes["rows"] == about["rows"]


@pytest.mark.netns
def test_links_that_an_experiments_flows_share():
    about = paths_of_experiment(FILE, ROOT / "examples/quickstart/experiment.yaml")
    assert about["flows"] == 8
    assert all(row["flows"] > 1 and ">" in row["link"] for row in about["rows"])


def test_spread_takes_paths_in_turn():
    paths = {1: ("a",), 2: ("a",), 3: ("a",), 4: ("b",), 5: ("c",)}
    assert spread(paths, 3) == [1, 4, 5]
    assert spread(paths, 4) == [1, 2, 4, 5]
    assert spread(paths, 5) == [1, 2, 3, 4, 5]
    with pytest.raises(InputError, match="6 ports are wanted of 5"):
        spread(paths, 6)


def test_shared_links_are_counted():
    assert shared_links([("a", "b"), ("a", "c"), ("a", "b"), ("d",)]) == {"a": 3, "b": 2}
    assert shared_links([]) == {}


@pytest.mark.parametrize("text", ["", "x", "0", "70000", "1-", "5-3"])
def test_ports_must_be_ports(text):
    with pytest.raises(InputError, match="no ports"):
        paths_of_ports(FILE, None, None, text, probe=False, spread=None)
