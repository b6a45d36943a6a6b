"""Chakra execution traces: strict reader and writer. What is accepted and what is refused: docs/formats.md."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from genie.core.workload import ALL_DIMENSIONS, NONE, NodeKind, Nodes, RankTrace
from genie.errors import InputError
from genie.formats.chakra_schema import INTEGER_KINDS, LIST_KINDS, AttributeProto, GlobalMetadata, Node, NodeFrame
from genie.formats.frames import frames, pack, read_file
from genie.units import NS_PER_US, ns_to_us, us_to_ns

MAX_INT64: Final = (1 << 63) - 1

_INTEGERS: Final = {
    "comm_size": "size_bytes",
    "tensor_size": "tensor_bytes",
    "num_ops": "num_ops",
    "comm_type": "comm_type",
    "comm_src": "comm_src",
    "comm_dst": "comm_dst",
    "comm_tag": "tag",
    "comm_priority": "priority",
    "is_cpu_op": "is_cpu",
    "root_rank": "root",
    "comm_root": "root",
}
"""Integer attributes that are read, and the name under which; others are ignored."""


@dataclass(frozen=True, slots=True, eq=False)
class RawTrace:
    """A trace as its file has it: nodes in file order, dependencies as ids, nothing resolved.

    `data_*` and `ctrl_*` are CSR (offsets, ids) of the two kinds of dependencies; `offsets` are frame byte offsets.
    """

    source: str
    version: str
    nodes: Nodes
    data_offsets: NDArray[np.int64]
    data_ids: NDArray[np.uint64]
    ctrl_offsets: NDArray[np.int64]
    ctrl_ids: NDArray[np.uint64]
    offsets: tuple[int, ...] = field(default=())


def read_raw(path: Path | str) -> RawTrace:
    """Read a trace without resolving its dependencies.

    Raises:
        InputError: damaged, of an unknown schema, or an attribute of the wrong type; names file, frame and byte.
    """
    path = Path(path)
    data = read_file(path)
    if not data:
        raise InputError("the file is empty.", where=str(path), fix="generate the trace again.")
    reader = _Reader(path)
    stream = frames(data, path)
    reader.metadata(*next(stream))
    with collector_paused():
        reader.read(stream)
        return reader.finish()


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Millions of new objects, none of them garbage: the cycle collector would look through them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Reader:
    """Appends node after node to plain lists.

    Few combinations of type and attributes occur in a trace ("shapes"), many nodes share each: a shape is decoded once.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.version = path, ""
        self.ids: list[int] = []
        self.names: list[str] = []
        self.durations_us: list[int] = []
        self.shape_of: list[int] = []
        self.shapes: list[tuple[Any, ...]] = []
        self.known: dict[tuple[Any, ...], int] = {}
        self.data_deps: list[int] = []
        self.ctrl_deps: list[int] = []
        self.data_ends: list[int] = [0]
        self.ctrl_ends: list[int] = [0]
        self.offsets: list[int] = []

    def metadata(self, offset: int, payload: bytes) -> None:
        """The first frame; an empty one is an empty metadata message."""
        try:
            message = GlobalMetadata.FromString(payload)
        except DecodeError as error:
            raise InputError(
                "frame 0 is no metadata.",
                where=f"{self.path}, byte {offset}",
                fix="a trace starts with a GlobalMetadata frame; older ones (2023) have none: convert them again.",
            ) from error
        self.version = message.version

    def _where(self, offset: int) -> str:
        return f"{self.path}, frame {len(self.ids) + 1}, byte {offset}"

    def read(self, stream: Iterator[tuple[int, bytes]]) -> None:
        """All later frames. One loop on local names: a million calls less make a third of the time."""
        parse, known = NodeFrame.FromString, self.known.get
        ids, names, durations_us = self.ids.append, self.names.append, self.durations_us.append
        shape_of, offsets = self.shape_of.append, self.offsets.append
        data_deps, ctrl_deps = self.data_deps, self.ctrl_deps
        data_ends, ctrl_ends = self.data_ends.append, self.ctrl_ends.append
        for offset, payload in stream:
            try:
                node = parse(payload)
            except DecodeError as error:
                raise self._damaged("the frame is no node.", offset) from error
            key = (node.type, *node.attr)
            shape = known(key)
            if shape is None or not payload:
                shape = self._new_shape(key, node, payload, offset)
            shape_of(shape)
            ids(node.id)
            names(node.name)
            durations_us(node.duration_micros)
            offsets(offset)
            data_deps.extend(node.data_deps)
            ctrl_deps.extend(node.ctrl_deps)
            data_ends(len(data_deps))
            ctrl_ends(len(ctrl_deps))

    def _damaged(self, what: str, offset: int) -> InputError:
        return InputError(what, where=self._where(offset), fix="the file is damaged.")

    def _new_shape(self, key: tuple[Any, ...], node: Any, payload: bytes, offset: int) -> int:
        """Decode a combination of type and attributes that is seen for the first time."""
        if not payload:
            raise self._damaged("an empty frame where a node is due.", offset)
        where = self._where(offset)
        if node.attributes_of_2023:
            raise InputError(
                "the file uses Chakra's schema of 2023, whose fields mean something else today.",
                where=where,
                fix="convert the workload again with a current chakra_converter.",
            )
        try:
            attributes = [AttributeProto.FromString(data) for data in key[1:]]
        except DecodeError as error:
            raise self._damaged(f"an attribute of node {node.id} cannot be decoded.", offset) from error
        self.shapes.append(_shape(key[0], attributes, node.id, where))
        self.known[key] = len(self.shapes) - 1
        return len(self.shapes) - 1

    def finish(self) -> RawTrace:
        """All that was read, as columns."""
        if not self.ids:
            raise InputError("the trace has no nodes.", where=str(self.path))
        return RawTrace(
            source=str(self.path),
            version=self.version,
            nodes=Nodes(**self._columns()),
            data_offsets=np.array(self.data_ends, np.int64),
            data_ids=np.array(self.data_deps, np.uint64),
            ctrl_offsets=np.array(self.ctrl_ends, np.int64),
            ctrl_ids=np.array(self.ctrl_deps, np.uint64),
            offsets=tuple(self.offsets),
        )

    def _columns(self) -> dict[str, Any]:
        durations_us = np.array(self.durations_us, np.uint64)
        if durations_us.max() > MAX_INT64 // NS_PER_US:
            raise InputError("a duration is out of range.", where=str(self.path))
        shape_of = np.array(self.shape_of, np.int64)
        columns = {
            name: np.array(values, Nodes.SCHEMA[name])[shape_of]
            for name, values in zip(_SHAPE, zip(*self.shapes, strict=True), strict=True)
        }
        return columns | {
            "node_id": np.array(self.ids, np.uint64),
            "name": np.array(self.names, object),
            "duration_ns": us_to_ns(durations_us.astype(np.int64)),
        }


