"""Is a testbed what its file says? Everything is looked at and probed before a run, and all problems told at once."""

from __future__ import annotations

import socket
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from genie.core.testbed import Endpoint, Stack, Testbed
from genie.errors import GenieError, RunError
from genie.testbed.addressing import Port
from genie.testbed.doctor import Check, examine_host
from genie.testbed.emulated import EmulatedFabric
from genie.testbed.frr import hindrance
from genie.testbed.mesh import PORT, Mesh, Pair, pairs_of
from genie.testbed.namespaces import inside
from genie.testbed.netlink import (
    GET_CLASS,
    GET_LINK,
    IFLA_MTU,
    INTERFACE,
    NETLINK_NETFILTER,
    QUEUE,
    Conversation,
    attributes,
)
from genie.testbed.probe import FIRST_PORT, Flow, probe
from genie.testbed.routing import Gap
from genie.units import BITS_PER_BYTE, NS_PER_S

TOS_BYTES: Final = (26 << 2 | 2, 48 << 2, 46 << 2, 0)
"""What RoCE deployments use: data (DSCP 26, ECN-capable), congestion notifications (48), another class, none."""

SMALL_BYTES: Final = 64
SHAPER_TOLERANCE: Final = 0.001
PROBE_REAL_NS: Final = 100_000_000
PROBE_TRIES: Final = 3
RATE_WARNING, RATE_LIMIT = 0.03, 0.10
MAX_PROBED: Final = 32
_SHOWN: Final = 4
_MTU_BYTES: Final = 4
_NFT_GET_TABLE: Final = 10 << 8 | 1
_BULK_CLASS: Final = 0x1_0001
_TCA_OPTIONS, _HTB_PARMS, _RATE_AT = 2, 1, 8


def preflight(testbed: Testbed) -> list[Check]:
    """Bring an emulated testbed up, look and probe, take it down: all that was found, one row each.

    Never raises for what is wrong with the testbed: that is a row of status "bad" which names the node.
    """
    checks = [*examine_host(), Check("clocks", "ok", "one machine, one clock")]
    if testbed.stack is Stack.FRR and (why := hindrance()):
        return [*checks, Check("FRR", "bad", f"{why}.", "sudo apt install frr, and run as root")]
    begun = time.monotonic()
    try:
        with EmulatedFabric(testbed, strict=False) as fabric:
            took_s = time.monotonic() - begun
            switches = len(testbed.nodes) - len(testbed.hosts)
            words = " ".join((f"{len(testbed.hosts)} hosts, {switches} switches, up in {took_s:.2f} s.", *fabric.notes))
            checks.append(Check("fabric", "ok", words))
            for name, look in _LOOKS:
                checks += _guarded(name, look, fabric)
    except GenieError as error:
        where = f"{error.where}: " if error.where else ""
        checks.append(Check("fabric", "bad", f"{where}{error.what}", error.fix))
    return checks


def _guarded(name: str, look: Callable[[EmulatedFabric], Iterator[Check]], fabric: EmulatedFabric) -> list[Check]:
    """What a look finds; one that cannot be made is a finding too, and the others still count."""
    try:
        return list(look(fabric))
    except (GenieError, OSError) as error:
        return [Check(name, "bad", f"could not be looked at: {error}")]


def _some(words: Sequence[str]) -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return "; ".join(words[:_SHOWN]) + more


def _sessions(fabric: EmulatedFabric) -> Iterator[Check]:
    """BGP neighbours: configured on both sides of each cable between switches, and talking."""
    if fabric.frr is None:
        return
    wrong, hosts, sessions = 0, set(fabric.testbed.hosts), 0
    for node in fabric.testbed.nodes:
        if node.name in hosts:
            continue
        peers = fabric.frr.neighbours(node.name)
        for port in fabric.ports_of(node.name):
            state = peers.get(port.name, "")
            if port.peer in hosts or state == "Established":
                sessions += port.peer not in hosts
                continue
            wrong += 1
            found = f"{node.name} has no session with {port.peer} by {port.name}: {state or 'no neighbour statement'}"
            yield Check("BGP sessions", "bad", found, _session_fix(node.name, port, state))
    if not wrong:
        yield Check("BGP sessions", "ok", f"{sessions // 2} sessions, all established")


