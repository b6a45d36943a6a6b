"""What commands share: options, the console, JSON, the kind of namespaces."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from genie.console import Console

PATH = click.Path(path_type=Path)


def as_json(command: Any) -> Any:
    """The --json option."""
    return click.option("--json", "to_json", is_flag=True, help="One JSON object instead of tables.")(command)


def runs_folder(command: Any) -> Any:
    """The --out option."""
    return click.option(
        "--out",
        type=PATH,
        default=Path("runs"),
        show_default=True,
        help="Folder for run directories.",
    )(command)


def console_of() -> Console:
    """The console, imported only when something is printed."""
    from genie.console import Console  # noqa: PLC0415

    return Console()


def print_json(content: Any) -> None:
    """One JSON object on standard output."""
    click.echo(json.dumps(content, indent=1))


def workload_options(command: Any) -> Any:
    """The options that say how a workload is read."""
    for option in (
        click.option("--comm-groups", type=PATH, help="Comm-group JSON file."),
        click.option("--scale-bytes", type=float, default=1.0, show_default=True, help="Factor on every comm_size."),
    ):
        command = option(command)
    return command


def experiment_options(command: Any) -> Any:
    """An experiment file, and options that replace what it says (or say it all)."""
    for option in (
        click.argument("experiment", type=PATH, required=False),
        click.option("--workload", "traces", type=PATH, help="Trace prefix, instead of the experiment's."),
        click.option("--system", type=PATH, help="ASTRA-sim system JSON, instead of the experiment's."),
        click.option("--testbed", type=PATH, help="Testbed file, instead of the experiment's."),
        click.option("--network", type=PATH, help="ASTRA-sim network YAML to start from."),
        click.option("--model", type=click.Choice(["unaware", "aware", "fabric"]), help="Network model."),
        click.option("--comm-groups", type=PATH, help="Comm-group JSON."),
        click.option("--scale-bytes", type=float, help="Factor on every comm_size."),
        click.option("--transport", help="What moves the messages: tcp (default), roce, verbs."),
        click.option(
            "--transport-option",
            "transport_options",
            multiple=True,
            metavar="KEY=VALUE",
            help="What only that transport understands (docs/transports.md); may be repeated.",
        ),
    ):
        command = option(command)
    return command


def launcher_options(command: Any) -> Any:
    """Who starts the ranks, and where."""
    for option in (
        click.option("--launcher", type=click.Choice(["local", "mpi"]), default="local", help="Who starts the ranks."),
        click.option("--hostfile", type=PATH, help="Hosts of the testbed with their slots, instead of its placement."),
        click.option("--rsh", metavar="AGENT", default="", help="What mpirun reaches other hosts by, instead of ssh."),
        click.option("--interface", default="", help="The one that mpirun's own connections take."),
    ):
        command = option(command)
    return command


def show_timeline(timeline: Any, path: Path, to_json: bool, checks: list[dict[str, Any]]) -> None:
    """Print what a timeline amounts to, where its run is, and what its self-checks found."""
    from genie.stages import summary  # noqa: PLC0415

    results = summary(timeline)
    if to_json:
        print_json(results | {"run": str(path), "checks": checks})
    else:
        console_of().results(results, path, checks)


def tell_notes(systems: Iterable[Path]) -> None:
    """Say which keys of the system files have no effect."""
    from genie.formats.astra import system_notes  # noqa: PLC0415

    for path in systems:
        for note in system_notes(path):
            console_of().say(f"note: {note}")


def hosts_of_process(transport: str, out: Path) -> str:
    """What kind of hosts this process can have for a transport; where it needs RDMA, a guest runs this very command.

    Args:
        transport: its name.
        out: the folder that the command writes to.
    """
    from genie.replay.transports.choice import choice  # noqa: PLC0415

    if not choice(transport).rdma:
        return namespaces_of_process()
    from genie.hosts import RDMA_LAB  # noqa: PLC0415
    from genie.testbed.rdma_vm import inside_guest  # noqa: PLC0415

    if not inside_guest():
        from genie.commands.rdma_lab import go_on_in_guest  # noqa: PLC0415

        sys.exit(go_on_in_guest(out))
    return RDMA_LAB


def namespaces_of_process() -> str:
    """What kind of namespaces this process has; an ordinary user's starts again inside a user namespace."""
    from genie.testbed.namespaces import USERNS_MARK, capability, reexec_in_user_namespace  # noqa: PLC0415

    kind, _ = capability()
    import os  # noqa: PLC0415

    if kind == "userns" and not os.environ.get(USERNS_MARK):
        reexec_in_user_namespace(sys.argv[1:])
    return kind
