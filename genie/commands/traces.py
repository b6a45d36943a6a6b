"""genie trace: look at workloads, check them, make small ones."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from genie.commands.common import PATH, as_json, console_of, print_json, workload_options


@click.group()
def trace() -> None:
    """Look at traces, check them, make small ones."""


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
        print_json(about)
    else:
        console_of().mapping(about)


@trace.command("check")
@click.argument("prefix")
@click.option("--comm-groups", type=PATH, help="Comm-group JSON file.")
@click.option("--ranks", type=click.IntRange(1, 1 << 31), help="How many ranks the job has.")
@click.option("--network", type=PATH, help="ASTRA-sim network YAML that the workload is to run on.")
@click.option("--testbed", type=PATH, help="Testbed file that the workload is to run on.")
@click.option("--fix", "fix_into", type=PATH, help="Write a repaired copy into this folder.")
@as_json
def trace_check(
    prefix: str,
    comm_groups: Path | None,
    ranks: int | None,
    network: Path | None,
    testbed: Path | None,
    fix_into: Path | None,
    to_json: bool,
) -> None:
    """All problems of a workload at once, before anything runs. Exit code 2 when one is an error."""
    from genie.formats.check import check_files, repair_files  # noqa: PLC0415

    if fix_into is not None:
        changes = repair_files(prefix, fix_into)
        if to_json:
            print_json({"changes": changes})
        else:
            for change in changes:
                click.echo(change)
        return
    findings = check_files(
        prefix, comm_groups=comm_groups, ranks=_ranks(ranks, network), places=_places(testbed) if testbed else None
    )
    if to_json:
        print_json({"findings": [finding.as_dict() for finding in findings]})
    else:
        console_of().findings(findings)
    if any(finding.severity == "error" for finding in findings):
        sys.exit(2)


def _ranks(given: int | None, network: Path | None) -> int | None:
    """What --ranks and --network say.

    Raises:
        InputError: two different numbers.
    """
    from genie.errors import InputError  # noqa: PLC0415
    from genie.formats.astra import read_network  # noqa: PLC0415

    if network is None:
        return given
    ranks = read_network(network).ranks
    if given not in {None, ranks}:
        raise InputError(f"the network has {ranks} ranks, --ranks says {given}.", where=str(network), fix="drop one.")
    return ranks


def _places(testbed: Path) -> int:
    from genie.testbed.files import load_testbed  # noqa: PLC0415

    return len(load_testbed(testbed).placement)


@trace.command("generate")
@click.argument("pattern")
@click.argument("prefix", type=PATH, required=False)
@click.option("--ranks", type=int, default=8, show_default=True)
@click.option("--size", default="64 MiB", show_default=True, help="Bytes of the pattern's largest message or buffer.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A further parameter of the pattern.")
def trace_generate(pattern: str, prefix: Path | None, ranks: int, size: str, settings: tuple[str, ...]) -> None:
    """Write a workload of a well-known PATTERN as PREFIX.RANK.et. PATTERN "list" names them and their parameters."""
    from genie.formats.workload import save_workload  # noqa: PLC0415
    from genie.patterns import PATTERNS, generate  # noqa: PLC0415
    from genie.units import parse_size_bytes  # noqa: PLC0415

    if pattern == "list":
        console_of().mapping({name: made.about for name, made in PATTERNS.items()})
        console_of().rows([row for name, made in PATTERNS.items() for row in made.table(name)], "no parameters")
        return
    if prefix is None:
        raise click.UsageError("give a PREFIX to write to.")
    others = dict(setting.partition("=")[::2] for setting in settings)
    files = save_workload(prefix, generate(pattern, ranks, parse_size_bytes(size), **others))
    click.echo(f"wrote {len(files)} files, {files[0]} to {files[-1]}")
