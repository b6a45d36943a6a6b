"""genie validate: a suite of cases with thresholds, on a testbed; or two testbeds in turn."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from genie.commands.common import PATH, as_json, console_of, namespaces_of_process, print_json, runs_folder


@click.command()
@click.argument("suite")
@click.option("--testbed", type=PATH, help="Testbed file that the suite runs on.")
@click.option("--ab", type=PATH, nargs=2, metavar="A B", help="Two testbed files, run in turn and compared.")
@click.option("--pairs", type=click.IntRange(2, 100), default=4, show_default=True, help="Turns of --ab.")
@click.option("--junit", type=PATH, help="Copy the JUnit XML there too.")
@runs_folder
@as_json
def validate(
    suite: str,
    testbed: Path | None,
    ab: tuple[Path, Path] | None,
    pairs: int,
    junit: Path | None,
    out: Path,
    to_json: bool,
) -> None:
    """Check a testbed against the cases and thresholds of SUITE, a file or one of: smoke, ai-fabric, roce-config.

    Exit code 5 when a check fails (with --ab: when B is worse than A); warnings fail nothing.
    """
    from genie.errors import ThresholdError  # noqa: PLC0415
    from genie.suite.model import find_suite  # noqa: PLC0415
    from genie.validate import validate as run_suite  # noqa: PLC0415
    from genie.validate import validate_ab  # noqa: PLC0415

    if (testbed is None) == (ab is None):
        raise click.UsageError("give --testbed FILE, or --ab A B.")
    file, kind = find_suite(suite), namespaces_of_process()

    def say(line: str) -> None:
        click.echo(line, err=to_json)

    found = (
        run_suite(file, testbed, out, say, kind)
        if testbed
        else validate_ab(file, ab or (Path(), Path()), out, say, pairs, kind)
    )
    if junit is not None:
        shutil.copyfile(found.run / "junit.xml", junit)
    if to_json:
        print_json(found.as_dict())
    else:
        for text in found.suite.left_out:
            click.echo(f"left out: {text}")
        console_of().say(f"run: {found.run}")
    if found.failed:
        what = "cases got worse" if ab else "checks failed"
        raise ThresholdError(f"{found.failed} {what}.", where=found.suite.name, fix=f"see {found.run}/report.html.")
