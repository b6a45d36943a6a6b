"""Is a fabric true? Plain TCP flows over it, timed; nothing of the replay's own is involved.

Both ends of a flow are processes of their own, in the namespaces of their hosts. Times are virtual.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from genie.core.testbed import Endpoint, Testbed
from genie.errors import RunError
from genie.testbed.emulated import EmulatedFabric
from genie.testbed.namespaces import die_with_parent, inside
from genie.units import NS_PER_MS, NS_PER_S, transfer_ns

FIRST_PORT: Final = 30_000
PIECE_BYTES: Final = 1 << 18
NOTICE_NS: Final = 10 * NS_PER_MS
READY_TIMEOUT_NS: Final = 10 * NS_PER_S
_TCP_INFO_BYTES: Final = 104
_TOTAL_RETRANSMISSIONS_AT: Final = 100
_FORGET_ON_CLOSE: Final = struct.pack("=ii", 1, 0)
_READY: Final = b"."
_START: Final = struct.Struct("=q")
_REPORT: Final = struct.Struct("=qq")


@dataclass(frozen=True, slots=True)
class Flow:
    """So many bytes from host to host; `sport` chooses the path where there are several, 0 leaves it to the kernel."""

    source: str | Endpoint
    destination: str | Endpoint
    size_bytes: int
    sport: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """When a flow's first byte was posted and its last received, counted from the common start; packets sent again."""

    flow: Flow
    begun_ns: float
    done_ns: float
    retransmissions: int

    @property
    def fct_ns(self) -> float:
        """Flow completion time."""
        return self.done_ns - self.begun_ns


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    line: socket.socket


def probe(fabric: EmulatedFabric, flows: Sequence[Flow]) -> list[Measured]:
    """Send all flows at once.

    Raises:
        RunError: a flow that did not end within ten times what all bytes take one after the other, or that died.
    """
    pairs = [_connect(fabric, flow, FIRST_PORT + at) for at, flow in enumerate(flows)]
    processes: list[_Process] = []
    try:
        for flow, (sender, receiver) in zip(flows, pairs, strict=True):
            processes.append(_fork(functools.partial(_send, sender, flow.size_bytes)))
            processes.append(_fork(functools.partial(_receive, receiver, flow.size_bytes)))
        for sock in (sock for pair in pairs for sock in pair):
            sock.close()
        return _collect(fabric.testbed, flows, processes, _start(flows, processes))
    finally:
        for process in processes:
            _end(process)


def _start(flows: Sequence[Flow], processes: Sequence[_Process]) -> int:
    """Wait until all processes are ready, then tell them one moment to start at."""
    deadline_ns = time.monotonic_ns() + READY_TIMEOUT_NS
    for at, process in enumerate(processes):
        _hear(process, flows[at // 2], deadline_ns, len(_READY))
    start_ns = time.monotonic_ns() + NOTICE_NS
    for process in processes:
        process.line.send(_START.pack(start_ns))
    return start_ns


def _connect(fabric: EmulatedFabric, flow: Flow, port: int) -> tuple[socket.socket, socket.socket]:
    """(sending, receiving) end of a connection between the hosts."""
    with inside(fabric.namespace_fd(flow.destination)):
        listener = socket.create_server((fabric.address(flow.destination), port))
    with inside(fabric.namespace_fd(flow.source)):
        sender = socket.socket()
    with listener:
        sender.bind((fabric.address(flow.source), flow.sport))
        sender.settimeout(1)
        sender.connect(listener.getsockname())
        sender.settimeout(None)
        receiver = listener.accept()[0]
    for sock in (sender, receiver):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _FORGET_ON_CLOSE)  # so that ports can be used again
    return sender, receiver


def _fork(work: Callable[[int], tuple[int, int]]) -> _Process:
    """A process that says that it is ready, hears when to start, and reports two numbers."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent()
            with contextlib.suppress(PermissionError):
                os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
            theirs.send(_READY)
            theirs.send(_REPORT.pack(*work(*_START.unpack(theirs.recv(_START.size)))))
        finally:
            os._exit(0)
    theirs.close()
    return _Process(pid, ours)


def _send(sock: socket.socket, size_bytes: int, start_ns: int) -> tuple[int, int]:
    """(when it began, retransmissions)."""
    piece = memoryview(bytes(PIECE_BYTES))
    time.sleep(max(0, start_ns - time.monotonic_ns()) / NS_PER_S)
    begun_ns, left = time.monotonic_ns(), size_bytes
    while left:
        left -= sock.send(piece[: min(left, PIECE_BYTES)])
    sock.recv(1)  # the receiver has everything
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    return begun_ns, struct.unpack_from("=I", info, _TOTAL_RETRANSMISSIONS_AT)[0]


def _receive(sock: socket.socket, size_bytes: int, _: int) -> tuple[int, int]:
    """(when the last byte was there, bytes that came)."""
    into, left = bytearray(PIECE_BYTES), size_bytes
    while left and (count := sock.recv_into(into)):
        left -= count
    done_ns = time.monotonic_ns()
    sock.send(b"!")
    return done_ns, size_bytes - left


def _collect(testbed: Testbed, flows: Sequence[Flow], processes: Sequence[_Process], start_ns: int) -> list[Measured]:
    slowest_bps = min(cable.rate_bps for cable in testbed.cables)
    alone_ns = transfer_ns(sum(flow.size_bytes for flow in flows), slowest_bps) * testbed.dilation
    deadline_ns = start_ns + 10 * alone_ns + NS_PER_S
    found = []
    for at, flow in enumerate(flows):
        begun_ns, again = _REPORT.unpack(_hear(processes[2 * at], flow, deadline_ns, _REPORT.size))
        done_ns, received_bytes = _REPORT.unpack(_hear(processes[2 * at + 1], flow, deadline_ns, _REPORT.size))
        if received_bytes != flow.size_bytes:
            raise RunError(f"{received_bytes} of {flow.size_bytes} bytes came.", where=_name(flow))
        begun, done = ((moment - start_ns) / testbed.dilation for moment in (begun_ns, done_ns))
        found.append(Measured(flow, begun, done, again))
    return found


def _hear(process: _Process, flow: Flow, deadline_ns: float, size: int) -> bytes:
    left_ns = max(0.0, deadline_ns - time.monotonic_ns())
    if not select.select([process.line], [], [], left_ns / NS_PER_S)[0]:
        raise RunError("the flow does not end.", where=_name(flow))
    words = process.line.recv(size)
    if len(words) < size:
        raise RunError("its process ended without a report.", where=_name(flow))
    return words


def _name(flow: Flow) -> str:
    return f"flow {flow.source} to {flow.destination}"


def _end(process: _Process) -> None:
    process.line.close()
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
