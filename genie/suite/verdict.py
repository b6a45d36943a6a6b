"""Whether the figures of a case hold its thresholds: numbered checks, with the rows that offend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from genie.suite.model import CASE, LINE_RATE, Case, Threshold

Figures = Mapping[tuple[str, str], Sequence[float]]
"""(metric, scope) -> its value in every iteration."""

Median = Callable[[Sequence[float]], float]
MAX_OFFENDERS: Final = 5


class Sign(StrEnum):
    """How a check came out."""

    PASS = "PASS"  # noqa: S105 - a verdict, no password
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Check:
    """One statement about a case.

    Attributes:
        number: running, over the whole suite.
        case: its name.
        what: the statement.
        found: what was found.
        rows: what offends, for people.
    """

    number: int
    case: str
    what: str
    sign: Sign
    found: str
    rows: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """As it is printed."""
        return f"[Check {self.number}][{self.sign}] {self.case}: {self.what}. Found: {self.found}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "number": self.number,
            "case": self.case,
            "what": self.what,
            "verdict": str(self.sign),
            "found": self.found,
            "rows": list(self.rows),
        }


@dataclass(frozen=True, slots=True)
class Attempt:
    """One replay of a case.

    Attributes:
        run: its directory.
        figures: what was measured; empty if the replay failed.
        units: of each metric.
        error: why there are none, "" if there are.
        checks: the run's own self-check: name, ok, hard, value, limit, detail.
        offenders: metric -> rows of its tables that are worst.
    """

    run: str
    figures: Figures
    units: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    checks: Sequence[Mapping[str, Any]] = ()
    offenders: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """A case with its checks; `attempts` tells of how many replays so many failed."""

    case: Case
    run: str
    checks: tuple[Check, ...]
    seconds: float
    attempts: tuple[int, int] = (0, 1)

    @property
    def failed(self) -> bool:
        """Whether a check failed."""
        return any(check.sign is Sign.FAIL for check in self.checks)

    @property
    def flaky(self) -> str:
        """What further attempts found, "" if there were none."""
        bad, count = self.attempts
        if count == 1:
            return ""
        return f"failed in {bad} of {count} attempts" + ("; a failure all the same" if bad < count else "")

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "case": self.case.name,
            "run": self.run,
            "failed": self.failed,
            "attempts": self.attempts[1],
            "failed_attempts": self.attempts[0],
            "seconds": round(self.seconds, 3),
            "checks": [check.as_dict() for check in self.checks],
        }


class Judge:
    """Numbers checks, and remembers the figures of earlier cases.

    Args:
        line_rate_gb_per_s: of the slowest host link.
        everywhere: thresholds for every case.
        median: how the iterations of a figure are summed up.
    """

    def __init__(self, line_rate_gb_per_s: float, everywhere: Sequence[Threshold], median: Median) -> None:
        self._line_rate, self._everywhere, self._median = line_rate_gb_per_s, everywhere, median
        self._number = 0
        self._earlier: dict[str, list[tuple[Case, Figures]]] = {}

    def judge(self, case: Case, attempt: Attempt) -> tuple[Check, ...]:
        """All checks of one replay."""
        self._earlier.setdefault(case.file.name, []).append((case, attempt.figures))
        return tuple(self._checks(case, attempt))

    def signs(self, case: Case, attempt: Attempt) -> bool:
        """Whether a further attempt fails; no check is numbered for it."""
        number = self._number
        failed = any(check.sign is Sign.FAIL for check in self._checks(case, attempt))
        self._number = number
        return failed

    def _check(self, case: Case, what: str, sign: Sign, found: str, rows: Sequence[str] = ()) -> Check:
        self._number += 1
        return Check(self._number, case.name, what, sign, found, tuple(rows))

    def _checks(self, case: Case, attempt: Attempt) -> Iterator[Check]:
        ended = attempt.error or "it did"
        yield self._check(case, "the replay runs to its end", Sign.FAIL if attempt.error else Sign.PASS, ended)
        hard = [one for one in attempt.checks if one["hard"] and not one["ok"]]
        soft = [one for one in attempt.checks if not one["hard"] and not one["ok"]]
        if attempt.checks:
            sign = Sign.FAIL if hard else Sign.WARN if soft else Sign.PASS
            rows = [f"{one['name']}: {one['value']}, expected {one['limit']} {one['detail']}" for one in (*hard, *soft)]
            found = f"{len(attempt.checks) - len(rows)} of {len(attempt.checks)} hold"
            yield self._check(case, "the run's own self-checks hold", sign, found, rows)
        if not attempt.error:
            for threshold in (*case.file.thresholds, *self._everywhere):
                yield from self._threshold(case, attempt, threshold)

    def _threshold(self, case: Case, attempt: Attempt, threshold: Threshold) -> Iterator[Check]:
        bad = Sign.WARN if threshold.severity == "warning" else Sign.FAIL
        fitting = [
            (scope, values)
            for (metric, scope), values in attempt.figures.items()
            if metric == threshold.metric and threshold.fits(scope)
        ]
        if not fitting and not threshold.optional:
            what = f"{threshold.metric}{_of(threshold.scope)} is {threshold.words}"
            yield self._check(case, what, bad, "the run does not tell it")
        for scope, values in fitting:
            yield self._bounded(case, attempt, threshold, scope, values, bad)

    def _bounded(
        self, case: Case, attempt: Attempt, threshold: Threshold, scope: str, values: Sequence[float], bad: Sign
    ) -> Check:
        unit = attempt.units.get(threshold.metric, "")
        what = f"{threshold.metric}{_of(scope)} is {threshold.words}"
        factor = self._factor(case, threshold, scope)
        if factor is None:
            return self._check(case, what, bad, f"{threshold.of} has no {threshold.metric}{_of(scope)}")
        judged = list(values) if threshold.every else [self._median(values)]
        wrong = [value for value in judged if not _holds(value, threshold, factor)]
        found = f"{_number(self._median(values), unit)}{_bound(threshold, factor, unit)}"
        if not wrong:
            return self._check(case, what, Sign.PASS, found)
        rows = [
            f"iteration {at}: {_number(value, unit)}"
            for at, value in enumerate(values)
            if not _holds(value, threshold, factor)
        ]
        rows = [*rows[:MAX_OFFENDERS], *attempt.offenders.get(threshold.metric, ())]
        return self._check(case, what, bad, found, rows)

    def _factor(self, case: Case, threshold: Threshold, scope: str) -> float | None:
        """What the bounds are multiples of; None if it is not known."""
        if not threshold.of:
            return 1.0
        if threshold.of == LINE_RATE:
            return self._line_rate
        earlier = self._earlier.get(threshold.of.removeprefix(CASE), [])
        alike = [figures for other, figures in earlier if other.label == case.label] or [f for _, f in earlier[:1]]
        values = alike[0].get((threshold.metric, scope)) if alike else None
        return None if not values else self._median(values)


def _of(scope: str) -> str:
    return f" of {scope}" if scope else ""


def _holds(value: float, threshold: Threshold, factor: float) -> bool:
    """NaN holds nothing."""
    low = threshold.at_least is None or value >= threshold.at_least * factor
    high = threshold.at_most is None or value <= threshold.at_most * factor
    return low and high and value == value  # noqa: PLR0124 - not NaN


def _bound(threshold: Threshold, factor: float, unit: str) -> str:
    """The bound in the figure's own unit, where it is a multiple of something."""
    if not threshold.of:
        return ""
    bounds = [bound * factor for bound in (threshold.at_least, threshold.at_most) if bound is not None]
    return f" (bound {' to '.join(_number(bound, unit) for bound in bounds)})"


def _number(value: float, unit: str) -> str:
    return f"{value:,.5g} {unit}".rstrip()
