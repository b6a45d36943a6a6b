"""Robust least squares on completion times, with honest standard errors.

The parameters are those under which the simulator's own network code, given the posts as they were measured, delivers
when delivery was measured. Residuals are weighted by the spread expected of them and enter through a soft-L1 loss.
How and why: docs/fit.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from genie.core.netmodel import DimensionModel, Estimate, NetworkModel
from genie.core.timeline import Timeline
from genie.errors import InputError, InternalError
from genie.fit.covariance import Uncertainty, uncertainties
from genie.fit.parameters import Parameter, layout_of
from genie.fit.problem import Problem, minimise
from genie.fit.result import FitResult, Fitted, Outlier
from genie.fit.samples import Floats, Samples, collect
from genie.fit.start import best_each, best_scaled, first_vector, rows_of

WORST_CONDITION: Final = 300.0
"""Columns of the scaled Jacobian more alike than this cannot be told apart."""

MIN_MESSAGES: Final = 8
MIN_FEELING: Final = 3
"""A parameter that fewer messages feel is not fitted."""

COARSE_MESSAGES: Final = 600
"""The search begins on so many; with the start that they give, the whole needs few steps."""

SMALLEST_SCALE: Final = 0.05
OUTLIER_MADS: Final = 8.0
MAX_OUTLIERS: Final = 20
VAGUE: Final = 0.25
CONTRADICTED: Final = 0.1
"""Median relative error beyond which messages that identify nothing still contradict the model."""


def fit(model: NetworkModel, timelines: Sequence[Timeline], *, hold: bool = True, per_link: bool = False) -> FitResult:
    """Fit a model's parameters to measured messages.

    Args:
        model: gives the structure; its values are where parameters stay that the data cannot tell.
        timelines: measured; all their iterations are used together.
        hold: keep such parameters as they are and say so, instead of refusing.
        per_link: fit the capacity of every link of a fabric, not one for each class of links.

    Raises:
        InputError: too few messages, or (without `hold`) a parameter that the data cannot tell.
    """
    samples = collect(timelines)
    if len(samples) < MIN_MESSAGES:
        raise InputError(
            f"{len(samples)} messages are too few to fit to (at least {MIN_MESSAGES}).",
            fix="replay more repeats or a larger workload.",
        )
    return _Fit(model, samples, hold=hold, per_link=per_link).result()


def equivalent_dimensions(shape: DimensionModel, timelines: Sequence[Timeline]) -> FitResult:
    """The parameters with which ASTRA-sim's model of the given shape comes nearest to the measured messages.

    For writing an ASTRA-sim network file although a fabric model is used; `median_error` says what that costs.

    Raises:
        InputError: too few messages, or none that the shape has to do with.
    """
    found = fit(shape, timelines)
    if not isinstance(found.model, DimensionModel):
        raise InternalError("a fit changed the kind of the model.")
    return found


class _Fit:
    def __init__(self, model: NetworkModel, samples: Samples, *, hold: bool, per_link: bool) -> None:
        self.model, self.samples, self.hold = model, samples, hold
        self.layout = layout_of(model, per_link=per_link)
        self.parameters = self.layout.parameters
        self.problem = Problem(self.layout, samples)
        self.unidentified: list[str] = []
        self.free = self._used()

    def _used(self) -> list[int]:
        """Parameters that some message has to do with."""
        rows = rows_of(self.layout, self.samples)
        unused = dict.fromkeys(p.unused for p, found in zip(self.parameters, rows, strict=True) if not len(found))
        for what in unused:
            self._say(f"{what}: what the model says of it stays as given.")
        return [at for at, found in enumerate(rows) if len(found)]

    def _say(self, sentence: str) -> None:
        if not self.hold:
            raise InputError(sentence, fix="replay messages of other sizes or paths, or allow it to be held.")
        self.unidentified.append(sentence)

    def solve(self) -> Floats:
        """The vector of least loss; parameters that the data cannot tell are held."""
        vector = self._begin()
        while True:
            vector = minimise(self.problem, vector, self.free, 25)
            jacobian = self.problem.jacobian(vector, self.free, central=True)
            silent = self._silent(jacobian)
            doubtful = silent or self._doubtful(jacobian)
            if not doubtful:
                return vector
            for at in doubtful:
                vector[at] = self._hold(at, vector, feels_nothing=at in silent)
            if not self.free:
                return self._all_held(vector)

    def _all_held(self, vector: Floats) -> Floats:
        """Nothing can be told from these messages; the model as given stands, unless they contradict it."""
        relative = np.abs(self.problem.residuals(vector) * self.problem.spread) / np.maximum(self.problem.measured, 1.0)
        if float(np.median(relative)) > CONTRADICTED:
            raise InputError(
                "the messages contradict the network model as given, and tell none of its parameters.",
                fix="replay a larger workload, with messages of different sizes.",
            )
        return vector

    def _begin(self) -> Floats:
        """From the data alone: an envelope, one factor on all rates, and the first messages."""
        vector = first_vector(self.layout, self.samples)
        few = Problem(self.layout, self.samples.head(COARSE_MESSAGES))
        vector = best_each(few, best_scaled(few, vector))
        return minimise(few, vector, self.free, 25) if len(few.samples) < len(self.samples) else vector

    def _silent(self, jacobian: Floats) -> list[int]:
        """Parameters without effect on all but a few messages."""
        return [at for at, felt in zip(self.free, _feeling(jacobian), strict=True) if felt < MIN_FEELING]

    def _doubtful(self, jacobian: Floats) -> list[int]:
        """The parameter, if any, that is an echo of others; times are given up before rates."""
        _, singular, directions = np.linalg.svd(jacobian / np.linalg.norm(jacobian, axis=0), full_matrices=False)
        if singular[0] < WORST_CONDITION * singular[-1]:
            return []
        involved = [at for at, share in zip(self.free, np.abs(directions[-1]), strict=True) if share > 0.2]  # noqa: PLR2004
        times = [at for at in involved if not self.parameters[at].rate]
        return (times or involved)[:1]

    def _hold(self, at: int, vector: Floats, *, feels_nothing: bool) -> float:
        """Where a parameter stays: as given, unless that alone would hold the messages back."""
        parameter, trial = self.parameters[at], vector.copy()
        trial[at] = parameter.encode(parameter.given.value)
        kept = feels_nothing and self.problem.cost(trial) > 1.001 * self.problem.cost(vector) + 1e-6
        why = "the messages never fill it" if feels_nothing and parameter.rate else "sizes or paths are too much alike"
        where = f"it stays as given, {parameter.given.value:g} {parameter.unit}"
        if kept:
            where = (
                f"the {parameter.given.value:g} {parameter.unit} given would slow them down, "
                f"{parameter.decode(vector[at]):g} {parameter.unit} do not"
            )
        self._say(f"the messages cannot tell the {parameter.name} ({why}): {where}.")
        self.free.remove(at)
        return float(vector[at] if kept else trial[at])

    def result(self) -> FitResult:
        vector = self.solve()
        scale = max(_scale(self.problem.residuals(vector)), SMALLEST_SCALE)
        scaled = Problem(self.layout, self.samples, scale)
        known: dict[int, Uncertainty] = {}
        felt: dict[int, int] = {}
        if self.free:
            vector = minimise(scaled, vector, self.free, 8)
            jacobian = scaled.jacobian(vector, self.free, central=True)
            spreads = uncertainties(jacobian, scaled.residuals(vector), self._groupings())
            known = dict(zip(self.free, spreads, strict=True))
            felt = dict(zip(self.free, _feeling(jacobian), strict=True))
        residuals = scaled.residuals(vector)
        fitted = tuple(
            _fitted(parameter, float(vector[at]), known.get(at), felt.get(at, 0))
            for at, parameter in enumerate(self.parameters)
        )
        relative = np.abs(residuals * scaled.spread) / np.maximum(scaled.measured, 1.0)
        return FitResult(
            model=self.layout.model([row.estimate for row in fitted]),
            fitted=fitted,
            median_error=float(np.median(relative)),
            p90_error=float(np.quantile(relative, 0.9)),
            outliers=_outliers(scaled, residuals),
            unidentified=tuple(self.unidentified),
            messages=len(self.samples),
            notes=tuple(self._notes(vector, known)),
        )

    def _groupings(self) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
        messages = self.samples.messages
        return {
            "pair of ranks": messages.src.astype(np.int64) * (1 << 32) + messages.dst,
            "iteration": self.samples.batches,
            "message size": messages.size_bytes,
        }

    def _notes(self, vector: Floats, known: dict[int, Uncertainty]) -> list[str]:
        notes = []
        if self.samples.lost:
            notes.append(f"{self.samples.lost} messages were not delivered or failed; the fit is without them.")
        for at, uncertainty in known.items():
            parameter = self.parameters[at]
            if vector[at] <= self.problem.lowest(at) + 1e-3:
                notes.append(f"the {parameter.name} ended at its lower bound; the truth may lie beyond the model.")
            if parameter.rate and uncertainty.stderr > VAGUE:
                notes.append(f"the {parameter.name} is only vaguely known.")
        groupings = sorted({uncertainty.grouping for uncertainty in known.values()})
        notes.append(f"standard errors are clustered by {' and '.join(groupings)}.")
        return notes


def _feeling(jacobian: Floats) -> list[int]:
    """For each parameter, how many messages feel it."""
    return [int(count) for count in np.count_nonzero(jacobian, axis=0)]


def _scale(residuals: Floats) -> float:
    """Spread of the bulk: 1.4826 x the median absolute deviation is a normal distribution's standard deviation."""
    return 1.4826 * float(np.median(np.abs(residuals - np.median(residuals))))


def _fitted(parameter: Parameter, entry: float, known: Uncertainty | None, felt: int) -> Fitted:
    if known is None:
        return Fitted(parameter.name, parameter.unit, Estimate(parameter.decode(entry)), 0.0)
    estimate = Estimate(parameter.decode(entry), parameter.stderr(entry, known.stderr), felt)
    return Fitted(parameter.name, parameter.unit, estimate, known.t)


def _outliers(problem: Problem, residuals: Floats) -> tuple[Outlier, ...]:
    """Messages farther off than eight times the spread of the bulk, worst first."""
    off = np.abs(residuals - np.median(residuals))
    far = np.flatnonzero(off > OUTLIER_MADS * max(_scale(residuals), 0.1))
    worst = far[np.argsort(-off[far], kind="stable")][:MAX_OUTLIERS]
    messages = problem.samples.messages
    return tuple(
        Outlier(
            int(messages.iteration[row]),
            int(messages.src[row]),
            int(messages.dst[row]),
            int(messages.size_bytes[row]),
            round(float(-residuals[row] * problem.spread[row])),
        )
        for row in worst.tolist()
    )
