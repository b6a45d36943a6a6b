"""What a switch's routing table should hold, what it holds, and waiting until a routing daemon has filled it."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from genie.core.testbed import Endpoint, Testbed
from genie.testbed.addressing import PREFIX, Port
from genie.testbed.namespaces import inside
from genie.testbed.netlink import (
    GET_ROUTE,
    ROUTE,
    ROUTE_EVENTS,
    RTA_DST,
    RTA_MULTIPATH,
    RTA_OIF,
    TABLE_MAIN,
    Conversation,
    attributes,
)

CONVERGE_TIMEOUT_S: Final = 30.0
QUIET_S: Final = 12.0
"""Tables that still lack something and have not changed for so long are taken for final: FRR tells IPv6 neighbours of
itself every 10 s where its configuration does not say otherwise."""

_NEXT_HOP: Final = struct.Struct("=HBBi")

Table = dict[str, frozenset[int]]
"""Network ("10.0.0.4/30") -> numbers of the interfaces on its equal ways."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A switch whose ways to a host's NIC are not the topology's; both are names of neighbours."""

    switch: str
    host: str
    network: str
    wanted: tuple[str, ...]
    found: tuple[str, ...]

    def __str__(self) -> str:
        there = f"{self.host} ({self.network})"
        if not self.found:
            return f"{self.switch} has no route to {there}"
        lost, odd = sorted(set(self.wanted) - set(self.found)), sorted(set(self.found) - set(self.wanted))
        words = f" without {', '.join(lost)}" if lost else ""
        instead = f", but goes by {', '.join(odd)}" if odd else ""
        right = len(self.wanted) - len(lost)
        return f"{self.switch} has {right} of {len(self.wanted)} ways to {there}{words}{instead}"


def read_table(conversation: Conversation) -> Table:
    """The main table of a namespace."""
    table: Table = {}
    for body in conversation.dump(GET_ROUTE, ROUTE.pack(socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0)):
        _, length, _, _, number, *_ = ROUTE.unpack_from(body)
        told = dict(attributes(body, ROUTE.size))
        if number == TABLE_MAIN and RTA_DST in told:
            table[f"{socket.inet_ntoa(told[RTA_DST])}/{length}"] = frozenset(_ways(told))
    return table


def _ways(told: Mapping[int, bytes]) -> Iterator[int]:
    if RTA_OIF in told:
        yield struct.unpack("=I", told[RTA_OIF])[0]
    hops, at = told.get(RTA_MULTIPATH, b""), 0
    while at + _NEXT_HOP.size <= len(hops):
        length, _, _, index = _NEXT_HOP.unpack_from(hops, at)
        if length < _NEXT_HOP.size:
            return
        yield index
        at += length + 3 & ~3


def wanted_hops(testbed: Testbed, ends: Mapping[Endpoint, tuple[Port, str]]) -> dict[str, dict[Endpoint, list[str]]]:
    """Switch -> endpoint -> the neighbours on its shortest ways."""
    hosts, wanted = set(testbed.hosts), dict[str, dict[Endpoint, list[str]]]()
    for end in ends:
        for node, hops in testbed.next_hops(end).items():
            if node not in hosts:
                wanted.setdefault(node, {})[end] = hops
    return wanted


def gaps(
    switch: str,
    table: Table,
    wanted: Mapping[Endpoint, Sequence[str]],
    ends: Mapping[Endpoint, tuple[Port, str]],
    behind: Mapping[tuple[str, int], str],
) -> list[Gap]:
    """What a switch's table lacks or has too much."""
    found = []
    for end, hops in wanted.items():
        network, ways = _best(table, ends[end][1])
        names = tuple(sorted(behind.get((switch, index), "?") for index in ways))
        if set(names) != set(hops):
            found.append(Gap(switch, str(end), network, tuple(hops), names))
    return found


def _best(table: Table, address: str) -> tuple[str, frozenset[int]]:
    """The longest network of the table that holds an address, and its ways; the host's own network if none does."""
    number = int.from_bytes(socket.inet_aton(address), "big")
    for length in range(32, -1, -1):
        base = number >> 32 - length << 32 - length if length else 0
        network = f"{socket.inet_ntoa(base.to_bytes(4, 'big'))}/{length}"
        if network in table:
            return network, table[network]
    base = number >> 32 - PREFIX << 32 - PREFIX
    return f"{socket.inet_ntoa(base.to_bytes(4, 'big'))}/{PREFIX}", frozenset()


def converge(namespaces: Mapping[str, int], look: Callable[[str], list[Gap]]) -> list[Gap]:
    """Wait until no switch lacks anything, or until nothing has changed for long; what is still lacking.

    Args:
        namespaces: switch -> descriptor.
        look: what a switch's table lacks now.
    """
    with contextlib.ExitStack() as stack:
        events: dict[Conversation, str] = {}
        for switch, fd in namespaces.items():
            with inside(fd):
                events[stack.enter_context(Conversation(ROUTE_EVENTS))] = switch
        lacking = {switch: look(switch) for switch in namespaces}
        deadline = time.monotonic() + CONVERGE_TIMEOUT_S
        while any(lacking.values()):
            left_s = min(QUIET_S, deadline - time.monotonic())
            ready = select.select([talk.socket for talk in events], [], [], left_s)[0] if left_s > 0 else []
            if not ready:
                break
            for talk in [talk for talk in events if talk.socket in ready]:
                talk.receive()
                lacking[events[talk]] = look(events[talk])
        return [gap for row in lacking.values() for gap in row]
