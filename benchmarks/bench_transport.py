"""What a transport adds to the sockets below it: goodput against a bare loop, cost and latency of small messages.

Two processes over loopback. Runs of what is compared take turns, since the machine's own speed changes by the minute;
each figure is the median of its rounds.
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
from typing import NamedTuple

from report import Row, write

from genie.replay.transports.base import Kind, Transport
from genie.replay.transports.framing import SECRET_BYTES
from genie.replay.transports.tcp import TcpOptions, TcpTransport

HOME = "127.0.0.1"
ROUNDS = 7
PIECE_BYTES = 1 << 20
STREAM_BYTES = 1 << 30
WIDE_BYTES = 4 << 20
SMALL_BYTES = 64
SMALL_MESSAGES = 10_000
PINGS = 2_000
PATIENCE_NS = 10_000_000_000


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


def bare_gbps(buffer_bytes: int = 0) -> float:
    """One connection, one message, as fast as sendall and a receiver that discards go; 0: the kernel's own buffers."""

    def sized() -> socket.socket:
        sock = socket.socket()
        if buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes // 2)
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
            left -= sock.recv_into(view, PIECE_BYTES, socket.MSG_TRUNC)
        sock.send(b".")
        sock.close()

    with listener:
        return pair(send, receive).value


def over_tcp(
    first: Callable[[Transport], float], second: Callable[[Transport], None], receive_buffer_bytes: int = 256 << 10
) -> Measured:
    """The same through connected transports of ranks 0 and 1."""
    here, there = socket.socketpair()
    secret = secrets.token_bytes(SECRET_BYTES)

    def run(rank: int, channel: socket.socket, work: Callable[[Transport], float | None]) -> float:
        options = TcpOptions(address=HOME, secret=secret, receive_buffer_bytes=receive_buffer_bytes)
        with contextlib.closing(TcpTransport(rank, options)) as transport:
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


def tcp_gbps(receive_buffer_bytes: int) -> float:
    messages = 16
    send, receive = stream(messages, STREAM_BYTES // messages, 4)
    return STREAM_BYTES * 8 / over_tcp(send, receive, receive_buffer_bytes).value / 1e9


def main() -> None:
    bare, wide, bare_narrow, narrow, each, pings = [], [], [], [], [], []
    for _ in range(ROUNDS):
        bare.append(bare_gbps())
        wide.append(tcp_gbps(WIDE_BYTES))
        bare_narrow.append(bare_gbps(256 << 10))
        narrow.append(tcp_gbps(256 << 10))
        each.append(over_tcp(*stream(SMALL_MESSAGES, SMALL_BYTES, 64)))
        pings.append(over_tcp(ping, pong).value)
    ratio = statistics.median(ours / theirs for ours, theirs in zip(wide, bare, strict=True))
    same_window = statistics.median(ours / theirs for ours, theirs in zip(narrow, bare_narrow, strict=True))
    rows = [
        Row("bare socket loop, the kernel's own buffers", statistics.median(bare), "Gb/s"),
        Row("tcp, 64 MiB messages, 4 MiB receive buffer", statistics.median(wide), "Gb/s"),
        Row("tcp / bare loop", round(ratio, 3), "", ">= 0.95", ratio >= 0.95),
        Row("tcp, 64 MiB messages, 256 KiB receive buffer", statistics.median(narrow), "Gb/s"),
        Row("the same / bare loop with that buffer", round(same_window, 3), ""),
        Row("64 B messages, 64 at once: time each", 1e6 / SMALL_MESSAGES * _median(m.value for m in each), "us"),
        Row("the same: processor time each, both ends", 1e6 / SMALL_MESSAGES * _median(m.cpu_s for m in each), "us"),
        Row("64 B there and back", 1e6 * statistics.median(pings), "us"),
    ]
    write("transport", rows)


def _median(values: Iterable[float]) -> float:
    return statistics.median(list(values))


if __name__ == "__main__":
    main()
