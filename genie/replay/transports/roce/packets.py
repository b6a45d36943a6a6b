"""Packets of one queue pair as bytes, with ICRCs: built without touching payload, checked against what it must be.

Payload is slices of one static block (see payload.py), so the CRC register that any packet's payload leaves is in a
table. The ICRCs of a message's middle packets are then a few look-ups each, 240 packets at a time; the kernel gets
headers, slices of the block and ICRCs as one scattered buffer. A receiver compares what came with what must come, which
is ten times as fast as a CRC of it. A packet that is not as expected has its CRC computed from all of its bytes.
"""

from __future__ import annotations

import functools
import itertools
import struct
import zlib
from typing import Final, NamedTuple

import numpy as np

from genie.formats.icrc import Way, Words, apply, icrc, ip_id_changes, register, shift, word_tables
from genie.formats.roce import (
    ACK_REQUEST,
    BTH_BYTES,
    DEFAULT_PKEY,
    ICRC_BYTES,
    MTUS,
    PSN_MASK,
    WITH_IMM,
    WITH_RETH,
    Opcode,
)
from genie.replay.transports.payload import PERIOD, block, payload, start_of
from genie.replay.transports.roce.layout import Layout, Outgoing, Part

CHUNK: Final = 240
"""Middle packets that are prepared at once: a multiple of usual super-packets."""

MAX_SEGMENTS: Final = 64
_BTH: Final = struct.Struct("!BBHII")
_RETH: Final = struct.Struct("!QII")
_LEAD: Final = struct.Struct("!Q")
_WORD: Final = struct.Struct("!I")
_LITTLE: Final = struct.Struct("<I")
_MIGRATED: Final = 0x40
_U64: Final = (1 << 64) - 1
_ROW: Final = ICRC_BYTES + BTH_BYTES
_WORD_AT: Final = 8
"""Where in a BTH its last word is: the request for an acknowledgement, and the PSN."""

Buffers = list[bytes | memoryview]

