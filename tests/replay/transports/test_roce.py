"""RoCE: the conformance suite in several set-ups, and what only RoCE has: settings that must agree, hostile packets."""

import itertools
import os
import random
import re
import socket
import struct
from typing import ClassVar

import pytest
from conformance import MIB, NetworkConformance, Party, connect_all, in_ns

from genie.errors import InputError, NotReadyError, RunError
from genie.formats.icrc import Way, sealed
from genie.formats.roce import PORT, Opcode, Packet, Reth
from genie.formats.roce_cm import Kind, Meeting
from genie.replay.transports.choice import Wiring, choice, source_port
from genie.replay.transports.roce.options import RoceOptions, port_of
from genie.replay.transports.roce.transport import RoceTransport

SECRET = bytes(range(32))
_subnets = itertools.count(1)


def addresses(ranks):
    """Loopback addresses that nobody else uses: every rank needs port 4791 for itself."""
    subnet = next(_subnets)
    return [f"127.{100 + os.getpid() % 50}.{subnet % 250}.{rank + 1}" for rank in range(ranks)]


def end(rank, ranks, address, secret=SECRET, options=None, **wiring):
    return RoceTransport(rank, RoceOptions.of(Wiring(rank, ranks, address, secret, options=options or {}, **wiring)))


def ends(ranks, **kwargs):
    return [end(rank, ranks, address, **kwargs) for rank, address in enumerate(addresses(ranks))]


class TestRoce(NetworkConformance):
    kwargs: ClassVar[dict[str, object]] = {}

    def make(self, ranks):
        return ends(ranks, **self.kwargs)

    make_slow = make


class TestRoceVerifiedSmallPackets(TestRoce):
    kwargs: ClassVar[dict[str, object]] = {"verify": True, "options": {"mtu": 1024, "segments": 1}}


class TestRoceSelectiveSends(TestRoce):
    kwargs: ClassVar[dict[str, object]] = {
        "verify": True,
        "options": {"operation": "send", "recovery": "selective", "control": "dctcp", "ecn": True},
    }


class TestRoceWithThreeQueuePairs(TestRoce):
    kwargs: ClassVar[dict[str, object]] = {"flows": 3, "options": {"ports": "hash"}}
    flows = 3


class TestRoceWithoutIcrc(TestRoce):
    kwargs: ClassVar[dict[str, object]] = {"options": {"icrc": False, "control": "dcqcn"}}


def exchange_both_ways(party, sizes):
    for tag, size_bytes in enumerate(sizes):
        party.exchange(0, 1, tag, size_bytes)
        party.exchange(1, 0, tag, size_bytes)
    party.settle()


SIZES = [0, 1, 4_095, 4_096, 4_097, 100_000, MIB]


@pytest.mark.parametrize("mtu", [256, 512, 2048, 4096])
@pytest.mark.parametrize("operation", ["write", "send"])
def test_every_mtu(mtu, operation):
    with Party(ends(2, verify=True, options={"mtu": mtu, "operation": operation})) as party:
        exchange_both_ways(party, SIZES)
        assert party.ends[0].statistics()["icrc_errors"] == 0


def test_messages_split_over_queue_pairs_arrive_whole_and_in_order():
    with Party(ends(2, flows=4, verify=True, options={"split": True})) as party:
        exchange_both_ways(party, SIZES * 3)
        assert party.ends[0].moved() == {"sent": {1: [21, 3 * sum(SIZES)]}, "received": {1: [21, 3 * sum(SIZES)]}}


@pytest.mark.parametrize("spray", ["message", "batch"])
def test_packets_sprayed_over_source_ports(spray):
    options = {"ports": [50_001, 50_002, 50_003], "spray": spray, "recovery": "selective"}
    with Party(ends(2, verify=True, options=options)) as party:
        exchange_both_ways(party, SIZES * 2)
        assert len(party.ends[0]._outlets) == 4


def test_receives_that_are_not_posted_hold_a_sender_back():
    with Party(ends(2, options={"receive_depth": 2})) as party:
        sends = [party.send(0, 1, 1, 100) for _ in range(20)]
        party.poll_for(0.05, 0, 1)
        assert sum(handle in party.done for handle in sends) == 2
        assert party.ends[0].statistics()["rnr_naks"] >= 1
        for _ in sends:
            party.recv(1, 0, 1, 100)
        party.settle()


def test_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        with pytest.raises(NotReadyError, match="::1"):
            end(0, 1, "::1").open()
        return
    lonely = end(0, 1, "::1", mtu_bytes=1500)
    assert lonely._options.mtu == 1024
    lonely.open()
    lonely.close()