_SHAPE: Final = tuple(name for name in Nodes.SCHEMA if name not in {"node_id", "name", "duration_ns"})
"""Columns that follow from a node's type and attributes, in schema order."""


def _shape(kind: int, attributes: list[Any], node_id: int, where: str) -> tuple[Any, ...]:
    """Values of the columns _SHAPE."""
    if not 0 <= kind <= NodeKind.COLLECTIVE:
        raise InputError(f"node {node_id} has the unknown type {kind}.", where=where, fix="update Genie.")
    values: dict[str, Any] = {}
    for attribute in attributes:
        if attribute.name in _INTEGERS:
            _read_integer(attribute, values, node_id, where)
        elif attribute.name in {"pg_name", "involved_dim"}:
            _read_other(attribute, values, node_id, where)
    peer = values.get("comm_dst" if kind == NodeKind.SEND else "comm_src", NONE)
    point_to_point = kind in {NodeKind.SEND, NodeKind.RECV}
    return (
        kind,
        values.get("size_bytes", NONE),
        values.get("tensor_bytes", NONE),
        values.get("num_ops", NONE),
        NONE if point_to_point else _comm_type(values, node_id, where),
        peer if point_to_point else NONE,
        values.get("tag", NONE) if point_to_point else NONE,
        values.get("group", ""),
        bool(values.get("is_cpu", 0)),
        values.get("priority", 0),
        values.get("involved_dims", ALL_DIMENSIONS),
        values.get("root", 0),
    )


