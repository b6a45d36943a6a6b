"""The command line. Each command parses, makes one library call, prints; heavy imports happen inside the commands.

Tables and results go to standard output, progress and errors to standard error. Exit codes: genie/errors.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from genie import __version__
from genie.errors import GenieError

if TYPE_CHECKING:
    from genie.console import Console
    from genie.core.netmodel import NetworkModel
    from genie.core.schedule import Schedule

INTERRUPTED = 130


class _Commands(click.Group):
    """Commands in the order of the work, not of the alphabet."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="genie")
def cli() -> None:
    """Test the network of an AI cluster without its GPUs.

    Turns a workload's execution trace into the messages that its collectives send, lets CPU hosts send them across a
    real or emulated fabric, and fits ASTRA-sim's network model to what was measured.
    """


def as_json(command: Any) -> Any:
    """The --json option."""
    return click.option("--json", "to_json", is_flag=True, help="One JSON object instead of tables.")(command)


def runs_folder(command: Any) -> Any:
    """The --out option."""
    return click.option(
        "--out",
        type=click.Path(path_type=Path),
        default=Path("runs"),
        show_default=True,
        help="Folder for run directories.",
    )(command)


def _console() -> Console:
    from genie.console import Console  # noqa: PLC0415

    return Console()


def _print(content: Any) -> None:
    click.echo(json.dumps(content, indent=1))


@cli.group()
def trace() -> None:
    """Look at traces, check them, make small ones."""


def workload_options(command: Any) -> Any:
    """The options that say how a workload is read."""
    for option in (
        click.option("--comm-groups", type=click.Path(path_type=Path), help="Comm-group JSON file."),
        click.option("--scale-bytes", type=float, default=1.0, show_default=True, help="Factor on every comm_size."),
    ):
        command = option(command)
    return command


@trace.command("info")
@click.argument("prefix")
@workload_options
@as_json
def trace_info(prefix: str, comm_groups: Path | None, scale_bytes: float, to_json: bool) -> None:
    """What a workload holds: nodes by kind, collectives, bytes. PREFIX is such that PREFIX.0.et exists."""
    from genie.describe import describe_workload  # noqa: PLC0415
    from genie.formats.workload import load_workload  # noqa: PLC0415

    about = describe_workload(load_workload(prefix, comm_groups=comm_groups, scale_bytes=scale_bytes))
    if to_json:
        _print(about)
    else:
        _console().mapping(about)


@trace.command("check")
@click.argument("prefix")
@click.option("--comm-groups", type=click.Path(path_type=Path), help="Comm-group JSON file.")
@click.option("--ranks", type=int, help="How many ranks the network or testbed has.")
@click.option("--fix", "fix_into", type=click.Path(path_type=Path), help="Write a repaired copy into this folder.")
@as_json
def trace_check(prefix: str, comm_groups: Path | None, ranks: int | None, fix_into: Path | None, to_json: bool) -> None:
    """All problems of a workload at once, before anything runs. Exit code 2 when one is an error."""
    from genie.formats.check import check_files, repair_files  # noqa: PLC0415

    if fix_into is not None:
        changes = repair_files(prefix, fix_into)
        if to_json:
            _print({"changes": changes})
        else:
            for change in changes:
                click.echo(change)
        return
    findings = check_files(prefix, comm_groups=comm_groups, ranks=ranks)
    if to_json:
        _print({"findings": [finding.as_dict() for finding in findings]})
    else:
        _console().findings(findings)
    if any(finding.severity == "error" for finding in findings):
        sys.exit(2)


@trace.command("generate")
@click.argument("pattern")
@click.argument("prefix", type=click.Path(path_type=Path), required=False)
@click.option("--ranks", type=int, default=8, show_default=True)
@click.option("--size", default="64 MiB", show_default=True, help="Bytes of the pattern's largest message or buffer.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A further parameter of the pattern.")
def trace_generate(pattern: str, prefix: Path | None, ranks: int, size: str, settings: tuple[str, ...]) -> None:
    """Write a workload of a well-known PATTERN as PREFIX.RANK.et. PATTERN "list" names them and their parameters."""
    from genie.formats.workload import save_workload  # noqa: PLC0415
    from genie.patterns import PATTERNS, generate  # noqa: PLC0415
    from genie.units import parse_size_bytes  # noqa: PLC0415

    if pattern == "list":
        _console().mapping({name: made.about for name, made in PATTERNS.items()})
        _console().rows([row for name, made in PATTERNS.items() for row in made.table(name)], "no parameters")
        return
    if prefix is None:
        raise click.UsageError("give a PREFIX to write to.")
    others = dict(setting.partition("=")[::2] for setting in settings)
    files = save_workload(prefix, generate(pattern, ranks, parse_size_bytes(size), **others))
    click.echo(f"wrote {len(files)} files, {files[0]} to {files[-1]}")


