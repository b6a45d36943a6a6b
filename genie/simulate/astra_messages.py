"""Messages in place of collectives for ASTRA-sim: made with the builtin simulator, which also says how true they are.

ASTRA-sim keeps one send in flight a rank, and has no local work but computation: what that costs is told, not hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from genie.core.netmodel import DimensionModel
from genie.core.schedule import OpKind, Schedule
from genie.core.system import Profile
from genie.core.timeline import Timeline
from genie.errors import InputError
from genie.lower import lower
from genie.lower.point_to_point import PointToPoint, point_to_point
from genie.simulate.builtin import simulate


@dataclass(frozen=True, slots=True)
class AsMessages:
    """A schedule of sends and receives.

    Attributes:
        written: the workload, and where its nodes come from.
        schedule: of that workload.
        with_collectives_ns, with_messages_ns: iteration time by the builtin simulator.
        delays: whether endpoint delays and reductions are in it.
    """

    written: PointToPoint
    schedule: Schedule
    with_collectives_ns: int
    with_messages_ns: int
    delays: bool

    @property
    def error(self) -> float:
        """What writing it as messages changes, relative."""
        return self.with_messages_ns / self.with_collectives_ns - 1 if self.with_collectives_ns else 0.0

    @property
    def note(self) -> str:
        """In a sentence."""
        local = "" if self.delays else ", without endpoint delays and reductions, which would wait for computation"
        if self.with_messages_ns == self.with_collectives_ns:
            return f"messages in place of collectives{local}: the builtin simulator gives both the same iteration time"
        return (
            f"messages in place of collectives{local}: by the builtin simulator the iteration takes "
            f"{self.with_messages_ns:,} ns with messages, {self.with_collectives_ns:,} ns with collectives "
            f"({self.error:+.2%}; ASTRA-sim keeps one send in flight a rank)"
        )

    @property
    def about(self) -> dict[str, Any]:
        """For run.json."""
        return {
            "point_to_point": {
                "builtin_with_collectives_ns": self.with_collectives_ns,
                "builtin_with_messages_ns": self.with_messages_ns,
                "delays": self.delays,
            }
        }


def as_messages(schedule: Schedule, model: DimensionModel) -> AsMessages:
    """The schedule as messages, with or without local delays, whichever comes closer to the collectives.

    Raises:
        InputError: the builtin simulator refuses the schedule; another profile than ASTRA-sim's; too many messages.
    """
    if schedule.system.profile is not Profile.ASTRA:
        raise InputError("messages in place of collectives need the profile astra.", fix="set profile to astra.")
    timeline = simulate(schedule, model)
    order = [_issued(schedule, timeline, rank) for rank in range(len(schedule.ranks))]
    best = _written(schedule, model, order, timeline.iteration_ns, delays=True)
    if best.error:
        other = _written(schedule, model, order, timeline.iteration_ns, delays=False)
        best = min(best, other, key=lambda each: abs(each.error))
    return best


def _written(
    schedule: Schedule, model: DimensionModel, order: list[list[int]], with_collectives_ns: int, *, delays: bool
) -> AsMessages:
    written = point_to_point(schedule, order, delays=delays)
    messages = lower(written.workload, written.system, tuple(d.size for d in model.dimensions))
    with_messages_ns = simulate(messages, model, strict=False).iteration_ns
    return AsMessages(written, messages, with_collectives_ns, with_messages_ns, delays)


def _issued(schedule: Schedule, timeline: Timeline, rank: int) -> list[int]:
    """Rows of the rank's collectives and sends in the order in which they were issued."""
    operators, kinds = timeline.operators, schedule.ranks[rank].operators.kind
    chosen = np.flatnonzero(operators.rank == rank)
    rows = np.searchsorted(schedule.workload.traces[rank].nodes.node_id, operators.node_id[chosen])
    by_time = rows[np.lexsort((rows, operators.issue_ns[chosen]))].tolist()
    return [row for row in by_time if kinds[row] in {OpKind.COLLECTIVE, OpKind.SEND}]
