"""An emulated fabric: a namespace a node, a veth pair a cable, every direction of every cable shaped.

Acknowledgements and other packets under 256 bytes have a strict class of their own on every port, the hosts' included;
docs/testbed.md says what happens without.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Self

from genie.core.testbed import Cable, Endpoint, Node, Role, Spread, Stack, Testbed, endpoint_of, link_name
from genie.errors import NotReadyError, RunError
from genie.testbed import netlink
from genie.testbed.addressing import PREFIX, Port, addresses, mac, ports
from genie.testbed.bpf import EGRESS, INGRESS, Marker, attach, loser, sprayer
from genie.testbed.counters import count
from genie.testbed.frr import Frr, configuration
from genie.testbed.namespaces import create, inside, set_namespace
from genie.testbed.netlink import Conversation, End, Request
from genie.testbed.routes import FlowKey, egress
from genie.testbed.routing import Gap, converge, gaps, read_table, wanted_hops
from genie.testbed.shaping import Shape, shape, shape_loopback

READY_TIMEOUT_S: Final = 5.0
SUPER_PACKET_SEGMENTS: Final = 4
"""The shaper lets a super-packet of any size pass at once and charges for it afterwards, so the last one of a message
is early by its length: keep it short."""

HOST_QUEUE_BYTES: Final = 64 << 20
"""A host's own queue never drops: its transport waits instead."""

_LOOPBACK_INDEX: Final = 1
_FIRST_NIC_TABLE: Final = 100
_WHOLE: Final = 32
_OPERSTATE_UP: Final = 6
_TABLE_AT: Final = 4
"""Where a route's message has its table."""

_MULTIPATH_BY_PACKETS_HASH, _MULTIPATH_BY_CHOSEN_FIELDS = 1, 3
_FIVE_TUPLE: Final = 0x01 | 0x02 | 0x04 | 0x10 | 0x20
"""Addresses, protocol and ports. (Policy 1 hashes the same, but believes the random hash that the kernel's own TCP puts
on its packets, so that a TCP flow's path would change from run to run and could not be looked up.)"""

_ANYWHERE: Final = ("0.0.0.0", 0)  # noqa: S104 - the default route, not a socket

_SHOWN_GAPS: Final = 3
_RTAX_INITCWND, _RTAX_INITRWND, _RTAX_CC_ALGO = 11, 14, 16
_SPRAYED: Final = "switches choose a way for each packet: a flow's recorded path is one of those that its packets take."
_NO_SEED: Final = (
    "this kernel cannot be given ECMP hash seeds (Linux 6.11 can): paths are looked up, but change from boot to boot."
)


