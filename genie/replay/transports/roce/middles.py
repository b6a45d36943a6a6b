"""The packets in the middle of messages, all alike but for PSN and payload: many at a time, for both ends.

Payload is slices of one static block (see payload.py), so the CRC register that any packet's payload leaves is in a
table. The ICRCs of a chunk of middle packets are then a few look-ups each; the kernel gets headers, slices of the block
and ICRCs as scattered buffers, whole super-packets a row, many rows a system call. A receiver has headers and payload
scattered in the same way, so that all headers of a super-packet are one comparison, and all of its payload another.
"""

from __future__ import annotations

import functools
import itertools
import socket
import struct
from typing import Final

import numpy as np

from genie.formats.icrc import Way, Words, apply, icrc, ip_id_changes, register, shift, word_tables
from genie.formats.roce import ACK_REQUEST, BTH_BYTES, DEFAULT_PKEY, ICRC_BYTES, MTUS, PSN_MASK
from genie.replay.transports.payload import PERIOD, block, start_of
from genie.replay.transports.roce import mmsg
from genie.replay.transports.roce.layout import Layout

CHUNK: Final = 960
"""Most middle packets that are prepared at once: a multiple of usual super-packets."""

ROW_BYTES: Final = ICRC_BYTES + BTH_BYTES
"""What is between two packets' payloads: the ICRC of one and the BTH of the next."""

BTH: Final = struct.Struct("!BBHII")
MIGRATED: Final = 0x40
UDP_SEGMENT: Final = 103
_ASK: Final = ACK_REQUEST >> 24
_LITTLE: Final = struct.Struct("<I")
_SEGMENT: Final = struct.Struct("=QiiH6x")
_FIRST_FILL, _GROWTH = 64, 4


@functools.cache
def _prefixes() -> Words:
    """Register after the first k bytes of the block, from 0: for k from 0 to a period and the longest packet."""
    table = [register(bytes([byte])) for byte in range(256)]

    def step(before: int, byte: int) -> int:
        return before >> 8 ^ table[(before ^ byte) & 255]

    length = PERIOD + max(MTUS)
    return np.fromiter(itertools.accumulate(block()[:length], step, initial=0), np.uint32, length + 1)


@functools.cache
def payload_registers(size_bytes: int) -> Words:
    """(PERIOD,): the register that so many bytes of the block leave, by where they start."""
    prefixes = _prefixes()
    found: Words = prefixes[size_bytes : size_bytes + PERIOD] ^ apply(shift(size_bytes), prefixes[:PERIOD])
    return found