def _session_fix(switch: str, port: Port, state: str) -> str:
    if state:
        return f"look at {port.peer}'s frr.conf, or the link {switch}-{port.peer}."
    return f"neighbor {port.name} interface remote-as external, in {switch}'s frr.conf."


def _routes(fabric: EmulatedFabric) -> Iterator[Check]:
    """Every switch's ways to every NIC, against the topology's; told by the switch that is to blame."""
    gaps = fabric.gaps()
    if not gaps:
        nics, most = len(fabric.nics()), _most_ways(fabric)
        yield Check("routes", "ok", f"every switch has all shortest ways to {nics} NICs, up to {most} equal ones")
        return
    unannounced = set()
    for host, row in _by_host(gaps).items():
        lost = [gap for gap in row if not gap.found]
        leaf = fabric.testbed.switch_of(next(end for end in fabric.nics() if str(end) == host))
        others = sum(1 for node in fabric.testbed.nodes if node.name not in fabric.testbed.hosts) - 1
        if others and len([gap for gap in lost if gap.switch != leaf]) == others:
            unannounced.add(host)
            found = f"{leaf} does not announce {lost[0].network} of {host}: no other switch has a route to it"
            yield Check("routes", "bad", found, f"network {lost[0].network}, in {leaf}'s frr.conf.")
    rest: dict[str, list[Gap]] = defaultdict(list)
    for gap in gaps:
        if gap.host not in unannounced:
            rest[gap.switch].append(gap)
    for switch, row in rest.items():
        yield Check("routes", "bad", _some([str(gap) for gap in row]), _ways_fix(switch, row))


def _by_host(gaps: Sequence[Gap]) -> dict[str, list[Gap]]:
    found: dict[str, list[Gap]] = defaultdict(list)
    for gap in gaps:
        found[gap.host].append(gap)
    return found


def _most_ways(fabric: EmulatedFabric) -> int:
    hops = (ways for end in fabric.nics() for ways in fabric.testbed.next_hops(end).values())
    return max(len(ways) for ways in hops)


def _ways_fix(switch: str, row: Sequence[Gap]) -> str:
    if all(gap.found for gap in row):
        return (
            f"maximum-paths and bgp bestpath as-path multipath-relax, in {switch}'s frr.conf; or a session is missing."
        )
    return f"look at {switch}'s sessions and at its neighbours' announcements."


def _reach(fabric: EmulatedFabric) -> Iterator[Check]:
    """A datagram for every pair of NICs; where one does not come, the look-up tells which switch loses it."""
    with Mesh(fabric) as mesh:
        pairs = pairs_of(mesh.ends)
        came = mesh.send(pairs, SMALL_BYTES)
        lost = [pair for pair in pairs if pair not in came]
        if not lost:
            yield Check("reachability", "ok", f"{len(pairs)} of {len(pairs)} pairs of NICs")
        for culprit, row in _grouped(fabric, lost, _who_loses).items():
            words = f"{culprit}: {len(row)} of {len(pairs)} pairs do not reach each other: {_names(row)}"
            yield Check("reachability", "bad", words, "see the rows about routes and sessions.")
        yield from _sizes(fabric, mesh, sorted(came))
        yield from _marks(mesh, sorted(came))


def _names(row: Sequence[Pair]) -> str:
    return _some([f"{a} to {b}" for a, b in row])


def _grouped(
    fabric: EmulatedFabric, pairs: Sequence[Pair], blame: Callable[[EmulatedFabric, Pair], str]
) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        found[blame(fabric, pair)].append(pair)
    return found


def _who_loses(fabric: EmulatedFabric, pair: Pair) -> str:
    try:
        way = fabric.route(*pair, PORT, PORT, socket.IPPROTO_UDP)
    except RunError as error:
        return error.where or error.what
    return f"somewhere on {' '.join(way)}"