def _comm_type(values: dict[str, Any], node_id: int, where: str) -> int:
    comm_type: int = values.get("comm_type", NONE)
    if not NONE <= comm_type <= 9:  # noqa: PLR2004 - BARRIER is the last published kind
        raise InputError(f"node {node_id} has the unknown comm_type {comm_type}.", where=where)
    return comm_type


def _read_integer(attribute: Any, values: dict[str, Any], node_id: int, where: str) -> None:
    kind = attribute.WhichOneof("value")
    if kind is None:
        return
    if kind not in INTEGER_KINDS:
        raise InputError(
            f"node {node_id}: {attribute.name} is a {kind.removesuffix('_val')}, an integer is needed.",
            where=where,
            fix="write it as int64 (ASTRA-sim throws bad_cast on it, too).",
        )
    value = getattr(attribute, kind)
    if not 0 <= value <= MAX_INT64:
        raise InputError(f"node {node_id}: {attribute.name} = {value} is out of range.", where=where)
    values[_INTEGERS[attribute.name]] = value


def _read_other(attribute: Any, values: dict[str, Any], node_id: int, where: str) -> None:
    kind = attribute.WhichOneof("value")
    if kind is None:
        return
    value = getattr(attribute, kind)
    if attribute.name == "pg_name":
        if kind != "string_val" and kind not in INTEGER_KINDS:
            raise InputError(f"node {node_id}: pg_name is a {kind}, text is needed.", where=where)
        values["group"] = str(int(value)) if kind in INTEGER_KINDS else value
    else:
        if kind not in LIST_KINDS:
            raise InputError(f"node {node_id}: involved_dim is a {kind}, a list of bool is needed.", where=where)
        values["involved_dims"] = sum(1 << at for at, involved in enumerate(value.values) if involved)


def read_trace(path: Path | str, rank: int) -> RankTrace:
    """Read a trace and resolve its dependencies (data and control alike, without repeats) to rows.

    Raises:
        InputError: as `read_raw`; also repeated ids, a dependency on an absent node or on the node itself.
    """
    return resolve(read_raw(path), rank)


def resolve(raw: RawTrace, rank: int) -> RankTrace:
    """Sort a raw trace by id and turn dependency ids into rows.

    Raises:
        InputError: repeated ids, a dependency on an absent node or on the node itself.
    """
    ids = raw.nodes.node_id
    order = np.argsort(ids, kind="stable")
    ids_sorted = ids[order]
    repeated = ids_sorted[1:][ids_sorted[1:] == ids_sorted[:-1]]
    if len(repeated):
        raise InputError(
            f"node id {repeated[0]} occurs more than once.",
            where=raw.source,
            fix="number the nodes uniquely.",
        )
    owner = np.concatenate([_owners(raw.data_offsets), _owners(raw.ctrl_offsets)])
    wanted = np.concatenate([raw.data_ids, raw.ctrl_ids])
    found = np.searchsorted(ids_sorted, wanted)
    absent = ids_sorted[np.minimum(found, len(ids) - 1)] != wanted
    if absent.any():
        at = int(np.flatnonzero(absent)[0])
        raise InputError(
            f"node {ids[owner[at]]} depends on node {wanted[at]}, which is not in the file.",
            where=raw.source,
            fix="genie trace check lists all such nodes; --fix drops dangling control dependencies.",
        )
    offsets, deps = _resolved(raw, order, owner, found)
    return RankTrace(rank, raw.nodes.take(order), offsets, deps, raw.source)


def _owners(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))


def _resolved(
    raw: RawTrace, order: NDArray[np.int64], owner: NDArray[np.int64], found: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """CSR of sorted rows: (offsets, rows depended on), ascending and without repeats."""
    count = len(order)
    row_of = np.empty(count, np.int64)
    row_of[order] = np.arange(count)
    edges = np.unique(row_of[owner] * count + found) if len(owner) else np.empty(0, np.int64)
    rows, deps = edges // count, edges % count
    if (rows == deps).any():
        node_id = raw.nodes.node_id[order][rows[rows == deps][0]]
        raise InputError(
            f"node {node_id} depends on itself.",
            where=raw.source,
            fix="genie trace check --fix drops it if safe.",
        )
    offsets = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=count)))).astype(np.int64)
    return offsets, deps.astype(np.int64)