def test_pacing():
    with Party(ends(2, rate_bps=80_000_000)) as party:
        receive, _ = party.exchange(0, 1, 1, 500_000)
        party.settle()
        took_ns = party.done[receive].done_ns - party.done[receive].posted_ns
        assert took_ns >= 48_000_000


# ---- who may join


def refusal(**other):
    own = addresses(2)
    pair = {0: end(0, 2, own[0]), 1: end(1, 2, own[1], **other)}
    try:
        raised = connect_all(pair, {rank: one.open() for rank, one in pair.items()}, 0.3)
        assert raised.keys() == {0, 1}
        return raised
    finally:
        for one in pair.values():
            one.close()


def test_another_secret_is_refused():
    raised = refusal(secret=bytes(32))
    assert "cannot join rank 1" in raised[0].what
    assert all("secret of another run" in error.what for error in raised.values())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mtu": 1024}, r"path MTU is \d+, ours \d+"),
        ({"operation": "send"}, "settings differ: operation"),
        ({"icrc": False, "recovery": "selective"}, "settings differ: recovery, icrc"),
    ],
)
def test_settings_must_agree(options, told):
    raised = refusal(options=options)
    for error in raised.values():
        assert re.search(told, error.what), error.what


def test_a_firewall_is_mentioned():
    own = addresses(2)
    one = end(0, 2, own[0])
    one.open()
    with pytest.raises(RunError, match=r"rank.* 1 \(.*UDP port 4791.*Connection refused") as caught:
        one.connect({1: {"address": own[1], "port": PORT}}, in_ns(0.2))
    assert "firewall" in caught.value.fix
    one.close()


def test_a_port_in_use_is_told():
    own = addresses(1)[0]
    one, two = end(0, 1, own), end(0, 1, own)
    one.open()
    with pytest.raises(NotReadyError, match=r"UDP port 4791 of .*in use"):
        two.open()
    one.close()
    two.close()


def test_polling_what_is_not_open_is_told():
    one = ends(1)[0]
    with pytest.raises(RunError, match="closed"):
        one.poll(0)
    with pytest.raises(RunError, match="before open"):
        one.connect({}, in_ns(1))
    one.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mtu": 1000}, "path MTU"),
        ({"operation": "read"}, "operation"),
        ({"ports": "odd"}, "ports"),
        ({"ports": []}, "ports"),
        ({"ports": [80]}, "ports"),
        ({"spray": "message"}, "spray"),
        ({"speed": 1}, "speed"),
        ({"retries": -1}, "retries"),
    ],
)
def test_options_are_checked(options, told):
    with pytest.raises(InputError, match=told):
        choice("roce").check(options)


def test_a_path_mtu_must_fit_the_way():
    with pytest.raises(InputError, match="4096 bytes of payload do not fit an MTU of 1500") as caught:
        end(0, 1, "127.0.0.1", options={"mtu": 4096}, mtu_bytes=1500)
    assert "at most 1024" in caught.value.fix
    with pytest.raises(InputError, match="do not fit"):
        end(0, 1, "127.0.0.1", mtu_bytes=200)


def test_source_ports():
    assert port_of(8, 3, 5, 1, {}) == source_port(8, 3, 5, 1)
    assert port_of(8, 3, 5, 1, {"ports": [5000, 5001]}) == 5001
    hashed = [port_of(8, 3, peer, flow, {"ports": "hash"}) for peer in range(8) for flow in range(4)]
    assert min(hashed) >= 0xC000
    assert len(set(hashed)) > 24
    assert choice("roce").source_port(8, 3, 5, 0, {"ports": "hash"}) == port_of(8, 3, 5, 0, {"ports": "hash"})


# ---- hostile packets


def hostile(choose, target):
    """A datagram: noise, or a packet that is nearly right, with or without a right ICRC."""
    if choose.random() < 0.2:
        return choose.randbytes(choose.choice([0, 3, 15, 16, 17, 60, 300]))
    opcode = choose.choice(list(Opcode))
    body = Packet(
        opcode,
        target.qpn if choose.random() < 0.8 else choose.randrange(1 << 24),
        (target.psn + choose.randrange(-3, 5)) & 0xFF_FFFF if choose.random() < 0.7 else choose.randrange(1 << 24),
        ack_request=choose.random() < 0.5,
        reth=Reth(choose.randrange(1 << 64), choose.randrange(1 << 32), choose.choice([0, 1, 4_096, 1 << 31])),
        payload=choose.randbytes(choose.choice([0, 1, 8, 64, 256])),
    ).body()
    return bytearray(body)


def forged(choose, target, way):
    data = hostile(choose, target)
    if isinstance(data, bytes):
        return data
    for _ in range(choose.choice([0, 0, 1, 3])):
        data[choose.randrange(len(data))] = choose.randrange(256)
    if choose.random() < 0.5:
        return sealed(way, bytes(data))
    return bytes(data) + choose.randbytes(4)