class EmulatedFabric:
    """Brings a testbed up in namespaces, enters hosts, looks routes up, counts, takes it all down.

    All namespaces are anonymous: they vanish with this object, or with this process however it ends.

    Attributes:
        testbed: what was asked for.
        strict: routing daemons that do not find all ways are an error.
        frr: FRR, where the testbed's switches run it.
        notes: what this kernel could not do as asked, in sentences.
        super_packet_segments: most packets that leave a port as one.
    """

    super_packet_segments = SUPER_PACKET_SEGMENTS

    def __init__(self, testbed: Testbed, *, strict: bool = True) -> None:
        self.testbed, self.strict = testbed, strict
        self.frr: Frr | None = None
        self._markers: dict[str, Marker] = {}
        self._descriptors: list[int] = []
        self._mtus = dict(testbed.switch_mtus)
        self._frr_routes = testbed.stack is Stack.FRR
        self.notes: tuple[str, ...] = ()
        self._hosts, self._window_bytes = frozenset(testbed.hosts), testbed.window_bytes
        self._namespaces: dict[str, int] = {}
        self._conversations: dict[str, Conversation] = {}
        self._ports: dict[str, list[Port]] = {node.name: [] for node in testbed.nodes}
        found = ports(testbed)
        for port in found:
            self._ports[port.node].append(port)
        self._ends = addresses(testbed, found)
        self._towards = {(port.node, port.peer): port for row in self._ports.values() for port in row}
        self._behind = {(port.node, port.index): port.peer for row in self._ports.values() for port in row}

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def up(self) -> None:
        """Build everything and wait until every port carries traffic.

        Raises:
            NotReadyError: no permission, or the kernel lacks something: names it.
        """
        try:
            self._build()
        except OSError as error:
            self.close()
            what = f"{error.filename}: " if error.filename else ""
            raise NotReadyError(
                f"the fabric could not be built: {what}{error.strerror}.",
                where=self.testbed.name,
                fix="genie doctor tells what this machine can do.",
            ) from error
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        for node in self.testbed.nodes:
            self._create(node)
        for name, conversation in self._conversations.items():
            conversation.say(self._cables(name))
        for name, conversation in self._conversations.items():
            conversation.say(self._configuration(name))
        for name, conversation in self._conversations.items():
            conversation.say(self._programs(name))
        self._wait_until_up()
        routes = self._routes()
        for name, conversation in self._conversations.items():
            conversation.say(routes[name])
        if self._frr_routes:
            self._start_frr()

    def close(self) -> None:
        """Take it down; may be called twice."""
        if self.frr is not None:
            self.frr.close()
            self.frr = None
        for marker in self._markers.values():
            marker.close()
        for fd in self._descriptors:
            os.close(fd)
        self._markers, self._descriptors = {}, []
        for conversation in self._conversations.values():
            conversation.close()
        for fd in self._namespaces.values():
            os.close(fd)
        self._conversations, self._namespaces = {}, {}

    def namespace_fd(self, node: str | Endpoint) -> int:
        """Descriptor of a node's namespace."""
        return self._namespaces[endpoint_of(node).host]

    def conversation(self, node: str) -> Conversation:
        """A routing socket of a node's namespace."""
        return self._conversations[node]

    def ports_of(self, node: str) -> list[Port]:
        """A node's ends of its cables."""
        return list(self._ports[node])

    def nics(self) -> dict[Endpoint, Port]:
        """Every NIC of every host."""
        return {end: port for end, (port, _) in self._ends.items() if not end.slot}

    def enter(self, node: str | Endpoint) -> None:
        """Move the calling thread into a node's namespace for good."""
        set_namespace(self._namespaces[endpoint_of(node).host])

    def address(self, host: str | Endpoint) -> str:
        """The IPv4 address of a host's first NIC, or of a place on one of them."""
        return self._ends[endpoint_of(host)][1]

    def arrivals(self) -> dict[str, str]:
        """Address of a port -> the directed link by which packets come to it."""
        return {port.address: link_name(port.peer, port.node) for row in self._ports.values() for port in row}

    def tap(self, link: str) -> tuple[str, Callable[[], None], str]:
        """Where a directed link's packets leave: its name, how to enter that namespace, the interface."""
        port = self.port(link)
        return link, lambda: self.enter(port.node), port.name

    def port(self, link: str) -> Port:
        """The port that a directed link leaves through."""
        return next(port for row in self._ports.values() for port in row if port.link == link)

    def shape_of(self, port: Port) -> Shape:
        """How a port is shaped as long as nothing is wrong."""
        queue_bytes = HOST_QUEUE_BYTES if port.node in self._hosts else port.cable.buffer_bytes
        return Shape(self.testbed.wire_bps(port.cable), queue_bytes, self.testbed.mtu, self._frr_routes)

    def say(self, node: str, requests: Iterable[Request]) -> None:
        """Change something in a node's namespace.

        Raises:
            OSError: the kernel refused; `filename` is what.
        """
        self._conversations[node].say(requests)

    def routes(self, down: frozenset[str] = frozenset()) -> dict[str, dict[tuple[str, int], Request]]:
        """Node -> (what, table) -> the request for each of its routes, while some directed links are down."""
        return {
            node: {(row.what, row.body[_TABLE_AT]): row for row in rows if row.kind == netlink.NEW_ROUTE}
            for node, rows in self._routes(down).items()
        }

    def _create(self, node: Node) -> None:
        fd = self._namespaces[node.name] = create()
        with inside(fd):
            self._conversations[node.name] = Conversation()
            _sysctl("ipv6/conf/all/disable_ipv6", "1", required=False)
            _sysctl("ipv4/conf/all/rp_filter", "0")
            _sysctl("ipv4/conf/default/rp_filter", "0")
            if node.role is Role.SWITCH:
                self._make_router(node)
                if self._frr_routes:
                    _allow_unnumbered()
            else:
                self._make_host()

    def _make_router(self, node: Node) -> None:
        _sysctl("ipv4/ip_forward", "1")
        _sysctl("ipv4/icmp_ratelimit", "0")  # path probes ask a router more than once a second
        _sysctl("ipv4/icmp_errors_use_inbound_ifaddr", "1")  # and want to know by which port they came
        if self.testbed.spread is Spread.PER_PACKET:
            _sysctl("ipv4/fib_multipath_hash_policy", str(_MULTIPATH_BY_PACKETS_HASH))
            self.notes = (_SPRAYED,)
            return
        if self.testbed.hash_ports:
            _sysctl("ipv4/fib_multipath_hash_policy", str(_MULTIPATH_BY_CHOSEN_FIELDS))
            _sysctl("ipv4/fib_multipath_hash_fields", str(_FIVE_TUPLE))
        if not _sysctl("ipv4/fib_multipath_hash_seed", str(node.seed), required=False):
            self.notes = (_NO_SEED,)

    def _make_host(self) -> None:
        """A TCP that behaves like a NIC: at line rate from the first byte, a bounded amount in flight, no memory."""
        receive, send = 2 * self._window_bytes, 8 * self._window_bytes
        for key, value in (
            ("tcp_rmem", f"4096 {receive} {receive}"),
            ("tcp_wmem", f"4096 {send} {send}"),
            ("tcp_slow_start_after_idle", "0"),
            ("tcp_no_metrics_save", "1"),
            ("tcp_autocorking", "0"),
            ("tcp_early_retrans", "0"),
            ("tcp_ecn", "1" if any(cable.ecn_bytes for cable in self.testbed.cables) else "2"),
        ):
            _sysctl(f"ipv4/{key}", value)

    def _cables(self, node: str) -> Iterator[Request]:
        """The cables that start at a node (each is plugged in once, at its first end)."""
        for port in self._ports[node]:
            if port.cable.a == node:
                far = self._towards[port.peer, node]
                there = End(far.name, far.index, far.mac, self._namespaces[far.node])
                here = End(port.name, port.index, port.mac)
                yield netlink.veth(here, there, self.testbed.mtu, SUPER_PACKET_SEGMENTS)

    def _configuration(self, node: str) -> Iterator[Request]:
        """Everything about a node's ports; the far ends exist by now."""
        yield netlink.up(_LOOPBACK_INDEX)
        for port in self._ports[node]:
            unnumbered = self._frr_routes and not self._hosts & {node, port.peer}
            yield netlink.address(port.index, port.address, _WHOLE if unnumbered else PREFIX)
            yield from shape(port.index, self.shape_of(port))
            yield netlink.up(port.index)
            yield netlink.neighbour(port.index, port.peer_address, mac(port.peer_address))
            if node in self._mtus:
                yield netlink.resize(port.index, self._mtus[node], SUPER_PACKET_SEGMENTS)
        yield from self._places(node)

    def _programs(self, node: str) -> Iterator[Request]:
        """Losses of a cable at the ports of both its ends; a switch's ports mark, and spray what comes in."""
        switch = node not in self._hosts
        for port in self._ports[node]:
            programs, own = [], []
            if port.cable.ecn_bytes and switch:
                wire_bps, cable = self.testbed.wire_bps(port.cable), port.cable
                self._markers[port.link] = marker = Marker(wire_bps, cable.ecn_bytes, cable.buffer_bytes)
                programs.append((marker.program, EGRESS))
            if port.cable.loss_ppm:
                own.append((loser(port.cable.loss_ppm), EGRESS))
            if switch and self.testbed.spread is Spread.PER_PACKET:
                own.append((sprayer(), INGRESS))
            if programs or own:
                yield from attach(port.index, [*programs, *own])
            # The descriptors are needed until the request is out: they are closed with the fabric.
            self._descriptors += [fd for fd, _ in own]

    def marks(self) -> dict[str, int]:
        """Per directed link whose sending port marks: how many packets it has marked; super-packets count once."""
        return {link: marker.marked() for link, marker in self._markers.items()}

    def _places(self, host: str) -> Iterator[Request]:
        """The addresses of a host's further ranks, and what is between all of its ranks."""
        places = [(end, port, address) for end, (port, address) in self._ends.items() if end.host == host]
        for end, port, address in places:
            if end.slot:
                yield netlink.address(port.index, address, _WHOLE)
        spec = self.testbed.intra_host
        if spec is not None and host in self.testbed.crowded:
            yield netlink.resize(_LOOPBACK_INDEX, self.testbed.mtu, SUPER_PACKET_SEGMENTS)
            wire_bps = self.testbed.wire_bps(Cable("", "", spec.rate_bps, spec.delay_ns, spec.buffer_bytes, ""))
            wanted = Shape(wire_bps, spec.buffer_bytes, self.testbed.mtu)
            yield from shape_loopback(_LOOPBACK_INDEX, [address for _, _, address in places], wanted)

    def _routes(self, down: frozenset[str] = frozenset()) -> dict[str, list[Request]]:
        """Every switch knows every NIC by all shortest ways; what leaves a host leaves by the NIC it is from.

        `down`: directed links that do not exist at the moment.
        """
        routes: dict[str, list[Request]] = {node: [] for node in self._ports}
        for host in self.testbed.hosts:
            routes[host] += self._host_routes(host, down)
        for end, (_, address) in self._ends.items():
            for node, hops in self.testbed.next_hops(end, down).items():
                last = hops == [end.host]
                if node not in self._hosts and (end.slot if last else not self._frr_routes):
                    ways = [(far.peer_address, far.index) for far in (self._towards[node, hop] for hop in hops)]
                    routes[node].append(netlink.route(address, _WHOLE, ways, {}))
        return routes

    def _host_routes(self, host: str, down: frozenset[str]) -> Iterator[Request]:
        """To its switch; of several NICs each has a table of its own, for what its addresses send."""
        row, metrics = self._ports[host], self._host_metrics()
        if row[0].link not in down:
            yield netlink.route(*_ANYWHERE, [(row[0].peer_address, row[0].index)], metrics)
        for at, port in enumerate(row[1:], start=_FIRST_NIC_TABLE):
            if port.link not in down:
                yield netlink.route(*_ANYWHERE, [(port.peer_address, port.index)], metrics, at)
            for where, address in self._ends.values():
                if where is port:
                    yield netlink.rule(address, at)

    def _start_frr(self) -> None:
        """Routing daemons on every switch; wait until they have found all ways.

        Raises:
            NotReadyError: they have not, and `strict`; names each switch that lacks some.
        """
        switches = {name: fd for name, fd in self._namespaces.items() if name not in self._hosts}
        self.frr, given = Frr(switches), dict(self.testbed.configurations)
        for name in switches:
            self.frr.configure(name, given.get(name) or configuration(self.testbed, name, self._ports[name]))
        wanted = wanted_hops(self.testbed, self._ends)
        left = converge(switches, lambda name: self._gaps(name, wanted))
        if left and self.strict:
            more = f" and {len(left) - _SHOWN_GAPS} more" if len(left) > _SHOWN_GAPS else ""
            raise NotReadyError(
                f"routes are missing: {'; '.join(map(str, left[:_SHOWN_GAPS]))}{more}.",
                where=self.testbed.name,
                fix="genie testbed check tells all that is wrong.",
            )

    def gaps(self) -> list[Gap]:
        """Where the switches' routes are not the topology's shortest ways."""
        wanted = wanted_hops(self.testbed, self._ends)
        return [gap for name in self._namespaces if name not in self._hosts for gap in self._gaps(name, wanted)]

    def tables(self) -> list[dict[str, str]]:
        """What every switch's main table holds: switch, network, and by which neighbours."""
        return [
            {
                "switch": name,
                "network": network,
                "by": ", ".join(sorted(self._behind.get((name, at), "?") for at in ways)),
            }
            for name, talk in self._conversations.items()
            if name not in self._hosts
            for network, ways in sorted(read_table(talk).items())
        ]

    def _gaps(self, name: str, wanted: dict[str, dict[Endpoint, list[str]]]) -> list[Gap]:
        return gaps(name, read_table(self._conversations[name]), wanted.get(name, {}), self._ends, self._behind)

    def _host_metrics(self) -> dict[int, bytes]:
        """Of a host's one route; congestion control is here since a namespace's sysctl does not take all kinds."""
        packets = struct.pack("=I", -(-2 * self._window_bytes // self.testbed.mtu))
        control = self.testbed.congestion_control.encode() + b"\0"
        return {_RTAX_INITCWND: packets, _RTAX_INITRWND: packets, _RTAX_CC_ALGO: control}

    def _wait_until_up(self) -> None:
        """A port that is not yet up drops silently, for a second if it was an ARP reply: wait until all are."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        for node, namespace in self._namespaces.items():
            with inside(namespace):
                events = Conversation(netlink.LINK_EVENTS)
            with events:
                while down := self._down(node):
                    left = deadline - time.monotonic()
                    if left <= 0 or not select.select([events.socket], [], [], left)[0]:
                        raise NotReadyError(f"port {down[0]} does not come up.", where=node)
                    events.receive()

    def _down(self, node: str) -> list[str]:
        """Names of a node's ports that carry no traffic yet."""
        states = {}
        for body in self._conversations[node].dump(netlink.GET_LINK, netlink.INTERFACE.pack(0, 0, 0, 0, 0)):
            index = netlink.INTERFACE.unpack_from(body)[2]
            states[index] = dict(netlink.attributes(body, netlink.INTERFACE.size)).get(netlink.IFLA_OPERSTATE)
        return [port.name for port in self._ports[node] if states.get(port.index) != bytes([_OPERSTATE_UP])]

    def route(
        self, source: str | Endpoint, destination: str | Endpoint, sport: int, dport: int, protocol: int = 6
    ) -> tuple[str, ...]:
        """Names of the directed links that a flow takes, asked of every switch's routing table; sends nothing.

        Raises:
            RunError: a switch has no route, or the way does not end.
        """
        start, end = endpoint_of(source).host, endpoint_of(destination).host
        if start == end:
            return (link_name(str(source), start),)
        flow = FlowKey(self.address(source), self.address(destination), protocol, sport, dport)
        at, came_from, way = start, 0, []
        while at != end:
            port = self._egress(at, came_from, flow)
            way.append(port.link)
            at, came_from = port.peer, self._towards[port.peer, at].index
            if len(way) > len(self.testbed.nodes):
                raise RunError(f"packets from {source} to {destination} go round in circles: {' '.join(way)}.")
        return tuple(way)

    def _egress(self, at: str, came_from: int, flow: FlowKey) -> Port:
        """The port of node `at` through which a flow leaves that came in by interface number `came_from`."""
        try:
            index = egress(self._conversations[at], flow, came_from)
        except RunError as error:
            raise RunError(error.what, where=at) from error
        return self._towards[at, self._behind[at, index]]

    def counters(self) -> dict[str, dict[str, int]]:
        """Per directed link, what its sending port counted: see `genie.testbed.counters.Counted`."""
        counted = {node: count(conversation) for node, conversation in self._conversations.items()}
        return {port.link: counted[node][port.index]._asdict() for node, row in self._ports.items() for port in row}


def _allow_unnumbered() -> None:
    """Link-local IPv6 on a switch's ports, usable at once: BGP sessions need nothing else."""
    for key, value in (("all/disable_ipv6", "0"), ("default/accept_dad", "0"), ("all/forwarding", "1")):
        _sysctl(f"ipv6/conf/{key}", value)


def _sysctl(key: str, value: str, *, required: bool = True) -> bool:
    """Set net.`key` of the namespace that the calling thread is in; whether that went well.

    Raises:
        NotReadyError: it did not, and is required.
    """
    try:
        (Path("/proc/sys/net") / key).write_text(value, encoding="utf-8")
    except OSError as error:
        if required:
            raise NotReadyError(f"cannot set net/{key} to {value!r}: {error.strerror}.") from error
        return False
    return True
