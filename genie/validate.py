"""Run a suite on a testbed: replay its cases, judge their figures, write JUnit XML, JSON and a page.

Or run it on two testbeds in turn, A B A B, and compare them case by case.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pandas as pd

from genie.core.experiment import ReplayRule
from genie.core.schedule import Schedule
from genie.core.system import System
from genie.core.testbed import Cable, Testbed
from genie.core.workload import CollectiveKind, Workload
from genie.errors import GenieError, InputError
from genie.formats.astra import read_system
from genie.formats.runfile import RunWriter, open_run
from genie.formats.tables import write_text
from genie.formats.workload import load_workload
from genie.hosts import Lab
from genie.lower import lower
from genie.patterns import generate
from genie.report.catalogue import METRICS
from genie.report.comparison import Comparison, Outcome, compare
from genie.report.document import Block, Cell, Document, Fact, Folded, Level, Section, Table, Text, Verdict
from genie.report.html import page
from genie.report.scores import samples
from genie.report.statistics import robust_mean
from genie.report.subject import View
from genie.stages import run_replay
from genie.suite.jobs import interleaved
from genie.suite.junit import junit
from genie.suite.model import Case, Suite, SuiteFile, load_suite, scale
from genie.suite.verdict import Attempt, CaseResult, Check, Judge, Sign
from genie.testbed.files import load_testbed
from genie.units import bps_to_gigabytes

Say = Callable[[str], None]
MAX_ROWS: Final = 5
RING: Final = System(
    splits=1,
    algorithms=dict.fromkeys(
        (
            CollectiveKind.ALL_REDUCE,
            CollectiveKind.ALL_GATHER,
            CollectiveKind.REDUCE_SCATTER,
            CollectiveKind.ALL_TO_ALL,
        ),
        ("ring",),
    ),
)
"""How collectives travel where a case names no system file."""


@dataclass(frozen=True, slots=True)
class Validated:
    """What a validation found; `comparisons` of two testbeds, by case."""

    run: Path
    suite: Suite
    results: tuple[CaseResult, ...]
    comparisons: dict[str, Comparison] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """How many checks failed; of two testbeds, how many cases got worse."""
        worse = sum(one.outcome is Outcome.WORSE for one in self.comparisons.values())
        return worse + sum(check.sign is Sign.FAIL for result in self.results for check in result.checks)

    @property
    def checks(self) -> list[Check]:
        """All checks in order."""
        return [check for result in self.results for check in result.checks]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "suite": self.suite.name,
            "run": str(self.run),
            "passed": self.failed == 0,
            "failed": self.failed,
            "warnings": sum(check.sign is Sign.WARN for check in self.checks),
            "left_out": list(self.suite.left_out),
            "cases": [result.as_dict() for result in self.results],
            "comparisons": {name: one.as_dict() for name, one in self.comparisons.items()},
        }


def validate(suite_file: Path, testbed_file: Path, out: Path, say: Say, kind: str | None = None) -> Validated:
    """Run a suite on a testbed into a new run directory under `out`; `say` is told every check as it is made.

    Raises:
        InputError: a wrong suite or testbed file, or no case that fits the testbed.
        NotReadyError: the testbed cannot be brought up.
    """
    file, testbed = load_suite(suite_file), load_testbed(testbed_file)
    suite = _scaled(file, suite_file, testbed)
    run = RunWriter.create(out, "validate", suite.name)
    run.add_inputs([(suite_file, "suite"), (testbed_file, "testbed")])
    bench = _Bench(suite, run, say)
    judge = Judge(_line_rate(testbed), suite.thresholds, robust_mean)
    results: list[CaseResult] = []
    status = "partial"
    try:
        with ExitStack() as stack:
            labs = _Labs(testbed, kind, stack)
            for at, case in enumerate(suite.cases, 1):
                results.append(_judged(bench, labs, judge, case, at))
        status = "ok"
    finally:
        found = Validated(run.path, suite, tuple(results))
        _write(found, testbed.name)
        run.finish(status, {"failed": found.failed, "checks": len(found.checks)})
    return found


def validate_ab(
    suite_file: Path, testbeds: tuple[Path, Path], out: Path, say: Say, pairs: int = 4, kind: str | None = None
) -> Validated:
    """Run a suite's cases on two testbeds in turn, A B A B, and compare them case by case.

    Thresholds are checked of neither: what counts is whether B is worse than A.

    Raises:
        InputError: a wrong file, no case that fits both testbeds, or a case that one of them cannot run.
        NotReadyError: a testbed cannot be brought up.
    """
    file = load_suite(suite_file)
    beds = [load_testbed(path) for path in testbeds]
    suite = _scaled(file, suite_file, min(beds, key=lambda bed: len(bed.placement)))
    run = RunWriter.create(out, "validate", f"{suite.name}-ab")
    run.add_inputs(
        [(suite_file, "suite"), *((path, f"testbed {name}") for path, name in zip(testbeds, "AB", strict=True))]
    )
    bench = _Bench(suite, run, say)
    comparisons: dict[str, Comparison] = {}
    for at, case in enumerate(suite.cases, 1):
        with ExitStack() as stack:
            labs = [_Labs(bed, kind, stack) for bed in beds]
            sides: tuple[list[Path], list[Path]] = ([], [])
            for turn in range(pairs):
                for side, lab, name in zip(sides, labs, "AB", strict=True):
                    side.append(bench.replay(lab, case, f"{at}-{turn + 1}{name}"))
        comparisons[case.name] = compare(sides[0], sides[1], force=True)
        say(f"{case.name}: {comparisons[case.name].sentence()}")
    found = Validated(run.path, suite, (), comparisons)
    _write(found, f"{beds[0].name} (A) and {beds[1].name} (B)")
    run.finish("ok", {"worse": found.failed, "cases": len(comparisons)})
    return found


def _scaled(file: SuiteFile, path: Path, testbed: Testbed) -> Suite:
    for threshold in (*file.thresholds, *(one for case in file.cases for one in case.thresholds)):
        if threshold.metric not in METRICS:
            raise InputError(f"no figure {threshold.metric!r}.", where=str(path), fix="docs/metrics.md lists them.")
    return scale(file, path.parent, len(testbed.placement), _cables(testbed))


def _cables(testbed: Testbed) -> dict[str, Cable]:
    """Cables by name, both ways round."""
    return {name: cable for cable in testbed.cables for name in (f"{cable.a}-{cable.b}", f"{cable.b}-{cable.a}")}


def _line_rate(testbed: Testbed) -> float:
    """Of the slowest host link, in GB/s."""
    hosts = set(testbed.hosts)
    rates = [cable.rate_bps for cable in testbed.cables if cable.a in hosts or cable.b in hosts]
    return bps_to_gigabytes(min(rates))


# --- replaying -------------------------------------------------------------------------------------------------------


class _Labs:
    """A testbed that stays up from case to case; with other cables missing it is another one."""

    def __init__(self, testbed: Testbed, kind: str | None, stack: ExitStack) -> None:
        self._testbed, self._kind, self._stack = testbed, kind, stack
        self._up: dict[tuple[str, ...], tuple[Testbed, Lab]] = {}

    def get(self, without: Sequence[str]) -> tuple[Testbed, Lab]:
        """The testbed without those cables, up."""
        key = tuple(sorted(without))
        if key not in self._up:
            testbed = _without(self._testbed, key)
            self._up[key] = testbed, self._stack.enter_context(Lab(testbed, self._kind))
        return self._up[key]


def _without(testbed: Testbed, names: Sequence[str]) -> Testbed:
    """A testbed that lacks cables.

    Raises:
        InputError: a host would be cut off.
    """
    gone = [_cables(testbed)[name] for name in names]
    return replace(testbed, cables=tuple(cable for cable in testbed.cables if cable not in gone)) if gone else testbed


class _Bench:
    """Replays cases, each into a run of its own."""

    def __init__(self, suite: Suite, run: RunWriter, say: Say) -> None:
        self.suite, self.run, self.say = suite, run, say

    def replay(self, labs: _Labs, case: Case, label: str) -> Path:
        """One replay; a failed one is written too.

        Raises:
            InputError: the case cannot be lowered, or the testbed lacks what it needs.
        """
        schedule = self._schedule(case)
        testbed, lab = labs.get(case.file.without)
        rule = ReplayRule(case.file.warmup, case.file.repeats, case.flows, transport=case.file.transport)
        child = self.run.child(f"{label}-{_safe(case.name)}", "replay")
        hosting = lab.hosting(len(schedule.ranks), rule)
        run_replay(schedule, testbed, hosting, rule, child)
        return child.path

    def _schedule(self, case: Case) -> Schedule:
        file, folder = case.file, self.suite.folder
        system = read_system(folder / file.system) if file.system else RING
        return lower(interleaved(self._job(case), file.jobs, idle=file.idle), replace(system, extended=True))

    def _job(self, case: Case) -> Workload:
        ranks = case.ranks // case.file.jobs
        if case.file.pattern:
            return generate(case.file.pattern, ranks, case.size_bytes, **case.file.set)
        return load_workload(self.suite.folder / case.file.trace)


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name)


def _judged(bench: _Bench, labs: _Labs, judge: Judge, case: Case, at: int) -> CaseResult:
    begun = time.monotonic()
    attempt = _attempt(bench, labs, case, str(at))
    checks = judge.judge(case, attempt)
    failed = [any(check.sign is Sign.FAIL for check in checks)]
    while failed[0] and len(failed) < case.file.attempts:
        failed.append(judge.signs(case, _attempt(bench, labs, case, f"{at}-again{len(failed)}")))
    for check in checks:
        bench.say(check.line)
        for row in check.rows:
            bench.say(f"    {row}")
    result = CaseResult(case, attempt.run, checks, time.monotonic() - begun, (sum(failed), len(failed)))
    if result.flaky:
        bench.say(f"    {case.name} {result.flaky}")
    return result


def _attempt(bench: _Bench, labs: _Labs, case: Case, label: str) -> Attempt:
    try:
        path = bench.replay(labs, case, label)
    except GenieError as error:
        return Attempt("", {}, error=str(error))
    run = open_run(path)
    where = str(path.relative_to(bench.run.path))
    if run.status != "ok":
        return Attempt(where, {}, error=str(run.results.get("error", run.status)), checks=run.meta["checks"])
    view = View(run, run.timeline())
    figures = {
        (str(metric), str(scope)): own.tolist()
        for (metric, scope), own in samples(view).groupby(["metric", "scope"], sort=False)["value"]
    }
    units = {name: metric.unit for name, metric in METRICS.items()}
    return Attempt(where, figures, units, checks=run.meta["checks"], offenders=_offenders(view))


def _offenders(view: View) -> dict[str, list[str]]:
    """Metric -> the rows of the run's tables that are worst for it."""
    flows = view.flows
    slowest = _rows(flows, "fct_ns", ["iteration", "src", "dst", "size_bytes", "fct_ns"])
    found = {name: slowest for name in METRICS if name.startswith(("fct_", "goodput", "incast"))}
    if "slowdown" in flows:
        worst = _rows(flows, "slowdown", ["iteration", "src", "dst", "size_bytes", "fct_ns", "slowdown"])
        found |= {"slowdown_p50": worst, "slowdown_p99": worst}
    if len(view.counters):
        dropped = view.counters[view.counters["dropped_packets"] > 0]
        found |= dict.fromkeys(
            ("dropped_packets", "drop_share"), _rows(dropped, "dropped_packets", dropped.columns.tolist())
        )
    ranks = _rows(view.ranks, "finish_ns", ["iteration", "rank", "finish_ns", "exposed_ns"])
    return found | dict.fromkeys(("iteration_ns", "jct_ratio", "exposed_share"), ranks)


