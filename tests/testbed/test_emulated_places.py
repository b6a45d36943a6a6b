"""Hosts with several NICs and several ranks, on a real fabric."""

import socket

import pytest

from genie.testbed.emulated import EmulatedFabric
from genie.testbed.files import parse_testbed
from genie.testbed.namespaces import inside
from genie.testbed.netlink import GET_QDISC, QUEUE, attributes

pytestmark = pytest.mark.netns
CONTENT = {
    "name": "rails",
    "kind": "emulated",
    "topology": {"kind": "rail-optimised", "hosts": 2, "rails": 2, "spines": 2},
    "links": {"host": {"rate": "200 Gb/s"}, "fabric": {"rate": "200 Gb/s"}},
    "ranks_per_host": 4,
    "intra_host": {"rate": "400 Gb/s", "delay": "500 ns"},
}


@pytest.fixture(scope="module")
def fabric():
    with EmulatedFabric(parse_testbed(CONTENT, "test")) as up:
        yield up


def packets(fabric):
    return {link: row["packets"] for link, row in fabric.counters().items()}


def test_every_rank_reaches_every_other_and_only_by_the_looked_up_links(fabric):
    ends = fabric.testbed.endpoints
    sockets = []
    for end in ends:
        with inside(fabric.namespace_fd(end.host)):
            sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sockets[-1].bind((fabric.address(end), 4791))
        sockets[-1].settimeout(2)
    for source, sender in zip(ends, sockets, strict=True):
        for destination, receiver in zip(ends, sockets, strict=True):
            if source == destination:
                continue
            way = fabric.route(source, destination, 4791, 4791, socket.IPPROTO_UDP)
            before = packets(fabric)
            sender.sendto(str(source).encode(), (fabric.address(destination), 4791))
            assert receiver.recv(64) == str(source).encode()
            after = packets(fabric)
            used = {link for link in after if after[link] != before[link]}
            assert used == (set(way) if source.host != destination.host else set())
    for sock in sockets:
        sock.close()


def test_ranks_of_a_host_send_each_other_through_the_shaped_loopback(fabric):
    kinds = [
        dict(attributes(body, QUEUE.size))[1].rstrip(b"\0").decode()
        for body in fabric._conversations["h0"].dump(GET_QDISC, QUEUE.pack(0, 0, 0, 0, 0))
        if QUEUE.unpack_from(body)[1] == 1
    ]
    assert sorted(kinds) == ["bfifo"] * 4 + ["htb"]


def test_a_host_local_flow_passes_its_own_class(fabric):
    """What one rank sends to another of its host passes the queue of its own class."""
    source, destination = fabric.testbed.endpoints[:2]
    with inside(fabric.namespace_fd("h0")):
        listener = socket.create_server((fabric.address(destination), 4791))
        sender = socket.create_connection(listener.getsockname(), source_address=(fabric.address(source), 4791))
    receiver, _ = listener.accept()
    sender.sendall(bytes(100_000))
    assert len(receiver.recv(100_000, socket.MSG_WAITALL)) == 100_000
    sent = {}
    for body in fabric._conversations["h0"].dump(GET_QDISC, QUEUE.pack(0, 0, 0, 0, 0)):
        _, index, _, parent, _ = QUEUE.unpack_from(body)
        told = dict(attributes(body, QUEUE.size))
        if index == 1 and told[1].startswith(b"bfifo"):
            sent[parent & 0xFFFF] = int.from_bytes(dict(attributes(told[7]))[1][:8], "little")
    assert sent[1] > 100_000
    assert sum(sent.values()) == sent[1]
    for sock in (listener, sender, receiver):
        sock.close()
