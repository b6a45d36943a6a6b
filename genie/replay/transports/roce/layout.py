"""How a message becomes packets: opcodes, offsets, lengths.

A message is one RDMA WRITE (or SEND) with immediate. One longer than PIECE_BYTES is several, of which only the last has
an immediate, so that the receiver knows where it ends. A WRITE tells the message's tag as the RETH's virtual address; a
SEND has no RETH, so that the tag leads its payload. The immediate counts messages of one key.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final, NamedTuple

from genie.formats.roce import BTH_BYTES, EXTENSION_BYTES, ICRC_BYTES, Opcode, send_opcode, write_opcode

PIECE_BYTES: Final = 1 << 30
"""Most bytes of one WRITE or SEND (the specification allows 2^31)."""

LEAD_BYTES: Final = 8
"""What a SEND has ahead of its payload: the tag."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """A message to be sent.

    Attributes:
        handle, tag, size_bytes, posted_ns: as posted; a handle below 0 is ours (a sign of life, nothing to be told).
        number: see framing.Frame.
        sequence: chooses the payload; counts the messages of a queue pair.
        first: number of its first packet since the queue pair began; -1 before it has started.
        packets: how many it has.
    """

    handle: int
    tag: int
    size_bytes: int
    posted_ns: int
    number: int = 0
    sequence: int = -1
    first: int = -1
    packets: int = 1
    first_byte_ns: int = -1


class Part(NamedTuple):
    """One packet of a message: opcode, where its bytes are in the payload, and how many; the lead comes on top."""

    opcode: Opcode
    offset: int
    length: int
    lead: int
    piece_bytes: int

    @property
    def wire_bytes(self) -> int:
        """Length of the UDP payload."""
        body = self.lead + self.length
        return BTH_BYTES + EXTENSION_BYTES[self.opcode] + body + -body % 4 + ICRC_BYTES


@dataclass(frozen=True, slots=True)
class Layout:
    """How messages are cut: path MTU, and whether they are SENDs (else RDMA WRITEs)."""

    mtu: int
    send: bool = False

    @property
    def lead(self) -> int:
        """Bytes ahead of the payload."""
        return LEAD_BYTES if self.send else 0

    @property
    def piece_packets(self) -> int:
        """Packets of a piece."""
        return PIECE_BYTES // self.mtu

    @property
    def middle(self) -> Opcode:
        """Opcode of the packets in the middle, all alike."""
        return Opcode.SEND_MIDDLE if self.send else Opcode.WRITE_MIDDLE

    @property
    def middle_bytes(self) -> int:
        """UDP payload bytes of those."""
        return BTH_BYTES + self.mtu + ICRC_BYTES

    def packets(self, size_bytes: int) -> int:
        """How many packets a message has."""
        return max(1, -(-(size_bytes + self.lead) // self.mtu))

    def part(self, message: Outgoing, index: int) -> Part:
        """A message's packet number `index`."""
        total = message.size_bytes + self.lead
        at, in_piece = index * self.mtu, index % self.piece_packets
        final = index == message.packets - 1
        last = final or in_piece == self.piece_packets - 1
        lead = self.lead if index == 0 else 0
        opcode = _opcode(self.send, in_piece == 0, last, final and message.handle >= 0)
        piece = min(PIECE_BYTES, total - index // self.piece_packets * PIECE_BYTES)
        return Part(opcode, max(0, at - self.lead), min(self.mtu, total - at) - lead, lead, piece)

    def middles(self, message: Outgoing, index: int) -> int:
        """How many packets from `index` on are alike: middle ones of one piece."""
        in_piece = index % self.piece_packets
        if in_piece == 0:
            return 0
        return max(0, min(self.piece_packets - in_piece, message.packets - index) - 1)


@functools.cache
def _opcode(send: bool, first: bool, last: bool, immediate: bool) -> Opcode:
    return (send_opcode if send else write_opcode)(first=first, last=last, immediate=immediate)
