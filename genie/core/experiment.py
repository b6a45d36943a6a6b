"""Experiment: what to run, on what, how often, and when the loop is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genie.core.system import Profile
from genie.errors import InputError


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

    `transport` names what moves the messages, `options` are what only that transport understands.
    """

    warmup: int = 1
    repeats: int = 2
    flows: int = 1
    stall_timeout_s: float = 10.0
    verify: bool = False
    transport: str = "tcp"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.repeats < 1 or self.flows < 1 or self.stall_timeout_s <= 0:
            raise InputError("a replay needs at least one repeat and one flow, and some patience.")


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment file, its paths resolved.

    Attributes:
        source: the file; None when all came from options.
        traces: prefix or folder of the workload's traces.
        network: ASTRA-sim network file, or None: start from the testbed's own figures as a fabric model.
        model: "unaware", "aware" or "fabric".
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
    simulator: str = "builtin"
    profile: Profile = Profile.ASTRA
    extended: bool = True
    queues_per_dim: int = 1
    replay: ReplayRule = ReplayRule()
    loop: LoopRule = LoopRule()

    def __post_init__(self) -> None:
        if self.model != "fabric" and self.network is None:
            raise InputError(f"the {self.model} model needs a network file.", where=str(self.source or self.name))
