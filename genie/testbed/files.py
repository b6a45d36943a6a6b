"""Testbed files (YAML) -> Testbed. The schema is published as testbed/testbed.schema.json."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from genie.core.testbed import MAX_MTU, MIN_MTU, Cable, LinkSpec, Role, Spread, Stack, Testbed
from genie.errors import InputError
from genie.formats.textfile import read_text, read_yaml, wrong_fields
from genie.testbed.lab import LabFile, is_lab, parse_lab
from genie.testbed.shapes import Duration, Model, Rate, Shape, Share, Size

MAX_RANKS_PER_HOST = 64
DEFAULT_BUFFER_BYTES = 4 << 20


class LinkFile(Model):
    """One class of links: rate of full packets' payload, one-way delay, and of a port: buffer, ECN threshold, loss."""

    rate: Rate | None = Field(None, description="may be missing only where oversubscription says it")
    delay: Duration = 0
    buffer: Size = DEFAULT_BUFFER_BYTES
    ecn: Size = Field(0, description="mark packets while the queue is longer than this; missing: never")
    loss: Share = Field(0, description="of all packets, at random")

    def spec(self, rate_bps: int) -> LinkSpec:
        """As a core value."""
        return LinkSpec(rate_bps, self.delay, self.buffer, self.ecn, self.loss)


class CableFile(Model):
    """What one cable has that its class has not."""

    rate: Rate | None = None
    delay: Duration | None = None
    buffer: Size | None = None
    ecn: Size | None = None
    loss: Share | None = None

    def change(self, cable: Cable) -> Cable:
        """The cable with that; it becomes a class of its own, since cables of a class are fitted together."""
        told = {
            "rate_bps": self.rate,
            "delay_ns": self.delay,
            "buffer_bytes": self.buffer,
            "ecn_bytes": self.ecn,
            "loss_ppm": self.loss,
        }
        changes: dict[str, Any] = {key: value for key, value in told.items() if value is not None}
        return replace(cable, klass=f"{cable.a}-{cable.b}", **changes)


class IntraHostFile(Model):
    """What is between ranks of one host (NVLink and the like): each sends at this rate, never on the wire."""

    rate: Rate
    delay: Duration = 0

    def spec(self) -> LinkSpec:
        """As a core value."""
        return LinkSpec(self.rate, self.delay, 64 << 20)


