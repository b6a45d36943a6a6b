"""The topologies that a testbed file can name, as its schema's models; each makes its graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from genie.core.testbed import MAX_NODES, LinkSpec, Node, Role, leaf_spine, single_switch
from genie.core.topologies import Graph, dumbbell, fat_tree, rail_optimised
from genie.errors import InputError
from genie.units import parse_rate_bps, parse_share_ppm, parse_size_bytes, parse_time_ns


def _unit(parse: Callable[[str], int]) -> BeforeValidator:
    def convert(value: Any) -> Any:
        if value is None:
            return value
        if not isinstance(value, str):
            raise ValueError("write a number with its unit, in quotes")  # noqa: TRY004 - pydantic wants ValueError
        try:
            return parse(value)
        except InputError as error:
            raise ValueError(str(error)) from error

    return BeforeValidator(convert, json_schema_input_type=str)


Rate = Annotated[int, _unit(parse_rate_bps)]
Size = Annotated[int, _unit(parse_size_bytes)]
Duration = Annotated[int, _unit(parse_time_ns)]
Share = Annotated[int, _unit(parse_share_ppm)]

Oversubscription = Annotated[float | None, Field(None, ge=0.1, le=100, allow_inf_nan=False)]


class Links(Protocol):
    """Link class, and its rate where that follows from others -> what such links are like."""

    def __call__(self, klass: str, rate_bps: int | None = None, /) -> LinkSpec:
        """See above."""


class Model(BaseModel):
    """What all parts of the file share: no key that nobody reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _upward_bps(host: LinkSpec, hosts: int, ways: int, ratio: float | None) -> int | None:
    """Rate of each of a leaf's `ways` up, so that `ratio` x what is below it fits; None where no ratio is told."""
    return None if ratio is None else round(host.rate_bps * hosts / (ways * ratio))


class LeafSpineFile(Model):
    """Two-tier Clos: `hosts` in all, or so many on each leaf."""

    kind: Literal["leaf-spine"]
    hosts: int | None = Field(None, ge=2, le=1024)
    hosts_per_leaf: int | None = Field(None, ge=1, le=1024)
    leaves: int = Field(ge=1, le=64)
    spines: int = Field(ge=1, le=64)
    oversubscription: Oversubscription = Field(None, description="gives fabric links their rate: below : above a leaf")

    @model_validator(mode="after")
    def _one_count(self) -> Self:
        if (self.hosts is None) == (self.hosts_per_leaf is None):
            raise ValueError("say either hosts or hosts_per_leaf")
        return self

    @property
    def total(self) -> int:
        """How many hosts there are."""
        return self.hosts if self.hosts is not None else (self.hosts_per_leaf or 0) * self.leaves

    def graph(self, link: Links, seed: int) -> Graph:
        """Nodes and cables."""
        host = link("host")
        upward_bps = _upward_bps(host, self.total // self.leaves, self.spines, self.oversubscription)
        return leaf_spine(self.total, self.leaves, self.spines, host, link("fabric", upward_bps), seed)


class FatTreeFile(Model):
    """Three-tier Clos: all counts, or `k` for that of k-port switches (k pods of k/2 leaves and k/2 spines)."""

    kind: Literal["fat-tree"]
    k: int | None = Field(None, ge=2, le=16, multiple_of=2)
    pods: int | None = Field(None, ge=1, le=64)
    leaves: int | None = Field(None, ge=1, le=64, description="of each pod")
    spines: int | None = Field(None, ge=1, le=64, description="of each pod")
    cores: int | None = Field(None, ge=1, le=256)
    hosts_per_leaf: int | None = Field(None, ge=1, le=256)
    oversubscription: Oversubscription = Field(
        None, description="gives fabric links their rate: below : above a leaf; core links then are as fast together"
    )

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        counts = (self.pods, self.leaves, self.spines, self.cores, self.hosts_per_leaf)
        if any((count is None) == (self.k is None) for count in counts):
            raise ValueError("say either k, or pods, leaves, spines, cores and hosts_per_leaf")
        return self

    def graph(self, link: Links, seed: int) -> Graph:
        """Nodes and cables."""
        half = (self.k or 0) // 2
        pods, leaves, spines = self.k or self.pods or 0, half or self.leaves or 0, half or self.spines or 0
        cores, per_leaf = half * half or self.cores or 0, half or self.hosts_per_leaf or 0
        host = link("host")
        fabric_bps = _upward_bps(host, per_leaf, spines, self.oversubscription)
        fabric = link("fabric", fabric_bps)
        core_bps = None if fabric_bps is None else round(fabric_bps * leaves * spines / cores)
        return fat_tree(pods, leaves, spines, cores, per_leaf, (host, fabric, link("core", core_bps)), seed)


class RailFile(Model):
    """Hosts with a NIC on each rail: NIC r of a unit's hosts on that unit's leaf r; every leaf on every spine."""

    kind: Literal["rail-optimised"]
    hosts: int = Field(ge=1, le=1024)
    rails: int = Field(ge=1, le=16)
    spines: int = Field(ge=1, le=64)
    hosts_per_unit: int | None = Field(None, ge=1, le=1024, description="default: all hosts are one unit")
    oversubscription: Oversubscription = Field(None, description="gives fabric links their rate: below : above a leaf")

    def graph(self, link: Links, seed: int) -> Graph:
        """Nodes and cables."""
        host, unit = link("host"), self.hosts_per_unit or self.hosts
        upward_bps = _upward_bps(host, unit, self.spines, self.oversubscription)
        return rail_optimised(self.hosts, self.rails, unit, self.spines, (host, link("fabric", upward_bps)), seed)


class DumbbellFile(Model):
    """Two switches with hosts, and one cable of class bottleneck between them."""

    kind: Literal["dumbbell"]
    left: int = Field(ge=1, le=512)
    right: int = Field(ge=1, le=512)

    def graph(self, link: Links, seed: int) -> Graph:
        """Nodes and cables."""
        return dumbbell(self.left, self.right, link("host"), link("bottleneck"), seed)


class SingleSwitchFile(Model):
    """All hosts on one switch."""

    kind: Literal["single-switch"]
    hosts: int = Field(ge=2, le=1024)

    def graph(self, link: Links, seed: int) -> Graph:
        """Nodes and cables."""
        return single_switch(self.hosts, link("host"), seed)


class CustomFile(Model):
    """Any graph: link ends as pairs, each with a class of `links`; a host's NICs are its cables, in their order."""

    kind: Literal["custom"]
    hosts: list[str] = Field(min_length=1, max_length=MAX_NODES)
    switches: list[str] = Field(max_length=MAX_NODES)
    cables: list[tuple[str, str, str]] = Field(description="[end, end, link class]")

    def graph(self, link: Links, seed: int) -> Graph:
        """Nodes and cables."""
        nodes = [Node(name, Role.HOST) for name in self.hosts]
        nodes += [Node(name, Role.SWITCH, seed + at) for at, name in enumerate(self.switches)]
        return tuple(nodes), tuple(link(klass).cable(a, b, klass) for a, b, klass in self.cables)


Shape = LeafSpineFile | FatTreeFile | RailFile | DumbbellFile | SingleSwitchFile | CustomFile
