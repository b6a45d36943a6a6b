"""A raw trace's dependencies as rows, as far as they make sense: what points nowhere, or at itself, is set aside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from genie.core.columns import csr_transpose
from genie.formats.chakra import RawTrace, distinct_edges

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class BadEdge:
    """A dependency that cannot hold: on an absent node, or (`itself`) on the node that has it."""

    row: int
    node_id: int
    control: bool
    itself: bool


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Dependencies of the nodes of one file, in file order.

    Attributes:
        order: rows in ascending order of their ids (of equal ids, the first in the file first).
        dep_offsets, deps: CSR, row -> rows that it waits for, each once.
        child_offsets, children: CSR, row -> rows that wait for it.
        repeated: rows whose id occurs earlier in the file.
        bad: dependencies that were set aside.
    """

    order: Rows
    dep_offsets: Rows
    deps: Rows
    child_offsets: Rows
    children: Rows
    repeated: Rows
    bad: tuple[BadEdge, ...]

    def __len__(self) -> int:
        return len(self.order)


def graph_of(raw: RawTrace) -> Graph:
    """Resolve ids to rows; an id that occurs twice means its first node."""
    ids = raw.nodes.node_id
    count = len(ids)
    order = np.argsort(ids, kind="stable")
    ascending = ids[order]
    same = np.concatenate(([False], ascending[1:] == ascending[:-1]))
    owner = np.concatenate([_owners(raw.data_offsets), _owners(raw.ctrl_offsets)])
    wanted = np.concatenate([raw.data_ids, raw.ctrl_ids])
    found = np.minimum(np.searchsorted(ascending, wanted), count - 1)
    absent = ascending[found] != wanted
    target = order[found]
    itself = ~absent & (ids[owner] == wanted)
    bad = tuple(
        BadEdge(int(owner[at]), int(wanted[at]), at >= len(raw.data_ids), bool(itself[at]))
        for at in np.flatnonzero(absent | itself).tolist()
    )
    good = ~(absent | itself)
    rows, deps = distinct_edges(owner[good], target[good], count)
    dep_offsets = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=count)))).astype(np.int64)
    return Graph(order, dep_offsets, deps, *csr_transpose(dep_offsets, deps, count), np.sort(order[same]), bad)


def _owners(offsets: Rows) -> Rows:
    return np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))


def find_cycle(graph: Graph) -> list[int]:
    """Rows of one dependency cycle, each waiting for the next; empty if there is none."""
    missing = np.diff(graph.dep_offsets).tolist()
    first, children = graph.child_offsets.tolist(), graph.children.tolist()
    ready = [row for row, count in enumerate(missing) if count == 0]
    for row in ready:
        for child in children[first[row] : first[row + 1]]:
            missing[child] -= 1
            if missing[child] == 0:
                ready.append(child)
    at = next((row for row, count in enumerate(missing) if count > 0), None)
    return [] if at is None else _follow(graph, missing, at)


def _follow(graph: Graph, missing: list[int], at: int) -> list[int]:
    """Walk from a stuck row to stuck rows until one comes again."""
    path: list[int] = []
    seen: dict[int, int] = {}
    while at not in seen:
        seen[at] = len(path)
        path.append(at)
        deps = graph.deps[graph.dep_offsets[at] : graph.dep_offsets[at + 1]].tolist()
        at = next(dep for dep in deps if missing[dep] > 0)
    return path[seen[at] :]
