"""Testbed: the fabric that a replay runs on, as its file declares it. Virtual units; only `dilation` knows real time.

An emulated testbed is a list of nodes and links; the named topologies are shorthands that expand to one.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from genie.errors import InputError, RunError
from genie.units import BITS_PER_BYTE, NS_PER_S, bps_to_gigabits

MIN_REAL_BPS: Final = 1_000_000
MAX_REAL_BPS: Final = 10_000_000_000
MIN_MTU: Final = 1280
MAX_MTU: Final = 65_000
MAX_BUFFER_BYTES: Final = 1 << 30
MAX_DELAY_NS: Final = NS_PER_S
MAX_NODES: Final = 4096
MAX_CABLES: Final = 1 << 22
"""Each has four addresses of 10.0.0.0/8."""

Chooser = Callable[[str, Sequence[str]], str]
"""(node, its equally near next hops) -> the one that a flow takes."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
ETHERNET_BYTES: Final = 14
"""What the kernel's shapers charge for each packet on top of its IP bytes."""

TCP_IP_BYTES: Final = 52
"""IPv4 and TCP headers with time stamps."""

WAKE_UP_NS: Final = 5_000_000
"""Real time for which a busy machine may leave a host's process waiting for a processor."""

MIN_WINDOW_BYTES: Final = 128 << 10


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
        return link_name(source, self.b if source == self.a else self.a)


@dataclass(frozen=True, slots=True)
class DirectedLink:
    """One direction of a cable (virtual units)."""

    name: str
    source: str
    destination: str
    rate_bps: int
    delay_ns: int
    buffer_bytes: int
    klass: str


def link_name(source: str, destination: str) -> str:
    """What the direction of a cable from `source` to `destination` is called."""
    return f"{source}>{destination}"


