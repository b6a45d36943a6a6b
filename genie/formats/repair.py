"""Repairs of traces that change no meaning."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from genie.core.columns import csr_from_lists
from genie.core.workload import NodeKind
from genie.errors import InputError
from genie.formats.chakra import RawTrace, read_raw
from genie.formats.chakra_writer import rewrite
from genie.formats.check_nodes import is_wrapper
from genie.formats.workload import comm_groups_beside, find_traces

_SHOWN_NODES = 10
Lists = list[list[int]]


def fix(raw: RawTrace) -> tuple[RawTrace, list[str]]:
    """A repaired copy, and what was changed.

    Control dependencies are dropped that are on absent nodes, on the node itself, or on a node that by data
    dependencies waits for this one (some converters write all three). METADATA nodes and CPU-side wrappers of
    collectives are taken out; what waited for them waits for what they waited for.
    """
    ids = raw.nodes.node_id.tolist()
    gone = np.flatnonzero((raw.nodes.kind == NodeKind.METADATA) | is_wrapper(raw.nodes)).tolist()
    data = _lists(raw.data_offsets, raw.data_ids)
    ctrl, changes = _sound_control(raw, ids)
    ctrl, contradicted = _without_contradictions(ids, data, ctrl)
    if contradicted:
        changes.append(f"{raw.source}: dropped {contradicted} ctrl dependencies that contradict data dependencies")
    if len(gone) == len(ids):
        changes.append(f"{raw.source}: nothing would be left without METADATA nodes and wrappers: left them in")
        gone = []
    if gone:
        shown = ", ".join(f"{ids[row]} ({raw.nodes.name[row]})" for row in gone[:_SHOWN_NODES])
        more = f" and {len(gone) - _SHOWN_NODES} more" if len(gone) > _SHOWN_NODES else ""
        changes.append(f"{raw.source}: took out {len(gone)} METADATA nodes and CPU-side wrappers: {shown}{more}")
        bridge = _Bridge(ids, data, ctrl, gone)
        data, ctrl = (
            [bridge.over(node, deps) for node, deps in zip(ids, lists, strict=True)] for lists in (data, ctrl)
        )
    return _chosen(raw, data, ctrl, set(gone)), changes


def _lists(offsets: NDArray[np.int64], ids: NDArray[np.uint64]) -> Lists:
    bounds, values = offsets.tolist(), ids.tolist()
    return [values[a:b] for a, b in itertools.pairwise(bounds)]


def _sound_control(raw: RawTrace, ids: list[int]) -> tuple[Lists, list[str]]:
    """Control dependencies without those that are dangling or on the node itself."""
    known, given = set(ids), _lists(raw.ctrl_offsets, raw.ctrl_ids)
    dangling = sum(dep not in known for deps in given for dep in deps)
    itself = sum(dep == node for node, deps in zip(ids, given, strict=True) for dep in deps)
    kept = [[dep for dep in deps if dep in known and dep != node] for node, deps in zip(ids, given, strict=True)]
    counts = ((dangling, "on absent nodes"), (itself, "of nodes on themselves"))
    return kept, [f"{raw.source}: dropped {count} ctrl dependencies {which}" for count, which in counts if count]


def _without_contradictions(ids: list[int], data: Lists, ctrl: Lists) -> tuple[Lists, int]:
    """Control dependencies without those on nodes that wait for the node itself by data, and how many those were."""
    row_of = {node: row for row, node in reversed(list(enumerate(ids)))}
    part = _strong_parts(row_of, data, ctrl)
    inside = [[row_of[dep] for dep in deps if dep in row_of] for deps in data]
    reached: dict[int, set[int]] = {}
    kept, dropped = [], 0
    for row, deps in enumerate(ctrl):
        good = [
            dep
            for dep in deps
            if part[row_of[dep]] != part[row] or row not in _reach(row_of[dep], inside, part, reached)
        ]
        dropped += len(deps) - len(good)
        kept.append(good)
    return kept, dropped


def _strong_parts(row_of: dict[int, int], data: Lists, ctrl: Lists) -> list[int]:
    """Number of the strongly connected part of each row: only within one can dependencies go in a circle."""
    from scipy.sparse import csr_array  # noqa: PLC0415 - heavy, needed only for repairs
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415

    rows = [[row_of[dep] for dep in (*a, *b) if dep in row_of] for a, b in zip(data, ctrl, strict=True)]
    offsets, columns = csr_from_lists(rows)
    graph = csr_array((np.ones(len(columns), np.int8), columns, offsets), shape=(len(rows), len(rows)))
    parts: list[int] = connected_components(graph, directed=True, connection="strong")[1].tolist()
    return parts


def _reach(start: int, data: Lists, part: list[int], known: dict[int, set[int]]) -> set[int]:
    """Rows of the same part that `start` waits for by data, itself included."""
    if start not in known:
        seen, queue = {start}, [start]
        while queue:
            fresh = {dep for dep in data[queue.pop()] if part[dep] == part[start]} - seen
            seen |= fresh
            queue += fresh
        known[start] = seen
    return known[start]


class _Bridge:
    """Leads dependencies over nodes that are taken out."""

    def __init__(self, ids: list[int], data: Lists, ctrl: Lists, gone: list[int]) -> None:
        self.parents = {ids[row]: [*data[row], *ctrl[row]] for row in gone}

    def over(self, node: int, deps: list[int]) -> list[int]:
        """What to wait for instead, each once."""
        if self.parents.keys().isdisjoint(deps):
            return deps
        found: dict[int, None] = {}
        seen: set[int] = set()
        queue = deps[::-1]
        while queue:
            dep = queue.pop()
            if dep not in self.parents:
                found[dep] = None
            elif dep not in seen:
                seen.add(dep)
                queue += self.parents[dep][::-1]
        found.pop(node, None)
        return list(found)


def _chosen(raw: RawTrace, data: Lists, ctrl: Lists, gone: set[int]) -> RawTrace:
    keep = [row for row in range(len(raw.nodes)) if row not in gone]
    data_offsets, data_ids = csr_from_lists([data[row] for row in keep])
    ctrl_offsets, ctrl_ids = csr_from_lists([ctrl[row] for row in keep])
    rows = np.array(keep, np.int64)
    return replace(
        raw,
        nodes=raw.nodes.take(rows),
        data_offsets=data_offsets,
        data_ids=data_ids.astype(np.uint64),
        ctrl_offsets=ctrl_offsets,
        ctrl_ids=ctrl_ids.astype(np.uint64),
        own_rank=raw.own_rank[rows],
        frames=raw.frames[rows],
        offsets=raw.offsets[rows],
    )


def repair_files(prefix: Path | str, folder: Path) -> list[str]:
    """Write repaired copies of PREFIX.RANK.et, and a copy of the comm-group file beside them; what was changed.

    Attributes that Genie does not know are kept.

    Raises:
        InputError: a file that cannot be read, or the folder is the one that the traces are in.
    """
    files = find_traces(prefix)
    first = files[min(files)]
    if folder.exists() and folder.samefile(first.parent):
        raise InputError("the copies would overwrite the traces.", where=str(folder), fix="name another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    changes: list[str] = []
    for _, path in sorted(files.items()):
        repaired, made = fix(read_raw(path))
        rewrite(folder / path.name.removesuffix(".gz"), repaired)
        changes += made
    groups = comm_groups_beside(first)
    if groups is not None:
        shutil.copyfile(groups, folder / groups.name)
    return changes or ["nothing to repair; copies were written"]