_PATH = click.Path(path_type=Path)


def experiment_options(command: Any) -> Any:
    """An experiment file, and options that replace what it says (or say it all)."""
    for option in (
        click.argument("experiment", type=_PATH, required=False),
        click.option("--workload", "traces", type=_PATH, help="Trace prefix, instead of the experiment's."),
        click.option("--system", type=_PATH, help="ASTRA-sim system JSON, instead of the experiment's."),
        click.option("--testbed", type=_PATH, help="Testbed file, instead of the experiment's."),
        click.option("--network", type=_PATH, help="ASTRA-sim network YAML to start from."),
        click.option("--model", type=click.Choice(["unaware", "aware", "fabric"]), help="Network model."),
        click.option("--comm-groups", type=_PATH, help="Comm-group JSON."),
        click.option("--scale-bytes", type=float, help="Factor on every comm_size."),
    ):
        command = option(command)
    return command


@cli.command()
@experiment_options
@as_json
def plan(experiment: Path | None, to_json: bool, **given: Any) -> None:
    """What an EXPERIMENT would send: messages and bytes per pair of ranks; nothing is sent."""
    from genie.describe import describe_schedule  # noqa: PLC0415
    from genie.formats.experiment import experiment_of  # noqa: PLC0415
    from genie.stages import load  # noqa: PLC0415

    about = describe_schedule(load(experiment_of(experiment, given)).schedule)
    if to_json:
        _print(about)
    else:
        _console().plan(about)


@cli.command()
@click.argument("experiment", type=click.Path(path_type=Path), required=False)
@click.option("--workload", help="Trace prefix (as ASTRA-sim's --workload-configuration).")
@click.option("--system", type=click.Path(path_type=Path), help="ASTRA-sim system JSON.")
@click.option("--network", type=click.Path(path_type=Path), help="ASTRA-sim network YAML.")
@click.option("--memory", type=click.Path(path_type=Path), help="ASTRA-sim remote memory JSON.")
@click.option("--comm-groups", type=click.Path(path_type=Path), help="Comm-group JSON.")
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
    _show_timeline(timeline, run.path, to_json, [])


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


@cli.command()
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
    kind = _namespaces()
    console = _console()
    console.say(f"hosts: {FIDELITY[kind]}")
    rule = loaded.experiment.replay
    rule = rule if repeats is None else with_fields(rule, repeats=repeats)
    run = RunWriter.create(out, "replay", loaded.experiment.name)
    save_inputs(run, loaded.files())
    with Lab(loaded.testbed, kind) as lab, console.watching(rule) as watch:
        hosting = lab.hosting(len(loaded.schedule.ranks))
        result = run_replay(loaded.schedule, loaded.testbed, hosting, rule, run, watch)
    if result.error is not None:
        console.say(f"kept what there is of it in {run.path}")
        raise result.error
    _show_timeline(result.timeline, run.path, to_json, [check.as_dict() for check in result.checks])


def _show_timeline(timeline: Any, path: Path, to_json: bool, checks: list[dict[str, Any]]) -> None:
    from genie.stages import summary  # noqa: PLC0415

    results = summary(timeline)
    if to_json:
        _print(results | {"run": str(path), "checks": checks})
    else:
        _console().results(results, path, checks)


def _namespaces() -> str:
    """What kind of namespaces this process has; an ordinary user's starts again inside a user namespace."""
    from genie.testbed.namespaces import USERNS_MARK, capability, reexec_in_user_namespace  # noqa: PLC0415

    kind, _ = capability()
    import os  # noqa: PLC0415

    if kind == "userns" and not os.environ.get(USERNS_MARK):
        reexec_in_user_namespace(sys.argv[1:])
    return kind


