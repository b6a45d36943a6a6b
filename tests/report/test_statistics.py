"""Robust means and their intervals: by hand on small samples, by simulation where the claim is about chance."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.report.statistics import difference, holm, interval, paired, robust_mean, trimmed_means, variation


def test_a_trimmed_mean_leaves_out_a_quarter_at_each_end():
    assert robust_mean([1, 2, 3, 4, 1000]) == 3
    assert robust_mean([1, 2, 3, 4]) == 2.5
    assert robust_mean([7, np.nan]) == 7
    assert math.isnan(robust_mean([]))


def test_standard_error_of_a_trimmed_mean_by_hand():
    """Winsorised 2 2 3 4 4: deviation 1, share kept 3/5, so 1 / (0.6 sqrt 5)."""
    _, error = trimmed_means(np.array([1.0, 2.0, 3.0, 4.0, 1000.0]))
    assert float(error) == pytest.approx(1 / (0.6 * math.sqrt(5)))


def test_standard_error_of_few_values_is_the_usual_one():
    _, error = trimmed_means(np.array([1.0, 2.0, 3.0]))
    assert float(error) == pytest.approx(1 / math.sqrt(3))


def test_students_interval_of_three_values():
    """t of 2 degrees of freedom at 97.5 % is 4.3027."""
    found = interval([1, 2, 3])
    assert (found.value, found.count) == (2, 3)
    assert found.high == pytest.approx(2 + 4.3027 / math.sqrt(3), abs=1e-3)
    assert found.low == pytest.approx(2 - 4.3027 / math.sqrt(3), abs=1e-3)


def test_nothing_is_known_of_a_single_value():
    found = interval([5.0])
    assert (found.value, found.count) == (5.0, 1)
    assert math.isnan(found.low)
    assert math.isnan(difference([5.0], [6.0]).p)
    assert math.isnan(difference([], [6.0]).p)


def test_without_spread_a_difference_is_exact():
    found = difference([10, 10, 10], [12, 12, 12], margin=1)
    assert (found.value, found.low, found.high, found.p) == (2, 2, 2, 0)
    assert difference([10, 10], [10.5, 10.5], margin=1).p == 1


def test_pairs_cancel_what_both_share():
    """The machine's mood moves both by 100; what remains is 3."""
    mood = np.array([0, 100, 20, 70, 40, 90])
    noise = np.array([0.1, -0.1, 0.05, -0.05, 0.0, 0.1])
    base, new = 1000 + mood, 1003 + mood + noise
    assert paired(base, new).p < 0.01
    assert paired(base, new).value == pytest.approx(3.0, abs=0.1)
    assert difference(base, new).p > 0.5


def test_pairs_with_a_gap_are_left_out():
    assert paired([1, 2, np.nan], [2, 3, 9]).value == 1
    assert math.isnan(paired([], []).p)


def _trials(shift, spread=0.01, count=200, n=8, margin=0.0):
    random = np.random.default_rng(1)
    draws = (random.normal(1, spread, (2, n)) for _ in range(count))
    return [difference(a, b + shift, margin=margin) for a, b in draws]


def test_an_interval_of_eight_repeats_covers_as_often_as_it_says():
    """95 % of 200: between 181 and 198 but for one time in a thousand."""
    assert 181 <= sum(one.low <= 0.02 <= one.high for one in _trials(0.02)) <= 199


def test_equal_samples_are_called_different_one_time_in_twenty():
    assert sum(one.p <= 0.05 for one in _trials(0.0)) <= 20


def test_what_would_be_found_is_found_four_times_in_five():
    smallest = float(np.median([one.smallest for one in _trials(0.0)]))
    assert 0.65 <= np.mean([one.p <= 0.05 for one in _trials(smallest)]) <= 0.95


def test_a_margin_hides_small_differences():
    assert sum(one.p <= 0.05 for one in _trials(0.01, spread=0.001, margin=0.02)) == 0


def test_one_spoilt_repeat_does_not_hide_a_difference():
    base = [100, 101, 99, 100, 102, 98, 100, 101]
    new = [110, 111, 109, 110, 112, 108, 110, 300]
    found = difference(base, new)
    assert found.p < 0.05
    assert found.value == pytest.approx(10.3, abs=0.5)


def test_holm_by_hand():
    assert holm([0.01, 0.04, math.nan, 0.03])[:2] == pytest.approx([0.03, 0.06])
    assert holm([0.01, 0.04, math.nan, 0.03])[3] == pytest.approx(0.06)
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(ps):
    found = holm(ps)
    assert all(p <= q <= 1 for p, q in zip(ps, found, strict=True))
    assert [q for _, q in sorted(zip(ps, found, strict=True))] == sorted(found)


def test_variation_by_hand():
    assert variation([1, 2, 3]) == 0.5
    assert math.isnan(variation([1]))
