"""genie simulate: predict, with the builtin simulator, with ASTRA-sim, or with both to compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from genie.commands.common import PATH, as_json, console_of, print_json, runs_folder, show_timeline, tell_notes

if TYPE_CHECKING:
    from genie.core.experiment import AstraRule
    from genie.core.netmodel import NetworkModel
    from genie.core.schedule import Schedule
    from genie.stages import Predictor

_SIMULATORS: Final = ("builtin", "astra-sim")
_NOT_IN_EXPERIMENTS: Final = ("injection_scale", "rendezvous")
_ASTRA_OPTIONS: Final = {
    "astra_sim": "program",
    "front_end": "front_end",
    "timeout": "timeout_s",
    "max_memory": "memory_bytes",
    "point_to_point": "point_to_point",
    "ns3_config": "ns3_config",
    "htsim_topology": "htsim_topology",
}
"""Option -> field of AstraRule."""


def _astra_options(command: Any) -> Any:
    for option in (
        click.option("--simulator", type=click.Choice(_SIMULATORS), help="Instead of the experiment's, or builtin."),
        click.option(
            "--compare",
            nargs=2,
            type=click.Choice(_SIMULATORS),
            metavar="A B",
            help="Run both simulators, say where they part.",
        ),
        click.option("--astra-sim", type=PATH, help="ASTRA-sim's program, else GENIE_ASTRA_SIM, else PATH."),
        click.option(
            "--front-end",
            type=click.Choice(["unaware", "aware", "ns3", "htsim"]),
            help="ASTRA-sim's front end, instead of the one that the model asks for.",
        ),
        click.option("--timeout", type=float, help="Seconds that ASTRA-sim may take; default: 3600."),
        click.option("--max-memory", metavar="SIZE", help='Memory that ASTRA-sim may take, such as "16 GiB".'),
        click.option("--point-to-point", is_flag=True, default=None, help="Hand ASTRA-sim messages, not collectives."),
        click.option("--ns3-config", type=PATH, help="ns-3's configuration; default: one switch."),
        click.option("--htsim-topology", type=PATH, help="htsim's topology; default: one switch."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("experiment", type=PATH, required=False)
@click.option("--workload", help="Trace prefix (as ASTRA-sim's --workload-configuration).")
@click.option("--system", type=PATH, help="ASTRA-sim system JSON.")
@click.option("--network", type=PATH, help="ASTRA-sim network YAML.")
@click.option("--memory", type=PATH, help="ASTRA-sim remote memory JSON.")
@click.option("--comm-groups", type=PATH, help="Comm-group JSON.")
@click.option(
    "--model", type=click.Choice(["unaware", "aware"]), help="Network model; default: unaware, or that of --astra-sim."
)
@click.option("--num-queues-per-dim", type=int, help="Default: 1.")
@click.option("--injection-scale", type=float, help="Factor on endpoint-delay; default: 1.")
@click.option("--rendezvous", is_flag=True, default=None, help="8,192-byte grant before every message.")
@click.option(
    "--extended", is_flag=True, default=None, help="Send broadcast, reduce, barrier as trees; let groups of one finish."
)
@click.option("--profile", type=click.Choice(["astra", "overlap"]), help="Default: astra.")
@_astra_options
@runs_folder
@as_json
def simulate(
    experiment: Path | None, out: Path, to_json: bool, compare: tuple[str, str] | None, **options: Any
) -> None:
    """Predict the iteration time, of an EXPERIMENT file or of ASTRA-sim's own files; times in ns.

    Options replace what an EXPERIMENT file says.
    """
    given = {name: value for name, value in options.items() if value is not None}
    simulator, rule = given.pop("simulator", None), _rule(given)
    if experiment is None and "model" not in given and "astra-sim" in (simulator, *(compare or ())):
        given["model"] = _model_of_program(rule)
    work = _Work(*_inputs(experiment, given), out)
    using = _predictor(experiment, simulator, rule)
    tell_notes(work.systems())
    if compare is None:
        timeline, path = work.predict(using)
        show_timeline(timeline, path, to_json, [])
    else:
        _show_both(work, [replace(using, simulator=name) for name in compare], to_json)


def _rule(given: dict[str, Any]) -> dict[str, Any]:
    """Takes the options of ASTRA-sim's out of those given: fields of AstraRule."""
    from genie.units import parse_size_bytes  # noqa: PLC0415

    rule = {field: given.pop(option) for option, field in _ASTRA_OPTIONS.items() if option in given}
    if "memory_bytes" in rule:
        rule["memory_bytes"] = parse_size_bytes(rule["memory_bytes"])
    return rule