def _rows(frame: pd.DataFrame, by: str, columns: list[str]) -> list[str]:
    worst = frame.nlargest(MAX_ROWS, by)[columns].to_dict("records") if len(frame) else []
    return [", ".join(f"{name} {_cell(value)}" for name, value in row.items()) for row in worst]


def _cell(value: Any) -> str:
    return f"{value:,.5g}" if isinstance(value, float) else str(value)


# --- what is written -------------------------------------------------------------------------------------------------


def _write(found: Validated, testbed: str) -> None:
    """junit.xml, results.json and report.html."""
    xml = junit(found.suite.name, found.results, found.suite.left_out)
    write_text(found.run / "junit.xml", _with_comparisons(xml, found))
    write_text(found.run / "results.json", json.dumps(found.as_dict(), indent=1) + "\n")
    write_text(found.run / "report.html", page(document(found, testbed)))


def _with_comparisons(xml: str, found: Validated) -> str:
    """The XML of A against B: a check per case, which fails where B is worse."""
    if not found.comparisons:
        return xml
    cases = {case.name: case for case in found.suite.cases}
    results = []
    for at, (name, one) in enumerate(found.comparisons.items(), 1):
        sign = Sign.FAIL if one.outcome is Outcome.WORSE else Sign.PASS
        check = Check(at, name, "B is not worse than A", sign, one.sentence())
        results.append(CaseResult(cases[name], "", (check,), 0.0))
    return junit(found.suite.name, results, found.suite.left_out)


