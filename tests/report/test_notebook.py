import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pandas as pd
import pytest
from made import check, message, saved, saved_loop, small, timeline

import genie
from genie.errors import InputError
from genie.report.export import nccl_json, nccl_table
from genie.report.notebook import Results

TABLES = ("flows", "operators", "ranks", "collectives", "counters", "links", "routes", "rounds")


@pytest.fixture
def run(tmp_path):
    return genie.open_run(saved(tmp_path, small(), checks=[check()]).path)


def test_tables_are_tidy_and_say_their_units(run):
    for name in TABLES:
        assert isinstance(getattr(run, name), pd.DataFrame), name
    assert {"size_bytes", "posted_ns", "fct_ns", "slowdown"} <= set(run.flows)
    assert {"issue_ns", "done_ns", "duration_ns"} <= set(run.operators)
    assert {"algbw_gb_per_s", "busbw_gb_per_s", "time_ns"} <= set(run.collectives)
    assert {"payload_bytes", "load"} <= set(run.link_load)


def test_metrics_have_values_units_and_intervals(run):
    found = run.metrics().set_index(["metric", "scope"])
    row = found.loc["iteration_ns", ""]
    assert (row["value"], row["unit"], row["samples"]) == (110, "ns", 2)
    assert row["low"] < 110 < row["high"]


@pytest.mark.parametrize("name", ["fct_cdf", "timeline", "link_utilisation", "slowdown"])
def test_figures_show_themselves(run, name):
    drawn = getattr(run.plot, name)()._repr_svg_()
    assert ET.fromstring(drawn).tag.endswith("svg")
    assert "var(--" not in drawn, "colours of the page's style sheet mean nothing in a notebook"


def test_figures_of_a_loop(tmp_path):
    run = genie.open_run(saved_loop(tmp_path).path)
    assert ET.fromstring(run.plot.rounds()._repr_svg_()).tag.endswith("svg")
    assert ET.fromstring(run.plot.fct_cdf()._repr_svg_()).tag.endswith("svg")
    assert set(run.flows["run"]) == {f"rounds/{n}-{kind}" for n in (1, 2) for kind in ("simulate", "replay")}
    assert run.rounds["round"].tolist() == [1, 1, 2, 2]


def test_a_run_in_html_says_first_whether_it_may_be_used(tmp_path):
    good = genie.open_run(saved(tmp_path, small(), checks=[check()]).path)._repr_html_()
    assert good.index("every self-check holds") < good.index("iteration_ns")
    bad = genie.open_run(saved(tmp_path, small(), checks=[check(ok=False)]).path)._repr_html_()
    assert "Do not use these numbers" in bad


def test_names_of_runs_are_escaped(tmp_path):
    opened = genie.open_run(saved(tmp_path, small(), name="<b>x").path)
    assert "<b>x" not in opened._repr_html_()


def test_what_a_run_does_not_tell_is_refused_in_words(tmp_path):
    run = genie.open_run(saved(tmp_path, small(measured=False), "simulate", network=None).path)
    for ask in (run.plot.link_utilisation, run.plot.slowdown, run.plot.rounds, lambda: run.link_load):
        with pytest.raises(InputError):
            ask()
    with pytest.raises(InputError, match="no timeline"):
        genie.open_run(saved(tmp_path, None, results={}).path).metrics()
    assert "holds no iteration time" in genie.open_run(saved(tmp_path, None, results={}).path)._repr_html_()


def test_a_bare_timeline():
    run = Results(timeline(messages=[message(0, 1, 8, 0, 20)]), "mine")
    assert run.flows["fct_ns"].tolist() == [20]
    assert run.rounds.empty
    assert repr(run) == "<genie timeline 'mine'>"
    assert "mine" in run._repr_html_()


def test_beside_another_table(run):
    other = pd.DataFrame(
        {
            "collective": ["ALL_REDUCE"],
            "members": [2],
            "total_bytes": [1000],
            "time_ns": [30.0],
            "busbw_gb_per_s": [33.0],
        }
    )
    (row,) = run.beside(other).to_dict("records")
    assert (row["time_ns"], row["other_time_ns"], row["time_ratio"]) == (60, 30, 2)
    assert run.beside(other.assign(members=4)).empty


def test_our_own_exports_are_read_back(run, tmp_path):
    (tmp_path / "log.txt").write_text(nccl_table(run.source))
    table = genie.open_nccl_tests(tmp_path / "log.txt")
    assert (table["total_bytes"].tolist(), table["members"].tolist()) == ([1000], [2])
    (tmp_path / "log.json").write_text(json.dumps(nccl_json(run.source)))
    table = genie.open_nccl_tests(tmp_path / "log.json", collective="all_reduce", members=2)
    assert run.beside(table)["time_ratio"].tolist() == pytest.approx([1.0])


def test_importing_the_package_loads_nothing_heavy():
    code = "import genie, sys; print(sorted({'numpy', 'pandas', 'matplotlib', 'scipy', 'click'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
