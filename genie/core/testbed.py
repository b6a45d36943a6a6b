"""Testbed: the fabric that a replay runs on, as its file declares it. Virtual units; only `dilation` knows real time.

An emulated testbed is a list of nodes and links; the named topologies are shorthands that expand to one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from genie.errors import InputError
from genie.units import bps_to_gigabits

MIN_REAL_BPS: Final = 1_000_000
MAX_REAL_BPS: Final = 10_000_000_000
MIN_MTU: Final = 1280
MAX_MTU: Final = 65_000
ETHERNET_BYTES: Final = 14
"""What the kernel's shapers charge for each packet on top of its IP bytes."""

TCP_IP_BYTES: Final = 52
"""IPv4 and TCP headers with time stamps."""


class Role(StrEnum):
    """What a node is."""

    HOST = "host"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Node:
    """A host or switch; `seed` is a switch's ECMP hash seed."""

    name: str
    role: Role
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Cable:
    """A cable between two nodes, alike in both directions.

    Attributes:
        rate_bps: payload rate of full packets, virtual (see `Testbed.wire_bps`).
        delay_ns: one way, virtual; added at the receiving endpoint.
        buffer_bytes: of the port at each end.
        klass: cables of one class are fitted together.
    """

    a: str
    b: str
    rate_bps: int
    delay_ns: int
    buffer_bytes: int
    klass: str

    def direction(self, source: str) -> str:
        """Name of the directed link that leaves `source`."""
        return f"{source}>{self.b if source == self.a else self.a}"


