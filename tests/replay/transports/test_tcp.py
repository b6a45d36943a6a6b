"""TCP: the conformance suite in several set-ups, and what only TCP has: strangers, malformed frames, ports, pacing."""

import contextlib
import itertools
import os
import random
import re
import signal
import socket
import statistics
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
from conformance import MIB, PATIENCE_S, NetworkConformance, Party, connect_all, in_ns, now_ns

from genie.errors import InputError, NotReadyError, RunError
from genie.replay.transports import framing
from genie.replay.transports.framing import ACK, ANSWER_BYTES, DATA, FRAME_BYTES, Frame, Link
from genie.replay.transports.payload import payload
from genie.replay.transports.tcp import TcpOptions, TcpTransport

SECRET = bytes(range(32))
OTHER_SECRET = bytes(32)
HOME = "127.0.0.1"

_subnets = itertools.count(1)


def address_of(server):
    return {"address": HOME, "port": server.getsockname()[1]}


def options(**kwargs):
    return TcpOptions(**({"address": HOME, "secret": SECRET} | kwargs))


def ends(ranks, **kwargs):
    return [TcpTransport(rank, options(**kwargs)) for rank in range(ranks)]


class TestTcp(NetworkConformance):
    kwargs: ClassVar[dict[str, object]] = {}

    def make(self, ranks):
        return ends(ranks, **self.kwargs)

    make_slow = make


class TestTcpVerified(TestTcp):
    kwargs: ClassVar[dict[str, object]] = {"verify": True}


class TestTcpWithThreeFlows(TestTcp):
    kwargs: ClassVar[dict[str, object]] = {"flows": 3}
    flows = 3


class TestTcpWithSmallBuffers(TestTcp):
    kwargs: ClassVar[dict[str, object]] = {"send_buffer_bytes": 8192, "receive_buffer_bytes": 8192, "verify": True}


class TestTcpPaced(TestTcp):
    kwargs: ClassVar[dict[str, object]] = {"rate_bps": 4_000_000_000}


# ---- who may join


def test_ranks_with_another_secret_are_refused_on_both_sides():
    pair = {0: TcpTransport(0, options()), 1: TcpTransport(1, options(secret=OTHER_SECRET))}
    try:
        raised = connect_all(pair, {rank: end.open() for rank, end in pair.items()}, 0.3)
        # whoever is told first raises at once; the other may find it gone
        assert any(re.match(r"cannot join rank [01] at .*: it refuses rank", error.what) for error in raised.values())
        assert all("secret of another run" in error.what for error in raised.values())
    finally:
        for end in pair.values():
            end.close()


def test_the_secret_does_not_travel():
    link = Link(1, 2, 0)
    for words in (framing.pack_hello(link, SECRET), framing.pack_answer(link, framing.Verdict.WELCOME, SECRET)):
        assert not any(SECRET[at : at + 4] in words for at in range(28))


@contextlib.contextmanager
def strangers(endpoint, *greetings):
    """Connections that say something, or nothing, and stay."""
    with contextlib.ExitStack() as stack:
        socks = []
        for greeting in greetings:
            sock = stack.enter_context(socket.create_connection((endpoint["address"], endpoint["port"])))
            sock.settimeout(PATIENCE_S)
            sock.sendall(greeting)
            socks.append(sock)
        yield socks


def test_strangers_are_refused_and_hold_nobody_up():
    pair = dict(enumerate(ends(2)))
    endpoints = {rank: end.open() for rank, end in pair.items()}
    old = bytearray(framing.pack_hello(Link(1, 0, 0), SECRET))
    old[2:4] = b"\0\1"
    greetings = [
        b"",
        b"GET / HTTP/1.1\r\n" + bytes(100),
        framing.pack_hello(Link(1, 0, 0), OTHER_SECRET),
        framing.pack_hello(Link(7, 0, 0), SECRET),
        framing.pack_hello(Link(1, 3, 0), SECRET),
        bytes(old),
        b"\x6e",
    ]
    with strangers(endpoints[0], *greetings) as socks:
        assert connect_all(pair, endpoints) == {}
        verdicts = [struct.unpack("!I", socks[at].recv(ANSWER_BYTES)[4:8])[0] for at in (1, 2, 3, 4, 5)]
        assert verdicts == [3, 2, 3, 3, 1]
    party = Party(pair.values())
    party.exchange(0, 1)
    party.settle()
    for end in pair.values():
        end.close()