_BLOCK: Final = block()
_VIEW: Final = memoryview(_BLOCK)


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
    """The middle packets that go one way to one queue pair: as buffers, CHUNK at a time.

    An IP identification counts the packets of a super-packet from 0, and the ICRC covers it: so the packets of a chunk
    are sealed for super-packets of `segments` that begin at the chunk's first packet. One that begins elsewhere starts
    a new chunk.
    """

    def __init__(self, way: Way, layout: Layout, qpn: int, segments: int, *, seal: bool = True) -> None:
        self._mtu, self._lead, self._segments, self._seal = layout.mtu, layout.lead, segments, seal
        bth = _BTH.pack(layout.middle, _MIGRATED, DEFAULT_PKEY, qpn, 0)
        self._base = np.uint32(icrc(way.masked(layout.middle_bytes), bth + bytes(layout.mtu)))
        self._psn = word_tables(layout.mtu)
        self._payload = payload_registers(layout.mtu)
        self._steps = np.arange(CHUNK, dtype=np.uint32)
        self._offsets = np.arange(CHUNK, dtype=np.int64) * layout.mtu
        self._by_id = np.resize(ip_id_changes(way.ip_bytes, layout.middle_bytes, segments), CHUNK)
        self._ack_request = int(self._psn[3][ACK_REQUEST >> 24])
        self._sequence = self._first = self._psn_first = -1
        self._asking = bytearray(CHUNK)
        # row i: the ICRC of packet i - 1, then the BTH of packet i, next to each other on the wire
        rows = np.zeros((CHUNK + 1, _ROW), np.uint8)
        rows[:, ICRC_BYTES:] = np.frombuffer(bth, np.uint8)
        self._words = rows[:CHUNK, _ROW - 4 :].view(">u4")[:, 0]
        self._icrcs = rows[1:, :ICRC_BYTES].view("<u4")[:, 0]
        self._flat = memoryview(rows.reshape(-1).data)
        self._rows = [self._flat[at * _ROW : (at + 1) * _ROW] for at in range(CHUNK + 1)]
        self._heads = [view[ICRC_BYTES:] for view in self._rows]
        self._tails = [view[:ICRC_BYTES] for view in self._rows]

    def buffers(self, sequence: int, index: int, psn: int, count: int, *, ack_request: bool) -> Buffers:
        """A super-packet: `count` packets of a message from `index` on, the first with this PSN; good until the next.

        Args:
            sequence: of the message.
            index: of its packets.
            psn: of the first of them.
            count: at most CHUNK, and at most `segments` if they are to be sealed as one super-packet.
            ack_request: set in the last one.
        """
        at = self._prepare(sequence, index, psn, count, ack_request=ack_request)
        start, mtu = start_of(sequence, index * self._mtu - self._lead), self._mtu
        found: Buffers = [self._tails[at + count]] * (2 * count + 1)
        found[0] = self._heads[at]
        found[2:-1:2] = self._rows[at + 1 : at + count]
        found[1::2] = [_VIEW[begin : begin + mtu] for begin in range(start, start + count * mtu, mtu)]
        return found

    def frame(self, sequence: int, index: int, psn: int, count: int, *, ack_request: bool) -> memoryview:
        """The same without payload: headers and ICRCs in one."""
        at = self._prepare(sequence, index, psn, count, ack_request=ack_request)
        return self._flat[at * _ROW + ICRC_BYTES : (at + count) * _ROW + ICRC_BYTES]

    def _prepare(self, sequence: int, index: int, psn: int, count: int, *, ack_request: bool) -> int:
        """The row at which a super-packet begins; its headers and ICRCs are as they must be."""
        at = index - self._first
        fits = sequence == self._sequence and 0 <= at <= CHUNK - count and at % self._segments == 0
        if not fits or self._psn_first + at & PSN_MASK != psn:
            at = 0
            self._fill(sequence, index, psn)
        last = at + count - 1
        asking = self._asking
        if asking[last] != ack_request:
            self._toggle(last)
        while (other := asking.find(1, at, last)) >= 0:
            self._toggle(other)
        return at

    def _fill(self, sequence: int, index: int, psn: int) -> None:
        self._sequence, self._first, self._psn_first = sequence, index, psn
        self._words[:] = self._steps + np.uint32(psn) & np.uint32(PSN_MASK)
        if self._seal:
            np.bitwise_xor(self.compute(sequence, index, psn), self._by_id, out=self._icrcs)
        self._asking[:] = bytes(CHUNK)

    def _toggle(self, at: int) -> None:
        """Set a packet's request for an acknowledgement, or take it back."""
        self._asking[at] ^= 1
        self._flat[at * _ROW + _ROW - 4] ^= ACK_REQUEST >> 24
        if self._seal:
            tail = self._tails[at + 1]
            _LITTLE.pack_into(tail, 0, _LITTLE.unpack(tail)[0] ^ self._ack_request)

    def compute(self, sequence: int, index: int, psn: int) -> Words:
        """ICRCs of CHUNK packets of which each travels alone, without a request for an acknowledgement."""
        words = self._steps + np.uint32(psn) & np.uint32(PSN_MASK)
        starts = (self._offsets + start_of(sequence, index * self._mtu - self._lead)) % PERIOD
        return apply(self._psn, words) ^ self._payload[starts] ^ self._base


class Single(NamedTuple):
    """A packet as buffers, and its UDP payload's length."""

    buffers: Buffers
    wire_bytes: int


class Builder:
    """Builds the packets that one end sends one way.

    Args:
        way: network headers.
        layout, qpn, rkey: of messages; the peer's queue pair and the key for its memory.
        segments: most packets of a super-packet.
        seal: fill ICRCs in; else they are 0.
    """

    def __init__(self, way: Way, layout: Layout, qpn: int, rkey: int, segments: int, *, seal: bool = True) -> None:
        self._way, self._layout, self._qpn, self._rkey, self._seal = way, layout, qpn, rkey, seal
        self._middles = Middles(way, layout, qpn, segments, seal=seal)
        self._masked: dict[int, int] = {}

    def middles(self, message: Outgoing, index: int, psn: int, count: int, *, ack_request: bool) -> Buffers:
        """Middle packets in a row; the buffers are good until the next call."""
        return self._middles.buffers(message.sequence, index, psn, count, ack_request=ack_request)

    def single(self, message: Outgoing, part: Part, psn: int, *, ack_request: bool, position: int = 0) -> Single:
        """Any one packet, number `position` in its super-packet."""
        body = part.lead + part.length
        pad = -body % 4
        head = _BTH.pack(
            part.opcode, _MIGRATED | pad << 4, DEFAULT_PKEY, self._qpn, psn | (ACK_REQUEST if ack_request else 0)
        )
        if part.opcode in WITH_RETH:
            head += _RETH.pack(message.tag & _U64, self._rkey, part.piece_bytes)
        if part.opcode in WITH_IMM:
            head += _WORD.pack(message.number)
        if part.lead:
            head += _LEAD.pack(message.tag & _U64)
        content = payload(message.sequence, part.offset, part.length)
        tail = bytes(pad)
        wire = len(head) + part.length + pad + ICRC_BYTES
        return Single([head, content, tail + self._icrc(head, content, tail, wire, position)], wire)

    def control(self, opcode: Opcode, psn: int, extension: bytes, *, becn: bool = False) -> bytes:
        """An acknowledgement or a notification."""
        notified = _MIGRATED << 24 if becn else 0  # BECN is the second bit of its byte, as MigReq is of the flags
        head = _BTH.pack(opcode, _MIGRATED, DEFAULT_PKEY, notified | self._qpn, psn) + extension
        wire = len(head) + ICRC_BYTES
        return head + self._icrc(head, b"", b"", wire, 0)

    def _icrc(self, head: bytes, content: bytes | memoryview, tail: bytes, wire: int, position: int) -> bytes:
        if not self._seal:
            return bytes(ICRC_BYTES)
        before = self._masked.get(wire)
        if before is None:
            before = self._masked[wire] = zlib.crc32(self._way.masked(wire))
        value = zlib.crc32(head[5:], zlib.crc32(head[:4] + b"\xff", before))
        value = zlib.crc32(tail, zlib.crc32(content, value))
        if position:
            value ^= int(ip_id_changes(self._way.ip_bytes, wire)[position])
        return _LITTLE.pack(value)


