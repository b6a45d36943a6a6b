"""One queue pair to one peer: messages go out in pieces, pieces come in and are acknowledged. Both ways at once.

A message begins with a header (framing.Frame) that its first piece carries in front of the payload. Payload is read
from one static block and written into landing slots, both registered once: any number of bytes goes through the same
memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from genie.errors import RunError
from genie.replay.transports.framing import DATA, FRAME_BYTES, Frame, parse
from genie.replay.transports.payload import first_difference, start_of
from genie.replay.transports.verbs_library import Done, Memory, Piece, QueuePair
from genie.replay.transports.verbs_window import Intake, SendQueue, Window, is_taken, piece_word

HEADER_BYTES: Final = 64
"""Room of a header; a slot has so much more than its payload."""


class Arrival(NamedTuple):
    """A message that is wholly here."""

    tag: int
    size_bytes: int
    number: int
    first_byte_ns: int
    done_ns: int


@dataclass(slots=True, eq=False)
class Outbound:
    """A message on its way out.

    Attributes:
        handle, tag, size_bytes, posted_ns: as posted.
        number: see framing.Frame.
        sequence: of its connection; -1 before it has started.
        sent_bytes: payload given to the device.
        last_piece: count of pieces up to its last one, once that has been sent.
    """

    handle: int
    tag: int
    size_bytes: int
    posted_ns: int
    number: int = 0
    sequence: int = -1
    sent_bytes: int = 0
    first_byte_ns: int = -1
    last_piece: int = 0


@dataclass(frozen=True, slots=True)
class Landing:
    """The slots that one direction of a connection lands in: `slots` of `slot_bytes` payload from `at` on in `memory`.

    For SEND there are twice as many buffers, since the words that come back use one up, too.
    """

    memory: Memory
    at: int
    slots: int
    slot_bytes: int

    @staticmethod
    def size_of(buffers: int, slot_bytes: int) -> int:
        """Bytes of so many slots or buffers."""
        return buffers * (HEADER_BYTES + slot_bytes)

    def offset(self, slot: int) -> int:
        """Where a slot begins in the memory."""
        return self.at + self.size_of(slot, self.slot_bytes)

    def piece(self, slot: int) -> Piece:
        """A whole slot, for a receive."""
        return self.memory.piece(self.offset(slot), FRAME_BYTES + self.slot_bytes)

    def target(self) -> Target:
        """What the peer must know to write here."""
        return Target(self.memory.address + self.at, self.memory.remote_key)

    def view(self, slot: int, length: int) -> memoryview:
        """The first bytes of a slot."""
        if length > FRAME_BYTES + self.slot_bytes:
            raise RunError(f"{length} bytes came into a slot of {self.slot_bytes}.")
        at = self.offset(slot)
        return self.memory.view[at : at + length]


class Target(NamedTuple):
    """Where the peer's slots are in its memory: address of the first, and the key to write with."""

    address: int
    key: int


class Sources(NamedTuple):
    """What a connection sends from: the payload's block, and room for a header a slot from `headers_at` on."""

    block: Memory
    headers: Memory
    headers_at: int


