"""The virtual clock: a queue of callbacks in ASTRA-sim's order."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

from genie.errors import InputError, InternalError


def zero_delay() -> InputError:
    """What ASTRA-sim aborts on."""
    return InputError(
        "something takes no time at tick 0, on which ASTRA-sim aborts.",
        fix="set endpoint-delay to at least 1 ns, or start with a node that takes time.",
    )


class EventQueue:
    """Ticks in ascending order, callbacks of one tick first in first out.

    What is scheduled for the current tick while it runs is appended to it and runs in the same pass. That makes ties
    deterministic, and equal to ASTRA-sim's.

    Args:
        strict_zero: refuse callbacks at tick 0, on which ASTRA-sim aborts.
    """

    __slots__ = ("_callbacks", "_strict_zero", "_ticks", "now_ns")

    def __init__(self, *, strict_zero: bool = False) -> None:
        self.now_ns = 0
        self._ticks: list[int] = []
        self._callbacks: dict[int, deque[tuple[Callable[..., None], tuple[Any, ...]]]] = {}
        self._strict_zero = strict_zero

    def at(self, when_ns: int, callback: Callable[..., None], *args: Any) -> None:
        """Call `callback(*args)` at `when_ns`.

        Raises:
            InternalError: `when_ns` is in the past.
        """
        callbacks = self._callbacks.get(when_ns)
        if callbacks is None:
            if when_ns < self.now_ns:
                raise InternalError(f"an event for tick {when_ns} came at tick {self.now_ns}.")
            callbacks = self._callbacks[when_ns] = deque()
            heapq.heappush(self._ticks, when_ns)
        callbacks.append((callback, args))

    def run(self) -> None:
        """Run until nothing is left.

        Raises:
            InputError: a callback at tick 0 under `strict_zero`.
        """
        while self._ticks:
            tick = self._ticks[0]
            if tick == 0 and self._strict_zero:
                raise zero_delay()
            self.now_ns = tick
            callbacks = self._callbacks[tick]
            while callbacks:
                callback, args = callbacks.popleft()
                callback(*args)
            heapq.heappop(self._ticks)
            del self._callbacks[tick]
