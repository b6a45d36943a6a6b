"""How sure a figure is: robust means, bootstrap intervals, differences between two samples, and what could be seen.

All figures are of 25 % trimmed means (of fewer than five values: of means): a repeat that a busy machine spoilt does
not carry the result away. Intervals are bootstrap-t with a fixed seed, of fewer than eight values Student's t: the
plain percentile bootstrap is too narrow for the handful of repeats that a replay has.

Source: R. R. Wilcox, Introduction to Robust Estimation and Hypothesis Testing, ch. 4 and 5 (trimmed means,
bootstrap-t).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

TRIM: Final = 0.25
RESAMPLES: Final = 2_000
ENOUGH_TO_TRIM: Final = 5
ENOUGH_TO_RESAMPLE: Final = 8
"""Of fewer values too many resamples have hardly any spread, and the intervals are far too wide."""

POWER: Final = 0.8
_SEED: Final = 20_240_601

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure, its two-sided interval, and how many values it rests on; low and high are NaN for fewer than two."""

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Difference:
    """new - base.

    Attributes:
        base, new: trimmed means.
        low, high: interval of new - base.
        stderr: of new - base; 0 when neither sample varies, NaN when one has a single value.
        p: two-sided, that a true difference of at most the margin gave what was seen.
        smallest: a difference that would be found (beyond the margin, at this confidence) with a power of 80 %.
    """

    base: float
    new: float
    low: float
    high: float
    stderr: float
    p: float
    smallest: float

    @property
    def value(self) -> float:
        """What new has more than base."""
        return self.new - self.base


def _known(values: ArrayLike) -> Values:
    array = np.asarray(values, np.float64).ravel()
    return array[~np.isnan(array)]


def _cut(count: int) -> int:
    """How many values are trimmed at each end."""
    return int(TRIM * count) if count >= ENOUGH_TO_TRIM else 0


def trimmed_means(rows: Values) -> tuple[Values, Values]:
    """Per row its trimmed mean and that mean's standard error (winsorised deviation / ((1 - 2 trim) sqrt n))."""
    count = rows.shape[-1]
    cut, ordered = _cut(count), np.sort(rows, axis=-1)
    kept = ordered[..., cut : count - cut]
    means = kept.mean(axis=-1)
    if count == 1:
        return means, np.full(means.shape, np.nan)
    clipped = np.clip(ordered, kept[..., :1], kept[..., -1:])
    share = (count - 2 * cut) / count
    return means, clipped.std(axis=-1, ddof=1) / (share * math.sqrt(count))


def robust_mean(values: ArrayLike) -> float:
    """The 25 % trimmed mean; NaN of nothing."""
    array = _known(values)
    return float(trimmed_means(array)[0]) if len(array) else math.nan


def interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """The trimmed mean of values with its interval."""
    array = _known(values)
    if not len(array):
        return Interval(math.nan, math.nan, math.nan, 0)
    found = _against_nothing(array, 0.0, 1 - level)
    return Interval(found.new, found.low, found.high, len(array))


def difference(base: ArrayLike, new: ArrayLike, *, margin: float = 0.0, alpha: float = 0.05) -> Difference:
    """New against base, as independent samples.

    Args:
        base: repeated measurements of one figure.
        new: the same, of the other thing.
        margin: differences up to this are of no interest.
        alpha: 1 - level of the interval.
    """
    first, second = _known(base), _known(new)
    if not len(first) or not len(second):
        return Difference(robust_mean(first), robust_mean(second), *[math.nan] * 5)
    (m1, s1), (m2, s2) = _figures(first), _figures(second)
    stderr, freedom = math.hypot(s1, s2), _welch(s1, len(first), s2, len(second))
    if math.isnan(stderr) or stderr == 0:
        return _bare(m1, m2, stderr, margin)
    if min(len(first), len(second)) < ENOUGH_TO_RESAMPLE:
        return _student(m1, m2, stderr, freedom, margin, alpha)
    random = np.random.default_rng(_SEED)
    (r1, e1), (r2, e2) = (_resampled(one, random) for one in (first, second))
    return _bootstrap(m1, m2, stderr, (r2 - m2) - (r1 - m1), np.hypot(e1, e2), (margin, alpha, freedom))


def paired(base: Sequence[float], new: Sequence[float], *, margin: float = 0.0, alpha: float = 0.05) -> Difference:
    """New against base where they come in pairs that were measured side by side: the pairs' differences count."""
    first, second = np.asarray(base, np.float64), np.asarray(new, np.float64)
    whole = ~(np.isnan(first) | np.isnan(second))
    first, second = first[whole], second[whole]
    if not len(first):
        return Difference(*[math.nan] * 7)
    found = _against_nothing(second - first, margin, alpha)
    level = robust_mean(first)
    return Difference(level, level + found.new, found.low, found.high, found.stderr, found.p, found.smallest)