def test_refused_strangers_are_mentioned_when_somebody_is_missing():
    end = ends(1)[0]
    endpoint = end.open()
    silent = socket.create_server((HOME, 0))
    with silent, strangers(endpoint, framing.pack_hello(Link(1, 0, 0), OTHER_SECRET)):
        with pytest.raises(RunError, match="rank") as caught:
            end.connect({1: address_of(silent)}, in_ns(0.2))
        assert "Refused meanwhile: a caller from 127.0.0.1 (it has the secret of another run)" in caught.value.what
    end.close()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n" + bytes(100), "another program"),
        (framing.pack_answer(Link(0, 1, 0), framing.Verdict.WELCOME, OTHER_SECRET), "another run"),
        (framing.pack_answer(Link(0, 2, 0), framing.Verdict.WELCOME, SECRET), "another run"),
        (framing.pack_answer(Link(0, 1, 0), framing.Verdict.UNEXPECTED, SECRET), "not expected there"),
        (framing.pack_answer(Link(0, 1, 0), 77, SECRET), "no reason given"),
    ],
)
def test_a_wrong_answer_is_told_at_once(words, told):
    end = ends(1)[0]
    end.open()
    with socket.create_server((HOME, 0)) as server, ThreadPoolExecutor(1) as pool:
        server.settimeout(PATIENCE_S)
        joined = pool.submit(end.connect, {1: address_of(server)}, in_ns(PATIENCE_S))
        with server.accept()[0] as sock:
            sock.sendall(words)
            with pytest.raises(RunError, match=told):
                joined.result(PATIENCE_S)
    end.close()


def test_connect_needs_open():
    with pytest.raises(RunError, match="before open"):
        ends(1)[0].connect({}, in_ns(1))


@pytest.mark.parametrize(
    ("kwargs", "told"), [({"secret": b"short"}, "32 bytes"), ({"flows": 0}, "flows"), ({"rate_bps": -1}, "rate_bps")]
)
def test_options_are_checked(kwargs, told):
    with pytest.raises(InputError, match=told):
        options(**kwargs)


def test_an_address_of_somebody_else_is_refused():
    with pytest.raises(NotReadyError, match=r"192\.0\.2\.1"):
        ends(1, address="192.0.2.1")[0].open()


def test_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        with pytest.raises(NotReadyError, match="::1"):
            ends(1, address="::1")[0].open()
        return
    with Party(ends(2, address="::1", verify=True)) as party:
        party.exchange(0, 1, 1, 100_000)
        party.settle()


# ---- ports


def test_source_ports_are_as_asked_and_free_again_at_once():
    addresses = [f"127.{200 + os.getpid() % 50}.{next(_subnets)}.{rank + 1}" for rank in range(3)]

    def make(rank):
        def port(peer, flow):
            return 21_000 + 100 * rank + 10 * peer + flow

        own = {"address": addresses[rank], "port": 18_600, "flows": 2, "source_port": port}
        return TcpTransport(rank, options(**own))

    for _ in range(3):
        with Party([make(rank) for rank in range(3)]) as party:
            for pair in itertools.permutations(range(3), 2):
                party.exchange(*pair)
            party.settle()
            for rank, end in party.ends.items():
                ports = {s.sock.getsockname()[1] for senders in end._senders.values() for s in senders}
                assert ports == {
                    21_000 + 100 * rank + 10 * peer + flow for peer in range(3) if peer != rank for flow in range(2)
                }


def test_a_source_port_in_use_is_told_at_the_deadline():
    with socket.create_server((HOME, 0)) as taken:
        port = taken.getsockname()[1]
        pair = {0: TcpTransport(0, options(source_port=lambda *_: port)), 1: TcpTransport(1, options())}
        raised = connect_all(pair, {rank: end.open() for rank, end in pair.items()}, 0.2)
        assert "no local port" in raised[0].what
        assert "it has not called us" in raised[1].what
        for end in pair.values():
            end.close()


def test_a_call_that_reaches_itself_is_no_connection():
    with socket.create_server((HOME, 0)) as server:
        port = server.getsockname()[1]
    pair = {0: TcpTransport(0, options(source_port=lambda *_: port))}
    pair[0].open()
    raised = connect_all(pair, {1: {"address": HOME, "port": port}}, 0.2)
    assert "Connection refused" in raised[0].what
    pair[0].close()


# ---- a peer that breaks the protocol


