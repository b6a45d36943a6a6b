import os
import select
import signal
import socket
from pathlib import Path

import pytest

from genie.testbed.emulated import EmulatedFabric
from genie.testbed.files import load_testbed, parse_testbed
from genie.testbed.keeper import keep_up, kept, take_down
from genie.testbed.namespaces import inside

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.netns


@pytest.fixture
def fabric():
    with EmulatedFabric(load_testbed(ROOT / "testbed/leaf-spine-8.yml")) as up:
        yield up


def namespaces_of(pid):
    links = (str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink())
    return sum(link.startswith("net:[") for link in links)


def test_every_host_reaches_every_other(fabric):
    hosts = fabric.testbed.hosts
    sockets = {}
    for host in hosts:
        with inside(fabric.namespace_fd(host)):
            sockets[host] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sockets[host].bind((fabric.address(host), 4791))
        sockets[host].settimeout(2)
    for source in hosts:
        for destination in hosts:
            if source != destination:
                sockets[source].sendto(source.encode(), (fabric.address(destination), 4791))
                assert sockets[destination].recv(64) == source.encode()
    for sock in sockets.values():
        sock.close()


def test_looked_up_routes_are_the_ones_taken(fabric):
    """The path oracle against the spines' counters, for flows of 32 source ports."""
    right, spines = 0, set()
    for port in range(5000, 5032):
        with inside(fabric.namespace_fd("h0")):
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((fabric.address("h0"), port))
        way = fabric.route("h0", "h5", port, 4791, socket.IPPROTO_UDP)
        before = fabric.counters()[way[1]]["packets"]
        sock.sendto(b"x" * 300, (fabric.address("h5"), 4791))
        sock.close()
        right += fabric.counters()[way[1]]["packets"] == before + 1
        spines.add(way[1])
    assert right == 32
    assert len(spines) == 2


def test_tcp_takes_the_looked_up_path_too(fabric):
    """The kernel's TCP marks its packets with a random hash; the switches must not follow that."""
    with inside(fabric.namespace_fd("h5")):
        listener = socket.create_server((fabric.address("h5"), 4791))
    for port in range(6000, 6012):
        with inside(fabric.namespace_fd("h0")):
            sock = socket.socket()
        sock.bind((fabric.address("h0"), port))
        sock.settimeout(2)
        up, other = "leaf0>spine0", "leaf0>spine1"
        if fabric.route("h0", "h5", port, 4791)[1] == other:
            up, other = other, up
        before = fabric.counters()
        sock.connect((fabric.address("h5"), 4791))
        accepted, _ = listener.accept()
        sock.sendall(b"x" * 10_000)
        accepted.recv(10_000, socket.MSG_WAITALL)
        after = fabric.counters()
        accepted.close()
        sock.close()
        assert after[up]["bytes"] - before[up]["bytes"] > 10_000
        assert after[other]["bytes"] == before[other]["bytes"]
    listener.close()


def test_routes_stay_within_a_leaf(fabric):
    assert fabric.route("h0", "h1", 1, 2) == ("h0>leaf0", "leaf0>h1")


def test_nothing_is_left_after_close():
    before = namespaces_of(os.getpid())
    fabric = EmulatedFabric(load_testbed(ROOT / "testbed/leaf-spine-8.yml"))
    fabric.up()
    assert namespaces_of(os.getpid()) > before
    fabric.close()
    fabric.close()
    assert namespaces_of(os.getpid()) == before


@pytest.fixture
def kept_name():
    content = {
        "name": f"test-{os.getpid()}",
        "kind": "emulated",
        "topology": {"kind": "single-switch", "hosts": 2},
        "links": {"host": {"rate": "100 Gb/s"}},
    }
    yield parse_testbed(content, "test")
    if any(row["name"] == content["name"] for row in kept()):
        take_down(content["name"])


def test_kept_up_and_taken_down(kept_name):
    keep_up(kept_name)
    (row,) = [row for row in kept() if row["name"] == kept_name.name]
    assert namespaces_of(row["pid"]) >= 3
    take_down(kept_name.name)
    assert not Path(f"/proc/{row['pid']}").exists() or "Z" in Path(f"/proc/{row['pid']}/stat").read_text()
    assert all(row["name"] != kept_name.name for row in kept())


def test_kill_9_of_the_holder_leaves_nothing(kept_name):
    keep_up(kept_name)
    (row,) = [row for row in kept() if row["name"] == kept_name.name]
    holder = os.pidfd_open(row["pid"])
    os.kill(row["pid"], signal.SIGKILL)
    assert select.select([holder], [], [], 10)[0], "it ends"
    os.close(holder)
    assert all(row["name"] != kept_name.name for row in kept())
