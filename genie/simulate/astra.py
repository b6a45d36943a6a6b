"""ASTRA-sim as a simulator: write its files, run it, read what it says, judge it, and make a Timeline of it.

It simulates a Schedule, as the builtin simulator does, so that both have seen the same values. docs/astra-sim.md.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from genie.core.netmodel import Dimension, DimensionModel, Estimate, NetworkModel, Topology
from genie.core.schedule import COLLECTIVE_TAGS, Schedule
from genie.core.timeline import UNKNOWN, Messages, Operators, Ranks, Timeline
from genie.core.workload import NONE, NodeKind, RankTrace
from genie.errors import InputError
from genie.formats.astra_write import NS3_FLOWS
from genie.simulate.astra_binary import ANALYTICAL, Binary, FrontEnd, find_binary
from genie.simulate.astra_files import TICKS, Physical, write_inputs
from genie.simulate.astra_parse import (
    Flow,
    Spoken,
    Ticks,
    read_htsim_flows,
    read_ns3_flows,
    read_spoken,
    read_ticks,
)
from genie.simulate.astra_process import STDERR, STDOUT, Ended, Limits, Say, run
from genie.simulate.astra_verdict import judge

EXECUTOR: Final = "astra-sim"


@dataclass(frozen=True, slots=True)
class AstraSim:
    """Which ASTRA-sim, and how it is run.

    Attributes:
        program: the program or a folder that holds it; None: GENIE_ASTRA_SIM, else PATH.
        front_end: None: the one that the network model asks for.
        limits: time and memory.
        physical: the network of a packet simulator.
    """

    program: Path | None = None
    front_end: FrontEnd | None = None
    limits: Limits = field(default_factory=Limits)
    physical: Physical = field(default_factory=Physical)

    def binary(self, model: NetworkModel) -> Binary:
        """The program for a model.

        Raises:
            NotReadyError, InputError: as `find_binary`.
        """
        return find_binary(self.program, self.front_end or _asked_for(model))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run gave, besides the timeline.

    Attributes:
        timeline: as the builtin simulator's; messages are those that ASTRA-sim tells of (docs/astra-sim.md).
        about: for run.json: the program, the command, times, memory, statistics.
    """

    timeline: Timeline
    about: dict[str, Any]


def _asked_for(model: NetworkModel) -> FrontEnd | None:
    if isinstance(model, DimensionModel):
        return FrontEnd.AWARE if model.aware else FrontEnd.UNAWARE
    return None


def simulate(
    schedule: Schedule, model: NetworkModel, folder: Path, using: AstraSim, say: Say = lambda _: None
) -> Outcome:
    """Simulate a schedule with ASTRA-sim.

    Args:
        schedule: what every rank does.
        model: the network; a packet simulator takes only its sizes, when it has a physical topology of its own.
        folder: a new folder for ASTRA-sim's inputs and outputs.
        using: the program and its limits.
        say: is told how far it is.

    Raises:
        NotReadyError: the program is not there or cannot be started.
        InputError: what ASTRA-sim cannot do, or the workload's fault.
        RunError: it crashed, or reached a limit.
    """
    binary = using.binary(model)
    dimensions = _dimensions(model, binary.front_end, schedule)
    command = write_inputs(folder, schedule, dimensions, binary, using.physical)
    ranks = schedule.workload.ranks
    ended = run(command, folder, ranks, using.limits, say)
    spoken = read_spoken(folder / STDOUT, folder / STDERR)
    error = judge(ended, spoken, ranks, using.limits, folder)
    if error is not None:
        raise error
    ticks = read_ticks(folder / TICKS)
    _refuse_unfinished(schedule, ticks, folder)
    flows = _flows(binary.front_end, folder)
    about = _about(binary, command, ended, spoken)
    shutil.rmtree(folder / "log", ignore_errors=True)  # says once more what stdout.txt and ticks.log say
    return Outcome(_timeline(schedule, spoken, ticks, flows), about)


def _dimensions(model: NetworkModel, front_end: FrontEnd, schedule: Schedule) -> DimensionModel:
    """A packet simulator takes a fabric too: it needs no more than the logical sizes."""
    if isinstance(model, DimensionModel):
        return model
    if front_end in ANALYTICAL:
        raise InputError(
            "ASTRA-sim's analytical front ends take a network file, not a fabric.",
            fix="give a network file and the model aware or unaware.",
        )
    slowest_bps = min(link.capacity_bps.value for link in model.links)
    delay_ns = max(link.delay_ns for link in model.links)
    switch = Dimension(Topology.SWITCH, schedule.workload.ranks, Estimate(slowest_bps), Estimate(delay_ns))
    return DimensionModel((switch,))


def _refuse_unfinished(schedule: Schedule, ticks: Ticks, folder: Path) -> None:
    """A rank can say that it finished although nodes never ran (in a cycle, say)."""
    for trace in schedule.workload.traces:
        kinds = trace.nodes.kind.tolist()
        for row, node in enumerate(trace.nodes.node_id.tolist()):
            key = (trace.rank, node)
            if key not in ticks.done and kinds[row] != NodeKind.INVALID and (ticks.issued or ticks.done):
                state = "never ended" if key in ticks.issued else "never ran"
                raise InputError(
                    f"ASTRA-sim says that rank {trace.rank} finished, but node {node} "
                    f"({trace.nodes.name[row]}) {state}.",
                    where=str(folder),
                    fix="genie trace check names cycles and dangling dependencies.",
                )