class Inbox:
    """The receive buffer, with ready-made views of where the parts of middle packets are."""

    def __init__(self, layout: Layout, size_bytes: int = 1 << 16) -> None:
        self.view = memoryview(bytearray(size_bytes))
        size, mtu = layout.middle_bytes, layout.mtu
        starts = range(0, size_bytes - size + 1, size)
        self.payloads = [self.view[at + BTH_BYTES : at + BTH_BYTES + mtu] for at in starts]
        self.rows = [self.view[max(0, at - ICRC_BYTES) : at + BTH_BYTES] for at in starts]
        self.tails = [self.view[at + size - ICRC_BYTES : at + size] for at in starts]


class Checker:
    """Checks what comes one way to one of our queue pairs.

    Args:
        way: network headers as the sender has them.
        layout, segments: as the sender's.
        qpn: ours.
        sealed: whether ICRCs are to be checked.
        content: whether payload is to be compared with what it must be; with ICRCs it always is.
    """

    def __init__(
        self, way: Way, layout: Layout, qpn: int, segments: int, *, sealed: bool = True, content: bool = False
    ) -> None:
        self._way, self._layout, self._sealed, self._content = way, layout, sealed, content or sealed
        self._middles = Middles(way, layout, qpn, segments, seal=sealed)
        self._masked: dict[int, int] = {}
        self._allowed: dict[int, frozenset[int]] = {}

    def are_middles(self, inbox: Inbox, count: int, psn: int, sequence: int, offset: int) -> bool:
        """Whether the inbox begins with `count` middle packets, from this PSN on, whose every bit is as it must be.

        They are those of message `sequence` from payload byte `offset` on, as one super-packet. False says only that it
        is not so simple.
        """
        mtu = self._layout.mtu
        asks = bool(inbox.view[(count - 1) * self._layout.middle_bytes + _WORD_AT] & 0x80)
        index = (offset + self._layout.lead) // mtu
        expected = self._middles.frame(sequence, index, psn, count, ack_request=asks)
        rows = inbox.rows[:count]
        rows.append(inbox.tails[count - 1])
        if b"".join(rows) != expected:
            return False
        if not self._content:
            return True
        start = start_of(sequence, offset)
        starts = range(start, start + count * mtu, mtu)
        return all(map(_BLOCK.startswith, inbox.payloads[:count], starts))

    def is_sealed(self, packet: memoryview) -> bool:
        """Whether a packet's ICRC is right, for any IP identification that a super-packet can give it."""
        if not self._sealed:
            return True
        size = len(packet)
        before = self._masked.get(size)
        if before is None:
            before = self._masked[size] = zlib.crc32(self._way.masked(size))
            self._allowed[size] = frozenset(ip_id_changes(self._way.ip_bytes, size).tolist())
        value = zlib.crc32(packet[5:-ICRC_BYTES], zlib.crc32(bytes(packet[:4]) + b"\xff", before))
        return value ^ _LITTLE.unpack(packet[-ICRC_BYTES:])[0] in self._allowed[size]
