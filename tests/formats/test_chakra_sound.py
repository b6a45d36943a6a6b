"""Every bad attribute of every bad node in one list, and all else read as ever."""

import numpy as np
import pytest
from handmade import compute, node, receive, reduce_all, send, write

from genie.core.workload import NodeKind
from genie.errors import InputError
from genie.formats import chakra_sound
from genie.formats.chakra import read_raw
from genie.formats.chakra_schema import AttributeProto
from genie.formats.chakra_sound import read_sound
from genie.formats.check import check_files


def spoilt(made, **values):
    for name, value in values.items():
        made.attr.append(AttributeProto(name=name, double_val=value))
    return made


def bad_nodes():
    return [
        compute(0),
        spoilt(node(1, NodeKind.COLLECTIVE, comm_type=0), comm_size=1.5, comm_priority=2.5),
        reduce_all(2),
        spoilt(send(3, 1), tensor_size=0.5),
        node(4, 77),
        receive(5, 1),
    ]


def test_a_sound_file_is_read_as_ever(tmp_path):
    path = f"{write(tmp_path, [compute(0), reduce_all(1, data=[0]), send(2, 1)])}.0.et"
    raw, problems = read_sound(path, 20)
    plain = read_raw(path)
    assert problems == []
    for name, column in plain.nodes.columns().items():
        assert raw.nodes.columns()[name].tolist() == column.tolist()
    assert raw.offsets.tolist() == plain.offsets.tolist()


@pytest.mark.parametrize("block", [1 << 17, 2])
def test_all_attributes_of_all_bad_nodes(tmp_path, monkeypatch, block):
    monkeypatch.setattr(chakra_sound, "_BLOCK_NODES", block)
    raw, problems = read_sound(f"{write(tmp_path, bad_nodes())}.0.et", 20)
    assert [(problem.frame, problem.node_id) for problem in problems] == [(2, 1), (2, 1), (4, 3), (5, 4)]
    for problem, word in zip(problems, ("comm_size", "comm_priority", "tensor_size", "unknown type 77"), strict=True):
        assert word in problem.what
    assert raw.nodes.node_id.tolist() == [0, 2, 5]
    assert raw.frames.tolist() == [1, 3, 6]
    assert np.all(np.diff(raw.offsets) > 0)


def test_too_many_bad_nodes_end_it(tmp_path):
    nodes = [compute(0), *(spoilt(reduce_all(k), num_ops=0.5) for k in range(1, 30))]
    raw, problems = read_sound(f"{write(tmp_path, nodes)}.0.et", 20)
    assert raw is None
    assert len(problems) == 20


def test_check_says_where_it_stopped_looking(tmp_path):
    nodes = [spoilt(reduce_all(k), num_ops=0.5) for k in range(1, 30)]
    (last,) = [f for f in check_files(write(tmp_path, nodes)) if f.rule == "unreadable" and f.node_id is None]
    assert "not looked at" in last.what
    alone = check_files(write(tmp_path, nodes[:1], prefix="one"))
    assert [f.rule for f in alone] == ["missing-rank", "unreadable"]


def test_a_damaged_file_is_still_refused_as_a_whole(tmp_path):
    path = tmp_path / "w.0.et"
    path.write_bytes(b"\x7fnothing")
    with pytest.raises(InputError, match="frame 0"):
        read_sound(path, 20)


def test_check_lists_them_with_node_and_name_and_checks_the_others(tmp_path):
    prefix = write(tmp_path, [*bad_nodes(), send(6, 0)], [compute(0)])
    findings = check_files(prefix)
    unreadable = [f for f in findings if f.rule == "unreadable"]
    assert [f.node_id for f in unreadable] == [1, 1, 3, 4]
    assert all(f.severity == "error" and f.name and f.fix and "frame" in f.what for f in unreadable)
    assert any(f.rule == "self-message" and f.node_id == 6 for f in findings), "sound nodes are looked at too"
    assert not any(f.rule == "dangling-dependency" for f in findings)
