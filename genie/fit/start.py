"""Where the search begins: from the data alone, as the given model may be wrong by any factor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from genie.fit.envelope import envelope
from genie.fit.parameters import Layout
from genie.fit.problem import Problem
from genie.fit.samples import Floats, Samples

FACTORS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
ALONE: Final = 4.0
"""Where one class of links is full, the others are so many times faster to begin with."""

FINE_FACTORS: Final = (0.125, 0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0, 8.0)


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


def starts(problem: Problem, vector: Floats, free: Sequence[int]) -> list[Floats]:
    """Vectors to begin a search at; which one leads lowest only the search can say.

    Where links of several classes share the blame the loss has a valley for each story: this class was full, that one,
    both. So one start has every rate scaled by itself, one has all rates alike, and in one each class alone is full.
    """
    rates = _rates(problem, free)
    scaled = best_scaled(problem, vector, free)
    if len(rates) < 2:  # noqa: PLR2004 - one rate has one story
        return [scaled]
    alike = vector.copy()
    alike[rates] = float(np.mean(scaled[rates]))
    alike = best_scaled(problem, alike, free, FINE_FACTORS)
    return [best_each(problem, scaled, free), alike, *(_alone(problem, alike, at, free) for at in rates)]


def _alone(problem: Problem, vector: Floats, full: int, free: Sequence[int]) -> Floats:
    others = [at for at in _rates(problem, free) if at != full]
    apart = vector.copy()
    apart[others] += math.log(ALONE)
    return _best(problem, apart, [full], FINE_FACTORS)


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


def best_scaled(problem: Problem, vector: Floats, free: Sequence[int], factors: Sequence[float] = FACTORS) -> Floats:
    """The vector, all free rates scaled by one factor, of least loss: hops and sharing look like slow links."""
    return _best(problem, vector, _rates(problem, free), factors)


def best_each(problem: Problem, vector: Floats, free: Sequence[int]) -> Floats:
    """The vector, each free rate scaled by a factor of its own, of least loss.

    Where links of several classes share the blame, the envelope of one hides the other, and a search downhill from
    there never finds the link that really was full.
    """
    rates = _rates(problem, free)
    if len(rates) < 2:  # noqa: PLR2004 - one rate has been scaled already
        return vector
    for at in rates * 2:
        vector = _best(problem, vector, [at], FINE_FACTORS)
    return vector


def _rates(problem: Problem, free: Sequence[int]) -> list[int]:
    return [at for at in free if problem.layout.parameters[at].rate]


def _best(problem: Problem, vector: Floats, rates: Sequence[int], factors: Sequence[float]) -> Floats:
    """Of equally good factors, the one nearest to one."""
    step = np.zeros(len(vector))
    step[list(rates)] = 1.0
    nearest_first = sorted((math.log(factor) for factor in factors), key=abs)
    return min((vector + step * by for by in nearest_first), key=problem.cost)
