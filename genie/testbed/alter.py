"""Lets faults happen on an emulated fabric that is up: links go and come, ports get slower, smaller or lossy.

Several faults may strike one port; the one that began last counts. What ends gives way to what is still on, at last to
what the testbed says.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from genie.core.faults import OF_CABLES, Action, FaultKind, Step
from genie.core.testbed import MAX_REAL_BPS, MIN_REAL_BPS, link_name
from genie.errors import RunError
from genie.testbed import netlink
from genie.testbed.addressing import Port, mac
from genie.testbed.emulated import EmulatedFabric
from genie.testbed.loss import lose
from genie.testbed.netlink import Request
from genie.testbed.shaping import Shape, reshape

_NO_WAY: Final = frozenset({errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EINVAL})


class Alterations:
    """The present state of a fabric's ports, changed step by step."""

    def __init__(self, fabric: EmulatedFabric) -> None:
        self._fabric = fabric
        self._on: dict[str, list[Step]] = {}
        self._routes = fabric.routes()

    def __call__(self, step: Step) -> None:
        """Let it happen.

        Raises:
            RunError: the kernel refused, or a rate that cannot be shaped.
        """
        try:
            self._alter(step)
        except OSError as error:
            what = f"{error.filename}: {error.strerror}"
            raise RunError(f"could not be done: {what}.", where=f"fault {step.kind} of {step.target}") from error

    def _alter(self, step: Step) -> None:
        if step.action is Action.REROUTE:
            self._reroute()
            return
        before = self._on.setdefault(step.target, [])
        was_down = any(one.kind in OF_CABLES for one in before)
        if step.action is Action.BEGIN:
            before.append(step)
        else:
            before[:] = [one for one in before if one.fault != step.fault]
        if step.kind not in OF_CABLES:
            self._change_port(step.target, step.kind)
        elif was_down != (now_down := any(one.kind in OF_CABLES for one in before)):
            self._plug(step.target, down=now_down)

    def _latest(self, target: str, kind: FaultKind) -> int | None:
        return next((one.value for one in reversed(self._on.get(target, [])) if one.kind is kind), None)

    def _change_port(self, link: str, kind: FaultKind) -> None:
        port = self._fabric.port(link)
        if kind is FaultKind.LOSS:
            lose(self._fabric, port, self._latest(link, kind) or 0)
        else:
            self._fabric.say(port.node, reshape(port.index, self._shape(link, port)))

    def _shape(self, link: str, port: Port) -> Shape:
        testbed, shape = self._fabric.testbed, self._fabric.shape_of(port)
        rate_bps, buffer_bytes = (self._latest(link, kind) for kind in (FaultKind.RATE, FaultKind.BUFFER))
        if rate_bps is not None:
            wire_bps = testbed.wire_bps(replace(port.cable, rate_bps=rate_bps))
            if not MIN_REAL_BPS <= wire_bps <= MAX_REAL_BPS:
                raise RunError(f"{rate_bps} bit/s at dilation {testbed.dilation} cannot be shaped.", where=link)
            shape = replace(shape, wire_bps=wire_bps)
        return shape if buffer_bytes is None else replace(shape, queue_bytes=buffer_bytes)

    def _plug(self, cable: str, *, down: bool) -> None:
        """Both ends of a cable go down or come up; a port forgets its neighbour when it goes down."""
        for port in self._ends(cable):
            requests = [netlink.down(port.index)] if down else [netlink.up(port.index)]
            if not down:
                requests.append(netlink.neighbour(port.index, port.peer_address, mac(port.peer_address)))
            self._fabric.say(port.node, requests)
        if not down:
            self._give_back_routes(cable)

    def _ends(self, cable: str) -> Iterator[Port]:
        found = next(one for one in self._fabric.testbed.cables if f"{one.a}-{one.b}" == cable)
        yield self._fabric.port(link_name(found.a, found.b))
        yield self._fabric.port(link_name(found.b, found.a))

    def _give_back_routes(self, cable: str) -> None:
        """The kernel dropped the routes whose only way was a port that went down: say them again."""
        for port in self._ends(cable):
            for request in self._routes[port.node].values():
                try:
                    self._fabric.say(port.node, [_replacing(request)])
                except OSError as error:
                    if error.errno not in _NO_WAY:  # through another port, which is down
                        raise

    def _down(self) -> frozenset[str]:
        """Directed links of the cables that are down."""
        cables = [name for name, row in self._on.items() if any(one.kind in OF_CABLES for one in row)]
        return frozenset(port.link for name in cables for port in self._ends(name))

    def _reroute(self) -> None:
        """The shortest ways of what is up now, everywhere."""
        wanted = self._fabric.routes(self._down())
        for node, rows in wanted.items():
            old = self._routes[node]
            for key in old.keys() - rows.keys():
                self._remove(node, old[key])
            self._fabric.say(node, (_replacing(request) for request in rows.values()))
        self._routes = wanted

    def _remove(self, node: str, request: Request) -> None:
        try:
            self._fabric.say(node, [request._replace(kind=netlink.DELETE_ROUTE, flags=0)])
        except OSError as error:
            if error.errno != errno.ESRCH:  # the kernel removed it when its port went down
                raise


def _replacing(request: Request) -> Request:
    return request._replace(flags=netlink.CREATE | netlink.REPLACE)
