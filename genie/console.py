"""What people see: tables on standard output, progress on standard error (live in a terminal, else plain lines)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console as Rich
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from genie.units import bps_to_gigabits, ns_to_us

if TYPE_CHECKING:
    from genie.core.experiment import ReplayRule
    from genie.fit import FitResult
    from genie.loop import Outcome, Round
    from genie.replay.launcher import Progress as Step
    from genie.simulate.compare import Parting

WIDE = 150


def _cells(row: dict[str, Any]) -> list[str]:
    return ["" if value is None else str(value) for value in row.values()]


def value_text(row: dict[str, Any]) -> str:
    """A fitted parameter for people: 198.6 Gb/s +- 0.3 (95 %: 198.0 to 199.2)."""
    rate = row["unit"] == "bit/s"
    unit = "Gb/s" if rate else row["unit"]

    def show(value: float) -> str:
        return f"{bps_to_gigabits(value) if rate else value:.5g}"

    if row["stderr"] is None:
        return f"{show(row['value'])} {unit} (kept as given)"
    return f"{show(row['value'])} {unit} +- {show(row['stderr'])} (95 %: {show(row['low'])} to {show(row['high'])})"


class Console:
    """Prints; holds the live progress line if there is one."""

    def __init__(self) -> None:
        width = None if sys.stdout.isatty() else WIDE
        self._out = Rich(width=width, highlight=False, soft_wrap=True)
        self._err = Rich(stderr=True, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None

    def say(self, text: str) -> None:
        """A line of progress."""
        self._err.print(text, markup=False)

    def mapping(self, content: dict[str, Any]) -> None:
        """Names and values."""
        table = Table(show_header=False, box=None)
        for name, value in content.items():
            table.add_row(str(name), str(value))
        self._out.print(table)

    def rows(self, rows: Sequence[dict[str, Any]], nothing: str) -> None:
        """A table whose columns are the rows' keys."""
        if not rows:
            self._out.print(nothing)
            return
        table = Table(*[str(key).replace("_", " ") for key in rows[0]])
        for row in rows:
            table.add_row(*_cells(row))
        self._out.print(table)

    def findings(self, findings: Sequence[Any]) -> None:
        """What trace check found."""
        self.rows([finding.as_dict() for finding in findings], "no problem found")

    def plan(self, about: dict[str, Any]) -> None:
        """A schedule."""
        self.mapping({key: value for key, value in about.items() if key != "pairs"})
        self.rows(about["pairs"], "nothing would be sent")

    def results(self, results: dict[str, Any], path: Path, checks: list[dict[str, Any]]) -> None:
        """A timeline's times, and how far they can be trusted."""
        self.rows(results["ranks"], "no ranks")
        times = results["iterations_ns"]
        spread = (max(times) - min(times)) / results["iteration_ns"] if results["iteration_ns"] else 0.0
        self._out.print(
            f"iteration {ns_to_us(results['iteration_ns']):,.3f} us (median of {len(times)}, spread {spread:.2%})"
        )
        for check in checks:
            mark = "ok  " if check["ok"] else ("FAIL" if check["hard"] else "warn")
            self._out.print(f"{mark} {check['name']}: {check['value']}", markup=False)
        self._out.print(f"run: {path}", markup=False)

    def comparison(
        self, names: tuple[str, str], rows: Sequence[dict[str, Any]], parting: Parting | None, runs: tuple[Path, Path]
    ) -> None:
        """Two simulators' finish times, and the first operator where they part."""
        self.rows([row | {"relative": f"{row['relative']:+.3%}"} for row in rows], "no ranks")
        if parting is None:
            self._out.print("both date every operator alike, as far as both tell")
        else:
            self._out.print(
                f"they part first in rank {parting.rank}, node {parting.node_id} ({parting.name}, {parting.kind}): "
                f"{parting.event} at {parting.first_ns:,} ns by {names[0]}, at {parting.second_ns:,} ns by {names[1]}; "
                f"{parting.equal_before} events before are alike",
                markup=False,
            )
        for name, run in zip(names, runs, strict=True):
            self._out.print(f"run of {name}: {run}", markup=False)

    def fit(self, found: FitResult, output: Path | None) -> None:
        """A fit."""
        for row in found.parameters():
            self._out.print(f"{row['name']}: {value_text(row)}", markup=False)
        for sentence in found.unidentified:
            self._out.print(f"note: {sentence}", markup=False)
        self._out.print(
            f"{found.messages} messages; error of their completion times: median {found.median_error:.2%}, "
            f"p90 {found.p90_error:.2%}; {len(found.outliers)} outliers"
        )
        for far in found.outliers[:10]:
            self._out.print(
                f"  outlier: iteration {far.iteration}, {far.src} -> {far.dst}, {far.size_bytes} bytes, "
                f"{far.residual_ns:+} ns"
            )
        if output is not None:
            self._out.print(f"network file: {output}", markup=False)

    def testbed(self, about: dict[str, Any]) -> None:
        """A testbed."""
        self.mapping({key: value for key, value in about.items() if key != "links"})
        self.rows(about["links"], "no links")

    def doctor(self, checks: Sequence[Any]) -> None:
        """What the machine can do."""
        for check in checks:
            self._out.print(f"{check.status:5} {check.name}: {check.found}", markup=False)
            if check.fix:
                self._out.print(f"      fix: {check.fix}", markup=False)

    @contextlib.contextmanager
    def _progress(self) -> Iterator[None]:
        if not self._err.is_terminal:
            yield
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[moved]}"))
        with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self._err, transient=True) as bar:
            self._bar = bar
            yield
        self._bar = None

    @contextlib.contextmanager
    def watching(self, rule: ReplayRule) -> Iterator[Any]:
        """A function that a replay tells its progress."""
        with self._progress():
            yield _Observer(self, rule, self._bar).progress

    @contextlib.contextmanager
    def observing(self, rule: ReplayRule) -> Iterator[_Observer]:
        """An observer for the loop."""
        with self._progress():
            yield _Observer(self, rule, self._bar)

    def outcome(self, outcome: Outcome, report: Path) -> None:
        """The rounds of a loop, and what it wrote."""
        table = Table("round", "predicted us", "measured us", "error", "fitted")
        for row in outcome.rounds:
            fitted = "\n".join(f"{p['name']} {value_text(p)}" for p in row.fitted)
            times = (f"{ns_to_us(row.predicted_ns):,.1f}", f"{ns_to_us(row.measured_ns):,.1f}")
            table.add_row(str(row.round), *times, f"{row.error:+.2%}", fitted)
        self._out.print(table)
        self._out.print(f"stopped: {outcome.stopped}", markup=False)
        for sentence in dict.fromkeys(s for row in outcome.rounds for s in row.unidentified):
            self._out.print(f"note: {sentence}", markup=False)
        for error in outcome.errors:
            self._out.print(f"failed: {error}", markup=False)
        self._out.print(f"run: {outcome.run}", markup=False)
        for row in outcome.rounds:
            self._out.print(f"  round {row.round}: {outcome.run / row.run}", markup=False)
        if outcome.network_file is not None:
            self._out.print(f"calibrated network file: {outcome.network_file}", markup=False)
        self._out.print(f"report: {report}", markup=False)


