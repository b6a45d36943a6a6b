"""Clocks: the runner's only source of time, injected so that tests need not wait."""

from __future__ import annotations

import ctypes
import time
from typing import Final, Protocol

from genie.units import NS_PER_S

SPIN_NS: Final = 120_000
"""The last part of a wait is spun: a sleeper wakes tens of microseconds late, a spinner does not."""

_PR_SET_TIMERSLACK: Final = 29


class Clock(Protocol):
    """Real time in ns, monotone."""

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        ...

    def sleep_until_ns(self, when_ns: int) -> int:
        """Return at `when_ns` or as soon after as possible; the lateness in ns."""
        ...


class RealClock:
    """CLOCK_MONOTONIC; sleeps most of a wait and spins the rest."""

    def now_ns(self) -> int:
        """See Clock."""
        return time.monotonic_ns()

    def sleep_until_ns(self, when_ns: int) -> int:
        """See Clock."""
        rest_ns = when_ns - time.monotonic_ns()
        if rest_ns > SPIN_NS:
            time.sleep((rest_ns - SPIN_NS) / NS_PER_S)
        while (now_ns := time.monotonic_ns()) < when_ns:
            pass
        return now_ns - when_ns


class ManualClock:
    """A clock that moves only when told, or when somebody sleeps."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """See Clock."""
        return self._now_ns

    def advance_ns(self, by_ns: int) -> None:
        """Move on."""
        self._now_ns += by_ns

    def sleep_until_ns(self, when_ns: int) -> int:
        """Jump there; never late."""
        self._now_ns = max(self._now_ns, when_ns)
        return self._now_ns - when_ns


def realtime_offset_ns(samples: int = 15) -> int:
    """CLOCK_REALTIME minus CLOCK_MONOTONIC, from the pair of readings that were closest together.

    Kernel receive time stamps are in real time, everything else here is monotonic.
    """
    best, offset = 1 << 62, 0
    for _ in range(samples):
        before = time.monotonic_ns()
        real = time.time_ns()
        after = time.monotonic_ns()
        if after - before < best:
            best, offset = after - before, real - (before + after) // 2
    return offset


def sharpen_timers() -> None:
    """Ask the kernel to wake this thread on time (timer slack 1 ns instead of 50 us); silently kept if refused."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
