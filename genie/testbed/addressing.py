"""Which interface, address and hardware address each end of every cable gets: a pure function of the testbed."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from genie.core.testbed import Cable, Endpoint, Testbed, link_name

PREFIX: Final = 30
FIRST_INDEX: Final = 10
_NETWORK: Final = 10 << 24
_SLOTS: Final = (100 << 24) + (64 << 16)
"""100.64.0.0/10: addresses of the second and later ranks on one NIC."""

_LOCAL_UNICAST: Final = b"\x02\x00"


@dataclass(frozen=True, slots=True)
class Port:
    """One end of a cable: interface `name`, number `index`, on `node`; its own IPv4 address and its peer's."""

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
        return link_name(self.node, self.peer)

    @property
    def mac(self) -> bytes:
        """Hardware address: locally administered, ends in the IPv4 address."""
        return mac(self.address)


def mac(address: str) -> bytes:
    """The hardware address that goes with an IPv4 address of ours."""
    return _LOCAL_UNICAST + socket.inet_aton(address)


def ports(testbed: Testbed) -> tuple[Port, ...]:
    """Both ends of every cable; cable i has the network 10.0.0.0/30 + 4 i.

    Interfaces are called eth0, eth1, ... in the order of a node's cables; their numbers differ between the ends of a
    cable, since Linux takes up to a second to notice that a link is up whose two ends have one number.
    """
    used = dict.fromkeys((node.name for node in testbed.nodes), 0)
    made = []
    for number, cable in enumerate(testbed.cables):
        mine, theirs = _address(4 * number + 1), _address(4 * number + 2)
        ends = ((cable.a, mine, cable.b, theirs), (cable.b, theirs, cable.a, mine))
        for end, (node, address, peer, peer_address) in enumerate(ends):
            index = FIRST_INDEX + 2 * number + end
            made.append(Port(node, f"eth{used[node]}", index, address, peer, peer_address, cable))
            used[node] += 1
    return tuple(made)


def _address(number: int) -> str:
    return _text(_NETWORK + number)


def _text(address: int) -> str:
    return socket.inet_ntoa(address.to_bytes(4, "big"))


def addresses(testbed: Testbed, found: Iterable[Port]) -> dict[Endpoint, tuple[Port, str]]:
    """Endpoint -> its NIC's port and its own IPv4 address: every NIC of every host, and every rank's place."""
    hosts, nics = set(testbed.hosts), dict[str, list[Port]]()
    for port in found:
        if port.node in hosts:
            nics.setdefault(port.node, []).append(port)
    told = {Endpoint(host, at): (port, port.address) for host, row in nics.items() for at, port in enumerate(row)}
    more = (end for end in testbed.endpoints if end.slot)
    return told | {end: (nics[end.host][end.nic], _text(_SLOTS + at)) for at, end in enumerate(more, start=1)}
