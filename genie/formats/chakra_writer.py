"""Chakra execution traces: the writer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from genie.core.workload import ALL_DIMENSIONS, NONE, NodeKind, Nodes, RankTrace
from genie.errors import InputError
from genie.formats.chakra import RawTrace
from genie.formats.chakra_schema import AttributeProto, GlobalMetadata, Node
from genie.formats.frames import Frames, pack, read_frames
from genie.units import NS_PER_US

_MAX_INT32: Final = (1 << 31) - 1
_LEAST_DIMENSIONS: Final = 8


def write_trace(path: Path | str, trace: RankTrace, *, version: str = "0.0.4") -> None:
    """Write a trace that ASTRA-sim reads as it is; dependencies become data_deps.

    Raises:
        InputError: a duration that is no whole number of microseconds (Chakra cannot say it).
    """
    Path(path).write_bytes(pack(_payloads(trace, version)))


def _payloads(trace: RankTrace, version: str) -> Iterator[bytes]:
    yield GlobalMetadata(version=version).SerializeToString()
    ids, offsets = trace.nodes.node_id, trace.dep_offsets.tolist()
    for row in range(len(trace.nodes)):
        node = _message(trace.nodes, row, trace.rank, trace.source)
        node.data_deps.extend(ids[trace.deps[offsets[row] : offsets[row + 1]]].tolist())
        yield node.SerializeToString()


def rewrite(path: Path | str, raw: RawTrace) -> None:
    """Write a trace read from a file, perhaps with nodes left out and other dependencies, and nothing else changed.

    Attributes and fields that Genie does not read stay as they are in the file that the trace came from.

    Raises:
        InputError: that file cannot be read any more.
    """
    frames = read_frames(raw.source)
    payloads = [frames.content(0)]
    for row, frame in enumerate(raw.frames.tolist()):
        node = _node(frames, frame)
        for field, offsets, ids in (
            (node.data_deps, raw.data_offsets, raw.data_ids),
            (node.ctrl_deps, raw.ctrl_offsets, raw.ctrl_ids),
        ):
            del field[:]
            field.extend(ids[offsets[row] : offsets[row + 1]].tolist())
        payloads.append(node.SerializeToString())
    Path(path).write_bytes(pack(payloads))


def _node(frames: Frames, frame: int) -> Any:
    try:
        return Node.FromString(frames.content(frame))
    except DecodeError as error:  # a text or list that reading has no use for
        raise InputError(
            f"the node cannot be decoded in full: {error}.", where=frames.where(frame), fix="generate the trace again."
        ) from error


def _message(nodes: Nodes, row: int, rank: int, source: str) -> Any:
    duration_ns = int(nodes.duration_ns[row])
    if duration_ns % NS_PER_US:
        raise InputError(
            f"{duration_ns} ns is no whole number of microseconds.",
            where=f"{source or f'rank {rank}'}: node {nodes.node_id[row]} ({nodes.name[row]})",
            fix="round the duration; Chakra stores microseconds.",
        )
    node = Node(id=int(nodes.node_id[row]), name=nodes.name[row], type=int(nodes.kind[row]))
    node.duration_micros = duration_ns // NS_PER_US
    node.attr.extend(_attributes(nodes, row, rank))
    return node


def _attributes(nodes: Nodes, row: int, rank: int) -> Iterator[Any]:
    """Every column that says something. Kinds are those that Chakra's own converters write."""
    yield AttributeProto(name="is_cpu_op", bool_val=bool(nodes.is_cpu[row]))
    for name, column, absent in (
        ("tensor_size", nodes.tensor_bytes, NONE),
        ("num_ops", nodes.num_ops, NONE),
        ("comm_size", nodes.size_bytes, NONE),
        ("comm_type", nodes.comm_type, NONE),
        ("comm_priority", nodes.priority, 0),
        ("root_rank", nodes.root, 0),
    ):
        if column[row] != absent:
            yield AttributeProto(name=name, int64_val=int(column[row]))
    if nodes.group[row]:
        yield AttributeProto(name="pg_name", string_val=nodes.group[row])
    if nodes.involved_dims[row] != ALL_DIMENSIONS:
        yield _involved(int(nodes.involved_dims[row]))
    kind = int(nodes.kind[row])
    if kind in {NodeKind.SEND, NodeKind.RECV}:
        yield from _ends(nodes, row, rank, send=kind == NodeKind.SEND)


def _involved(mask: int) -> Any:
    # ASTRA-sim looks at an entry for each dimension of the network, whether the list has one or not.
    attribute = AttributeProto(name="involved_dim")
    attribute.bool_list.values.extend(bool(mask >> k & 1) for k in range(max(mask.bit_length(), _LEAST_DIMENSIONS)))
    return attribute


def _ends(nodes: Nodes, row: int, rank: int, *, send: bool) -> Iterator[Any]:
    far, near = ("comm_dst", "comm_src") if send else ("comm_src", "comm_dst")
    for name, value in ((far, nodes.peer[row]), (near, np.int64(rank)), ("comm_tag", nodes.tag[row])):
        if value > _MAX_INT32:
            yield AttributeProto(name=name, int64_val=int(value))
        elif value != NONE:
            yield AttributeProto(name=name, int32_val=int(value))
