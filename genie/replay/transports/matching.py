"""Which arrival belongs to which posted receive: by (source, tag, size), first with first."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

Key = tuple[int, int, int]
"""(source rank, tag, size_bytes)"""


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
    """Two queues a key, of which at most one is not empty."""

    def __init__(self) -> None:
        self._posted: dict[Key, deque[Posted]] = {}
        self._arrived: dict[Key, deque[Arrived]] = {}

    def post(self, key: Key, posted: Posted) -> Arrived | None:
        """The message that was here already, or None: then the receive waits."""
        waiting = self._arrived.get(key)
        if waiting:
            return waiting.popleft()
        self._posted.setdefault(key, deque()).append(posted)
        return None

    def arrive(self, key: Key, arrived: Arrived) -> Posted | None:
        """The receive that was waiting, or None: then the message waits."""
        waiting = self._posted.get(key)
        if waiting:
            return waiting.popleft()
        self._arrived.setdefault(key, deque()).append(arrived)
        return None

    def cancel(self, handle: int) -> bool:
        """Forget a waiting receive."""
        for waiting in self._posted.values():
            for posted in waiting:
                if posted.handle == handle:
                    waiting.remove(posted)
                    return True
        return False

    def expected_from(self, peer: int) -> int:
        """How many receives wait for messages of a peer."""
        return sum(len(waiting) for key, waiting in self._posted.items() if key[0] == peer)
