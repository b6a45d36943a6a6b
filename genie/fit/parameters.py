"""A model as a vector of parameters and back: logarithms of rates, plain numbers for times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from genie.core.netmodel import Dimension, DimensionModel, Estimate, FabricModel, NetworkModel


@dataclass(frozen=True, slots=True)
class Parameter:
    """One entry of the vector: a rate (fitted as its logarithm) or a time."""

    name: str
    rate: bool
    value: float
    lowest: float

    def encode(self, value: float) -> float:
        """Model value -> vector entry."""
        return math.log(value) if self.rate else value

    def decode(self, entry: float) -> float:
        """Vector entry -> model value."""
        return math.exp(entry) if self.rate else entry

    def stderr(self, entry: float, stderr: float) -> float:
        """Standard error of the model value, from that of the entry."""
        return math.exp(entry) * stderr if self.rate else stderr


def parameters_of(model: NetworkModel) -> list[Parameter]:
    """The vector's entries, with the model's present values."""
    if isinstance(model, DimensionModel):
        found = []
        for at, dimension in enumerate(model.dimensions):
            found.append(Parameter(f"dimension {at} bandwidth", True, dimension.bandwidth_bps.value, 1.0))  # noqa: FBT003
            found.append(Parameter(f"dimension {at} latency", False, dimension.latency_ns.value, 0.0))  # noqa: FBT003
        return found
    found = []
    for klass in link_classes(model):
        capacity = next(link.capacity_bps.value for link in model.links if link.klass == klass)
        found.append(Parameter(f"{klass} link capacity", True, capacity, 1.0))  # noqa: FBT003
    shortest = min((sum(model.links[at].delay_ns for at in route) for route in model.routes.values()), default=0.0)
    return [*found, Parameter("overhead a message", False, model.message_ns.value, -shortest)]  # noqa: FBT003


def link_classes(model: FabricModel) -> list[str]:
    """Classes of links, sorted."""
    return sorted({link.klass for link in model.links})


def with_values(model: NetworkModel, estimates: Sequence[Estimate]) -> NetworkModel:
    """The model with other parameter values, in the order of `parameters_of`."""
    if isinstance(model, DimensionModel):
        return replace(model, dimensions=tuple(_dimensions(model, estimates)))
    of_class = dict(zip(link_classes(model), estimates, strict=False))
    links = tuple(replace(link, capacity_bps=of_class[link.klass]) for link in model.links)
    return replace(model, links=links, message_ns=estimates[-1])


def _dimensions(model: DimensionModel, estimates: Sequence[Estimate]) -> list[Dimension]:
    return [
        replace(dimension, bandwidth_bps=estimates[2 * at], latency_ns=estimates[2 * at + 1])
        for at, dimension in enumerate(model.dimensions)
    ]
