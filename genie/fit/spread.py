"""How far completion times are expected from a prediction: a fixed part and a share of the time, shown by residuals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from genie.fit.samples import Floats, Ints

STRAGGLERS: Final = 0.05
SMALLEST_SCALE: Final = 0.2
"""Of the spread that is expected before anything is known: less is believed of no measurement."""

BINS: Final = 8
BIN_MESSAGES: Final = 30
LIKE_BEFORE: Final = (0.4, 2.5)
"""Between these factors of it, the spread shown at the end is as good as the one assumed."""


@dataclass(frozen=True, slots=True)
class Spread:
    """`fixed_ns` + `share` of the completion time; by default 100 ns + 1 %."""

    fixed_ns: float = 100.0
    share: float = 0.01

    def of(self, fct_ns: Floats) -> Floats:
        """Expected of these completion times."""
        return self.fixed_ns + self.share * np.abs(fct_ns)

    def like(self, other: Spread, fct_ns: Floats) -> bool:
        """Whether it makes no difference which of the two is taken for these completion times."""
        ratio = self.of(fct_ns) / other.of(fct_ns)
        return LIKE_BEFORE[0] < float(ratio.min()) and float(ratio.max()) < LIKE_BEFORE[1]


def deviation(residuals: Floats) -> float:
    """Spread of all but the few farthest residuals: their standard deviation.

    A twentieth are stragglers that say nothing of the network. A larger group is part of it (pairs with more hops than
    the model knows, say): the workload waits for them too, so that the fit must find the mean over all, not the bulk.
    """
    off = np.sort(np.abs(residuals - np.median(residuals)))
    kept = off[: math.ceil(len(off) * (1 - STRAGGLERS))]
    return float(np.sqrt(np.mean(kept**2)))


def bulk(residuals: Floats) -> float:
    """Spread of the bulk: 1.4826 x the median absolute deviation is a normal distribution's standard deviation.

    For the way to the solution, on which whole groups are far off.
    """
    return 1.4826 * float(np.median(np.abs(residuals - np.median(residuals))))


def shown(
    residuals_ns: Floats, fct_ns: Floats, size_bytes: Ints, measure: Callable[[Floats], float] = deviation
) -> Spread:
    """The spread that residuals show: by bins of like sizes, then least squares for both parts.

    What makes messages late is partly the same for all (hops that the model does not know, a host's software), partly
    grows with them. Taken for a share alone, the first would turn the short messages into stragglers, and the slope of
    time over size, which is the bandwidth, would be wrong.
    """
    bins = _bins(size_bytes)
    at = np.array([float(np.mean(np.abs(fct_ns[rows]))) for rows in bins])
    seen = np.array([measure(residuals_ns[rows]) for rows in bins])
    found = _both_parts(at, np.maximum(seen, SMALLEST_SCALE * Spread().of(at)))
    least = Spread(SMALLEST_SCALE * Spread().fixed_ns, SMALLEST_SCALE * Spread().share)
    return Spread(max(found.fixed_ns, least.fixed_ns), max(found.share, least.share))


def _bins(size_bytes: Ints) -> list[Ints]:
    """Rows of messages of like sizes; equal ones are together, whatever their times: a group of late ones must show."""
    count = max(1, min(BINS, len(size_bytes) // BIN_MESSAGES))
    edges = np.unique(np.quantile(size_bytes, np.arange(1, count) / count, method="lower"))
    label = np.searchsorted(edges, size_bytes)
    return [np.flatnonzero(label == which) for which in np.unique(label)]


def _both_parts(at_ns: Floats, seen_ns: Floats) -> Spread:
    """Relative least squares of `seen = fixed + share x at`, neither below 0.

    One bin cannot tell the two apart: then they keep the proportion that is expected before anything is known.
    """
    if np.ptp(at_ns) < 0.1 * float(np.max(at_ns)):
        factor = float(np.mean(seen_ns / Spread().of(at_ns)))
        return Spread(Spread().fixed_ns * factor, Spread().share * factor)
    from scipy.optimize import nnls  # noqa: PLC0415 - a second to import, needed only here

    rows = np.column_stack([np.ones_like(at_ns), at_ns]) / seen_ns[:, None]
    (fixed_ns, share), _ = nnls(rows, np.ones_like(seen_ns))
    return Spread(float(fixed_ns), float(share))