def _flows(front_end: FrontEnd, folder: Path) -> list[Flow]:
    if front_end is FrontEnd.NS3:
        return read_ns3_flows(folder / NS3_FLOWS)
    return read_htsim_flows(folder / STDOUT) if front_end is FrontEnd.HTSIM else []


def _about(binary: Binary, command: list[str], ended: Ended, spoken: Spoken) -> dict[str, Any]:
    return binary.as_dict() | {
        "command": command,
        "elapsed_s": round(ended.elapsed_s, 3),
        "cpu_s": round(ended.cpu_s, 3),
        "peak_bytes": ended.peak_bytes,
        "statistics": {str(rank): spoken.statistics[rank] for rank in sorted(spoken.statistics)},
    }


# --- the timeline -----------------------------------------------------------------------------------------------------


def _timeline(schedule: Schedule, spoken: Spoken, ticks: Ticks, flows: list[Flow]) -> Timeline:
    finished = spoken.finished
    ranks = [(0, rank, finished[rank].finish_ns, finished[rank].exposed_ns) for rank in sorted(finished)]
    traces = schedule.workload.traces
    messages = [_flow_row(flow, index) for flow, index in _numbered(flows)] if flows else _plain_sends(schedule, ticks)
    notes = () if ticks.issued else ("this version of ASTRA-sim does not tell when nodes began and ended",)
    return Timeline(
        executor=EXECUTOR,
        measured=False,
        ranks=Ranks.from_rows(ranks),
        operators=Operators.concat([_operators(trace, ticks) for trace in traces]),
        messages=Messages.from_rows(messages),
        notes=notes,
    )


def _operators(trace: RankTrace, ticks: Ticks) -> Operators:
    nodes = trace.nodes
    ids = nodes.node_id.tolist()
    rows = np.array([row for row, node in enumerate(ids) if (trace.rank, node) in ticks.issued], np.int64)
    keys = [(trace.rank, ids[row]) for row in rows.tolist()]
    return Operators(
        iteration=np.zeros(len(rows), np.int32),
        rank=np.full(len(rows), trace.rank, np.int32),
        node_id=nodes.node_id[rows],
        kind=nodes.kind[rows],
        comm_type=nodes.comm_type[rows],
        group=nodes.group[rows],
        name=nodes.name[rows],
        size_bytes=np.where(nodes.size_bytes[rows] == NONE, 0, nodes.size_bytes[rows]),
        issue_ns=np.array([ticks.issued[key] for key in keys], np.int64),
        done_ns=np.array([ticks.done.get(key, UNKNOWN) for key in keys], np.int64),
        late_ns=np.zeros(len(rows), np.int64),
    )


def _plain_sends(schedule: Schedule, ticks: Ticks) -> list[tuple[Any, ...]]:
    """The trace's own sends: issue is the post, completion the delivery. Of a collective's messages nothing is told."""
    rows = []
    counts: Counter[tuple[int, ...]] = Counter()
    for trace in schedule.workload.traces:
        nodes = trace.nodes
        sends = [
            (ticks.issued[key], node, row)
            for row, node in enumerate(nodes.node_id.tolist())
            if nodes.kind[row] == NodeKind.SEND and (key := (trace.rank, node)) in ticks.issued
        ]
        for posted_ns, node, row in sorted(sends):
            tag, size = max(0, int(nodes.tag[row])) % COLLECTIVE_TAGS, int(nodes.size_bytes[row])
            message = (trace.rank, int(nodes.peer[row]), tag, size)
            delivered_ns = ticks.done[trace.rank, node]
            rows.append(_message_row(message, counts[message], 0, node, posted_ns, delivered_ns))
            counts[message] += 1
    return rows


def _numbered(flows: list[Flow]) -> list[tuple[Flow, int]]:
    """Flows with their running number among equal ones."""
    counts: Counter[tuple[int, int, int]] = Counter()
    numbered = []
    for flow in flows:
        key = (flow.src, flow.dst, flow.size_bytes)
        numbered.append((flow, counts[key]))
        counts[key] += 1
    return numbered


def _flow_row(flow: Flow, index: int) -> tuple[Any, ...]:
    """A packet simulator's flow: its end is when the sender knows, which its front end takes as the delivery too."""
    message = (flow.src, flow.dst, UNKNOWN, flow.size_bytes)
    return _message_row(message, index, flow.port, 0, flow.start_ns, flow.end_ns)


def _message_row(
    message: tuple[int, int, int, int], index: int, flow: int, node: int, posted_ns: int, delivered_ns: int
) -> tuple[Any, ...]:
    nowhere = (-1, -1, -1)
    times = (posted_ns, posted_ns, UNKNOWN, delivered_ns, delivered_ns, 0)
    return (0, *message, index, flow, node, *nowhere, *times)
