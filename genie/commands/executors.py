"""genie plan, replay: turn an experiment into a schedule, and send it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from genie.commands.common import (
    as_json,
    console_of,
    experiment_options,
    hosts_of_process,
    launcher_options,
    print_json,
    runs_folder,
    show_timeline,
    tell_notes,
)


@click.command()
@experiment_options
@as_json
def plan(experiment: Path | None, to_json: bool, **given: Any) -> None:
    """What an EXPERIMENT would send: messages and bytes per pair of ranks; nothing is sent."""
    from genie.describe import describe_schedule  # noqa: PLC0415
    from genie.formats.experiment import experiment_of  # noqa: PLC0415
    from genie.loading import load  # noqa: PLC0415

    loaded = load(experiment_of(experiment, given))
    tell_notes([loaded.experiment.system])
    about = describe_schedule(loaded.schedule)
    if to_json:
        print_json(about)
    else:
        console_of().plan(about)


@click.command()
@experiment_options
@click.option("--repeats", type=int, help="Instead of the experiment's.")
@click.option("--capture", metavar="PORT,...", help="Record packets' headers at hosts (h0) or links (h0>leaf0).")
@click.option("--metrics-port", type=int, help="Tell counters of the live run in Prometheus' format; 0: any free port.")
@click.option("--metrics-address", default="127.0.0.1", show_default=True, help="Where to listen for who asks.")
@launcher_options
@runs_folder
@as_json
def replay(
    experiment: Path | None,
    repeats: int | None,
    capture: str | None,
    metrics_port: int | None,
    metrics_address: str,
    launcher: str,
    hostfile: Path | None,
    rsh: str,
    interface: str,
    out: Path,
    to_json: bool,
    **given: Any,
) -> None:
    """Send an EXPERIMENT's messages for real, on a testbed that is brought up and down; times in virtual ns."""
    from dataclasses import replace as with_fields  # noqa: PLC0415

    from genie.formats.experiment import experiment_of  # noqa: PLC0415
    from genie.formats.runfile import RunWriter  # noqa: PLC0415
    from genie.hosts import FIDELITY, LAB, Lab  # noqa: PLC0415
    from genie.loading import load  # noqa: PLC0415
    from genie.mpi import Launcher, launched, placed  # noqa: PLC0415
    from genie.replay.prometheus import Metrics  # noqa: PLC0415
    from genie.stages import run_replay, save_inputs  # noqa: PLC0415

    loaded = load(experiment_of(experiment, given))
    tell_notes([loaded.experiment.system])
    if hostfile is not None:
        loaded = placed(loaded, hostfile)
    rule = loaded.experiment.replay
    kind = LAB if loaded.testbed.lab else hosts_of_process(rule.transport, out)
    console = console_of()
    console.say(f"hosts: {FIDELITY[kind]}")
    rule = rule if repeats is None else with_fields(rule, repeats=repeats)
    metrics = None if metrics_port is None else Metrics(metrics_port, metrics_address, console.say)
    run = RunWriter.create(out, "replay", loaded.experiment.name)
    save_inputs(run, loaded.files())
    with Lab(loaded.testbed, kind) as lab, console.watching(rule) as watch:
        hosting = lab.hosting(len(loaded.schedule.ranks), rule)
        by = Launcher(launcher, rsh, interface)
        with (
            lab.recording(capture, run.path / "captures") as recorder,
            launched(loaded, lab, hosting, rule, by) as elsewhere,
        ):
            result = run_replay(loaded.schedule, loaded.testbed, hosting, rule, run, watch, metrics, elsewhere)
        for note in recorder.notes if recorder is not None else ():
            console.say(note)
    if result.error is not None:
        console.say(f"kept what there is of it in {run.path}")
        raise result.error
    show_timeline(result.timeline, run.path, to_json, [check.as_dict() for check in result.checks])