@dataclass(frozen=True, slots=True)
class Testbed:
    """An emulated fabric.

    Attributes:
        nodes, cables: the graph; every host has exactly one cable.
        placement: rank i runs on host `placement[i]`.
        dilation: rates are divided, times multiplied by it on the real machine.
        mtu: IP bytes a packet.
        hash_ports: ECMP by addresses and ports (else by addresses only).
        congestion_control: the kernel's name of what the hosts' TCP uses; without losses it makes no difference.

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
    congestion_control: str = "cubic"
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        self._check_nodes()
        if self.dilation < 1:
            raise InputError(f"dilation must be at least 1, not {self.dilation}.", where=self.name)
        if not MIN_MTU <= self.mtu <= MAX_MTU:
            raise InputError(f"mtu must lie in {MIN_MTU} to {MAX_MTU}, not {self.mtu}.", where=self.name)
        names = {node.name for node in self.nodes}
        for cable in self.cables:
            self._check_ends(cable, names)
            self._check_cable(cable)
        self._check_hosts()
        self._check_ways()

    def _check_nodes(self) -> None:
        if len(self.nodes) > MAX_NODES or len(self.cables) > MAX_CABLES:
            raise InputError(f"more than {MAX_NODES} nodes or {MAX_CABLES} links.", where=self.name)
        for node in self.nodes:
            if not _NAME.fullmatch(node.name):
                raise InputError(
                    f"{node.name!r} is no name.", where=self.name, fix="use letters, digits, dots, dashes: up to 63."
                )
        for what, count in (
            ("nodes are called", Counter(node.name for node in self.nodes)),
            ("links join", Counter("-".join(sorted((cable.a, cable.b))) for cable in self.cables)),
        ):
            twice = [name for name, times in count.items() if times > 1]
            if twice:
                raise InputError(f"two {what} {twice[0]}.", where=self.name)

    def _check_ends(self, cable: Cable, names: set[str]) -> None:
        if cable.a == cable.b or not {cable.a, cable.b} <= names:
            raise InputError("a link joins two different nodes of the testbed.", where=self._link(cable))

    def _check_cable(self, cable: Cable) -> None:
        where = self._link(cable)
        real_bps = cable.rate_bps // self.dilation
        if not MIN_REAL_BPS <= real_bps <= MAX_REAL_BPS:
            raise InputError(
                f"{bps_to_gigabits(cable.rate_bps):g} Gb/s at dilation {self.dilation} is {real_bps:,} bit/s for real; "
                f"the shaper is true from {MIN_REAL_BPS:,} to {MAX_REAL_BPS:,}.",
                where=where,
                fix="change the rate or the dilation.",
            )
        if not 2 * self.mtu <= cable.buffer_bytes <= MAX_BUFFER_BYTES:
            raise InputError(
                f"a buffer has from two packets ({2 * self.mtu} bytes) to {MAX_BUFFER_BYTES} bytes, "
                f"not {cable.buffer_bytes}.",
                where=where,
            )
        if not 0 <= cable.delay_ns <= MAX_DELAY_NS:
            raise InputError(f"a delay lies in 0 to {MAX_DELAY_NS} ns, not {cable.delay_ns}.", where=where)

    def _link(self, cable: Cable) -> str:
        return f"{self.name}, link {cable.a}-{cable.b}"

    def _check_hosts(self) -> None:
        hosts = set(self.hosts)
        near = self.neighbours()
        for host in self.hosts:
            if len(near[host]) != 1:
                raise InputError(f"host {host} has {len(near[host])} links; exactly one is supported.", where=self.name)
        for rank, host in enumerate(self.placement):
            if host not in hosts:
                raise InputError(f"rank {rank} is placed on {host}, which is no host.", where=self.name)
        crowded = [host for host, ranks in Counter(self.placement).items() if ranks > 1]
        if crowded:
            raise InputError(f"{crowded[0]} has several ranks; one a host is supported.", where=self.name)

    def _check_ways(self) -> None:
        """Every host reaches every other: else a run would only find out by waiting."""
        if not self.hosts:
            raise InputError("there is no host.", where=self.name)
        reached = self.next_hops(self.hosts[0])
        lost = [host for host in self.hosts[1:] if host not in reached]
        if lost:
            raise InputError(f"there is no way from {lost[0]} to {self.hosts[0]}.", where=self.name)

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

    @property
    def window_bytes(self) -> int:
        """What one connection should have in flight so that the shaper, not the window, sets its pace.

        That is what the fastest host link carries while a process waits for a processor.
        """
        hosts = set(self.hosts)
        fastest_bps = max(self.wire_bps(cable) for cable in self.cables if cable.a in hosts or cable.b in hosts)
        return max(MIN_WINDOW_BYTES, fastest_bps * WAKE_UP_NS // (BITS_PER_BYTE * NS_PER_S))

    def next_hops(self, destination: str) -> dict[str, list[str]]:
        """For every node, the neighbours on its shortest paths to a host (through switches only)."""
        near, hosts = self.neighbours(), set(self.hosts)
        distance = {destination: 0}
        queue = deque([destination])
        while queue:
            at = queue.popleft()
            if at in hosts and at != destination:
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

    def route(self, source: str, destination: str, choose: Chooser) -> tuple[str, ...]:
        """Names of the directed links from host to host, given what is chosen where there are equal ways.

        Raises:
            RunError: a choice that is not on a shortest way.
        """
        hops, at, way = self.next_hops(destination), source, []
        while at != destination:
            hop = choose(at, hops[at])
            if hop not in hops[at]:
                raise RunError(f"{at} sends to {hop}, which is on no shortest way to {destination}.", where=self.name)
            way.append(link_name(at, hop))
            at = hop
        return tuple(way)

    def links(self) -> dict[str, Cable]:
        """Directed link name -> its cable."""
        return {cable.direction(end): cable for cable in self.cables for end in (cable.a, cable.b)}


def fabric_links(testbed: Testbed) -> tuple[DirectedLink, ...]:
    """Both directions of every cable, in the order of the cables."""
    return tuple(
        DirectedLink(link_name(a, b), a, b, cable.rate_bps, cable.delay_ns, cable.buffer_bytes, cable.klass)
        for cable in testbed.cables
        for a, b in ((cable.a, cable.b), (cable.b, cable.a))
    )


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
