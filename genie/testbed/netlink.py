"""Routing netlink in batches: hundreds of requests in one system call, errors told with the request they belong to.

What a fabric needs many of (interfaces, addresses, neighbours, routes) and what pyroute2 cannot express (numbers for
the far end of a veth pair, look-ups that name a flow's ports) is laid out here; rtnetlink(7) describes the layouts.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, Self

NETLINK_ROUTE, NETLINK_NETFILTER = 0, 12
LINK_EVENTS: Final = 1
"""The multicast group (a mask) of everything that happens to interfaces."""

ROUTE_EVENTS: Final = 0x40
"""The same, of everything that happens to IPv4 routes."""

NEW_LINK, GET_LINK = 16, 18
NEW_ADDRESS: Final = 20
NEW_ROUTE, DELETE_ROUTE, GET_ROUTE = 24, 25, 26
NEW_NEIGHBOUR: Final = 28
NEW_RULE: Final = 32
GET_QDISC, GET_CLASS = 38, 42
ERROR, DONE = 2, 3

REQUEST, ACKNOWLEDGE = 0x1, 0x4
CREATE, EXCLUSIVE, REPLACE = 0x400, 0x200, 0x100
DUMP: Final = 0x300
_CAPPED, _WITH_TEXT = 0x100, 0x200

HEADER: Final = struct.Struct("=IHHII")
ATTRIBUTE: Final = struct.Struct("=HH")
INTERFACE: Final = struct.Struct("=BxHiII")
_ADDRESS: Final = struct.Struct("=BBBBI")
ROUTE: Final = struct.Struct("=BBBBBBBBI")
_NEIGHBOUR: Final = struct.Struct("=BxxxiHBB")
QUEUE: Final = struct.Struct("=BxxxiIII")
_NEXT_HOP: Final = struct.Struct("=HBBi")

IFF_UP: Final = 1
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_OPERSTATE, IFLA_LINKINFO = 1, 3, 4, 16, 18
_IFLA_NET_NS_FD, _IFLA_TX_QUEUES, _IFLA_RX_QUEUES, _IFLA_GSO_MAX_SEGS = 28, 31, 32, 40
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
RTA_DST, RTA_SRC, RTA_IIF, RTA_OIF, _RTA_GATEWAY, _RTA_METRICS, RTA_MULTIPATH = 1, 2, 3, 4, 5, 8, 9
_NDA_DST, _NDA_LLADDR = 1, 2
_FRA_SRC, _TO_TABLE = 2, 1
_NUD_PERMANENT: Final = 0x80
TABLE_MAIN, _PROTOCOL_BOOT, _UNICAST = 254, 3, 1

BATCH: Final = 64
"""Requests a system call: their answers fit any socket's receive buffer."""

_RECEIVE_BYTES: Final = 1 << 17
_SOL_NETLINK, _EXT_ACK, _CAP_ACK = 270, 11, 10


class Request(NamedTuple):
    """One message: its kind, flags besides REQUEST, what follows the header, and what to call it when it fails."""

    kind: int
    flags: int
    body: bytes
    what: str


class Answer(NamedTuple):
    """One message from the kernel."""

    kind: int
    flags: int
    sequence: int
    body: bytes


class End(NamedTuple):
    """One end of a veth pair: its interface; `namespace` is a descriptor, None for where the pair is asked for."""

    name: str
    number: int
    mac: bytes
    namespace: int | None = None