@contextlib.contextmanager
def impostor(**kwargs):
    """Rank 0, and rank 1 whose sockets are in the test's own hands: from and to rank 0."""
    end = TcpTransport(0, options(**kwargs))
    endpoint = end.open()
    with socket.create_server((HOME, 0)) as server, ThreadPoolExecutor(1) as pool:
        server.settimeout(PATIENCE_S)
        joined = pool.submit(end.connect, {1: address_of(server)}, in_ns(PATIENCE_S))
        with socket.create_connection((HOME, endpoint["port"])) as outgoing, server.accept()[0] as incoming:
            outgoing.sendall(framing.pack_hello(Link(1, 0, 0), SECRET))
            incoming.sendall(framing.pack_answer(Link(0, 1, 0), framing.Verdict.WELCOME, SECRET))
            joined.result(PATIENCE_S)
            for sock, words in ((incoming, framing.HELLO_BYTES), (outgoing, ANSWER_BYTES)):
                sock.settimeout(PATIENCE_S)
                assert len(sock.recv(words, socket.MSG_WAITALL)) == words
            try:
                yield end, incoming, outgoing
            finally:
                end.close()


def poll_until_broken(end):
    until = in_ns(PATIENCE_S)
    while now_ns() < until:
        end.poll(10_000_000)
    pytest.fail("nothing was told")


MALFORMED = [
    bytes(FRAME_BYTES),
    b"GET / HTTP/1.1\r\nHost: genie.example.org\r\n\r\n",
    struct.pack("!HHIqQQ", framing.MAGIC, 3, 0, 0, 0, 0),
    struct.pack("!HHIqQQ", framing.MAGIC, DATA, 0, 0, (8 << 30) + 1, 0),
    struct.pack("!HHIqQQ", framing.MAGIC, DATA, 0, 0, 1 << 63, 0),
    Frame(DATA, 0, 0, 1).pack(),
    Frame(DATA, 0, 0, 0).pack() * 2,
    Frame(ACK, 0, 0, 0).pack(),
    *(random.Random(seed).randbytes(5_000) for seed in range(5)),
]


@pytest.mark.parametrize("words", MALFORMED)
def test_malformed_data_is_told(words):
    with impostor() as (end, _, outgoing):
        outgoing.sendall(words)
        with pytest.raises(RunError, match=r"no frame of ours|where \d+ was due") as caught:
            poll_until_broken(end)
        assert caught.value.where == "rank 0, connection with rank 1"
        assert sum(messages for messages, _ in end.moved()["received"].values()) <= 1


@pytest.mark.parametrize("words", [*MALFORMED, Frame(DATA, 0, 0, 0).pack(), Frame(ACK, 0, 0, 2).pack()])
def test_malformed_acknowledgements_are_told(words):
    with impostor() as (end, incoming, _):
        end.post_send(1, 1, 0, 10)
        end.post_send(2, 1, 0, 10)
        incoming.sendall(Frame(ACK, 0, 0, 1).pack() + Frame(ACK, 0, 0, 1).pack() if words == MALFORMED[7] else words)
        with pytest.raises(RunError, match=r"no frame of ours|not outstanding"):
            poll_until_broken(end)


def test_one_acknowledgement_may_stand_for_many():
    with impostor() as (end, incoming, _):
        for handle in range(3):
            end.post_send(handle, 1, 0, 10)
        incoming.sendall(Frame(ACK, 0, 0, 1).pack())
        assert [c.handle for c in end.poll(PATIENCE_S * 10**9)] == [0, 1]
        acknowledgement = Frame(ACK, 0, 0, 2).pack()
        incoming.sendall(acknowledgement[:9])
        assert end.poll(10_000_000) == []
        incoming.sendall(acknowledgement[9:])
        assert [c.handle for c in end.poll(PATIENCE_S * 10**9)] == [2]


@pytest.mark.parametrize("wrong_at", [0, 1_500, 3_000, 99_999])
def test_payload_is_checked_by_content(wrong_at):
    content = bytearray(payload(0, 0, 100_000))
    content[wrong_at] ^= 1
    with impostor(verify=True) as (end, _, outgoing):
        outgoing.sendall(Frame(DATA, 4, 100_000, 0).pack() + content)
        with pytest.raises(RunError, match=rf"byte {wrong_at} of message 0 \(tag 4, 100000 bytes\)"):
            poll_until_broken(end)


def test_payload_of_another_message_is_found_out():
    with impostor(verify=True) as (end, _, outgoing):
        outgoing.sendall(Frame(DATA, 0, 100, 0).pack() + bytes(payload(1, 0, 100)))
        with pytest.raises(RunError, match="byte 0 of message 0"):
            poll_until_broken(end)


@pytest.mark.parametrize("piece", [1, 7, 33, 5_000])
def test_a_message_may_come_in_any_pieces(piece):
    sizes = [0, 10, 3_000, 0, 1]
    words = b"".join(Frame(DATA, n, size, n).pack() + bytes(payload(n, 0, size)) for n, size in enumerate(sizes))
    with impostor(verify=True) as (end, _, outgoing):
        outgoing.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number, size in enumerate(sizes):
            end.post_recv(number, 1, number, size)
        seen = []
        for at in range(0, len(words), piece):
            outgoing.sendall(words[at : at + piece])
            seen += end.poll(0)
        while len(seen) < len(sizes):
            seen += end.poll(PATIENCE_S * 10**9)
        assert [c.handle for c in seen] == list(range(len(sizes)))
        assert end.moved()["received"] == {1: [5, sum(sizes)]}


