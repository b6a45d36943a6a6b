"""Bookkeeping of one queue pair: which landing slots are free, which work requests the device still holds. No I/O.

A message travels in pieces. Piece k of a queue pair's direction lands in slot k modulo the number of slots; a word of
32 bits comes with it (verbs' immediate): the piece's number. Back come words that tell how many pieces were taken in:
that frees slots (credits) and acknowledges messages. Numbers wrap at 2^31; the top bit tells the two kinds apart.

Each end posts two receives a slot: one for a piece, one for a word that comes back. Words never outnumber the pieces
that they are about, so no receive is ever missing.
"""

from __future__ import annotations

from typing import Final

from genie.errors import RunError

_BACK: Final = 1 << 31
_NUMBER: Final = _BACK - 1


def piece_word(number: int) -> int:
    """What comes with a piece."""
    return number & _NUMBER


def taken_word(count: int) -> int:
    """What goes back: so many pieces were taken in, in all."""
    return _BACK | count & _NUMBER


def is_taken(word: int) -> bool:
    """Whether a word goes back (else it came with a piece)."""
    return bool(word & _BACK)


class Window:
    """The sender's side: how many more pieces the peer has room for.

    Attributes:
        posted: pieces sent so far.
        taken: pieces that the peer took in, as far as it told.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.posted = self.taken = 0

    @property
    def free(self) -> int:
        """Pieces that may be sent now."""
        return self.slots - (self.posted - self.taken)

    def take(self) -> int:
        """The next piece's number; there must be room."""
        number = self.posted
        self.posted += 1
        return number

    def wakes(self, number: int) -> bool:
        """Whether a receiver that sleeps should look after this piece, in the middle of a message.

        One in half of the slots: a window that is full holds two such pieces at least, and by the second the receiver
        owes an answer (see Intake.owes).
        """
        return (number + 1) % max(1, self.slots // 2) == 0

    def told(self, word: int) -> None:
        """The peer took pieces in.

        Raises:
            RunError: more than were sent.
        """
        newly = (word - self.taken) & _NUMBER
        if newly > self.posted - self.taken:
            raise RunError(f"it took in {newly} pieces where {self.posted - self.taken} were under way.")
        self.taken += newly


class Intake:
    """The receiver's side: which piece is due, and when to tell how many were taken in.

    Attributes:
        taken: pieces taken in so far.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.taken = 0
        self._told = 0
        self._urgent = False

    def arrive(self, word: int) -> int:
        """A piece is here; its slot.

        Raises:
            RunError: it is not the one that was due.
        """
        if word != self.taken & _NUMBER:
            raise RunError(f"piece {word} came where {self.taken & _NUMBER} was due.")
        slot = self.taken % self.slots
        self.taken += 1
        return slot

    def finish(self) -> None:
        """A message is complete: its sender waits to hear so."""
        self._urgent = True

    @property
    def owes(self) -> bool:
        """Whether the sender should be told now: a message is complete, or half of the slots can be used again."""
        untold = self.taken - self._told
        return untold > 0 and (self._urgent or 2 * untold >= self.slots)

    def tell(self) -> int:
        """The word to send back."""
        self._told, self._urgent = self.taken, False
        return taken_word(self.taken)


class SendQueue:
    """Work requests that the device still holds; only every n-th tells when it is done, and those before it with it.

    Attributes:
        posted: requests given to the device so far.
    """

    def __init__(self, depth: int, signal_every: int) -> None:
        self.depth, self._every = depth, max(1, min(signal_every, depth // 2))
        self.posted = self._done = self._signalled = 0

    @property
    def free(self) -> int:
        """Requests that may be posted now."""
        return self.depth - (self.posted - self._done)

    @property
    def unsignalled(self) -> bool:
        """Whether the newest request will not tell when it is done."""
        return self._signalled != self.posted

    @property
    def idle(self) -> bool:
        """Whether the device is known to have done everything."""
        return self._done == self.posted

    def post(self, *, signalled: bool = False) -> tuple[int, bool]:
        """(the request's number, whether it must be signalled); there must be room."""
        self.posted += 1
        signalled = signalled or self.posted - self._signalled >= self._every
        if signalled:
            self._signalled = self.posted
        return self.posted, signalled

    def done(self, number: int) -> None:
        """A signalled request is done, and all before it.

        Raises:
            RunError: it was never posted.
        """
        if not self._done <= number <= self.posted:
            raise RunError(f"the device finished request {number}, which it was not given.")
        self._done = number


def slot_bytes_for(queue_pairs: int, slots: int, budget_bytes: int, most_bytes: int) -> int:
    """Payload bytes of a slot such that all landing slots together keep to a budget: a power of two, at least 4 KiB."""
    share = budget_bytes // max(1, queue_pairs * slots)
    return max(4096, min(most_bytes, 1 << max(0, share.bit_length() - 1)))
