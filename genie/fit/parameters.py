"""A model as a vector of parameters and back: logarithms of rates, plain numbers for times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from genie.core.netmodel import Dimension, DimensionModel, Estimate, FabricModel, NetworkModel
from genie.errors import InputError
from genie.network.models import charged_dimension


@dataclass(frozen=True, slots=True)
class Parameter:
    """One entry of the vector: a rate (bit/s, fitted as its logarithm) or a time (ns).

    Attributes:
        name: for people.
        rate: a rate, else a time.
        given: Estimate of the model that the fit was given.
        lowest: bound of the search.
        unused: what to say if no message has to do with it.
        most_share: a time that is at most this share of the median completion time (plus 1 us); None: any.
    """

    name: str
    rate: bool
    given: Estimate
    lowest: float
    unused: str = ""
    most_share: float | None = None

    @property
    def unit(self) -> str:
        """Of the model value."""
        return "bit/s" if self.rate else "ns"

    def encode(self, value: float) -> float:
        """Model value -> vector entry."""
        return math.log(value) if self.rate else value

    def decode(self, entry: float) -> float:
        """Vector entry -> model value."""
        return math.exp(entry) if self.rate else entry

    def stderr(self, entry: float, stderr: float) -> float:
        """Standard error of the model value, from that of the entry."""
        return math.exp(entry) * stderr if self.rate else stderr


class Layout(Protocol):
    """Which parameter is where in the vector, and which messages have to do with it."""

    parameters: tuple[Parameter, ...]

    def model(self, estimates: Sequence[Estimate]) -> NetworkModel:
        """The model with these values, in the order of `parameters`."""
        ...

    def crossed(self, src: int, dst: int) -> tuple[int, ...]:
        """Positions of the parameters that a message from `src` to `dst` has to do with."""
        ...


def layout_of(model: NetworkModel, *, per_link: bool = False) -> Layout:
    """The layout of a model; `per_link` gives every link of a fabric its own capacity, else a class has one."""
    if isinstance(model, DimensionModel):
        return DimensionLayout(model)
    return FabricLayout(model, per_link=per_link)


class DimensionLayout:
    """Bandwidth and latency of each dimension in turn."""

    def __init__(self, model: DimensionModel) -> None:
        self._model = model
        self.parameters = tuple(p for at, d in enumerate(model.dimensions) for p in _of_dimension(at, d))

    def model(self, estimates: Sequence[Estimate]) -> DimensionModel:
        """See Layout."""
        dimensions = tuple(
            replace(dimension, bandwidth_bps=estimates[2 * at], latency_ns=estimates[2 * at + 1])
            for at, dimension in enumerate(self._model.dimensions)
        )
        return replace(self._model, dimensions=dimensions)

    def crossed(self, src: int, dst: int) -> tuple[int, ...]:
        """See Layout."""
        at, _ = charged_dimension(self._model, src, dst)
        return 2 * at, 2 * at + 1


def _of_dimension(at: int, dimension: Dimension) -> Iterator[Parameter]:
    unused = f"no message crosses dimension {at}"
    yield Parameter(f"dimension {at} bandwidth", True, dimension.bandwidth_bps, 1.0, unused)  # noqa: FBT003
    yield Parameter(f"dimension {at} latency", False, dimension.latency_ns, 0.0, unused)  # noqa: FBT003


class FabricLayout:
    """Capacities, by class or by link, then the overhead of a message, and the sending gap if the model has one."""

    def __init__(self, model: FabricModel, *, per_link: bool) -> None:
        self._model = model
        keys = [link.name if per_link else link.klass for link in model.links]
        title: Callable[[str], str] = (lambda key: f"link {key}") if per_link else (lambda key: f"{key} link")
        names = sorted(set(keys))
        self._tie = [names.index(key) for key in keys]
        self._capacities = len(names)
        given = [next(x.capacity_bps for x, k in zip(model.links, keys, strict=True) if k == name) for name in names]
        found = [
            Parameter(f"{title(name)} capacity", True, estimate, 1.0, f"no message crosses a {title(name)}")  # noqa: FBT003
            for name, estimate in zip(names, given, strict=True)
        ]
        delays = (sum(model.links[at].delay_ns for at in route) for route in model.routes.values())
        shortest = min(delays, default=0.0)
        overhead = Parameter("overhead a message", False, model.message_ns, -shortest, most_share=0.02)  # noqa: FBT003
        found.append(overhead)
        if model.gap_ns.value > 0:
            found.append(Parameter("gap between sends", False, model.gap_ns, 0.0))  # noqa: FBT003
        self.parameters = tuple(found)

    def spread_classes(self, classes: Sequence[float]) -> list[float]:
        """This layout's vector, from one of the layout in which each class of links has one capacity."""
        names = sorted({link.klass for link in self._model.links})
        capacities = {at: classes[names.index(x.klass)] for at, x in zip(self._tie, self._model.links, strict=True)}
        return [*(capacities[at] for at in range(self._capacities)), *classes[len(names) :]]

    def model(self, estimates: Sequence[Estimate]) -> FabricModel:
        """See Layout."""
        links = tuple(
            replace(link, capacity_bps=estimates[at]) for link, at in zip(self._model.links, self._tie, strict=True)
        )
        fitted = replace(self._model, links=links, message_ns=estimates[self._capacities])
        return replace(fitted, gap_ns=estimates[-1]) if len(estimates) > self._capacities + 1 else fitted

    def crossed(self, src: int, dst: int) -> tuple[int, ...]:
        """See Layout."""
        route = self._model.routes.get((src, dst))
        if not route:
            raise InputError(f"the fabric has no route from rank {src} to rank {dst}.")
        return (*sorted({self._tie[at] for at in route}), *range(self._capacities, len(self.parameters)))
