"""Timeline: what happened when, predicted or measured alike. All times are virtual ns since the common start."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from genie.core.columns import Columns
from genie.errors import InputError

UNKNOWN = -1
"""Stands for "not observed" in a time column: the builtin simulator has no first byte, say."""


class Status(StrEnum):
    """How a run or a rank ended."""

    OK = "ok"
    FAILED = "failed"
    PARTIAL = "partial"


@dataclass(frozen=True, slots=True, eq=False)
class Operators(Columns):
    """One row per executed trace node and iteration.

    Attributes:
        iteration: 0, 1, ...; warm-up iterations are not in a timeline.
        rank: global rank.
        node_id: Chakra id.
        kind: core.workload.NodeKind.
        comm_type: core.workload.CollectiveKind, -1 if none.
        group: process group, "" for all ranks.
        name: the node's.
        size_bytes: comm_size, 0 if none.
        issue_ns, done_ns: virtual ns since the iteration's start.
        late_ns: how much later than it could have been issued by the schedule (0 in a simulation).
    """

    SCHEMA: ClassVar[dict[str, Any]] = {
        "iteration": np.int32,
        "rank": np.int32,
        "node_id": np.uint64,
        "kind": np.int8,
        "comm_type": np.int8,
        "group": object,
        "name": object,
        "size_bytes": np.int64,
        "issue_ns": np.int64,
        "done_ns": np.int64,
        "late_ns": np.int64,
    }

    iteration: NDArray[np.int32]
    rank: NDArray[np.int32]
    node_id: NDArray[np.uint64]
    kind: NDArray[np.int8]
    comm_type: NDArray[np.int8]
    group: NDArray[np.object_]
    name: NDArray[np.object_]
    size_bytes: NDArray[np.int64]
    issue_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]
    late_ns: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Messages(Columns):
    """One row per point-to-point message and iteration.

    Attributes:
        iteration: 0, 1, ...
        src, dst: global ranks.
        tag: matching tag.
        size_bytes: payload.
        index: running number among messages of equal (src, dst, tag, size), from 0, per iteration.
        flow: number of the path it took: the transport's connection (or queue pair) between the two ranks.
        node_id: trace node of the sender that it belongs to.
        chunk, phase, step: where in the collective; -1 for a plain send.
        caused_ns: the schedule allowed it: what posted_ns would be on a host that takes no time.
        posted_ns: sender posted it.
        first_byte_ns: first byte seen at the receiver, UNKNOWN if not observed.
        delivered_ns: last byte at the receiver.
        acknowledged_ns: sender knows that it was delivered, UNKNOWN if not observed.
        status: 0 good; else the transport's error number.
    """

    SCHEMA: ClassVar[dict[str, Any]] = {
        "iteration": np.int32,
        "src": np.int32,
        "dst": np.int32,
        "tag": np.int64,
        "size_bytes": np.int64,
        "index": np.int64,
        "flow": np.int32,
        "node_id": np.uint64,
        "chunk": np.int32,
        "phase": np.int32,
        "step": np.int32,
        "caused_ns": np.int64,
        "posted_ns": np.int64,
        "first_byte_ns": np.int64,
        "delivered_ns": np.int64,
        "acknowledged_ns": np.int64,
        "status": np.int16,
    }

    iteration: NDArray[np.int32]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    tag: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    index: NDArray[np.int64]
    flow: NDArray[np.int32]
    node_id: NDArray[np.uint64]
    chunk: NDArray[np.int32]
    phase: NDArray[np.int32]
    step: NDArray[np.int32]
    caused_ns: NDArray[np.int64]
    posted_ns: NDArray[np.int64]
    first_byte_ns: NDArray[np.int64]
    delivered_ns: NDArray[np.int64]
    acknowledged_ns: NDArray[np.int64]
    status: NDArray[np.int16]


@dataclass(frozen=True, slots=True, eq=False)
class Ranks(Columns):
    """One row per rank and iteration: when it finished, and how much of that was not hidden by compute.

    `exposed_ns` is finish minus the rank's compute time, as ASTRA-sim prints it; UNKNOWN if it never finished.
    """

    SCHEMA: ClassVar[dict[str, Any]] = {
        "iteration": np.int32,
        "rank": np.int32,
        "finish_ns": np.int64,
        "exposed_ns": np.int64,
    }

    iteration: NDArray[np.int32]
    rank: NDArray[np.int32]
    finish_ns: NDArray[np.int64]
    exposed_ns: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """What one executor saw. `executor` names it; `measured` tells a replay from a prediction."""

    executor: str
    measured: bool
    ranks: Ranks
    operators: Operators
    messages: Messages
    status: Status = Status.OK
    notes: tuple[str, ...] = field(default=())

    def iteration_times_ns(self) -> NDArray[np.int64]:
        """Per iteration, the finish of its last rank.

        Raises:
            InputError: a rank did not finish, or there is no iteration.
        """
        if len(self.ranks) == 0 or bool((self.ranks.finish_ns == UNKNOWN).any()):
            raise InputError("the timeline is incomplete: not every rank finished.", where=self.executor)
        count = int(self.ranks.iteration.max()) + 1
        longest = np.zeros(count, np.int64)
        np.maximum.at(longest, self.ranks.iteration, self.ranks.finish_ns)
        return longest

    @property
    def iteration_ns(self) -> int:
        """Median iteration time."""
        return int(np.median(self.iteration_times_ns()))