class _Observer:
    """See loop.Observer."""

    def __init__(self, console: Console, rule: ReplayRule, bar: Progress | None) -> None:
        self._console, self._rule, self._bar = console, rule, bar
        self._task: Any = None
        self._last = (0, -1)

    def stage(self, text: str) -> None:
        if self._task is not None and self._bar is not None:
            self._bar.remove_task(self._task)
            self._task = None
        self._console.say(text)

    def progress(self, progress: Step) -> None:
        iterations = self._rule.warmup + self._rule.repeats
        done = (progress.iteration + self._rule.warmup) * progress.ranks + progress.ranks_done
        name = "warm-up" if progress.iteration < 0 else f"iteration {progress.iteration + 1} of {self._rule.repeats}"
        moved = f"{progress.moved_bytes / 1e6:,.0f} MB sent"
        if self._bar is not None:
            if self._task is None:
                self._task = self._bar.add_task(name, total=iterations * progress.ranks, moved=moved)
            self._bar.update(self._task, description=name, completed=done, moved=moved)
        elif progress.ranks_done == progress.ranks and self._last != (progress.iteration, progress.ranks_done):
            self._console.say(f"  {name}: done, {moved}")
        self._last = (progress.iteration, progress.ranks_done)

    def round(self, row: Round) -> None:
        self._console.say(
            f"round {row.round}: predicted {ns_to_us(row.predicted_ns):,.1f} us, measured "
            f"{ns_to_us(row.measured_ns):,.1f} us, error {row.error:+.2%}"
        )
