"""Packets of one queue pair as bytes, with ICRCs: built without touching payload, checked against what it must be.

What is in the middle of messages is made many packets at a time (see middles.py), anything else one by one. A receiver
compares what came with what must come, which is ten times as fast as a CRC of it. A packet that is not as expected has
its CRC computed from all of its bytes.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from genie.formats.icrc import Way, ip_id_changes
from genie.formats.roce import (
    ACK_REQUEST,
    BTH_BYTES,
    DEFAULT_PKEY,
    ICRC_BYTES,
    WITH_IMM,
    WITH_RETH,
    Opcode,
)
from genie.replay.transports.payload import block, payload, start_of
from genie.replay.transports.roce.layout import Layout, Outgoing, Part
from genie.replay.transports.roce.middles import BTH, MIGRATED, ROW_BYTES, Middles
from genie.replay.transports.roce.slots import Slot

_RETH: Final = struct.Struct("!QII")
_LEAD: Final = struct.Struct("!Q")
_WORD: Final = struct.Struct("!I")
_LITTLE: Final = struct.Struct("<I")
_U64: Final = (1 << 64) - 1
_BLOCK: Final = block()

Buffers = list[bytes | memoryview]


class Single(NamedTuple):
    """A packet as buffers, and its UDP payload's length."""

    buffers: Buffers
    wire_bytes: int


class Builder:
    """Builds the packets that one end sends one way.

    Args:
        way: network headers.
        layout, qpn, rkey: of messages; the peer's queue pair and the key for its memory.
        seal: fill ICRCs in; else they are 0.
    """

    def __init__(self, way: Way, layout: Layout, qpn: int, rkey: int, *, seal: bool = True) -> None:
        self._way, self._layout, self._qpn, self._rkey, self._seal = way, layout, qpn, rkey, seal
        self._masked: dict[int, int] = {}

    def single(self, message: Outgoing, part: Part, psn: int, *, ack_request: bool, position: int = 0) -> Single:
        """Any one packet, number `position` in its super-packet."""
        body = part.lead + part.length
        pad = -body % 4
        head = BTH.pack(
            part.opcode, MIGRATED | pad << 4, DEFAULT_PKEY, self._qpn, psn | (ACK_REQUEST if ack_request else 0)
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
        notified = MIGRATED << 24 if becn else 0  # BECN is the second bit of its byte, as MigReq is of the flags
        head = BTH.pack(opcode, MIGRATED, DEFAULT_PKEY, notified | self._qpn, psn) + extension
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
        self._way, self._sealed, self._content = way, sealed, content or sealed
        self._mtu, self._lead = layout.mtu, layout.lead
        self._middles = Middles(way, layout, qpn, segments, seal=sealed)
        self._expected, self._fills = b"", 0
        self._masked: dict[int, int] = {}
        self._allowed: dict[int, frozenset[int]] = {}

    def are_middles(self, slot: Slot, count: int, psn: int, sequence: int, offset: int) -> bool:
        """Whether a datagram is `count` middle packets, from this PSN on, whose every bit is as it must be.

        They are those of message `sequence` from payload byte `offset` on, as one super-packet. False says only that it
        is not so simple.
        """
        middles = self._middles
        asks = slot.toggle(count, middles.ask) if slot.asks(count) else False
        at = middles.prepare(sequence, (offset + self._lead) // self._mtu, psn, count)
        if middles.fills != self._fills:
            self._fills, self._expected = middles.fills, middles.rows[: middles.filled + 1].tobytes()
        begin = at * ROW_BYTES + ICRC_BYTES
        expected = self._expected
        if (
            expected.startswith(slot.head, begin)
            and expected.startswith(slot.rows[: count * ROW_BYTES - BTH_BYTES], begin + BTH_BYTES)
            and (not self._content or _BLOCK.startswith(slot.payload[: count * self._mtu], start_of(sequence, offset)))
        ):
            return True
        if asks:
            slot.toggle(count, middles.ask)
        return False

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
