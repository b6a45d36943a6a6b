"""genie compare: what changed between two runs, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from genie.commands.common import PATH, as_json, console_of, print_json

if TYPE_CHECKING:
    from genie.report.comparison import Comparison

MAX_SHOWN = 60


def _share(_: click.Context, __: click.Parameter, value: str) -> float:
    """A share, as 0.01 or 1%."""
    try:
        found = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no share; write 1% or 0.01.") from error
    if not 0 <= found < 1:
        raise click.BadParameter("a share lies in 0 to 1.")
    return found


@click.command()
@click.argument("runs", nargs=-1, type=PATH, metavar="[BASE NEW]")
@click.option("--base", "bases", multiple=True, type=PATH, help="A run to compare with; several, measured in turn.")
@click.option("--new", "news", multiple=True, type=PATH, help="A run to compare; as often as --base.")
@click.option("--margin", default="1%", show_default=True, callback=_share, help="Changes up to this do not count.")
@click.option("--force", is_flag=True, help="Compare runs that are unlike, or that failed, all the same.")
@as_json
def compare(
    runs: tuple[Path, ...], bases: tuple[Path, ...], news: tuple[Path, ...], margin: float, force: bool, to_json: bool
) -> None:
    """What changed from run BASE to run NEW: inputs and environment, then every figure with interval and verdict."""
    from genie.report.comparison import compare as compare_runs  # noqa: PLC0415

    first, second = _sides(runs, bases, news)
    found = compare_runs(first, second, margin=margin, force=force)
    if to_json:
        print_json(found.as_dict())
    else:
        _show(found)


def _sides(
    runs: tuple[Path, ...], bases: tuple[Path, ...], news: tuple[Path, ...]
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    if runs and not bases and not news and len(runs) == 2:  # noqa: PLR2004 - BASE and NEW
        return runs[:1], runs[1:]
    if bases and news and not runs:
        return bases, news
    raise click.UsageError("give two runs, BASE and NEW, or --base and --new (each as often as you like).")


def _show(found: Comparison) -> None:
    console = console_of()
    differences = [dict(zip(("what differs", "base", "new"), row, strict=True)) for row in found.differences]
    console.rows(differences, "inputs and environment are the same")
    rows = [_row(one) for one in found.as_dict()["changes"]]
    console.rows(rows[:MAX_SHOWN], "the runs have no figure in common")
    if len(rows) > MAX_SHOWN:
        click.echo(f"and {len(rows) - MAX_SHOWN} more figures: see --json")
    for warning in found.warnings:
        click.echo(f"warning: {warning}")
    click.echo(found.sentence())


def _row(told: dict[str, Any]) -> dict[str, Any]:
    def share(name: str) -> str:
        return "" if told[name] is None else f"{told[name]:+.2%}"

    values = {side: "" if told[side] is None else f"{told[side]:,.5g}" for side in ("base", "new")}
    interval = "" if told["low"] is None else f"{share('low')} to {share('high')}"
    return {
        "figure": told["metric"],
        "of": told["scope"],
        **values,
        "unit": told["unit"],
        "change": share("change"),
        "95 % interval": interval,
        "verdict": told["verdict"],
    }
