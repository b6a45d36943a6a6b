"""What the emulator's shapers leave out of a message's time, as its receiver can work it out.

A shaper (HTB) lets a super-packet through as soon as what went before has been paid for, and charges it afterwards.
And what was not used of an idle link is credit, up to a limit, so that a shaper that gets its turn late can catch up. A
real port has no credit, and needs the last bytes' time as it needs the first's. So on an emulated link every message is
early: by its last super-packet, and by the credit with which its link's busy period began.
"""

from __future__ import annotations

from dataclasses import dataclass

from genie.units import transfer_ns


@dataclass(frozen=True, slots=True)
class Shaping:
    """How a testbed's links are shaped, as far as messages see it.

    Attributes:
        super_packet_bytes: payload that passes at once; 0: nothing is shaped.
        lead_bytes: what travels ahead of a message's payload in the same stream.
        credit_ns: virtual time that a link may catch up.
    """

    super_packet_bytes: int = 0
    lead_bytes: int = 0
    credit_ns: int = 0

    def last_ns(self, size_bytes: int, rate_bps: int) -> int:
        """Time of a message's last super-packet on a link of that rate: what the full ones leave of its size."""
        total = size_bytes + self.lead_bytes
        if not self.super_packet_bytes or not total:
            return 0
        return round(transfer_ns((total - 1) % self.super_packet_bytes + 1, rate_bps))


UNSHAPED = Shaping()


class Ahead:
    """How far the messages of one link end ahead of their time; takes them in the order of their ends.

    Two links are followed, by work alone: a true one, busy with what it got until some time; and a shaped one, which
    has paid for what it got at some time, at the earliest its credit ago. What else held a message up, held up both.

    Args:
        shaping: of the link.
    """

    def __init__(self, shaping: Shaping) -> None:
        self._shaping = shaping
        self._busy_ns = self._paid_ns = float("-inf")

    def of(self, size_bytes: int, rate_bps: int, begin_ns: int) -> int:
        """By how much the end of a message is early, in ns.

        Args:
            size_bytes: its payload.
            rate_bps: of the slowest link on its way.
            begin_ns: its first bytes were here.
        """
        shaping = self._shaping
        if not shaping.super_packet_bytes or rate_bps <= 0:
            return 0
        long_ns = transfer_ns(size_bytes + shaping.lead_bytes, rate_bps)
        self._busy_ns = max(self._busy_ns, begin_ns) + long_ns
        self._paid_ns = max(self._paid_ns, begin_ns - shaping.credit_ns) + long_ns
        shaped_ns = max(begin_ns, self._paid_ns - shaping.last_ns(size_bytes, rate_bps))
        return round(self._busy_ns - shaped_ns)
