import statistics
from pathlib import Path

import pytest

from genie.suite.model import SuiteFile, scale
from genie.suite.verdict import Attempt, CaseResult, Judge, Sign

UNITS = {"fct_p99_ns": "ns", "busbw_gb_per_s": "GB/s"}


def cases(*thresholds, **more):
    file = SuiteFile.model_validate(
        {
            "name": "s",
            "cases": [
                {"name": "first", "pattern": "shift", "ranks": [2, 4]},
                {"name": "c", "pattern": "shift", "ranks": [2, 4], "thresholds": list(thresholds)},
            ],
            **more,
        }
    )
    return scale(file, Path(), 8, ()).cases


def judge(**more):
    return Judge(25.0, (), more.get("median", statistics.median))


def checked(threshold, figures, **more):
    """The checks of the threshold alone."""
    _, _, case, _ = cases(threshold)
    attempt = Attempt("run", figures, UNITS, **more)
    return [one for one in judge().judge(case, attempt) if "runs to its end" not in one.what]


@pytest.mark.parametrize(
    ("bounds", "sign"),
    [
        ({"at_most": 20}, Sign.PASS),
        ({"at_most": 19.9}, Sign.FAIL),
        ({"at_least": 20}, Sign.PASS),
        ({"at_least": 20.1}, Sign.FAIL),
        ({"at_least": 10, "at_most": 30}, Sign.PASS),
        ({"at_most": 20, "every": True}, Sign.FAIL),
        ({"at_most": 30, "every": True}, Sign.PASS),
        ({"at_most": 1, "severity": "warning"}, Sign.WARN),
    ],
)
def test_bounds_are_held_by_the_median_or_by_every_iteration(bounds, sign):
    (check,) = checked({"metric": "fct_p99_ns", **bounds}, {("fct_p99_ns", ""): [10, 30, 20]})
    assert check.sign is sign
    assert check.found == "20 ns"


def test_what_offends_is_shown():
    (check,) = checked(
        {"metric": "fct_p99_ns", "at_most": 15},
        {("fct_p99_ns", ""): [10, 30, 20]},
        offenders={"fct_p99_ns": ["src 0, dst 3, fct_ns 30"]},
    )
    assert check.rows == ("iteration 1: 30 ns", "iteration 2: 20 ns", "src 0, dst 3, fct_ns 30")
    assert check.line == "[Check 2][FAIL] c (2 ranks): fct_p99_ns is at most 15. Found: 20 ns"


def test_every_scope_that_fits_is_checked():
    figures = {("busbw_gb_per_s", "all-reduce, 2 ranks, 1 MiB"): [22.0], ("busbw_gb_per_s", "all-gather, 2"): [24.0]}
    found = checked({"metric": "busbw_gb_per_s", "scope": "*", "at_least": 0.9, "of": "line_rate"}, figures)
    assert [one.sign for one in found] == [Sign.FAIL, Sign.PASS]
    assert found[0].found == "22 GB/s (bound 22.5 GB/s)"
    assert len(checked({"metric": "busbw_gb_per_s", "scope": "all-gather*", "at_least": 0}, figures)) == 1


def test_a_figure_that_the_run_does_not_tell_fails_unless_optional():
    (check,) = checked({"metric": "ecn_share", "at_most": 0}, {})
    assert (check.sign, check.found) == (Sign.FAIL, "the run does not tell it")
    assert checked({"metric": "ecn_share", "at_most": 0, "optional": True}, {}) == []


def test_no_number_holds_nothing():
    (check,) = checked({"metric": "fct_p99_ns", "at_most": 1}, {("fct_p99_ns", ""): [float("nan")]})
    assert check.sign is Sign.FAIL


def test_bounds_may_be_multiples_of_an_earlier_case_of_the_same_combination():
    two, four, c2, c4 = cases({"metric": "fct_p99_ns", "at_most": 1.5, "of": "case:first"})
    own = judge()
    for case, value in ((two, 100.0), (four, 1000.0)):
        own.judge(case, Attempt("run", {("fct_p99_ns", ""): [value]}))
    signs = [own.judge(case, Attempt("run", {("fct_p99_ns", ""): [400.0]}, UNITS))[-1] for case in (c2, c4)]
    assert [one.sign for one in signs] == [Sign.FAIL, Sign.PASS]
    assert signs[1].found == "400 ns (bound 1,500 ns)"
    assert [one.number for one in signs] == [4, 6]


def test_an_earlier_case_that_failed_gives_no_bound():
    two, _, c2, _ = cases({"metric": "fct_p99_ns", "at_most": 1.5, "of": "case:first"})
    own = judge()
    own.judge(two, Attempt("", {}, error="rank 1 died"))
    last = own.judge(c2, Attempt("run", {("fct_p99_ns", ""): [1.0]}))[-1]
    assert (last.sign, last.found) == (Sign.FAIL, "case:first has no fct_p99_ns")


def test_a_replay_that_fails_is_a_failed_check_and_nothing_else_is_judged():
    (check,) = judge().judge(cases({"metric": "fct_p99_ns", "at_most": 1})[2], Attempt("", {}, error="rank 1 died"))
    assert (check.sign, check.found) == (Sign.FAIL, "rank 1 died")


@pytest.mark.parametrize(
    ("ok", "hard", "sign"), [(True, True, Sign.PASS), (False, True, Sign.FAIL), (False, False, Sign.WARN)]
)
def test_the_runs_own_checks_count(ok, hard, sign):
    own = {"name": "bytes", "ok": ok, "hard": hard, "value": "1", "limit": "2", "detail": ""}
    checks = judge().judge(cases()[2], Attempt("run", {}, checks=[own]))
    assert checks[-1].sign is sign
    assert bool(checks[-1].rows) is not ok


def test_thresholds_of_the_suite_are_those_of_every_case():
    threshold = cases({"metric": "fct_p99_ns", "at_most": 1})[2].file.thresholds
    own = Judge(1.0, threshold, statistics.median)
    checks = own.judge(cases()[0], Attempt("run", {("fct_p99_ns", ""): [2.0]}))
    assert checks[-1].sign is Sign.FAIL


def test_a_further_attempt_numbers_no_check_and_a_failure_stays_one():
    case = cases({"metric": "fct_p99_ns", "at_most": 15})[2]
    own = judge()
    checks = own.judge(case, Attempt("run", {("fct_p99_ns", ""): [20.0]}))
    assert own.signs(case, Attempt("run", {("fct_p99_ns", ""): [10.0]})) is False
    result = CaseResult(case, "run", checks, 1.0, attempts=(1, 2))
    assert result.failed
    assert result.flaky == "failed in 1 of 2 attempts; a failure all the same"
    assert own.judge(case, Attempt("run", {}))[0].number == 3
