"""Clocks: the runner's only source of time, injected so that tests need not wait."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Real time in ns, monotone."""

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        ...

    def sleep_until_ns(self, when_ns: int) -> int:
        """Return at `when_ns` or as soon after as possible; the lateness in ns."""
        ...
