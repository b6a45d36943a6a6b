"""The two ends of one TCP connection: payload goes one way, acknowledgements come back.

Separate connections a direction keep TCP's own acknowledgements small and pure, so that the fabric's strict class for
small packets holds them (docs/testbed.md).
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from genie.errors import RunError
from genie.replay.transports.framing import ACK, DATA, FRAME_BYTES, Frame, parse

PIECE_BYTES: Final = 1 << 20
"""Most that is handed to or taken from the kernel at once."""

LOW_WATER_BYTES: Final = 64 << 10
"""A receiver of bulk data is woken for this much, or for the last byte of a message, not for every packet."""

PERIOD: Final = 251
SO_TIMESTAMPNS: Final = 35
_TIMESPEC: Final = struct.Struct("=qq")
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_TIMESPEC.size)

_pattern: Final = bytes(range(PERIOD)) * (PIECE_BYTES // PERIOD + 2)
PATTERN: Final = memoryview(_pattern)
"""Payload: byte k of message number s is (k + s) mod 251, so that bytes lost, swapped or repeated show."""


def pattern(sequence: int, offset: int, size_bytes: int) -> memoryview:
    """The payload bytes [offset, offset + size) of a message (at most PIECE_BYTES)."""
    start = (sequence + offset) % PERIOD
    return PATTERN[start : start + size_bytes]


@dataclass(slots=True)
class Outbound:
    """A message on its way out."""

    handle: int
    tag: int
    size_bytes: int
    posted_ns: int
    sequence: int = 0
    sent_bytes: int = 0
    first_byte_ns: int = -1
    header: bytes = b""


class Sender:
    """Our end of a connection that we send on."""

    def __init__(self, sock: socket.socket, peer: int, flow: int) -> None:
        self.sock, self.peer, self.flow = sock, peer, flow
        self.waiting: deque[Outbound] = deque()
        self.unacknowledged: deque[Outbound] = deque()
        self.blocked = False
        self.closed = False
        self._sequence = 0
        self._acks = bytearray()

    def post(self, message: Outbound) -> None:
        """Queue a message behind the earlier ones."""
        message.sequence = self._sequence
        message.header = Frame(DATA, message.tag, message.size_bytes, self._sequence).pack()
        self._sequence += 1
        self.waiting.append(message)

    def take_back(self) -> None:
        """Forget the newest message, which has not started."""
        self.waiting.pop()
        self._sequence -= 1

    def push(self, now_ns: int, allowance: int) -> int:
        """Hand bytes to the kernel until it takes no more or `allowance` is used up; how many it took."""
        taken = 0
        self.blocked = False
        while self.waiting and taken < allowance:
            message = self.waiting[0]
            count = self._push_once(message, allowance - taken)
            if count < 0:
                self.blocked = True
                break
            if message.first_byte_ns < 0:
                message.first_byte_ns = now_ns
            taken += count
            if not message.header and message.sent_bytes == message.size_bytes:
                self.unacknowledged.append(self.waiting.popleft())
        return taken

    def _push_once(self, message: Outbound, allowance: int) -> int:
        size = min(PIECE_BYTES, message.size_bytes - message.sent_bytes, allowance)
        payload = pattern(message.sequence, message.sent_bytes, size)
        try:
            count = self.sock.sendmsg([message.header, payload] if message.header else [payload])
        except BlockingIOError:
            return -1
        except OSError as error:
            raise RunError(f"the connection to rank {self.peer} broke: {error.strerror}.") from error
        header = min(count, len(message.header))
        message.header = message.header[header:]
        message.sent_bytes += count - header
        return count

    def take_acknowledged(self) -> list[Outbound]:
        """Messages that the peer has wholly received since the last call.

        Raises:
            RunError: an acknowledgement out of order.
        """
        done = []
        while (data := _receive(self.sock, 4096)) is not None:
            if not data:
                self.closed = True
                break
            self._acks += data
        while len(self._acks) >= FRAME_BYTES:
            frame = parse(self._acks[:FRAME_BYTES], self.peer)
            del self._acks[:FRAME_BYTES]
            if frame.kind != ACK or not self.unacknowledged or self.unacknowledged[0].sequence != frame.sequence:
                raise RunError(f"rank {self.peer} acknowledged message {frame.sequence}, which is not outstanding.")
            done.append(self.unacknowledged.popleft())
        return done

    @property
    def outstanding(self) -> int:
        """Messages not yet acknowledged."""
        return len(self.waiting) + len(self.unacknowledged)


def _receive(sock: socket.socket, size: int) -> bytes | None:
    """Bytes, b"" at the end of the stream, None when there is nothing now."""
    try:
        return sock.recv(size)
    except BlockingIOError:
        return None
    except ConnectionError:
        return b""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message that is wholly here."""

    tag: int
    size_bytes: int
    first_byte_ns: int
    done_ns: int


