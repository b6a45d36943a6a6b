"""A fluid model of a real fabric: links with capacities, routes, and max-min fair shares.

Each ordered pair of ranks is one flow, as one connection is; its messages are served in order. Whenever a flow starts
or runs dry, shares are recomputed (genie.network.sharing); a flow that goes on with its next message changes nothing.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from genie.core.netmodel import Estimate, FabricModel, Link
from genie.errors import InputError, InternalError
from genie.network.queue import EventQueue
from genie.network.sharing import share_max_min
from genie.units import bps_to_bytes_per_ns

Pair = tuple[int, int]
_Callback = tuple[Callable[..., None], tuple[Any, ...]]

_TICK_SLACK: Final = 1e-6
"""A finish less than this many ns after a tick is at that tick: rounding, not traffic."""

_REMEMBERED: Final = 4096
"""Sets of active flows whose shares are kept, as training repeats its patterns."""


class _Flow:
    __slots__ = ("callback", "fixed_ns", "left_bytes", "number", "rate", "route", "settled_ns", "version", "waiting")

    def __init__(self, number: int, route: tuple[int, ...], fixed_ns: int) -> None:
        self.number, self.route, self.fixed_ns = number, route, fixed_ns
        self.rate = self.left_bytes = 0.0
        self.settled_ns = self.version = 0
        self.callback: _Callback | None = None
        self.waiting: deque[tuple[int, _Callback]] = deque()

    def settle(self, now_ns: int) -> None:
        """Move bytes at the present rate up to now; below zero is what rounding to whole ns moved too much."""
        self.left_bytes -= self.rate * (now_ns - self.settled_ns)
        self.settled_ns = now_ns


class FabricNetwork:
    """Max-min sharing on a virtual clock (models.Network is the face, core.netmodel.FabricModel the values)."""

    def __init__(self, model: FabricModel, queue: EventQueue) -> None:
        self._model, self._queue = model, queue
        self._capacity = [bps_to_bytes_per_ns(link.capacity_bps.value) for link in model.links]
        self._gap_ns = max(0.0, model.gap_ns.value)
        self._free_ns: dict[int, float] = {}
        self._flows: dict[Pair, _Flow] = {}
        self._active: dict[int, _Flow] = {}
        self._active_mask = 0
        self._shares: dict[int, list[tuple[_Flow, float]]] = {}
        self._finishes: list[tuple[int, int, int, _Flow]] = []
        self._wakeup_ns = -1
        self._reshare_pending = False

    def send(self, src: int, dst: int, size_bytes: int, delivered: Callable[..., None], *args: Any) -> None:
        """See models.Network.send."""
        flow = self._flows.get((src, dst))
        if flow is None or size_bytes <= 0:
            flow = self._open(src, dst, size_bytes)
        if self._gap_ns:
            self._queue.at(self._next_post_ns(src), self._post, flow, size_bytes, (delivered, args))
        else:
            self._post(flow, size_bytes, (delivered, args))

    def _open(self, src: int, dst: int, size_bytes: int) -> _Flow:
        if size_bytes <= 0:
            raise InputError(f"rank {src} sends {size_bytes} bytes to rank {dst}; at least one is needed.")
        route = self._model.routes.get((src, dst))
        if not route:
            raise InputError(f"the fabric has no route from rank {src} to rank {dst}.")
        fixed_ns = self._model.message_ns.value + sum(self._model.links[at].delay_ns for at in route)
        flow = _Flow(len(self._flows), route, round(max(0.0, fixed_ns)))
        self._flows[src, dst] = flow
        return flow

    def _next_post_ns(self, src: int) -> int:
        """First tick at which the sender's software can post, and take it."""
        start_ns = max(float(self._queue.now_ns), self._free_ns.get(src, 0.0))
        self._free_ns[src] = start_ns + self._gap_ns
        return math.ceil(start_ns)

    def _post(self, flow: _Flow, size_bytes: int, callback: _Callback) -> None:
        if flow.callback is not None:
            flow.waiting.append((size_bytes, callback))
            return
        flow.left_bytes, flow.callback, flow.settled_ns = float(size_bytes), callback, self._queue.now_ns
        self._active[flow.number] = flow
        self._active_mask ^= 1 << flow.number
        self._reshare_soon()

    def _reshare_soon(self) -> None:
        """Share once a tick, after all of the tick's messages are known."""
        if not self._reshare_pending:
            self._reshare_pending = True
            self._queue.at(self._queue.now_ns, self._reshare)

    def _reshare(self) -> None:
        self._reshare_pending = False
        shares = self._shares.get(self._active_mask)
        if shares is None:
            shares = self._new_shares()
        now_ns = self._queue.now_ns
        for flow, rate in shares:
            if flow.rate != rate:
                flow.settle(now_ns)
                flow.rate = rate
                self._plan(flow)
        self._arm()

    def _new_shares(self) -> list[tuple[_Flow, float]]:
        """Shares of the active flows, in an order that only depends on which they are."""
        flows = [self._active[number] for number in sorted(self._active)]
        if len(self._shares) >= _REMEMBERED:
            self._shares.clear()
        rates = share_max_min([flow.route for flow in flows], self._capacity)
        shares = self._shares[self._active_mask] = list(zip(flows, rates, strict=True))
        return shares

    def _plan(self, flow: _Flow) -> None:
        """Note the tick at which a flow runs dry at its present rate; the older note is void."""
        flow.version += 1
        wait_ns = math.ceil(flow.left_bytes / flow.rate - _TICK_SLACK)
        heapq.heappush(self._finishes, (flow.settled_ns + max(wait_ns, 0), flow.number, flow.version, flow))

    def _arm(self) -> None:
        """Wake at the earliest finish, unless an earlier wake-up is due."""
        finishes = self._finishes
        while finishes and finishes[0][2] != finishes[0][3].version:
            heapq.heappop(finishes)
        if not finishes:
            return
        due_ns = max(finishes[0][0], self._queue.now_ns)
        if self._wakeup_ns < 0 or due_ns < self._wakeup_ns:
            self._wakeup_ns = due_ns
            self._queue.at(due_ns, self._on_wakeup, due_ns)

    def _on_wakeup(self, due_ns: int) -> None:
        if due_ns != self._wakeup_ns:
            return
        self._wakeup_ns = -1
        finishes = self._finishes
        while finishes and finishes[0][0] <= due_ns:
            _, _, version, flow = heapq.heappop(finishes)
            if version == flow.version:
                self._finish(flow)
        if self._reshare_pending:
            return
        self._arm()

    def _finish(self, flow: _Flow) -> None:
        """Deliver, and go on with the next message, less what rounding to whole ns already moved."""
        if flow.callback is None:
            raise InternalError("a flow without a message ran dry.")
        now_ns = self._queue.now_ns
        flow.settle(now_ns)
        self._queue.at(now_ns + flow.fixed_ns, flow.callback[0], *flow.callback[1])
        if flow.waiting:
            size_bytes, flow.callback = flow.waiting.popleft()
            flow.left_bytes = size_bytes + min(0.0, flow.left_bytes)
            self._plan(flow)
            return
        flow.callback, flow.rate = None, 0.0
        flow.version += 1
        del self._active[flow.number]
        self._active_mask ^= 1 << flow.number
        self._reshare_soon()


