"""Two predictions of one schedule side by side, and the first operator where they part."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from genie.core.timeline import UNKNOWN, Timeline
from genie.core.workload import NodeKind

_EVENTS: Final = ("issue", "done")


@dataclass(frozen=True, slots=True)
class Parting:
    """The earliest event of an operator that two timelines date differently.

    Attributes:
        rank, node_id, name, kind: the operator.
        event: "issue" or "done".
        first_ns, second_ns: when, by each timeline.
        equal_before: events of operators before this one, all dated alike.
    """

    rank: int
    node_id: int
    name: str
    kind: str
    event: str
    first_ns: int
    second_ns: int
    equal_before: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON and tables."""
        return asdict(self)


Key = tuple[int, int, str]
"""(rank, node id, event)"""


def _events(timeline: Timeline) -> dict[Key, int]:
    """What is known of the first iteration."""
    operators = timeline.operators
    chosen = operators.iteration == 0
    keys = list(zip(operators.rank[chosen].tolist(), operators.node_id[chosen].tolist(), strict=True))
    times = (operators.issue_ns[chosen].tolist(), operators.done_ns[chosen].tolist())
    return {
        (rank, node, event): when
        for event, column in zip(_EVENTS, times, strict=True)
        for (rank, node), when in zip(keys, column, strict=True)
        if when != UNKNOWN
    }


def first_parting(first: Timeline, second: Timeline) -> Parting | None:
    """The earliest event on which two timelines disagree; None when they agree on all that both know.

    Earliest by the lower of the two times; of equal ones the lowest rank and node, issue before completion.
    """
    ours, theirs = _events(first), _events(second)
    common = [key for key in ours if key in theirs]
    different = [key for key in common if ours[key] != theirs[key]]
    if not different:
        return None

    def order(key: Key) -> tuple[int, int, int, int]:
        return min(ours[key], theirs[key]), key[0], key[1], _EVENTS.index(key[2])

    key = min(different, key=order)
    before = sum(order(other) < order(key) for other in common)
    rank, node, event = key
    name, kind = _operator(first, rank, node)
    return Parting(rank, node, name, kind, event, ours[key], theirs[key], before)


def _operator(timeline: Timeline, rank: int, node: int) -> tuple[str, str]:
    operators = timeline.operators
    at = int(((operators.rank == rank) & (operators.node_id == node)).argmax())
    return str(operators.name[at]), NodeKind(int(operators.kind[at])).name


def ranks_side_by_side(first: Timeline, second: Timeline) -> list[dict[str, Any]]:
    """Per rank both finish times (ns), their difference and what it is of the first, relative."""
    ours, theirs = _finishes(first), _finishes(second)
    rows = []
    for rank in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(rank, UNKNOWN), theirs.get(rank, UNKNOWN)
        rows.append(
            {
                "rank": rank,
                f"{first.executor}_ns": a,
                f"{second.executor}_ns": b,
                "difference_ns": b - a,
                "relative": (b - a) / a if a else 0.0,
            }
        )
    return rows


def _finishes(timeline: Timeline) -> dict[int, int]:
    ranks = timeline.ranks
    chosen = ranks.iteration == 0
    return dict(zip(ranks.rank[chosen].tolist(), ranks.finish_ns[chosen].tolist(), strict=True))
