"""What can be seen of a schedule before it runs: receives without sends, collectives that not all members issue."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from genie.core.schedule import OpKind, Schedule
from genie.errors import InputError

_SHOWN: Final = 3
_CHECK: Final = "genie trace check names all of these, and the likely partners."


def refuse_unpaired(schedule: Schedule) -> None:
    """Refuse a schedule in which somebody must wait for ever, whatever the network.

    A send without a receive is no reason: it ends when it is delivered.

    Raises:
        InputError: a receive without its send, or a member of a group with more chunks of collectives than another.
    """
    _refuse_receives(schedule)
    _refuse_collectives(schedule)


def _ends(schedule: Schedule, kind: OpKind) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(source, destination, tag, size_bytes) and (rank, row) of every send, or receive."""
    keys, places = [], []
    for part in schedule.ranks:
        operators = part.operators
        rows = np.flatnonzero(operators.kind == kind)
        own = np.full(len(rows), part.rank)
        ends = (own, operators.peer[rows]) if kind is OpKind.SEND else (operators.peer[rows], own)
        keys.append(np.column_stack([*ends, operators.tag[rows], operators.size_bytes[rows]]))
        places.append(np.column_stack([own, rows]))
    return np.concatenate(keys), np.concatenate(places)


def _refuse_receives(schedule: Schedule) -> None:
    (sent, _), (received, places) = _ends(schedule, OpKind.SEND), _ends(schedule, OpKind.RECV)
    if not len(received):
        return
    _, number = np.unique(np.concatenate([sent, received]), axis=0, return_inverse=True)
    number = number.reshape(-1)
    missing = np.bincount(number[len(sent) :], minlength=number.max() + 1)
    missing -= np.bincount(number[: len(sent)], minlength=len(missing))
    alone = np.flatnonzero(missing > 0)
    if not len(alone):
        return
    shown = []
    for which in alone[:_SHOWN].tolist():
        at = int(np.flatnonzero(number[len(sent) :] == which)[-1])
        (source, destination, tag, size), (rank, row) = received[at].tolist(), places[at].tolist()
        nodes = schedule.workload.traces[rank].nodes
        shown.append(
            f"rank {destination} waits in node {nodes.node_id[row]} ({nodes.name[row]}) for {size} bytes from rank "
            f"{source} with tag {tag}"
        )
    total = int(missing[alone].sum())
    more = f"; and {total - len(shown)} more" if total > len(shown) else ""
    raise InputError(
        f"nobody sends what {total} receives wait for: {'; '.join(shown)}{more}.",
        where=schedule.workload.name,
        fix=_CHECK,
    )


def _refuse_collectives(schedule: Schedule) -> None:
    groups = {collective.group for collective in schedule.collectives}
    custom = {collective.group for collective in schedule.collectives if collective.fixed_queue}
    members = {group.name: group.ranks for group in schedule.workload.groups}
    chunks = np.array([collective.chunks for collective in schedule.collectives], np.int64)
    counts = {name: Counter[int]() for name in groups - custom}  # custom ones need not talk to everybody
    for part in schedule.ranks:
        used, times = np.unique(part.operators.collective[part.operators.collective >= 0], return_counts=True)
        for at, count in zip(used.tolist(), times.tolist(), strict=True):
            name = schedule.collectives[at].group
            if name in counts:
                counts[name][part.rank] += count * int(chunks[at])
    for name, by_rank in sorted(counts.items()):
        ranks = members.get(name, tuple(range(len(schedule.ranks))))
        most, least = max(ranks, key=lambda rank: by_rank[rank]), min(ranks, key=lambda rank: by_rank[rank])
        if by_rank[most] != by_rank[least]:
            where = f"group {name}" if name else "all ranks"
            raise InputError(
                f"not every member issues the same collectives of {where}: rank {most} has {by_rank[most]} chunks of "
                f"them, rank {least} has {by_rank[least]}, so that some ranks never finish.",
                where=schedule.workload.name,
                fix=_CHECK,
            )