class DirectedLink(NamedTuple):
    """One direction of one cable, between two named nodes (hosts are nodes too)."""

    name: str
    src: str
    dst: str
    rate_bps: float
    delay_ns: float = 0.0
    klass: str = "link"


def fabric_model(
    ranks: int, links: Iterable[DirectedLink], routes: Mapping[Pair, Sequence[str]], *, message_ns: float = 0.0
) -> FabricModel:
    """A FabricModel from links between named nodes, and for every pair of ranks the names of the links it crosses.

    Raises:
        InputError: a link's name is taken or unknown, or a route does not hang together.
    """
    listed = list(links)
    number = {link.name: at for at, link in enumerate(listed)}
    if len(number) < len(listed):
        raise InputError("two links have one name.", where=_first_twin(listed), fix="name each direction apart.")
    made = tuple(Link(link.name, Estimate(link.rate_bps), link.delay_ns, link.klass) for link in listed)
    numbered = {pair: _numbered_route(pair, names, number, listed) for pair, names in routes.items()}
    return FabricModel(ranks, made, numbered, Estimate(message_ns))


def _first_twin(links: Sequence[DirectedLink]) -> str:
    names = [link.name for link in links]
    return next(name for name in names if names.count(name) > 1)


def _numbered_route(
    pair: Pair, names: Sequence[str], number: Mapping[str, int], links: Sequence[DirectedLink]
) -> tuple[int, ...]:
    where = f"route from rank {pair[0]} to rank {pair[1]}"
    unknown = [name for name in names if name not in number]
    if unknown:
        raise InputError(f"no link is named {unknown[0]!r}.", where=where)
    route = tuple(number[name] for name in names)
    for a, b in itertools.pairwise(route):
        if links[a].dst != links[b].src:
            raise InputError(f"link {links[b].name} does not start where link {links[a].name} ends.", where=where)
    return route
