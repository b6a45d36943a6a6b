"""The spread that residuals show."""

import numpy as np
import pytest

from genie.fit.spread import Spread, bulk, deviation, shown

SIZES = np.repeat([10_000, 20_000, 50_000, 100_000], 200)
FCT = SIZES * 1.0


def noise(scale):
    return np.random.default_rng(3).normal(0, 1, len(SIZES)) * scale


def test_a_fixed_part_is_told_from_a_share():
    found = shown(noise(500.0), FCT, SIZES)
    assert 350 < found.fixed_ns + 0.002 * 45_000 < 650
    assert found.share < 0.004
    found = shown(noise(0.02 * FCT), FCT, SIZES)
    assert found.share == pytest.approx(0.018, rel=0.2)
    assert found.fixed_ns < 100


def test_a_quarter_of_late_messages_in_every_size_is_spread_and_no_group_of_stragglers():
    """Bins are of like sizes, so that a group cannot hide in a bin of its own."""
    late = np.where(np.arange(len(SIZES)) % 4 == 0, 4_000.0, 0.0)
    found = shown(late, FCT + late, SIZES)
    assert 1_400 < found.fixed_ns < 2_200


def test_one_size_keeps_the_proportion_that_is_expected_before_anything_is_known():
    found = shown(noise(3_000.0), np.full(800, 1e5), np.full(800, 100_000))
    assert found.fixed_ns / found.share == pytest.approx(100 / 0.01)
    assert found.of(np.array([1e5]))[0] == pytest.approx(2_700, rel=0.15)


def test_no_measurement_is_believed_to_the_last_digit():
    found = shown(np.zeros(800), FCT, SIZES)
    assert (found.fixed_ns, found.share) == pytest.approx((20.0, 0.002))


def test_few_messages_show_a_spread_too():
    assert shown(np.array([1e3, -1e3, 500.0]), np.array([1e4, 2e4, 3e4]), np.array([1, 2, 3])).fixed_ns >= 20


def test_the_farthest_twentieth_does_not_count():
    residuals = np.concatenate([np.tile([1.0, -1.0], 48), [1e6, -1e6, 1e6, -1e6]])
    assert deviation(residuals) == pytest.approx(1.0)
    assert bulk(residuals) == pytest.approx(1.4826)


@pytest.mark.parametrize(("other", "alike"), [(Spread(200, 0.02), True), (Spread(1_000, 0.01), False)])
def test_spreads_are_alike_where_it_makes_no_difference(other, alike):
    assert Spread().like(other, np.array([1e3, 2e3])) is alike
