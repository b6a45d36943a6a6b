"""Experiment files (YAML) -> Experiment; paths in them are relative to the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from genie.core.experiment import AstraRule, Experiment, LoopRule, ReplayRule
from genie.core.system import Profile
from genie.errors import InputError
from genie.formats.faults import FaultFile
from genie.formats.textfile import read_yaml, wrong_fields
from genie.units import parse_size_bytes


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WorkloadFile(_Model):
    """Which traces."""

    traces: str
    comm_groups: str | None = None
    scale_bytes: float = Field(1.0, gt=0, allow_inf_nan=False)


class NetworkFile(_Model):
    """The model that predictions start from: "aware" if a file is given, else the testbed's own figures as a fabric."""

    model: Literal["unaware", "aware", "fabric"] | None = None
    file: str | None = None

    def kind(self) -> str:
        """The model's name, when it is not said too."""
        return self.model or ("aware" if self.file else "fabric")


class ReplayFile(_Model):
    """How to replay."""

    warmup: int = 1
    repeats: int = 2
    flows: int = 1
    stall_timeout_s: float = 10.0
    verify: bool = False
    transport: str = "tcp"
    options: dict[str, Any] = Field(default_factory=dict)


class LoopFile(_Model):
    """When to stop."""

    rounds: int = 3
    tolerance: float = 0.02
    gain: float = 0.002


class AstraFile(_Model):
    """How to run ASTRA-sim."""

    program: str | None = None
    front_end: Literal["unaware", "aware", "ns3", "htsim"] | None = None
    timeout_s: float = 3600.0
    memory: str | None = None
    point_to_point: bool = False
    ns3_config: str | None = None
    htsim_topology: str | None = None


class ExperimentFile(_Model):
    """An experiment file."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    workload: WorkloadFile
    system: str
    memory: str | None = None
    network: NetworkFile = NetworkFile()
    testbed: str
    simulator: Literal["builtin", "astra-sim"] = "builtin"
    astra_sim: AstraFile = AstraFile()
    profile: Profile = Profile.ASTRA
    extended: bool = True
    queues_per_dim: int = Field(1, ge=1)
    replay: ReplayFile = ReplayFile()
    loop: LoopFile = LoopFile()
    faults: tuple[FaultFile, ...] = ()


def load_experiment(path: Path | str) -> Experiment:
    """Read an experiment file.

    Raises:
        InputError: missing, no YAML, or names every wrong field.
    """
    content = read_yaml(path)
    try:
        return _experiment(ExperimentFile.model_validate(content), Path(path))
    except ValidationError as error:
        raise InputError(wrong_fields(error), where=str(path), fix="docs/experiment.md describes the file.") from error
    except InputError as error:
        raise InputError(error.what, where=error.where or str(path), fix=error.fix) from error


def experiment_of(path: Path | str | None, given: dict[str, Any]) -> Experiment:
    """An experiment from its file and from options that replace what the file says; from options alone without a file.

    Args:
        path: the file, or None.
        given: fields of Experiment by name; None means not given. `traces`, `system` and `testbed` are needed without a
            file; the model is then `fabric` unless a network file is given. `transport` and `transport_options`
            (KEY=VALUE each) replace what the replay rule says.

    Raises:
        InputError: as `load_experiment`; or an option that is needed is missing.
    """
    options = {name: value for name, value in given.items() if value is not None}
    transport, words = options.pop("transport", None), options.pop("transport_options", ())
    experiment = _from_file_or_options(path, options)
    return replace(experiment, replay=_with_transport(experiment.replay, transport, words))


def _with_transport(rule: ReplayRule, transport: str | None, words: Sequence[str]) -> ReplayRule:
    """What the file says about the transport, replaced by options; `words` are KEY=VALUE, the values YAML."""
    given = dict(_pair(word) for word in words)
    if transport is None or transport == rule.transport:
        return replace(rule, options={**rule.options, **given})
    return replace(rule, transport=transport, options=given)


def _pair(word: str) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        equals = ""
    if not equals or not name:
        raise InputError(f"{word!r} is no KEY=VALUE.", where="--transport-option")
    return name, parsed


def _from_file_or_options(path: Path | str | None, options: dict[str, Any]) -> Experiment:
    if path is not None:
        return replace(load_experiment(path), **options)
    missing = [_OPTIONS[name] for name in _OPTIONS if name not in options]
    if missing:
        raise InputError("neither an experiment file nor enough options.", fix=f"give {', '.join(missing)} too.")
    defaults: dict[str, Any] = {
        "name": Path(options["traces"]).name,
        "source": None,
        "comm_groups": None,
        "scale_bytes": 1.0,
        "memory": None,
        "network": None,
        "model": "aware" if "network" in options else "fabric",
    }
    return Experiment(**(defaults | options))


_OPTIONS: Final = {"traces": "--workload", "system": "--system", "testbed": "--testbed"}


def _experiment(file: ExperimentFile, source: Path) -> Experiment:
    def near(name: str | None) -> Any:
        return None if name is None else source.parent / name

    return Experiment(
        name=file.name,
        source=source,
        traces=near(file.workload.traces),
        comm_groups=near(file.workload.comm_groups),
        scale_bytes=file.workload.scale_bytes,
        system=near(file.system),
        memory=near(file.memory),
        network=near(file.network.file),
        model=file.network.kind(),
        testbed=near(file.testbed),
        simulator=file.simulator,
        astra_sim=AstraRule(
            program=near(file.astra_sim.program),
            front_end=file.astra_sim.front_end,
            timeout_s=file.astra_sim.timeout_s,
            memory_bytes=None if file.astra_sim.memory is None else parse_size_bytes(file.astra_sim.memory),
            point_to_point=file.astra_sim.point_to_point,
            ns3_config=near(file.astra_sim.ns3_config),
            htsim_topology=near(file.astra_sim.htsim_topology),
        ),
        profile=file.profile,
        extended=file.extended,
        queues_per_dim=file.queues_per_dim,
        replay=ReplayRule(**file.replay.model_dump(), faults=tuple(fault.fault() for fault in file.faults)),
        loop=LoopRule(**file.loop.model_dump()),
    )
