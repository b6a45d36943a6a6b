"""The compiled path: a schedule as tables for the kernel, and its arrays as an Outcome."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from genie.core.netmodel import DimensionModel, Topology
from genie.core.schedule import (
    OpKind,
    Schedule,
)
from genie.core.system import MemoryKind, Profile
from genie.core.timeline import UNKNOWN, Messages
from genie.network.queue import zero_delay
from genie.simulate.compiled_memory import Integers, Memory
from genie.simulate.compiled_tables import Tables
from genie.simulate.kernel import layout
from genie.simulate.outcome import ArrayRecord, Outcome

_MAX_LINKS: Final = 1 << 24
_MAX_COUNTERS: Final = 1 << 26


class Refused(Exception):  # noqa: N818 - no error: the plain path tells what is wrong
    """A message cannot be sent."""


def why_not(schedule: Schedule, network: DimensionModel) -> str:
    """Why the compiled path cannot run this; "" if it can."""
    system = schedule.system
    if system.profile is not Profile.ASTRA:
        return "the profile is not astra"
    if system.rendezvous:
        return "the rendezvous protocol"
    if system.memory.kind not in {MemoryKind.NONE, MemoryKind.PER_NPU} and any(
        (part.operators.kind == OpKind.MEMORY).any() for part in schedule.ranks
    ):
        return "remote memory is shared"
    ranks, groups = len(schedule.ranks), len({collective.group for collective in schedule.collectives})
    if network.aware and network.dimensions[0].topology is Topology.FULLY_CONNECTED and ranks**2 > _MAX_LINKS:
        return "too many links"
    return "too many groups" if ranks * groups > _MAX_COUNTERS else ""


def simulate_compiled(
    schedule: Schedule, network: DimensionModel, *, strict_zero: bool, keep_messages: bool
) -> Outcome:
    """Run the kernel.

    Args:
        schedule: what every rank does; `why_not` must have nothing against it.
        network: as many ranks.
        strict_zero: refuse what has no duration at tick 0.
        keep_messages: record every message.

    Raises:
        InputError: something without duration at tick 0 under `strict_zero`.
        Refused: a message that the network cannot carry.
    """
    from genie.simulate.kernel import loop  # noqa: PLC0415 - imports numba, which takes half a second

    tables = Tables(schedule, network)
    memory = tables.memory(strict_zero=strict_zero, keep_messages=keep_messages)
    started = 0
    while True:
        stopped, started = loop.advance(memory.m, memory.f, started)
        if stopped != layout.LOW:
            break
        memory.enlarge()
    if stopped == layout.ZERO_DELAY:
        raise zero_delay()
    if stopped == layout.REFUSED:
        raise Refused
    return _outcome(schedule, memory)


def _outcome(schedule: Schedule, memory: Memory) -> Outcome:
    issue_ns, done_ns = memory.table("issue_ns")[:, 0], memory.table("done_ns")[:, 0]
    columns = memory.table("rank")[
        :, [layout.RANK_ROW, layout.RANK_ROWS, layout.RANK_FINISH_NS, layout.RANK_COMPUTE_NS]
    ]
    records = [
        ArrayRecord(issue_ns[row : row + rows], done_ns[row : row + rows], finish_ns, compute_ns)
        for row, rows, finish_ns, compute_ns in columns.tolist()
    ]
    if not memory.registers[layout.KEEP]:
        return Outcome(records, None, None)
    rows = memory.table("log")[: int(memory.registers[layout.LOGGED])]
    log = dict(zip(layout.TABLES["log"], rows.T, strict=True))
    return Outcome(records, None, _messages(schedule, log))


def _messages(schedule: Schedule, log: dict[str, Integers]) -> Messages:
    count = len(log["src"])
    node_id = np.empty(count, np.uint64)
    by_sender = np.argsort(log["src"], kind="stable")
    bounds = np.searchsorted(log["src"][by_sender], np.arange(len(schedule.ranks) + 1))
    for trace, begin, end in zip(schedule.workload.traces, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        mine = by_sender[begin:end]
        node_id[mine] = trace.nodes.node_id[log["row"][mine]]
    zeros = np.zeros(count, np.int64)
    columns: dict[str, Any] = {
        name: log[name] for name in ("src", "dst", "tag", "chunk", "phase", "step", "posted_ns", "delivered_ns")
    }
    columns |= dict.fromkeys(("iteration", "flow", "status"), zeros)
    return Messages(
        **columns,
        size_bytes=log["size"],
        index=_running_index(log),
        node_id=node_id,
        caused_ns=log["posted_ns"],
        first_byte_ns=log["delivered_ns"],
        acknowledged_ns=np.full(count, UNKNOWN),
    )


def _running_index(log: dict[str, Integers]) -> Integers:
    """0, 1, ... among the messages of equal source, destination, tag and size, in order of posting."""
    count = len(log["src"])
    index = np.zeros(count, np.int64)
    if count:
        names = ("size", "tag", "dst", "src")
        order = np.lexsort([log[name] for name in names])
        new = np.zeros(count, bool)
        new[0] = True
        for name in names:
            column = log[name][order]
            new[1:] |= column[1:] != column[:-1]
        first = np.flatnonzero(new)
        index[order] = np.arange(count) - np.repeat(first, np.diff([*first, count]))
    return index
