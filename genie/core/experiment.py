"""Experiment: what to run, on what, how often, and when the loop is done."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from genie.core.faults import Fault
from genie.core.system import Profile
from genie.errors import InputError

BUILTIN: Final = "builtin"
ASTRA_SIM: Final = "astra-sim"
SIMULATORS: Final = (BUILTIN, ASTRA_SIM)


@dataclass(frozen=True, slots=True)
class LoopRule:
    """When the loop stops: prediction within `tolerance` of measurement, no further gain, or after `rounds` rounds.

    `gain`: an error that shrinks by less than this (absolute) from one round to the next is no gain.
    """

    rounds: int = 3
    tolerance: float = 0.02
    gain: float = 0.002

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.tolerance < 0 or self.gain < 0:
            raise InputError("a loop needs at least one round, and a tolerance and gain of at least zero.")


@dataclass(frozen=True, slots=True)
class ReplayRule:
    """How a replay is done (see replay.local.ReplayOptions for units and meaning).

    `transport` names what moves the messages, `options` are what only that transport understands, `faults` what goes
    wrong meanwhile.
    """

    warmup: int = 1
    repeats: int = 2
    flows: int = 1
    stall_timeout_s: float = 10.0
    verify: bool = False
    transport: str = "tcp"
    options: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.repeats < 1 or self.flows < 1 or self.stall_timeout_s <= 0:
            raise InputError("a replay needs at least one repeat and one flow, and some patience.")


@dataclass(frozen=True, slots=True)
class AstraRule:
    """How ASTRA-sim is run, where it is the simulator.

    Attributes:
        program: the program, or a folder that holds it; None: GENIE_ASTRA_SIM, else PATH.
        front_end: unaware, aware, ns3 or htsim; None: the one that the network model asks for.
        timeout_s: real seconds that a run may take.
        memory_bytes: address space that it may take; None: no limit.
        point_to_point: hand it messages in place of collectives, which tells when each was sent and delivered.
        ns3_config: ns-3 configuration; None: one switch, made from the network file.
        htsim_topology: htsim topology; None: as above.
    """

    program: Path | None = None
    front_end: str | None = None
    timeout_s: float = 3600.0
    memory_bytes: int | None = None
    point_to_point: bool = False
    ns3_config: Path | None = None
    htsim_topology: Path | None = None

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < math.inf or (self.memory_bytes is not None and self.memory_bytes < 1):
            raise InputError("ASTRA-sim needs some time and some memory.", fix="use limits above zero.")


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment file, its paths resolved.

    Attributes:
        source: the file; None when all came from options.
        traces: prefix or folder of the workload's traces.
        network: ASTRA-sim network file, or None: start from the testbed's own figures as a fabric model.
        model: "unaware", "aware" or "fabric".
        simulator: "builtin" or "astra-sim".
    """

    name: str
    source: Path | None
    traces: Path
    comm_groups: Path | None
    scale_bytes: float
    system: Path
    memory: Path | None
    network: Path | None
    model: str
    testbed: Path
    simulator: str = BUILTIN
    astra_sim: AstraRule = AstraRule()
    profile: Profile = Profile.ASTRA
    extended: bool = True
    queues_per_dim: int = 1
    replay: ReplayRule = ReplayRule()
    loop: LoopRule = LoopRule()

    def __post_init__(self) -> None:
        if self.model != "fabric" and self.network is None:
            raise InputError(f"the {self.model} model needs a network file.", where=str(self.source or self.name))