class Middles:
    """Headers and ICRCs of the middle packets that go one way to one queue pair, a chunk at a time.

    An IP identification counts the packets of a super-packet from 0, and the ICRC covers it: so the packets of a chunk
    are sealed for super-packets of `segments` that begin at the chunk's first packet. One that begins elsewhere starts
    a new chunk.

    Attributes:
        rows: (chunk + 1, ROW_BYTES) bytes; row i is the ICRC of packet i - 1, then the BTH of packet i, as on the wire.
        filled: how many packets of the chunk are prepared.
        fills: counts the chunks.
        starts: (filled,) where in the block their payloads begin.
        ask: what a request for an acknowledgement changes in an ICRC.
    """

    def __init__(self, way: Way, layout: Layout, qpn: int, segments: int, *, seal: bool = True) -> None:
        self._mtu, self._lead, self._segments, self._seal = layout.mtu, layout.lead, segments, seal
        chunk = self.chunk = CHUNK // segments * segments
        bth = BTH.pack(layout.middle, MIGRATED, DEFAULT_PKEY, qpn, 0)
        self._base = np.uint32(icrc(way.masked(layout.middle_bytes), bth + bytes(layout.mtu)))
        self._psn = word_tables(layout.mtu)
        self._payload = payload_registers(layout.mtu)
        self._steps = np.arange(chunk, dtype=np.uint32)
        self._offsets = np.arange(chunk, dtype=np.int64) * layout.mtu
        self._by_id = np.resize(ip_id_changes(way.ip_bytes, layout.middle_bytes, segments), chunk) ^ self._base
        self.ask = int(self._psn[3][_ASK]) if seal else 0
        self._sequence = self._first = self._psn_first = -1
        self.rows = np.zeros((chunk + 1, ROW_BYTES), np.uint8)
        self.rows[:, ICRC_BYTES:] = np.frombuffer(bth, np.uint8)
        self._words = self.rows[:chunk, ROW_BYTES - 4 :].view(">u4")[:, 0]
        self._icrcs = self.rows[1:, :ICRC_BYTES].view("<u4")[:, 0]
        self.filled = self.fills = 0
        self.starts = self._offsets[:0]

    def prepare(self, sequence: int, index: int, psn: int, count: int = 1) -> int:
        """The row of packet `index` of a message, whose PSN this is; it and `count` - 1 more of the chunk are prepared.

        (If a chunk has so many.) How many are follows from `filled`.
        """
        at = index - self._first
        if (
            sequence != self._sequence
            or not 0 <= at <= self.filled - count
            or at % self._segments
            or (self._psn_first + at) & PSN_MASK != psn
        ):
            self._fill(sequence, index, psn, count)
            return 0
        return at

    def _fill(self, sequence: int, index: int, psn: int, count: int) -> None:
        """More, the farther a message has come: what is prepared for nothing stays a part of what was used."""
        segments = self._segments
        wanted = min(self.chunk, max(count, _FIRST_FILL, index * _GROWTH))
        filled = self.filled = -(-wanted // segments) * segments
        self._sequence, self._first, self._psn_first = sequence, index, psn
        self.fills += 1
        words = self._steps[:filled] + np.uint32(psn) & np.uint32(PSN_MASK)
        self._words[:filled] = words
        self.starts = (self._offsets[:filled] + start_of(sequence, index * self._mtu - self._lead)) % PERIOD
        if self._seal:
            found = apply(self._psn, words)
            found ^= self._payload[self.starts]
            np.bitwise_xor(found, self._by_id[:filled], out=self._icrcs[:filled])


class MiddleSender:
    """Middle packets as the kernel takes them: super-packets, each a row of buffers.

    Args:
        middles: headers and ICRCs.
        layout, segments: as those are made for.
        to: where they go, as mmsg.pack_address says it.

    Attributes:
        table: a `struct mmsghdr` a super-packet.
        segment, segments: bytes of a packet, and most packets of a super-packet.
    """

    def __init__(self, middles: Middles, layout: Layout, segments: int, to: bytes) -> None:
        self._middles, self.segments, self.segment = middles, segments, layout.middle_bytes
        supers = middles.chunk // segments
        rows = mmsg.address_of(middles.rows)
        self._block = mmsg.address_of(np.frombuffer(block(), np.uint8))
        self._to = np.frombuffer(to, np.uint8)
        self._control = np.frombuffer(
            _SEGMENT.pack(_SEGMENT.size - 6, socket.IPPROTO_UDP, UDP_SEGMENT, layout.middle_bytes), np.uint8
        )
        self._vectors = np.zeros((supers, 2 * segments + 1, 2), np.uint64)
        heads = rows + np.arange(middles.chunk, dtype=np.uint64).reshape(supers, segments) * ROW_BYTES
        self._vectors[:, 0] = np.stack([heads[:, 0] + ICRC_BYTES, np.full(supers, BTH_BYTES)], axis=1)
        self._vectors[:, 2::2, 0] = heads + ROW_BYTES
        self._vectors[:, 2::2, 1] = ROW_BYTES
        self._vectors[:, -1, 1] = ICRC_BYTES
        self._vectors[:, 1::2, 1] = layout.mtu
        self._payloads = self._vectors[:, 1::2, 0]
        table = self.table = mmsg.messages(supers)
        table[:, mmsg.NAME], table[:, mmsg.NAME_BYTES] = mmsg.address_of(self._to), len(to)
        table[:, mmsg.VECTORS] = mmsg.address_of(self._vectors) + np.arange(supers) * self._vectors[0].nbytes
        table[:, mmsg.VECTOR_COUNT] = 2 * segments + 1
        if segments > 1:
            table[:, mmsg.CONTROL], table[:, mmsg.CONTROL_BYTES] = mmsg.address_of(self._control), _SEGMENT.size
        self._address = mmsg.address_of(table)
        self._flat = memoryview(middles.rows.reshape(-1).data)
        self._asking = bytearray(middles.chunk)
        self._fills = 0

    def prepare(self, sequence: int, index: int, psn: int) -> tuple[int, int]:
        """(row, packets prepared from there on) for packet `index` of a message, whose PSN this is."""
        middles = self._middles
        at = middles.prepare(sequence, index, psn)
        if self._fills != middles.fills:
            self._fills = middles.fills
            self._asking = bytearray(middles.chunk)
            supers = middles.filled // self.segments
            self._payloads[:supers] = (middles.starts + self._block).reshape(supers, self.segments)
        return at, middles.filled - at

    def send(self, fd: int, at: int, count: int, *, ack_request: bool) -> int:
        """Send `count` prepared packets from row `at` on: whole super-packets, or a part of one; how many left.

        Raises:
            OSError: see mmsg.send_many.
        """
        self._request(at, at + count - 1, wanted=ack_request)
        first, segments = at // self.segments, self.segments
        if count >= segments:
            return mmsg.send_many(fd, self._address + first * mmsg.ROW_BYTES, count // segments) * segments
        vectors, row = self._vectors[first], self.table[first]
        vectors[2 * count, 1], row[mmsg.VECTOR_COUNT] = ICRC_BYTES, 2 * count + 1
        taken = mmsg.send_many(fd, self._address + first * mmsg.ROW_BYTES, 1)
        vectors[2 * count, 1], row[mmsg.VECTOR_COUNT] = ROW_BYTES, 2 * segments + 1
        return taken * count

    def _request(self, at: int, last: int, *, wanted: bool) -> None:
        """Of these packets only the last asks for an acknowledgement, if it is to."""
        asking = self._asking
        if asking[last] != wanted:
            self._toggle(last)
        while (other := asking.find(1, at, last)) >= 0:
            self._toggle(other)

    def _toggle(self, at: int) -> None:
        self._asking[at] ^= 1
        self._flat[at * ROW_BYTES + ROW_BYTES - 4] ^= _ASK
        where = (at + 1) * ROW_BYTES
        _LITTLE.pack_into(self._flat, where, _LITTLE.unpack_from(self._flat, where)[0] ^ self._middles.ask)