def _model_of_program(rule: dict[str, Any]) -> str:
    """The network model that ASTRA-sim's program has, where none was asked for."""
    from genie.simulate.astra_binary import FrontEnd, find_binary  # noqa: PLC0415

    front_end = FrontEnd(rule["front_end"]) if "front_end" in rule else find_binary(rule.get("program")).front_end
    return "aware" if front_end is FrontEnd.AWARE else "unaware"


def _predictor(experiment: Path | None, simulator: str | None, rule: dict[str, Any]) -> Predictor:
    from genie.core.experiment import BUILTIN, AstraRule  # noqa: PLC0415
    from genie.stages import Predictor  # noqa: PLC0415

    written: AstraRule = AstraRule()
    name = BUILTIN
    if experiment is not None:
        from genie.formats.experiment import load_experiment  # noqa: PLC0415 - pydantic is slow to import

        loaded = load_experiment(experiment)
        written, name = loaded.astra_sim, loaded.simulator
    return Predictor(simulator or name, replace(written, **rule), lambda text: console_of().say(text))


class _Work:
    """What is to be predicted, and where runs go."""

    def __init__(
        self, schedule: Schedule, model: NetworkModel, files: list[tuple[Path, str]], name: str, out: Path
    ) -> None:
        self.schedule, self.model, self.files, self.name, self.out = schedule, model, files, name, out

    def systems(self) -> Sequence[Path]:
        """The system files among the inputs."""
        return [path for path, role in self.files if role == "system"]

    def predict(self, using: Predictor) -> tuple[Any, Path]:
        """A run of its own; its timeline and where it is."""
        from genie.formats.runfile import RunWriter  # noqa: PLC0415
        from genie.stages import run_simulation, save_inputs  # noqa: PLC0415

        run = RunWriter.create(self.out, "simulate", self.name)
        save_inputs(run, self.files)
        return run_simulation(self.schedule, self.model, run, using), run.path


def _show_both(work: _Work, both: list[Predictor], to_json: bool) -> None:
    from genie.simulate.compare import first_parting, ranks_side_by_side  # noqa: PLC0415

    (first, first_run), (second, second_run) = (work.predict(using) for using in both)
    rows, parting = ranks_side_by_side(first, second), first_parting(first, second)
    if to_json:
        print_json(
            {
                "simulators": [first.executor, second.executor],
                "iteration_ns": [first.iteration_ns, second.iteration_ns],
                "equal": parting is None and not any(row["difference_ns"] for row in rows),
                "ranks": rows,
                "first_difference": None if parting is None else parting.as_dict(),
                "runs": [str(first_run), str(second_run)],
            }
        )
    else:
        console_of().comparison((first.executor, second.executor), rows, parting, (first_run, second_run))


def _inputs(
    experiment: Path | None, given: dict[str, Any]
) -> tuple[Schedule, NetworkModel, list[tuple[Path, str]], str]:
    from genie.hosts import shortest_routes  # noqa: PLC0415
    from genie.loading import load, load_astra  # noqa: PLC0415
    from genie.stages import first_model  # noqa: PLC0415

    if experiment is None:
        missing = [f"--{name}" for name in ("workload", "system", "network") if not given.get(name)]
        if missing:
            raise click.UsageError(f"give an EXPERIMENT file, or {', '.join(missing)} too.")
        return load_astra(**(_DEFAULTS | given))
    for name in _NOT_IN_EXPERIMENTS:
        if name in given:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with ASTRA-sim's own files, not an EXPERIMENT.")
    from genie.formats.experiment import experiment_of  # noqa: PLC0415 - pydantic is slow to import

    loaded = load(experiment_of(experiment, _as_fields(given)))
    routes = shortest_routes(loaded.testbed, len(loaded.schedule.ranks))
    return loaded.schedule, first_model(loaded, routes), loaded.files(), loaded.experiment.name


_DEFAULTS: Final[dict[str, Any]] = {
    "memory": None,
    "comm_groups": None,
    "model": "unaware",
    "num_queues_per_dim": 1,
    "injection_scale": 1.0,
    "rendezvous": False,
    "extended": False,
    "profile": "astra",
}


def _as_fields(given: dict[str, Any]) -> dict[str, Any]:
    """Options as the fields of an Experiment that they replace."""
    from genie.core.system import Profile  # noqa: PLC0415

    names = {"workload": "traces", "num_queues_per_dim": "queues_per_dim"}
    fields = {names.get(name, name): value for name, value in given.items()}
    if "traces" in fields:
        fields["traces"] = Path(fields["traces"])
    if "profile" in fields:
        fields["profile"] = Profile(fields["profile"])
    return fields
