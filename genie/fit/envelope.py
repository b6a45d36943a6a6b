"""What the quick messages say: those that met few others."""

from __future__ import annotations

from typing import Final

import numpy as np

from genie.fit.samples import Floats

MOST_BINS: Final = 24
QUICK: Final = 0.1
"""Quantile of completion times that stands for a message which met few others."""


def envelope(sizes: Floats, fct_ns: Floats) -> tuple[float, float]:
    """Rate (bit/s) and fixed time (ns) of the quick messages.

    The slope of quick completion times over sizes, as the median of those of all pairs of sizes (Theil and Sen);
    the rate of the quickest tenth where there is one size only, or no slope.
    """
    at, quick = _quick(sizes, fct_ns)
    a, b = np.triu_indices(len(at), 1)
    apart = at[b] > 1.2 * at[a]
    slopes = (quick[b] - quick[a])[apart] / (at[b] - at[a])[apart]
    slope = float(np.median(slopes)) if len(slopes) else 0.0
    if slope <= 0:
        return float(np.quantile(sizes * 8e9 / np.maximum(fct_ns, 1.0), 1.0 - QUICK)), 0.0
    return 8e9 / slope, max(0.0, float(np.median(quick - slope * at)))


def _quick(sizes: Floats, fct_ns: Floats) -> tuple[Floats, Floats]:
    """Sizes, ascending, and the quick completion time of each; many different sizes share bins."""
    order = np.argsort(sizes, kind="stable")
    distinct, first = np.unique(sizes[order], return_index=True)
    edges = first if len(distinct) <= MOST_BINS else np.arange(MOST_BINS) * len(sizes) // MOST_BINS
    groups = np.split(order, edges[1:])
    at = np.array([sizes[rows].mean() for rows in groups])
    return at, np.array([np.quantile(fct_ns[rows], QUICK) for rows in groups])
