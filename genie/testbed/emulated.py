"""An emulated fabric: a namespace a node, a veth pair a cable, every direction of every cable shaped.

Acknowledgements and other packets under 256 bytes have a strict class of their own on every port, the hosts' included;
docs/testbed.md says what happens without. The module is the only one that imports pyroute2.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from pyroute2 import IPRoute
from pyroute2.netlink.rtnl.tcmsg import plugins, sched_pfifo

from genie.core.testbed import ETHERNET_BYTES, MIN_REAL_BPS, Cable, Node, Role, Testbed
from genie.errors import NotReadyError, RunError
from genie.testbed.namespaces import create, inside, set_namespace
from genie.testbed.routes import FlowKey, RouteTable
from genie.units import NS_PER_S

plugins.setdefault("bfifo", sched_pfifo)  # the same one number, but bytes; pyroute2 knows only the packet variant

OPERSTATE_UP: Final = "UP"
READY_TIMEOUT_S: Final = 5.0
SUPER_PACKET_SEGMENTS: Final = 4
"""The shaper lets a super-packet of any size pass at once and charges for it afterwards, so the last one of a message
is early by its length: keep it short."""

HOST_QUEUE_BYTES: Final = 64 << 20
"""A host's own queue never drops: its transport waits instead."""

BURST_NS: Final = 1_000_000
"""The shaper may lag by this much real time; shorter bursts lose rate on a busy machine, longer ones blur it."""

_MULTIPATH_BY_CHOSEN_FIELDS: Final = 3
_FIVE_TUPLE: Final = 0x01 | 0x02 | 0x04 | 0x10 | 0x20
"""Addresses, protocol and ports. (Policy 1 hashes the same, but believes the random hash that the kernel's own TCP
puts on its packets, so that a TCP flow's path would change from run to run and could not be looked up.)"""

_AF_INET: Final = 2
_ETH_P_IP: Final = 0x0800
_ROOT, _BULK, _SMALL = 0x1_0000, 0x1_0001, 0x1_0002
_BULK_QUEUE, _SMALL_QUEUE = 0x10_0000, 0x20_0000
_UNDER_256_BYTES: Final = ["0x0000/0xff00+2"]
"""Match on the IP total length's high byte."""

_HOST_SYSCTLS: Final = {
    "ipv4/tcp_slow_start_after_idle": "0",
    "ipv4/tcp_no_metrics_save": "1",
    "ipv4/tcp_wmem": "4096 262144 16777216",
    "ipv4/tcp_rmem": "4096 262144 16777216",
    "ipv4/tcp_autocorking": "0",
}


@dataclass(frozen=True, slots=True)
class _Port:
    """One end of a cable: interface `name` number `index` on `node`, with its own address and its peer's."""

    node: str
    name: str
    index: int
    address: str
    peer: str
    peer_address: str
    cable: Cable

    @property
    def link(self) -> str:
        """The directed link that leaves through this port."""
        return self.cable.direction(self.node)