@cli.command("fit")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--network", required=True, type=click.Path(path_type=Path), help="ASTRA-sim network YAML to start from.")
@click.option("--model", type=click.Choice(["unaware", "aware"]), default="aware", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Write the calibrated network YAML here.")
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
        _print(
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
        _console().fit(found, output)


@cli.command("loop")
@experiment_options
@runs_folder
@as_json
def loop_command(experiment: Path | None, out: Path, to_json: bool, **given: Any) -> None:
    """Simulate, replay, fit, and again, until prediction and measurement agree."""
    from genie.formats.experiment import experiment_of  # noqa: PLC0415
    from genie.formats.runfile import open_run  # noqa: PLC0415
    from genie.loop import loop  # noqa: PLC0415
    from genie.report.html import render  # noqa: PLC0415
    from genie.stages import FIDELITY, load  # noqa: PLC0415

    loaded = load(experiment_of(experiment, given))
    kind = _namespaces()
    console = _console()
    console.say(f"hosts: {FIDELITY[kind]}")
    with console.observing(loaded.experiment.replay) as observer:
        outcome = loop(loaded, out, observer, kind)
    report = render(open_run(outcome.run), outcome.run / "report.html")
    if to_json:
        _print(outcome.as_dict() | {"report": str(report)})
    else:
        console.outcome(outcome, report)


@cli.group()
def testbed() -> None:
    """Look at testbeds; keep an emulated one up for experiments by hand."""


@testbed.command("show")
@click.argument("file", type=click.Path(path_type=Path))
@as_json
def testbed_show(file: Path, to_json: bool) -> None:
    """Nodes, links, and what they are like in virtual and in real units."""
    from genie.describe import describe_testbed  # noqa: PLC0415
    from genie.testbed.files import load_testbed  # noqa: PLC0415

    about = describe_testbed(load_testbed(file))
    if to_json:
        _print(about)
    else:
        _console().testbed(about)


@testbed.command("up")
@click.argument("file", type=click.Path(path_type=Path))
def testbed_up(file: Path) -> None:
    """Bring an emulated testbed up and keep it until `genie testbed down`."""
    from genie.testbed.files import load_testbed  # noqa: PLC0415
    from genie.testbed.keeper import keep_up  # noqa: PLC0415

    for line in keep_up(load_testbed(file)):
        click.echo(line)


@testbed.command("down")
@click.argument("name", required=False)
def testbed_down(name: str | None) -> None:
    """Take down the testbed of that NAME, or all that are up."""
    from genie.testbed.keeper import take_down  # noqa: PLC0415

    for line in take_down(name):
        click.echo(line)


@testbed.command("list")
@as_json
def testbed_list(to_json: bool) -> None:
    """Testbeds that are up, and how to enter their hosts."""
    from genie.testbed.keeper import kept  # noqa: PLC0415

    rows = kept()
    if to_json:
        _print({"testbeds": rows})
    else:
        _console().rows(rows, "no testbed is up")


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="Where to write it; default: report.html in the run.")
@click.option("--markdown", is_flag=True, help="Print a summary for a pull request instead of writing the page.")
def report(run: Path, output: Path | None, markdown: bool) -> None:
    """Write a run's report: one HTML file that needs nothing else."""
    from genie.formats.runfile import open_run  # noqa: PLC0415
    from genie.report.html import render  # noqa: PLC0415
    from genie.report.markdown import summary  # noqa: PLC0415

    if markdown:
        click.echo(summary(open_run(run)), nl=False)
    else:
        click.echo(render(open_run(run), output or run / "report.html"))


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["perfetto", "csv", "nccl", "nccl-json", "fct"]),
    required=True,
    help="perfetto: Chrome trace; csv: every table; nccl, nccl-json: as nccl-tests; fct: as ns-3.",
)
@click.option("--output", type=click.Path(path_type=Path), help="File (csv: folder); default: in the run.")
def export(run: Path, form: str, output: Path | None) -> None:
    """Write a run in another tool's format."""
    from genie.formats.runfile import open_run  # noqa: PLC0415
    from genie.report.export import FORMATS  # noqa: PLC0415

    for path in FORMATS[form].write(open_run(run), output or run / FORMATS[form].file):
        click.echo(path)


@cli.command()
@as_json
def doctor(to_json: bool) -> None:
    """What this machine can do, and how to get what it lacks."""
    from genie.testbed.doctor import examine  # noqa: PLC0415

    checks = examine()
    if to_json:
        _print({"checks": [check.as_dict() for check in checks]})
    else:
        _console().doctor(checks)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; never lets a traceback reach the user."""
    try:
        code = cli.main(args=arguments, prog_name="genie", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except GenieError as error:
        click.echo(f"genie: {error}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        click.echo("genie: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)
    except Exception as error:  # noqa: BLE001 - the last line of defence: a bug of ours, told in one sentence
        _confess(error)


def _confess(error: Exception) -> NoReturn:
    """Keep the traceback in a file and say where it is."""
    import tempfile  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    with tempfile.NamedTemporaryFile("w", prefix="genie-bug-", suffix=".txt", delete=False) as file:
        traceback.print_exception(error, file=file)
    click.echo(f"genie: a bug of ours: {type(error).__name__}: {error} (details in {file.name})", err=True)
    sys.exit(70)
