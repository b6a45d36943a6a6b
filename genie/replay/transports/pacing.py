"""User-space pacing: a stand-in for a shaped link where no network namespace may be made.

The rank's egress is a link of a fixed rate. A byte may leave when the link has had the time to send it and all before
it, so that the last byte of a message leaves when a real link would have finished it. A process that wakes late makes
up for it; a link that had nothing to send saves nothing up.
"""

from __future__ import annotations

import math
from typing import Final, Generic, Protocol, TypeVar

from genie.units import NS_PER_MS, bps_to_bytes_per_ns

CATCH_UP_NS: Final = 100 * NS_PER_MS
"""Most lateness that is made up for: a NIC would have gone on while the process slept."""

QUANTUM_NS: Final = NS_PER_MS
"""Bulk leaves in portions of this much of the link's time: shorter ones cost wake-ups, longer ones fairness."""


class PacedSender(Protocol):
    """What the pacer needs of a connection."""

    @property
    def blocked(self) -> bool:
        """Whether the kernel took no more."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """What its message under way has left, header included; 0: nothing to send."""
        ...

    def push(self, now_ns: int, allowance: int) -> int:
        """Send at most that much; how much it was."""
        ...


AnySender = TypeVar("AnySender", bound=PacedSender)


class Pacer(Generic[AnySender]):
    """Shares a link among connections, in turn.

    Args:
        rate_bps: real bit/s, greater than zero.
    """

    def __init__(self, rate_bps: int) -> None:
        self._bytes_per_ns = bps_to_bytes_per_ns(rate_bps)
        self._busy_until_ns = 0.0
        self._senders: list[AnySender] = []

    def add(self, sender: AnySender, now_ns: int) -> None:
        """A connection has something to send (again)."""
        if not self._senders:
            self._busy_until_ns = max(self._busy_until_ns, float(now_ns))
        if sender not in self._senders:
            self._senders.append(sender)

    def push(self, now_ns: int) -> list[AnySender]:
        """Let everybody send its share of what the link had time for, once that is a portion.

        Returns:
            Those that the kernel took no more from: to be added again when it does.
        """
        if self.wait_ns(now_ns) != 0:
            return []
        self._busy_until_ns = max(self._busy_until_ns, now_ns - CATCH_UP_NS)
        waiting = self._senders
        for turn, sender in enumerate(waiting):
            share = -(-self._allowance(now_ns) // (len(waiting) - turn))
            if share:
                self._busy_until_ns += sender.push(now_ns, share) / self._bytes_per_ns
        going_on = [sender for sender in waiting if sender.unsent_bytes and not sender.blocked]
        self._senders = going_on[1:] + going_on[:1]
        return [sender for sender in waiting if sender.blocked]

    def _allowance(self, now_ns: int) -> int:
        return max(0, int((now_ns - self._busy_until_ns) * self._bytes_per_ns))

    def wait_ns(self, now_ns: int) -> int | None:
        """Until a whole portion may leave, or all of the shortest message; None when nothing waits."""
        if not self._senders:
            return None
        shortest = min(sender.unsent_bytes for sender in self._senders) * len(self._senders)
        portion_ns = min(QUANTUM_NS, shortest / self._bytes_per_ns)
        return max(0, math.ceil(self._busy_until_ns + portion_ns) - now_ns)
