"""What a fit says: the model, how well each number is known, what it could not tell, and which messages do not fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from genie.core.netmodel import Estimate, NetworkModel


@dataclass(frozen=True, slots=True)
class Outlier:
    """A message far from what the fitted model says; `residual_ns` = measured - predicted."""

    iteration: int
    src: int
    dst: int
    size_bytes: int
    residual_ns: int


@dataclass(frozen=True, slots=True)
class Fitted:
    """One parameter. `estimate` -/+ `t` x its standard error is its 95 % interval."""

    name: str
    unit: str
    estimate: Estimate
    t: float

    def as_dict(self) -> dict[str, Any]:
        """For tables and JSON."""
        low, high = self.estimate.interval(self.t)
        return {
            "name": self.name,
            "value": self.estimate.value,
            "unit": self.unit,
            "stderr": self.estimate.stderr,
            "low": low,
            "high": high,
            "samples": self.estimate.samples,
        }


@dataclass(frozen=True, slots=True)
class FitResult:
    """A fitted model.

    Attributes:
        model: with Estimates that carry standard errors and sample counts.
        fitted: its parameters one by one.
        median_error, p90_error: of |predicted - measured| / measured over all messages.
        outliers: worst first.
        unidentified: one sentence for each parameter that the data cannot tell.
        notes: what else to know when reading the numbers.
        messages: how many it rests on.
    """

    model: NetworkModel
    fitted: tuple[Fitted, ...]
    median_error: float
    p90_error: float
    outliers: tuple[Outlier, ...]
    unidentified: tuple[str, ...]
    messages: int
    notes: tuple[str, ...] = ()

    @property
    def t(self) -> float:
        """Largest factor on a standard error that gives a 95 % interval (Student's t at the clusters - 1)."""
        return max((p.t for p in self.fitted if p.estimate.stderr is not None), default=0.0)

    def parameters(self) -> list[dict[str, Any]]:
        """One row a parameter: name, value, unit, stderr, low and high of the 95 % interval, samples."""
        return [parameter.as_dict() for parameter in self.fitted]
