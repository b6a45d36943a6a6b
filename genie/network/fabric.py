"""A fluid model of a real fabric: links with capacities, routes, and max-min fair shares.

Each ordered pair of ranks is one flow, as one connection is; its messages are served in order. Whenever a flow starts
or runs dry, shares are recomputed by progressive filling (Bertsekas and Gallager, "Data Networks", 6.5.2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from genie.core.netmodel import Estimate, FabricModel, Link
from genie.errors import InputError
from genie.network.queue import EventQueue
from genie.units import bps_to_bytes_per_ns

Pair = tuple[int, int]
_Waiting = tuple[int, Callable[..., None], tuple[Any, ...]]

_DRY = 1e-6
"""Fewer bytes left than this is none: rounding, not traffic."""


class _Flow:
    __slots__ = ("callback", "fixed_ns", "left_bytes", "rate", "route", "waiting")

    def __init__(self, route: tuple[int, ...], fixed_ns: float) -> None:
        self.route, self.fixed_ns = route, fixed_ns
        self.rate = self.left_bytes = 0.0
        self.callback: tuple[Callable[..., None], tuple[Any, ...]] | None = None
        self.waiting: deque[_Waiting] = deque()


class FabricNetwork:
    """Max-min sharing on a virtual clock (models.Network is the face, core.netmodel.FabricModel the values)."""

    def __init__(self, model: FabricModel, queue: EventQueue) -> None:
        self._model, self._queue = model, queue
        self._capacity = [bps_to_bytes_per_ns(link.capacity_bps.value) for link in model.links]
        self._flows: dict[Pair, _Flow] = {}
        self._active: dict[Pair, _Flow] = {}
        self._updated_ns = 0.0
        self._wakeup = 0
        self._reshare_pending = False

    def send(self, src: int, dst: int, size_bytes: int, delivered: Callable[..., None], *args: Any) -> None:
        """See models.Network.send."""
        flow = self._flows.get((src, dst))
        if flow is None or size_bytes <= 0:
            flow = self._open(src, dst, size_bytes)
        if flow.callback is not None:
            flow.waiting.append((size_bytes, delivered, args))
            return
        self._advance()
        flow.left_bytes, flow.callback = float(size_bytes), (delivered, args)
        self._active[src, dst] = flow
        self._reshare_soon()

    def _open(self, src: int, dst: int, size_bytes: int) -> _Flow:
        if size_bytes <= 0:
            raise InputError(f"rank {src} sends {size_bytes} bytes to rank {dst}; at least one is needed.")
        route = self._model.routes.get((src, dst))
        if not route:
            raise InputError(f"the fabric has no route from rank {src} to rank {dst}.")
        links = self._model.links
        fixed_ns = self._model.message_ns.value + sum(links[at].delay_ns for at in route)
        return self._flows.setdefault((src, dst), _Flow(route, fixed_ns))

    def _reshare_soon(self) -> None:
        """Share once a tick, after all of the tick's messages are known."""
        if not self._reshare_pending:
            self._reshare_pending = True
            self._queue.at(self._queue.now_ns, self._reshare)

    def _advance(self) -> None:
        """Move bytes at the present rates up to now."""
        now_ns = float(self._queue.now_ns)
        elapsed = now_ns - self._updated_ns
        if elapsed > 0:
            for flow in self._active.values():
                flow.left_bytes -= flow.rate * elapsed
        self._updated_ns = now_ns

    def _reshare(self) -> None:
        self._reshare_pending = False
        share_max_min(list(self._active.values()), self._capacity)
        self._plan_wakeup()

    def _plan_wakeup(self) -> None:
        """Wake at the tick in which the next flow runs dry; older plans are void."""
        self._wakeup += 1
        if not self._active:
            return
        wait_ns = min(flow.left_bytes / flow.rate for flow in self._active.values())
        self._queue.at(self._queue.now_ns + max(1, int(wait_ns + 0.999999)), self._on_wakeup, self._wakeup)

    def _on_wakeup(self, plan: int) -> None:
        if plan != self._wakeup:
            return
        self._advance()
        for pair, flow in list(self._active.items()):
            if flow.left_bytes <= _DRY:
                self._finish(pair, flow)
        self._reshare_soon()

    def _finish(self, pair: Pair, flow: _Flow) -> None:
        """Deliver, and go on with the next message, less what the rounding to whole ns already moved."""
        callback = flow.callback
        if callback is None:
            return
        self._queue.at(self._queue.now_ns + round(max(0.0, flow.fixed_ns)), callback[0], *callback[1])
        if not flow.waiting:
            flow.callback, flow.rate, flow.left_bytes = None, 0.0, 0.0
            del self._active[pair]
            return
        size_bytes, delivered, args = flow.waiting.popleft()
        flow.left_bytes, flow.callback = size_bytes + min(0.0, flow.left_bytes), (delivered, args)
        if flow.left_bytes <= _DRY:
            self._finish(pair, flow)


def share_max_min(flows: Sequence[_Flow], capacity: Sequence[float]) -> None:
    """Set every flow's `rate` (bytes per ns): fill all equally, freeze those on the link that fills first, go on."""
    crossing: dict[int, set[int]] = {}
    for number, flow in enumerate(flows):
        for at in flow.route:
            crossing.setdefault(at, set()).add(number)
    left = {at: capacity[at] for at in crossing}
    while crossing:
        tightest = min(crossing, key=lambda at: (left[at] / len(crossing[at]), at))
        rate = left[tightest] / len(crossing[tightest])
        for number in sorted(crossing[tightest]):
            _freeze(flows[number], number, rate, crossing, left)


def _freeze(flow: _Flow, number: int, rate: float, crossing: dict[int, set[int]], left: dict[int, float]) -> None:
    flow.rate = rate
    for at in flow.route:
        if at in crossing:
            crossing[at].discard(number)
            left[at] = max(left[at] - rate, 0.0)
            if not crossing[at]:
                del crossing[at]


def fabric_model(
    ranks: int,
    links: Iterable[tuple[str, float, float, str]],
    routes: dict[Pair, tuple[str, ...]],
    message_ns: float = 0.0,
) -> FabricModel:
    """A FabricModel from (name, capacity_bps, delay_ns, class) a link, and link names a route."""
    made = tuple(Link(name, Estimate(bps), delay_ns, klass) for name, bps, delay_ns, klass in links)
    number = {link.name: at for at, link in enumerate(made)}
    numbered = {pair: tuple(number[name] for name in names) for pair, names in routes.items()}
    return FabricModel(ranks, made, numbered, Estimate(message_ns))
