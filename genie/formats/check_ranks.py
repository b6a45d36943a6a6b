"""Checks that need all traces: do sends meet receives, and collectives each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np

from genie.core.workload import NONE, CollectiveKind, Group, NodeKind
from genie.formats.chakra import RawTrace
from genie.formats.check_nodes import is_wrapper
from genie.formats.dry_run import DryRun, MessageKey, Place, Wait, dry_run, group_key
from genie.formats.findings import ERROR, WARNING, Found, about_file, about_node
from genie.formats.graph import Graph
from genie.formats.workload import absent_ranks

_SHOWN_RANKS: Final = 6
Raws = Mapping[int, RawTrace]
Issue = tuple[int, int]
"""(comm_type, size_bytes) of a collective"""


def check_rank_numbers(raws: Raws, count: int, ranks: int | None, given: int) -> Found:
    """Are there as many traces as the network or testbed has ranks? `given`: one more than the highest file's rank."""
    missing, first = absent_ranks(raws, count, _SHOWN_RANKS)
    if missing:
        shown = ", ".join(map(str, first)) + (", ..." if missing > _SHOWN_RANKS else "")
        what = f"no readable trace for {missing} of {count} ranks: {shown}"
        yield about_file("", ERROR, "missing-rank", what, "add the files, or use a network of fewer ranks.")
    if ranks is not None and given > ranks:
        what = f"traces of {given} ranks, but the network has {ranks}; the others are ignored"
        yield about_file("", WARNING, "extra-rank", what, "use a network of as many ranks as there are traces.")


def check_places(given: int, places: int | None) -> Found:
    """Does the testbed have a place for every rank? It may have more."""
    if places is not None and given > places:
        what = f"traces of {given} ranks, but the testbed has places for {places}"
        yield about_file("", ERROR, "testbed-too-small", what, "use a larger testbed, or a workload of fewer ranks.")


def check_groups(groups: Mapping[str, Group], count: int) -> Found:
    """Do groups name ranks that there are?"""
    for group in groups.values():
        if max(group.ranks) >= count:
            what = f"group {group.name} names rank {max(group.ranks)}, the job has ranks 0 to {count - 1}"
            yield about_file("", ERROR, "group-out-of-range", what, "correct the comm-group file: global ranks.")


def check_work(raws: Raws) -> Found:
    """Is there anything to measure, and does computation take time?"""
    sends = (NodeKind.SEND, NodeKind.RECV, NodeKind.COLLECTIVE)
    if raws and not any(np.isin(raw.nodes.kind, sends).any() for raw in raws.values()):
        what = "no rank communicates"
        yield about_file("", WARNING, "no-communication", what, "convert the host trace linked with the device's.")
    accesses = sum(int(np.isin(raw.nodes.kind, (NodeKind.MEM_LOAD, NodeKind.MEM_STORE)).sum()) for raw in raws.values())
    if accesses:
        what = f"{accesses} remote memory accesses: they need a memory file"
        yield about_file(
            "", WARNING, "remote-memory", what, "pass --memory, with another type than NO_MEMORY_EXPANSION."
        )
    timeless = [
        (nodes.kind == NodeKind.COMP) & (nodes.duration_ns == 0) for nodes in (raw.nodes for raw in raws.values())
    ]
    count = sum(int(mask.sum()) for mask in timeless)
    if count:
        roofline = any((raw.nodes.num_ops[mask] > 0).any() for raw, mask in zip(raws.values(), timeless, strict=True))
        fix = "set roofline-enabled with local-mem-bw and peak-perf." if roofline else "add duration_micros."
        what = f"{count} computations have no duration: each takes 1 ns"
        yield about_file("", WARNING, "no-duration", what, fix)