class Connection:
    """Our end of a queue pair.

    Attributes:
        waiting: messages not wholly given to the device, in order.
        unacknowledged: messages given to it, in order.
        landing: where the peer's pieces come in.
        pushed_bytes, received_bytes: payload moved.
        ended: why nothing will come any more; "" while something may.
    """

    def __init__(
        self,
        pair: QueuePair,
        peer: int,
        flow: int,
        landing: Landing,
        sources: Sources,
        queue: SendQueue,
        now: Callable[[], int],
        *,
        write: bool,
        verify: bool,
    ) -> None:
        self.pair, self.peer, self.flow, self.queue = pair, peer, flow, queue
        self.waiting: deque[Outbound] = deque()
        self.unacknowledged: deque[Outbound] = deque()
        self.pushed_bytes = self.received_bytes = 0
        self.ended = ""
        self.landing, self._sources, self._now = landing, sources, now
        self._write, self._verify = write, verify
        self._window, self._intake = Window(landing.slots), Intake(landing.slots)
        self._target = Target(0, 0)
        self._sequence = self._next_sequence = 0
        self._frame: Frame | None = None
        self._got_bytes = 0
        self._first_byte_ns = -1

    @property
    def outstanding(self) -> int:
        """Messages not yet acknowledged."""
        return len(self.waiting) + len(self.unacknowledged)

    @property
    def shape(self) -> tuple[int, int, int]:
        """What both ends must have alike: slots, their bytes, and whether they are written (1) or sent (0) to."""
        return self.landing.slots, self.landing.slot_bytes, int(self._write)

    @property
    def unfinished(self) -> str:
        """The message that is partly here, in words; "" if there is none."""
        frame = self._frame
        if frame is None:
            return ""
        return f"message {frame.sequence} (tag {frame.tag}), {self._got_bytes} of {frame.size_bytes} bytes"

    def expect_all(self) -> None:
        """Post the receives: two a slot (see verbs_window)."""
        for buffer in range(2 * self.landing.slots):
            self._expect(buffer)

    def _expect(self, buffer: int) -> None:
        self.pair.expect(buffer, None if self._write else self.landing.piece(buffer))

    def aim(self, target: Target) -> None:
        """Where the peer's slots are."""
        self._target = target

    def push(self) -> None:
        """Give pieces to the device until the peer's slots or the device's queue are full."""
        while self.waiting and self._window.free and self.queue.free > self._reserve:
            message = self.waiting[0]
            if message.sequence < 0:
                message.sequence, message.first_byte_ns = self._sequence, self._now()
                self._sequence += 1
            if self._push_piece(message):
                self.unacknowledged.append(self.waiting.popleft())

    @property
    def _reserve(self) -> int:
        """Requests kept for words that go back, so that full slots one way never stop the other way."""
        return self.queue.depth // 2

    def _push_piece(self, message: Outbound) -> bool:
        """Send the next piece of a message; whether it was the last."""
        number = self._window.take()
        slot = number % self.landing.slots
        size = min(self.landing.slot_bytes, message.size_bytes - message.sent_bytes)
        pieces = [] if message.sent_bytes else [self._header(message, slot)]
        if size:
            pieces.append(self._sources.block.piece(start_of(message.sequence, message.sent_bytes), size))
        ends = message.sent_bytes == 0 or message.sent_bytes + size == message.size_bytes
        self._post(pieces, piece_word(number), slot, wake=ends or self._window.wakes(number))
        message.sent_bytes += size
        self.pushed_bytes += size
        message.last_piece = number + 1
        return message.sent_bytes == message.size_bytes

    def _header(self, message: Outbound, slot: int) -> Piece:
        """The header, in registered memory that is free again when the slot is."""
        at = self._sources.headers_at + slot * HEADER_BYTES
        frame = Frame(DATA, message.tag, message.size_bytes, message.sequence, message.number)
        self._sources.headers.view[at : at + FRAME_BYTES] = frame.pack()
        return self._sources.headers.piece(at, FRAME_BYTES)

    def _post(self, pieces: list[Piece], word: int, slot: int = 0, *, wake: bool = True) -> None:
        target = None
        if self._write:
            target = (self._target.address + Landing.size_of(slot, self.landing.slot_bytes), self._target.key)
        number, signalled = self.queue.post()
        self.pair.post(number, pieces, word=word, target=target, signalled=signalled, wake=wake)

    def take(self, done: Done) -> tuple[list[Outbound], Arrival | None]:
        """What a good completion of this queue pair means: messages acknowledged, a message arrived.

        Raises:
            RunError: the peer breaks the protocol, or payload differs from what was sent.
        """
        if not done.received:
            self.queue.done(done.number)
            return [], None
        if is_taken(done.word):
            self._expect(done.number)
            self._window.told(done.word)
            return self._take_acknowledged(), None
        arrival = self._take_piece(done)
        self._expect(done.number)
        return [], arrival

    def _take_acknowledged(self) -> list[Outbound]:
        acknowledged = []
        while self.unacknowledged and self.unacknowledged[0].last_piece <= self._window.taken:
            acknowledged.append(self.unacknowledged.popleft())
        return acknowledged

    def _take_piece(self, done: Done) -> Arrival | None:
        slot, now_ns = self._intake.arrive(done.word), self._now()
        view = self.landing.view(slot if self._write else done.number, done.length)
        if self._frame is None:
            self._frame, self._got_bytes, self._first_byte_ns = self._begin(view), 0, now_ns
            view = view[FRAME_BYTES:]
        frame = self._frame
        if len(view) != min(self.landing.slot_bytes, frame.size_bytes - self._got_bytes):
            raise RunError(f"a piece of {len(view)} bytes came after {self._got_bytes} of {frame.size_bytes}.")
        if self._verify:
            self._check(frame, view)
        self._got_bytes += len(view)
        self.received_bytes += len(view)
        return self._finish(frame, now_ns) if self._got_bytes == frame.size_bytes else None

    def _begin(self, view: memoryview) -> Frame:
        if len(view) < FRAME_BYTES:
            raise RunError(f"a message began with {len(view)} bytes, less than a header.")
        frame = parse(view)
        if frame.kind != DATA or frame.sequence != self._next_sequence:
            raise RunError(f"message {frame.sequence} came where {self._next_sequence} was due.")
        self._next_sequence += 1
        return frame

    def _check(self, frame: Frame, view: memoryview) -> None:
        wrong = first_difference(view, frame.sequence, self._got_bytes)
        if wrong >= 0:
            raise RunError(
                f"byte {wrong} of message {frame.sequence} (tag {frame.tag}, {frame.size_bytes} bytes) is not what "
                "was sent.",
                fix="the device's own check sum should have caught it: look for a faulty NIC, driver or memory.",
            )

    def _finish(self, frame: Frame, now_ns: int) -> Arrival:
        self._frame = None
        self._intake.finish()
        return Arrival(frame.tag, frame.size_bytes, frame.number, self._first_byte_ns, now_ns)

    def tell(self) -> None:
        """Tell the peer what was taken in, if it should know now and the device has room."""
        if self._intake.owes and self.queue.free > 1:
            self._post([], self._intake.tell())

    @property
    def starved(self) -> bool:
        """Whether only the device can help: it must finish requests before a piece or a word can follow."""
        pieces = bool(self.waiting) and self._window.free > 0 and self.queue.free <= self._reserve
        return pieces or (self._intake.owes and self.queue.free <= 1)

    def mark(self) -> None:
        """Have the device say when it has done all that it was given."""
        if self.queue.unsignalled and self.queue.free:
            number, _ = self.queue.post(signalled=True)
            self.pair.post(number, [], target=self._target, signalled=True)

    def not_started(self, handle: int) -> Outbound | None:
        """The message of that handle, if nothing of it has been sent."""
        return next((m for m in self.waiting if m.handle == handle and m.sequence < 0), None)