def _sizes(fabric: EmulatedFabric, mesh: Mesh, pairs: Sequence[Pair]) -> Iterator[Check]:
    """Full packets that must not be cut; the router that complains is to blame, else a port that is set lower."""
    mtu = fabric.testbed.mtu
    came = mesh.send(pairs, mtu)
    lost = [pair for pair in pairs if pair not in came]
    if not lost:
        yield Check("MTU", "ok", f"{mtu} bytes pass uncut between {len(pairs)} pairs")
    nodes = {port.address: node.name for node in fabric.testbed.nodes for port in fabric.ports_of(node.name)}

    def blame(fabric: EmulatedFabric, pair: Pair) -> str:
        return nodes.get(mesh.complaints.get(pair, "")) or _narrow(fabric, pair)

    for culprit, row in _grouped(fabric, lost, blame).items():
        passes = mesh.largest(row[0], mtu)
        words = f"{culprit}: packets of {mtu} bytes do not pass between {len(row)} pairs ({_names(row)})"
        largest = f"; the largest that passes has {passes}"
        yield Check("MTU", "bad", words + largest, f"set an MTU of {mtu} on every port of {culprit}.")


def _narrow(fabric: EmulatedFabric, pair: Pair) -> str:
    """Nodes with a port on a pair's way that is set below the testbed's MTU."""
    found = []
    for name in fabric.route(*pair, PORT, PORT, socket.IPPROTO_UDP):
        source, there = name.split(">")
        for node, peer in ((source, there), (there, source)):
            port = next(port for port in fabric.ports_of(node) if port.peer == peer)
            if _mtus(fabric, node).get(port.index, 0) < fabric.testbed.mtu and node not in found:
                found.append(node)
    return ", ".join(found) or _who_loses(fabric, pair)


def _mtus(fabric: EmulatedFabric, node: str) -> dict[int, int]:
    found = {}
    for body in fabric.conversation(node).dump(GET_LINK, INTERFACE.pack(0, 0, 0, 0, 0)):
        told = dict(attributes(body, INTERFACE.size)).get(IFLA_MTU, bytes(_MTU_BYTES))
        found[INTERFACE.unpack_from(body)[2]] = struct.unpack("=I", told)[0]
    return found


def _marks(mesh: Mesh, pairs: Sequence[Pair]) -> Iterator[Check]:
    """DSCP and ECN bits as they arrive; a mark of congestion on an ECN-capable packet is allowed."""
    wrong, lost = [], 0
    for tos in TOS_BYTES:
        came = mesh.send(pairs, SMALL_BYTES, tos)
        lost += len(pairs) - len(came)
        for (a, b), arrival in came.items():
            if arrival.tos != tos and (arrival.tos != tos | 1 or tos & 3 == 0):
                wrong.append(
                    f"{a} to {b}: DSCP {tos >> 2} came as {arrival.tos >> 2}, ECN {tos & 3} as {arrival.tos & 3}"
                )
    if wrong or lost:
        words = _some(wrong) + (f"; {lost} datagrams with a DSCP did not come" if lost else "")
        yield Check("DSCP and ECN bits", "bad", words, "trust DSCP on every port; no rule may rewrite it.")
    else:
        classes = ", ".join(str(tos >> 2) for tos in TOS_BYTES)
        yield Check("DSCP and ECN bits", "ok", f"DSCP {classes} and ECN bits kept between {len(pairs)} pairs")


def _shapers(fabric: EmulatedFabric) -> Iterator[Check]:
    """The rate that each port's shaper really has."""
    wrong, ports, links = [], 0, fabric.testbed.links()
    for node in fabric.testbed.nodes:
        rates = shaped_bps(fabric.conversation(node.name))
        for port in fabric.ports_of(node.name):
            wanted, found = fabric.testbed.wire_bps(links[port.link]), rates.get(port.index, 0)
            ports += 1
            if abs(found / wanted - 1) > SHAPER_TOLERANCE:
                wrong.append(f"{port.link} is shaped at {found:,} bit/s, not {wanted:,}")
    if wrong:
        yield Check("link rates, set", "bad", _some(wrong), "genie testbed down, and up again.")
    else:
        yield Check("link rates, set", "ok", f"{ports} ports shaped as the file says")


