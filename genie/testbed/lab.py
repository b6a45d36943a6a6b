"""Lab inventories: real hosts, their NICs and switches, as a file declares them (`kind: lab`)."""

from __future__ import annotations

import ipaddress
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from genie.core.testbed import MAX_MTU, MAX_NODES, MIN_MTU, Cable, LabHost, LinkSpec, Node, Role, Testbed
from genie.errors import InputError
from genie.formats.textfile import read_yaml, wrong_fields
from genie.testbed.shapes import Model, Rate

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$"
MAX_RANKS_PER_HOST = 1024
NETWORK = "network"
BUFFER_BYTES = 4 << 20
INSIDE_BPS = 100_000_000_000
"""What ranks of one host are expected to send each other, until a fit knows better."""


def _address(text: str) -> str:
    return str(ipaddress.ip_address(text))


Address = Annotated[str, AfterValidator(_address)]


class NicFile(Model):
    """A host's NIC: `netdev` as Linux calls it, its RDMA device, and the address that data is sent to."""

    netdev: str | None = Field(None, pattern=r"^[^\s/]{1,15}$")
    rdma: str | None = Field(None, pattern=r"^[A-Za-z0-9_.-]{1,63}$")
    address: Address | None = None
    rate: Rate = Field(100_000_000_000, description="of its port; bounds what predictions expect")


class HostFile(Model):
    """A host: `management` is how a launcher reaches it, a name or an address."""

    name: str = Field(pattern=NAME)
    management: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,252}$")
    nics: list[NicFile] = Field(default_factory=list, max_length=64)
    ranks: int = Field(1, ge=0, le=MAX_RANKS_PER_HOST, description="how many ranks run here, if placement is not given")


class SwitchFile(Model):
    """A switch, and how its counters are read."""

    name: str = Field(pattern=NAME)
    vendor: str | None = None
    management: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,252}$")
    counters: Literal["gnmi", "snmp", "ssh", "none"] = "none"


class LabFile(Model):
    """A lab: hosts, switches, cabling where it is known ("node" or "node:port" at each end), and where ranks run."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    kind: Literal["lab"]
    hosts: list[HostFile] = Field(min_length=1, max_length=MAX_NODES)
    switches: list[SwitchFile] = Field(default_factory=list, max_length=MAX_NODES)
    cabling: list[tuple[str, str]] = Field(default_factory=list)
    mtu: int = Field(1500, ge=MIN_MTU, le=MAX_MTU, description="IP bytes that every path carries")
    placement: list[str] | None = Field(None, description="rank i runs on placement[i]; default: each host's `ranks`")

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        names = [host.name for host in self.hosts] + [switch.name for switch in self.switches]
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise ValueError(f"two nodes are called {twice[0]}")
        used = Counter(nic.address for host in self.hosts for nic in host.nics if nic.address)
        shared = [address for address, count in used.items() if count > 1]
        if shared:
            raise ValueError(f"two NICs have the address {shared[0]}")
        for end in (end for cable in self.cabling for end in cable):
            if end.partition(":")[0] not in names:
                raise ValueError(f"cabling names {end}, which is no node")
        hosts = {host.name for host in self.hosts}
        for rank, host in enumerate(self.placement or ()):
            if host not in hosts:
                raise ValueError(f"rank {rank} is placed on {host}, which is no host")
        if not self.ranks:
            raise ValueError("no host runs a rank")
        return self

    @property
    def ranks(self) -> tuple[str, ...]:
        """Name of each rank's host."""
        if self.placement is not None:
            return tuple(self.placement)
        return tuple(host.name for host in self.hosts for _ in range(host.ranks))

    def testbed(self) -> Testbed:
        """As a core value: every NIC is on one network that is never full, since of the real one nothing is known.

        Raises:
            InputError: a host that runs ranks has no NIC with an address.
        """
        hosts = [host for host in self.hosts if host.name in set(self.ranks)]
        for host in hosts:
            if not any(nic.address for nic in host.nics):
                raise InputError("runs ranks, but no NIC of it has an address.", where=f"{self.name}, host {host.name}")
        nodes = [Node(host.name, Role.HOST) for host in hosts] + [Node(NETWORK, Role.SWITCH)]
        cables = [
            Cable(host.name, NETWORK, nic.rate, 0, BUFFER_BYTES, "host") for host in hosts for nic in host.nics[:1]
        ]
        known = tuple(
            LabHost(host.name, host.management, tuple(nic.address for nic in host.nics if nic.address))
            for host in hosts
        )
        crowded = len(set(self.ranks)) < len(self.ranks)
        inside = LinkSpec(INSIDE_BPS, 0, BUFFER_BYTES) if crowded else None
        return Testbed(
            self.name, tuple(nodes), tuple(cables), self.ranks, dilation=1, mtu=self.mtu, intra_host=inside, lab=known
        )

    def about(self) -> dict[str, Any]:
        """Plain facts, for tables and JSON."""
        return {
            "name": self.name,
            "kind": "lab",
            "hosts": len(self.hosts),
            "switches": len(self.switches),
            "placement": list(self.ranks),
            "links": [{"a": a, "b": b} for a, b in self.cabling],
        }


def parse_lab(content: Any, where: str) -> LabFile:
    """A lab from the content of its file.

    Raises:
        InputError: names every wrong field.
    """
    try:
        return LabFile.model_validate(content)
    except ValidationError as error:
        raise InputError(
            wrong_fields(error), where=where, fix="testbed/testbed.schema.json describes the file."
        ) from error


def is_lab(content: Any) -> bool:
    """Whether a testbed file's content says that it is a lab."""
    return isinstance(content, dict) and content.get("kind") == "lab"


def load_lab(path: Path | str) -> LabFile:
    """Read a lab's file.

    Raises:
        InputError: missing, no YAML, or a wrong field.
    """
    return parse_lab(read_yaml(path), str(path))
