"""What every benchmark writes: a table on standard output and build/bench/NAME.json, a list of rows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Row:
    """One figure; `target` in words, `holds` None where there is none."""

    name: str
    value: float
    unit: str
    target: str = ""
    holds: bool | None = None


def at_most(name: str, value: float, limit: float, unit: str) -> Row:
    """A figure that should not exceed a limit."""
    return Row(name, round(value, 4), unit, f"<= {limit:g}", value <= limit)


def write(name: str, rows: list[Row]) -> None:
    """Print the table and write the JSON."""
    folder = ROOT / "build" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(
        json.dumps([asdict(row) for row in rows], indent=1, default=lambda value: value.item()) + "\n"
    )
    table = Table("what", "value", "unit", "target", "holds", title=name)
    for row in rows:
        holds = "" if row.holds is None else ("yes" if row.holds else "NO")
        table.add_row(row.name, f"{row.value:,.4g}", row.unit, row.target, holds)
    Console(width=130).print(table)
