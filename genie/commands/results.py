"""genie report, export: what a run says, for people and for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from genie.commands.common import PATH


@click.command()
@click.argument("run", type=PATH)
@click.option("--output", type=PATH, help="Where to write it; default: report.html in the run.")
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


@click.command()
@click.argument("run", type=PATH)
@click.option(
    "--format",
    "form",
    type=click.Choice(["perfetto", "csv", "nccl", "nccl-json", "fct"]),
    required=True,
    help="perfetto: Chrome trace; csv: every table; nccl, nccl-json: as nccl-tests; fct: as ns-3.",
)
@click.option("--output", type=PATH, help="File (csv: folder); default: in the run.")
def export(run: Path, form: str, output: Path | None) -> None:
    """Write a run in another tool's format."""
    from genie.formats.runfile import open_run  # noqa: PLC0415
    from genie.report.export import FORMATS  # noqa: PLC0415

    for path in FORMATS[form].write(open_run(run), output or run / FORMATS[form].file):
        click.echo(path)
