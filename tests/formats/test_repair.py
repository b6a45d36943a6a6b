import json

import pytest
from handmade import compute, node, raws, reduce_all, write

from genie.core.workload import NodeKind
from genie.errors import InputError
from genie.formats.chakra import read_trace, resolve
from genie.formats.chakra_schema import Node
from genie.formats.check import check_files
from genie.formats.frames import read_frames
from genie.formats.repair import fix, repair_files


def wrapper(identity, **more):
    return node(identity, NodeKind.COLLECTIVE, is_cpu_op=True, **more)


def fixed(tmp_path, *nodes):
    """The repaired trace as id -> ids waited for, and what was changed (without the file)."""
    repaired, changes = fix(raws(tmp_path, nodes)[0])
    trace = resolve(repaired, 0)
    ids = trace.nodes.node_id.tolist()
    waits = {
        node: [ids[row] for row in trace.deps[trace.dep_offsets[at] : trace.dep_offsets[at + 1]].tolist()]
        for at, node in enumerate(ids)
    }
    return waits, [change.removeprefix(f"{repaired.source}: ") for change in changes]


def test_control_dependencies_that_cannot_hold(tmp_path):
    waits, changes = fixed(tmp_path, compute(1, ctrl=[99, 1]), compute(2, ctrl=[1, 98, 2], data=[1]))
    assert waits == {1: [], 2: [1]}
    assert changes == [
        "dropped 2 ctrl dependencies on absent nodes",
        "dropped 2 ctrl dependencies of nodes on themselves",
    ]


def test_control_that_contradicts_data(tmp_path):
    waits, changes = fixed(tmp_path, compute(1, ctrl=[3]), compute(2, data=[1]), compute(3, data=[2], ctrl=[2]))
    assert waits == {1: [], 2: [1], 3: [2]}
    assert changes == ["dropped 1 ctrl dependencies that contradict data dependencies"]


def test_a_circle_of_control_alone_is_left_for_the_user(tmp_path):
    waits, changes = fixed(tmp_path, compute(1, ctrl=[2]), compute(2, ctrl=[1]))
    assert waits == {1: [2], 2: [1]}
    assert changes == []


def test_children_wait_for_what_a_removed_node_waited_for(tmp_path):
    waits, changes = fixed(
        tmp_path,
        compute(1),
        compute(2),
        node(3, NodeKind.METADATA, data=[1], ctrl=[2]),
        wrapper(4, data=[3]),
        reduce_all(5, data=[4]),
        compute(6, ctrl=[4, 1]),
    )
    assert waits == {1: [], 2: [], 5: [1, 2], 6: [1, 2]}
    assert changes == ["took out 2 METADATA nodes and CPU-side wrappers: 3 (n3), 4 (n4)"]


def test_wrappers_that_wait_for_each_other(tmp_path):
    waits, _ = fixed(tmp_path, wrapper(1, data=[2]), wrapper(2, data=[1]), reduce_all(3, data=[1]))
    assert waits == {3: []}


def test_a_cpu_collective_with_type_and_size_stays(tmp_path):
    waits, changes = fixed(tmp_path, reduce_all(1, is_cpu_op=True))
    assert (waits, changes) == ({1: []}, [])


def test_something_stays(tmp_path):
    waits, changes = fixed(tmp_path, node(1, NodeKind.METADATA))
    assert waits == {1: []}
    assert changes == ["nothing would be left without METADATA nodes and wrappers: left them in"]


def test_many_removed_nodes_are_counted(tmp_path):
    _, changes = fixed(tmp_path, compute(0), *(node(k, NodeKind.METADATA) for k in range(1, 31)))
    assert changes[0].startswith("took out 30 METADATA nodes")
    assert changes[0].endswith("10 (n10) and 20 more")


def test_copies_keep_what_genie_does_not_read(tmp_path):
    prefix = write(tmp_path, [compute(1, rf_id=7, ctrl=[50]), reduce_all(2, data=[1])], [reduce_all(2)])
    (tmp_path / "w.json").write_text(json.dumps({"1": [0, 1]}))
    before = (tmp_path / "w.0.et").read_bytes()
    changes = repair_files(prefix, tmp_path / "fixed")
    assert changes == [f"{tmp_path / 'w.0.et'}: dropped 1 ctrl dependencies on absent nodes"]
    assert (tmp_path / "w.0.et").read_bytes() == before
    copy = read_frames(tmp_path / "fixed" / "w.0.et")
    assert [a.int64_val for a in Node.FromString(copy.content(1)).attr] == [7]
    assert (tmp_path / "fixed" / "w.1.et").read_bytes() == (tmp_path / "w.1.et").read_bytes()
    assert [finding.rule for finding in check_files(tmp_path / "fixed")] == []
    assert read_trace(tmp_path / "fixed" / "w.0.et", 0).deps.tolist() == [0]


def test_nothing_to_repair(tmp_path):
    prefix = write(tmp_path, [reduce_all(1)])
    assert repair_files(prefix, tmp_path / "fixed") == ["nothing to repair; copies were written"]


def test_the_traces_are_not_overwritten(tmp_path):
    prefix = write(tmp_path, [compute(1, ctrl=[50])])
    with pytest.raises(InputError, match="would overwrite the traces"):
        repair_files(prefix, tmp_path)