def document(found: Validated, testbed: str) -> Document:
    """The page: verdict, sections of the suite, cases, checks."""
    warned = sum(check.sign is Sign.WARN for check in found.checks)
    if found.comparisons:
        level = Level.BAD if found.failed else Level.GOOD
        headline = f"B is worse than A in {found.failed} of {len(found.comparisons)} cases."
    else:
        level = Level.BAD if found.failed else Level.WARN if warned else Level.GOOD
        headline = f"{found.failed} of {len(found.checks)} checks failed, {warned} warned."
    reasons = [check.line for check in found.checks if check.sign is Sign.FAIL]
    facts = [Fact("cases", str(len(found.suite.cases))), Fact("testbed", testbed)]
    sections = [*_case_sections(found), *_comparison_sections(found), *_left_out(found)]
    return Document(found.suite.name, "validation", found.run.name, Verdict(level, headline, reasons), facts, sections)


def _case_sections(found: Validated) -> Iterator[Section]:
    titles = dict.fromkeys(result.case.file.section or "Cases" for result in found.results)
    for title in titles:
        blocks: list[Block] = []
        for result in found.results:
            if (result.case.file.section or "Cases") == title:
                blocks += _case_blocks(result)
        yield Section(title, blocks)


_LEVELS: Final = {Sign.PASS: Level.GOOD, Sign.WARN: Level.WARN, Sign.FAIL: Level.BAD}


