import gzip
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import dags, rank_traces

from genie.core.workload import ALL_DIMENSIONS, NONE, NodeKind, Nodes
from genie.errors import InputError
from genie.formats import chakra
from genie.formats.chakra import read_raw, read_trace
from genie.formats.chakra_schema import AttributeProto, GlobalMetadata, Node
from genie.formats.chakra_writer import rewrite, write_trace
from genie.formats.frames import pack, read_frames
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


@settings(max_examples=25, deadline=None)
@given(dags())
def test_round_trip(tmp_path_factory, workload):
    prefix = tmp_path_factory.mktemp("t") / "w"
    save_workload(prefix, workload)
    again = load_workload(prefix)
    for before, after in zip(workload.traces, again.traces, strict=True):
        for name, column in before.nodes.columns().items():
            assert column.tolist() == getattr(after.nodes, name).tolist(), name
        assert before.deps.tolist() == after.deps.tolist()


def test_a_file_cut_anywhere_within_a_frame_is_an_error(tmp_path):
    path = tmp_path / "x.0.et"
    write_trace(path, generate("data_parallel", 2, 4096).traces[0])
    whole = path.read_bytes()
    between = {0, *read_raw(path).offsets.tolist()}
    for cut in set(range(len(whole))) - between | {0, min(between - {0})}:
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError):
            read_raw(path)


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


@settings(deadline=None)
@given(rank_traces())
def test_every_trace_comes_back_as_it_was(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("t") / "t.3.et"
    write_trace(path, trace)
    again = read_trace(path, trace.rank)
    for name, column in trace.nodes.columns().items():
        assert column.tolist() == getattr(again.nodes, name).tolist(), name
    assert trace.dep_offsets.tolist() == again.dep_offsets.tolist()
    assert trace.deps.tolist() == again.deps.tolist()
    path.unlink()


def test_blocks_join(tmp_path, monkeypatch):
    path = tmp_path / "t.0.et"
    write_trace(path, generate("data_parallel", 2, 4096).traces[0])
    whole = read_raw(path)
    monkeypatch.setattr(chakra, "_BLOCK_NODES", 3)
    parts = read_raw(path)
    assert len(whole.nodes) > 9
    for name in ("data_offsets", "data_ids", "ctrl_offsets", "ctrl_ids", "own_rank", "frames", "offsets"):
        assert getattr(whole, name).tolist() == getattr(parts, name).tolist(), name
    for name, column in whole.nodes.columns().items():
        assert column.tolist() == getattr(parts.nodes, name).tolist(), name


def test_an_error_names_file_frame_byte_node_and_remedy(tmp_path):
    path = file_of(tmp_path, node(4, **AR), node(5, comm_size=("int64_val", -7)))
    with pytest.raises(InputError) as error:
        read_trace(path, 0)
    assert re.fullmatch(
        rf"{re.escape(str(path))}, frame 2, byte \d+: node 5 \(n5\): comm_size = -7 is out of range\. Fix: .*",
        str(error.value),
    )


def test_an_attribute_twice(tmp_path):
    made = node(0, **AR)
    made.attr.append(AttributeProto(name="comm_size", uint32_val=65536))
    assert read_trace(file_of(tmp_path, made), 0).nodes.size_bytes.tolist() == [65536]
    made.attr.append(AttributeProto(name="comm_size", int64_val=1))
    with pytest.raises(InputError, match="comm_size is given twice, with different values"):
        read_trace(file_of(tmp_path, made), 0)
    made = node(0, **AR, pg_name=("string_val", "1"))
    made.attr.append(AttributeProto(name="pg_name", int64_val=2))
    with pytest.raises(InputError, match="pg_name is given twice"):
        read_trace(file_of(tmp_path, made), 0)


@pytest.mark.parametrize(
    ("kind", "value"), [("string_val", "12"), ("int32_val", 12), ("uint64_val", 12), ("sint32_val", 12)]
)
def test_a_group_is_text_or_number(tmp_path, kind, value):
    assert read_trace(file_of(tmp_path, node(0, **AR, pg_name=(kind, value))), 0).nodes.group.tolist() == ["12"]


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("pg_name", {"double_val": 1.0}),
        ("pg_name", {"bytes_val": b"1"}),
        ("involved_dim", {"bool_val": True}),
        ("is_cpu_op", {"string_val": "true"}),
        ("comm_size", {"int64_list": AttributeProto().int64_list}),
        ("comm_size", {"uint64_val": 1 << 63}),
    ],
)
def test_attributes_of_a_wrong_kind(tmp_path, name, attribute):
    made = node(0, NodeKind.COMP)
    made.attr.append(AttributeProto(name=name, **attribute))
    with pytest.raises(InputError, match=rf"node 0 \(n0\): {name}"):
        read_trace(file_of(tmp_path, made), 0)


