"""Two hosts with a router between them, in namespaces of their own: a fabric's kind of way, with no rate of its own."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from genie.testbed import netlink
from genie.testbed.namespaces import create, inside
from genie.testbed.netlink import Conversation, End

HOMES = ("10.77.0.2", "10.77.1.2")
_ROUTERS = ("10.77.0.1", "10.77.1.1")
_ANYWHERE = "0.0.0.0"  # noqa: S104 - a route's destination
_MTU, _SEGMENTS, _HOST_PORT = 4_200, 64, 10


class Routed:
    """`with Routed() as way`: way.hosts are descriptors of the hosts' namespaces, at HOMES."""

    def __enter__(self) -> Self:
        self.hosts = [create(), create()]
        self._router = create()
        with inside(self._router), Conversation() as router:
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")
            for at, fd in enumerate(self.hosts):
                here, there = End(f"r{at}", _HOST_PORT + at, _mac(at)), End("eth0", _HOST_PORT, _mac(at + 2), fd)
                router.say([netlink.veth(here, there, _MTU, _SEGMENTS)])
                ends = [netlink.address(here.number, _ROUTERS[at], 24), netlink.up(here.number)]
                router.say([*ends, netlink.neighbour(here.number, HOMES[at], there.mac)])
        for at, fd in enumerate(self.hosts):
            with inside(fd), Conversation() as host:
                requests = [netlink.up(1), netlink.address(_HOST_PORT, HOMES[at], 24), netlink.up(_HOST_PORT)]
                requests.append(netlink.neighbour(_HOST_PORT, _ROUTERS[at], _mac(at)))
                host.say([*requests, netlink.route(_ANYWHERE, 0, [(_ROUTERS[at], _HOST_PORT)], {})])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for fd in (*self.hosts, self._router):
            os.close(fd)


def _mac(number: int) -> bytes:
    return bytes((2, 0, 0, 0, 77, number))
