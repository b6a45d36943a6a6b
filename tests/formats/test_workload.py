import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.core.workload import CollectiveKind
from genie.errors import InputError
from genie.formats.workload import find_traces, load_workload, save_workload
from genie.patterns import generate


@pytest.fixture
def prefix(tmp_path):
    save_workload(tmp_path / "w", generate("hybrid", 4, 4096))
    return tmp_path / "w"


def test_a_workload_comes_back_with_its_groups(prefix):
    workload = load_workload(prefix)
    assert (workload.name, workload.ranks) == ("w", 4)
    assert workload.groups == generate("hybrid", 4, 4096).groups


def test_a_folder_with_one_prefix_will_do(prefix):
    assert load_workload(prefix.parent).ranks == 4
    save_workload(prefix.parent / "v", generate("all_reduce", 2, 64))
    with pytest.raises(InputError, match="2 trace prefixes match: v, w"):
        load_workload(prefix.parent)
    assert load_workload(prefix.parent / "v").ranks == 2


def test_missing_ranks_are_named(prefix):
    (prefix.parent / "w.2.et").unlink()
    with pytest.raises(InputError, match="ranks 2 are missing"):
        load_workload(prefix)
    (prefix.parent / "w.0.et").unlink()
    with pytest.raises(InputError, match="ranks 0, 2 are missing"):
        load_workload(prefix)


def test_more_files_than_ranks_are_ignored_and_fewer_refused(prefix):
    (prefix.parent / "w.json").unlink()
    assert load_workload(prefix, ranks=2).ranks == 2
    with pytest.raises(InputError, match="ranks 4, 5 are missing"):
        load_workload(prefix, ranks=6)


@pytest.mark.parametrize("name", ["", "nothing", "no/such/folder"])
def test_nothing_there(tmp_path, name):
    with pytest.raises(InputError, match=r"no such folder|0 trace prefixes match"):
        load_workload(tmp_path / name)


def test_two_files_for_one_rank(prefix):
    (prefix.parent / "w.01.et").write_bytes((prefix.parent / "w.1.et").read_bytes())
    with pytest.raises(InputError, match="has two files"):
        find_traces(prefix)


def test_dots_in_names(tmp_path):
    save_workload(tmp_path / "job.v1.2", generate("all_reduce", 2, 64))
    assert sorted(find_traces(tmp_path / "job.v1.2")) == [0, 1]


@pytest.mark.parametrize("content", [[1], {}, {"nodes": 3}, {"1": [0, 1], "made by": "me"}])
def test_a_json_file_beside_that_holds_no_groups_is_left_alone(prefix, content):
    (prefix.parent / "w.json").write_text(json.dumps(content))
    assert load_workload(prefix).groups == ()


def test_a_damaged_group_file_beside_is_told(prefix):
    (prefix.parent / "w.json").write_text('{"1": "all"}')
    with pytest.raises(InputError, match=r"w\.json: the ranks of group 1"):
        load_workload(prefix)


def test_the_group_file_that_is_given_counts(prefix):
    other = prefix.parent / "other.json"
    other.write_text('{"7": [3, 1]}')
    assert [(group.name, group.ranks) for group in load_workload(prefix, comm_groups=other).groups] == [("7", (3, 1))]


@settings(deadline=None)
@given(st.floats(1e-6, 1e6))
def test_scaling_keeps_at_least_one_byte_and_sends_equal_to_receives(tmp_path_factory, factor):
    prefix = tmp_path_factory.getbasetemp() / "pipeline" / "w"
    if not prefix.parent.exists():
        save_workload(prefix, generate("pipeline", 4, 4096))
    sizes = [trace.nodes.size_bytes for trace in load_workload(prefix, scale_bytes=factor).traces]
    given_ = [trace.nodes.size_bytes for trace in load_workload(prefix).traces]
    for before, after in zip(given_, sizes, strict=True):
        assert after.tolist() == [max(1, round(size * factor)) if size > 0 else size for size in before.tolist()]


@pytest.mark.parametrize("factor", [0, -1, math.nan, math.inf])
def test_a_factor_that_makes_no_sense(prefix, factor):
    with pytest.raises(InputError, match="cannot be scaled"):
        load_workload(prefix, scale_bytes=factor)


def test_a_factor_that_is_too_large(prefix):
    with pytest.raises(InputError, match="out of range"):
        load_workload(prefix, scale_bytes=1e18)


def test_collectives_are_what_they_were(tmp_path):
    save_workload(tmp_path / "w", generate("all_reduce", 2, 64))
    assert load_workload(tmp_path / "w").traces[0].nodes.comm_type.tolist() == [CollectiveKind.ALL_REDUCE]
