"""Comparisons: what differs, what is refused, and that verdicts are those that chance allows."""

import numpy as np
import pytest
from made import NETWORK, check, message, saved, small, timeline

import genie
from genie.errors import InputError
from genie.formats.runfile import RunWriter, open_run
from genie.report.comparison import Outcome, compare
from genie.report.notebook import Results


def noisy(finish, *, measured=True, ranks=2):
    """Iterations of given lengths; one message each that takes half of it."""
    rows = [(k, rank, int(time), 0) for k, time in enumerate(finish) for rank in range(ranks)]
    messages = [message(0, 1, 1000, 0, int(time) // 2, iteration=k) for k, time in enumerate(finish)]
    return timeline(ranks=rows, messages=messages, measured=measured)


def run_of(tmp_path, finish, *, trace="same", measured=True, **more):
    folder = tmp_path / trace
    folder.mkdir(exist_ok=True)
    (folder / "job.0.et").write_text(trace)
    run = RunWriter.create(tmp_path, "replay" if measured else "simulate", "job")
    run.add_inputs([(folder / "job.0.et", "trace")])
    run.save_timeline(noisy(finish, measured=measured))
    for name, columns in (NETWORK if more.get("network", True) else {}).items():
        run.save_table(name, columns)
    run.describe(**more.get("describe", {}))
    run.finish(more.get("status", "ok"), {}, more.get("checks", [check()]))
    return run.path


def draws(seed, mean=1_000_000, spread=0.004, count=8):
    return np.random.default_rng(seed).normal(mean, spread * mean, count).round()


def test_equal_runs_do_not_differ(tmp_path):
    found = compare(run_of(tmp_path, draws(1)), run_of(tmp_path, draws(2)))
    assert found.outcome is Outcome.SAME
    assert "would have been found with a power of 80%" in found.sentence()


@pytest.mark.parametrize(("factor", "outcome"), [(1.03, Outcome.WORSE), (0.97, Outcome.BETTER)])
def test_three_per_cent_are_found(tmp_path, factor, outcome):
    found = compare(run_of(tmp_path, draws(1)), run_of(tmp_path, draws(2) * factor))
    assert found.outcome is outcome
    (own,) = [one for one in found.changes if one.metric == "iteration_ns"]
    assert own.change == pytest.approx(factor - 1, abs=0.006)
    assert own.relative(own.found.low) < own.change < own.relative(own.found.high)


def test_the_better_direction_is_that_of_the_figure(tmp_path):
    found = compare(run_of(tmp_path, draws(1)), run_of(tmp_path, draws(2) * 1.1))
    verdicts = {one.metric: one.outcome for one in found.changes if not one.scope}
    assert verdicts["fct_p99_ns"] is Outcome.WORSE
    assert verdicts["goodput_gb_per_s"] is Outcome.WORSE, "it is lower"
    assert verdicts["link_load_max"] is Outcome.CHANGED, "which way is good depends"


def test_runs_in_turn_are_compared_in_pairs(tmp_path):
    mood = [1.0, 1.2, 1.05, 1.15]
    base = [run_of(tmp_path, draws(at) * one) for at, one in enumerate(mood)]
    new = [run_of(tmp_path, draws(at + 9) * one * 1.04) for at, one in enumerate(mood)]
    assert compare(base, new).outcome is Outcome.WORSE
    assert compare(base, new[:3]).outcome is Outcome.SAME, "without pairs the machine's mood hides it"


def test_single_measurements_tell_nothing(tmp_path):
    found = compare(run_of(tmp_path, [100]), run_of(tmp_path, [200]))
    assert found.outcome is Outcome.UNKNOWN
    assert "Without repeats" in found.sentence()


def test_predictions_are_exact(tmp_path):
    found = compare(*(run_of(tmp_path, [time], measured=False) for time in (1000, 1030)))
    assert found.outcome is Outcome.WORSE
    assert "+3.00%" in found.sentence()
    same = compare(*(run_of(tmp_path, [time], measured=False) for time in (1000, 1005)))
    assert same.outcome is Outcome.SAME


def refused(*sides):
    with pytest.raises(InputError, match="too unlike") as caught:
        compare(*sides)
    forced = compare(*sides, force=True)
    assert forced.warnings
    return str(caught.value)


def test_other_traces_are_refused(tmp_path):
    assert "their traces differ" in refused(run_of(tmp_path, draws(1)), run_of(tmp_path, draws(1), trace="other"))


def test_a_prediction_beside_a_measurement_is_refused(tmp_path):
    assert "predicted" in refused(run_of(tmp_path, draws(1)), run_of(tmp_path, draws(1), measured=False))


def test_other_numbers_of_ranks_are_refused(tmp_path):
    two = saved(tmp_path, noisy([10, 11]))
    three = saved(tmp_path, noisy([10, 11], ranks=3))
    assert "2 and 3 ranks" in refused(two.path, three.path)


def test_loopback_beside_a_fabric_is_refused(tmp_path):
    sides = [run_of(tmp_path, draws(1), describe={"testbed": {"hosting": kind}}) for kind in ("root", "none")]
    assert "loopback" in refused(*sides)


def test_a_run_that_fails_its_own_check_is_refused(tmp_path):
    assert "fails its own self-check" in refused(
        run_of(tmp_path, draws(1)), run_of(tmp_path, draws(1), checks=[check(ok=False)])
    )


def test_what_differs_comes_first(tmp_path):
    slower = {**NETWORK["links"], "rate_bps": [8_000_000_000, 2_000_000_000]}
    a = run_of(tmp_path, draws(1), describe={"testbed": {"mtu": 4200}})
    b = run_of(tmp_path, draws(2), describe={"testbed": {"mtu": 9000}})
    RunWriter.save_table(_writer(b), "links", slower)
    found = compare(a, b)
    assert ("testbed mtu", "4200", "9000") in found.differences
    assert ("link s>b", "4 Gb/s, 200 ns, 8.789 KiB", "2 Gb/s, 200 ns, 8.789 KiB") in found.differences
    assert not [row for row in found.differences if row[0].startswith("input")]


def _writer(path):
    writer = object.__new__(RunWriter)
    writer.path = path
    return writer


def test_json_and_table_say_the_same(tmp_path):
    found = compare(run_of(tmp_path, draws(1)), run_of(tmp_path, draws(2) * 1.05))
    told = found.as_dict()
    assert told["verdict"] == "worse"
    assert told["changes"][0]["metric"] == "iteration_ns"
    assert found.table()["verdict"].tolist() == [row["verdict"] for row in told["changes"]]
    assert "iteration_ns" in found._repr_html_()


def test_runs_are_given_opened_or_by_path(tmp_path):
    path = run_of(tmp_path, draws(1))
    assert genie.compare(str(path), Results(open_run(path))).outcome is Outcome.SAME


def test_an_empty_side():
    with pytest.raises(InputError, match="nothing to compare"):
        compare([], [])


def test_small_runs_compare(tmp_path):
    """Two iterations: Student's t with two degrees of freedom; per collective too."""
    found = compare(saved(tmp_path, small()).path, saved(tmp_path, small()).path)
    scopes = {one.scope for one in found.changes if one.metric == "collective_ns"}
    assert scopes == {"all-reduce, 2 ranks, 1,000 B"}
