"""Asking a kernel's routing table which way a flow goes, without sending anything."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from typing import Final

from genie.errors import RunError
from genie.testbed.netlink import (
    GET_ROUTE,
    ROUTE,
    RTA_DST,
    RTA_IIF,
    RTA_OIF,
    RTA_SRC,
    Conversation,
    Request,
    attribute,
    attributes,
    number,
)

_LOOK_UP: Final = 0x1000
_RTA_IP_PROTO, _RTA_SPORT, _RTA_DPORT = 27, 28, 29
_WHOLE: Final = 32


@dataclass(frozen=True, slots=True)
class FlowKey:
    """What ECMP hashes: addresses (dotted), IP protocol and ports."""

    source: str
    destination: str
    protocol: int
    sport: int
    dport: int


def egress(table: Conversation, flow: FlowKey, iif: int = 0) -> int:
    """Index of the interface that the flow leaves through, having come in at `iif` (0: sent from here).

    Raises:
        RunError: no route.
    """
    body = ROUTE.pack(socket.AF_INET, _WHOLE, _WHOLE, 0, 0, 0, 0, 0, _LOOK_UP) + _attributes(flow, iif)
    try:
        answer = table.ask(Request(GET_ROUTE, 0, body, flow.destination))
    except OSError as error:
        raise RunError(f"no route to {flow.destination} ({os.strerror(error.errno or 0)}).") from error
    found = dict(attributes(answer, ROUTE.size))
    if RTA_OIF not in found:
        raise RunError(f"the route to {flow.destination} names no interface.")
    return int(struct.unpack("=I", found[RTA_OIF])[0])


def _attributes(flow: FlowKey, iif: int) -> bytes:
    told = attribute(RTA_DST, socket.inet_aton(flow.destination)) + attribute(RTA_SRC, socket.inet_aton(flow.source))
    if iif:
        told += number(RTA_IIF, iif)
    told += attribute(_RTA_IP_PROTO, bytes([flow.protocol]))
    ports = ((_RTA_SPORT, flow.sport), (_RTA_DPORT, flow.dport))
    return told + b"".join(attribute(kind, struct.pack("!H", port)) for kind, port in ports)
