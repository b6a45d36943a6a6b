"""Marks, losses and sprayed packets on a real fabric; exact rates are the benchmark's business."""

import socket
import time

import pytest

from genie.testbed.emulated import EmulatedFabric
from genie.testbed.files import parse_testbed
from genie.testbed.namespaces import inside

pytestmark = pytest.mark.netns
IP_TOS, IP_RECVTOS = 1, 13


def fabric_of(host=None, **changes):
    content = {
        "name": "bpf",
        "kind": "emulated",
        "topology": {"kind": "leaf-spine", "hosts": 2, "leaves": 2, "spines": 4},
        "links": {"host": {"rate": "100 Gb/s"} | (host or {}), "fabric": {"rate": "100 Gb/s"}},
        "mtu": 1500,
    }
    return EmulatedFabric(parse_testbed(content | changes, "test"))


def sockets(fabric):
    made = []
    for host in ("h0", "h1"):
        with inside(fabric.namespace_fd(host)):
            made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made[-1].bind((fabric.address(host), 4791))
        made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        made[-1].settimeout(0.5)
    return made


def exchange(fabric, count, tos=2, gap_s=0.0):
    """TOS bytes that arrive of so many full datagrams from h0 to h1."""
    sender, receiver = sockets(fabric)
    sender.setsockopt(socket.IPPROTO_IP, IP_TOS, tos)
    receiver.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
    for _ in range(count):
        sender.sendto(bytes(1400), (fabric.address("h1"), 4791))
        time.sleep(gap_s)
    came = []
    try:
        while len(came) < count:
            _, ancillary, _, _ = receiver.recvmsg(2000, 64)
            came += [value[0] for level, kind, value in ancillary if kind == IP_TOS] or [0]
    except TimeoutError:
        pass
    sender.close()
    receiver.close()
    return came


SLOW = {"leaf1-h1": {"rate": "1 Gb/s", "ecn": "32 KiB"}}


def test_packets_that_would_wait_are_marked_and_counted():
    """100 packets at 100 Mb/s into 1 Mb/s: the queue passes 32 KiB after 23 of them."""
    with fabric_of(cables=SLOW) as fabric:
        came = exchange(fabric, 100)
        marked = sum(tos == 3 for tos in came)
        assert len(came) == 100
        assert 40 < marked < 80
        assert came[:15] == [2] * 15
        assert fabric.marks() == {"leaf1>h1": marked}


def test_what_cannot_be_marked_is_not():
    with fabric_of(cables=SLOW) as fabric:
        assert set(exchange(fabric, 60, tos=0)) == {0}
        assert fabric.marks() == {"leaf1>h1": 0}


def test_a_queue_that_stays_short_marks_nothing():
    with fabric_of(cables=SLOW) as fabric:
        assert exchange(fabric, 20, gap_s=0.015) == [2] * 20


def test_losses_are_the_share_that_was_asked_for():
    """Of 4000 with 10 % the count has a standard deviation of 19; twelve of them are allowed."""
    with fabric_of(host={"loss": "5 %"}) as fabric:
        came = len(exchange(fabric, 4000))
        assert abs(came - 4000 * 0.95**2) < 12 * 19


def test_packets_of_one_flow_go_all_ways_when_sprayed():
    with fabric_of(ecmp="per-packet") as fabric:
        exchange(fabric, 400)
        counters = fabric.counters()
        shares = [counters[f"leaf0>spine{k}"]["packets"] for k in range(4)]
        assert all(60 < share < 140 for share in shares)
        assert "each packet" in fabric.notes[0]


def test_a_flow_keeps_to_one_way_otherwise():
    with fabric_of() as fabric:
        exchange(fabric, 100)
        counters = fabric.counters()
        assert sorted(counters[f"leaf0>spine{k}"]["packets"] for k in range(4))[:3] == [0, 0, 0]
