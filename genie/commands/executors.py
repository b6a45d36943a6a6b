"""genie plan, simulate, replay: turn an experiment into a schedule, and a schedule into a timeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from genie.commands.common import (
    PATH,
    as_json,
    console_of,
    experiment_options,
    namespaces_of_process,
    print_json,
    runs_folder,
    show_timeline,
)

if TYPE_CHECKING:
    from genie.core.netmodel import NetworkModel
    from genie.core.schedule import Schedule


@click.command()
@experiment_options
@as_json
def plan(experiment: Path | None, to_json: bool, **given: Any) -> None:
    """What an EXPERIMENT would send: messages and bytes per pair of ranks; nothing is sent."""
    from genie.describe import describe_schedule  # noqa: PLC0415
    from genie.formats.experiment import experiment_of  # noqa: PLC0415
    from genie.stages import load  # noqa: PLC0415

    about = describe_schedule(load(experiment_of(experiment, given)).schedule)
    if to_json:
        print_json(about)
    else:
        console_of().plan(about)


@click.command()
@click.argument("experiment", type=PATH, required=False)
@click.option("--workload", help="Trace prefix (as ASTRA-sim's --workload-configuration).")
@click.option("--system", type=PATH, help="ASTRA-sim system JSON.")
@click.option("--network", type=PATH, help="ASTRA-sim network YAML.")
@click.option("--memory", type=PATH, help="ASTRA-sim remote memory JSON.")
@click.option("--comm-groups", type=PATH, help="Comm-group JSON.")
@click.option("--model", type=click.Choice(["unaware", "aware"]), default="unaware", show_default=True)
@click.option("--num-queues-per-dim", type=int, default=1, show_default=True)
@click.option("--injection-scale", type=float, default=1.0, show_default=True)
@click.option("--rendezvous", is_flag=True, help="8,192-byte grant before every message.")
@click.option("--extended", is_flag=True, help="Send broadcast, reduce, barrier as trees; let groups of one finish.")
@click.option("--profile", type=click.Choice(["astra", "overlap"]), default="astra", show_default=True)
@runs_folder
@as_json
def simulate(experiment: Path | None, out: Path, to_json: bool, **options: Any) -> None:
    """Predict the iteration time, of an EXPERIMENT file or of ASTRA-sim's own files; times in ns."""
    from genie.formats.runfile import RunWriter  # noqa: PLC0415
    from genie.stages import run_simulation, save_inputs  # noqa: PLC0415

    schedule, model, files, name = _simulation_inputs(experiment, options)
    run = RunWriter.create(out, "simulate", name)
    save_inputs(run, files)
    timeline = run_simulation(schedule, model, run)
    show_timeline(timeline, run.path, to_json, [])


def _simulation_inputs(
    experiment: Path | None, options: dict[str, Any]
) -> tuple[Schedule, NetworkModel, list[tuple[Path, str]], str]:
    from genie.formats.experiment import load_experiment  # noqa: PLC0415
    from genie.stages import first_model, load, load_astra, shortest_routes  # noqa: PLC0415

    if experiment is not None:
        loaded = load(load_experiment(experiment))
        routes = shortest_routes(loaded.testbed, len(loaded.schedule.ranks))
        return loaded.schedule, first_model(loaded, routes), loaded.files(), loaded.experiment.name
    missing = [f"--{name}" for name in ("workload", "system", "network") if not options[name]]
    if missing:
        raise click.UsageError(f"give an EXPERIMENT file, or {', '.join(missing)} too.")
    return load_astra(**options)


@click.command()
@experiment_options
@click.option("--repeats", type=int, help="Instead of the experiment's.")
@runs_folder
@as_json
def replay(experiment: Path | None, repeats: int | None, out: Path, to_json: bool, **given: Any) -> None:
    """Send an EXPERIMENT's messages for real, on a testbed that is brought up and down; times in virtual ns."""
    from dataclasses import replace as with_fields  # noqa: PLC0415

    from genie.formats.experiment import experiment_of  # noqa: PLC0415
    from genie.formats.runfile import RunWriter  # noqa: PLC0415
    from genie.stages import FIDELITY, Lab, load, run_replay, save_inputs  # noqa: PLC0415

    loaded = load(experiment_of(experiment, given))
    kind = namespaces_of_process()
    console = console_of()
    console.say(f"hosts: {FIDELITY[kind]}")
    rule = loaded.experiment.replay
    rule = rule if repeats is None else with_fields(rule, repeats=repeats)
    run = RunWriter.create(out, "replay", loaded.experiment.name)
    save_inputs(run, loaded.files())
    with Lab(loaded.testbed, kind) as lab, console.watching(rule) as watch:
        hosting = lab.hosting(len(loaded.schedule.ranks), rule)
        result = run_replay(loaded.schedule, loaded.testbed, hosting, rule, run, watch)
    if result.error is not None:
        console.say(f"kept what there is of it in {run.path}")
        raise result.error
    show_timeline(result.timeline, run.path, to_json, [check.as_dict() for check in result.checks])
