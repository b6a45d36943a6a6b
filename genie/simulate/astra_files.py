"""A Schedule and a network as the files that ASTRA-sim reads, in one folder, and the command line that names them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from genie.core.netmodel import DimensionModel
from genie.core.schedule import Schedule
from genie.core.system import Profile
from genie.core.workload import CollectiveKind, NodeKind
from genie.errors import InputError, NotReadyError
from genie.formats.astra import read_custom_collectives, write_network
from genie.formats.astra_write import (
    write_custom_by_node,
    write_htsim_topology,
    write_logging,
    write_logical_topology,
    write_memory,
    write_ns3_config,
    write_ns3_topology,
    write_system,
)
from genie.formats.chakra_writer import write_trace
from genie.formats.comm_groups import write_comm_groups
from genie.simulate.astra_binary import ANALYTICAL, Binary, FrontEnd

TICKS: Final = "ticks.log"
"""Where every node's issue and completion is written."""

_WORKLOAD: Final = "workload/w"
_POINT_TO_POINT: Final = "--point-to-point sends them as messages."
_UNKNOWN_TO_ASTRA: Final = {
    CollectiveKind.REDUCE,
    CollectiveKind.GATHER,
    CollectiveKind.SCATTER,
    CollectiveKind.BARRIER,
    CollectiveKind.REDUCE_SCATTER_BLOCK,
}


@dataclass(frozen=True, slots=True)
class Physical:
    """What a packet simulator's network is; None means a single switch made from the network file.

    Attributes:
        ns3_config: an ns-3 configuration file.
        htsim_topology: an htsim topology file.
    """

    ns3_config: Path | None = None
    htsim_topology: Path | None = None


def write_inputs(
    folder: Path, schedule: Schedule, model: DimensionModel, binary: Binary, physical: Physical
) -> list[str]:
    """Write all input files into a new folder; the command line that runs them from there.

    The traces are copies: ASTRA-sim opens them for writing. File names on the command line are relative to the folder.

    Raises:
        InputError: the schedule holds what ASTRA-sim cannot do, or a physical topology is needed.
        NotReadyError: the files cannot be written.
    """
    refuse(schedule, binary.front_end)
    try:
        (folder / _WORKLOAD).parent.mkdir(parents=True)
        return [str(binary.path), *_write(folder, schedule, model, binary.front_end, physical)]
    except OSError as error:
        raise NotReadyError(f"ASTRA-sim's files cannot be written: {error.strerror}.", where=str(folder)) from error


def refuse(schedule: Schedule, front_end: FrontEnd) -> None:
    """Say what ASTRA-sim cannot do before it aborts or hangs on it.

    Raises:
        InputError: another profile than ASTRA-sim's; a collective that it has no model of, or that has one member.
    """
    if schedule.system.profile is not Profile.ASTRA:
        raise InputError(
            f"ASTRA-sim keeps one communication operator in flight; it has no profile {schedule.system.profile.value}.",
            fix="use profile astra, or the builtin simulator.",
        )
    for trace in schedule.workload.traces:
        nodes = trace.nodes
        kinds = {CollectiveKind(k) for k in nodes.comm_type[nodes.kind == NodeKind.COLLECTIVE].tolist() if k >= 0}
        if unknown := sorted(kind.name for kind in kinds & _UNKNOWN_TO_ASTRA):
            raise InputError(f"ASTRA-sim cannot run {', '.join(unknown)}.", where=trace.source, fix=_POINT_TO_POINT)
        if CollectiveKind.BROADCAST in kinds and schedule.system.extended:
            raise InputError(
                "ASTRA-sim has no model of BROADCAST: it takes the trace's duration instead.",
                where=trace.source,
                fix=f"{_POINT_TO_POINT} Or set extended to false, to take durations in the builtin simulator too.",
            )
    if any(collective.chunks == 0 for collective in schedule.collectives):
        raise InputError("ASTRA-sim never finishes a collective of one rank.", fix=_POINT_TO_POINT)
    if front_end is FrontEnd.HTSIM and schedule.system.rendezvous:
        raise InputError("the rendezvous protocol has not been tried with htsim.", fix="leave it out.")


def _write(
    folder: Path, schedule: Schedule, model: DimensionModel, front_end: FrontEnd, physical: Physical
) -> list[str]:
    system, workload = schedule.system, schedule.workload
    for trace in workload.traces:
        write_trace(folder / f"{_WORKLOAD}.{trace.rank}.et", trace)
    custom = _write_custom(folder, schedule)
    by_node = "custom_by_node.yml" if system.custom_by_node else None
    if by_node is not None:
        write_custom_by_node(folder / by_node, system, custom)
    write_system(folder / "system.json", system, custom, by_node=by_node)
    write_memory(folder / "memory.json", system.memory, workload.ranks)
    write_logging(folder / "logging.toml", TICKS)
    options = [
        f"--workload-configuration={_WORKLOAD}",
        "--system-configuration=system.json",
        "--remote-memory-configuration=memory.json",
        "--logging-configuration=logging.toml",
        f"--num-queues-per-dim={system.queues_per_dim}",
    ]
    if workload.groups:
        write_comm_groups(folder / "comm_groups.json", workload.groups)
        options.append("--comm-group-configuration=comm_groups.json")
    if system.rendezvous:
        options.append("--rendezvous-protocol=true")
    return options + _write_network(folder, model, front_end, physical)


def _write_custom(folder: Path, schedule: Schedule) -> dict[str, str]:
    """Copies of the custom collectives: prefix in the system -> prefix in the folder."""
    names = {}
    for number, (prefix, traces) in enumerate(read_custom_collectives(schedule.system).items()):
        names[prefix] = f"custom/{number}"
        (folder / "custom").mkdir(exist_ok=True)
        for trace in traces:
            write_trace(folder / f"{names[prefix]}.{trace.rank}.et", trace)
    return names


def _write_network(folder: Path, model: DimensionModel, front_end: FrontEnd, physical: Physical) -> list[str]:
    if front_end is not FrontEnd.NS3:
        write_network(folder / "network.yml", model, "Written by Genie")
        options = ["--network-configuration=network.yml"]
        return options if front_end in ANALYTICAL else options + _htsim(folder, model, physical)
    write_logical_topology(folder / "logical.json", tuple(d.size for d in model.dimensions))
    if physical.ns3_config is None:
        write_ns3_topology(folder / "topology.txt", model)
    write_ns3_config(folder / "ns3.txt", physical.ns3_config, folder / "topology.txt")
    return ["--network-configuration=ns3.txt", "--logical-topology-configuration=logical.json"]


def _htsim(folder: Path, model: DimensionModel, physical: Physical) -> list[str]:
    """The options of htsim itself come last, behind a mark."""
    topology = folder / "topology.topo"
    if physical.htsim_topology is None:
        write_htsim_topology(topology, model)
    else:
        try:
            topology.write_bytes(physical.htsim_topology.read_bytes())
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}.", where=str(physical.htsim_topology)) from error
    return ["--htsim_opts", "-topo", topology.name]