@pytest.mark.parametrize("operation", ["write", "send"])
def test_hostile_packets_do_no_harm(operation):
    """From a stranger; the next test has those from the peer's own address."""
    choose = random.Random(4)
    options = {"operation": operation}
    with Party(ends(2, options=options)) as party, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        receiver = party.ends[1]
        pair = receiver._by_peer[0][0]
        near = pair.near
        stranger.bind((addresses(1)[0], 0))
        way = Way.between(*stranger.getsockname()[:1], near.address, stranger.getsockname()[1])
        for number in range(50_000 if operation == "write" else 5_000):
            stranger.sendto(forged(choose, near, way), (near.address, PORT))
            if number % 20 == 0:
                assert party.poll(1) == []
        exchange_both_ways(party, [0, 5, 100_000])
        statistics = receiver.statistics()
        assert statistics["strays"] > 1_000
        assert statistics["taken"] == 27
        assert receiver.moved() == party.truth(1)


def test_hostile_packets_from_the_peers_own_address_are_never_delivered():
    """Whoever can send from the peer's address with a right ICRC can break a queue pair, but deliver nothing to it."""
    choose = random.Random(5)
    broken = delivered = sent = 0
    while sent < 50_000:
        own = addresses(2)
        with Party([end(rank, 2, own[rank]) for rank in (0, 1)]) as party:
            receiver = party.ends[1]
            pair = receiver._by_peer[0][0]
            target = pair.near._replace(psn=pair.far.psn)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger:
                forger.bind((own[0], 0))
                way = Way.between(own[0], own[1], forger.getsockname()[1])
                for number in range(2_500):
                    forger.sendto(forged(choose, target, way), (own[1], PORT))
                    if number % 20 == 0:
                        assert party.poll(1) == []
            sent += 2_500
            broken += pair.responder._broken is not None
            delivered += sum(messages for messages, _ in receiver.moved()["received"].values())
            assert pair.statistics()["icrc_errors"] > 0
    assert delivered == 0
    assert broken > 0


def test_meetings_that_are_none_are_ignored():
    with Party(ends(2)) as party, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        near = party.ends[1]._by_peer[0][0].near
        stranger.bind((addresses(1)[0], 0))
        way = Way.between(stranger.getsockname()[0], near.address, stranger.getsockname()[1])
        choose = random.Random(6)
        tie = party.ends[1]._registry.ties[0, 0]
        for kind in [*Kind] * 20:
            meeting = Meeting(kind, choose.randrange(1 << 32), tie.local, qpn=near.qpn, private=choose.randbytes(60))
            body = bytearray(meeting.packet(1).body())
            if choose.random() < 0.5:
                body[choose.randrange(20, len(body))] ^= 1 << choose.randrange(8)
            stranger.sendto(sealed(way, bytes(body)), (near.address, PORT))
            stranger.sendto(struct.pack("!BB", 0x64, 0) + bytes(30), (near.address, PORT))
            party.poll(1)
        exchange_both_ways(party, [10])


def test_a_peer_without_a_socket_is_gone():
    """What a killed process leaves is a host that says: nobody at that port."""
    with Party(ends(2)) as party:
        party.exchange(0, 1)
        party.settle()
        silent = party.ends[1]
        for outlet in silent._outlets.values():
            outlet.sock.close()
        silent._outlets = {}
        party.ends[0].post_send(900, 1, 0, 10)
        with pytest.raises(RunError, match=r"rank 1 is gone \(Connection refused\); 1 sends to it and 0 receives"):
            party.poll_for(5, 0)


def test_a_peer_that_falls_silent_is_given_up_after_the_retries():
    with Party(ends(2, options={"timeout_ms": 5, "retries": 2})) as party:
        party.ends[0].post_send(900, 1, 0, 10_000)
        with pytest.raises(RunError, match=r"rank 1 is gone \(no acknowledgement after 2 retries\)") as caught:
            party.poll_for(5, 0)
        assert "firewalls for UDP port 4791" in caught.value.fix


def test_a_peer_that_owes_a_message_is_asked_for_a_sign_of_life(monkeypatch):
    monkeypatch.setattr("genie.replay.transports.roce.transport.QUIET_NS", 20_000_000)
    with Party(ends(2, options={"timeout_ms": 5, "retries": 2})) as party:
        party.recv(1, 0)
        party.poll_for(0.1, 0, 1)  # it lives
        assert party.ends[1].statistics()["sent"] >= 1
        with pytest.raises(RunError, match=r"rank 0 is gone .*; 0 sends to it and 1 receives"):
            party.poll_for(5, 1)