@pytest.mark.parametrize(
    ("sent_bytes", "told"),
    [(10, "10 bytes of a message's header"), (FRAME_BYTES, "0 of 5000 bytes"), (FRAME_BYTES + 4_000, "4000 of 5000")],
)
@pytest.mark.parametrize("reset", [False, True])
def test_an_end_in_the_middle_of_a_message_says_how_far_it_was(sent_bytes, told, reset):
    with impostor() as (end, _, outgoing):
        outgoing.sendall((Frame(DATA, 3, 5_000, 0).pack() + bytes(5_000))[:sent_bytes])
        end.poll(20_000_000)
        if reset:
            outgoing.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))
        outgoing.close()
        with pytest.raises(RunError, match=told) as caught:
            poll_until_broken(end)
        assert ("Connection reset by peer" if reset else "it closed the connection") in caught.value.what
        assert f"{sent_bytes} come from it" in caught.value.what


def test_a_process_that_is_killed_is_named():
    parent = TcpTransport(0, options())
    endpoint = parent.open()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        child = TcpTransport(1, options())
        os.write(write, str(child.open()["port"]).encode())
        child.connect({0: endpoint}, in_ns(PATIENCE_S))
        child.post_recv(1, 0, 0, 1)
        while not child.poll(10**9):
            pass
        child.post_send(2, 0, 0, 4 << 30)  # more than can be sent before we are killed
        while True:
            child.poll(10**9)
    try:
        parent.connect({1: {"address": HOME, "port": int(os.read(read, 10))}}, in_ns(PATIENCE_S))
        parent.post_recv(1, 1, 0, 4 << 30)
        parent.post_send(2, 1, 0, 1)
        while parent.progress_bytes() < 10 * MIB:
            parent.poll(1_000_000)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RunError, match=r"rank 1 is gone .* 1 receives .* of 4294967296 bytes"):
            poll_until_broken(parent)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        parent.close()
        os.close(read)
        os.close(write)


def test_sizes_are_bounded():
    with Party(ends(2)) as party:
        for size_bytes in (-1, (8 << 30) + 1):
            with pytest.raises(RunError, match="beyond the limit"):
                party.ends[0].post_send(0, 1, 0, size_bytes)


# ---- times and shares


def test_a_message_is_dated_when_the_kernel_got_it_not_when_somebody_looked():
    with Party(ends(2)) as party:
        delays_ns = []
        for tag in range(10):  # if no other socket wanted stamps, the kernel needs some ms to begin
            receive, _ = party.exchange(0, 1, tag, 1_000)
            time.sleep(0.05)  # the receiver is busy with something else
            party.settle()
            delays_ns.append(party.done[receive].done_ns - party.done[receive].posted_ns)
        assert statistics.median(delays_ns) < 25_000_000


def test_one_long_message_does_not_hold_up_the_others():
    with Party(ends(3)) as party:
        party.exchange(0, 1, 1, 256 * MIB)
        small = party.exchange(0, 2, 1, 100)
        party.settle(handles=small)
        assert party.ends[1].progress_bytes() < 128 * MIB
        party.settle()


RATE_BPS = 80_000_000
MESSAGE_BYTES = 500_000
IDEAL_NS = 50_000_000


def test_paced_messages_take_their_time_and_share_the_link():
    with Party(ends(3, rate_bps=RATE_BPS)) as party:
        time.sleep(0.03)  # an idle link saves nothing up
        before_ns = now_ns()
        pairs = [party.exchange(0, peer, 1, MESSAGE_BYTES) for peer in (1, 2)]
        party.settle()
        took_ns = [party.done[receive].done_ns - before_ns for receive, _ in pairs]
        assert 2 * IDEAL_NS - 1_000_000 < max(took_ns) < 3 * IDEAL_NS
        assert abs(took_ns[0] - took_ns[1]) < IDEAL_NS / 2


def test_a_paced_message_behind_nothing_takes_its_size_over_the_rate():
    with Party(ends(2, rate_bps=RATE_BPS)) as party:
        took_ns = []
        for tag in range(3):
            receive, _ = party.exchange(0, 1, tag, MESSAGE_BYTES)
            party.settle()
            took_ns.append(party.done[receive].done_ns - party.done[receive].posted_ns)
        assert min(took_ns) >= IDEAL_NS
        assert min(took_ns) < 1.2 * IDEAL_NS