def write_trace(path: Path | str, trace: RankTrace, *, version: str = "0.0.4") -> None:
    """Write a trace that ASTRA-sim reads as it is; dependencies become data_deps.

    Raises:
        InputError: a duration that is no whole number of microseconds (Chakra cannot say it).
    """
    Path(path).write_bytes(pack(_payloads(trace, version)))


def write_raw(path: Path | str, raw: RawTrace) -> None:
    """Write a raw trace back, keeping its order and both kinds of dependencies."""
    payloads = [GlobalMetadata(version=raw.version).SerializeToString()]
    for row in range(len(raw.nodes)):
        node = _message(raw.nodes, row, -1, raw.source)
        node.data_deps.extend(raw.data_ids[raw.data_offsets[row] : raw.data_offsets[row + 1]].tolist())
        node.ctrl_deps.extend(raw.ctrl_ids[raw.ctrl_offsets[row] : raw.ctrl_offsets[row + 1]].tolist())
        payloads.append(node.SerializeToString())
    Path(path).write_bytes(pack(payloads))


def _payloads(trace: RankTrace, version: str) -> Iterator[bytes]:
    yield GlobalMetadata(version=version).SerializeToString()
    ids = trace.nodes.node_id
    for row in range(len(trace.nodes)):
        node = _message(trace.nodes, row, trace.rank, trace.source)
        deps = trace.deps[trace.dep_offsets[row] : trace.dep_offsets[row + 1]]
        node.data_deps.extend(ids[deps].tolist())
        yield node.SerializeToString()


def _message(nodes: Nodes, row: int, rank: int, source: str) -> Any:
    duration_ns = int(nodes.duration_ns[row])
    if duration_ns % NS_PER_US:
        raise InputError(
            f"{duration_ns} ns is no whole number of microseconds.",
            where=f"{source or rank}: node {nodes.node_id[row]}",
            fix="round the duration; Chakra stores microseconds.",
        )
    node = Node(id=int(nodes.node_id[row]), name=nodes.name[row], type=int(nodes.kind[row]))
    node.duration_micros = int(ns_to_us(duration_ns))
    node.attr.extend(_attributes(nodes, row, rank))
    return node


def _attributes(nodes: Nodes, row: int, rank: int) -> Iterator[Any]:
    kind = int(nodes.kind[row])
    yield AttributeProto(name="is_cpu_op", bool_val=bool(nodes.is_cpu[row]))
    for name, column in (
        ("tensor_size", nodes.tensor_bytes),
        ("num_ops", nodes.num_ops),
        ("comm_size", nodes.size_bytes),
    ):
        if column[row] != NONE:
            yield AttributeProto(name=name, int64_val=int(column[row]))
    if kind in {NodeKind.SEND, NodeKind.RECV}:
        yield from _ends(nodes, row, rank, send=kind == NodeKind.SEND)
    elif kind == NodeKind.COLLECTIVE:
        yield from _collective_attributes(nodes, row)


def _ends(nodes: Nodes, row: int, rank: int, *, send: bool) -> Iterator[Any]:
    far, near = ("comm_dst", "comm_src") if send else ("comm_src", "comm_dst")
    if nodes.peer[row] != NONE:
        yield AttributeProto(name=far, int32_val=int(nodes.peer[row]))
    if rank >= 0:
        yield AttributeProto(name=near, int32_val=rank)
    if nodes.tag[row] != NONE:
        yield AttributeProto(name="comm_tag", int32_val=int(nodes.tag[row]))


def _collective_attributes(nodes: Nodes, row: int) -> Iterator[Any]:
    if nodes.comm_type[row] != NONE:
        yield AttributeProto(name="comm_type", int64_val=int(nodes.comm_type[row]))
    if nodes.group[row]:
        yield AttributeProto(name="pg_name", string_val=nodes.group[row])
    if nodes.priority[row]:
        yield AttributeProto(name="comm_priority", uint32_val=int(nodes.priority[row]))
    if nodes.root[row]:
        yield AttributeProto(name="root_rank", int64_val=int(nodes.root[row]))
    if nodes.involved_dims[row] != ALL_DIMENSIONS:
        attribute = AttributeProto(name="involved_dim")
        mask = int(nodes.involved_dims[row])
        attribute.bool_list.values.extend(bool(mask >> k & 1) for k in range(max(mask.bit_length(), 1)))
        yield attribute
