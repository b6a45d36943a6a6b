"""Robust least squares on completion times, with honest standard errors.

The parameters are those under which the simulator's own network code, given the posts as they were measured, delivers
when delivery was measured. Residuals are weighted by the spread expected of them and enter through a soft-L1 loss.
How and why: docs/fit.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from genie.core.netmodel import DimensionModel, Estimate, NetworkModel
from genie.core.timeline import Timeline
from genie.errors import InputError, InternalError
from genie.fit.covariance import Uncertainty, uncertainties
from genie.fit.parameters import FabricLayout, Parameter, layout_of
from genie.fit.problem import COARSE, Problem, minimise
from genie.fit.result import FitResult, Fitted, Outlier
from genie.fit.samples import Floats, Samples, collect
from genie.fit.spread import Spread, bulk, deviation, shown
from genie.fit.start import first_vector, rows_of, starts

WORST_CONDITION: Final = 300.0
"""Columns of the scaled Jacobian more alike than this cannot be told apart."""

MIN_MESSAGES: Final = 8
MIN_FEELING: Final = 3
"""A parameter that fewer messages feel is not fitted."""

HIGHER: Final = 1.5
ONE_SIDED: Final = 0.05
MILD: Final = 4.0
"""A rate that the messages mind being so many times lower, but hardly (loss) being higher, is only known to be at
least what it is."""

COARSE_MESSAGES: Final = 600
"""The search begins on so many; with the start that they give, the whole needs few steps."""

LEAST_STEP: Final = 0.02
"""To so much (relative) is the lowest rate worked out that does not hold messages back."""

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
        self.model, self.samples, self.hold, self.per_link = model, samples, hold, per_link
        self.layout = layout_of(model, per_link=per_link)
        self.parameters = self.layout.parameters
        self.problem = Problem(self.layout, samples)
        self.unidentified: list[str] = []
        self.free = self._used()
        self._jacobian = np.empty((len(samples), 0))

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

    def solve(self) -> tuple[Problem, Floats, Floats]:
        """The problem scaled to the spread that its residuals show, its solution, and the Jacobian there.

        The first messages already show the spread; only if all of them show another one is the whole solved again.
        """
        vector, spread = self._begin()
        for last in (False, False, True):
            self.problem = Problem(self.layout, self.samples, spread)
            vector = self._settle(self.problem, vector)
            seen = shown(*self.problem.heard_ns(vector))
            if last or not self.free or seen.like(spread, self.samples.fct_ns):
                break
            spread = seen
        return self.problem, vector, self._jacobian

    def _settle(self, problem: Problem, vector: Floats) -> Floats:
        """The vector of least loss; parameters that the data cannot tell are held."""
        while self.free:
            vector = minimise(problem, vector, self.free)
            self._jacobian = problem.jacobian(vector, self.free, central=True)
            silent = self._silent(problem, vector)
            doubtful = silent or self._doubtful(self._jacobian)
            if not doubtful:
                return vector
            vector = self._hold(problem, vector, doubtful, silent=bool(silent))
        return self._all_held(vector)

    def _all_held(self, vector: Floats) -> Floats:
        """Nothing can be told from these messages; the model as it stands is good, unless they contradict it."""
        relative = np.abs(self.problem.residuals(vector) * self.problem.spread) / np.maximum(self.problem.measured, 1.0)
        if float(np.median(relative)) > CONTRADICTED:
            raise InputError(
                "the messages contradict the network model as given, and tell none of its parameters.",
                fix="replay a larger workload, with messages of different sizes.",
            )
        return vector

    def _begin(self) -> tuple[Floats, Spread]:
        """A vector from the data alone (an envelope, factors on the rates, the first messages), and their spread.

        Links of their own begin as their classes end: a search over so many from afar would take too long.
        """
        few = self.samples.head(COARSE_MESSAGES)
        if not (isinstance(self.layout, FabricLayout) and self.per_link):
            problem = Problem(self.layout, few)
            vector = _search(problem, first_vector(self.layout, self.samples), self.free)
            return vector, shown(*problem.heard_ns(vector), bulk)
        tied = layout_of(self.model)
        problem = Problem(tied, few)
        used = [at for at, rows in enumerate(rows_of(tied, self.samples)) if len(rows)]
        of_classes = _search(problem, first_vector(tied, self.samples), used)
        vector = np.array(self.layout.spread_classes(of_classes.tolist()))
        given = np.array([parameter.encode(parameter.given.value) for parameter in self.parameters])
        vector = np.where(np.isin(np.arange(len(vector)), self.free), vector, given)
        return vector, shown(*problem.heard_ns(of_classes), bulk)

    def _silent(self, problem: Problem, vector: Floats) -> list[int]:
        """Parameters without effect on all but a few messages, and rates that could as well be higher.

        The search ends where a link just ceases to hold messages back; down from there they feel it, so that a
        derivative alone would take the least capacity for the capacity.
        """
        felt = dict(zip(self.free, _feeling(self._jacobian), strict=True))
        best = problem.cost(vector)
        return [at for at in self.free if felt[at] < MIN_FEELING or self._may_be_higher(problem, vector, at, best)]

    def _may_be_higher(self, problem: Problem, vector: Floats, at: int, best: float) -> bool:
        if not self.parameters[at].rate:
            return False
        step = np.zeros(len(vector))
        step[at] = math.log(HIGHER)
        up, down = (problem.cost(trial) - best for trial in (vector + step, vector - step))
        return up < ONE_SIDED * down and up < MILD + ONE_SIDED * best

    def _doubtful(self, jacobian: Floats) -> list[int]:
        """The parameter, if any, that is an echo of others; times are given up before rates."""
        _, singular, directions = np.linalg.svd(jacobian / np.linalg.norm(jacobian, axis=0), full_matrices=False)
        if singular[0] < WORST_CONDITION * singular[-1]:
            return []
        involved = [at for at, share in zip(self.free, np.abs(directions[-1]), strict=True) if share > 0.2]  # noqa: PLR2004
        times = [at for at in involved if not self.parameters[at].rate]
        return (times or involved)[:1]

    def _hold(self, problem: Problem, vector: Floats, doubtful: list[int], *, silent: bool) -> Floats:
        """Keep parameters as given, unless the messages contradict that; then at what they do not contradict."""
        self.free = [at for at in self.free if at not in doubtful]
        best = problem.cost(vector)
        for at in doubtful:
            parameter, trial = self.parameters[at], vector.copy()
            trial[at] = max(parameter.encode(parameter.given.value), problem.lowest(at))
            raised = silent and parameter.rate and trial[at] >= vector[at]
            if self.free and not raised:  # contradicted is only what no value of the others can make good
                trial = minimise(problem, trial, self.free)
            if not raised and _worse(problem, trial, best):
                trial = self._least(problem, vector, at, best) if silent and parameter.rate else vector
                how = "at least " if silent and parameter.rate else ""
                value = f"{parameter.decode(float(trial[at])):g} {parameter.unit}"
                where = (
                    f"{parameter.given.value:g} {parameter.unit} as given would contradict them; set to {how}{value}"
                )
            else:
                where = f"it stays as given, {parameter.given.value:g} {parameter.unit}"
            why = "they never fill it" if silent and parameter.rate else "their sizes or paths are too much alike"
            self._say(f"the messages cannot tell the {parameter.name} ({why}): {where}.")
            vector = trial
        return vector

    def _least(self, problem: Problem, vector: Floats, at: int, best: float) -> Floats:
        """The vector with the lowest rate that does not hold the messages back."""
        low, high = self.parameters[at].encode(self.parameters[at].given.value), float(vector[at])
        trial = vector.copy()
        while high - low > LEAST_STEP:
            trial[at] = (low + high) / 2
            low, high = (float(trial[at]), high) if _worse(problem, trial, best) else (low, float(trial[at]))
        trial[at] = high
        return trial

    def result(self) -> FitResult:
        problem, vector, jacobian = self.solve()
        residuals = problem.residuals(vector)
        known: dict[int, Uncertainty] = {}
        felt: dict[int, int] = {}
        if self.free:
            known = dict(zip(self.free, uncertainties(jacobian, residuals, self._groupings()), strict=True))
            felt = dict(zip(self.free, _feeling(jacobian), strict=True))
        fitted = tuple(
            _fitted(parameter, float(vector[at]), known.get(at), felt.get(at, 0))
            for at, parameter in enumerate(self.parameters)
        )
        relative = np.abs(residuals * problem.spread) / np.maximum(problem.measured, 1.0)
        return FitResult(
            model=self.layout.model([row.estimate for row in fitted]),
            fitted=fitted,
            median_error=float(np.median(relative)),
            p90_error=float(np.quantile(relative, 0.9)),
            outliers=_outliers(problem, residuals),
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
            if not self.problem.lowest(at) + 1e-3 < vector[at] < self.problem.highest(at) - 1e-3:
                notes.append(
                    f"the {parameter.name} ended at a bound of the search; the truth may lie beyond the model."
                )
            if parameter.rate and uncertainty.stderr > VAGUE:
                notes.append(f"the {parameter.name} is only vaguely known.")
        if known:
            groupings = sorted({uncertainty.grouping for uncertainty in known.values()})
            notes.append(f"standard errors are clustered by {' and '.join(groupings)}.")
        return notes


def _search(problem: Problem, vector: Floats, free: list[int]) -> Floats:
    """The lowest of the valleys that the starts lead into."""
    return min((minimise(problem, start, free, COARSE) for start in starts(problem, vector, free)), key=problem.cost)


def _worse(problem: Problem, trial: Floats, best: float) -> bool:
    """Whether messages contradict a vector: by more than rounding and the end of a search can explain."""
    return problem.cost(trial) > 1.01 * best + 1e-3 * len(problem.samples)


def _feeling(jacobian: Floats) -> list[int]:
    """For each parameter, how many messages feel it."""
    return [int(count) for count in np.count_nonzero(jacobian, axis=0)]


def _fitted(parameter: Parameter, entry: float, known: Uncertainty | None, felt: int) -> Fitted:
    if known is None:
        return Fitted(parameter.name, parameter.unit, Estimate(parameter.decode(entry)), 0.0)
    estimate = Estimate(parameter.decode(entry), parameter.stderr(entry, known.stderr), felt)
    return Fitted(parameter.name, parameter.unit, estimate, known.t)


def _outliers(problem: Problem, residuals: Floats) -> tuple[Outlier, ...]:
    """Messages farther off than eight times the spread of the bulk, worst first."""
    off = np.abs(residuals - np.median(residuals))
    far = np.flatnonzero(off > OUTLIER_MADS * max(deviation(residuals), 0.1))
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
