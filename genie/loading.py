"""What a run is given: an experiment with everything that its files say, or ASTRA-sim's own files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from genie.core.experiment import Experiment
from genie.core.faults import steps
from genie.core.netmodel import DimensionModel, NetworkModel
from genie.core.schedule import Schedule
from genie.core.system import Profile, System
from genie.core.testbed import Testbed
from genie.errors import InputError
from genie.formats.astra import read_custom_collectives, read_memory, read_network, read_system
from genie.formats.workload import find_traces, load_workload
from genie.lower import lower
from genie.replay.transports.choice import choice


@dataclass(frozen=True, slots=True)
class Loaded:
    """An experiment with everything that its files say."""

    experiment: Experiment
    testbed: Testbed
    system: System
    schedule: Schedule
    network: DimensionModel | None

    def files(self) -> list[tuple[Path, str]]:
        """(file, role) of every input, for the run directory."""
        experiment = self.experiment
        files = [(experiment.system, "system"), (experiment.testbed, "testbed")]
        for path, role in (
            (experiment.source, "experiment"),
            (experiment.memory, "memory"),
            (experiment.network, "network"),
            (experiment.comm_groups, "comm groups"),
        ):
            if path is not None:
                files.append((path, role))
        return files + [(path, "trace") for path in find_traces(experiment.traces).values()]


def load(experiment: Experiment) -> Loaded:
    """Read all inputs and lower the workload.

    Raises:
        InputError: anything wrong in any file, or more ranks than the testbed has places.
    """
    choice(experiment.replay.transport).check(experiment.replay.options)
    from genie.testbed.files import load_testbed  # noqa: PLC0415 - pydantic is slow to import

    testbed = load_testbed(experiment.testbed, labs=True)
    system, network, schedule = _lowered(experiment)
    ranks = len(schedule.ranks)
    if ranks > len(testbed.placement):
        raise InputError(
            f"the workload has {ranks} ranks, the testbed places for {len(testbed.placement)}.",
            where=str(experiment.testbed),
            fix="use a larger testbed or a smaller workload.",
        )
    steps(experiment.replay.faults, testbed, ranks, experiment.replay.repeats)
    return Loaded(experiment, testbed, system, schedule, network)


def schedule_of(experiment: Experiment) -> Schedule:
    """What every rank does, without a look at the testbed: for a rank that runs on one.

    Raises:
        InputError: anything wrong in any file.
    """
    return _lowered(experiment)[2]


def _lowered(experiment: Experiment) -> tuple[System, DimensionModel | None, Schedule]:
    system = read_system(
        experiment.system,
        queues_per_dim=experiment.queues_per_dim,
        memory=read_memory(experiment.memory) if experiment.memory else None,
    )
    system = replace(system, profile=experiment.profile, extended=experiment.extended)
    network = read_network(experiment.network, aware=experiment.model == "aware") if experiment.network else None
    workload = load_workload(experiment.traces, comm_groups=experiment.comm_groups, scale_bytes=experiment.scale_bytes)
    sizes = tuple(d.size for d in network.dimensions) if network else None
    return system, network, lower(workload, system, sizes, read_custom_collectives(system))


def load_astra(**options: Any) -> tuple[Schedule, NetworkModel, list[tuple[Path, str]], str]:
    """(schedule, model, files with roles, name) from ASTRA-sim's own files; keys are `genie simulate`'s options.

    Raises:
        InputError: anything wrong in any file.
    """
    memory = options["memory"]
    system = read_system(
        options["system"],
        queues_per_dim=options["num_queues_per_dim"],
        injection_scale=options["injection_scale"],
        rendezvous=options["rendezvous"],
        memory=read_memory(memory) if memory else None,
    )
    system = replace(system, extended=options["extended"], profile=Profile(options["profile"]))
    model = read_network(options["network"], aware=options["model"] == "aware")
    workload = load_workload(options["workload"], comm_groups=options["comm_groups"], ranks=model.ranks)
    sizes = tuple(d.size for d in model.dimensions)
    schedule = lower(workload, system, sizes, read_custom_collectives(system))
    files = [(Path(options[role]), role) for role in ("system", "network", "memory", "comm_groups") if options[role]]
    files += [(path, "trace") for rank, path in find_traces(options["workload"]).items() if rank < model.ranks]
    return schedule, model, files, workload.name
