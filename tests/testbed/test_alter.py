"""Faults on a fabric that is up: links that go and come, and ports that get slower or lossy."""

import socket

import pytest

from genie.core.faults import Action, FaultKind, Step
from genie.errors import RunError
from genie.testbed.alter import Alterations
from genie.testbed.emulated import EmulatedFabric
from genie.testbed.files import parse_testbed
from genie.testbed.namespaces import inside
from genie.testbed.probe import Flow, probe

pytestmark = pytest.mark.netns
CONTENT = {
    "name": "faulty",
    "kind": "emulated",
    "topology": {"kind": "leaf-spine", "hosts": 4, "leaves": 2, "spines": 2},
    "links": {"host": {"rate": "200 Gb/s"}, "fabric": {"rate": "200 Gb/s"}},
}


@pytest.fixture
def fabric():
    with EmulatedFabric(parse_testbed(CONTENT, "test")) as up:
        yield up


def step(kind, target, action=Action.BEGIN, value=0, fault=0):
    return Step(0, 0, fault, kind, target, action, value)


def arrives(fabric, source, destination, port, tries=4):
    """Whether one of so many packets gets through; a port that just came up may lose the first."""
    with inside(fabric.namespace_fd(source)):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with inside(fabric.namespace_fd(destination)):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender, receiver:
        receiver.bind((fabric.address(destination), 4791))
        receiver.settimeout(0.1)
        sender.bind((fabric.address(source), port))
        return any(passes(sender, receiver, (fabric.address(destination), 4791)) for _ in range(tries))


def passes(sender, receiver, address):
    try:
        sender.sendto(b"x" * 300, address)
        return receiver.recv(512) == b"x" * 300
    except OSError:
        return False


def ways(fabric):
    return {fabric.route("h0", "h2", port, 4791, socket.IPPROTO_UDP)[1] for port in range(5000, 5016)}


def test_routes_move_away_from_a_link_that_is_down_and_back(fabric):
    alter = Alterations(fabric)
    assert ways(fabric) == {"leaf0>spine0", "leaf0>spine1"}
    alter(step(FaultKind.LINK_DOWN, "leaf1-spine0"))
    alter(step(FaultKind.LINK_DOWN, "leaf1-spine0", Action.REROUTE))
    assert ways(fabric) == {"leaf0>spine1"}
    assert all(arrives(fabric, "h0", "h2", port) for port in range(5000, 5008))
    assert all(arrives(fabric, "h2", "h1", port) for port in range(5000, 5008))
    alter(step(FaultKind.LINK_DOWN, "leaf1-spine0", Action.END))
    alter(step(FaultKind.LINK_DOWN, "leaf1-spine0", Action.REROUTE))
    assert ways(fabric) == {"leaf0>spine0", "leaf0>spine1"}
    assert all(arrives(fabric, "h0", "h2", port, 20) for port in range(5000, 5008))


def test_without_new_routes_some_packets_are_lost_until_the_link_is_back(fabric):
    alter = Alterations(fabric)
    alter(step(FaultKind.LINK_DOWN, "leaf1-spine0"))
    assert sum(arrives(fabric, "h0", "h2", port, 1) for port in range(5000, 5016)) < 16
    alter(step(FaultKind.LINK_DOWN, "leaf1-spine0", Action.END))
    assert all(arrives(fabric, "h0", "h2", port, 20) for port in range(5000, 5016))


@pytest.mark.parametrize("rerouted", [True, False])
def test_a_host_whose_only_link_went_is_cut_off_and_comes_back(fabric, rerouted):
    alter = Alterations(fabric)
    for action, reaches in ((Action.BEGIN, False), (Action.END, True)):
        alter(step(FaultKind.LINK_DOWN, "h0-leaf0", action))
        if rerouted:
            alter(step(FaultKind.LINK_DOWN, "h0-leaf0", Action.REROUTE))
        assert arrives(fabric, "h0", "h2", 5000, 20 if reaches else 1) == reaches
        assert arrives(fabric, "h2", "h0", 5000, 20 if reaches else 1) == reaches
    assert arrives(fabric, "h1", "h0", 5000)


def test_two_faults_of_one_link_end_with_the_later(fabric):
    alter = Alterations(fabric)
    alter(step(FaultKind.LINK_DOWN, "h0-leaf0"))
    alter(step(FaultKind.LINK_DOWN, "h0-leaf0", fault=1))
    alter(step(FaultKind.LINK_DOWN, "h0-leaf0", Action.END))
    assert not arrives(fabric, "h0", "h1", 5000, 1)
    alter(step(FaultKind.LINK_DOWN, "h0-leaf0", Action.END, fault=1))
    assert arrives(fabric, "h0", "h1", 5000)


def test_a_rate_is_cut_and_given_back(fabric):
    """Against each other, since a busy machine is slow at any rate."""
    alter = Alterations(fabric)

    def fct_ns():
        return probe(fabric, [Flow("h0", "h1", 2_000_000)])[0].fct_ns

    before = fct_ns()
    alter(step(FaultKind.RATE, "h0>leaf0", value=20_000_000_000))
    assert fct_ns() > 6 * before
    alter(step(FaultKind.RATE, "h0>leaf0", Action.END))
    assert fct_ns() < 3 * before


def test_a_rate_that_cannot_be_shaped_is_refused(fabric):
    with pytest.raises(RunError, match="cannot be shaped"):
        Alterations(fabric)(step(FaultKind.RATE, "h0>leaf0", value=1_000))


def test_a_smaller_buffer_drops_what_a_larger_one_holds(fabric):
    alter = Alterations(fabric)
    flows = [Flow(source, "h1", 600_000) for source in ("h0", "h2", "h3")]
    link = "leaf0>h1"
    alter(step(FaultKind.BUFFER, link, value=16_000_000))
    probe(fabric, flows)
    assert fabric.counters()[link]["drops"] == 0
    alter(step(FaultKind.BUFFER, link, value=16_000, fault=1))
    probe(fabric, flows)
    assert fabric.counters()[link]["drops"] > 0


def test_packets_are_lost_at_random_and_then_no_more(fabric):
    alter = Alterations(fabric)
    alter(step(FaultKind.LOSS, "leaf0>h1", value=300_000))
    with inside(fabric.namespace_fd("h0")):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def lost():
        before = fabric.counters()["leaf0>h1"]["packets"]
        for _ in range(2000):
            sender.sendto(b"x", (fabric.address("h1"), 4791))
        return 2000 - (fabric.counters()["leaf0>h1"]["packets"] - before)

    with sender:
        assert 480 <= lost() <= 720  # 600, six standard deviations either way
        alter(step(FaultKind.LOSS, "leaf0>h1", value=1_000_000, fault=1))
        assert lost() >= 1999
        alter(step(FaultKind.LOSS, "leaf0>h1", Action.END, fault=1))
        assert 480 <= lost() <= 720
        alter(step(FaultKind.LOSS, "leaf0>h1", Action.END))
        assert lost() == 0
