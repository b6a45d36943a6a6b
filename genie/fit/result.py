"""What a fit says: the model, how well each number is known, what it could not tell, and which messages do not fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from genie.core.netmodel import DimensionModel, Estimate, NetworkModel


@dataclass(frozen=True, slots=True)
class Outlier:
    """A message far from what the fitted model says; `residual_ns` = measured - predicted."""

    iteration: int
    src: int
    dst: int
    size_bytes: int
    residual_ns: int


@dataclass(frozen=True, slots=True)
class FitResult:
    """A fitted model.

    Attributes:
        model: with Estimates that carry standard errors and sample counts.
        t: factor on a standard error that gives a 95 % interval (Student's t at the number of clusters - 1).
        median_error, p90_error: of |predicted - measured| / measured over all messages.
        outliers: worst first.
        unidentified: one sentence for each parameter that the data cannot tell; it was kept as given.
    """

    model: NetworkModel
    t: float
    median_error: float
    p90_error: float
    outliers: tuple[Outlier, ...]
    unidentified: tuple[str, ...]
    messages: int

    def parameters(self) -> list[dict[str, Any]]:
        """One row a parameter: name, value, unit, stderr, low and high of the 95 % interval, samples."""
        return [self._row(name, unit, estimate) for name, unit, estimate in _estimates(self.model)]

    def _row(self, name: str, unit: str, estimate: Estimate) -> dict[str, Any]:
        low, high = estimate.interval(self.t)
        return {
            "name": name,
            "value": estimate.value,
            "unit": unit,
            "stderr": estimate.stderr,
            "low": low,
            "high": high,
            "samples": estimate.samples,
        }


def _estimates(model: NetworkModel) -> list[tuple[str, str, Estimate]]:
    if isinstance(model, DimensionModel):
        rows = []
        for at, dimension in enumerate(model.dimensions):
            rows.append((f"dimension {at} bandwidth", "bit/s", dimension.bandwidth_bps))
            rows.append((f"dimension {at} latency", "ns", dimension.latency_ns))
        return rows
    classes = {link.klass: link.capacity_bps for link in model.links}
    rows = [(f"{klass} link capacity", "bit/s", capacity) for klass, capacity in sorted(classes.items())]
    return [*rows, ("overhead a message", "ns", model.message_ns)]
