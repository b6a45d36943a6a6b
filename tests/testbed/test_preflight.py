"""Faults of switch configurations that a pre-flight must find, and name the switch."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from genie.cli import cli
from genie.errors import InputError, NotReadyError
from genie.testbed import frr, preflight, routing
from genie.testbed.emulated import EmulatedFabric
from genie.testbed.files import parse_testbed
from genie.testbed.namespaces import inside

pytestmark = pytest.mark.netns
CONTENT = {
    "name": "check",
    "kind": "emulated",
    "topology": {"kind": "leaf-spine", "hosts": 4, "leaves": 2, "spines": 2},
    "links": {"host": {"rate": "200 Gb/s"}, "fabric": {"rate": "200 Gb/s"}},
    "mtu": 9000,
}


def bed(**changes):
    return parse_testbed(CONTENT | changes, "test")


@pytest.fixture(name="_daemons")
def daemons():
    why = frr.hindrance()
    if why:
        pytest.skip(f"needs FRR: {why}")


def generated(testbed):
    fabric = EmulatedFabric(testbed)
    hosts = testbed.hosts
    return {
        node.name: frr.configuration(testbed, node.name, fabric.ports_of(node.name))
        for node in testbed.nodes
        if node.name not in hosts
    }


def configured(**changes):
    """The testbed with FRR, whose generated configurations are changed by (old, new) pairs."""
    testbed = bed(stack="frr")
    texts = generated(testbed)
    for switch, pairs in changes.items():
        for old, new in pairs:
            assert old in texts[switch]
            texts[switch] = texts[switch].replace(old, new)
    return replace(testbed, configurations=tuple(texts.items()))


def bad(testbed):
    return [(check.name, check.found, check.fix) for check in preflight.preflight(testbed) if check.status == "bad"]


def without_rates(monkeypatch):
    """A busy machine may miss a rate; that is no business of these tests."""
    looks = tuple(look for look in preflight._LOOKS if look[0] != "link rates, probed")
    monkeypatch.setattr(preflight, "_LOOKS", looks)


def test_a_sound_testbed_passes(monkeypatch):
    without_rates(monkeypatch)
    checks = preflight.preflight(bed())
    assert [check for check in checks if check.status == "bad"] == []
    names = {check.name for check in checks}
    assert {"routes", "reachability", "MTU", "DSCP and ECN bits", "link rates, set", "firewall", "cores"} <= names


def test_a_probed_rate_is_told():
    with EmulatedFabric(bed()) as fabric:
        (check,) = preflight._rates(fabric)
    assert check.name == "link rates, probed"
    assert "%" in check.found


@pytest.mark.parametrize("switch", ["leaf1", "spine0"])
def test_a_switch_with_a_low_mtu_is_named(monkeypatch, switch):
    without_rates(monkeypatch)
    found = bad(bed(switch_mtu={switch: 1500}))
    assert {name for name, _, _ in found} == {"MTU"}
    assert all(words.startswith(f"{switch}:") for _, words, _ in found)
    assert all("largest that passes has 1500" in words for _, words, _ in found)


def test_a_wrong_shaper_is_told():
    with EmulatedFabric(bed()) as fabric:
        fabric.testbed = bed(links=CONTENT["links"] | {"host": {"rate": "100 Gb/s"}})
        (check,) = preflight._shapers(fabric)
    assert check.status == "bad"
    assert "h0>leaf0 is shaped at" in check.found


def test_packet_filters_are_told(monkeypatch):
    without_rates(monkeypatch)
    with EmulatedFabric(bed()) as fabric:
        monkeypatch.setattr(preflight, "_nftables", lambda: ["nftables has table filter"])
        (check,) = preflight._firewall(fabric)
    assert check.status == "bad"
    assert "leaf0: nftables has table filter" in check.found or "h0: nftables" in check.found


def test_nftables_are_asked_of_the_kernel():
    with EmulatedFabric(bed()) as fabric, inside(fabric.namespace_fd("h0")):
        assert preflight._nftables() == []


@pytest.mark.usefixtures("_daemons")
def test_frr_finds_all_ways():
    with EmulatedFabric(configured()) as fabric:
        assert fabric.gaps() == []
        assert set(fabric.frr.neighbours("leaf0").values()) == {"Established"}
        assert "B>*" in fabric.frr.tell("leaf0", "show ip route")
        folder = fabric.frr.root
    assert not Path(folder).exists()


@pytest.mark.usefixtures("_daemons")
def test_missing_multipath_and_a_wrong_network_statement_name_their_switches(monkeypatch):
    without_rates(monkeypatch)
    found = bad(
        configured(
            leaf0=[(" bgp bestpath as-path multipath-relax\n", ""), ("  maximum-paths 64\n", "")],
            leaf1=[("network 10.0.0.8/30", "network 10.0.0.80/30")],
        )
    )
    routes = [(words, fix) for name, words, fix in found if name == "routes"]
    assert ("leaf1 does not announce 10.0.0.8/30 of h2: no other switch has a route to it") in [w for w, _ in routes]
    (relax,) = [(words, fix) for words, fix in routes if words.startswith("leaf0 has 1 of 2 ways to h3")]
    assert "maximum-paths" in relax[1]
    assert any(name == "reachability" and words.startswith("leaf0:") for name, words, _ in found)


@pytest.mark.usefixtures("_daemons")
def test_a_one_sided_link_names_the_switch_without_a_neighbour(monkeypatch):
    without_rates(monkeypatch)
    testbed = configured(
        spine1=[(" neighbor eth0 interface remote-as external\n", ""), (" neighbor eth0 timers connect 1\n", "")]
    )
    found = bad(testbed)
    assert any("spine1 has no session with leaf0 by eth0: no neighbour statement" in words for _, words, _ in found)


@pytest.mark.usefixtures("_daemons")
def test_routes_that_are_not_found_in_time_fail_the_run_and_name_switches(monkeypatch):
    monkeypatch.setattr(routing, "CONVERGE_TIMEOUT_S", 0.01)
    with pytest.raises(NotReadyError, match="leaf0 has no route to h2"):
        EmulatedFabric(configured()).up()


@pytest.mark.usefixtures("_daemons")
def test_a_configuration_that_frr_does_not_understand_is_refused_with_its_line():
    testbed = replace(bed(stack="frr"), configurations=(("spine0", "router bgp 65000\n colour red\n"),))
    ((name, words, _),) = bad(testbed)
    assert name == "fabric"
    assert "spine0" in words
    assert "colour red" in words


def test_without_frr_there_is_a_sentence_and_how_to_get_it(monkeypatch):
    monkeypatch.setattr(frr, "_find", lambda _: None)
    ((name, words, fix),) = bad(bed(stack="frr"))
    assert (name, fix) == ("FRR", "sudo apt install frr, and run as root")
    assert "not installed" in words
    with pytest.raises(NotReadyError, match="apt install frr"):
        EmulatedFabric(bed(stack="frr")).up()


def test_the_command_tells_all_in_one_object(tmp_path):
    path = tmp_path / "bed.yml"
    path.write_text(json.dumps(CONTENT | {"switch_mtu": {"leaf0": 1500}}))
    done = CliRunner().invoke(cli, ["testbed", "check", str(path), "--json"])
    told = json.loads(done.stdout)
    assert not told["ok"]
    assert isinstance(done.exception, NotReadyError)
    assert any(check["name"] == "MTU" and "leaf0" in check["found"] for check in told["checks"])


def test_the_command_shows_routes(tmp_path):
    path = tmp_path / "bed.yml"
    path.write_text(json.dumps(CONTENT))
    done = CliRunner().invoke(cli, ["testbed", "show", str(path), "--routes", "--json"])
    rows = json.loads(done.stdout)["routes"]
    assert {"switch": "leaf0", "network": "10.0.0.9/32", "by": "spine0, spine1"} in rows


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"switch_config": {"h0": "x.conf"}, "stack": "frr"}, "h0"),
        ({"switch_config": {"leaf0": "x.conf"}}, "stack: frr"),
        ({"switch_config": {"leaf0": "none.conf"}, "stack": "frr"}, "none.conf"),
        ({"switch_mtu": {"leaf9": 1500}}, "leaf9"),
        ({"switch_mtu": {"leaf0": 100}}, "100"),
        ({"stack": "sonic"}, "stack"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, changes, told):
    (tmp_path / "x.conf").write_text("hostname x\n")
    with pytest.raises(InputError) as error:
        parse_testbed(CONTENT | changes, "bed.yml", tmp_path)
    assert told in str(error.value)
