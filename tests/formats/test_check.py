from dataclasses import replace

import numpy as np
import pytest

from genie.core.workload import Group, NodeKind
from genie.formats.chakra import read_raw, resolve
from genie.formats.check import check, check_files, fix, repair_files
from genie.formats.workload import save_workload
from genie.patterns import generate


def raws(tmp_path, pattern="hybrid", ranks=4):
    workload = generate(pattern, ranks, 4096)
    save_workload(tmp_path / "w", workload)
    return {rank: read_raw(tmp_path / f"w.{rank}.et") for rank in range(ranks)}, workload.groups


def changed(raw, **columns):
    return replace(raw, nodes=type(raw.nodes)(**(raw.nodes.columns() | columns)))


def column(raw, name, row, value):
    values = getattr(raw.nodes, name).copy()
    values[row] = value
    return {name: values}


def rules(findings):
    return {finding.rule for finding in findings if finding.severity == "error"}


def test_a_sound_workload_has_no_errors(tmp_path):
    files, groups = raws(tmp_path)
    assert rules(check(files, groups)) == set()


@pytest.mark.parametrize(
    ("name", "row", "value", "rule"),
    [
        ("node_id", 1, 0, "duplicate-id"),
        ("kind", 0, NodeKind.METADATA, "metadata-node"),
        ("size_bytes", 1, 0, "no-size"),
        ("comm_type", 1, -1, "no-comm-type"),
        ("group", 1, "99", "unknown-group"),
        ("group", 1, "2", "not-a-member"),
        ("size_bytes", 1, 12345, "collective-mismatch"),
    ],
)
def test_each_fault_is_found(tmp_path, name, row, value, rule):
    files, groups = raws(tmp_path)
    files[0] = changed(files[0], **column(files[0], name, row, value))
    assert rule in rules(check(files, groups))


def test_messages_without_partner(tmp_path):
    files, _ = raws(tmp_path, "shift")
    files[0] = changed(files[0], **column(files[0], "tag", 0, 77))
    found = rules(check(files))
    assert {"send-without-receive", "receive-without-send"} <= found


def test_missing_ranks_and_groups_out_of_range(tmp_path):
    files, _ = raws(tmp_path, "all_reduce")
    assert {"missing-rank", "group-out-of-range"} <= rules(check(files, [Group("1", (0, 9))], ranks=6))


def test_repairs_change_no_meaning(tmp_path):
    files, _ = raws(tmp_path, "tensor_parallel")
    raw = changed(files[0], **column(files[0], "kind", 1, NodeKind.METADATA))
    raw = replace(raw, ctrl_ids=np.array([12345, 2], np.uint64), ctrl_offsets=np.array([0, 0, 0, 2] + [2] * 13))
    repaired, changes = fix(raw)
    assert len(repaired.nodes) == len(raw.nodes) - 1
    assert [c.split(": ")[1][:14] for c in changes] == ["dropped 1 ctrl", "dropped 1 ctrl", "took out 1 MET"]
    trace = resolve(repaired, 0)
    assert trace.deps.tolist()[0] == 0, "what waited for the removed node waits for what it waited for"


def test_files_are_repaired_into_a_folder(tmp_path):
    raws(tmp_path, "all_reduce")
    assert repair_files(tmp_path / "w", tmp_path / "fixed") == ["nothing to repair; copies were written"]
    assert check_files(tmp_path / "fixed" / "w") == []


def test_unreadable_files_are_findings(tmp_path):
    raws(tmp_path, "all_reduce")
    (tmp_path / "w.1.et").write_bytes(b"\xff")
    assert {"unreadable", "missing-rank"} <= rules(check_files(tmp_path / "w"))