class Receiver:
    """Our end of a connection that a peer sends on."""

    def __init__(
        self,
        sock: socket.socket,
        peer: int,
        flow: int,
        *,
        verify: bool,
        now: Callable[[], int],
        realtime_offset_ns: int,
    ) -> None:
        self.sock, self.peer, self.flow = sock, peer, flow
        self._verify, self._now, self._offset_ns = verify, now, realtime_offset_ns
        self._buffer = bytearray(PIECE_BYTES)
        self._header = bytearray()
        self._frame: Frame | None = None
        self._got_bytes = 0
        self._first_byte_ns = self._stamp_ns = -1
        self._low_water = 1
        self._acks = bytearray()
        self.closed = self.waits_for_room = False
        self.received_bytes = 0
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    @property
    def in_message(self) -> bool:
        """Whether a message is partly here."""
        return self._frame is not None or bool(self._header)

    def take_arrivals(self) -> list[Arrival]:
        """Read all there is; messages completed by it are acknowledged at once.

        Raises:
            RunError: no frame of ours, wrong payload, or the stream ended within a message.
        """
        done: list[Arrival] = []
        while self._read_some(done):
            pass
        self._set_low_water()
        if self._acks:
            self.flush_acks()
        return done

    def _read_some(self, done: list[Arrival]) -> bool:
        """Read a header or a piece of payload; whether there may be more."""
        more = self._read_header() if self._frame is None else self._read_payload(self._frame)
        if self._frame is not None and self._got_bytes == self._frame.size_bytes:
            done.append(self._complete(self._frame))
        return more

    def _read_header(self) -> bool:
        count = self._recv(memoryview(self._buffer)[: FRAME_BYTES - len(self._header)], 0)
        if count <= 0:
            return False
        if not self._header:
            self._first_byte_ns = self._stamp_ns
        self._header += self._buffer[:count]
        if len(self._header) == FRAME_BYTES:
            self._frame, self._got_bytes = parse(self._header, self.peer), 0
            self._header.clear()
        return True

    def _read_payload(self, frame: Frame) -> bool:
        """Payload is thrown away by the kernel without a copy unless its content is to be checked."""
        wanted = min(PIECE_BYTES, frame.size_bytes - self._got_bytes)
        count = self._recv(memoryview(self._buffer)[:wanted], 0 if self._verify else socket.MSG_TRUNC)
        if count <= 0:
            return False
        if self._verify and self._buffer[:count] != pattern(frame.sequence, self._got_bytes, count):
            raise RunError(
                f"payload of message {frame.sequence} from rank {self.peer} differs after byte {self._got_bytes}."
            )
        self._got_bytes += count
        return True

    def _recv(self, view: memoryview, flags: int) -> int:
        """Bytes read, 0 when there are none now (`closed` tells why); remembers the kernel's time stamp."""
        try:
            count, ancillary, _, _ = self.sock.recvmsg_into([view], _ANCILLARY_BYTES, flags)
        except BlockingIOError:
            return 0
        except ConnectionError:
            count, ancillary = 0, []
        if count == 0:
            self.closed = True
            return 0
        self._stamp_ns = self._stamp(ancillary)
        self.received_bytes += count
        return count

    def _stamp(self, ancillary: list[tuple[int, int, bytes]]) -> int:
        """When the kernel received the newest byte just read, on the monotonic clock; now, if it does not say."""
        now_ns = self._now()
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
                seconds, ns = _TIMESPEC.unpack(data)
                return min(now_ns, int(seconds) * 1_000_000_000 + int(ns) - self._offset_ns)
        return now_ns

    def _complete(self, frame: Frame) -> Arrival:
        self._frame = None
        self._acks += Frame(ACK, frame.tag, frame.size_bytes, frame.sequence).pack()
        return Arrival(frame.tag, frame.size_bytes, self._first_byte_ns, max(self._stamp_ns, self._first_byte_ns))

    def flush_acks(self) -> bool:
        """Send what acknowledgements are due; whether all went out."""
        try:
            del self._acks[: self.sock.send(self._acks)]
        except BlockingIOError:
            return False
        except ConnectionError:
            self.closed = True
        return not self._acks

    @property
    def owes_acks(self) -> bool:
        """Whether acknowledgements still wait for room in the socket."""
        return bool(self._acks) and not self.closed

    def _set_low_water(self) -> None:
        left = self._frame.size_bytes - self._got_bytes if self._frame else 1
        wanted = max(1, min(left, LOW_WATER_BYTES))
        if wanted != self._low_water:
            self._low_water = wanted
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
