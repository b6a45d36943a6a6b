"""The receiving half of a queue pair, without I/O: packets in, messages and answers out.

Packets are numbered without wrap, as in the requester. Payload is not kept: only where it belongs and how long it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from genie.formats.roce import (
    ENDS,
    PSN_MASK,
    STARTS,
    WITH_IMM,
    Aeth,
    Kind,
    Nak,
    Opcode,
    credits_code,
    psn_add,
    psn_distance,
    rnr_code,
)
from genie.replay.transports.framing import MAX_MESSAGE_BYTES
from genie.replay.transports.roce.layout import LEAD_BYTES, PIECE_BYTES, Layout

MAX_AHEAD: Final = 1 << 16
"""Packets behind a gap that are remembered: more than any window."""


class Piece(NamedTuple):
    """What a packet says, as far as this half needs to know.

    Attributes:
        number: which packet.
        opcode: one of a SEND or WRITE.
        length: payload bytes (a SEND's lead included).
        address, rkey, dma_bytes: of the RETH; `address` is the lead's tag in the first packet of a SEND.
        immediate: of the ImmDt.
        ack_request: the sender wants to hear.
    """

    number: int
    opcode: int
    length: int
    address: int = 0
    rkey: int = 0
    dma_bytes: int = 0
    immediate: int = 0
    ack_request: bool = False


class Message(NamedTuple):
    """A message that is wholly here."""

    tag: int
    size_bytes: int
    number: int
    sequence: int
    first_byte_ns: int
    done_ns: int


class Place(NamedTuple):
    """Where the next packet's payload belongs.

    Attributes:
        sequence, offset: which message, and which byte of its payload.
        left_bytes: how far the piece under way still goes; 0: none is.
        begun: something of the message is here.
    """

    sequence: int
    offset: int
    left_bytes: int
    begun: bool


class Answer(NamedTuple):
    """An acknowledgement to send."""

    psn: int
    aeth: Aeth


class Fate(Enum):
    """What became of a packet."""

    TAKEN = "taken"
    DUPLICATE = "duplicate"
    EARLY = "early"
    REFUSED = "refused"


@dataclass(slots=True)
class Heard:
    """What happened, in packets, for the run's record."""

    taken: int = 0
    duplicates: int = 0
    early: int = 0
    refused: int = 0
    marked: int = 0


class Responder:
    """See the module.

    Args:
        layout: as the peer's.
        psn: the peer's first PSN.
        rkey: the key that WRITEs must show.
        selective: keep what comes behind a gap.
        depth: messages that may wait for their receive; 0: any number.

    Attributes:
        expected: number of the next packet.
        waiting: messages here that no receive has asked for: told by the owner, for credits.
    """

    def __init__(self, layout: Layout, psn: int, rkey: int, *, selective: bool = False, depth: int = 0) -> None:
        self._layout, self._psn, self._rkey, self._selective, self._depth = layout, psn, rkey, selective, depth
        self.expected = 0
        self.waiting = 0
        self.heard = Heard()
        self.received_bytes = 0
        self._msn = 0
        self._sequence = 0
        self._tag = 0
        self._message_bytes = -1
        self._piece_bytes = self._piece_left = 0
        self._in_piece = False
        self._first_byte_ns = -1
        self._ahead: dict[int, Piece] = {}
        self._nak: Answer | None = None
        self._nakked = -1
        self._ack_due = False
        self._broken: Answer | None = None

    def number(self, psn: int) -> int:
        """The packet that a PSN stands for, near what is expected; may be negative."""
        return self.expected + psn_distance(psn, psn_add(self._psn, self.expected))

    @property
    def place(self) -> Place:
        """Where the next packet belongs."""
        lead = self._layout.lead if self._message_bytes >= 0 else 0
        left = self._piece_left if self._in_piece else 0
        return Place(self._sequence, max(0, self._message_bytes - lead), left, self._message_bytes >= 0)

    @property
    def sequence(self) -> int:
        """Which message the next packet belongs to, or begins."""
        return self._sequence

    @property
    def offset(self) -> int:
        """Which byte of a message's payload comes next, in the middle of one."""
        return self._message_bytes - self._layout.lead

    @property
    def piece_left_bytes(self) -> int:
        """How far the piece under way still goes; 0: none is."""
        return self._piece_left

    @property
    def behind(self) -> bool:
        """Whether packets behind a gap are kept."""
        return bool(self._ahead)

    @property
    def unfinished(self) -> str:
        """The message that is partly here, in words; "" if there is none."""
        if self._message_bytes < 0:
            return ""
        return f"message {self._sequence} (tag {self._tag}), {self._message_bytes} bytes of it here"

    def take_middles(self, count: int, size_bytes: int) -> None:
        """Middle packets in a row, the first of them the expected one, that fit into the piece (the caller checked)."""
        self.expected += count
        self._message_bytes += size_bytes
        self._piece_left -= size_bytes
        self.received_bytes += size_bytes
        self.heard.taken += count

    def ask(self) -> None:
        """The sender wants to hear how far we are."""
        self._ack_due = True

    def on_piece(self, piece: Piece, now_ns: int) -> tuple[Fate, list[Message]]:
        """Take a packet; the messages that it completes (several, if it closes a gap)."""
        if self._broken is not None:
            return Fate.REFUSED, []
        if piece.number < self.expected:
            self.heard.duplicates += 1
            self._ack_due = self._ack_due or piece.ack_request
            if self._ahead and self._selective:
                self._complain()
            return Fate.DUPLICATE, []
        if piece.number > self.expected:
            return self._early(piece), []
        done: list[Message] = []
        fate = self._in_order(piece, now_ns, done)
        while fate is Fate.TAKEN and (due := self._ahead.pop(self.expected, None)) is not None:
            fate = self._in_order(due, now_ns, done)
        if self._ahead and self._selective and self._nakked < self.expected:
            self._complain()
        return fate, done

    def _early(self, piece: Piece) -> Fate:
        """A gap: complain once about it; go-back-N only when answers are due, since the missing may be just behind."""
        self.heard.early += 1
        if piece.number - self.expected < MAX_AHEAD:
            self._ahead[piece.number] = piece
        if self._selective and self._nakked < self.expected:
            self._complain(piece.number)
        return Fate.EARLY

    def _complain(self, first_behind: int = -1) -> None:
        self._nakked = self.expected
        behind = min(self._ahead, default=first_behind)
        field = psn_add(self._psn, behind) if self._selective else self._msn & PSN_MASK
        self._nak = Answer(psn_add(self._psn, self.expected), Aeth(Kind.NAK, Nak.SEQUENCE, field))

    def _in_order(self, piece: Piece, now_ns: int, done: list[Message]) -> Fate:
        nak = self._objection(piece)
        if nak is not None:
            return self._refuse(nak)
        if piece.opcode in WITH_IMM and self._depth and self.waiting + len(done) >= self._depth:
            self.heard.refused += 1
            wait = Aeth(Kind.RNR_NAK, rnr_code(1_000_000), self._msn & PSN_MASK)
            self._nak = Answer(psn_add(self._psn, piece.number), wait)
            return Fate.REFUSED
        if piece.opcode in STARTS:
            self._begin(piece, now_ns)
        self.expected += 1
        self._message_bytes += piece.length
        self._piece_left -= piece.length
        self.received_bytes += piece.length
        self.heard.taken += 1
        self._ack_due = self._ack_due or piece.ack_request
        if piece.opcode in ENDS:
            self._end(piece, now_ns, done)
        return Fate.TAKEN

    def _begin(self, piece: Piece, now_ns: int) -> None:
        self._in_piece = True
        self._piece_left = PIECE_BYTES if self._layout.send else piece.dma_bytes
        if self._message_bytes < 0:
            self._message_bytes, self._tag, self._first_byte_ns = 0, _signed(piece.address), now_ns

    def _end(self, piece: Piece, now_ns: int, done: list[Message]) -> None:
        self._in_piece = False
        self._piece_left = 0
        if piece.opcode in WITH_IMM:
            size = self._message_bytes - self._layout.lead
            done.append(Message(self._tag, size, piece.immediate, self._sequence, self._first_byte_ns, now_ns))
            self._sequence += 1
            self._msn += 1
            self._message_bytes = -1
        elif self._message_bytes <= self._layout.lead:  # a sign of life, no message
            self._sequence += 1
            self._message_bytes = -1

    def _objection(self, piece: Piece) -> Nak | None:
        """Why a packet in order cannot be taken."""
        layout, opcode = self._layout, piece.opcode
        starts, ends = opcode in STARTS, opcode in ENDS
        if (opcode >= Opcode.WRITE_FIRST) == layout.send or starts == self._in_piece:
            return Nak.INVALID_REQUEST
        if piece.length > layout.mtu or (not ends and piece.length != layout.mtu):
            return Nak.INVALID_REQUEST
        if starts:
            return self._objection_to_start(piece)
        if piece.length > self._piece_left or (not layout.send and ends != (piece.length == self._piece_left)):
            return Nak.INVALID_REQUEST
        return None

    def _objection_to_start(self, piece: Piece) -> Nak | None:
        layout, ends = self._layout, piece.opcode in ENDS
        before = max(0, self._message_bytes)
        if layout.send:
            short = before == 0 and piece.length < LEAD_BYTES
            return Nak.INVALID_REQUEST if short or before + piece.length > MAX_MESSAGE_BYTES + LEAD_BYTES else None
        if piece.rkey != self._rkey:
            return Nak.REMOTE_ACCESS
        fits = piece.length == piece.dma_bytes if ends else piece.length < piece.dma_bytes
        other = before > 0 and _signed(piece.address) != self._tag
        if not fits or other or piece.dma_bytes > PIECE_BYTES or before + piece.dma_bytes > MAX_MESSAGE_BYTES:
            return Nak.INVALID_REQUEST
        return None

    def _refuse(self, nak: Nak) -> Fate:
        """The queue pair goes into the error state: nothing more is taken."""
        self.heard.refused += 1
        self._broken = self._nak = Answer(psn_add(self._psn, self.expected), Aeth(Kind.NAK, nak, self._msn & PSN_MASK))
        self._ahead.clear()
        return Fate.REFUSED

    def answers(self) -> list[Answer]:
        """What is to be sent back now: at most a complaint and an acknowledgement."""
        found = []
        if self._ahead and not self._selective:
            if self._nakked < self.expected:
                self._complain()
            self._ahead.clear()
        if self._ack_due and self.expected > 0:
            code = credits_code(self._depth - self.waiting if self._depth else None)
            aeth = Aeth(Kind.ACK, code, self._msn & PSN_MASK)
            found.append(Answer(psn_add(self._psn, self.expected - 1), aeth))
        if self._nak is not None:
            found.append(self._nak)
        self._ack_due, self._nak = False, None
        return found


def _signed(value: int) -> int:
    """A 64-bit two's complement number."""
    return value - (1 << 64) if value >= 1 << 63 else value