@dataclass(frozen=True, slots=True)
class Testbed:
    """An emulated fabric.

    Attributes:
        nodes, cables: the graph; every host has exactly one cable.
        placement: rank i runs on host `placement[i]`.
        dilation: rates are divided, times multiplied by it on the real machine.
        mtu: IP bytes a packet.
        hash_ports: ECMP by addresses and ports (else by addresses only).

    Raises:
        InputError: names that repeat or are unknown, a host without a way, a rate or size that cannot be emulated.
    """

    name: str
    nodes: tuple[Node, ...]
    cables: tuple[Cable, ...]
    placement: tuple[str, ...]
    dilation: int = 1000
    mtu: int = 4200
    hash_ports: bool = True
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        if len(set(names)) != len(names):
            raise InputError("two nodes have one name.", where=self.name)
        if self.dilation < 1:
            raise InputError(f"dilation must be at least 1, not {self.dilation}.", where=self.name)
        if not MIN_MTU <= self.mtu <= MAX_MTU:
            raise InputError(f"mtu must lie in {MIN_MTU} to {MAX_MTU}, not {self.mtu}.", where=self.name)
        for cable in self.cables:
            self._check_cable(cable, set(names))
        self._check_hosts()

    def _check_cable(self, cable: Cable, names: set[str]) -> None:
        where = f"{self.name}, link {cable.a}-{cable.b}"
        if cable.a == cable.b or not {cable.a, cable.b} <= names:
            raise InputError("a link joins two different nodes of the testbed.", where=where)
        real_bps = cable.rate_bps // self.dilation
        if not MIN_REAL_BPS <= real_bps <= MAX_REAL_BPS:
            raise InputError(
                f"{bps_to_gigabits(cable.rate_bps):g} Gb/s at dilation {self.dilation} is {real_bps:,} bit/s for real; "
                f"the shaper is true from {MIN_REAL_BPS:,} to {MAX_REAL_BPS:,}.",
                where=where,
                fix="change the rate or the dilation.",
            )
        if cable.buffer_bytes < 2 * self.mtu:
            raise InputError(f"a buffer of {cable.buffer_bytes} bytes holds no two packets.", where=where)
        if cable.delay_ns < 0:
            raise InputError("a delay cannot be negative.", where=where)

    def _check_hosts(self) -> None:
        hosts = {node.name for node in self.nodes if node.role is Role.HOST}
        for host in hosts:
            count = sum(host in {cable.a, cable.b} for cable in self.cables)
            if count != 1:
                raise InputError(f"host {host} has {count} links; exactly one is supported.", where=self.name)
        strangers = [host for host in self.placement if host not in hosts]
        if strangers:
            raise InputError(f"ranks are placed on {strangers[0]}, which is no host.", where=self.name)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts, in order."""
        return tuple(node.name for node in self.nodes if node.role is Role.HOST)

    def neighbours(self) -> dict[str, list[str]]:
        """Who is cabled to whom, in order of the cables."""
        found: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for cable in self.cables:
            found[cable.a].append(cable.b)
            found[cable.b].append(cable.a)
        return found

    def wire_bps(self, cable: Cable) -> int:
        """Real rate at which the shaper lets whole Ethernet frames pass, so that *payload* passes at `rate_bps`.

        A TCP segment of a full packet carries mtu - 52 bytes in mtu + 14 bytes of frame.
        """
        framing = (self.mtu + ETHERNET_BYTES) / (self.mtu - TCP_IP_BYTES)
        return round(cable.rate_bps / self.dilation * framing)

    def next_hops(self, destination: str) -> dict[str, list[str]]:
        """For every node, the neighbours on its shortest paths to a host (through switches only)."""
        near, roles = self.neighbours(), {node.name: node.role for node in self.nodes}
        distance = {destination: 0}
        queue = deque([destination])
        while queue:
            at = queue.popleft()
            if roles[at] is Role.HOST and at != destination:
                continue
            for neighbour in near[at]:
                if neighbour not in distance:
                    distance[neighbour] = distance[at] + 1
                    queue.append(neighbour)
        return {
            node: [n for n in near[node] if distance.get(n, 1 << 30) == distance[node] - 1]
            for node in distance
            if node != destination
        }

    def links(self) -> dict[str, Cable]:
        """Directed link name -> its cable."""
        return {cable.direction(end): cable for cable in self.cables for end in (cable.a, cable.b)}


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """What the cables of one class are like (virtual units)."""

    rate_bps: int
    delay_ns: int
    buffer_bytes: int

    def cable(self, a: str, b: str, klass: str) -> Cable:
        """A cable of this kind."""
        return Cable(a, b, self.rate_bps, self.delay_ns, self.buffer_bytes, klass)


def leaf_spine(
    hosts: int, leaves: int, spines: int, host: LinkSpec, fabric: LinkSpec, seed: int
) -> tuple[tuple[Node, ...], tuple[Cable, ...]]:
    """Hosts spread evenly over leaves (the first hosts on the first leaf), every leaf on every spine.

    Raises:
        InputError: hosts that do not divide evenly, or a count below one.
    """
    if min(hosts, leaves, spines) < 1 or hosts % leaves:
        raise InputError(f"{hosts} hosts cannot be spread evenly over {leaves} leaves and {spines} spines.")
    per_leaf = hosts // leaves
    nodes = [Node(f"h{i}", Role.HOST) for i in range(hosts)]
    nodes += [Node(f"leaf{i}", Role.SWITCH, seed + i) for i in range(leaves)]
    nodes += [Node(f"spine{i}", Role.SWITCH, seed + leaves + i) for i in range(spines)]
    cables = [host.cable(f"h{i}", f"leaf{i // per_leaf}", "host") for i in range(hosts)]
    cables += [fabric.cable(f"leaf{i}", f"spine{k}", "fabric") for i in range(leaves) for k in range(spines)]
    return tuple(nodes), tuple(cables)


def single_switch(hosts: int, host: LinkSpec, seed: int) -> tuple[tuple[Node, ...], tuple[Cable, ...]]:
    """All hosts on one switch."""
    nodes = [Node(f"h{i}", Role.HOST) for i in range(hosts)]
    return (*nodes, Node("switch0", Role.SWITCH, seed)), tuple(
        host.cable(f"h{i}", "switch0", "host") for i in range(hosts)
    )
