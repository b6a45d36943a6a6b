"""Messages over kernel TCP: connections of one direction each, many messages at once, everything non-blocking."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from genie.errors import InputError, NotReadyError, RunError
from genie.replay.clock import Clock, RealClock, realtime_offset_ns
from genie.replay.transports.base import Completion, Endpoint, Kind
from genie.replay.transports.framing import HELLO_BYTES, MAX_MESSAGE_BYTES, SECRET_BYTES, Hello, parse_hello
from genie.replay.transports.matching import Arrived, Matcher, Posted
from genie.replay.transports.tcp_connection import Outbound, Receiver, Sender

UNLIMITED: Final = 1 << 62
BACKLOG: Final = 1024
_CONNECT_RETRY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class TcpOptions:
    """How a rank talks TCP.

    Attributes:
        address: ours.
        port: to listen on; 0 lets the kernel choose.
        secret: 32 bytes that all ranks of a run share.
        flows: connections per ordered pair; messages take them in turn.
        source_port: (peer, flow) -> local port to connect from, so that ECMP paths are reproducible; None: any.
        send_buffer_bytes, receive_buffer_bytes: the kernel's; the receive buffer bounds what a sender has in flight.
        rate_bps: real payload rate to pace all sending at, 0 for none: a stand-in for a shaped link.
        verify: check every payload byte.
    """

    address: str
    secret: bytes
    port: int = 0
    flows: int = 1
    source_port: Callable[[int, int], int] | None = None
    send_buffer_bytes: int = 1 << 20
    receive_buffer_bytes: int = 256 << 10
    rate_bps: int = 0
    verify: bool = False

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise InputError(f"a run's secret has {SECRET_BYTES} bytes, not {len(self.secret)}.")
        if self.flows < 1:
            raise InputError(f"flows must be at least 1, not {self.flows}.")


class _Pacer:
    """A token bucket of real time: how many bytes may leave now, and when the next may."""

    BURST_NS: Final = 500_000

    def __init__(self, rate_bps: int) -> None:
        self._bytes_per_ns = rate_bps / 8e9
        self._free_at_ns = 0.0

    def allowance(self, now_ns: int) -> int:
        if not self._bytes_per_ns:
            return UNLIMITED
        self._free_at_ns = max(self._free_at_ns, now_ns - self.BURST_NS)
        return max(0, int((now_ns - self._free_at_ns) * self._bytes_per_ns))

    def used(self, size_bytes: int) -> None:
        if self._bytes_per_ns:
            self._free_at_ns += size_bytes / self._bytes_per_ns

    def wait_ns(self, now_ns: int) -> int:
        """Until a useful amount may leave again."""
        return max(1, int(self._free_at_ns + self.BURST_NS // 2 - now_ns)) if self._bytes_per_ns else UNLIMITED


class TcpTransport:
    """See base.Transport."""

    def __init__(self, rank: int, options: TcpOptions, clock: Clock | None = None) -> None:
        self._rank, self._options, self._clock = rank, options, clock or RealClock()
        self._listener: socket.socket | None = None
        self._epoll = select.epoll()
        self._senders: dict[int, list[Sender]] = {}
        self._receivers: list[Receiver] = []
        self._by_fd: dict[int, Sender | Receiver] = {}
        self._turn: dict[int, int] = {}
        self._matcher = Matcher()
        self._ready: list[Completion] = []
        self._pacer = _Pacer(options.rate_bps)
        self._sent: dict[int, list[int]] = {}
        self._received: dict[int, list[int]] = {}
        self._offset_ns = realtime_offset_ns()
        self._closed = False
        self._pushed_bytes = 0

    def open(self) -> Endpoint:
        """See base.Transport."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._size_buffers(listener)
        try:
            listener.bind((self._options.address, self._options.port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise NotReadyError(
                f"cannot listen on {self._options.address}:{self._options.port}: {error.strerror}.",
                where=f"rank {self._rank}",
            ) from error
        self._listener = listener
        return {"address": self._options.address, "port": listener.getsockname()[1]}

    def _size_buffers(self, sock: socket.socket) -> None:
        """Before connect or listen, since the window scale is agreed on there; the kernel doubles the figure."""
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._options.send_buffer_bytes // 2)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._options.receive_buffer_bytes // 2)

    def connect(self, peers: Mapping[int, Endpoint], deadline_ns: int) -> None:
        """See base.Transport."""
        awaited = {(peer, flow) for peer in peers for flow in range(self._options.flows)}
        for peer, endpoint in peers.items():
            self._senders[peer] = [self._call(peer, endpoint, flow, deadline_ns) for flow in range(self._options.flows)]
        while awaited:
            awaited.discard(self._accept(sorted({peer for peer, _ in awaited}), deadline_ns))
        for senders in self._senders.values():
            for sender in senders:
                self._register(sender.sock, sender)
        for receiver in self._receivers:
            self._register(receiver.sock, receiver)

    def _register(self, sock: socket.socket, end: Sender | Receiver) -> None:
        sock.setblocking(False)  # noqa: FBT003 - socket knows no keyword
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._by_fd[sock.fileno()] = end
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _left_s(self, deadline_ns: int, waiting_for: str) -> float:
        left_ns = deadline_ns - self._clock.now_ns()
        if left_ns <= 0:
            raise RunError(
                f"no connection with {waiting_for} in time.",
                where=f"rank {self._rank}",
                fix="did those ranks start, and can packets pass between the hosts?",
            )
        return left_ns / 1e9

    def _call(self, peer: int, endpoint: Endpoint, flow: int, deadline_ns: int) -> Sender:
        """Connect to a peer's listener, from the agreed source port if there is one."""
        hello = Hello(self._rank, peer, flow, self._options.secret).pack()
        while True:
            timeout_s = self._left_s(deadline_ns, f"rank {peer}")
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                self._prepare(sock, peer, flow, timeout_s)
                sock.connect((endpoint["address"], endpoint["port"]))
                sock.sendall(hello)
            except (ConnectionError, TimeoutError):
                sock.close()
                select.select([], [], [], min(_CONNECT_RETRY_S, timeout_s))
            except OSError as error:
                sock.close()
                raise RunError(f"cannot reach rank {peer}: {error.strerror}.", where=f"rank {self._rank}") from error
            else:
                return Sender(sock, peer, flow)

    def _prepare(self, sock: socket.socket, peer: int, flow: int, timeout_s: float) -> None:
        self._size_buffers(sock)
        sock.settimeout(timeout_s)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = self._options.source_port(peer, flow) if self._options.source_port else 0
        sock.bind((self._options.address, port))

    def _accept(self, missing: list[int], deadline_ns: int) -> tuple[int, int]:
        """Take one caller; (rank, flow)."""
        if self._listener is None:
            raise RunError("connect() before open().", where=f"rank {self._rank}")
        names = "ranks " + ", ".join(map(str, missing))
        try:
            self._listener.settimeout(self._left_s(deadline_ns, names))
            sock, _ = self._listener.accept()
            sock.settimeout(self._left_s(deadline_ns, names))
            hello = parse_hello(_read_exactly(sock, HELLO_BYTES), self._options.secret)
        except TimeoutError as error:
            raise RunError(f"no connection from {names} in time.", where=f"rank {self._rank}") from error
        receiver = Receiver(
            sock,
            hello.source,
            hello.flow,
            verify=self._options.verify,
            now=self._clock.now_ns,
            realtime_offset_ns=self._offset_ns,
        )
        self._receivers.append(receiver)
        return hello.source, hello.flow

    def post_send(self, handle: int, peer: int, tag: int, size_bytes: int) -> None:
        """See base.Transport."""
        if not 0 <= size_bytes <= MAX_MESSAGE_BYTES:
            raise RunError(f"a message of {size_bytes} bytes is beyond the limit.", where=f"rank {self._rank}")
        senders = self._senders.get(peer)
        if not senders:
            raise RunError(f"rank {peer} is not connected.", where=f"rank {self._rank}")
        turn = self._turn[peer] = (self._turn.get(peer, -1) + 1) % len(senders)
        now_ns = self._clock.now_ns()
        senders[turn].post(Outbound(handle, tag, size_bytes, now_ns))
        if not senders[turn].blocked:
            self._push(senders[turn], now_ns)

    def _push(self, sender: Sender, now_ns: int) -> None:
        before = sender.blocked
        taken = sender.push(now_ns, self._pacer.allowance(now_ns))
        self._pacer.used(taken)
        self._pushed_bytes += taken
        if sender.blocked != before:
            events = select.EPOLLIN | (select.EPOLLOUT if sender.blocked else 0)
            self._epoll.modify(sender.sock.fileno(), events)

    def post_recv(self, handle: int, peer: int, tag: int, size_bytes: int) -> None:
        """See base.Transport."""
        now_ns = self._clock.now_ns()
        arrived = self._matcher.post((peer, tag, size_bytes), Posted(handle, now_ns))
        if arrived is not None:
            self._complete_recv(Posted(handle, now_ns), arrived, peer)

    def _complete_recv(self, posted: Posted, arrived: Arrived, peer: int) -> None:
        self._ready.append(
            Completion(
                posted.handle, Kind.RECV, peer, posted.posted_ns, arrived.first_byte_ns, arrived.done_ns, arrived.flow
            )
        )

    def poll(self, timeout_ns: int) -> list[Completion]:
        """See base.Transport."""
        self._push_paced()
        self._serve(0)
        if not self._ready and timeout_ns > 0:
            self._serve(self._wait_ns(timeout_ns))
        ready, self._ready = self._ready, []
        return ready

    def _wait_ns(self, timeout_ns: int) -> int:
        if self._options.rate_bps and any(s.waiting and not s.blocked for many in self._senders.values() for s in many):
            return min(timeout_ns, self._pacer.wait_ns(self._clock.now_ns()))
        return timeout_ns

    def _push_paced(self) -> None:
        """Senders that stopped for want of allowance, in turn."""
        if not self._options.rate_bps:
            return
        now_ns = self._clock.now_ns()
        for senders in self._senders.values():
            for sender in senders:
                if sender.waiting and not sender.blocked:
                    self._push(sender, now_ns)

    def _serve(self, timeout_ns: int) -> None:
        """Wait (epoll itself rounds to ms, select on it does not), then move bytes wherever there are any."""
        if timeout_ns:
            select.select([self._epoll.fileno()], [], [], timeout_ns / 1e9)
        for fd, events in self._epoll.poll(0):
            end = self._by_fd[fd]
            if isinstance(end, Receiver):
                self._receive(end, fd)
            else:
                self._drive(end, events, fd)

    def _receive(self, receiver: Receiver, fd: int) -> None:
        for arrival in receiver.take_arrivals():
            count(self._received, receiver.peer, arrival.size_bytes)
            arrived = Arrived(arrival.first_byte_ns, arrival.done_ns, receiver.flow)
            posted = self._matcher.arrive((receiver.peer, arrival.tag, arrival.size_bytes), arrived)
            if posted is not None:
                self._complete_recv(posted, arrived, receiver.peer)
        if receiver.closed:
            self._epoll.unregister(fd)
            self._check_loss(receiver.peer, in_message=receiver.in_message)
        elif receiver.owes_acks or receiver.waits_for_room:
            receiver.waits_for_room = receiver.owes_acks
            self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if receiver.owes_acks else 0))

    def _drive(self, sender: Sender, events: int, fd: int) -> None:
        if events & select.EPOLLOUT:
            self._push(sender, self._clock.now_ns())
        if events & ~select.EPOLLOUT:
            self._take_acknowledged(sender)
            if sender.closed:
                self._epoll.unregister(fd)
                self._check_loss(sender.peer, in_message=False)

    def _take_acknowledged(self, sender: Sender) -> None:
        for message in sender.take_acknowledged():
            count(self._sent, sender.peer, message.size_bytes)
            self._ready.append(
                Completion(
                    message.handle,
                    Kind.SEND,
                    sender.peer,
                    message.posted_ns,
                    message.first_byte_ns,
                    self._clock.now_ns(),
                    sender.flow,
                )
            )

    def _check_loss(self, peer: int, *, in_message: bool) -> None:
        """A peer that hangs up with nothing outstanding is merely done."""
        sends = sum(sender.outstanding for sender in self._senders.get(peer, []))
        receives = self._matcher.expected_from(peer)
        if sends or receives or in_message:
            raise RunError(
                f"rank {peer} is gone; {sends} sends to it and {receives} receives from it were outstanding, "
                f"{self._received.get(peer, [0, 0])[1]} bytes had come from it.",
                where=f"rank {self._rank}",
                fix=f"look at what ended rank {peer}.",
            )

    def cancel(self, handle: int) -> bool:
        """See base.Transport."""
        for senders in self._senders.values():
            for sender in senders:
                for message in sender.waiting:
                    # its sequence number must not be missing on the wire, so only the newest can be taken back
                    if message.handle == handle and message is sender.waiting[-1] and message.first_byte_ns < 0:
                        sender.take_back()
                        return True
        return self._matcher.cancel(handle)

    def moved(self) -> Mapping[str, Any]:
        """See base.Transport."""
        return {
            "sent": {peer: list(total) for peer, total in self._sent.items()},
            "received": {peer: list(total) for peer, total in self._received.items()},
        }

    def progress_bytes(self) -> int:
        """See base.Transport."""
        return self._pushed_bytes + sum(receiver.received_bytes for receiver in self._receivers)

    def close(self) -> None:
        """See base.Transport."""
        if self._closed:
            return
        self._closed = True
        ends = [sender.sock for senders in self._senders.values() for sender in senders]
        ends += [receiver.sock for receiver in self._receivers]
        for sock in [*ends, *([self._listener] if self._listener else [])]:
            with contextlib.suppress(OSError):
                sock.close()
        self._epoll.close()


def count(totals: dict[int, list[int]], peer: int, size_bytes: int) -> None:
    """One more message of that size."""
    total = totals.setdefault(peer, [0, 0])
    total[0] += 1
    total[1] += size_bytes


def _read_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise RunError("a caller hung up before it said who it was.")
        data += piece
    return data
