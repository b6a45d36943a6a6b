import json
from pathlib import Path

import pytest
import yaml

from genie.errors import InputError
from genie.report.catalogue import METRICS
from genie.suite.model import SuiteFile, find_suite, load_suite, scale, schema, shipped

ROOT = Path(__file__).resolve().parents[2]


def suite(*cases, **more):
    return SuiteFile.model_validate({"name": "mine", "cases": list(cases), **more})


def scaled(file, places=8, cables=()):
    return scale(file, Path(), places, cables)


def case(**more):
    return {"name": "c", "pattern": "all_reduce", **more}


def test_lists_stand_for_all_combinations():
    made = scaled(suite(case(ranks=[2, 4], size=["1 KiB", "1 MiB"])))
    assert [one.name for one in made.cases] == [
        f"c ({ranks} ranks, {size})" for ranks in (2, 4) for size in ("1 KiB", "1 MiB")
    ]
    assert [one.size_bytes for one in made.cases] == [1024, 1 << 20] * 2


def test_what_does_not_fit_is_left_out_and_told():
    made = scaled(suite(case(ranks=[4, 16, "all"])))
    assert [one.ranks for one in made.cases] == [4, 8]
    assert made.left_out == ("c (16 ranks): 16 ranks in 1 jobs, the testbed has 8 places",)
    with pytest.raises(InputError, match="no case"):
        scaled(suite(case(ranks=16)))


def test_all_is_no_second_replay_of_the_same():
    assert len(scaled(suite(case(ranks=[8, "all"]))).cases) == 1


def test_jobs_share_the_places_evenly():
    (one,) = scaled(suite(case(jobs=3))).cases
    assert one.ranks == 6
    with pytest.raises(InputError, match="no case"):
        scaled(suite(case(jobs=8)))


def test_a_cable_that_is_not_there_leaves_the_case_out():
    file = suite(case(), case(name="d", without=["leaf0-spine1"]))
    assert len(scaled(file, cables={"leaf0-spine1"}).cases) == 2
    assert scaled(file).left_out == ("d: the testbed has no cable leaf0-spine1",)


def test_too_many_replays():
    with pytest.raises(InputError, match="500 are the limit"):
        scaled(suite(case(size=list(range(1, 502)))))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"cases": []}, "at least 1 item"),
        ({"cases": [{"name": "c"}]}, "either pattern or trace"),
        ({"cases": [case(trace="x")]}, "either pattern or trace"),
        ({"cases": [case(), case()]}, "two cases are called c"),
        ({"cases": [case(size="many")]}, "is no size"),
        ({"cases": [case(size=[1.5])]}, "with its unit"),
        ({"cases": [case(nonsense=1)]}, "nonsense"),
        ({"cases": [case(thresholds=[{"metric": "x"}])]}, "at_most, at_least or both"),
        ({"cases": [case(thresholds=[{"metric": "x", "at_most": 1, "of": "rate"}])]}, "pattern"),
        ({"cases": [case(thresholds=[{"metric": "x", "at_most": 1, "of": "case:c"}])]}, "no earlier case"),
    ],
)
def test_wrong_files_are_refused_in_words(tmp_path, wrong, says):
    (tmp_path / "s.yml").write_text(json.dumps({"name": "mine"} | wrong))
    with pytest.raises(InputError, match=says):
        load_suite(tmp_path / "s.yml")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load_suite(tmp_path / "none.yml")
    (tmp_path / "s.yml").write_text("a: [")
    with pytest.raises(InputError, match="is no YAML"):
        load_suite(tmp_path / "s.yml")


def test_suites_are_found_by_name_or_file(tmp_path):
    assert set(shipped()) == {"smoke", "ai-fabric", "roce-config"}
    assert find_suite("smoke") == shipped()["smoke"]
    (tmp_path / "own.yml").write_text("x")
    assert find_suite(str(tmp_path / "own.yml")) == tmp_path / "own.yml"
    with pytest.raises(InputError, match="ai-fabric"):
        find_suite("nonsense")


@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize("places", [2, 8, 64])
def test_shipped_suites_scale_and_name_known_figures(name, places):
    file = load_suite(shipped()[name])
    assert scaled(file, places, {"leaf0-spine1"}).cases
    named = [one.metric for one in file.thresholds] + [one.metric for c in file.cases for one in c.thresholds]
    assert set(named) <= set(METRICS)


def test_the_published_schema_is_this_one():
    assert json.loads((ROOT / "genie/suite/suite.schema.json").read_text()) == schema()


def test_the_example_of_the_documentation_is_a_suite():
    text = (ROOT / "docs/validate.md").read_text()
    block = text.split("## Suite files")[1].split("| of a case")[0]
    SuiteFile.model_validate(yaml.safe_load("\n".join(line[4:] for line in block.splitlines())))
