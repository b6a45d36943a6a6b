"""What the tcp transport adds to its sockets: goodput against bare loops and iperf3, cost of small messages.

Two processes over loopback, and over one link of an emulated fabric. Runs of what is compared take turns, since the
machine's own speed changes by the minute; each figure is the median of its rounds.

On loopback processors are the limit, and iperf3's receiver copies every byte, where the transport's has the kernel
throw payload away. So two bare loops that differ in that alone say what the copy costs, and the transport is compared
twice: as it is used, and with `verify`, where it copies, too (and compares). On a link that is slower than processors
are the copy costs nothing: there the ratio must be 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import iperf3
from report import Row, write

from genie.core.testbed import LinkSpec, Testbed, single_switch
from genie.replay.transports.base import Kind, Transport
from genie.replay.transports.framing import SECRET_BYTES
from genie.replay.transports.tcp import TcpOptions, TcpTransport
from genie.testbed.emulated import EmulatedFabric
from genie.testbed.namespaces import capability, inside

HOME = "127.0.0.1"
ROUNDS = 7
PIECE_BYTES = 1 << 20
STREAM_BYTES = 1 << 30
WIDE_BYTES = 4 << 20
SMALL_BYTES = 64
SMALL_MESSAGES = 10_000
PINGS = 2_000
PATIENCE_NS = 10_000_000_000
SAME_BYTES = 1 << 20
"""Both kernel buffers where iperf3 is compared with."""

LINK = LinkSpec(1_000_000_000, 20_000, 1 << 20)
LINK_BYTES = 64 << 20
TARGET, SUSPICIOUS = 0.95, 1.1


class Way(NamedTuple):
    """Where the two ends are: addresses, and descriptors of network namespaces (-1: this one)."""

    addresses: tuple[str, str] = (HOME, HOME)
    places: tuple[int, int] = (-1, -1)

    def enter(self, rank: int) -> AbstractContextManager[None]:
        """Be where that end is."""
        return inside(self.places[rank]) if self.places[rank] >= 0 else nullcontext()


LOOPBACK = Way()


class Measured(NamedTuple):
    """`value` of the first process, processor seconds of both."""

    value: float
    cpu_s: float


def pair(first: Callable[[], float], second: Callable[[], None]) -> Measured:
    """Run two processes to their ends."""
    read, written = os.pipe()
    child = os.fork()
    if child == 0:
        second()
        os.write(written, json.dumps(time.process_time()).encode())
        os._exit(0)
    before_s = time.process_time()
    value = first()
    cpu_s = time.process_time() - before_s
    cpu_s += float(json.loads(os.read(read, 100)))
    os.waitpid(child, 0)
    os.close(read)
    os.close(written)
    return Measured(value, cpu_s)


def bare_gbps(buffer_bytes: int = 0, send_buffer_bytes: int = 0, *, copies: bool = False) -> float:
    """One connection, one message, as fast as sendall and a receiver go that discards, or copies, what comes.

    Buffers of 0 bytes are the kernel's own.
    """

    def sized() -> socket.socket:
        sock = socket.socket()
        if buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes // 2)
        if send_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes // 2)
        return sock

    listener = sized()
    listener.bind((HOME, 0))
    listener.listen()

    def send() -> float:
        with sized() as sock:
            sock.connect(listener.getsockname())
            piece, before_s = bytes(PIECE_BYTES), time.perf_counter()
            for _ in range(STREAM_BYTES // PIECE_BYTES):
                sock.sendall(piece)
            sock.recv(1)
            return STREAM_BYTES * 8 / (time.perf_counter() - before_s) / 1e9

    def receive() -> None:
        sock, _ = listener.accept()
        view, left = memoryview(bytearray(PIECE_BYTES)), STREAM_BYTES
        while left:
            left -= sock.recv_into(view, PIECE_BYTES, 0 if copies else socket.MSG_TRUNC)
        sock.send(b".")
        sock.close()

    with listener:
        return pair(send, receive).value


def over_tcp(
    first: Callable[[Transport], float],
    second: Callable[[Transport], None],
    receive_buffer_bytes: int = 256 << 10,
    way: Way = LOOPBACK,
    *,
    verify: bool = False,
) -> Measured:
    """The same through connected transports of ranks 0 and 1."""
    here, there = socket.socketpair()
    secret = secrets.token_bytes(SECRET_BYTES)

    def run(rank: int, channel: socket.socket, work: Callable[[Transport], float | None]) -> float:
        options = TcpOptions(way.addresses[rank], secret, receive_buffer_bytes=receive_buffer_bytes, verify=verify)
        with way.enter(rank), contextlib.closing(TcpTransport(rank, options)) as transport:
            channel.sendall(json.dumps(dict(transport.open())).encode())
            transport.connect({1 - rank: json.loads(channel.recv(1000))}, time.monotonic_ns() + PATIENCE_NS)
            value = work(transport) or 0.0
            channel.sendall(b".")
            channel.recv(1)
        return value

    with here, there:
        return pair(lambda: run(0, here, first), lambda: _ignore(run(1, there, second)))


def _ignore(_: float) -> None:
    """The second process measures nothing."""


def stream(
    messages: int, size_bytes: int, ahead: int
) -> tuple[Callable[[Transport], float], Callable[[Transport], None]]:
    """Send and receive that many messages, `ahead` of them at once; seconds."""

    def send(transport: Transport) -> float:
        before_s, posted, done = time.perf_counter(), 0, 0
        while done < messages:
            for number in range(posted, min(messages, done + ahead)):
                transport.post_send(number, 1, number, size_bytes)
                posted += 1
            done += len(transport.poll(PATIENCE_NS))
        return time.perf_counter() - before_s

    def receive(transport: Transport) -> None:
        for number in range(messages):
            transport.post_recv(number, 0, number, size_bytes)
        done = 0
        while done < messages:
            done += len(transport.poll(PATIENCE_NS))

    return send, receive


def _await(transport: Transport) -> None:
    while not any(completion.kind is Kind.RECV for completion in transport.poll(PATIENCE_NS)):
        pass


def ping(transport: Transport) -> float:
    """Median seconds from posting a message to having the answer."""
    took_s = []
    for number in range(PINGS):
        before_s = time.perf_counter()
        transport.post_recv(2 * number, 1, number, SMALL_BYTES)
        transport.post_send(2 * number + 1, 1, number, SMALL_BYTES)
        _await(transport)
        took_s.append(time.perf_counter() - before_s)
    return statistics.median(took_s)


def pong(transport: Transport) -> None:
    for number in range(PINGS):
        transport.post_recv(2 * number, 0, number, SMALL_BYTES)
        _await(transport)
        transport.post_send(2 * number + 1, 0, number, SMALL_BYTES)


def tcp_gbps(
    receive_buffer_bytes: int, way: Way = LOOPBACK, size_bytes: int = STREAM_BYTES, *, verify: bool = False
) -> float:
    """One flow: 16 messages, 4 of them at once."""
    messages = 16
    send, receive = stream(messages, size_bytes // messages, 4)
    return size_bytes * 8 / over_tcp(send, receive, receive_buffer_bytes, way, verify=verify).value / 1e9


def iperf3_gbps(way: Way, size_bytes: int) -> float:
    """The same bytes by iperf3."""
    return iperf3.goodput_gbps(size_bytes, SAME_BYTES, PIECE_BYTES, way.addresses[1], way.enter(0), way.enter(1))


def bare_rows() -> list[Row]:
    """Against bare loops, and small messages."""
    bare, wide, bare_narrow, narrow, each, pings = [], [], [], [], [], []
    for _ in range(ROUNDS):
        bare.append(bare_gbps())
        wide.append(tcp_gbps(WIDE_BYTES))
        bare_narrow.append(bare_gbps(256 << 10))
        narrow.append(tcp_gbps(256 << 10))
        each.append(over_tcp(*stream(SMALL_MESSAGES, SMALL_BYTES, 64)))
        pings.append(over_tcp(ping, pong).value)
    ratio = _ratio(wide, bare)
    return [
        Row("bare socket loop, the kernel's own buffers", _median(bare), "Gb/s"),
        Row("tcp, 64 MiB messages, 4 MiB receive buffer", _median(wide), "Gb/s"),
        Row("tcp / bare loop", ratio, "", f">= {TARGET}", ratio >= TARGET),
        Row("tcp, 64 MiB messages, 256 KiB receive buffer", _median(narrow), "Gb/s"),
        Row("the same / bare loop with that buffer", _ratio(narrow, bare_narrow), ""),
        Row("64 B messages, 64 at once: time each", 1e6 / SMALL_MESSAGES * _median(m.value for m in each), "us"),
        Row("the same: processor time each, both ends", 1e6 / SMALL_MESSAGES * _median(m.cpu_s for m in each), "us"),
        Row("64 B there and back", 1e6 * _median(pings), "us"),
    ]


def loopback_rows() -> list[Row]:
    """Against iperf3 where processors are the limit."""
    theirs, ours, checked, copying, discarding = [], [], [], [], []
    for _ in range(ROUNDS):
        theirs.append(iperf3_gbps(LOOPBACK, STREAM_BYTES))
        ours.append(tcp_gbps(SAME_BYTES))
        checked.append(tcp_gbps(SAME_BYTES, verify=True))
        copying.append(bare_gbps(SAME_BYTES, SAME_BYTES, copies=True))
        discarding.append(bare_gbps(SAME_BYTES, SAME_BYTES))
    ratio = _ratio(ours, theirs)
    return [
        Row("loopback, 1 MiB buffers, 1 MiB pieces: iperf3", _median(theirs), "Gb/s"),
        Row("  tcp", _median(ours), "Gb/s"),
        Row("  tcp / iperf3", ratio, "", f">= {TARGET}", ratio >= TARGET),
        Row("  what not copying gives a receiver: bare loops, without / with", _ratio(discarding, copying), ""),
        Row("  bare loop that copies / iperf3", _ratio(copying, theirs), ""),
        Row("  tcp that copies and compares every byte (verify) / iperf3", _ratio(checked, theirs), ""),
    ]


def link_rows() -> list[Row]:
    """Against iperf3 where a link is the limit; a ratio far from 1 would mean that one of them is measured wrongly."""
    nodes, cables = single_switch(2, LINK, seed=1)
    theirs, ours = [], []
    with EmulatedFabric(Testbed("bench", nodes, cables, ("h0", "h1"), 1)) as fabric:
        hosts = fabric.testbed.hosts
        way = Way(
            (fabric.address(hosts[0]), fabric.address(hosts[1])),
            (fabric.namespace_fd(hosts[0]), fabric.namespace_fd(hosts[1])),
        )
        for _ in range(ROUNDS):
            theirs.append(iperf3_gbps(way, LINK_BYTES))
            ours.append(tcp_gbps(SAME_BYTES, way, LINK_BYTES))
    ratio = _ratio(ours, theirs)
    return [
        Row("one 1 Gb/s link of a fabric: iperf3", _median(theirs), "Gb/s"),
        Row("  tcp", _median(ours), "Gb/s"),
        Row("  tcp / iperf3", ratio, "", f"{TARGET} to {SUSPICIOUS}", TARGET <= ratio <= SUSPICIOUS),
    ]


def main() -> None:
    iperf3.program()  # before anything takes long
    rows = bare_rows() + loopback_rows()
    if capability()[0] == "root":
        rows += link_rows()
    else:
        print("without root there is no fabric: its rows are left out")
    write("tcp", rows)


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """Median of the rounds' ratios."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def _median(values: Iterable[float]) -> float:
    return statistics.median(list(values))


if __name__ == "__main__":
    main()
