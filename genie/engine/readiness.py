"""Which operators may be issued: dependencies met, slot free, lowest row first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from genie.core.schedule import RankOperators, Slot

_SLOTS = (Slot.NONE, Slot.CPU, Slot.COMPUTE, Slot.COMMUNICATION)


class Readiness:
    """Dependency counts, a heap of ready rows a slot, and lanes of operators that keep their order.

    A scan issues what was ready when it began, rows ascending; what an operator skipped on the way releases has to
    wait for the next scan (ASTRA-sim takes a snapshot of its dependency-free set).
    """

    def __init__(self, rank: RankOperators) -> None:
        self._missing = rank.dep_counts.tolist()
        self._child_offsets = rank.child_offsets.tolist()
        self._children = rank.children.tolist()
        self._slot = rank.operators.slot.tolist()
        self._lane = rank.operators.lane.tolist()
        self._lanes = _Lanes(rank)
        self._heaps: dict[int, list[int]] = {int(slot): [] for slot in _SLOTS}
        self._busy: dict[int, bool] = dict.fromkeys(self._heaps, False)
        self._released: list[int] = [row for row, count in enumerate(self._missing) if count == 0]
        self._ongoing = 0
        self._ready = len(self._released)

    @property
    def idle(self) -> bool:
        """Nothing is ready, running or holding a slot."""
        return not self._ready and not self._ongoing

    def scan(self) -> Iterator[int]:
        """Rows to issue now; the caller issues each before it asks for the next."""
        self._admit_released()
        while (row := self._lowest()) is not None:
            yield row

    def _admit_released(self) -> None:
        for row in self._released:
            if self._lane[row] < 0:
                heapq.heappush(self._heaps[self._slot[row]], row)
            else:
                self._lanes.release(row)
        self._released = []

    def _lowest(self) -> int | None:
        best = self._lanes.head()
        for slot, heap in self._heaps.items():
            if heap and not self._busy[slot] and (best is None or heap[0] < best):
                best = heap[0]
        if best is not None:
            self._take(best)
        return best

    def _take(self, row: int) -> None:
        slot = self._slot[row]
        if self._lane[row] < 0:
            heapq.heappop(self._heaps[slot])
        else:
            self._lanes.take(row)
        self._busy[slot] = slot != Slot.NONE
        self._ready -= 1
        self._ongoing += 1

    def done(self, row: int) -> None:
        """The operator is over: free its slot, release what waited for it alone."""
        self._busy[self._slot[row]] = False
        self._ongoing -= 1
        if self._lane[row] >= 0:
            self._lanes.done(row)
        missing = self._missing
        for child in self._children[self._child_offsets[row] : self._child_offsets[row + 1]]:
            missing[child] -= 1
            if missing[child] == 0:
                self._released.append(child)
                self._ready += 1


class _Lanes:
    """Collectives of one group go one after another, in the order that all members share (profile OVERLAP)."""

    def __init__(self, rank: RankOperators) -> None:
        operators = rank.operators
        self._lane = operators.lane.tolist()
        rows = sorted(
            (row for row, lane in enumerate(self._lane) if lane >= 0),
            key=lambda row: operators.first_stream[row],
        )
        self._waiting: dict[int, list[int]] = {}
        for row in reversed(rows):
            self._waiting.setdefault(self._lane[row], []).append(row)
        self._active: set[int] = set()
        self._released: set[int] = set()

    def release(self, row: int) -> None:
        self._released.add(row)

    def head(self) -> int | None:
        """The lowest released row that is next in an idle lane."""
        heads = (
            rows[-1]
            for lane, rows in self._waiting.items()
            if rows and lane not in self._active and rows[-1] in self._released
        )
        return min(heads, default=None)

    def take(self, row: int) -> None:
        lane = self._lane[row]
        self._active.add(lane)
        self._released.discard(row)
        self._waiting[lane].pop()

    def done(self, row: int) -> None:
        self._active.discard(self._lane[row])