def check_messages(raws: Raws, groups: Mapping[str, Group]) -> Found:
    """Sends against receives, by source, destination, tag and size."""
    sends: dict[MessageKey, list[Place]] = {}
    receives: dict[MessageKey, list[Place]] = {}
    for rank, raw in raws.items():
        nodes = raw.nodes
        chosen = np.flatnonzero(((nodes.kind == NodeKind.SEND) | (nodes.kind == NodeKind.RECV)) & (nodes.peer != NONE))
        columns = (nodes.kind, nodes.peer, np.maximum(nodes.tag, 0), nodes.size_bytes)
        rows = zip(chosen.tolist(), *(column[chosen].tolist() for column in columns), strict=True)
        for row, kind, peer, tag, size in rows:
            if kind == NodeKind.SEND:
                sends.setdefault((rank, peer, tag, size), []).append((rank, row))
            else:
                receives.setdefault((peer, rank, tag, size), []).append((rank, row))
    alone_sends = {key: places[len(receives.get(key, [])) :] for key, places in sends.items()}
    alone_receives = {key: places[len(sends.get(key, [])) :] for key, places in receives.items()}
    for key, places in sorted(alone_sends.items()):
        what, fix = f"{_named(key)} is received by nobody", _hint(key, alone_receives, groups)
        for rank, row in places:
            yield about_node(raws[rank], row, ERROR, "send-without-receive", what, fix)
    for key, places in sorted(alone_receives.items()):
        what, fix = f"{_named(key)} is sent by nobody", _hint(key, alone_sends, groups)
        for rank, row in places:
            yield about_node(raws[rank], row, ERROR, "receive-without-send", what, fix)


def _named(key: MessageKey) -> str:
    source, destination, tag, size = key
    return f"a message of {size} bytes from rank {source} to rank {destination} with tag {tag}"


def _hint(key: MessageKey, others: Mapping[MessageKey, list[Place]], groups: Mapping[str, Group]) -> str:
    """What else could have been meant: a rank within a group, another tag or another size."""
    source, destination, tag, size = key
    left = {other for other, places in others.items() if places}
    for group in groups.values():
        for near, far in ((source, destination), (destination, source)):
            if near in group.ranks and far < len(group.ranks) and group.ranks[far] != far:
                meant = (near, group.ranks[far]) if near == source else (group.ranks[far], near)
                if any(other[2:] == (tag, size) and set(meant) & set(other[:2]) for other in left):
                    return f"rank {far} looks like a rank within group {group.name}; globally it is {group.ranks[far]}."
    for other in sorted(left):
        if other[:2] == (source, destination) and (other[2] == tag or other[3] == size):
            return f"its partner has tag {other[2]} and {other[3]} bytes; both must be equal."
    return "add its partner, with the same tag and size."


def check_collectives(raws: Raws, graphs: Mapping[int, Graph], groups: Mapping[str, Group]) -> Found:
    """Do all members issue the same collectives in the same order, and does nobody wait in a circle?"""
    skip = {rank: set(np.flatnonzero(_reported(raw)).tolist()) for rank, raw in raws.items()}
    outcome = dry_run(raws, graphs, groups, skip)
    members = {"": tuple(sorted(raws))} | {name: group.ranks for name, group in groups.items()}
    issued = _all_issued(raws, graphs, outcome, skip)
    for name in sorted({name for name, _ in issued}):
        known = [rank for rank in members.get(name, ()) if rank in raws]
        if known:
            yield from _compare(raws, name, {rank: issued.get((name, rank), []) for rank in known})
    yield from _circles(raws, outcome.waits)


