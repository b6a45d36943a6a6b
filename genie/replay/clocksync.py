"""Offset of another host's clock to ours by round trips, with its bound: what one-way times between them are worth.

A clock that is read between `sent` and `received` of ours is right to half the time between (Cristian 1989); of several
round trips the shortest says most. docs/replay.md, "Clocks".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

ROUND_TRIPS: Final = 12


class RoundTrip(NamedTuple):
    """Ours when we asked, theirs when they answered, ours when the answer was here."""

    sent_ns: int
    theirs_ns: int
    received_ns: int


class Offset(NamedTuple):
    """Their clock minus ours, at `at_ns` of ours, wrong by at most `bound_ns`."""

    at_ns: int
    offset_ns: int
    bound_ns: int


def offset_of(trips: Sequence[RoundTrip]) -> Offset:
    """From the shortest of some round trips (at least one)."""
    best = min(trips, key=lambda trip: trip.received_ns - trip.sent_ns)
    middle_ns = (best.sent_ns + best.received_ns) // 2
    return Offset(middle_ns, best.theirs_ns - middle_ns, (best.received_ns - best.sent_ns + 1) // 2)


class ClockRow(NamedTuple):
    """One rank's clock against the launcher's.

    Attributes:
        rank: whose.
        offset_ns, bound_ns: before the run.
        after_ns, after_bound_ns: after it.
        drift_ppb: between both, in parts of 10**9; smaller than its own bound means none was seen.
        drift_bound_ppb: what it may be wrong by.
    """

    rank: int
    offset_ns: int
    bound_ns: int
    after_ns: int
    after_bound_ns: int
    drift_ppb: int
    drift_bound_ppb: int


def clock_row(rank: int, before: Offset, after: Offset) -> ClockRow:
    """Both readings, and the drift between them."""
    span_ns = max(1, after.at_ns - before.at_ns)
    drift_ppb = (after.offset_ns - before.offset_ns) * 10**9 // span_ns
    wrong_ppb = (after.bound_ns + before.bound_ns) * 10**9 // span_ns
    return ClockRow(rank, *before[1:], *after[1:], drift_ppb, wrong_ppb)


def worst_bound_ns(rows: Sequence[ClockRow]) -> int:
    """How wrong a time may be that one rank's clock began and another's ended: the two worst bounds together.

    What a clock drifted during the run counts too, as far as it was seen.
    """
    wrong = sorted(max(row.bound_ns, row.after_bound_ns) + abs(row.after_ns - row.offset_ns) for row in rows)
    return sum(wrong[-2:])