class EmulatedFabric:
    """Brings a testbed up in namespaces, enters hosts, looks routes up, counts, takes it all down.

    All namespaces are anonymous: they vanish with this object, or with this process however it ends.
    """

    def __init__(self, testbed: Testbed) -> None:
        self.testbed = testbed
        self._namespaces: dict[str, int] = {}
        self._sockets: dict[str, IPRoute] = {}
        self._tables: dict[str, RouteTable] = {}
        self._indexes: dict[tuple[str, str], int] = {}
        self._ports = _ports(testbed)
        self._by_name = {(port.node, port.peer): port for port in self._ports}

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
            for node in self.testbed.nodes:
                self._create(node)
            for cable in self.testbed.cables:
                self._plug(cable)
            for port in self._ports:
                self._configure(port)
            self._routes()
            self._wait_until_up()
        except NotReadyError:
            self.close()
            raise
        except Exception as error:
            self.close()
            raise NotReadyError(f"the fabric could not be built: {error}.", where=self.testbed.name) from error

    def close(self) -> None:
        """Take it down; may be called twice."""
        for ipr in self._sockets.values():
            ipr.close()
        for table in self._tables.values():
            table.close()
        for fd in self._namespaces.values():
            os.close(fd)
        self._sockets, self._tables, self._namespaces = {}, {}, {}

    def namespace_fd(self, node: str) -> int:
        """Descriptor of a node's namespace."""
        return self._namespaces[node]

    def enter(self, node: str) -> None:
        """Move the calling thread into a node's namespace for good."""
        set_namespace(self._namespaces[node])

    def address(self, host: str) -> str:
        """A host's IPv4 address."""
        return next(port.address for port in self._ports if port.node == host)

    def _create(self, node: Node) -> None:
        fd = self._namespaces[node.name] = create()
        with inside(fd):
            self._sockets[node.name] = IPRoute()
            _sysctl("ipv6/conf/all/disable_ipv6", "1", required=False)
            _sysctl("ipv4/conf/all/rp_filter", "0")
            _sysctl("ipv4/conf/default/rp_filter", "0")
            for key, value in _HOST_SYSCTLS.items() if node.role is Role.HOST else ():
                _sysctl(key, value, required=False)
            if node.role is Role.SWITCH:
                self._make_router(node)
        self._sockets[node.name].link("set", index=1, state="up")

    def _make_router(self, node: Node) -> None:
        _sysctl("ipv4/ip_forward", "1")
        if self.testbed.hash_ports:
            _sysctl("ipv4/fib_multipath_hash_policy", str(_MULTIPATH_BY_CHOSEN_FIELDS))
            _sysctl("ipv4/fib_multipath_hash_fields", str(_FIVE_TUPLE))
        _sysctl("ipv4/fib_multipath_hash_seed", str(node.seed), required=False)

    def _plug(self, cable: Cable) -> None:
        here, there = self._by_name[cable.a, cable.b], self._by_name[cable.b, cable.a]
        self._sockets[cable.a].link(
            "add",
            ifname=here.name,
            index=here.index,
            kind="veth",
            mtu=self.testbed.mtu,
            address=_mac(here.address),
            peer={
                "ifname": there.name,
                "net_ns_fd": self._namespaces[cable.b],
                "mtu": self.testbed.mtu,
                "address": _mac(there.address),
                "index": there.index,
            },
        )

    def _configure(self, port: _Port) -> None:
        ipr = self._sockets[port.node]
        index = self._index(port)
        ipr.addr("add", index=index, address=port.address, prefixlen=30)
        ipr.link("set", index=index, state="up", gso_max_segs=SUPER_PACKET_SEGMENTS)
        self._shape(ipr, index, port)
        ipr.neigh("add", dst=port.peer_address, lladdr=_mac(port.peer_address), ifindex=index, state="permanent")

    def _index(self, port: _Port) -> int:
        """The interface's number, which the kernel chose for the far end of a cable."""
        known = self._indexes.get((port.node, port.peer))
        if known is None:
            found = self._sockets[port.node].link_lookup(ifname=port.name)
            if not found:
                raise NotReadyError(f"interface {port.name} did not appear.", where=port.node)
            known = self._indexes[port.node, port.peer] = int(found[0])
        return known

    def _shape(self, ipr: IPRoute, index: int, port: _Port) -> None:
        """HTB: bulk at the link's rate in a queue of the port's buffer; small packets in a class beside it.

        The small ones are not charged to the link: TCP acknowledges every other packet, a NIC once a message, and the
        difference (0.4 % of a link used both ways) is TCP's, not the modelled network's.
        """
        bps, frame = self.testbed.wire_bps(port.cable), self.testbed.mtu + ETHERNET_BYTES
        host = port.node in self.testbed.hosts
        limit = HOST_QUEUE_BYTES if host else port.cable.buffer_bytes
        burst = max(2 * frame, bps * BURST_NS // (8 * NS_PER_S))
        common = {"burst": burst, "cburst": burst, "quantum": frame}
        ipr.tc("add", "htb", index, _ROOT, default=_BULK)
        ipr.tc("add-class", "htb", index, _BULK, parent=_ROOT, rate=f"{bps}bit", ceil=f"{bps}bit", prio=1, **common)
        small = f"{max(bps // 10, MIN_REAL_BPS)}bit"
        ipr.tc("add-class", "htb", index, _SMALL, parent=_ROOT, rate=small, ceil=small, prio=0, **common)
        ipr.tc("add", "bfifo", index, _BULK_QUEUE, parent=_BULK, limit=limit)
        ipr.tc("add", "bfifo", index, _SMALL_QUEUE, parent=_SMALL, limit=limit)
        ipr.tc(
            "add-filter", "u32", index, parent=_ROOT, prio=1, protocol=_ETH_P_IP, target=_SMALL, keys=_UNDER_256_BYTES
        )

    def _routes(self) -> None:
        for host in self.testbed.hosts:
            ways = self.testbed.next_hops(host)
            for node, hops in ways.items():
                self._route(node, f"{self.address(host)}/32", hops)

    def _route(self, node: str, destination: str, hops: list[str]) -> None:
        ports = [self._by_name[node, hop] for hop in hops]
        if len(ports) == 1:
            if ports[0].peer_address != destination.partition("/")[0]:
                self._sockets[node].route("add", dst=destination, gateway=ports[0].peer_address, family=_AF_INET)
            return
        ways = [{"gateway": port.peer_address, "hops": 0} for port in ports]
        self._sockets[node].route("add", dst=destination, multipath=ways, family=_AF_INET)

    def _wait_until_up(self) -> None:
        """A port that is not yet up drops silently, for a second if it was an ARP reply: ask until all are."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        for port in self._ports:
            ipr = self._sockets[port.node]
            while ipr.link("get", index=self._index(port))[0].get_attr("IFLA_OPERSTATE") != OPERSTATE_UP:
                if time.monotonic() > deadline:
                    raise NotReadyError(f"port {port.name} does not come up.", where=port.node)
                time.sleep(0.001)

    def route(self, source: str, destination: str, sport: int, dport: int, protocol: int = 6) -> tuple[str, ...]:
        """Names of the directed links that a flow takes, asked of every switch's routing table; sends nothing.

        Raises:
            RunError: a switch has no route, or the way does not end.
        """
        flow = FlowKey(self.address(source), self.address(destination), protocol, sport, dport)
        at, came_from, way = source, "", []
        while at != destination:
            hop = self._next_hop(at, came_from, flow)
            way.append(f"{at}>{hop}")
            at, came_from = hop, at
            if len(way) > len(self.testbed.nodes):
                raise RunError(f"packets from {source} to {destination} go round in circles: {' '.join(way)}.")
        return tuple(way)

    def _next_hop(self, at: str, came_from: str, flow: FlowKey) -> str:
        """The neighbour that the flow goes to from `at`."""
        iif = self._indexes[at, came_from] if came_from else 0
        table = self._tables.get(at)
        if table is None:
            with inside(self._namespaces[at]):
                table = self._tables[at] = RouteTable()
        egress = table.egress(flow, iif)
        return next(peer for (node, peer), index in self._indexes.items() if node == at and index == egress)

    def counters(self) -> dict[str, dict[str, int]]:
        """Per directed link: bytes and packets sent, drops and backlog of the sending port."""
        found = {}
        for port in self._ports:
            ipr, index = self._sockets[port.node], self._index(port)
            stats = ipr.link("get", index=index)[0].get_attr("IFLA_STATS64")
            leaf = next(q for q in ipr.get_qdiscs(index=index) if q["handle"] == _BULK_QUEUE)
            queue = leaf.get_attr("TCA_STATS2")
            waiting = queue.get_attr("TCA_STATS_QUEUE") if queue else None
            found[port.link] = {
                "bytes": int(stats["tx_bytes"]),
                "packets": int(stats["tx_packets"]),
                "drops": int(waiting["drops"]) if waiting else 0,
                "backlog_bytes": int(waiting["backlog"]) if waiting else 0,
            }
        return found


def _ports(testbed: Testbed) -> list[_Port]:
    """Both ends of every cable; cable i has the addresses 10.x.y.z/30 that start at 4 i."""
    used = dict.fromkeys((node.name for node in testbed.nodes), 0)
    ports = []
    for number, cable in enumerate(testbed.cables):
        addresses = _address(4 * number + 1), _address(4 * number + 2)
        for (node, peer), mine, theirs in (
            ((cable.a, cable.b), *addresses),
            ((cable.b, cable.a), *addresses[::-1]),
        ):
            ports.append(_Port(node, f"eth{used[node]}", 10 + used[node], mine, peer, theirs, cable))
            used[node] += 1
    return ports


def _address(number: int) -> str:
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def _mac(address: str) -> str:
    return "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))


def _sysctl(key: str, value: str, *, required: bool = True) -> None:
    path = Path("/proc/sys/net") / key
    try:
        path.write_text(value, encoding="ascii")
    except OSError as error:
        if required:
            raise NotReadyError(f"cannot set net/{key}: {error.strerror}.", fix="run as root.") from error
