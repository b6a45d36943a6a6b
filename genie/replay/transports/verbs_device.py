"""Which RDMA device, port and GID a rank uses, and whether two ranks can talk: rules on tables, no device is touched.

A GID is an address of a port. A RoCE port has several: RoCE v1 (Ethernet only, no router forwards it) and RoCE v2 (UDP
port 4791), each for the link-local address, every IPv4 address (written as ``::ffff:a.b.c.d``) and every IPv6 address
of its network interface. Index 0 is usually the link-local one, which no router forwards either.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from genie.errors import NotReadyError

VERSION: Final = 1
ACTIVE: Final = "active"
MTU_BYTES: Final = (256, 512, 1024, 2048, 4096)
"""What a path MTU can be; the code that verbs use is the place in this row plus one."""

_SHOWN: Final = 12


class LinkLayer(StrEnum):
    """What a port is connected to."""

    ETHERNET = "ethernet"
    INFINIBAND = "infiniband"


class GidKind(StrEnum):
    """How packets of a GID travel."""

    INFINIBAND = "InfiniBand"
    ROCE_V1 = "RoCE v1"
    ROCE_V2 = "RoCE v2"


@dataclass(frozen=True, slots=True)
class PortInfo:
    """One port of a device.

    Attributes:
        device, port: its name and number (from 1).
        state: "active", "down", "init", "armed", ...
        layer: what it is connected to.
        mtu_bytes: active path MTU.
        lid: InfiniBand's local address; 0 on Ethernet.
    """

    device: str
    port: int
    state: str
    layer: LinkLayer
    mtu_bytes: int
    lid: int = 0


@dataclass(frozen=True, slots=True)
class GidInfo:
    """One entry of a port's GID table; `gid` in IPv6 notation."""

    device: str
    port: int
    index: int
    gid: str
    kind: GidKind

    @property
    def address(self) -> str:
        """The IP address that it stands for."""
        return plain_address(self.gid)

    @property
    def routable(self) -> bool:
        """Whether routers forward to it."""
        ip = ipaddress.ip_address(self.gid)
        return not (ip.is_link_local or ip.is_unspecified or ip.is_loopback)

    def __str__(self) -> str:
        return f"{self.device}/{self.port}[{self.index}] {self.address} {self.kind}"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for: "" and 0 and -1 leave it to the rule; `address`: the host's on the fabric."""

    device: str = ""
    port: int = 0
    gid_index: int = -1
    address: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """A port and one of its GIDs."""

    port: PortInfo
    gid: GidInfo

    def __str__(self) -> str:
        return str(self.gid)

    def describe(self) -> dict[str, Any]:
        """For peers: what `disagreement` compares, in plain JSON values."""
        return {
            "version": VERSION,
            "name": str(self),
            "gid": self.gid.gid,
            "kind": self.gid.kind.value,
            "layer": self.port.layer.value,
            "mtu_bytes": self.port.mtu_bytes,
            "lid": self.port.lid,
        }


def plain_address(gid: str) -> str:
    """A GID as people write the address: IPv4 where it is one."""
    ip = ipaddress.IPv6Address(gid)
    return str(ip.ipv4_mapped or ip)


def mtu_code(mtu_bytes: int) -> int:
    """What verbs call a path MTU (enum ibv_mtu).

    Raises:
        NotReadyError: there is no such path MTU.
    """
    if mtu_bytes not in MTU_BYTES:
        sizes = ", ".join(map(str, MTU_BYTES))
        raise NotReadyError(f"a path MTU of {mtu_bytes} bytes does not exist.", fix=f"choose one of {sizes}.")
    return MTU_BYTES.index(mtu_bytes) + 1


def mtu_of(code: int) -> int:
    """Bytes of a path MTU's code; 0 if it is none."""
    return MTU_BYTES[code - 1] if 1 <= code <= len(MTU_BYTES) else 0


def choose(ports: Sequence[PortInfo], gids: Sequence[GidInfo], wish: Wish) -> Choice:
    """The port and GID to use.

    First what the wish names; then the entry that stands for its address; then, if it names no address, the only active
    port that has a usable entry. Usable: RoCE v2 and routable on Ethernet, entry 0 on InfiniBand. IPv4 before IPv6,
    low index before high.

    Raises:
        NotReadyError: none, several that are equally good, a port that is not active, or a GID of the wrong kind.
    """
    named = _named_ports(ports, wish)
    keys = {(port.device, port.port) for port in named}
    entries = [gid for gid in gids if (gid.device, gid.port) in keys]
    by_key = {(port.device, port.port): port for port in named}
    if wish.gid_index >= 0:
        gid = _by_index(entries, wish)
    elif wish.address:
        gid = _by_address(entries, by_key, wish)
    else:
        gid = _only_one(entries, by_key)
    port = by_key[gid.device, gid.port]
    _require_active(port)
    return Choice(port, gid)


def _named_ports(ports: Sequence[PortInfo], wish: Wish) -> list[PortInfo]:
    if not ports:
        raise NotReadyError(
            "there is no RDMA device on this host.",
            fix="genie doctor tells more; for Soft-RoCE: sudo rdma link add rxe0 type rxe netdev DEV",
        )
    named = [p for p in ports if wish.device in {"", p.device} and wish.port in {0, p.port}]
    if not named:
        wanted = wish.device or "any device"
        raise NotReadyError(
            f"there is no {f'port {wish.port} of ' if wish.port else ''}{wanted} on this host.",
            fix=f"there are: {', '.join(f'{p.device}/{p.port}' for p in ports)}.",
        )
    return named


