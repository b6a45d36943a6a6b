"""The two ends of one TCP connection: payload goes one way, acknowledgements come back.

Separate connections a direction keep TCP's own acknowledgements small and pure, so that the fabric's strict class for
small packets holds them (docs/transports.md has the measurement).
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from genie.errors import RunError
from genie.replay.transports.framing import ACK, DATA, FRAME_BYTES, Frame, parse
from genie.replay.transports.payload import PIECE_BYTES, first_difference, payload
from genie.replay.transports.stamps import StampedSocket

AHEAD_BYTES: Final = 2048
"""Between messages this much is read at once: a header, and with it small messages whole."""

LONG_BYTES: Final = 64 << 10
"""Receivers of messages from this size on are not woken for every packet."""


@dataclass(slots=True, eq=False)
class Outbound:
    """A message on its way out.

    Attributes:
        handle, tag, size_bytes, posted_ns: as posted.
        number: see framing.Frame.
        sequence: of its connection; -1 before it has started.
        header: what of it is left to send.
    """

    handle: int
    tag: int
    size_bytes: int
    posted_ns: int
    number: int = 0
    sequence: int = -1
    sent_bytes: int = 0
    first_byte_ns: int = -1
    header: bytes = b""


class Sender:
    """Our end of a connection that we send on.

    Attributes:
        waiting: messages not wholly handed to the kernel, in order.
        unacknowledged: messages handed over, in order.
        blocked: the kernel took no more; it will say when it does.
    """

    def __init__(self, sock: socket.socket, peer: int, flow: int, now: Callable[[], int]) -> None:
        self.source = StampedSocket(sock, now)
        self.peer, self.flow = peer, flow
        self.waiting: deque[Outbound] = deque()
        self.unacknowledged: deque[Outbound] = deque()
        self.blocked = False
        self.broken = ""
        self.pushed_bytes = 0
        self._sequence = 0
        self._acks = bytearray()
        self._scratch = memoryview(bytearray(128 * FRAME_BYTES))

    @property
    def sock(self) -> socket.socket:
        """The connection."""
        return self.source.sock

    @property
    def outstanding(self) -> int:
        """Messages not yet acknowledged."""
        return len(self.waiting) + len(self.unacknowledged)

    @property
    def unsent_bytes(self) -> int:
        """What the message under way has left, its header included; 0 when all is handed over."""
        if not self.waiting:
            return 0
        message = self.waiting[0]
        header = len(message.header) if message.sequence >= 0 else FRAME_BYTES
        return header + message.size_bytes - message.sent_bytes

    def push(self, now_ns: int, allowance: int) -> int:
        """Hand bytes to the kernel until it takes no more or `allowance` is used up; how many it took."""
        taken = 0
        while self.waiting and taken < allowance and not self.blocked:
            message = self.waiting[0]
            if message.sequence < 0:
                self._start(message, now_ns)
            taken += self._push_once(message, allowance - taken)
            if not message.header and message.sent_bytes == message.size_bytes:
                self.unacknowledged.append(self.waiting.popleft())
        self.pushed_bytes += taken
        return taken

    def _start(self, message: Outbound, now_ns: int) -> None:
        message.sequence, message.first_byte_ns = self._sequence, now_ns
        message.header = Frame(DATA, message.tag, message.size_bytes, self._sequence, message.number).pack()
        self._sequence += 1

    def _push_once(self, message: Outbound, allowance: int) -> int:
        size = min(PIECE_BYTES, message.size_bytes - message.sent_bytes, allowance)
        piece = payload(message.sequence, message.sent_bytes, size)
        try:
            count = self.sock.sendmsg([message.header, piece] if message.header else [piece])
        except BlockingIOError:
            self.blocked = True
            return 0
        except OSError as error:  # what the peer said before it went is still to be read: poll tells the end
            self.blocked, self.broken = True, os.strerror(error.errno or 0)
            return 0
        header = min(count, len(message.header))
        message.header = message.header[header:]
        message.sent_bytes += count - header
        return count

    def take_acknowledged(self) -> list[Outbound]:
        """Messages that the peer has wholly received since the last call.

        Raises:
            RunError: an acknowledgement of what was never sent, or no frame at all.
        """
        done: list[Outbound] = []
        while True:
            count = self.source.read(self._scratch)
            self._acks += self._scratch[:count]
            if self.source.drained:
                break
        whole = len(self._acks) - len(self._acks) % FRAME_BYTES
        for at in range(0, whole, FRAME_BYTES):
            self._acknowledge(parse(self._acks, at), done)
        del self._acks[:whole]
        return done

    def _acknowledge(self, frame: Frame, done: list[Outbound]) -> None:
        """Everything up to the frame's message has arrived."""
        known = self.unacknowledged
        if frame.kind != ACK or not known or not known[0].sequence <= frame.sequence <= known[-1].sequence:
            raise RunError(f"it acknowledged message {frame.sequence}, which is not outstanding.")
        while known and known[0].sequence <= frame.sequence:
            done.append(known.popleft())

    def not_started(self, handle: int) -> Outbound | None:
        """The message of that handle, if nothing of it has been sent."""
        return next((m for m in self.waiting if m.handle == handle and m.sequence < 0), None)


class Arrival(NamedTuple):
    """A message that is wholly here."""

    tag: int
    size_bytes: int
    number: int
    first_byte_ns: int
    done_ns: int


