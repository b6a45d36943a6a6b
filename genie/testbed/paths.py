"""Which way packets take, by UDP source port: looked up in an emulated fabric's routing tables, or probed.

A probe is a RoCEv2 packet (a zero-length RDMA WRITE to a queue pair that nobody has) with a small TTL: the router at
which it ends says so, and its address tells the hop. That works without privileges, on a lab too, as far as routers
answer.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from genie.errors import InputError, NotReadyError
from genie.formats.icrc import Way, sealed
from genie.formats.roce import PORT, Opcode, Packet, Reth
from genie.testbed.emulated import EmulatedFabric

UDP: Final = 17
MAX_HOPS: Final = 8
PATIENCE_S: Final = 0.3
TRIES: Final = 3
NOBODYS_QPN: Final = 0xFF_FFFE
_IP_RECVERR, _MSG_ERRQUEUE = 11, 0x2000
_EXTENDED_ERROR: Final = struct.Struct("=IBBBxII")
_TIME_EXCEEDED: Final = (11, 0)
_OFFENDER_AT: Final = 4
"""Where in the offender's socket address, which follows the extended error, its IPv4 address is."""

Path = tuple[str, ...]


class Hop(NamedTuple):
    """Who answered a probe, and whether that was the destination itself."""

    address: str
    last: bool


def looked_up(fabric: EmulatedFabric, source: str, destination: str, ports: Iterable[int]) -> dict[int, Path]:
    """Source port -> directed links that RoCEv2 packets of it take; sends nothing.

    Raises:
        InputError: no such host.
    """
    for host in (source, destination):
        if host not in fabric.testbed.hosts:
            raise InputError(f"{host} is no host of the testbed.", where=fabric.testbed.name)
    return {port: fabric.route(source, destination, port, PORT, UDP) for port in ports}


def spread(paths: Mapping[int, Path], number: int) -> list[int]:
    """So many source ports that use as many paths as equally as there are, the lowest ports first.

    Raises:
        InputError: fewer ports than asked for.
    """
    if number > len(paths):
        raise InputError(f"{number} ports are wanted of {len(paths)}.", fix="look at more ports.")
    by_path: dict[Path, list[int]] = {}
    for port, path in sorted(paths.items()):
        by_path.setdefault(path, []).append(port)
    chosen: list[int] = []
    while len(chosen) < number:
        for waiting in by_path.values():
            if waiting and len(chosen) < number:
                chosen.append(waiting.pop(0))
    return sorted(chosen)


def shared_links(paths: Iterable[Path]) -> Counter[str]:
    """How many of some flows use each link, where it is more than one."""
    counts = Counter(link for path in paths for link in path)
    return Counter({link: flows for link, flows in counts.items() if flows > 1})


def probed(source: str, destination: str, ports: Sequence[int], hops: int = MAX_HOPS) -> dict[int, Path]:
    """Source port -> addresses of the routers on the way, "?" for one that stays silent; ends with the destination.

    To be called in the source's network namespace.

    Raises:
        NotReadyError: a port or the address cannot be used.
    """
    return {port: _probe_port(source, destination, port, hops) for port in ports}


def _probe_port(source: str, destination: str, port: int, hops: int) -> Path:
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((source, port))
        except OSError as error:
            raise NotReadyError(f"cannot send from {source}, UDP port {port}: {error.strerror}.") from error
        sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
        sock.setblocking(False)  # noqa: FBT003 - socket knows no keyword
        body = Packet(Opcode.WRITE_ONLY, NOBODYS_QPN, 0, reth=Reth(0, 0, 0)).body()
        data = sealed(Way.between(source, destination, port), body)
        for ttl in range(1, hops + 1):
            hop = _probe(sock, (destination, PORT), ttl, data)
            found.append(hop.address if hop else "?")
            if hop and hop.last:
                break
    return tuple(found)


def _probe(sock: socket.socket, to: tuple[str, int], ttl: int, data: bytes) -> Hop | None:
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
    for _ in range(TRIES):
        with contextlib.suppress(OSError):  # what an earlier probe met
            sock.sendto(data, to)
        until = time.monotonic() + PATIENCE_S
        while (left := until - time.monotonic()) > 0:
            select.select([], [], [sock], left)
            hop = _answer(sock)
            if hop is not None:
                return hop
    return None


def _answer(sock: socket.socket) -> Hop | None:
    try:
        _, ancillary, _, _ = sock.recvmsg(0, 512, _MSG_ERRQUEUE)
    except OSError:
        return None
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, _IP_RECVERR):
            _, _, icmp_type, icmp_code, _, _ = _EXTENDED_ERROR.unpack_from(data)
            at = _EXTENDED_ERROR.size + _OFFENDER_AT
            return Hop(socket.inet_ntoa(data[at : at + 4]), (icmp_type, icmp_code) != _TIME_EXCEEDED)
    return None
