"""Residuals and their derivatives: what a parameter vector predicts against what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from genie.core.netmodel import Estimate, NetworkModel
from genie.fit.busy import ends_busy_period
from genie.fit.envelope import envelope
from genie.fit.parameters import Layout
from genie.fit.samples import Floats, Ints, Samples, predict
from genie.fit.spread import Spread
from genie.units import NS_PER_US

EXPECTED: Final = Spread()

BEYOND: Final = 1000.0
"""No link is searched for that is faster than this many times the fastest message."""

OVERTAKEN: Final = 10.0
"""Factor on the spread of messages that others outlasted: how a link was shared is not for the model to say."""

TUNING: Final = 3.0
"""Residuals count with their squares up to so many spreads, beyond linearly (Huber)."""

MOST_STEPS: Final = 25
FINE: Final = 1e-4
COARSE: Final = 1e-3
"""Relative change of the loss at which a search ends."""

RATE_STEP: Final = 2e-3
TIME_STEP_NS: Final = 20.0
"""Steps of the differences: deliveries are whole ns, smaller steps would drown in that."""


class Problem:
    """Residuals of some messages as a function of the parameter vector."""

    def __init__(self, layout: Layout, samples: Samples, spread: Spread = EXPECTED) -> None:
        self.layout, self.samples = layout, samples
        self.measured = samples.fct_ns
        self.heard = ends_busy_period(samples)
        self.spread = np.where(self.heard, 1.0, OVERTAKEN) * spread.of(self.measured)
        self._last: tuple[bytes, Floats] | None = None
        sizes = samples.messages.size_bytes.astype(np.float64)
        self._fastest = math.log(8e9 * float(np.max(sizes / np.maximum(self.measured, 1.0))))
        _, self._fixed_ns = envelope(sizes, self.measured)

    def build(self, vector: Floats) -> NetworkModel:
        """The model of a parameter vector."""
        return self.layout.model(
            [Estimate(p.decode(entry)) for p, entry in zip(self.layout.parameters, vector.tolist(), strict=True)]
        )

    def residuals(self, vector: Floats) -> Floats:
        """(predicted - measured) in expected spreads; the last answer is kept, as derivatives ask again."""
        key = vector.tobytes()
        if self._last is None or self._last[0] != key:
            self._last = key, (predict(self.build(vector), self.samples) - self.measured) / self.spread
        return self._last[1]

    def heard_ns(self, vector: Floats) -> tuple[Floats, Floats, Ints]:
        """Of the messages that count: predicted - measured, measured completion times, and sizes (bytes)."""
        off_ns = self.residuals(vector) * self.spread
        return off_ns[self.heard], self.measured[self.heard], self.samples.messages.size_bytes[self.heard]

    def cost(self, vector: Floats) -> float:
        """Huber's loss."""
        off = np.abs(self.residuals(vector))
        near = np.minimum(off, TUNING)
        return float(np.sum(near * (off - near / 2)))

    def jacobian(self, vector: Floats, free: Sequence[int], *, central: bool = False) -> Floats:
        """Differences (messages x free parameters): forward ones, or more exact and costly central ones."""
        here = self.residuals(vector)
        columns = [self._column(vector, at, here, central=central) for at in free]
        self._last = vector.tobytes(), here
        return np.column_stack(columns)

    def _column(self, vector: Floats, at: int, here: Floats, *, central: bool) -> Floats:
        step = RATE_STEP if self.layout.parameters[at].rate else TIME_STEP_NS
        up, down = vector.copy(), vector.copy()
        up[at] += step
        if not central:
            forward: Floats = (self.residuals(up) - here) / step
            return forward
        down[at] = max(down[at] - step, self.lowest(at))
        both: Floats = (self.residuals(up) - self.residuals(down)) / (up[at] - down[at])
        return both

    def highest(self, at: int) -> float:
        """Upper bound of a vector entry: a rate far above what any message reached has no effect any more.

        A time with `most_share` is bounded, as messages of one size on shared links can trade a large overhead against
        fast links, and a host whose software took more than a few per cent of a transfer would have been warned of long
        before. Where the quick messages of several sizes show a larger fixed time themselves, it may be that large.
        """
        parameter = self.layout.parameters[at]
        if parameter.rate:
            return self._fastest + math.log(BEYOND)
        if parameter.most_share is None:
            return float("inf")
        shown_ns = max(parameter.most_share * float(np.median(self.measured)), 1.5 * self._fixed_ns)
        return max(shown_ns + NS_PER_US, self.lowest(at) + NS_PER_US)

    def lowest(self, at: int) -> float:
        """Lower bound of a vector entry."""
        return self.layout.parameters[at].encode(self.layout.parameters[at].lowest)


def minimise(problem: Problem, vector: Floats, free: Sequence[int], tolerance: float = FINE) -> Floats:
    """The vector of least loss; entries that are not `free` stay."""
    from scipy.optimize import least_squares  # noqa: PLC0415 - a second to import, needed only here

    def full(entries: Floats) -> Floats:
        complete = vector.copy()
        complete[list(free)] = entries
        return complete

    def residuals(entries: Floats) -> Floats:
        return problem.residuals(full(entries))

    def jacobian(entries: Floats) -> Floats:
        return problem.jacobian(full(entries), free)

    lowest = np.array([problem.lowest(at) for at in free])
    highest = np.array([problem.highest(at) for at in free])
    found = least_squares(
        residuals,
        np.clip(vector[list(free)], lowest + 1e-9, highest - 1e-9),
        jac=jacobian,
        bounds=(lowest, highest),
        x_scale=np.array([0.1 if problem.layout.parameters[at].rate else 1000.0 for at in free]),
        loss="huber",
        f_scale=TUNING,
        xtol=1e-8,  # only to end a search that no longer moves: the norm mixes logarithms and ns
        ftol=tolerance,
        max_nfev=MOST_STEPS,
    )
    return full(np.asarray(found.x, np.float64))
