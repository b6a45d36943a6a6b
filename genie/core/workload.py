"""Workload: what each rank of a job computes and communicates, as its execution trace says.

Node kinds and collective kinds carry Chakra's published numbers, so that a reader need not translate.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from genie.core.columns import Columns
from genie.errors import InputError


class NodeKind(IntEnum):
    """Chakra ``NodeType``."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    SEND = 5
    RECV = 6
    COLLECTIVE = 7


class CollectiveKind(IntEnum):
    """Chakra ``CollectiveCommType``."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


NONE = -1
"""Stands for "not given" in every integer column of a workload."""

ALL_DIMENSIONS: int = (1 << 62) - 1
"""`involved_dims` bit mask of a collective that names no dimensions."""


@dataclass(frozen=True, slots=True, eq=False)
class Nodes(Columns):
    """One rank's nodes, ascending by id, one row each; dependencies in CSR form as *row* numbers.

    Attributes:
        node_id: Chakra id.
        kind: a NodeKind.
        name: for people.
        duration_ns: from ``duration_micros``; 0 when absent.
        size_bytes: ``comm_size``, NONE when absent (what it means depends on the collective: see docs/formats.md).
        tensor_bytes: ``tensor_size``, NONE when absent.
        num_ops: ``num_ops``, NONE when absent.
        comm_type: a CollectiveKind, or NONE.
        peer: ``comm_dst`` of a SEND, ``comm_src`` of a RECV; else NONE.
        tag: ``comm_tag`` of a SEND or RECV; else NONE.
        group: ``pg_name`` as text; "" for all ranks.
        is_cpu: ``is_cpu_op``.
        priority: ``comm_priority``, 0 when absent.
        involved_dims: bit k set when dimension k takes part.
        root: ``root_rank`` of a broadcast or reduce, as a rank within the group; 0 when absent.
    """

    SCHEMA: ClassVar[dict[str, Any]] = {
        "node_id": np.uint64,
        "kind": np.int8,
        "name": object,
        "duration_ns": np.int64,
        "size_bytes": np.int64,
        "tensor_bytes": np.int64,
        "num_ops": np.int64,
        "comm_type": np.int8,
        "peer": np.int64,
        "tag": np.int64,
        "group": object,
        "is_cpu": np.bool_,
        "priority": np.int64,
        "involved_dims": np.int64,
        "root": np.int64,
    }

    node_id: NDArray[np.uint64]
    kind: NDArray[np.int8]
    name: NDArray[np.object_]
    duration_ns: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    tensor_bytes: NDArray[np.int64]
    num_ops: NDArray[np.int64]
    comm_type: NDArray[np.int8]
    peer: NDArray[np.int64]
    tag: NDArray[np.int64]
    group: NDArray[np.object_]
    is_cpu: NDArray[np.bool_]
    priority: NDArray[np.int64]
    involved_dims: NDArray[np.int64]
    root: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RankTrace:
    """One rank's graph: its nodes, and for row i the rows that must be done before it.

    Attributes:
        rank: the global rank.
        nodes: ascending by id.
        dep_offsets: int64, len(nodes) + 1.
        deps: int64 row numbers; data and control dependencies together, without repeats.
        source: where it came from, for messages.

    Raises:
        InputError: ids out of order or repeated, a dependency out of range.
    """

    rank: int
    nodes: Nodes
    dep_offsets: NDArray[np.int64]
    deps: NDArray[np.int64]
    source: str = ""

    def __post_init__(self) -> None:
        ids = self.nodes.node_id
        if len(ids) > 1 and not bool(np.all(ids[1:] > ids[:-1])):
            raise InputError("node ids repeat or are not ascending.", where=self.source or f"rank {self.rank}")
        if len(self.dep_offsets) != len(ids) + 1 or (len(self.deps) and int(self.deps.max()) >= len(ids)):
            raise InputError("a dependency points outside the trace.", where=self.source or f"rank {self.rank}")


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: its members' global ranks, in ring order."""

    name: str
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(set(self.ranks)) != len(self.ranks) or not self.ranks:
            raise InputError("a group needs members, each once.", where=f"group {self.name}")


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """A job: one trace a rank (rank = position) and the process groups that they name.

    Raises:
        InputError: no ranks, traces out of order, a group member out of range.
    """

    name: str
    traces: tuple[RankTrace, ...]
    groups: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        if not self.traces:
            raise InputError("a workload needs at least one rank.", where=self.name)
        if [t.rank for t in self.traces] != list(range(len(self.traces))):
            raise InputError("ranks must be 0, 1, 2, ... without gaps.", where=self.name)
        for group in self.groups:
            if max(group.ranks) >= len(self.traces) or min(group.ranks) < 0:
                raise InputError(
                    f"group {group.name} names rank {max(group.ranks)}, but the workload has {len(self.traces)}.",
                    where=self.name,
                    fix="use global ranks in the comm-group file, or add the missing traces.",
                )

    @property
    def ranks(self) -> int:
        """How many ranks."""
        return len(self.traces)

    def group_named(self, name: str) -> Group | None:
        """The group of that name; None for all ranks ("" or "0", as ASTRA-sim reads it).

        Raises:
            InputError: unknown name.
        """
        if name in {"", "0"}:
            return None
        for group in self.groups:
            if group.name == name:
                return group
        raise InputError(
            f"process group {name!r} is in no comm-group file.",
            where=self.name,
            fix="pass --comm-groups FILE.",
        )
