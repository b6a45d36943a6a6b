"""What is left when a fabric ends: nothing, however it ends. And what the ports' classes do to packets."""

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from genie.errors import NotReadyError
from genie.testbed import netlink
from genie.testbed.emulated import EmulatedFabric
from genie.testbed.files import parse_testbed
from genie.testbed.namespaces import create, inside
from genie.testbed.netlink import Conversation, End

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.netns

HOLDER = """
import time
from genie.testbed.emulated import EmulatedFabric
from genie.testbed.files import load_testbed
fabric = EmulatedFabric(load_testbed("testbed/leaf-spine-8.yml"))
fabric.up()
print(fabric.namespace_fd("h0"), fabric.namespace_fd("spine1"), flush=True)
time.sleep(600)
"""


def pair(**changes):
    """Two hosts on a switch, slow enough to build queues."""
    content = {
        "name": "pair",
        "kind": "emulated",
        "topology": {"kind": "single-switch", "hosts": 2},
        "links": {"host": {"rate": "10 Gb/s", "buffer": "100 KB"}},
        "mtu": 9000,
    }
    return parse_testbed(content | changes, "test")


def fds():
    """Descriptors of network namespaces and sockets that this process holds."""
    links = (str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink())
    return sum(link.startswith(("net:[", "socket:[")) for link in links)


@pytest.fixture
def witness():
    """A namespace from which cables into others show whether those still exist."""
    fd = create()
    with inside(fd):
        talk, events = Conversation(), Conversation(netlink.LINK_EVENTS)
    yield talk, events
    talk.close()
    events.close()
    os.close(fd)


def cables(talk):
    bodies = talk.dump(netlink.GET_LINK, netlink.INTERFACE.pack(0, 0, 0, 0, 0))
    found = (netlink.INTERFACE.unpack_from(body)[2] for body in bodies)
    return {index for index in found if index >= 100}


def cable_into(talk, index, fd):
    """Plug a cable from the witness into another namespace."""
    ends = End(f"w{index}", index, b"\2\0\0\0\1" + bytes([index])), End("w", index + 50, b"\2\0\0\0\2\1", fd)
    talk.say([netlink.veth(*ends, 1500, 1)])


@pytest.mark.parametrize("deadly", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_its_process_leaves_no_namespace(witness, deadly):
    talk, events = witness
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with holder:
        for index, fd in enumerate(holder.stdout.readline().split(), start=100):
            entry = os.open(f"/proc/{holder.pid}/fd/{int(fd)}", os.O_RDONLY)
            cable_into(talk, index, entry)
            os.close(entry)
        assert cables(talk) == {100, 101}
        holder.send_signal(deadly)
        assert holder.wait(10) != 0
    deadline = time.monotonic() + 10
    while cables(talk):
        assert select.select([events.socket], [], [], max(0, deadline - time.monotonic()))[0], "namespaces live on"
        events.receive()


def test_a_failure_half_way_leaves_nothing():
    before = fds()
    with pytest.raises(NotReadyError, match="congestion"):
        EmulatedFabric(pair(congestion_control="nosuchthing")).up()
    assert fds() == before


def test_an_interrupt_half_way_leaves_nothing(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(EmulatedFabric, "_wait_until_up", interrupted)
    before = fds()
    with pytest.raises(KeyboardInterrupt):
        EmulatedFabric(pair()).up()
    assert fds() == before


def udp(fabric, host, port=4791):
    with inside(fabric.namespace_fd(host)):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((fabric.address(host), port))
    sock.settimeout(5)
    return sock


def transport_packet(opcode, number, size):
    """The start of a RoCE packet (its opcode), a number, and filling."""
    return struct.pack("!BxxxI", opcode, number) + bytes(size - 8)


@pytest.mark.parametrize(("opcode", "overtakes"), [(0x11, True), (0x81, True), (0x08, False)])
def test_acknowledgements_overtake_data_but_short_data_does_not(opcode, overtakes):
    """ACK and congestion notification pass what is queued; a message's short last packet stays behind its others."""
    with EmulatedFabric(pair()) as fabric, udp(fabric, "h0") as sender, udp(fabric, "h1") as receiver:
        sender.connect(receiver.getsockname())
        for number in range(30):
            sender.send(transport_packet(0x07, number, 2000))
        sender.send(transport_packet(opcode, 30, 60))
        order = [struct.unpack_from("!BxxxI", receiver.recv(9000))[1] for _ in range(31)]
    assert (order.index(30) < 30) == overtakes
    assert [number for number in order if number != 30] == list(range(30))


def test_what_does_not_fit_into_a_buffer_is_dropped_and_counted():
    """Two senders at line rate into one port with 20 KB."""
    shape = {"kind": "single-switch", "hosts": 3}
    testbed = pair(topology=shape, links={"host": {"rate": "10 Gb/s", "buffer": "20 KB"}})
    with (
        EmulatedFabric(testbed) as fabric,
        udp(fabric, "h0") as one,
        udp(fabric, "h2") as other,
        udp(fabric, "h1") as receiver,
    ):
        for sock in (one, other):
            sock.connect(receiver.getsockname())
            for number in range(60):
                sock.send(transport_packet(0x07, number, 2000))
        deadline = time.monotonic() + 10
        count = fabric.counters()
        while any(port["backlog_bytes"] for port in count.values()):
            assert time.monotonic() < deadline
            count = fabric.counters()
    frame = 2000 + 28 + 14
    assert count["h0>switch0"] == {"bytes": 60 * frame, "packets": 60, "drops": 0, "backlog_bytes": 0}
    port = count["switch0>h1"]
    assert port["drops"] > 20
    assert port["packets"] + port["drops"] == 120
    assert port["bytes"] == port["packets"] * frame