def shaped_bps(conversation: Conversation) -> dict[int, int]:
    """Interface number -> rate of its class for data, as the kernel has it."""
    found = {}
    for index in _interfaces(conversation):
        for body in conversation.dump(GET_CLASS, QUEUE.pack(0, index, 0, 0, 0)):
            told = dict(attributes(body, QUEUE.size))
            if QUEUE.unpack_from(body)[2] == _BULK_CLASS and _TCA_OPTIONS in told:
                parameters = dict(attributes(told[_TCA_OPTIONS]))[_HTB_PARMS]
                found[index] = struct.unpack_from("=I", parameters, _RATE_AT)[0] * BITS_PER_BYTE
    return found


def _interfaces(conversation: Conversation) -> list[int]:
    bodies = conversation.dump(GET_LINK, INTERFACE.pack(0, 0, 0, 0, 0))
    return [INTERFACE.unpack_from(body)[2] for body in bodies]


def _rates(fabric: EmulatedFabric) -> Iterator[Check]:
    """A short flow over every NIC, alone on its way, against the slowest link of that way."""
    ends = list(fabric.nics())[:MAX_PROBED]
    pairs = [pair for pair in zip(ends[::2], ends[1::2], strict=False) if pair[0].host != pair[1].host]
    if not pairs:
        pairs = [pair for pair in zip(ends, ends[len(ends) // 2 :], strict=False) if pair[0].host != pair[1].host]
    errors = {pair: _error(fabric, pair, at) for at, pair in enumerate(pairs)}
    slow = {pair: error for pair, error in errors.items() if abs(error) > RATE_WARNING}
    if not slow:
        worst = max(errors.values(), key=abs, default=0.0)
        yield Check("link rates, probed", "ok", f"{len(errors)} flows alone on their ways, worst {worst:+.1%} off")
        return
    status = "bad" if any(abs(error) > RATE_LIMIT for error in slow.values()) else "lack"
    words = _some([f"{a} to {b} {error:+.1%}" for (a, b), error in slow.items()])
    yield Check("link rates, probed", status, words, "a busy machine? a larger dilation needs less of it.")


def _error(fabric: EmulatedFabric, pair: tuple[Endpoint, Endpoint], at: int) -> float:
    """Relative error of a probed rate, the best of a few tries: a busy machine makes flows late, never early."""
    sport = 20_000 + at
    way = fabric.route(*pair, sport, FIRST_PORT)
    links = fabric.testbed.links()
    rate_bps = min(links[name].rate_bps for name in way)
    size_bytes = rate_bps // fabric.testbed.dilation * PROBE_REAL_NS // (BITS_PER_BYTE * NS_PER_S)
    best = float("inf")
    for _ in range(PROBE_TRIES):
        (measured,) = probe(fabric, [Flow(*pair, size_bytes, sport)])
        error = size_bytes * BITS_PER_BYTE * NS_PER_S / measured.fct_ns / rate_bps - 1
        best = min(best, error, key=abs)
        if abs(best) <= RATE_WARNING:
            break
    return best


def _firewall(fabric: EmulatedFabric) -> Iterator[Check]:
    """Tables of packet filters in any node."""
    found = []
    for node in fabric.testbed.nodes:
        with inside(fabric.namespace_fd(node.name)):
            found += [f"{node.name}: {what}" for what in (*_iptables(), *_nftables())]
    if found:
        yield Check("firewall", "bad", _some(found), "remove the rules, or allow what the testbed sends.")
    else:
        yield Check("firewall", "ok", "no node filters packets")


def _iptables() -> list[str]:
    try:
        names = Path("/proc/thread-self/net/ip_tables_names").read_text(encoding="utf-8").split()
    except OSError:
        return []
    return [f"iptables has table {name}" for name in names]


def _nftables() -> list[str]:
    """Asked of the kernel: 4 bytes of header say IPv4 and inet alike."""
    try:
        with Conversation(protocol=NETLINK_NETFILTER) as conversation:
            bodies = list(conversation.dump(_NFT_GET_TABLE, bytes(4)))
    except OSError:
        return []
    return [f"nftables has table {dict(attributes(body, 4))[1].rstrip(bytes(1)).decode()}" for body in bodies]


_LOOKS: Final = (
    ("BGP sessions", _sessions),
    ("routes", _routes),
    ("reachability", _reach),
    ("link rates, set", _shapers),
    ("link rates, probed", _rates),
    ("firewall", _firewall),
)