def attribute(kind: int, value: bytes) -> bytes:
    """An attribute, padded to four bytes."""
    return ATTRIBUTE.pack(ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def number(kind: int, value: int) -> bytes:
    """An attribute that is an unsigned 32-bit number."""
    return attribute(kind, struct.pack("=I", value))


def attributes(data: bytes, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """(kind, value) of every attribute in `data` from byte `at` on."""
    while at + ATTRIBUTE.size <= len(data):
        length, kind = ATTRIBUTE.unpack_from(data, at)
        if length < ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[at + ATTRIBUTE.size : at + length]
        at += length + 3 & ~3


def veth(here: End, there: End, mtu: int, gso_segments: int) -> Request:
    """A cable: two interfaces, both down; super-packets of at most `gso_segments` packets leave them."""
    common = number(IFLA_MTU, mtu) + number(_IFLA_GSO_MAX_SEGS, gso_segments)
    common += number(_IFLA_TX_QUEUES, 1) + number(_IFLA_RX_QUEUES, 1)
    peer = _end(there) + common
    kind = attribute(_INFO_KIND, b"veth\0") + attribute(_INFO_DATA, attribute(_VETH_PEER, peer))
    return Request(
        NEW_LINK, CREATE | EXCLUSIVE, _end(here) + common + attribute(IFLA_LINKINFO, kind), f"adding {here.name}"
    )


def _end(end: End) -> bytes:
    told = INTERFACE.pack(0, 0, end.number, 0, 0)
    told += attribute(IFLA_IFNAME, end.name.encode() + b"\0") + attribute(IFLA_ADDRESS, end.mac)
    return told if end.namespace is None else told + number(_IFLA_NET_NS_FD, end.namespace)


def up(index: int) -> Request:
    """Switch an interface on."""
    return Request(NEW_LINK, 0, INTERFACE.pack(0, 0, index, IFF_UP, IFF_UP), f"switching on interface {index}")


def resize(index: int, mtu: int, gso_segments: int) -> Request:
    """Give an interface, such as a loopback, another MTU and length of super-packets."""
    body = INTERFACE.pack(0, 0, index, 0, 0) + number(IFLA_MTU, mtu) + number(_IFLA_GSO_MAX_SEGS, gso_segments)
    return Request(NEW_LINK, 0, body, f"resizing interface {index}")


def down(index: int) -> Request:
    """Switch an interface off."""
    return Request(NEW_LINK, 0, INTERFACE.pack(0, 0, index, 0, IFF_UP), f"switching off interface {index}")


def address(index: int, ip: str, prefix: int) -> Request:
    """Give an interface an IPv4 address."""
    packed = socket.inet_aton(ip)
    body = _ADDRESS.pack(socket.AF_INET, prefix, 0, 0, index)
    body += attribute(_IFA_LOCAL, packed) + attribute(_IFA_ADDRESS, packed)
    return Request(NEW_ADDRESS, CREATE | EXCLUSIVE, body, f"giving address {ip}")


def neighbour(index: int, ip: str, mac: bytes) -> Request:
    """Who has an address, for good: nobody is ever asked."""
    body = _NEIGHBOUR.pack(socket.AF_INET, index, _NUD_PERMANENT, 0, 0)
    body += attribute(_NDA_DST, socket.inet_aton(ip)) + attribute(_NDA_LLADDR, mac)
    return Request(NEW_NEIGHBOUR, CREATE, body, f"setting neighbour {ip}")


def rule(source: str, table: int) -> Request:
    """What is sent from an address is routed by a table of its own."""
    body = ROUTE.pack(socket.AF_INET, 0, 32, 0, table, 0, 0, _TO_TABLE, 0)
    return Request(NEW_RULE, CREATE | EXCLUSIVE, body + attribute(_FRA_SRC, socket.inet_aton(source)), "adding a rule")


def route(
    destination: str, prefix: int, ways: Sequence[tuple[str, int]], metrics: dict[int, bytes], table: int = TABLE_MAIN
) -> Request:
    """A route to a prefix by one or several (gateway, interface) of equal weight; metrics by RTAX_* number."""
    body = ROUTE.pack(socket.AF_INET, prefix, 0, 0, table, _PROTOCOL_BOOT, 0, _UNICAST, 0)
    if prefix:
        body += attribute(RTA_DST, socket.inet_aton(destination))
    if len(ways) == 1:
        gateway, index = ways[0]
        body += attribute(_RTA_GATEWAY, socket.inet_aton(gateway)) + number(RTA_OIF, index)
    else:
        body += attribute(RTA_MULTIPATH, b"".join(_next_hop(*way) for way in ways))
    if metrics:
        body += attribute(_RTA_METRICS, b"".join(attribute(*metric) for metric in metrics.items()))
    return Request(NEW_ROUTE, CREATE | EXCLUSIVE, body, f"routing to {destination}/{prefix}")


def _next_hop(gateway: str, index: int) -> bytes:
    way = attribute(_RTA_GATEWAY, socket.inet_aton(gateway))
    return _NEXT_HOP.pack(_NEXT_HOP.size + len(way), 0, 0, index) + way


class Conversation:
    """A routing socket of the network namespace in which this was made."""

    def __init__(self, groups: int = 0, protocol: int = NETLINK_ROUTE) -> None:
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self.socket.bind((0, groups))
        for option in (_EXT_ACK, _CAP_ACK):
            self.socket.setsockopt(_SOL_NETLINK, option, 1)
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def say(self, requests: Iterable[Request]) -> None:
        """Carry out many requests, in order.

        Raises:
            OSError: the kernel refused one; its `filename` is what it was, those after it in the batch may be done.
        """
        remaining = iter(requests)
        while batch := list(islice(remaining, BATCH)):
            self._say(batch)

    def _say(self, batch: Sequence[Request]) -> None:
        first = self._sequence + 1
        self.socket.send(b"".join(self._pack(request, ACKNOWLEDGE) for request in batch))
        failed: OSError | None = None
        answered = 0
        while answered < len(batch):
            for answer in self.receive():
                if answer.kind == ERROR and first <= answer.sequence <= self._sequence:
                    answered += 1
                    failed = failed or _error(answer, batch[answer.sequence - first].what)
        if failed is not None:
            raise failed

    def _pack(self, request: Request, flags: int) -> bytes:
        self._sequence += 1
        length = HEADER.size + len(request.body)
        header = HEADER.pack(length, request.kind, request.flags | REQUEST | flags, self._sequence, 0)
        return header + request.body + bytes(-length % 4)

    def ask(self, request: Request) -> bytes:
        """The body of the one message that answers.

        Raises:
            OSError: the kernel refused; its `filename` is what was asked.
        """
        self.socket.send(self._pack(request, 0))
        answer = next(a for a in self.receive() if a.sequence == self._sequence)
        failed = _error(answer, request.what) if answer.kind == ERROR else None
        if failed is not None:
            raise failed
        return answer.body

    def dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        """The bodies of all messages of a list.

        Raises:
            OSError: the kernel refused.
        """
        self.socket.send(self._pack(Request(kind, DUMP, body, ""), 0))
        while True:
            for answer in self.receive():
                if answer.sequence != self._sequence:
                    continue
                if answer.kind == DONE:
                    return
                failed = _error(answer, f"list {kind}") if answer.kind == ERROR else None
                if failed is not None:
                    raise failed
                yield answer.body

    def receive(self) -> list[Answer]:
        """The messages of one datagram; waits for it."""
        return list(_split(self.socket.recv(_RECEIVE_BYTES)))


def _split(data: bytes) -> Iterator[Answer]:
    at = 0
    while at + HEADER.size <= len(data):
        length, kind, flags, sequence, _ = HEADER.unpack_from(data, at)
        if length < HEADER.size:
            return
        yield Answer(kind, flags, sequence, data[at + HEADER.size : at + length])
        at += length + 3 & ~3


def _error(answer: Answer, what: str) -> OSError | None:
    """None for an acknowledgement; else the error, with the kernel's own words where it says any."""
    code = -struct.unpack_from("=i", answer.body)[0]
    if not code:
        return None
    words = ""
    if answer.flags & _CAPPED and answer.flags & _WITH_TEXT:
        told = dict(attributes(answer.body, 4 + HEADER.size))
        words = told.get(1, b"").rstrip(b"\0").decode(errors="replace")
    return OSError(code, f"{os.strerror(code)}{f' ({words})' if words else ''}", what)
