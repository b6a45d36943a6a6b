"""What happens beside the ranks while they run: the launcher tells when an iteration begins and ends, and gives turns.

Everything here runs in the launcher's own thread, between two looks at its ranks; nothing needs a lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from genie.core.faults import DelayChange
from genie.replay.ranks import Rank


class During(Protocol):
    """Something that acts at certain times of a run."""

    def delays(self, iteration: int) -> dict[int, list[DelayChange]]:
        """Receiving rank -> how the delays of what it receives change in this iteration."""
        ...

    def begin(self, iteration: int, start_ns: int, ranks: Sequence[Rank]) -> None:
        """An iteration (negative: warm-up) has been ordered to start at `start_ns` (real)."""
        ...

    def due_ns(self) -> int | None:
        """When it wants its next turn (real); None: not before the next iteration."""
        ...

    def act(self, now_ns: int) -> None:
        """Its turn; not before `due_ns`.

        Raises:
            GenieError: what it has to do cannot be done; ends the run.
        """
        ...

    def end(self, now_ns: int) -> None:
        """The iteration is over, well or not; may be called twice."""
        ...

    def tell(self) -> str:
        """A sentence for the error of a run that fails now; "" if there is nothing to say."""
        ...


class Quiet:
    """Nothing happens."""

    def delays(self, _: int) -> dict[int, list[DelayChange]]:
        """See During."""
        return {}

    def begin(self, iteration: int, start_ns: int, ranks: Sequence[Rank]) -> None:
        """See During."""

    def due_ns(self) -> int | None:
        """See During."""
        return None

    def act(self, now_ns: int) -> None:
        """See During."""

    def end(self, now_ns: int) -> None:
        """See During."""

    def tell(self) -> str:
        """See During."""
        return ""


class Together:
    """Several at once, in order."""

    def __init__(self, *parts: During) -> None:
        self._parts = parts

    def delays(self, iteration: int) -> dict[int, list[DelayChange]]:
        """See During; only one of the parts may change delays."""
        return next((found for part in self._parts if (found := part.delays(iteration))), {})

    def begin(self, iteration: int, start_ns: int, ranks: Sequence[Rank]) -> None:
        """See During."""
        for part in self._parts:
            part.begin(iteration, start_ns, ranks)

    def due_ns(self) -> int | None:
        """See During."""
        return min((due for part in self._parts if (due := part.due_ns()) is not None), default=None)

    def act(self, now_ns: int) -> None:
        """See During."""
        for part in self._parts:
            due_ns = part.due_ns()
            if due_ns is not None and due_ns <= now_ns:
                part.act(now_ns)

    def end(self, now_ns: int) -> None:
        """See During."""
        for part in self._parts:
            part.end(now_ns)

    def tell(self) -> str:
        """See During."""
        return " ".join(words for part in self._parts if (words := part.tell()))
