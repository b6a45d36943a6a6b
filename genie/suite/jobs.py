"""Several jobs on one testbed, as one workload: what measures how they disturb one another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from genie.core.columns import csr_from_lists
from genie.core.workload import NONE, Group, Nodes, RankTrace, Workload


def interleaved(job: Workload, jobs: int, *, idle: bool = False) -> Workload:
    """`jobs` copies of a job; rank r of copy k is rank r x jobs + k of the whole, so that every leaf has some of each.

    Args:
        job: what each copy does.
        jobs: how many.
        idle: only the first copy does anything.
    """
    if jobs == 1:
        return job
    traces, groups = [], []
    for number in range(jobs):
        groups += [_group(group, number, jobs) for group in job.groups]
        groups.append(Group(_name("all", number), tuple(rank * jobs + number for rank in range(job.ranks))))
    for rank in range(job.ranks * jobs):
        trace, number = job.traces[rank // jobs], rank % jobs
        traces.append(_nothing(rank) if idle and number else _moved(trace, number, jobs))
    return Workload(f"{jobs} x {job.name}", tuple(traces), tuple(groups))


def _name(group: str, number: int) -> str:
    return f"job{number}-{group}"


def _group(group: Group, number: int, jobs: int) -> Group:
    return Group(_name(group.name, number), tuple(rank * jobs + number for rank in group.ranks))


def _moved(trace: RankTrace, number: int, jobs: int) -> RankTrace:
    nodes = trace.nodes
    peers = np.where(nodes.peer == NONE, NONE, nodes.peer * jobs + number)
    names = [_name("all" if group in {"", "0"} else str(group), number) for group in nodes.group.tolist()]
    groups = np.array([name if comm != NONE else "" for name, comm in zip(names, nodes.comm_type, strict=True)], object)
    columns = nodes.columns() | {"peer": peers, "group": groups}
    return replace(trace, rank=trace.rank * jobs + number, nodes=Nodes(**columns))


def _nothing(rank: int) -> RankTrace:
    offsets, deps = csr_from_lists([])
    return RankTrace(rank, Nodes.empty(), offsets, deps, f"rank {rank}, idle")
