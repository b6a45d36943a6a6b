"""Testbed files (YAML) -> Testbed. The schema is published as testbed/testbed.schema.json."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from genie.core.testbed import (
    MAX_MTU,
    MAX_NODES,
    MIN_MTU,
    Cable,
    LinkSpec,
    Node,
    Role,
    Testbed,
    leaf_spine,
    single_switch,
)
from genie.errors import InputError
from genie.formats.textfile import read_yaml, wrong_fields
from genie.units import parse_rate_bps, parse_size_bytes, parse_time_ns


def _unit(parse: Any) -> BeforeValidator:
    def convert(value: Any) -> Any:
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


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LinkFile(_Model):
    """One class of links: rate of full packets' payload, one-way delay, buffer a port."""

    rate: Rate
    delay: Duration = 0
    buffer: Size = 4 << 20

    def spec(self) -> LinkSpec:
        """As a core value."""
        return LinkSpec(self.rate, self.delay, self.buffer)


class LeafSpineFile(_Model):
    """Two-tier Clos: `hosts` in all, or so many on each leaf."""

    kind: Literal["leaf-spine"]
    hosts: int | None = Field(None, ge=2, le=1024)
    hosts_per_leaf: int | None = Field(None, ge=1, le=1024)
    leaves: int = Field(ge=1, le=64)
    spines: int = Field(ge=1, le=64)

    @model_validator(mode="after")
    def _one_count(self) -> Self:
        if (self.hosts is None) == (self.hosts_per_leaf is None):
            raise ValueError("say either hosts or hosts_per_leaf")
        return self

    @property
    def total(self) -> int:
        """How many hosts there are."""
        return self.hosts if self.hosts is not None else (self.hosts_per_leaf or 0) * self.leaves


class SingleSwitchFile(_Model):
    """All hosts on one switch."""

    kind: Literal["single-switch"]
    hosts: int = Field(ge=2, le=1024)


class CustomFile(_Model):
    """Any graph: link ends as pairs, each with a class of `links`."""

    kind: Literal["custom"]
    hosts: list[str] = Field(min_length=1, max_length=MAX_NODES)
    switches: list[str] = Field(max_length=MAX_NODES)
    cables: list[tuple[str, str, str]] = Field(description="[end, end, link class]")


class TestbedFile(_Model):
    """A testbed file."""

    __test__ = False
    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    kind: Literal["emulated"]
    topology: LeafSpineFile | SingleSwitchFile | CustomFile = Field(discriminator="kind")
    links: dict[str, LinkFile] = Field(
        description="link class -> what its links are like: host, and fabric where there are spines, or those of cables"
    )
    dilation: int = Field(1000, ge=1, le=1_000_000)
    mtu: int = Field(4200, ge=MIN_MTU, le=MAX_MTU)
    ecmp_seed: int = Field(7, ge=1, le=1 << 30)
    ecmp_hash: Literal["5-tuple", "addresses"] = "5-tuple"
    congestion_control: str = Field("cubic", pattern=r"^[a-z0-9_-]{1,15}$", description="of the hosts' TCP")
    placement: list[str] | None = Field(None, description="rank i runs on placement[i]; default: rank i on host i")

    def testbed(self) -> Testbed:
        """As a core value, checked."""
        nodes, cables = self._graph()
        unused = sorted(self.links.keys() - {cable.klass for cable in cables})
        if unused:
            raise InputError(f"links.{unused[0]} is described, but no link is of that class.", fix="remove it.")
        hosts = [node.name for node in nodes if node.role is Role.HOST]
        return Testbed(
            name=self.name,
            nodes=nodes,
            cables=cables,
            placement=tuple(self.placement or hosts),
            dilation=self.dilation,
            mtu=self.mtu,
            hash_ports=self.ecmp_hash == "5-tuple",
            congestion_control=self.congestion_control,
        )

    def _link(self, klass: str) -> LinkSpec:
        if klass not in self.links:
            raise InputError(f"links of class {klass!r} are used but not described.", fix=f"add links.{klass}.")
        return self.links[klass].spec()

    def _graph(self) -> tuple[tuple[Node, ...], tuple[Cable, ...]]:
        shape = self.topology
        if isinstance(shape, LeafSpineFile):
            return leaf_spine(
                shape.total, shape.leaves, shape.spines, self._link("host"), self._link("fabric"), self.ecmp_seed
            )
        if isinstance(shape, SingleSwitchFile):
            return single_switch(shape.hosts, self._link("host"), self.ecmp_seed)
        nodes = [Node(name, Role.HOST) for name in shape.hosts]
        nodes += [Node(name, Role.SWITCH, self.ecmp_seed + at) for at, name in enumerate(shape.switches)]
        return tuple(nodes), tuple(self._link(klass).cable(a, b, klass) for a, b, klass in shape.cables)


def parse_testbed(content: Any, where: str) -> Testbed:
    """A testbed from the content of its file.

    Raises:
        InputError: names every wrong field.
    """
    try:
        return TestbedFile.model_validate(content).testbed()
    except ValidationError as error:
        raise InputError(
            wrong_fields(error), where=where, fix="testbed/testbed.schema.json describes the file."
        ) from error
    except InputError as error:
        raise InputError(
            error.what, where=f"{where} ({error.where})" if error.where else where, fix=error.fix
        ) from error


def load_testbed(path: Path | str) -> Testbed:
    """Read a testbed file.

    Raises:
        InputError: missing, no YAML, or a wrong field.
    """
    return parse_testbed(read_yaml(path), str(path))


def schema() -> dict[str, Any]:
    """The JSON schema of testbed files."""
    return TestbedFile.model_json_schema()
