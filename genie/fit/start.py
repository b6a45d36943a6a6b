"""Where the search begins: from the data alone, as the given model may be wrong by any factor."""

from __future__ import annotations

from typing import Final

import numpy as np

from genie.fit.parameters import Layout
from genie.fit.problem import Problem
from genie.fit.samples import Floats, Samples

MOST_BINS: Final = 24
QUICK: Final = 0.1
"""Quantile of completion times that stands for a message which met few others."""

FACTORS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
FINE_FACTORS: Final = (0.125, 0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0, 8.0)


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


def first_vector(layout: Layout, samples: Samples) -> Floats:
    """A vector entry for each parameter, from the messages that have to do with it; as given if there are none."""
    sizes, fct_ns = samples.messages.size_bytes.astype(np.float64), samples.fct_ns
    crossed = rows_of(layout, samples)
    vector = []
    for parameter, rows in zip(layout.parameters, crossed, strict=True):
        value = parameter.given.value
        if len(rows):
            rate_bps, fixed_ns = envelope(sizes[rows], fct_ns[rows])
            value = rate_bps if parameter.rate else max(parameter.lowest, fixed_ns / 2)
        vector.append(parameter.encode(value))
    return np.array(vector)


def rows_of(layout: Layout, samples: Samples) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """For each parameter, the messages that have to do with it."""
    rows: list[list[int]] = [[] for _ in layout.parameters]
    known: dict[tuple[int, int], tuple[int, ...]] = {}
    for row, ends in enumerate(samples.ends()):
        if ends not in known:
            known[ends] = layout.crossed(*ends)
        for at in known[ends]:
            rows[at].append(row)
    return [np.array(found, np.int64) for found in rows]


def best_scaled(problem: Problem, vector: Floats) -> Floats:
    """The vector, all rates scaled by one factor, of least loss: hops and sharing hide in what the envelope saw."""
    rates = np.array([parameter.rate for parameter in problem.layout.parameters])
    return min((vector + rates * np.log(factor) for factor in FACTORS), key=problem.cost)


def best_each(problem: Problem, vector: Floats) -> Floats:
    """The vector, each rate scaled by a factor of its own, of least loss.

    Where links of several classes share the blame, the envelope of one hides the other, and a search downhill from
    there never finds the link that really was full.
    """
    rates = [at for at, parameter in enumerate(problem.layout.parameters) if parameter.rate]
    if len(rates) < 2:  # noqa: PLR2004 - one rate has been scaled already
        return vector
    for _ in range(2):
        for at in rates:
            step = np.zeros(len(vector))
            step[at] = 1.0
            vector = min((vector + step * np.log(factor) for factor in FINE_FACTORS), key=problem.cost)
    return vector