def test_involved_dimensions(tmp_path):
    made = node(0, **AR)
    attribute = AttributeProto(name="involved_dim")
    attribute.bool_list.values.extend([True, False, True])
    made.attr.append(attribute)
    nodes = read_trace(file_of(tmp_path, made, node(1, **AR)), 0).nodes
    assert nodes.involved_dims.tolist() == [0b101, ALL_DIMENSIONS]


def test_ends_of_messages(tmp_path):
    ends = {"comm_src": ("int32_val", 1), "comm_dst": ("int64_val", 2), "comm_size": ("int64_val", 9)}
    raw = read_raw(file_of(tmp_path, node(0, NodeKind.SEND, **ends), node(1, NodeKind.RECV, **ends), node(2, **ends)))
    assert raw.nodes.peer.tolist() == [2, 1, NONE]
    assert raw.own_rank.tolist() == [1, 2, NONE]


@pytest.mark.parametrize(
    "attribute",
    [
        b"\x0a\x09comm_size\x4d\x01\x02\x03\x04",  # int64 as four bytes
        b"\x0a\x09comm_siz\xff\x48\x01",  # a name that is no text
        b"\x0a\x09comm_size\x48",  # a number is due
        b"\x0a\x09comm_size\xd0\x02\x01",  # a kind of value that there is not
    ],
)
def test_damaged_attributes(tmp_path, attribute):
    payload = b"\x08\x03" + b"\x52" + bytes([len(attribute)]) + attribute
    path = tmp_path / "t.0.et"
    path.write_bytes(pack([b"", payload]))
    with pytest.raises(InputError, match="node 3: an attribute cannot be decoded"):
        read_raw(path)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x0a\x01a",  # an id that is a text
        b"\x10\x01",  # a name that is a number
        b"\x12\x01\xff",  # a name that is no text
        b"\x08\x01\x50\x01",  # an attribute that is a number
        b"\x08\x01\x2a\x01\x80",  # dependencies that end within a number
    ],
)
def test_frames_that_are_no_nodes(tmp_path, payload):
    path = tmp_path / "t.0.et"
    path.write_bytes(pack([b"", node(0, **AR).SerializeToString(), payload]))
    with pytest.raises(InputError, match=r"frame 2, byte .*: the frame is no node"):
        read_raw(path)


def test_a_node_is_no_metadata_even_without_a_name(tmp_path):
    path = tmp_path / "t.0.et"
    path.write_bytes(pack([b"\x08\x01\x18\x04", node(0, **AR).SerializeToString()]))
    with pytest.raises(InputError, match="the first frame is no metadata"):
        read_raw(path)


def test_outputs_of_2023_are_known_without_attributes(tmp_path):
    path = tmp_path / "t.0.et"
    path.write_bytes(pack([b"", b"\x08\x01\x2a\x06[1, 2]\x32\x02[]"]))
    with pytest.raises(InputError, match="schema of 2023"):
        read_raw(path)


def test_a_duration_is_in_range(tmp_path):
    made = node(0, NodeKind.COMP)
    made.duration_micros = (1 << 63) // 1000 + 1
    with pytest.raises(InputError, match="duration_micros = 9223372036854776 is out of range"):
        read_raw(file_of(tmp_path, made))


def test_chakra_has_no_nanoseconds(tmp_path):
    trace = generate("data_parallel", 2, 4096).traces[0]
    nodes = Nodes(**(trace.nodes.columns() | {"duration_ns": np.full(len(trace.nodes), 1500)}))
    with pytest.raises(InputError, match="1500 ns is no whole number of microseconds"):
        write_trace(tmp_path / "t.0.et", replace(trace, nodes=nodes))


def test_rewriting_keeps_what_is_not_read(tmp_path):
    made = node(0, ctrl=[1], **AR)
    made.attr.append(AttributeProto(name="rf_id", int64_val=77))
    source = file_of(tmp_path, made, node(1, NodeKind.COMP, deps=[0]), metadata=b"\n\x059.9.9")
    raw = read_raw(source)
    rewrite(tmp_path / "same.0.et", raw)
    assert (tmp_path / "same.0.et").read_bytes() == source.read_bytes()
    dropped = replace(raw, ctrl_offsets=np.zeros(3, np.int64), ctrl_ids=np.empty(0, np.uint64))
    rewrite(tmp_path / "other.0.et", dropped)
    again = read_frames(tmp_path / "other.0.et")
    assert [a.name for a in Node.FromString(again.content(1)).attr] == ["comm_type", "comm_size", "rf_id"]
    assert list(Node.FromString(again.content(1)).ctrl_deps) == []
    assert list(Node.FromString(again.content(2)).data_deps) == [0]
    assert read_raw(tmp_path / "other.0.et").version == "9.9.9"
