"""The socket on port 4791 that everything comes to: many datagrams a read, kernel stamps, congestion marks."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Final

import numpy as np

from genie.replay.clock import realtime_offset_ns
from genie.replay.transports.roce import mmsg
from genie.replay.transports.roce.layout import Layout
from genie.replay.transports.roce.slots import Slot
from genie.replay.transports.roce.sockets import set_buffer
from genie.replay.transports.stamps import SO_TIMESTAMPNS, ask_for_stamps
from genie.units import NS_PER_S

SLOTS: Final = 16
"""Datagrams a read, at most: what they leave in the caches is compared before it is gone."""

MOST_SOURCES: Final = 1 << 10
UDP_GRO: Final = 104
_SO_RCVBUFFORCE: Final = 33
_CE: Final = 3
_CONTROL_BYTES: Final = 128
_HEADER: Final = struct.Struct("=Qii")
_TIMESPEC: Final = struct.Struct("=qq")
_SEGMENT: Final = struct.Struct("=H")
_LENGTH_AT, _CONTROL_AT, _WORDS = 2 * mmsg.LENGTH, 2 * mmsg.CONTROL_BYTES, 16
"""Where in a row of 32-bit words (there are 16) the kernel tells lengths."""

_USUAL: Final = struct.Struct("=QQqqQQI4xQQB7x")
"""What it tells of an IPv4 super-packet: stamp, bytes of each packet, type of service."""


def _kind(level: int, kind: int) -> int:
    return kind << 32 | level


_USUAL_KINDS: Final = (
    *(_HEADER.size + 16, _kind(socket.SOL_SOCKET, SO_TIMESTAMPNS)),
    *(_HEADER.size + 4, _kind(socket.IPPROTO_UDP, UDP_GRO)),
    *(_HEADER.size + 1, _kind(socket.IPPROTO_IP, socket.IP_TOS)),
)


class Inlet:
    """See the module.

    Attributes:
        slots: the datagrams of the last read.
    """

    def __init__(self, sock: socket.socket, receive_bytes: int, layout: Layout, now: Callable[[], int]) -> None:
        self.sock, self._now = sock, now
        self._fd = sock.fileno()
        self._offset_ns = realtime_offset_ns()
        self._last_ns = 0
        set_buffer(sock, _SO_RCVBUFFORCE, socket.SO_RCVBUF, receive_bytes)
        sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        ask_for_stamps(sock)
        self.slots = [Slot(layout) for _ in range(SLOTS)]
        self._vectors = np.stack([slot.vectors() for slot in self.slots])
        self._names = np.zeros((SLOTS, mmsg.ADDRESS_BYTES), np.uint8)
        self._controls = np.zeros((SLOTS, _CONTROL_BYTES), np.uint8)
        table, each = mmsg.messages(SLOTS), np.arange(SLOTS)
        table[:, mmsg.NAME] = mmsg.address_of(self._names) + each * mmsg.ADDRESS_BYTES
        table[:, mmsg.NAME_BYTES] = mmsg.ADDRESS_BYTES
        table[:, mmsg.VECTORS] = mmsg.address_of(self._vectors) + each * self._vectors[0].nbytes
        table[:, mmsg.VECTOR_COUNT] = self._vectors.shape[1]
        table[:, mmsg.CONTROL] = mmsg.address_of(self._controls) + each * _CONTROL_BYTES
        table[:, mmsg.CONTROL_BYTES] = _CONTROL_BYTES
        self._table, self._fresh = table, table.tobytes()
        self._bytes = memoryview(table.reshape(-1).data).cast("B")
        self._numbers = self._bytes.cast("I")
        self._address = mmsg.address_of(table)
        self._name = memoryview(self._names.reshape(-1).data)
        self._control = memoryview(self._controls.reshape(-1).data)
        self._sources: dict[bytes, tuple[str, int]] = {}

    def read(self) -> int:
        """Fill slots; how many: fewer than there are when nothing more is there."""
        self._bytes[:] = self._fresh
        count = mmsg.receive_many(self._fd, self._address, SLOTS)
        if count:
            now_ns = self._now()
            for at in range(count):
                self._describe(at, now_ns)
        return count

    def _describe(self, at: int, now_ns: int) -> None:
        slot, numbers, word = self.slots[at], self._numbers, at * _WORDS
        slot.size = slot.segment = numbers[word + _LENGTH_AT]
        name = bytes(self._name[at * mmsg.ADDRESS_BYTES : (at + 1) * mmsg.ADDRESS_BYTES])
        slot.source, slot.sport = self._sources.get(name) or self._new_source(name)
        control, size = self._control[at * _CONTROL_BYTES : (at + 1) * _CONTROL_BYTES], numbers[word + _CONTROL_AT]
        if size == _USUAL.size:
            stamp, stamp_kind, seconds, ns, gro, gro_kind, segment, tos, tos_kind, marks = _USUAL.unpack_from(control)
            if (stamp, stamp_kind, gro, gro_kind, tos, tos_kind) == _USUAL_KINDS:
                slot.segment, slot.marked = segment, marks & _CE == _CE
                self._date(slot, seconds * NS_PER_S + ns, now_ns)
                return
        self._read_control(slot, control[:size], now_ns)

    def _read_control(self, slot: Slot, control: memoryview, now_ns: int) -> None:
        """What the kernel tells of a datagram, in any order."""
        slot.marked, realtime_ns, at = False, 0, 0
        while at + _HEADER.size <= len(control):
            length, level, kind = _HEADER.unpack_from(control, at)
            data = control[at + _HEADER.size : at + length]
            if level == socket.IPPROTO_UDP and kind == UDP_GRO:
                slot.segment = _SEGMENT.unpack_from(data)[0]
            elif level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, ns = _TIMESPEC.unpack(data)
                realtime_ns = seconds * NS_PER_S + ns
            elif level in {socket.IPPROTO_IP, socket.IPPROTO_IPV6}:
                slot.marked = data[0] & _CE == _CE
            at += max(length, _HEADER.size) + 7 & ~7
        self._date(slot, realtime_ns, now_ns)

    def _date(self, slot: Slot, realtime_ns: int, now_ns: int) -> None:
        """A stamp in CLOCK_MONOTONIC, if it can be true; else now. None is before one that came earlier."""
        if not now_ns - NS_PER_S < realtime_ns - self._offset_ns <= now_ns:
            self._offset_ns = realtime_offset_ns()  # the clock was set, or we have not looked for long
        stamp_ns = realtime_ns - self._offset_ns
        if not realtime_ns or stamp_ns > now_ns:
            stamp_ns = now_ns
        self._last_ns = max(self._last_ns, stamp_ns)
        slot.stamp_ns = self._last_ns

    def _new_source(self, name: bytes) -> tuple[str, int]:
        if len(self._sources) >= MOST_SOURCES:
            self._sources.clear()
        found = self._sources[name] = mmsg.unpack_address(name)
        return found
