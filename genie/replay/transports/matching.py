"""Which arrival belongs to which posted receive: by (source, tag, size), first with first; and what was moved."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

Key = tuple[int, int, int]
"""(source rank, tag, size_bytes)"""

Item = TypeVar("Item")


class Posted(NamedTuple):
    """A receive that waits for its message."""

    handle: int
    posted_ns: int


class Arrived(NamedTuple):
    """A message that waits for its receive."""

    first_byte_ns: int
    done_ns: int
    flow: int


class Matcher:
    """Two queues a key, at most one of them not empty; empty ones are not kept, since tags are seldom used twice."""

    def __init__(self) -> None:
        self._posted: dict[Key, deque[Posted]] = {}
        self._arrived: dict[Key, deque[Arrived]] = {}

    def post(self, key: Key, posted: Posted) -> Arrived | None:
        """The message that was here already, or None: then the receive waits."""
        if key in self._arrived:
            return _first(self._arrived, key)
        self._posted.setdefault(key, deque()).append(posted)
        return None

    def arrive(self, key: Key, arrived: Arrived) -> Posted | None:
        """The receive that was waiting, or None: then the message waits."""
        if key in self._posted:
            return _first(self._posted, key)
        self._arrived.setdefault(key, deque()).append(arrived)
        return None

    def cancel(self, handle: int) -> bool:
        """Forget a waiting receive; False if there is none."""
        for key, waiting in self._posted.items():
            for posted in waiting:
                if posted.handle == handle:
                    waiting.remove(posted)
                    if not waiting:
                        del self._posted[key]
                    return True
        return False

    def expected_from(self, peer: int) -> int:
        """How many receives wait for messages of a peer."""
        return sum(len(waiting) for key, waiting in self._posted.items() if key[0] == peer)


def _first(queues: dict[Key, deque[Item]], key: Key) -> Item:
    queue = queues[key]
    item = queue.popleft()
    if not queue:
        del queues[key]
    return item


class KeyNumbers:
    """Numbers the messages of each key, so that several connections cannot let them overtake one another.

    Both ends keep a number for each key that was ever used: made only where there are several connections.
    """

    def __init__(self) -> None:
        self._next: dict[Key, int] = {}
        self._early: dict[Key, dict[int, Arrived]] = {}

    def take(self, key: Key) -> int:
        """Number of a message being posted."""
        number = self._next.get(key, 0)
        self._next[key] = number + 1
        return number

    def give_back(self, key: Key, number: int) -> bool:
        """Whether it was the newest of its key, and now is not numbered any more."""
        if self._next.get(key) != number + 1:
            return False
        self._next[key] = number
        return True

    def in_order(self, key: Key, number: int, arrived: Arrived) -> Iterator[Arrived]:
        """The arrivals that are now not preceded by a missing one."""
        early = self._early.setdefault(key, {})
        early[number] = arrived
        while (due := early.pop(self._next.get(key, 0), None)) is not None:
            self.take(key)
            yield due
        if not early:
            del self._early[key]


class Tally:
    """Messages and payload bytes per peer, each way: what `Transport.moved` answers."""

    def __init__(self) -> None:
        self._sent: dict[int, list[int]] = {}
        self._received: dict[int, list[int]] = {}

    def sent(self, peer: int, size_bytes: int) -> None:
        """One more message was acknowledged by a peer."""
        _add(self._sent, peer, size_bytes)

    def received(self, peer: int, size_bytes: int) -> None:
        """One more message of a peer's is wholly here."""
        _add(self._received, peer, size_bytes)

    def totals(self) -> dict[str, dict[int, list[int]]]:
        """``{"sent": {peer: [messages, bytes]}, "received": {...}}``."""
        return {"sent": _copy(self._sent), "received": _copy(self._received)}


def _add(totals: dict[int, list[int]], peer: int, size_bytes: int) -> None:
    total = totals.setdefault(peer, [0, 0])
    total[0] += 1
    total[1] += size_bytes


def _copy(totals: dict[int, list[int]]) -> dict[int, list[int]]:
    return {peer: list(total) for peer, total in totals.items()}
