"""ASTRA-sim as a simulator: write its files, run it, read what it says, judge it, and make a Timeline of it.

It simulates a Schedule, as the builtin simulator does, so that both have seen the same values. docs/astra-sim.md.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from genie.core.netmodel import Dimension, DimensionModel, Estimate, NetworkModel, Topology
from genie.core.schedule import Schedule
from genie.core.timeline import Timeline
from genie.core.workload import NodeKind
from genie.errors import InputError
from genie.formats.astra_write import NS3_FLOWS
from genie.simulate.astra_binary import ANALYTICAL, Binary, FrontEnd, find_binary
from genie.simulate.astra_files import TICKS, Physical, write_inputs
from genie.simulate.astra_messages import as_messages
from genie.simulate.astra_parse import Flow, Spoken, Ticks, read_htsim_flows, read_ns3_flows, read_spoken, read_ticks
from genie.simulate.astra_process import STDERR, STDOUT, Ended, Limits, Say, run
from genie.simulate.astra_timeline import timeline_of, timeline_of_messages
from genie.simulate.astra_verdict import judge


@dataclass(frozen=True, slots=True)
class AstraSim:
    """Which ASTRA-sim, and how it is run.

    Attributes:
        program: the program or a folder that holds it; None: GENIE_ASTRA_SIM, else PATH.
        front_end: None: the one that the network model asks for.
        limits: time and memory.
        physical: the network of a packet simulator.
        point_to_point: hand it messages in place of collectives.
    """

    program: Path | None = None
    front_end: FrontEnd | None = None
    limits: Limits = field(default_factory=Limits)
    physical: Physical = field(default_factory=Physical)
    point_to_point: bool = False

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
    messages = as_messages(schedule, dimensions) if using.point_to_point else None
    handed = schedule if messages is None else messages.schedule
    command = write_inputs(folder, handed, dimensions, binary, using.physical)
    ranks = schedule.workload.ranks
    ended = run(command, folder, ranks, using.limits, say)
    spoken = read_spoken(folder / STDOUT, folder / STDERR)
    error = judge(ended, spoken, ranks, using.limits, folder)
    if error is not None:
        raise error
    ticks = read_ticks(folder / TICKS)
    _refuse_unfinished(handed, ticks, folder)
    shutil.rmtree(folder / "log", ignore_errors=True)  # says once more what stdout.txt and ticks.log say
    about = _about(binary, command, ended, spoken)
    if messages is not None:
        timeline = timeline_of_messages(schedule, messages.written, spoken, ticks)
        about |= messages.about
        return Outcome(replace(timeline, notes=(*timeline.notes, messages.note)), about)
    return Outcome(timeline_of(schedule, spoken, ticks, _flows(binary.front_end, folder)), about)


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