def _against_nothing(values: Values, margin: float, alpha: float) -> Difference:
    """One sample against zero."""
    mean, stderr = _figures(values)
    if math.isnan(stderr) or stderr == 0:
        return _bare(0.0, mean, stderr, margin)
    freedom = float(len(values) - 2 * _cut(len(values)) - 1)
    if len(values) < ENOUGH_TO_RESAMPLE:
        return _student(0.0, mean, stderr, freedom, margin, alpha)
    means, errors = _resampled(values, np.random.default_rng(_SEED))
    return _bootstrap(0.0, mean, stderr, means - mean, errors, (margin, alpha, freedom))


def _figures(values: Values) -> tuple[float, float]:
    mean, stderr = trimmed_means(values)
    return float(mean), float(stderr)


def _resampled(values: Values, random: np.random.Generator) -> tuple[Values, Values]:
    return trimmed_means(random.choice(values, (RESAMPLES, len(values))))


def _welch(s1: float, n1: int, s2: float, n2: int) -> float:
    """Welch's degrees of freedom, with the trimmed counts (Yuen)."""
    f1, f2 = (max(n - 2 * _cut(n) - 1, 1) for n in (n1, n2))
    below = s1**4 / f1 + s2**4 / f2
    return float((s1**2 + s2**2) ** 2 / below) if below > 0 else float(min(f1, f2))


def _bare(base: float, new: float, stderr: float, margin: float) -> Difference:
    """Without spread the difference is exact; of single values nothing is known about it."""
    if math.isnan(stderr):
        return Difference(base, new, math.nan, math.nan, stderr, math.nan, math.nan)
    return Difference(base, new, new - base, new - base, 0.0, float(abs(new - base) <= margin), margin)


def _student(base: float, new: float, stderr: float, freedom: float, margin: float, alpha: float) -> Difference:
    from scipy import stats  # noqa: PLC0415 - half a second, and only where figures are compared

    reach = float(stats.t.ppf(1 - alpha / 2, freedom)) * stderr
    beyond = max(abs(new - base) - margin, 0.0) / stderr
    p = min(2 * float(stats.t.sf(beyond, freedom)), 1.0)
    found = Difference(base, new, new - base - reach, new - base + reach, stderr, p, math.nan)
    return _seeing(found, freedom, margin, reach)


def _bootstrap(
    base: float, new: float, stderr: float, off: Values, errors: Values, rule: tuple[float, float, float]
) -> Difference:
    """Symmetric bootstrap-t: the distribution of |resampled - seen| / its own standard error."""
    margin, alpha, freedom = rule
    good = errors > 0
    if not good.any():
        return _student(base, new, stderr, freedom, margin, alpha)
    ratios = np.abs(off[good]) / errors[good]
    reach = float(np.quantile(ratios, 1 - alpha)) * stderr
    beyond = max(abs(new - base) - margin, 0.0) / stderr
    p = (float((ratios >= beyond).sum()) + 1) / (len(ratios) + 1)
    found = Difference(base, new, new - base - reach, new - base + reach, stderr, p, math.nan)
    return _seeing(found, freedom, margin, reach)


def _seeing(found: Difference, freedom: float, margin: float, reach: float) -> Difference:
    """With the smallest difference that would be found: `reach` is half the interval."""
    from scipy import stats  # noqa: PLC0415 - see above

    seen = margin + reach + float(stats.t.ppf(POWER, freedom)) * found.stderr
    return Difference(found.base, found.new, found.low, found.high, found.stderr, found.p, seen)


def holm(ps: Sequence[float]) -> list[float]:
    """P values adjusted for their number: the chance of a single false alarm among all stays below alpha.

    Source: S. Holm, A simple sequentially rejective multiple test procedure, 1979. NaN stays NaN and does not count.
    """
    known = [(p, at) for at, p in enumerate(ps) if not math.isnan(p)]
    found, least = list(ps), 0.0
    for rank, (p, at) in enumerate(sorted(known)):
        least = max(least, min((len(known) - rank) * p, 1.0))
        found[at] = least
    return found


def variation(values: ArrayLike) -> float:
    """Coefficient of variation: standard deviation (n - 1) / mean; NaN of fewer than two values."""
    array = _known(values)
    return float(array.std(ddof=1) / array.mean()) if len(array) > 1 and array.mean() != 0 else math.nan
