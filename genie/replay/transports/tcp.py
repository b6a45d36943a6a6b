"""Messages over kernel TCP: connections of one direction each, many messages at once, everything non-blocking."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from genie.errors import InputError, NotReadyError, RunError
from genie.replay.clock import Clock, RealClock
from genie.replay.transports.base import Completion, Endpoint, Kind
from genie.replay.transports.framing import MAX_MESSAGE_BYTES, SECRET_BYTES
from genie.replay.transports.matching import Arrived, Key, KeyNumbers, Matcher, Posted, Tally
from genie.replay.transports.pacing import Pacer
from genie.replay.transports.payload import PIECE_BYTES
from genie.replay.transports.stamps import ask_for_stamps
from genie.replay.transports.tcp_connection import Outbound, Receiver, Sender
from genie.replay.transports.tcp_handshake import Handshake
from genie.replay.transports.waiting import wait

UNLIMITED: Final = 1 << 62
BACKLOG: Final = 4096
TURN_BYTES: Final = PIECE_BYTES
"""Most that one connection moves before the others get their turn."""

_RESET_ON_CLOSE: Final = struct.pack("=ii", 1, 0)


@dataclass(frozen=True, slots=True)
class TcpOptions:
    """How a rank talks TCP.

    Attributes:
        address: ours, IPv4 or IPv6.
        secret: 32 bytes that all ranks of a run share.
        port: to listen on; 0 lets the kernel choose.
        flows: connections per ordered pair; messages take them in turn.
        source_port: (peer, flow) -> local port to connect from, so that ECMP paths are reproducible; None: any.
        send_buffer_bytes, receive_buffer_bytes: the kernel's, bookkeeping included: about half is payload. The receive
            buffer bounds what a sender has in flight: k senders to one receiver may fill k times that of a switch.
        rate_bps: real rate to pace all sending at, 0 for none: a stand-in for a shaped link.
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
        if self.rate_bps < 0:
            raise InputError(f"rate_bps must not be negative, as {self.rate_bps} is.", fix="0 means unpaced.")


