"""genie fit, loop: fit a network model to what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from genie.commands.common import (
    PATH,
    as_json,
    console_of,
    experiment_options,
    hosts_of_process,
    launcher_options,
    print_json,
    runs_folder,
    tell_notes,
)


@click.command("fit")
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option("--network", required=True, type=PATH, help="ASTRA-sim network YAML to start from.")
@click.option("--model", type=click.Choice(["unaware", "aware"]), default="aware", show_default=True)
@click.option("--output", type=PATH, help="Write the calibrated network YAML here.")
@click.option("--strict", is_flag=True, help="Refuse instead of keeping a parameter that the data cannot tell.")
@as_json
def fit_command(
    runs: tuple[Path, ...], network: Path, model: str, output: Path | None, strict: bool, to_json: bool
) -> None:
    """Fit a network model to the messages of one or more replay RUNS."""
    from genie.fit import fit  # noqa: PLC0415
    from genie.formats.astra import read_network, write_network  # noqa: PLC0415
    from genie.formats.runfile import open_run  # noqa: PLC0415

    timelines = [open_run(path).timeline() for path in runs]
    found = fit(read_network(network, aware=model == "aware"), timelines, hold=not strict)
    if output is not None:
        write_network(output, found.model, f"Calibrated by Genie from {found.messages} messages")  # type: ignore[arg-type]
    if to_json:
        print_json(
            {
                "fitted": found.parameters(),
                "unidentified": list(found.unidentified),
                "median_error": found.median_error,
                "p90_error": found.p90_error,
                "outliers": [
                    {key: getattr(row, key) for key in ("iteration", "src", "dst", "size_bytes", "residual_ns")}
                    for row in found.outliers
                ],
                "network_file": str(output) if output else None,
            }
        )
    else:
        console_of().fit(found, output)


@click.command("loop")
@experiment_options
@launcher_options
@runs_folder
@as_json
def loop_command(
    experiment: Path | None,
    launcher: str,
    hostfile: Path | None,
    rsh: str,
    interface: str,
    out: Path,
    to_json: bool,
    **given: Any,
) -> None:
    """Simulate, replay, fit, and again, until prediction and measurement agree."""
    from genie.formats.experiment import experiment_of  # noqa: PLC0415
    from genie.formats.runfile import open_run  # noqa: PLC0415
    from genie.hosts import FIDELITY, LAB  # noqa: PLC0415
    from genie.loading import load  # noqa: PLC0415
    from genie.loop import loop  # noqa: PLC0415
    from genie.mpi import Launcher, placed  # noqa: PLC0415
    from genie.report.html import render  # noqa: PLC0415

    loaded = load(experiment_of(experiment, given))
    tell_notes([loaded.experiment.system])
    if hostfile is not None:
        loaded = placed(loaded, hostfile)
    kind = LAB if loaded.testbed.lab else hosts_of_process(loaded.experiment.replay.transport, out)
    console = console_of()
    console.say(f"hosts: {FIDELITY[kind]}")
    with console.observing(loaded.experiment.replay) as observer:
        outcome = loop(loaded, out, observer, kind, Launcher(launcher, rsh, interface))
    report = render(open_run(outcome.run), outcome.run / "report.html")
    if to_json:
        print_json(outcome.as_dict() | {"report": str(report)})
    else:
        console.outcome(outcome, report)