def _case_blocks(result: CaseResult) -> Iterator[Block]:
    about = f": {result.case.file.about}" if result.case.file.about else ""
    yield Text(f"{result.case.name}{about}")
    rows: list[list[str | Cell]] = [
        [Cell(str(check.sign), _LEVELS[check.sign]), str(check.number), check.what, check.found]
        for check in result.checks
    ]
    yield Table(("", "check", "what", "found"), rows, frozenset({0, 2, 3}))
    offending = [[check.what, row] for check in result.checks for row in check.rows]
    if offending:
        yield Folded(f"{len(offending)} offending rows", [Table(("check", "row"), offending, frozenset({0, 1}))])
    if result.flaky:
        yield Text(f"It {result.flaky}.", Level.WARN)


def _comparison_sections(found: Validated) -> Iterator[Section]:
    colour = {Outcome.WORSE: Level.BAD, Outcome.BETTER: Level.GOOD}
    for name, one in found.comparisons.items():
        rows: list[list[str | Cell]] = [
            [
                change.metric,
                change.scope,
                f"{change.change:+.2%}",
                Cell(str(change.outcome), colour.get(change.outcome, Level.PLAIN)),
            ]
            for change in one.changes
        ]
        table = Table(("figure", "of", "change", "verdict"), rows, frozenset({0, 1, 3}))
        yield Section(name, [Text(one.sentence()), Folded("every figure", [table])])


def _left_out(found: Validated) -> Iterator[Section]:
    if found.suite.left_out:
        yield Section("Left out", [Text(text) for text in found.suite.left_out])
