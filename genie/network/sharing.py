"""Max-min fair shares of links: what each flow gets when all of them send as fast as they can."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def share_max_min(routes: Sequence[Sequence[int]], capacity: Sequence[float]) -> list[float]:
    """Rate of each flow, in the unit of `capacity`, by progressive filling.

    All flows grow alike until a link is full, the flows on it stay at what they have, the others grow on. As the
    share that a link could still give only ever grows, a heap of (share, link) that is corrected when read finds the
    next full link. Ties go to the lower link number.

    Source: Bertsekas and Gallager, "Data Networks", section 6.5.2.

    Args:
        routes: for each flow, the positions in `capacity` of the links that it crosses; at least one.
        capacity: of each link.
    """
    crossing: dict[int, list[int]] = {}
    for flow, route in enumerate(routes):
        for at in route:
            crossing.setdefault(at, []).append(flow)
    left = {at: capacity[at] for at in crossing}
    open_flows = {at: len(flows) for at, flows in crossing.items()}
    heap = [(left[at] / count, at) for at, count in open_flows.items()]
    heapq.heapify(heap)
    rates = [-1.0] * len(routes)
    while heap:
        share, at = heap[0]
        if not open_flows[at]:
            heapq.heappop(heap)
            continue
        now = left[at] / open_flows[at]
        if now > share:
            heapq.heapreplace(heap, (now, at))
            continue
        heapq.heappop(heap)
        for flow in crossing[at]:
            if rates[flow] < 0:
                rates[flow] = share
                for other in routes[flow]:
                    left[other] -= share
                    open_flows[other] -= 1
    return rates
