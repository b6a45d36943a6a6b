"""Robust least squares on completion times, with honest standard errors.

The parameters are those under which the simulator's own network code, given the posts as they were measured, delivers
when delivery was measured. Residuals are weighted by the spread expected of them (1 % of the completion time + 100 ns)
and enter through a soft-L1 loss. Messages of one pair of ranks, and those of one iteration, err together: covariances
are cluster-robust (Liang and Zeger, Biometrika 73, 1986) over whichever of the two gives the larger error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from genie.core.netmodel import DimensionModel, Estimate, NetworkModel
from genie.core.timeline import Timeline
from genie.errors import InputError
from genie.fit.parameters import Parameter, parameters_of, with_values
from genie.fit.result import FitResult, Outlier
from genie.fit.samples import Floats, Samples, collect, predict
from genie.network.models import charged_dimension

RELATIVE_SPREAD: Final = 0.01
FLOOR_NS: Final = 100.0
RATE_STEP: Final = 1e-3
TIME_STEP_NS: Final = 20.0
WORST_CONDITION: Final = 300.0
"""Columns of the scaled Jacobian more alike than this cannot be told apart."""

MIN_MESSAGES: Final = 8
OUTLIER_MADS: Final = 8.0
MAX_OUTLIERS: Final = 20


def fit(model: NetworkModel, timelines: Sequence[Timeline], *, hold: bool = True) -> FitResult:
    """Fit a model's parameters to measured messages.

    Args:
        model: gives the structure; its values are where parameters stay that the data cannot tell.
        timelines: measured; all their iterations are used together.
        hold: keep such parameters as they are and say so, instead of refusing.

    Raises:
        InputError: too few messages, or (without `hold`) a parameter that the data cannot tell.
    """
    samples = collect(timelines)
    if len(samples.messages) < MIN_MESSAGES:
        raise InputError(
            f"{len(samples.messages)} messages are too few to fit to (at least {MIN_MESSAGES}).",
            fix="replay more repeats or a larger workload.",
        )
    return _Fit(model, samples, hold=hold).result()


class _Fit:
    def __init__(self, model: NetworkModel, samples: Samples, *, hold: bool) -> None:
        self.model, self.samples = model, samples
        self.parameters = parameters_of(model)
        self.measured = samples.fct_ns
        self.spread = RELATIVE_SPREAD * np.abs(self.measured) + FLOOR_NS
        self.unidentified: list[str] = []
        self.free = self._used()
        self.hold = hold

    def _used(self) -> list[int]:
        """Parameters that some message feels at all."""
        if not isinstance(self.model, DimensionModel):
            return list(range(len(self.parameters)))
        messages = self.samples.messages
        pairs = {(s, d) for s, d in zip(messages.src.tolist(), messages.dst.tolist(), strict=True)}
        felt = {charged_dimension(self.model, s, d)[0] for s, d in pairs}
        for at in range(len(self.model.dimensions)):
            if at not in felt:
                self.unidentified.append(f"no message crosses dimension {at}: its bandwidth and latency stay as given.")
        return [at for at in range(len(self.parameters)) if at // 2 in felt]

    def start(self) -> Floats:
        """Where the search begins: from the data alone, as the given model may be wrong by any factor."""
        sizes = self.samples.messages.size_bytes.astype(np.float64)
        rate_bps = float(np.quantile(sizes * 8e9 / np.maximum(self.measured, 1.0), 0.9))
        entries = [p.encode(rate_bps if p.rate else max(p.lowest, 0.0)) for p in self.parameters]
        given = [p.encode(p.value) for p in self.parameters]
        return np.array([entries[at] if at in self.free else given[at] for at in range(len(entries))])

    def build(self, vector: Floats) -> NetworkModel:
        """The model of a parameter vector."""
        return with_values(self.model, [Estimate(p.decode(v)) for p, v in zip(self.parameters, vector, strict=True)])

    def residuals(self, vector: Floats) -> Floats:
        """(predicted - measured) in expected spreads."""
        residuals: Floats = (predict(self.build(vector), self.samples) - self.measured) / self.spread
        return residuals

    def jacobian(self, vector: Floats) -> Floats:
        """Central differences with steps that whole ns cannot swallow."""
        columns = []
        for at in self.free:
            step = RATE_STEP if self.parameters[at].rate else TIME_STEP_NS
            up, down = vector.copy(), vector.copy()
            up[at] += step
            down[at] = max(down[at] - step, self._lowest(at))
            columns.append((self.residuals(up) - self.residuals(down)) / (up[at] - down[at]))
        return np.column_stack(columns)

    def _lowest(self, at: int) -> float:
        return self.parameters[at].encode(self.parameters[at].lowest)

    def solve(self) -> Floats:
        """The vector of least loss; parameters that cannot be told apart are held one by one, times first."""
        vector = self.start()
        while True:
            vector = self._minimise(vector)
            doubtful = self._doubtful(self.jacobian(vector))
            if doubtful is None:
                return vector
            self._give_up(doubtful)
            vector[doubtful] = self.parameters[doubtful].encode(self.parameters[doubtful].value)

    def _minimise(self, vector: Floats) -> Floats:
        from scipy.optimize import least_squares  # noqa: PLC0415 - a second to import, needed only here

        def residuals(entries: Floats) -> Floats:
            return self.residuals(self._with(vector, entries))

        def jacobian(entries: Floats) -> Floats:
            return self.jacobian(self._with(vector, entries))

        found = least_squares(
            residuals,
            vector[self.free],
            jac=jacobian,
            bounds=([self._lowest(at) for at in self.free], np.inf),
            x_scale=[0.1 if self.parameters[at].rate else 1000.0 for at in self.free],
            loss="soft_l1",
            xtol=1e-6,
            ftol=1e-7,
            max_nfev=40,
        )
        return self._with(vector, found.x)

    def _with(self, vector: Floats, entries: Floats) -> Floats:
        full = vector.copy()
        full[self.free] = entries
        return full

    def _doubtful(self, jacobian: Floats) -> int | None:
        """A parameter that the data cannot tell: without effect, or an echo of others."""
        lengths = np.linalg.norm(jacobian, axis=0)
        silent = [at for at, length in zip(self.free, lengths, strict=True) if length == 0]
        if silent:
            return silent[0]
        _, singular, directions = np.linalg.svd(jacobian / lengths, full_matrices=False)
        if singular[0] < WORST_CONDITION * singular[-1]:
            return None
        involved = [at for at, share in zip(self.free, np.abs(directions[-1]), strict=True) if share > 0.2]  # noqa: PLR2004
        times = [at for at in involved if not self.parameters[at].rate]
        return (times or involved)[0]

    def _give_up(self, at: int) -> None:
        name, value = self.parameters[at].name, self.parameters[at].value
        alike = "their sizes or paths are too much alike"
        why = f"the messages cannot tell the {name} ({alike}): it stays as given, {value:g}."
        if not self.hold:
            raise InputError(why, fix="replay messages of different sizes, or allow it to be held.")
        self.unidentified.append(why)
        self.free.remove(at)
        if not self.free:
            raise InputError("the messages tell nothing about this network model.", fix="replay a larger workload.")

    def result(self) -> FitResult:
        vector = self.solve()
        residuals = self.residuals(vector)
        errors, t = self._standard_errors(self.jacobian(vector), residuals)
        estimates = [
            self._estimate(parameter, float(entry), errors.get(at))
            for at, (parameter, entry) in enumerate(zip(self.parameters, vector, strict=True))
        ]
        relative = np.abs(residuals * self.spread) / np.maximum(self.measured, 1.0)
        return FitResult(
            model=with_values(self.model, estimates),
            t=t,
            median_error=float(np.median(relative)),
            p90_error=float(np.quantile(relative, 0.9)),
            outliers=self._outliers(residuals),
            unidentified=tuple(self.unidentified),
            messages=len(self.measured),
        )

    def _estimate(self, parameter: Parameter, entry: float, error: float | None) -> Estimate:
        if error is None:
            return Estimate(parameter.value)
        return Estimate(parameter.decode(entry), parameter.stderr(entry, error), len(self.measured))

    def _standard_errors(self, jacobian: Floats, residuals: Floats) -> tuple[dict[int, float], float]:
        """Vector entry -> standard error, and the t factor of a 95 % interval."""
        from scipy.stats import t as student  # noqa: PLC0415 - a second to import, needed only here

        messages = self.samples.messages
        pairs = messages.src.astype(np.int64) * (1 << 32) + messages.dst
        candidates = [sandwich(jacobian, residuals, clusters) for clusters in (pairs, self.samples.batches)]
        usable = [(variance, groups) for variance, groups in candidates if groups > 1]
        variance, groups = max(usable or candidates, key=lambda found: float(np.trace(found[0])))
        errors = np.sqrt(np.diag(variance))
        return dict(zip(self.free, errors.tolist(), strict=True)), float(student.ppf(0.975, max(groups - 1, 1)))

    def _outliers(self, residuals: Floats) -> tuple[Outlier, ...]:
        scale = 1.4826 * float(np.median(np.abs(residuals - np.median(residuals))))
        far = np.flatnonzero(np.abs(residuals - np.median(residuals)) > OUTLIER_MADS * max(scale, 0.1))
        worst = far[np.argsort(-np.abs(residuals[far]))][:MAX_OUTLIERS]
        messages = self.samples.messages
        return tuple(
            Outlier(
                int(messages.iteration[row]),
                int(messages.src[row]),
                int(messages.dst[row]),
                int(messages.size_bytes[row]),
                round(float(-residuals[row] * self.spread[row])),
            )
            for row in worst.tolist()
        )


def sandwich(jacobian: Floats, residuals: Floats, clusters: NDArray[Any]) -> tuple[Floats, int]:
    """Cluster-robust covariance of the parameters (p x p), and the number of clusters.

    `residuals` enter with the weights of the soft-L1 loss, (1 + r^2)^(-1/2).
    """
    weights = 1.0 / np.sqrt(1.0 + residuals**2)
    bread = np.linalg.inv(jacobian.T @ (jacobian * weights[:, None]))
    scores = jacobian * (weights * residuals)[:, None]
    _, number = np.unique(clusters, return_inverse=True)
    groups = int(number.max()) + 1
    sums = np.zeros((groups, jacobian.shape[1]))
    np.add.at(sums, number, scores)
    correction = groups / max(groups - 1, 1)
    variance: Floats = bread @ (sums.T @ sums) @ bread * correction
    return variance, groups