def _reported(raw: RawTrace) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Collectives that cannot take part; they have findings of their own."""
    nodes = raw.nodes
    untyped = (nodes.kind == NodeKind.COLLECTIVE) & (nodes.comm_type == NONE)
    mask: np.ndarray[tuple[int], np.dtype[np.bool_]] = untyped | is_wrapper(nodes)
    return mask


def _all_issued(
    raws: Raws, graphs: Mapping[int, Graph], outcome: DryRun, skip: Mapping[int, set[int]]
) -> dict[tuple[str, int], list[int]]:
    """Collectives in issue order, and behind them, by id, those that were never reached."""
    issued = {key: list(rows) for key, rows in outcome.issued.items()}
    reached = {(rank, row) for (_, rank), rows in issued.items() for row in rows}
    for rank, raw in raws.items():
        order = graphs[rank].order
        for row in order[raw.nodes.kind[order] == NodeKind.COLLECTIVE].tolist():
            if (rank, row) not in reached and row not in skip[rank]:
                issued.setdefault((group_key(str(raw.nodes.group[row])), rank), []).append(row)
    return issued


def _compare(raws: Raws, name: str, issued: Mapping[int, list[int]]) -> Found:
    """Every member's sequence against the one that most of them have."""
    sequences = {rank: _sequence(raws[rank], rows) for rank, rows in issued.items()}
    usual, _ = Counter(sequences.values()).most_common(1)[0]
    model = next(rank for rank, sequence in sequences.items() if sequence == usual)
    where = f"group {name}" if name else "all ranks"
    for rank, own in sequences.items():
        if own == usual:
            continue
        at = next((k for k, (a, b) in enumerate(zip(own, usual, strict=False)) if a != b), min(len(own), len(usual)))
        order = "the same collectives in another order" if sorted(own) == sorted(usual) else "other collectives"
        what = (
            f"rank {rank} issues {order} of {where} than rank {model}: "
            f"number {at} is {_shown(own, at)} here, {_shown(usual, at)} there"
        )
        fix = "every member of a group must issue its collectives, equally and in one order."
        if at < len(own):
            yield about_node(raws[rank], issued[rank][at], ERROR, "collective-mismatch", what, fix)
        else:
            yield about_file(raws[rank].source, ERROR, "collective-mismatch", what, fix)


def _sequence(raw: RawTrace, rows: list[int]) -> tuple[Issue, ...]:
    return tuple(zip(raw.nodes.comm_type[rows].tolist(), raw.nodes.size_bytes[rows].tolist(), strict=True))


def _shown(sequence: tuple[Issue, ...], at: int) -> str:
    return f"{CollectiveKind(sequence[at][0]).name} of {sequence[at][1]} bytes" if at < len(sequence) else "missing"


def _circles(raws: Raws, waits: list[Wait]) -> Found:
    """Ranks that wait for each other, one finding a circle."""
    blocked: dict[int, list[Wait]] = {}
    for wait in waits:
        blocked.setdefault(wait.rank, []).append(wait)
    while circle := _circle(blocked):
        steps = [
            f"rank {wait.rank} is in node {raws[wait.rank].nodes.node_id[wait.row]} "
            f"({raws[wait.rank].nodes.name[wait.row]}) and waits for rank {target}"
            for wait, target in circle[:_SHOWN_RANKS]
        ]
        more = f" (and {len(circle) - _SHOWN_RANKS} more)" if len(circle) > _SHOWN_RANKS else ""
        first = circle[0][0]
        fix = "let all ranks issue communication of different groups in one order, or add a dependency that does."
        what = f"a circle of {len(circle)} waiting ranks: {'; '.join(steps)}{more}"
        yield about_node(raws[first.rank], first.row, ERROR, "deadlock", what, fix)
        for wait, _ in circle:
            blocked.pop(wait.rank, None)


def _circle(blocked: Mapping[int, list[Wait]]) -> list[tuple[Wait, int]]:
    """Waits of one circle of ranks, each with the rank that it waits for; empty without one."""
    steps = {rank: [(wait, to) for wait in waits for to in wait.ranks] for rank, waits in blocked.items()}
    before = -1
    while len(steps) != before:
        before = len(steps)
        steps = {rank: left for rank, all_ in steps.items() if (left := [s for s in all_ if s[1] in steps])}
    path: list[tuple[Wait, int]] = []
    seen: dict[int, int] = {}
    rank = min(steps, default=-1)
    while steps and rank not in seen:
        seen[rank] = len(path)
        path.append(steps[rank][0])
        rank = steps[rank][0][1]
    return path[seen[rank] :] if path else []
