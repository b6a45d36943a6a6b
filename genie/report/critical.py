"""The critical path of an iteration: what, one after the other, its length is made of.

Walked backwards from the last rank's finish: whatever ended last on a rank before the present moment (a compute, a
message that came, a message of its own that was acknowledged) is what it waited for; a message leads to its sender, at
its post.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pandas as pd

from genie.core.workload import NodeKind

MOST_STEPS: Final = 200_000


@dataclass(frozen=True, slots=True)
class Step:
    """A piece of the path.

    Attributes:
        kind: "compute", "message" or "waiting" (nothing that the run knows of: the tool, the host).
        rank: which it passes through (of a message the receiver).
        begin_ns, end_ns: when.
        row: of the flows (messages) or operators (computes) that it comes from, -1 for none.
    """

    kind: str
    rank: int
    begin_ns: float
    end_ns: float
    row: int = -1

    @property
    def length_ns(self) -> float:
        """How long."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True)
class _Event:
    end_ns: float
    begin_ns: float
    kind: str
    leads_to: int
    row: int


def critical_path(operators: pd.DataFrame, flows: pd.DataFrame, ranks: pd.DataFrame) -> list[Step]:
    """The path, first step first; its lengths add up to the finish of the last rank.

    Args:
        operators: of one iteration, from `frames.operators`.
        flows: of it, from `frames.flows`.
        ranks: of it, from `frames.ranks`.
    """
    done = ranks[ranks["finish_ns"].notna()]
    if done.empty:
        return []
    ((rank, finish_ns),) = done.nlargest(1, "finish_ns")[["rank", "finish_ns"]].to_numpy().tolist()
    return list(reversed(list(_back(_events(operators, flows), int(rank), finish_ns))))


def _events(operators: pd.DataFrame, flows: pd.DataFrame) -> dict[int, list[_Event]]:
    """Rank -> what ends on it, by end."""
    found: dict[int, list[_Event]] = defaultdict(list)
    computes = operators[(operators["kind"] == NodeKind.COMP.name) & operators["done_ns"].notna()]
    for row, rank, begin, end in computes[["rank", "issue_ns", "done_ns"]].itertuples():
        found[rank].append(_Event(end, begin, "compute", rank, row))
    arrived = flows[flows["delivered_ns"].notna()]
    for row, src, dst, begin, end in arrived[["src", "dst", "posted_ns", "delivered_ns"]].itertuples():
        found[dst].append(_Event(end, begin, "message", src, row))
    known = flows[flows["acknowledged_ns"].notna()]
    for row, src, begin, end in known[["src", "posted_ns", "acknowledged_ns"]].itertuples():
        found[src].append(_Event(end, begin, "message", src, row))
    for own in found.values():
        own.sort(key=lambda event: (event.end_ns, event.begin_ns))
    return found


def _back(events: dict[int, list[_Event]], rank: int, now_ns: float) -> Iterator[Step]:
    ends = {rank: [event.end_ns for event in own] for rank, own in events.items()}
    for _ in range(MOST_STEPS):
        at = bisect.bisect_right(ends.get(rank, []), now_ns) - 1
        while at >= 0 and events[rank][at].begin_ns >= now_ns:
            at -= 1  # no progress: of no length at this very moment
        if at < 0:
            break
        event = events[rank][at]
        if event.end_ns < now_ns:
            yield Step("waiting", rank, event.end_ns, now_ns)
        yield Step(event.kind, rank, event.begin_ns, event.end_ns, event.row)
        rank, now_ns = event.leads_to, event.begin_ns
        if now_ns <= 0:
            return
    if now_ns > 0:
        yield Step("waiting", rank, 0.0, now_ns)