def _by_index(entries: Sequence[GidInfo], wish: Wish) -> GidInfo:
    found = [gid for gid in entries if gid.index == wish.gid_index]
    if len(found) != 1:
        what = "names no GID" if not found else "names a GID of several ports"
        raise NotReadyError(f"GID index {wish.gid_index} {what}.", fix=f"the table is: {table(entries)}")
    if found[0].kind is GidKind.ROCE_V1:
        raise NotReadyError(
            f"GID {found[0]} is of a kind that no router forwards.", fix=f"choose a RoCE v2 entry of: {table(entries)}"
        )
    return found[0]


def _by_address(entries: Sequence[GidInfo], ports: Mapping[tuple[str, int], PortInfo], wish: Wish) -> GidInfo:
    """The entry of the host's address; on InfiniBand, whose GIDs are no IP addresses, the only active port's."""
    found = [gid for gid in entries if gid.address == str(ipaddress.ip_address(wish.address))]
    usable = [gid for gid in found if gid.kind is GidKind.ROCE_V2]
    if usable:
        return usable[0]
    if any(port.layer is LinkLayer.INFINIBAND for port in ports.values()):
        return _only_one(entries, ports)
    if found:
        raise NotReadyError(
            f"address {wish.address} has only a {found[0].kind} GID ({found[0]}), which no router forwards.",
            fix="switch the port to RoCE v2 (cma_roce_mode, or the driver's own setting).",
        )
    raise NotReadyError(
        f"no RDMA device here has the address {wish.address}.",
        fix=f"give it to the device's network interface, or name device and GID index of: {table(entries)}",
    )


def _only_one(entries: Sequence[GidInfo], ports: Mapping[tuple[str, int], PortInfo]) -> GidInfo:
    usable = [gid for gid in entries if _usable(gid, ports[gid.device, gid.port])]
    if not usable:
        raise NotReadyError(
            "no port has a RoCE v2 GID that routers forward.",
            fix=f"give the device's network interface an IPv4 address; the table is: {table(entries)}",
        )
    active = [gid for gid in usable if ports[gid.device, gid.port].state == ACTIVE] or usable
    if len({(gid.device, gid.port) for gid in active}) > 1:
        raise NotReadyError(
            "several RDMA ports could be meant.",
            fix=f"name the device or the host's address; there are: {table(active)}",
        )
    return min(active, key=lambda gid: (":" in gid.address, gid.index))


def _usable(gid: GidInfo, port: PortInfo) -> bool:
    if port.layer is LinkLayer.INFINIBAND:
        return gid.index == 0
    return gid.kind is GidKind.ROCE_V2 and gid.routable


def _require_active(port: PortInfo) -> None:
    if port.state == ACTIVE:
        return
    fix = (
        "bring its network interface up: sudo ip link set DEV up; is the cable plugged in?"
        if port.layer is LinkLayer.ETHERNET
        else "is the cable plugged in, and does a subnet manager run?"
    )
    raise NotReadyError(f"port {port.port} of {port.device} is {port.state}, not active.", fix=fix)


def table(entries: Sequence[GidInfo]) -> str:
    """GIDs for people, in one line."""
    shown = "; ".join(map(str, entries[:_SHOWN])) or "empty"
    return f"{shown}; and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else shown


def disagreement(mine: Mapping[str, Any], theirs: Mapping[str, Any], path_mtu_bytes: int = 0) -> tuple[str, str]:
    """Why two ends cannot talk, and what to do; two empty strings if they can.

    Args:
        mine: as `Choice.describe` tells it.
        theirs: the same from a peer, which is not believed to be complete.
        path_mtu_bytes: the path MTU that was asked for; 0: both ports' own, which must then be equal.
    """
    name = theirs.get("name", "an unknown device")
    if theirs.get("version") != VERSION:
        return f"its verbs protocol has version {theirs.get('version')}, ours {VERSION}", "use one version of Genie."
    for key, what in (("layer", "link layer"), ("kind", "GID kind")):
        if theirs.get(key) != mine[key]:
            return (
                f"{mine['name']} and {name} differ in their {what}: {mine[key]} here, {theirs.get(key)} there",
                "name devices or GID indexes that are alike on both hosts.",
            )
    if mine["kind"] != GidKind.INFINIBAND.value and _family(mine) != _family(theirs):
        return f"{mine['name']} and {name} are of two IP versions", "choose GIDs of one IP version."
    return _mtu_disagreement(mine, theirs, path_mtu_bytes)


def _family(end: Mapping[str, Any]) -> str:
    """Of an end's GID: "4", "6", or "?" if it is no GID."""
    try:
        return "6" if ":" in plain_address(str(end.get("gid"))) else "4"
    except ValueError:
        return "?"


def _mtu_disagreement(mine: Mapping[str, Any], theirs: Mapping[str, Any], path_mtu_bytes: int) -> tuple[str, str]:
    here, there = int(mine["mtu_bytes"]), int(theirs.get("mtu_bytes") or 0)
    if path_mtu_bytes:
        if path_mtu_bytes <= min(here, there):
            return "", ""
        return (
            f"the path MTU of {path_mtu_bytes} bytes is more than the ports allow ({here} here, {there} there)",
            "ask for less, or raise the MTU of the network interfaces (RoCE adds up to 96 bytes).",
        )
    if here == there:
        return "", ""
    return (
        f"the path MTU is {here} bytes at {mine['name']} and {there} bytes at {theirs.get('name')}",
        "give both network interfaces one MTU, or set a path MTU that both allow.",
    )
