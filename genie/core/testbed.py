"""Testbed: the fabric that a replay runs on, as its file declares it. Virtual units; only `dilation` knows real time.

An emulated testbed is a list of nodes and links; the named topologies are shorthands that expand to one.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

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
MAX_WINDOW_BYTES: Final = 16 << 20
PPM: Final = 1_000_000
INTRA_HOST: Final = "intra-host"
"""Class of the modelled links between ranks of one host."""


class Role(StrEnum):
    """What a node is."""

    HOST = "host"
    SWITCH = "switch"


class Spread(StrEnum):
    """How a switch chooses among equal ways: by a flow's hash, or anew for each packet."""

    HASH = "hash"
    PER_PACKET = "per-packet"


class Stack(StrEnum):
    """Where a switch's routes come from: written by Genie, or FRR's routing daemons."""

    STATIC = "static"
    FRR = "frr"


class Endpoint(NamedTuple):
    """Where a rank is: a host, which of its NICs (in the order of its cables), and which place on that NIC.

    Written HOST, HOST/NIC, or HOST/NIC.SLOT.
    """

    host: str
    nic: int = 0
    slot: int = 0

    def __str__(self) -> str:
        slot = f".{self.slot}" if self.slot else ""
        return f"{self.host}/{self.nic}{slot}" if self.nic or slot else self.host


