"""genie testbed, doctor: what traffic can run on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from genie.commands.common import PATH, as_json, console_of, namespaces_of_process, print_json
from genie.errors import NotReadyError

if TYPE_CHECKING:
    from genie.core.testbed import Testbed


@click.group()
def testbed() -> None:
    """Look at testbeds; keep an emulated one up for experiments by hand."""


@testbed.command("show")
@click.argument("file", type=PATH)
@click.option("--routes", is_flag=True, help="Bring it up and show every switch's routes, too.")
@as_json
def testbed_show(file: Path, routes: bool, to_json: bool) -> None:
    """Nodes, links, and what they are like in virtual and in real units."""
    from genie.describe import describe_testbed  # noqa: PLC0415
    from genie.formats.textfile import read_yaml  # noqa: PLC0415
    from genie.testbed.files import load_testbed  # noqa: PLC0415
    from genie.testbed.lab import is_lab, parse_lab  # noqa: PLC0415

    content = read_yaml(file)
    if is_lab(content):
        about = parse_lab(content, str(file)).about()
        if to_json:
            print_json(about)
        else:
            console_of().testbed(about)
        return
    bed = load_testbed(file)
    about, rows = describe_testbed(bed), _routes_of(bed) if routes else []
    if to_json:
        print_json(about | ({"routes": rows} if routes else {}))
        return
    console_of().testbed(about)
    if routes:
        console_of().rows(rows, "no routes")


def _routes_of(bed: Testbed) -> list[dict[str, str]]:
    """What every switch's kernel has, once all daemons have found their ways."""
    namespaces_of_process()
    from genie.testbed.emulated import EmulatedFabric  # noqa: PLC0415 - pyroute2 is slow to import

    with EmulatedFabric(bed, strict=False) as fabric:
        return fabric.tables()


@testbed.command("import")
@click.argument("kind", type=click.Choice(["slurm", "hostfile", "ansible"]))
@click.argument("source")
@click.option("--name", default="lab", show_default=True, help="What the lab is called.")
@click.option("--output", type=PATH, help="Testbed file to write; else standard output.")
def testbed_import(kind: str, source: str, name: str, output: Path | None) -> None:
    """A lab from a Slurm node list, or from an MPI hostfile or Ansible inventory at SOURCE."""
    import yaml  # noqa: PLC0415

    from genie.testbed.inventory import import_lab  # noqa: PLC0415

    lab = import_lab(kind, source, name)
    text = yaml.safe_dump(lab.model_dump(exclude_none=True, exclude_defaults=True, mode="json"), sort_keys=False)
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        click.echo(f"{output}: {len(lab.hosts)} hosts, {len(lab.ranks)} ranks")


@testbed.command("check")
@click.argument("file", type=PATH)
@click.option("--fix-hints", is_flag=True, help="Say beside every problem what would mend it.")
@as_json
def testbed_check(file: Path, fix_hints: bool, to_json: bool) -> None:
    """Bring the testbed up, probe all that a run relies on, take it down; exit code 3 if anything is wrong."""
    from genie.testbed.files import load_testbed  # noqa: PLC0415

    bed = load_testbed(file)
    namespaces_of_process()
    from genie.testbed.preflight import preflight  # noqa: PLC0415 - pyroute2 is slow to import

    checks = preflight(bed)
    bad = sum(check.status == "bad" for check in checks)
    if to_json:
        print_json({"testbed": bed.name, "ok": not bad, "checks": [check.as_dict() for check in checks]})
    else:
        rows = [
            {"check": c.name, "status": c.status, "found": c.found} | ({"fix": c.fix} if fix_hints else {})
            for c in checks
        ]
        console_of().rows(rows, "nothing was looked at")
    if bad:
        raise NotReadyError(
            f"{bad} of {len(checks)} checks failed.", where=bed.name, fix="" if fix_hints else "--fix-hints"
        )


@testbed.command("graph")
@click.argument("file", type=PATH)
@click.option("--format", "form", type=click.Choice(["dot", "mermaid"]), default="dot", show_default=True)
def testbed_graph(file: Path, form: str) -> None:
    """The testbed as a picture's source: nodes with their ranks, cables with their rates."""
    from genie.testbed.files import load_testbed  # noqa: PLC0415
    from genie.testbed.graph import draw  # noqa: PLC0415

    click.echo(draw(load_testbed(file), form), nl=False)


@testbed.command("up")
@click.argument("file", type=PATH)
@click.argument("command", nargs=-1)
@click.option(
    "--kind",
    type=click.Choice(["namespaces", "rdma-vm"]),
    default="namespaces",
    show_default=True,
    help="rdma-vm: hosts with RDMA devices, in a guest of the rdma-lab, for as long as COMMAND runs.",
)
@click.option("--share", type=PATH, default=Path("runs"), show_default=True, help="rdma-vm: what COMMAND may write to.")
@click.option("--delay", default="0 ns", show_default=True, help="rdma-vm: delay of every switch port, real time.")
@click.option(
    "--loss", type=float, default=0.0, show_default=True, help="rdma-vm: share lost at random per switch port."
)
@click.option("--mark", default="0 B", show_default=True, help="rdma-vm: RED marks (ECN) from this queue on; 0: never.")
def testbed_up(file: Path, command: tuple[str, ...], kind: str, share: Path, **impairment: Any) -> None:
    """Bring an emulated testbed up and keep it until `genie testbed down`; or run COMMAND on it (rdma-vm)."""
    from genie.testbed.files import load_testbed  # noqa: PLC0415
    from genie.testbed.keeper import keep_up  # noqa: PLC0415

    if kind == "rdma-vm":
        from genie.commands.rdma_lab import run_on_fabric  # noqa: PLC0415

        sys.exit(run_on_fabric(load_testbed(file), command, share, **impairment))
    if command:
        raise click.UsageError("a COMMAND is run with --kind rdma-vm only.")
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
        print_json({"testbeds": rows})
    else:
        console_of().rows(rows, "no testbed is up")


@testbed.command("paths")
@click.argument("file", type=PATH)
@click.option("--from", "source", help="Host that sends; default: the first.")
@click.option("--to", "destination", help="Host that receives; default: the last.")
@click.option("--ports", default="49152-49167", show_default=True, help="UDP source ports, as 50000,50010-50020.")
@click.option("--probe", is_flag=True, help="Send RoCEv2 probes with rising TTL instead of asking routing tables.")
@click.option("--spread", type=int, help="Choose so many of the ports that use as many paths as there are.")
@click.option("--experiment", type=PATH, help="Instead: which links the flows of this experiment share.")
@as_json
def testbed_paths(file: Path, experiment: Path | None, to_json: bool, **given: Any) -> None:
    """Which path RoCEv2 packets take through an emulated testbed, by UDP source port."""
    from genie.stages import paths_of_experiment, paths_of_ports  # noqa: PLC0415

    namespaces_of_process()
    about = paths_of_experiment(file, experiment) if experiment is not None else paths_of_ports(file, **given)
    if to_json:
        print_json(about)
        return
    console = console_of()
    console.rows(about.pop("rows"), "no link is shared")
    console.mapping(about)


@click.command()
@as_json
def doctor(to_json: bool) -> None:
    """What this machine can do, and how to get what it lacks."""
    from genie.testbed.doctor import examine  # noqa: PLC0415

    checks = examine()
    if to_json:
        print_json({"checks": [check.as_dict() for check in checks]})
    else:
        console_of().doctor(checks)
