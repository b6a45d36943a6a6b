"""Where ranks run: an emulated fabric that is up, loopback, or a lab's hosts; and what a testbed says of itself."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from genie.core.experiment import ReplayRule
from genie.core.netmodel import Estimate, FabricModel, Link
from genie.core.testbed import Testbed
from genie.errors import NotReadyError
from genie.replay.faulting import Alter
from genie.replay.local import Place
from genie.replay.transports.choice import choice
from genie.testbed.namespaces import capability

LOOPBACK: Final = "127.1.0."
MAX_LOOPBACK_RANKS: Final = 250
LOOPBACK_MTU: Final = 65_535
LOOPBACK_SEGMENTS: Final = 15
DEFAULT_RULE: Final = ReplayRule()

RDMA_LAB: Final = "rdma-lab"
"""The kind of hosts that have RDMA devices: inside a guest."""

LAB: Final = "lab"
"""Hosts of a lab file: real ones."""

FIDELITY: Final = {
    LAB: "the hosts of the lab file.",
    "root": "network namespaces, every link shaped by the kernel: full fidelity of the emulation.",
    "userns": "network namespaces inside a user namespace, every link shaped by the kernel: full fidelity; only the "
    "priority of the rank processes cannot be raised.",
    RDMA_LAB: "a guest with Soft-RoCE in the rdma-lab, every link of its fabric shaped: real verbs on "
    "one processor. What is measured is what this processor can do as well as what the fabric allows.",
    "none": "no namespaces here: loopback with user-space pacing. Each rank's sending rate and the delays hold, but "
    "there are no switches: no shared links, no ECMP, no incast at the receiver. Use it to try Genie, not to "
    "measure.",
}


@dataclass(frozen=True, slots=True)
class Hosting:
    """Where ranks run: a fabric that is up, or loopback."""

    kind: str
    places: tuple[Place, ...]
    routes: dict[tuple[int, int], tuple[str, ...]]
    rate_bps: int
    counters: Callable[[], dict[str, dict[str, int]]]
    mtu_bytes: int = LOOPBACK_MTU
    super_packet_segments: int = LOOPBACK_SEGMENTS
    alter: Callable[[], Alter] | None = None


class Lab(AbstractContextManager["Lab"]):
    """A testbed that is up for as long as this context lasts; `hosting` makes the places of a number of ranks."""

    def __init__(self, testbed: Testbed, kind: str | None = None) -> None:
        self.testbed, self.kind = testbed, kind or capability()[0]
        self._fabric: Any = None
        self._context: AbstractContextManager[Any] = nullcontext()

    def __enter__(self) -> Self:
        if self.kind == RDMA_LAB:
            from genie.testbed.rdma_fabric import RdmaFabric  # noqa: PLC0415 - pyroute2 is slow to import

            self._context = RdmaFabric(self.testbed)
        elif self.kind not in {"none", LAB}:
            from genie.testbed.emulated import EmulatedFabric  # noqa: PLC0415 - pyroute2 is slow to import

            self._context = EmulatedFabric(self.testbed)
        self._fabric = self._context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(None, None, None)

    def hosting(self, ranks: int, rule: ReplayRule = DEFAULT_RULE) -> Hosting:
        """Places for so many ranks, with the routes that the first flow of every pair takes under a rule."""
        if self._fabric is not None:
            return self._on_fabric(ranks, rule)
        return self._in_lab(ranks) if self.kind == LAB else self._on_loopback(ranks)

    @property
    def fabric(self) -> Any:
        """The emulated fabric that is up (testbed.emulated.EmulatedFabric); None where there is none."""
        return self._fabric

    def recording(self, ports: str | None, folder: Path) -> AbstractContextManager[Any]:
        """Captures on a comma-separated list of ports, as long as the context lasts; nothing for None.

        Raises:
            InputError: no such port.
            NotReadyError: this is no fabric whose ports can be captured.
        """
        if ports is None:
            return nullcontext()
        from genie.testbed.capture import Recorder, chosen_ports  # noqa: PLC0415

        links = chosen_ports(ports, list(self.testbed.links()))
        if self._fabric is None:
            raise NotReadyError("there are no ports to capture at here.", fix="run where namespaces are allowed.")
        return Recorder([self._fabric.tap(link) for link in links], folder)

    def _on_fabric(self, ranks: int, rule: ReplayRule) -> Hosting:
        fabric, ends, links = self._fabric, self.testbed.endpoints, self.testbed.links()
        routes, chosen = {}, choice(rule.transport)
        for source in range(ranks):
            for destination in range(ranks):
                if source != destination:
                    port = chosen.source_port(ranks, source, destination, 0, rule.options)
                    routes[source, destination] = fabric.route(
                        ends[source], ends[destination], port, chosen.port, chosen.protocol
                    )
        delays = {pair: sum(links[name].delay_ns for name in route) for pair, route in routes.items()}
        rates = {pair: min((links[name].rate_bps for name in route), default=0) for pair, route in routes.items()}

        segments = fabric.super_packet_segments
        shaping = chosen.shaping(self.testbed.mtu, segments, self._credit_ns())

        def place(rank: int) -> Place:
            end = ends[rank]
            enter = partial(fabric.enter, end)
            file = f"/proc/{os.getpid()}/fd/{fabric.namespace_fd(end)}"
            return Place(fabric.address(end), enter, _to(delays, rank), _to(rates, rank), shaping, namespace=file)

        places = tuple(place(rank) for rank in range(ranks))
        alter = None if self.kind == RDMA_LAB else self._alterations
        return Hosting(self.kind, places, routes, 0, fabric.counters, self.testbed.mtu, segments, alter)

    def _credit_ns(self) -> int:
        """Virtual time that the slowest link may catch up."""
        from genie.testbed.shaping import credit_ns  # noqa: PLC0415 - pyroute2 is slow to import

        wire_bps = min(self.testbed.wire_bps(cable) for cable in self.testbed.cables)
        return credit_ns(wire_bps, self.testbed.mtu) // self.testbed.dilation

    def _alterations(self) -> Alter:
        from genie.testbed.alter import Alterations  # noqa: PLC0415 - pyroute2 is slow to import

        return Alterations(self._fabric)

    def _in_lab(self, ranks: int) -> Hosting:
        """Ranks of a host take its NICs in turn, and ports of their own where they share one."""
        addresses = {host.name: host.addresses for host in self.testbed.lab}
        before, places = Counter[str](), []
        for host in self.testbed.placement[:ranks]:
            slot, nic = divmod(before[host], len(addresses[host]))
            before[host] += 1
            places.append(Place(addresses[host][nic], slot=slot))
        return Hosting(LAB, tuple(places), shortest_routes(self.testbed, ranks), 0, dict, self.testbed.mtu)

    def _on_loopback(self, ranks: int) -> Hosting:
        """Every rank has a loopback address of its own and paces itself at its host link's rate."""
        if ranks > MAX_LOOPBACK_RANKS:
            raise NotReadyError(f"{ranks} ranks are too many for loopback.", fix="run where namespaces are allowed.")
        routes = shortest_routes(self.testbed, ranks)
        links = self.testbed.links()
        delays = {pair: sum(links[name].delay_ns for name in route) for pair, route in routes.items()}
        places = tuple(Place(f"{LOOPBACK}{rank + 1}", delays_ns=_to(delays, rank)) for rank in range(ranks))
        slowest = min(links[route[0]].rate_bps for route in routes.values())
        return Hosting("none", places, routes, slowest // self.testbed.dilation, dict)


def _to(values: dict[tuple[int, int], int], rank: int) -> dict[int, int]:
    """Of the paths to a rank, by where they come from."""
    return {source: value for (source, destination), value in values.items() if destination == rank}


def shortest_routes(testbed: Testbed, ranks: int) -> dict[tuple[int, int], tuple[str, ...]]:
    """(source rank, destination rank) -> links of a shortest path, the first of equal ones."""
    routes, ends = {}, testbed.endpoints
    for destination in range(ranks):
        hops = testbed.next_hops(ends[destination])
        for source in range(ranks):
            if source != destination:
                way = testbed.follow(hops, ends[source], ends[destination], lambda _, near: near[0])
                routes[source, destination] = way
    return routes


def fabric_model(testbed: Testbed, routes: dict[tuple[int, int], tuple[str, ...]]) -> FabricModel:
    """The testbed's own figures as a model: what a fit starts from and a prediction without measurement uses."""
    cables = testbed.links()
    links = tuple(
        Link(name, Estimate(float(cable.rate_bps)), float(cable.delay_ns), cable.klass)
        for name, cable in cables.items()
    )
    number = {link.name: at for at, link in enumerate(links)}
    numbered = {pair: tuple(number[name] for name in route) for pair, route in routes.items()}
    return FabricModel(1 + max(max(pair) for pair in routes), links, numbered)
