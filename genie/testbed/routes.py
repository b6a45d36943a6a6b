"""Asking a kernel's routing table which way a flow goes, by raw rtnetlink: pyroute2 cannot name the flow's ports."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Final, Self

from genie.errors import RunError

_NETLINK_ROUTE: Final = 0
_NLM_F_REQUEST: Final = 1
_RTM_GETROUTE: Final = 26
_NLMSG_ERROR: Final = 2
_RTM_F_LOOKUP: Final = 0x1000
_RTA_DST, _RTA_SRC, _RTA_IIF, _RTA_OIF = 1, 2, 3, 4
_RTA_IP_PROTO, _RTA_SPORT, _RTA_DPORT = 27, 28, 29
_HEADER: Final = struct.Struct("=IHHII")
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE: Final = struct.Struct("=HH")


@dataclass(frozen=True, slots=True)
class FlowKey:
    """What ECMP hashes: addresses (dotted), IP protocol and ports."""

    source: str
    destination: str
    protocol: int
    sport: int
    dport: int


class RouteTable:
    """A socket to the routing table of the network namespace in which this was made."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE)
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def egress(self, flow: FlowKey, iif: int = 0) -> int:
        """Index of the interface that the flow leaves through, having come in at `iif` (0: sent from here).

        Raises:
            RunError: no route.
        """
        self._sequence += 1
        body = _ROUTE.pack(socket.AF_INET, 32, 32 if iif else 0, 0, 0, 0, 0, 0, _RTM_F_LOOKUP) + _attributes(flow, iif)
        header = _HEADER.pack(_HEADER.size + len(body), _RTM_GETROUTE, _NLM_F_REQUEST, self._sequence, 0)
        self._socket.send(header + body)
        return _outgoing(self._socket.recv(65536), flow)


def _attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def _attributes(flow: FlowKey, iif: int) -> bytes:
    found = _attribute(_RTA_DST, socket.inet_aton(flow.destination))
    if iif:
        found += _attribute(_RTA_SRC, socket.inet_aton(flow.source)) + _attribute(_RTA_IIF, struct.pack("=I", iif))
    found += _attribute(_RTA_IP_PROTO, struct.pack("=B", flow.protocol))
    return (
        found
        + _attribute(_RTA_SPORT, struct.pack("!H", flow.sport))
        + _attribute(_RTA_DPORT, struct.pack("!H", flow.dport))
    )


def _outgoing(answer: bytes, flow: FlowKey) -> int:
    kind = _HEADER.unpack_from(answer)[1]
    if kind == _NLMSG_ERROR:
        number = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        raise RunError(f"no route to {flow.destination} (error {number}).")
    at = _HEADER.size + _ROUTE.size
    while at + _ATTRIBUTE.size <= len(answer):
        length, attribute = _ATTRIBUTE.unpack_from(answer, at)
        if attribute == _RTA_OIF:
            return int(struct.unpack_from("=I", answer, at + _ATTRIBUTE.size)[0])
        at += max(4, length + 3 & ~3)
    raise RunError(f"the route to {flow.destination} names no interface.")