def endpoint_of(name: str | Endpoint) -> Endpoint:
    """A host's name stands for its first NIC."""
    return name if isinstance(name, Endpoint) else Endpoint(name)


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
        ecn_bytes: a port marks packets while its (phantom) queue is longer than this; 0: never.
        loss_ppm: so many packets of a million are lost at random, acknowledgements among them.
    """

    a: str
    b: str
    rate_bps: int
    delay_ns: int
    buffer_bytes: int
    klass: str
    ecn_bytes: int = 0
    loss_ppm: int = 0

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


class LabHost(NamedTuple):
    """A real host: its name, how a launcher reaches it, and the addresses that data is sent to, one a NIC."""

    name: str
    management: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Testbed:
    """An emulated fabric, or a lab: real hosts, of whose network no more is known than their NICs' rates.

    Attributes:
        nodes, cables: the graph; a host has as many NICs as cables.
        placement: rank i runs on host `placement[i]`; the ranks of a host take its NICs in turn.
        dilation: rates are divided, times multiplied by it on the real machine.
        mtu: IP bytes a packet.
        hash_ports: ECMP by addresses and ports (else by addresses only).
        congestion_control: the kernel's name of what the hosts' TCP uses; without losses it makes no difference.
        spread: how switches choose among equal ways.
        stack: where the switches' routes come from.
        configurations: (switch, text of its frr.conf); the others' are generated.
        switch_mtus: (switch, IP bytes that its ports pass), of those that are configured otherwise.
        intra_host: what a rank sends to others on its host goes through (never on the wire); None: one rank a host.
        lab: the hosts of a lab, in the order of the nodes; none: emulated.

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
    spread: Spread = Spread.HASH
    stack: Stack = Stack.STATIC
    configurations: tuple[tuple[str, str], ...] = ()
    switch_mtus: tuple[tuple[str, int], ...] = ()
    intra_host: LinkSpec | None = None
    lab: tuple[LabHost, ...] = ()
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
        self._check_hosts()
        if not self.lab:
            self._check_emulation()
        self._check_configurations()
        self._check_ways()

    def _check_emulation(self) -> None:
        for cable in self.cables:
            self._check_cable(cable)
        self._check_sharing()

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
        if cable.ecn_bytes and not self.mtu <= cable.ecn_bytes < cable.buffer_bytes:
            raise InputError(
                f"an ECN threshold lies between a packet ({self.mtu} bytes) and the buffer ({cable.buffer_bytes}), "
                f"not at {cable.ecn_bytes}.",
                where=where,
            )
        if not 0 <= cable.loss_ppm < PPM:
            raise InputError(f"a loss lies in 0 to 100 %, not at {cable.loss_ppm / PPM:.4%}.", where=where)

    def _link(self, cable: Cable) -> str:
        return f"{self.name}, link {cable.a}-{cable.b}"

    def _check_hosts(self) -> None:
        hosts = set(self.hosts)
        near = self.neighbours()
        for host in self.hosts:
            if not near[host]:
                raise InputError(f"host {host} has no link.", where=self.name)
        for rank, host in enumerate(self.placement):
            if host not in hosts:
                raise InputError(f"rank {rank} is placed on {host}, which is no host.", where=self.name)

    def _check_sharing(self) -> None:
        """Several ranks a host need a link between them, and only they do."""
        if self.crowded and self.intra_host is None:
            raise InputError(
                f"{self.crowded[0]} has several ranks.",
                where=self.name,
                fix="say what is between them: intra_host: { rate: 3600 Gb/s, delay: 500 ns }",
            )
        if self.intra_host is not None and not self.crowded:
            raise InputError("intra_host is described, but no host has several ranks.", where=self.name)
        for cable in self._intra_links().values():
            self._check_cable(cable)

    def _check_configurations(self) -> None:
        switches = {node.name for node in self.nodes if node.role is Role.SWITCH}
        for name, _ in self.configurations:
            if name not in switches:
                raise InputError(f"{name} is given a configuration, but is no switch.", where=self.name)
            if self.stack is not Stack.FRR:
                raise InputError(f"{name} is given a configuration.", where=self.name, fix="add stack: frr")
        for name, mtu in self.switch_mtus:
            if name not in switches or not MIN_MTU <= mtu <= MAX_MTU:
                raise InputError(f"{name} is no switch, or {mtu} no MTU ({MIN_MTU} to {MAX_MTU}).", where=self.name)

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

    @property
    def crowded(self) -> tuple[str, ...]:
        """Hosts with several ranks, in order of their first."""
        return tuple(host for host, ranks in Counter(self.placement).items() if ranks > 1)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where each rank is."""
        near, before, found = self.neighbours(), Counter[str](), []
        for host in self.placement:
            slot, nic = divmod(before[host], len(near[host]))
            found.append(Endpoint(host, nic, slot))
            before[host] += 1
        return tuple(found)

    def neighbours(self) -> dict[str, list[str]]:
        """Who is cabled to whom, in order of the cables."""
        found: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for cable in self.cables:
            found[cable.a].append(cable.b)
            found[cable.b].append(cable.a)
        return found

    def switch_of(self, end: Endpoint) -> str:
        """The node at the other end of a NIC's cable."""
        nics = [cable for cable in self.cables if end.host in (cable.a, cable.b)]
        return nics[end.nic].b if nics[end.nic].a == end.host else nics[end.nic].a

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
        return min(max(MIN_WINDOW_BYTES, fastest_bps * WAKE_UP_NS // (BITS_PER_BYTE * NS_PER_S)), MAX_WINDOW_BYTES)

    def next_hops(self, destination: str | Endpoint, down: frozenset[str] = frozenset()) -> dict[str, list[str]]:
        """For every node, the neighbours on its shortest paths to a host's NIC (through switches only).

        `down`: directed links that do not exist at the moment; a node that they cut off is not told of.
        """
        end = endpoint_of(destination)
        near, hosts = self.neighbours(), set(self.hosts)
        distance = {end.host: 0}
        queue = deque([end.host])
        while queue:
            at = queue.popleft()
            if at in hosts and at != end.host:
                continue
            for neighbour in [near[at][end.nic]] if at == end.host else near[at]:
                if neighbour not in distance and link_name(neighbour, at) not in down:
                    distance[neighbour] = distance[at] + 1
                    queue.append(neighbour)
        passing = (distance.keys() - hosts) | {end.host}
        return {
            node: [
                n
                for n in near[node]
                if n in passing and distance[n] == distance[node] - 1 and link_name(node, n) not in down
            ]
            for node in distance
            if node != end.host
        }

    def route(self, source: str | Endpoint, destination: str | Endpoint, choose: Chooser) -> tuple[str, ...]:
        """Names of the directed links from host to host, given what is chosen where there are equal ways.

        Raises:
            RunError: a choice that is not on a shortest way.
        """
        return self.follow(self.next_hops(destination), source, destination, choose)

    def follow(
        self, hops: dict[str, list[str]], source: str | Endpoint, destination: str | Endpoint, choose: Chooser
    ) -> tuple[str, ...]:
        """The same, given the destination's `next_hops`; a host's NIC has one way out.

        Raises:
            RunError: a choice that is not on a shortest way.
        """
        start, end = endpoint_of(source), endpoint_of(destination)
        if start.host == end.host:
            return (link_name(str(start), start.host),)
        at = self.switch_of(start)
        way = [link_name(start.host, at)]
        while at != end.host:
            hop = choose(at, hops[at])
            if hop not in hops[at]:
                raise RunError(f"{at} sends to {hop}, which is on no shortest way to {end.host}.", where=self.name)
            way.append(link_name(at, hop))
            at = hop
        return tuple(way)

    def links(self) -> dict[str, Cable]:
        """Directed link name -> its cable; those between ranks of one host, too."""
        cables = {cable.direction(end): cable for cable in self.cables for end in (cable.a, cable.b)}
        return cables | self._intra_links()

    def _intra_links(self) -> dict[str, Cable]:
        """For each rank that shares its host, the modelled link through which it sends to the others there."""
        if self.intra_host is None:
            return {}
        shared = set(self.crowded)
        return {
            link_name(str(end), end.host): self.intra_host.cable(str(end), end.host, INTRA_HOST)
            for end in self.endpoints
            if end.host in shared
        }


def fabric_links(testbed: Testbed) -> tuple[DirectedLink, ...]:
    """Both directions of every cable, in the order of the cables; then the links between ranks of one host."""
    return tuple(
        DirectedLink(name, source, there, cable.rate_bps, cable.delay_ns, cable.buffer_bytes, cable.klass)
        for name, cable in testbed.links().items()
        for source, there in (name.split(">"),)
    )


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """What the cables of one class are like (virtual units; see Cable)."""

    rate_bps: int
    delay_ns: int
    buffer_bytes: int
    ecn_bytes: int = 0
    loss_ppm: int = 0

    def cable(self, a: str, b: str, klass: str) -> Cable:
        """A cable of this kind."""
        return Cable(a, b, self.rate_bps, self.delay_ns, self.buffer_bytes, klass, self.ecn_bytes, self.loss_ppm)


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
