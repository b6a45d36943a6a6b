"""ASTRA-sim's analytical networks, and the common face of all network models.

Source of the formulas: ASTRA-sim's analytical backends; section "Networks" of docs/simulator.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from genie.core.netmodel import Dimension, DimensionModel, FabricModel, NetworkModel, Topology
from genie.errors import InputError
from genie.network.fabric import FabricNetwork
from genie.network.queue import EventQueue
from genie.units import bps_to_bytes_per_ns

Delivered = Callable[..., None]


class Network(Protocol):
    """Takes messages at the queue's present tick, calls back at their delivery."""

    def send(self, src: int, dst: int, size_bytes: int, delivered: Delivered, *args: Any) -> None:
        """Send; `delivered(*args)` is called at the tick at which the last byte arrives.

        Raises:
            InputError: to oneself, to an unknown rank, or nothing to send.
        """
        ...


def build(model: NetworkModel, queue: EventQueue) -> Network:
    """The network of a model, on a virtual clock."""
    if isinstance(model, FabricModel):
        return FabricNetwork(model, queue)
    return AwareNetwork(model, queue) if model.aware else UnawareNetwork(model, queue)


def check_message(src: int, dst: int, size_bytes: int, ranks: int) -> None:
    """Raise InputError unless two different ranks exchange at least one byte."""
    if src == dst or not (0 <= src < ranks and 0 <= dst < ranks):
        raise InputError(f"rank {src} cannot send to rank {dst} in a network of {ranks} ranks.")
    if size_bytes <= 0:
        raise InputError(f"rank {src} sends {size_bytes} bytes to rank {dst}; at least one is needed.")


def hops(topology: Topology, src: int, dst: int, size: int) -> int:
    """Links between two positions of one dimension."""
    if topology is Topology.FULLY_CONNECTED:
        return 1
    if topology is Topology.SWITCH:
        return 2
    clockwise = (dst - src) % size
    return min(clockwise, size - clockwise)


def charged_dimension(model: DimensionModel, src: int, dst: int) -> tuple[int, int]:
    """(dimension, hops) that a message is charged for: the lowest dimension in which the two ranks differ."""
    for at, dimension in enumerate(model.dimensions):
        a, b = src % dimension.size, dst % dimension.size
        if a != b:
            return at, hops(dimension.topology, a, b, dimension.size)
        src //= dimension.size
        dst //= dimension.size
    raise InputError("a rank cannot send to itself.")


def message_cost(model: DimensionModel, src: int, dst: int, size_bytes: int) -> tuple[float, float]:
    """(latency of all hops in ns, bytes per ns) of a message without contention.

    Raises:
        InputError: to oneself, to an unknown rank, or nothing to send.
    """
    check_message(src, dst, size_bytes, model.ranks)
    at, links = charged_dimension(model, src, dst)
    dimension = model.dimensions[at]
    return links * dimension.latency_ns.value, bps_to_bytes_per_ns(dimension.bandwidth_bps.value)


def route(dimension: Dimension, src: int, dst: int) -> list[int]:
    """Devices on the way; a switch is device number `size`. Anticlockwise only if that is strictly shorter."""
    size = dimension.size
    if dimension.topology is Topology.FULLY_CONNECTED:
        return [src, dst]
    if dimension.topology is Topology.SWITCH:
        return [src, size, dst]
    clockwise = (dst - src) % size
    step, count = (-1, size - clockwise) if size - clockwise < clockwise else (1, clockwise)
    return [(src + step * k) % size for k in range(count + 1)]


class UnawareNetwork:
    """No contention: delivery = now + floor(hops x latency + size / bandwidth)."""

    def __init__(self, model: DimensionModel, queue: EventQueue) -> None:
        self._model, self._queue = model, queue
        self._costs: dict[tuple[int, int], tuple[float, float]] = {}

    def send(self, src: int, dst: int, size_bytes: int, delivered: Delivered, *args: Any) -> None:
        """See Network.send."""
        cost = self._costs.get((src, dst))
        if cost is None or size_bytes <= 0:
            cost = self._costs[src, dst] = message_cost(self._model, src, dst, size_bytes)
        latency_ns, bytes_per_ns = cost
        self._queue.at(self._queue.now_ns + int(latency_ns + size_bytes / bytes_per_ns), delivered, *args)


class _Link:
    """One direction of one cable: a message at a time, the others wait in order."""

    __slots__ = ("_busy", "_bytes_per_ns", "_latency_ns", "_queue", "_waiting")

    def __init__(self, queue: EventQueue, dimension: Dimension) -> None:
        self._queue, self._busy = queue, False
        self._bytes_per_ns = bps_to_bytes_per_ns(dimension.bandwidth_bps.value)
        self._latency_ns = dimension.latency_ns.value
        self._waiting: deque[tuple[int, Callable[..., None], tuple[Any, ...]]] = deque()

    def send(self, size_bytes: int, arrived: Callable[..., None], *args: Any) -> None:
        if self._busy:
            self._waiting.append((size_bytes, arrived, args))
        else:
            self._start(size_bytes, arrived, args)

    def _start(self, size_bytes: int, arrived: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._busy = True
        now_ns, serialisation_ns = self._queue.now_ns, size_bytes / self._bytes_per_ns
        # the order of these two decides ties: arrival first, then the link is free
        self._queue.at(now_ns + int(self._latency_ns + serialisation_ns), arrived, *args)
        self._queue.at(now_ns + int(serialisation_ns), self._free)

    def _free(self) -> None:
        self._busy = False
        if self._waiting:
            self._start(*self._waiting.popleft())


class AwareNetwork:
    """One dimension with link queues: whole messages are stored and forwarded at every hop."""

    def __init__(self, model: DimensionModel, queue: EventQueue) -> None:
        self._dimension, self._queue = model.dimensions[0], queue
        self._links: dict[tuple[int, int], _Link] = {}

    def send(self, src: int, dst: int, size_bytes: int, delivered: Delivered, *args: Any) -> None:
        """See Network.send."""
        check_message(src, dst, size_bytes, self._dimension.size)
        self._hop(route(self._dimension, src, dst), 0, size_bytes, delivered, args)

    def _hop(self, route: list[int], at: int, size_bytes: int, delivered: Delivered, args: tuple[Any, ...]) -> None:
        if at == len(route) - 1:
            delivered(*args)
            return
        ends = route[at], route[at + 1]
        link = self._links.get(ends)
        if link is None:
            link = self._links[ends] = _Link(self._queue, self._dimension)
        link.send(size_bytes, self._hop, route, at + 1, size_bytes, delivered, args)
