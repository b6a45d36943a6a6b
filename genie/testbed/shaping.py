"""What shapes one direction of a cable: HTB at the link's rate, a queue of its buffer, a class for small packets.

The only module that uses pyroute2: it lays out the traffic-control messages. All ports of a kind are shaped alike, so a
message is laid out once and copied with the port's number in it.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyroute2 import IPBatch
from pyroute2.netlink.rtnl.tcmsg import plugins, sched_pfifo

from genie.core.testbed import ETHERNET_BYTES, MIN_REAL_BPS
from genie.testbed.netlink import HEADER, Request
from genie.units import BITS_PER_BYTE, NS_PER_S, transfer_ns

plugins.setdefault("bfifo", sched_pfifo)  # the same one number, but bytes; pyroute2 knows only the packet variant

BURST_NS: Final = 1_000_000
"""The shaper may lag by this much real time; shorter bursts lose rate on a busy machine, longer ones blur it."""

ROCE_PORT: Final = 4791
_ROCE_ACKNOWLEDGE, _ROCE_CONGESTION = 0x11, 0x81
_ETH_P_IP: Final = 0x0800
_ETH_P_IPV6: Final = 0x86DD
_ROOT, _BULK, _SMALL = 0x1_0000, 0x1_0001, 0x1_0002
_BULK_QUEUE, _SMALL_QUEUE = 0x10_0000, 0x20_0000
_INDEX_AT: Final = 4
"""Where a traffic-control message holds the interface's number."""

_ROCE: Final = ("0x11/0xff+9", f"{ROCE_PORT:#06x}/0xffff+22")
_RULES: Final = (
    ((*_ROCE, f"{_ROCE_ACKNOWLEDGE:#04x}/0xff+28"), _SMALL),
    ((*_ROCE, f"{_ROCE_CONGESTION:#04x}/0xff+28"), _SMALL),
    (_ROCE, _BULK),
    (("0x0000/0xff00+2",), _SMALL),
)
"""First match counts: RoCE acknowledgements (positive or negative) and congestion notifications are small, other RoCE
packets are not, however short (a message's last packet must not overtake the rest); of everything else, what is under
256 bytes of IP. Offsets are from the start of an IPv4 header without options."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a port is shaped: real rate of whole frames, bytes of queue, IP bytes of a full packet.

    `routing`: IPv6 is what routing daemons say to each other, and goes before data.
    """

    wire_bps: int
    queue_bytes: int
    mtu: int
    routing: bool = False


def shape(index: int, wanted: Shape) -> Iterator[Request]:
    """What to ask for, for interface number `index`."""
    for request in _laid_out(wanted):
        body = bytearray(request.body)
        struct.pack_into("=i", body, _INDEX_AT, index)
        yield request._replace(body=bytes(body))


@functools.lru_cache(maxsize=64)
def _laid_out(wanted: Shape) -> tuple[Request, ...]:
    """The messages of one kind of port, for an interface without a number.

    Small packets are not charged to the link: TCP acknowledges every other packet, a NIC once a message, and the
    difference (0.4 % of a link used both ways) is TCP's, not the modelled network's.
    """
    with contextlib.closing(IPBatch()) as batch:
        batch.tc("add", "htb", 0, _ROOT, default=_BULK)
        _class(batch, (_BULK, _BULK_QUEUE), wanted, wanted.wire_bps, prio=1)
        _class(batch, (_SMALL, _SMALL_QUEUE), wanted, max(wanted.wire_bps // 10, MIN_REAL_BPS), prio=0)
        for place, (keys, target) in enumerate(_RULES, start=1):
            _rule(batch, place, keys, target)
        if wanted.routing:
            _rule(batch, len(_RULES) + 1, ("0x0/0x0+0",), _SMALL, protocol=_ETH_P_IPV6)
        return tuple(_requests(bytes(batch.batch)))


def reshape(index: int, wanted: Shape) -> Iterator[Request]:
    """What to ask for so that an interface that is shaped gets another rate or queue; what is queued stays."""
    with contextlib.closing(IPBatch()) as batch:
        _class(batch, (_BULK, _BULK_QUEUE), wanted, wanted.wire_bps, 1, index, verb="change")
        _class(batch, (_SMALL, _SMALL_QUEUE), wanted, max(wanted.wire_bps // 10, MIN_REAL_BPS), 0, index, verb="change")
        yield from _requests(bytes(batch.batch))


def shape_loopback(index: int, sources: Sequence[str], wanted: Shape) -> Iterator[Request]:
    """What to ask for so that what each address sends to its own host is shaped for itself; small packets are not."""
    with contextlib.closing(IPBatch()) as batch:
        batch.tc("add", "htb", index, _ROOT, default=0)
        _rule(batch, 1, ("0x0000/0xff00+2",), _ROOT, index)
        for at, source in enumerate(sources, start=1):
            _class(batch, (_ROOT + at, at + 1 << 16), wanted, wanted.wire_bps, prio=0, index=index)
            address = int.from_bytes(socket.inet_aton(source), "big")
            _rule(batch, 2, (f"{address:#010x}/0xffffffff+12",), _ROOT + at, index)
        yield from _requests(bytes(batch.batch))


def _class(
    batch: Any, names: tuple[int, int], wanted: Shape, rate_bps: int, prio: int, index: int = 0, verb: str = "add"
) -> None:
    """A class and its queue, of those names."""
    frame, rate = wanted.mtu + ETHERNET_BYTES, f"{rate_bps}bit"
    burst = _burst_bytes(wanted.wire_bps, wanted.mtu)
    common = {"burst": burst, "cburst": burst, "quantum": frame}
    batch.tc(f"{verb}-class", "htb", index, names[0], parent=_ROOT, rate=rate, ceil=rate, prio=prio, **common)
    batch.tc(verb, "bfifo", index, names[1], parent=names[0], limit=wanted.queue_bytes)


def _burst_bytes(wire_bps: int, mtu: int) -> int:
    return max(2 * (mtu + ETHERNET_BYTES), wire_bps * BURST_NS // (BITS_PER_BYTE * NS_PER_S))


def credit_ns(wire_bps: int, mtu: int) -> int:
    """Real time that a link of that rate may catch up after it was idle."""
    return round(transfer_ns(_burst_bytes(wire_bps, mtu), wire_bps))


def _rule(batch: Any, place: int, keys: Sequence[str], target: int, index: int = 0, protocol: int = _ETH_P_IP) -> None:
    common = {"parent": _ROOT, "prio": place, "protocol": protocol}
    batch.tc("add-filter", "u32", index, target=target, keys=list(keys), **common)


def _requests(data: bytes) -> Iterator[Request]:
    at = 0
    while at < len(data):
        length, kind, flags, _, _ = HEADER.unpack_from(data, at)
        yield Request(kind, flags, data[at + HEADER.size : at + length], "shaping a port")
        at += length + 3 & ~3
