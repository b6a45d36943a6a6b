"""Offsets of clocks by round trips."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.replay.clocksync import Offset, RoundTrip, clock_row, offset_of, worst_bound_ns

WAYS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=20)


@given(st.integers(-(10**15), 10**15), WAYS)
def test_the_offset_is_right_within_its_bound_whatever_the_ways_take(offset_ns, ways):
    now_ns, trips = 10**9, []
    for there_ns, back_ns in ways:
        trips.append(RoundTrip(now_ns, now_ns + there_ns + offset_ns, now_ns + there_ns + back_ns))
        now_ns += there_ns + back_ns + 10
    found = offset_of(trips)
    assert abs(found.offset_ns - offset_ns) <= found.bound_ns
    assert found.bound_ns <= (min(sum(way) for way in ways) + 1) // 2


def test_drift_is_what_the_offset_changed_by_over_the_time_between():
    row = clock_row(3, Offset(0, 1_000, 10), Offset(10**9, 1_500, 20))
    assert (row.rank, row.drift_ppb, row.drift_bound_ppb) == (3, 500, 30)


@pytest.mark.parametrize(("ranks", "bound_ns"), [(0, 0), (1, 520), (3, 1_040)])
def test_a_time_between_two_clocks_is_wrong_by_both_at_most(ranks, bound_ns):
    rows = [clock_row(rank, Offset(0, 1_000, 10), Offset(10**9, 1_500, 20)) for rank in range(ranks)]
    assert worst_bound_ns(rows) == bound_ns
