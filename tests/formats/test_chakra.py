import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from strategies import dags

from genie.core.workload import NONE, CollectiveKind, NodeKind
from genie.errors import InputError
from genie.formats.chakra import read_raw, read_trace
from genie.formats.chakra_schema import AttributeProto, GlobalMetadata, Node
from genie.formats.chakra_writer import write_trace
from genie.formats.frames import pack
from genie.formats.workload import load_workload, save_workload
from genie.patterns import generate


def file_of(tmp_path, *nodes, metadata=b"\n\x050.0.4", name="t.0.et"):
    path = tmp_path / name
    path.write_bytes(pack([metadata, *(node.SerializeToString() for node in nodes)]))
    return path


def node(identity=0, kind=NodeKind.COLLECTIVE, deps=(), ctrl=(), **attributes):
    made = Node(id=identity, name=f"n{identity}", type=kind, data_deps=deps, ctrl_deps=ctrl)
    for name, (field, value) in attributes.items():
        made.attr.append(AttributeProto(name=name, **{field: value}))
    return made


AR = {"comm_type": ("int64_val", 0), "comm_size": ("int64_val", 65536)}


@settings(max_examples=25)
@given(dags())
def test_round_trip(tmp_path_factory, workload):
    prefix = tmp_path_factory.mktemp("t") / "w"
    save_workload(prefix, workload)
    again = load_workload(prefix)
    for before, after in zip(workload.traces, again.traces, strict=True):
        for name, column in before.nodes.columns().items():
            assert column.tolist() == getattr(after.nodes, name).tolist(), name
        assert before.deps.tolist() == after.deps.tolist()


def test_truncation_at_every_byte_is_an_error(tmp_path):
    path = tmp_path / "x.0.et"
    write_trace(path, generate("data_parallel", 2, 4096).traces[0])
    whole = path.read_bytes()
    ends = {at for at in range(len(whole)) if _is_frame_end(whole, at)}
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        if cut in ends:
            continue
        with pytest.raises(InputError):
            read_raw(path)
    assert len(ends) == 13


def _is_frame_end(data, at):
    position, frames = 0, 0
    while position < at:
        length, shift = 0, 0
        while True:
            byte = data[position]
            position += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        position += length
        frames += 1
    return position == at and frames > 1


@pytest.mark.parametrize(
    "kind",
    ["int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64"],
)
def test_comm_size_of_any_integer_kind(tmp_path, kind):
    made = node(comm_type=("int64_val", 0), comm_size=(f"{kind}_val", 65536))
    assert read_trace(file_of(tmp_path, made), 0).nodes.size_bytes.tolist() == [65536]


@pytest.mark.parametrize(("field", "value"), [("double_val", 1.0), ("string_val", "1"), ("int64_val", -1)])
def test_comm_size_of_another_kind_is_refused(tmp_path, field, value):
    with pytest.raises(InputError, match=r"node 0 \(n0\): comm_size"):
        read_trace(file_of(tmp_path, node(comm_type=("int64_val", 0), comm_size=(field, value))), 0)


def test_both_kinds_of_dependencies_count_once(tmp_path):
    path = file_of(tmp_path, node(7, deps=[3], ctrl=[3, 5], **AR), node(3, **AR), node(5, **AR))
    trace = read_trace(path, 0)
    assert trace.nodes.node_id.tolist() == [3, 5, 7]
    assert trace.dep_offsets.tolist() == [0, 0, 0, 2]
    assert trace.deps.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node(0, **AR), node(0, **AR)], "more than once"),
        ([node(0, deps=[9], **AR)], "not in the file"),
        ([node(0, deps=[0], **AR)], "depends on itself"),
        ([node(0, kind=8)], "unknown type 8"),
        ([node(0, comm_type=("int64_val", 42))], "unknown comm_type 42"),
        ([], "no nodes"),
    ],
)
def test_bad_graphs_are_refused(tmp_path, nodes, message):
    with pytest.raises(InputError, match=message):
        read_trace(file_of(tmp_path, *nodes), 0)


def test_gzip_is_read(tmp_path):
    path = file_of(tmp_path, node(0, **AR))
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert len(read_trace(path, 0).nodes) == 1
    path.write_bytes(path.read_bytes()[:-6])
    with pytest.raises(InputError, match="gzip"):
        read_trace(path, 0)


def test_an_empty_first_frame_is_empty_metadata(tmp_path):
    assert read_raw(file_of(tmp_path, node(0, **AR), metadata=b"")).version == ""


def test_an_empty_later_frame_is_an_error(tmp_path):
    path = tmp_path / "t.0.et"
    path.write_bytes(pack([b"\n\x050.0.4", node(0, **AR).SerializeToString(), b"", node(1, **AR).SerializeToString()]))
    with pytest.raises(InputError, match="frame 2"):
        read_raw(path)


def test_a_file_of_2023_is_named_as_such(tmp_path):
    old = node(0)
    old.attributes_of_2023.append(b"\n\tcomm_type")
    with pytest.raises(InputError, match="schema of 2023"):
        read_raw(file_of(tmp_path, old))


def test_no_metadata_is_told(tmp_path):
    path = tmp_path / "t.0.et"
    path.write_bytes(pack([node(0, **AR).SerializeToString()]))
    with pytest.raises(InputError, match="no metadata"):
        read_raw(path)


def test_unset_attributes_count_as_absent(tmp_path):
    made = node(0, **AR)
    made.attr.append(AttributeProto(name="comm_priority"))
    assert read_trace(file_of(tmp_path, made), 0).nodes.priority.tolist() == [0]


def test_point_to_point_ignores_comm_type(tmp_path):
    send = node(
        0,
        NodeKind.SEND,
        comm_type=("int64_val", 5),
        comm_dst=("int32_val", 3),
        comm_size=("int64_val", 9),
        comm_tag=("int32_val", 2),
    )
    nodes = read_trace(file_of(tmp_path, send), 0).nodes
    assert (nodes.comm_type[0], nodes.peer[0], nodes.tag[0]) == (NONE, 3, 2)


def test_the_proto_file_says_what_the_code_builds():
    text = Path(__file__).resolve().parents[2].joinpath("genie/formats/chakra.proto").read_text()
    for message in (AttributeProto, GlobalMetadata, Node):
        for field in message.DESCRIPTOR.fields:
            assert f" {field.name} = {field.number};" in text


def test_missing_ranks_are_named(tmp_path):
    save_workload(tmp_path / "w", generate("all_reduce", 4, 64))
    (tmp_path / "w.2.et").unlink()
    with pytest.raises(InputError, match="ranks 2 are missing"):
        load_workload(tmp_path / "w")


def test_scaling_keeps_at_least_one_byte(tmp_path):
    save_workload(tmp_path / "w", generate("all_reduce", 2, 64))
    assert load_workload(tmp_path / "w", scale_bytes=1e-6).traces[0].nodes.size_bytes.tolist() == [1]
    assert load_workload(tmp_path / "w").traces[0].nodes.comm_type.tolist() == [CollectiveKind.ALL_REDUCE]
