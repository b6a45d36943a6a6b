"""NetworkModel: how long a message takes, either by logical dimension or over links and routes.

Parameters are floats, since they are estimates; a fitted one carries its standard error and sample count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from genie.errors import InputError


class Topology(StrEnum):
    """One logical dimension's shape, spelled as in ASTRA-sim's network file."""

    RING = "Ring"
    FULLY_CONNECTED = "FullyConnected"
    SWITCH = "Switch"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and how well it is known.

    Attributes:
        value: in the unit that the name of the field holding it says.
        stderr: standard error, same unit; None when it was given, not fitted.
        samples: messages behind it; 0 when given.
    """

    value: float
    stderr: float | None = None
    samples: int = 0

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise InputError(f"a model parameter must be a finite number, not {self.value}.")

    def interval(self, t: float = 1.96) -> tuple[float, float]:
        """Value -/+ t standard errors; a point when it was given."""
        half = t * (self.stderr or 0.0)
        return self.value - half, self.value + half


@dataclass(frozen=True, slots=True)
class Dimension:
    """One logical dimension: `size` ranks, `bandwidth_bps` a link and direction, `latency_ns` a hop."""

    topology: Topology
    size: int
    bandwidth_bps: Estimate
    latency_ns: Estimate

    def __post_init__(self) -> None:
        if self.size < 2:  # noqa: PLR2004 - ASTRA-sim's own rule
            raise InputError(f"a dimension needs more than one rank, not {self.size}.")
        if self.bandwidth_bps.value <= 0:
            raise InputError(f"bandwidth must be above zero, not {self.bandwidth_bps.value} bit/s.")
        if self.latency_ns.value < 0:
            raise InputError(f"latency cannot be negative: {self.latency_ns.value} ns.")


@dataclass(frozen=True, slots=True)
class DimensionModel:
    """ASTRA-sim's analytical network: dimension 0 varies fastest; `aware` adds link queues (one dimension only).

    Source: ASTRA-sim's analytical backends; formulas in docs/simulator.md.
    """

    dimensions: tuple[Dimension, ...]
    aware: bool = False

    def __post_init__(self) -> None:
        if not self.dimensions:
            raise InputError("a network needs at least one dimension.")
        if self.aware and len(self.dimensions) != 1:
            raise InputError(
                f"the congestion-aware model takes one dimension, not {len(self.dimensions)}.",
                fix="use --model unaware, or describe the network as one dimension.",
            )
        if self.aware and self.dimensions[0].topology is Topology.RING and self.dimensions[0].size == 2:  # noqa: PLR2004
            raise InputError(
                "the congestion-aware model cannot build a Ring of two (ASTRA-sim aborts on it).",
                fix="write FullyConnected for two ranks.",
            )

    @property
    def ranks(self) -> int:
        """Product of the dimension sizes."""
        return math.prod(d.size for d in self.dimensions)


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of one cable: from a node's port to another's. `klass` ties links fitted together."""

    name: str
    capacity_bps: Estimate
    delay_ns: float = 0.0
    klass: str = "link"

    def __post_init__(self) -> None:
        if self.capacity_bps.value <= 0 or self.delay_ns < 0:
            raise InputError("a link needs a capacity above zero and a delay of at least zero.", where=self.name)


@dataclass(frozen=True, slots=True)
class FabricModel:
    """Directed links, and for every ordered pair of ranks the links that its messages cross.

    A message of s bytes from a to b is delivered after the fixed part `message_ns` + sum of the link delays, plus
    the time to move s bytes at the max-min fair share of its route.

    Attributes:
        ranks: how many.
        links: directed.
        routes: (source, destination) -> positions in `links`; a pair without an entry cannot talk.
        message_ns: per-message overhead (software, wake-up), outside the network.
        gap_ns: least time between two sends of one rank that its own software needs (0: none).
    """

    ranks: int
    links: tuple[Link, ...]
    routes: dict[tuple[int, int], tuple[int, ...]] = field(hash=False)
    message_ns: Estimate = Estimate(0.0)
    gap_ns: Estimate = Estimate(0.0)

    def __post_init__(self) -> None:
        for pair, route in self.routes.items():
            if not all(0 <= at < len(self.links) for at in route) or not all(0 <= r < self.ranks for r in pair):
                raise InputError(f"the route of {pair} leaves the fabric.")


NetworkModel = DimensionModel | FabricModel