class Receiver:
    """Our end of a connection that a peer sends on.

    Args:
        sock: connected, non-blocking.
        peer: who sends.
        flow: which of several connections.
        now: the clock.
        scratch: PIECE_BYTES that all receivers share.
        verify: check every payload byte; otherwise the kernel throws payload away without a copy.
        buffer_bytes: the socket's receive buffer. An eighth of it (at least 64 KiB, at most a quarter) must have come
            before we are woken in the middle of a long message; its last byte always wakes us.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: int,
        flow: int,
        now: Callable[[], int],
        scratch: memoryview,
        *,
        verify: bool = False,
        buffer_bytes: int = 256 << 10,
    ) -> None:
        self.source = StampedSocket(sock, now)
        self.peer, self.flow = peer, flow
        self._wake_bytes = max(1, min(max(LONG_BYTES, buffer_bytes // 8), buffer_bytes // 4))
        self._now, self._scratch, self._verify = now, scratch, verify
        self._head = bytearray()
        self._frame: Frame | None = None
        self._got_bytes = 0
        self._first_byte_ns = -1
        self._next_sequence = 0
        self._low_water = 1
        self._acknowledged = 0
        self._unsent = b""
        self.received_bytes = 0

    @property
    def sock(self) -> socket.socket:
        """The connection."""
        return self.source.sock

    @property
    def unfinished(self) -> str:
        """The message that is partly here, in words; "" if there is none."""
        if self._frame is not None:
            kind = f"message {self._frame.sequence} (tag {self._frame.tag})"
            return f"{kind}, {self._got_bytes} of {self._frame.size_bytes} bytes"
        return f"{len(self._head)} bytes of a message's header" if self._head else ""

    def take_arrivals(self, budget_bytes: int) -> list[Arrival]:
        """Read what there is, about `budget_bytes` at most; `flush_acks` is to follow.

        Raises:
            RunError: no frame of ours, a message out of order, or payload that differs from what was sent.
        """
        done: list[Arrival] = []
        until = self.received_bytes + budget_bytes
        while self.received_bytes < until:
            if self._frame is None:
                self._read_ahead(done)
            else:
                self._read_payload(self._frame, done)
            if self.source.drained:
                break
        self._set_low_water()
        if done and self.source.reordered():
            now_ns = self._now()
            done = [arrival._replace(done_ns=now_ns) for arrival in done]
        return done

    def _read_ahead(self, done: list[Arrival]) -> None:
        """Read a header and perhaps more: all of it, if it is small messages."""
        view = self._scratch[:AHEAD_BYTES]
        count = self.source.read(view)
        self.received_bytes += count
        if not self._head:
            self._first_byte_ns = self.source.stamp_ns
        self._head += view[:count]
        at = 0
        while self._frame is None and len(self._head) - at >= FRAME_BYTES:
            self._begin(parse(self._head, at))
            at += FRAME_BYTES
            at += self._take_in(memoryview(self._head)[at:], done)
            self._first_byte_ns = self.source.stamp_ns
        del self._head[:at]

    def _begin(self, frame: Frame) -> None:
        if frame.kind != DATA or frame.sequence != self._next_sequence:
            raise RunError(f"message {frame.sequence} came where {self._next_sequence} was due.")
        self._frame, self._got_bytes = frame, 0
        self._next_sequence += 1

    def _read_payload(self, frame: Frame, done: list[Arrival]) -> None:
        view = self._scratch[: min(PIECE_BYTES, frame.size_bytes - self._got_bytes)]
        count = self.source.read(view, 0 if self._verify else socket.MSG_TRUNC)
        self.received_bytes += count
        self._take_in(view[:count], done)

    def _take_in(self, data: memoryview, done: list[Arrival]) -> int:
        """Count bytes to the message under way, as far as they belong to it; how many do."""
        frame = self._frame
        if frame is None:
            return 0
        count = min(len(data), frame.size_bytes - self._got_bytes)
        if self._verify:
            self._check(frame, data[:count])
        self._got_bytes += count
        if self._got_bytes == frame.size_bytes:
            self._frame = None
            done.append(Arrival(frame.tag, frame.size_bytes, frame.number, self._first_byte_ns, self.source.stamp_ns))
        return count

    def _check(self, frame: Frame, data: memoryview) -> None:
        wrong = first_difference(data, frame.sequence, self._got_bytes)
        if wrong >= 0:
            raise RunError(
                f"byte {wrong} of message {frame.sequence} (tag {frame.tag}, {frame.size_bytes} bytes) is not what "
                "was sent.",
                fix="TCP's checksum should have caught it: look for a faulty NIC, driver or memory.",
            )

    def flush_acks(self) -> None:
        """Acknowledge all messages that are here, as far as the socket takes it."""
        while self.owes_acks:
            if not self._unsent:
                self._acknowledged = self._next_sequence - (self._frame is not None)
                self._unsent = Frame(ACK, 0, 0, self._acknowledged - 1).pack()
            try:
                self._unsent = self._unsent[self.sock.send(self._unsent) :]
            except BlockingIOError:
                return
            except OSError:  # the peer is gone; the next read says so
                self._acknowledged, self._unsent = self._next_sequence, b""

    @property
    def owes_acks(self) -> bool:
        """Whether acknowledgements still wait for room in the socket."""
        return bool(self._unsent) or self._acknowledged < self._next_sequence - (self._frame is not None)

    def _set_low_water(self) -> None:
        """Long messages only: for short ones the calls would cost more than they save."""
        wanted = 1
        if self._frame is not None and self._frame.size_bytes >= LONG_BYTES:
            wanted = min(self._frame.size_bytes - self._got_bytes, self._wake_bytes)
        if wanted != self._low_water:
            self._low_water = wanted
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