class TestbedFile(Model):
    """A testbed file."""

    __test__ = False
    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    kind: Literal["emulated"]
    topology: Shape = Field(discriminator="kind")
    links: dict[str, LinkFile] = Field(
        description="link class -> what its links are like: host, fabric (leaf-spine), core (spine-core), bottleneck, "
        "or those that a custom topology's cables name"
    )
    cables: dict[str, CableFile] = Field(
        default_factory=dict, description='"END-END" -> what that one cable has other than its class'
    )
    dilation: int = Field(1000, ge=1, le=1_000_000)
    mtu: int = Field(4200, ge=MIN_MTU, le=MAX_MTU)
    ecmp: Spread = Field(Spread.HASH, description="how switches choose among equal ways")
    ecmp_seed: int = Field(7, ge=1, le=1 << 30)
    ecmp_hash: Literal["5-tuple", "addresses"] = "5-tuple"
    stack: Stack = Field(Stack.STATIC, description="where the switches' routes come from; frr needs Debian's package")
    switch_config: dict[str, str] = Field(
        default_factory=dict, description="switch -> its frr.conf, relative to this file; the others' are generated"
    )
    switch_mtu: dict[str, int] = Field(
        default_factory=dict, description="switch -> MTU of its ports where it is not mtu: what would go wrong then?"
    )
    congestion_control: str = Field("cubic", pattern=r"^[a-z0-9_-]{1,15}$", description="of the hosts' TCP")
    ranks_per_host: int = Field(1, ge=1, le=MAX_RANKS_PER_HOST)
    intra_host: IntraHostFile | None = Field(None, description="needed where a host has several ranks")
    placement: list[str] | None = Field(
        None, description="rank i runs on placement[i]; default: the first ranks_per_host ranks on the first host, ..."
    )

    def testbed(self, folder: Path) -> Testbed:
        """As a core value, checked; paths are relative to `folder`."""
        nodes, cables = self.topology.graph(self._link, self.ecmp_seed)
        unused = sorted(self.links.keys() - {cable.klass for cable in cables})
        if unused:
            raise InputError(f"links.{unused[0]} is described, but no link is of that class.", fix="remove it.")
        hosts = [node.name for node in nodes if node.role is Role.HOST]
        return Testbed(
            name=self.name,
            nodes=nodes,
            cables=tuple(self._changed(cables)),
            placement=self._placement(hosts),
            dilation=self.dilation,
            mtu=self.mtu,
            hash_ports=self.ecmp_hash == "5-tuple",
            congestion_control=self.congestion_control,
            spread=self.ecmp,
            switch_mtus=tuple(self.switch_mtu.items()),
            stack=self.stack,
            configurations=tuple((name, read_text(folder / path)) for name, path in self.switch_config.items()),
            intra_host=self.intra_host.spec() if self.intra_host else None,
        )

    def _placement(self, hosts: list[str]) -> tuple[str, ...]:
        if self.placement is None:
            return tuple(host for host in hosts for _ in range(self.ranks_per_host))
        if self.ranks_per_host > 1:
            raise InputError("placement and ranks_per_host are both given.", fix="remove one of them.")
        return tuple(self.placement)

    def _link(self, klass: str, rate_bps: int | None = None) -> LinkSpec:
        """What links of a class are like; their rate is the file's, or else the one that follows from a ratio."""
        if klass not in self.links:
            raise InputError(f"links of class {klass!r} are used but not described.", fix=f"add links.{klass}.")
        told_bps = self.links[klass].rate
        if told_bps is not None and rate_bps is not None:
            raise InputError(f"oversubscription gives the rate of links.{klass}.", fix="remove one of the two.")
        rate_bps = told_bps if rate_bps is None else rate_bps
        if rate_bps is None:
            raise InputError(f"links.{klass}.rate is missing.", fix='add it, such as rate: "200 Gb/s".')
        return self.links[klass].spec(rate_bps)

    def _changed(self, cables: Iterable[Cable]) -> list[Cable]:
        """The cables, with what the file says about some of them by name."""
        left, changed = dict(self.cables), []
        for cable in cables:
            told = left.pop(f"{cable.a}-{cable.b}", None) or left.pop(f"{cable.b}-{cable.a}", None)
            changed.append(told.change(cable) if told else cable)
        if left:
            raise InputError(f"cables.{min(left)} is described, but there is no such cable.", fix="genie testbed show")
        return changed


def parse_testbed(content: Any, where: str, folder: Path = Path(), *, labs: bool = False) -> Testbed:
    """A testbed from the content of its file; paths in it are relative to `folder`; `labs`: whether it may be one.

    Raises:
        InputError: names every wrong field.
    """
    if is_lab(content) and labs:
        return parse_lab(content, where).testbed()
    if is_lab(content):
        raise InputError(
            "is a lab; only an emulated testbed can be brought up.",
            where=where,
            fix="genie testbed show tells of a lab.",
        )
    try:
        return TestbedFile.model_validate(content).testbed(folder)
    except ValidationError as error:
        raise InputError(
            wrong_fields(error), where=where, fix="testbed/testbed.schema.json describes the file."
        ) from error
    except InputError as error:
        raise InputError(
            error.what, where=f"{where} ({error.where})" if error.where else where, fix=error.fix
        ) from error


def load_testbed(path: Path | str, *, labs: bool = False) -> Testbed:
    """Read a testbed file; `labs`: whether it may be a lab's.

    Raises:
        InputError: missing, no YAML, or a wrong field.
    """
    return parse_testbed(read_yaml(path), str(path), Path(path).parent, labs=labs)


def schema() -> dict[str, Any]:
    """The JSON schema of testbed files, of both kinds."""
    both: TypeAdapter[Any] = TypeAdapter(Annotated[TestbedFile | LabFile, Field(discriminator="kind")])
    return both.json_schema()