class TcpTransport:
    """See base.Transport."""

    def __init__(self, rank: int, options: TcpOptions, clock: Clock | None = None) -> None:
        self._rank, self._options, self._clock = rank, options, clock or RealClock()
        self._listener: socket.socket | None = None
        self._epoll = select.epoll()
        self._senders: dict[int, list[Sender]] = {}
        self._receivers: dict[int, list[Receiver]] = {}
        self._by_fd: dict[int, Sender | Receiver] = {}
        self._interest: dict[int, int] = {}
        self._turn: dict[int, int] = {}
        self._matcher, self._tally = Matcher(), Tally()
        self._ready: list[Completion] = []
        self._outgoing, self._incoming = KeyNumbers(), KeyNumbers()
        self._pacer = Pacer[Sender](options.rate_bps) if options.rate_bps else None

    def open(self) -> Endpoint:
        """See base.Transport."""
        listener: socket.socket | None = None
        try:
            listener = self._new_socket()
            listener.bind((self._options.address, self._options.port))
            ask_for_stamps(listener)
            listener.listen(BACKLOG)
        except OSError as error:
            if listener is not None:
                listener.close()
            raise NotReadyError(
                f"cannot listen on {self._options.address} port {self._options.port}: {error.strerror}.",
                where=f"rank {self._rank}",
                fix="is the address one of this host's, and no other run going on here?",
            ) from error
        self._listener = listener
        return {"address": self._options.address, "port": listener.getsockname()[1]}

    def _new_socket(self) -> socket.socket:
        """Buffers are set before connect or listen, where the window scale is agreed on; the kernel doubles them."""
        family = socket.AF_INET6 if ":" in self._options.address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._options.send_buffer_bytes // 2)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._options.receive_buffer_bytes // 2)
        return sock

    def _dial(self, peer: int, flow: int) -> socket.socket:
        """A socket to call a peer from, at the agreed source port if there is one."""
        sock = self._new_socket()
        sock.setblocking(False)  # noqa: FBT003 - socket knows no keyword
        port = self._options.source_port(peer, flow) if self._options.source_port else 0
        try:
            sock.bind((self._options.address, port))
        except OSError:
            sock.close()
            raise
        return sock

    def connect(self, peers: Mapping[int, Endpoint], deadline_ns: int) -> None:
        """See base.Transport."""
        if self._listener is None:
            raise RunError("connect() before open().", where=f"rank {self._rank}")
        options = self._options
        handshake = Handshake(self._rank, peers, options.flows, options.secret, self._listener, self._dial, self._clock)
        outgoing, incoming = handshake.run(deadline_ns)
        self._listener.close()
        scratch = memoryview(bytearray(PIECE_BYTES))
        for (peer, flow), sock in sorted(outgoing.items()):
            sender = Sender(sock, peer, flow, self._clock.now_ns)
            self._senders.setdefault(peer, []).append(sender)
            self._register(sender)
        for (peer, flow), sock in sorted(incoming.items()):
            receiver = Receiver(
                sock,
                peer,
                flow,
                self._clock.now_ns,
                scratch,
                verify=options.verify,
                buffer_bytes=options.receive_buffer_bytes,
            )
            self._receivers.setdefault(peer, []).append(receiver)
            self._register(receiver)

    def _register(self, end: Sender | Receiver) -> None:
        end.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fd = end.sock.fileno()
        self._by_fd[fd], self._interest[fd] = end, select.EPOLLIN
        self._epoll.register(fd, select.EPOLLIN)

    def _watch(self, end: Sender | Receiver, *, writable: bool) -> None:
        """Whether to be told when the connection takes more."""
        fd = end.sock.fileno()
        wanted = select.EPOLLIN | (select.EPOLLOUT if writable else 0)
        if self._interest[fd] != wanted:
            self._interest[fd] = wanted
            self._epoll.modify(fd, wanted)

    def post_send(self, handle: int, peer: int, tag: int, size_bytes: int) -> None:
        """See base.Transport."""
        if not 0 <= size_bytes <= MAX_MESSAGE_BYTES:
            raise RunError(f"a message of {size_bytes} bytes is beyond the limit.", where=f"rank {self._rank}")
        sender = self._next_flow(peer)
        now_ns = self._clock.now_ns()
        number = self._outgoing.take((peer, tag, size_bytes)) if self._options.flows > 1 else 0
        sender.waiting.append(Outbound(handle, tag, size_bytes, now_ns, number))
        if sender.blocked:
            return
        if self._pacer is not None:
            self._pacer.add(sender, now_ns)
        elif len(sender.waiting) == 1:
            self._push(sender, now_ns)

    def _next_flow(self, peer: int) -> Sender:
        senders = self._senders.get(peer)
        if not senders:
            raise RunError(f"rank {peer} is not connected.", where=f"rank {self._rank}")
        turn = self._turn[peer] = (self._turn.get(peer, -1) + 1) % len(senders)
        if senders[turn].source.ended:
            raise self._lost(peer, senders[turn].source.ended)
        return senders[turn]

    def _push(self, sender: Sender, now_ns: int) -> None:
        sender.push(now_ns, TURN_BYTES)
        self._watch(sender, writable=bool(sender.waiting))

    def post_recv(self, handle: int, peer: int, tag: int, size_bytes: int) -> None:
        """See base.Transport."""
        posted = Posted(handle, self._clock.now_ns())
        arrived = self._matcher.post((peer, tag, size_bytes), posted)
        if arrived is not None:
            self._complete_recv(posted, arrived, peer)
        elif self._all_ended(peer):
            raise self._lost(peer, self._receivers[peer][0].source.ended)

    def _complete_recv(self, posted: Posted, arrived: Arrived, peer: int) -> None:
        self._ready.append(Completion(posted.handle, Kind.RECV, peer, posted.posted_ns, *arrived))

    def poll(self, timeout_ns: int) -> list[Completion]:
        """See base.Transport."""
        now_ns = self._clock.now_ns()
        deadline_ns = now_ns + timeout_ns
        while True:
            self._serve(0 if self._ready else max(0, deadline_ns - now_ns))
            now_ns = self._clock.now_ns()
            if self._ready or now_ns >= deadline_ns:
                break
        ready, self._ready = self._ready, []
        return ready

    def _serve(self, timeout_ns: int) -> None:
        """Wait for something to do, and do it."""
        if self._pacer is not None:
            timeout_ns = self._push_paced(self._pacer, timeout_ns)
        for fd, events in wait(self._epoll, timeout_ns):
            end = self._by_fd[fd]
            try:
                if isinstance(end, Receiver):
                    self._receive(end)
                else:
                    self._drive(end, events)
            except RunError as error:
                place = f"rank {self._rank}, connection with rank {end.peer}"
                raise RunError(error.what, where=place, fix=error.fix) from error

    def _push_paced(self, pacer: Pacer[Sender], timeout_ns: int) -> int:
        """Send what the pace allows; how long to wait for more."""
        now_ns = self._clock.now_ns()
        for sender in pacer.push(now_ns):
            self._watch(sender, writable=True)
        wait_ns = pacer.wait_ns(now_ns)
        return timeout_ns if wait_ns is None else min(timeout_ns, wait_ns)

    def _receive(self, receiver: Receiver) -> None:
        for arrival in receiver.take_arrivals(TURN_BYTES):
            self._tally.received(receiver.peer, arrival.size_bytes)
            key = (receiver.peer, arrival.tag, arrival.size_bytes)
            arrived = Arrived(arrival.first_byte_ns, arrival.done_ns, receiver.flow)
            if self._options.flows == 1:
                self._arrive(key, arrived)
                continue
            for due in self._incoming.in_order(key, arrival.number, arrived):
                self._arrive(key, due)
        receiver.flush_acks()
        if receiver.source.ended:
            self._end(receiver)
        else:
            self._watch(receiver, writable=receiver.owes_acks)

    def _arrive(self, key: Key, arrived: Arrived) -> None:
        posted = self._matcher.arrive(key, arrived)
        if posted is not None:
            self._complete_recv(posted, arrived, key[0])

    def _drive(self, sender: Sender, events: int) -> None:
        if events & select.EPOLLOUT:
            self._go_on(sender)
        if events & ~select.EPOLLOUT:
            self._take_acknowledged(sender)

    def _go_on(self, sender: Sender) -> None:
        """The kernel takes more."""
        sender.blocked = False
        now_ns = self._clock.now_ns()
        if self._pacer is None:
            self._push(sender, now_ns)
            return
        self._watch(sender, writable=False)
        if sender.waiting:
            self._pacer.add(sender, now_ns)

    def _take_acknowledged(self, sender: Sender) -> None:
        for message in sender.take_acknowledged():
            self._tally.sent(sender.peer, message.size_bytes)
            first_ns, done_ns = message.first_byte_ns, max(message.first_byte_ns, sender.source.stamp_ns)
            self._ready.append(
                Completion(message.handle, Kind.SEND, sender.peer, message.posted_ns, first_ns, done_ns, sender.flow)
            )
        if sender.source.ended:
            self._end(sender)

    def _end(self, end: Sender | Receiver) -> None:
        """A peer that hangs up with nothing outstanding is merely done."""
        self._epoll.unregister(end.sock.fileno())
        if isinstance(end, Sender):
            lost = bool(end.outstanding)
        else:
            lost = bool(end.unfinished) or (self._all_ended(end.peer) and self._matcher.expected_from(end.peer) > 0)
        if lost:
            raise self._lost(end.peer, end.source.ended)

    def _all_ended(self, peer: int) -> bool:
        receivers = self._receivers.get(peer)
        return receivers is not None and all(receiver.source.ended for receiver in receivers)

    def _lost(self, peer: int, how: str) -> RunError:
        """The story of a peer that went too early."""
        senders, receivers = self._senders.get(peer, []), self._receivers.get(peer, [])
        sends = sum(sender.outstanding for sender in senders)
        parts = "".join(f" It broke off in {receiver.unfinished}." for receiver in receivers if receiver.unfinished)
        receives = self._matcher.expected_from(peer)
        return RunError(
            f"rank {peer} is gone ({how}); {sends} sends to it and {receives} receives from it were outstanding; "
            f"{sum(sender.pushed_bytes for sender in senders)} bytes had gone to it and "
            f"{sum(receiver.received_bytes for receiver in receivers)} come from it.{parts}",
            where=f"rank {self._rank}",
            fix=f"look at what ended rank {peer}.",
        )

    def cancel(self, handle: int) -> bool:
        """See base.Transport."""
        for sender in (sender for senders in self._senders.values() for sender in senders):
            message = sender.not_started(handle)
            if message is not None:
                return self._cancel_send(sender, message)
        return self._matcher.cancel(handle)

    def _cancel_send(self, sender: Sender, message: Outbound) -> bool:
        """Too late if later messages of its key have been numbered."""
        key = (sender.peer, message.tag, message.size_bytes)
        if self._options.flows > 1 and not self._outgoing.give_back(key, message.number):
            return False
        sender.waiting.remove(message)
        return True

    def moved(self) -> Mapping[str, Any]:
        """See base.Transport."""
        return self._tally.totals()

    def progress_bytes(self) -> int:
        """See base.Transport."""
        pushed = sum(sender.pushed_bytes for many in self._senders.values() for sender in many)
        return pushed + sum(receiver.received_bytes for many in self._receivers.values() for receiver in many)

    def close(self) -> None:
        """See base.Transport."""
        for end in self._by_fd.values():
            if isinstance(end, Sender) and not end.outstanding:
                # leaves the source port free at once, instead of a minute later
                end.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            end.sock.close()
        if self._listener is not None:
            self._listener.close()
        self._epoll.close()
        self._by_fd.clear()


__all__ = ["TcpOptions", "TcpTransport"]
