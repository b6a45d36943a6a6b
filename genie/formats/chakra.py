"""Chakra execution traces: the strict reader. What is accepted and what is refused: docs/formats.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from genie.core.workload import NONE, CollectiveKind, NodeKind, Nodes, RankTrace
from genie.errors import InputError
from genie.formats import attributes as attrs
from genie.formats.frames import Frames, read_frames
from genie.formats.wire import Fields, Places, Wire, repeated, scan
from genie.units import NS_PER_US, us_to_ns

_BLOCK_NODES: Final = 1 << 17
"""Nodes decoded together: bounds what is held besides the result."""

_WIRES: Final = {
    1: {Wire.VARINT},
    2: {Wire.LENGTH},
    3: {Wire.VARINT},
    4: {Wire.VARINT, Wire.LENGTH},
    5: {Wire.VARINT, Wire.LENGTH},
    7: {Wire.VARINT},
    10: {Wire.LENGTH},
}
"""Wire types of Node's fields: id, name, type, ctrl_deps, data_deps, duration_micros, attr."""

_AGAIN: Final = "the file is damaged: copy or generate it again."


@dataclass(frozen=True, slots=True, eq=False)
class RawTrace:
    """A trace as its file has it: nodes in file order, dependencies as ids, nothing resolved.

    Attributes:
        source: the file.
        version: the metadata's version, "" when it names none.
        nodes: in file order.
        data_offsets, data_ids: CSR of data_deps, as ids.
        ctrl_offsets, ctrl_ids: CSR of ctrl_deps, as ids.
        own_rank: what a SEND says in comm_src and a RECV in comm_dst, NONE when absent: the rank it was written for.
        frames: each node's frame number in the file; 0 is the metadata.
        offsets: byte offset of each node's frame; NONE when the trace came from no file.
    """

    source: str
    version: str
    nodes: Nodes
    data_offsets: NDArray[np.int64]
    data_ids: NDArray[np.uint64]
    ctrl_offsets: NDArray[np.int64]
    ctrl_ids: NDArray[np.uint64]
    own_rank: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    frames: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    offsets: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def __post_init__(self) -> None:
        # A trace that was made, not read, need not say where its nodes were.
        count = len(self.nodes)
        for name, column in (
            ("own_rank", np.full(count, NONE)),
            ("frames", np.arange(1, count + 1)),
            ("offsets", np.full(count, NONE)),
        ):
            if len(getattr(self, name)) != count:
                object.__setattr__(self, name, column)


class NodeError(InputError):
    """A node that cannot be read.

    Attributes:
        frame: its number in the file.
        node_id, name: if they can be told, else None and "".
    """

    def __init__(self, error: InputError, frame: int, node_id: int | None = None, name: str = "") -> None:
        super().__init__(error.what, where=error.where, fix=error.fix)
        self.frame, self.node_id, self.name = frame, node_id, name


def read_raw(path: Path | str) -> RawTrace:
    """Read a trace without resolving its dependencies.

    Raises:
        InputError: damaged, of an unknown schema, or an attribute of the wrong type; names file, frame and byte.
    """
    frames = read_frames(path)
    version = version_of(frames)
    count = len(frames) - 1
    if not count:
        raise InputError("the trace has no nodes.", where=str(path), fix="generate the trace again.")
    parts = [decode_nodes(frames, at, min(at + _BLOCK_NODES, count)) for at in range(0, count, _BLOCK_NODES)]
    data, ctrl = (join_csr([getattr(part, name) for part in parts]) for name in ("data", "ctrl"))
    return RawTrace(
        source=str(path),
        version=version,
        nodes=Nodes.concat([part.nodes for part in parts]),
        data_offsets=data[0],
        data_ids=data[1],
        ctrl_offsets=ctrl[0],
        ctrl_ids=ctrl[1],
        own_rank=np.concatenate([part.own_rank for part in parts]),
        frames=np.arange(1, count + 1),
        offsets=frames.offset[1:],
    )


def version_of(frames: Frames) -> str:
    """The first frame's version; an empty frame is an empty metadata message.

    Checked by wire type, since protobuf itself takes a node for metadata with unknown fields.
    """

    def fail(_: int) -> InputError:
        return InputError(
            "the first frame is no metadata.",
            where=frames.where(0),
            fix="a trace starts with a GlobalMetadata frame; files of 2023 have none: convert them again.",
        )

    if frames.start[0] == frames.stop[0]:
        return ""
    buffer = np.frombuffer(frames.data, np.uint8)
    fields = scan(buffer, frames.start[:1], frames.stop[:1], fail)
    if not (np.isin(fields.number, (1, 2)) & (fields.wire == Wire.LENGTH)).all():
        raise fail(0)
    versions = fields.numbered(1)
    try:
        return frames.data[versions.start[-1] : versions.stop[-1]].decode() if len(versions) else ""
    except UnicodeDecodeError as error:
        raise fail(0) from error


Csr = tuple[Places, NDArray[np.uint64]]


def join_csr(parts: list[Csr]) -> Csr:
    """Compressed sparse rows (offsets, ids) one after another."""
    counts = np.concatenate([np.diff(offsets) for offsets, _ in parts])
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64), np.concatenate([values for _, values in parts])


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some nodes, decoded.

    Attributes:
        nodes: in file order.
        data, ctrl: CSR of dependencies, as ids.
        own_rank: see RawTrace.
    """

    nodes: Nodes
    data: Csr
    ctrl: Csr
    own_rank: Places


def decode_nodes(frames: Frames, begin: int, end: int) -> Part:
    """The nodes `begin` to `end`, those of the frames one further on.

    Raises:
        InputError: as `read_raw`.
    """
    return _Block(frames, begin, end).read()


class _Block:
    """Decodes the nodes `begin` to `end` of a file."""

    def __init__(self, frames: Frames, begin: int, end: int) -> None:
        self.frames, self.begin, self.count = frames, begin, end - begin
        self.start, self.stop = frames.start[begin + 1 : end + 1], frames.stop[begin + 1 : end + 1]
        self.ids = np.zeros(self.count, np.uint64)

    def fail(self, node: int) -> InputError:
        """The error for a frame that is no node."""
        return self.frame_error(node, "the frame is no node.", _AGAIN)

    def frame_error(self, node: int, what: str, fix: str) -> NodeError:
        frame = self.begin + node + 1
        return NodeError(InputError(what, where=self.frames.where(frame), fix=fix), frame)

    def node_error(self, node: int, what: str, fix: str) -> InputError:
        """An error that names the node."""
        name, identity = self._name(node), int(self.ids[node])
        error = self.frame_error(node, f"node {identity}{f' ({name})' if name else ''}: {what}", fix)
        return NodeError(error, error.frame, identity, name)

    def _name(self, node: int) -> str:
        fields = scan(self.buffer, self.start[node : node + 1], self.stop[node : node + 1], self.fail).numbered(2)
        return bytes(self.buffer[fields.start[-1] : fields.stop[-1]]).decode(errors="replace") if len(fields) else ""

    @property
    def buffer(self) -> NDArray[np.uint8]:
        """The whole file."""
        return np.frombuffer(self.frames.data, np.uint8)

    def read(self) -> Part:
        """All columns of these nodes."""
        empty = np.flatnonzero(self.start == self.stop)
        if len(empty):
            raise self.frame_error(int(empty[0]), "an empty frame where a node is due.", _AGAIN)
        fields = scan(self.buffer, self.start, self.stop, self.fail)
        self._check(fields)
        self.ids = self._numbers(fields, 1)
        kind = self._kinds(fields)
        columns = self._attributes(fields.numbered(10))
        ends = _ends(kind, columns)
        columns |= {
            "node_id": self.ids,
            "kind": kind,
            "name": self._names(fields.numbered(2)),
            "duration_ns": self._durations(fields),
            "comm_type": self._comm_types(kind, columns["comm_type"]),
        }
        nodes = Nodes(**{name: (columns | ends)[name] for name in Nodes.SCHEMA})
        data, ctrl = (repeated(self.buffer, fields.numbered(number), self.count, self.fail) for number in (5, 4))
        return Part(nodes, data, ctrl, ends["own_rank"])

    def _check(self, fields: Fields) -> None:
        """Files of 2023, and fields of another wire type than Chakra's."""
        # 2023 had outputs, a text, in field 6 and attributes in field 11.
        old = np.flatnonzero((fields.number == 11) | ((fields.number == 6) & (fields.wire == Wire.LENGTH)))  # noqa: PLR2004
        if len(old):
            raise self.frame_error(
                int(fields.message[old[0]]),
                "the file uses Chakra's schema of 2023, whose fields mean something else today.",
                "convert the workload again with a current chakra_converter.",
            )
        for number, wires in _WIRES.items():
            wrong = np.flatnonzero((fields.number == number) & ~np.isin(fields.wire, list(wires)))
            if len(wrong):
                raise self.fail(int(fields.message[wrong[0]]))

    def _numbers(self, fields: Fields, number: int) -> NDArray[np.uint64]:
        chosen = fields.numbered(number)
        values = np.zeros(self.count, np.uint64)
        values[chosen.message] = chosen.value
        return values

    def _kinds(self, fields: Fields) -> NDArray[np.uint64]:
        kinds = self._numbers(fields, 3)
        self._refuse(kinds > max(NodeKind), kinds, "unknown type {}.", "update Genie, or take the node out.")
        return kinds

    def _durations(self, fields: Fields) -> NDArray[np.int64]:
        durations_us = self._numbers(fields, 7)
        too_long = durations_us > attrs.MAX_INT64 // NS_PER_US
        self._refuse(too_long, durations_us, "duration_micros = {} is out of range.", "it can be 292 years.")
        durations_ns: NDArray[np.int64] = us_to_ns(durations_us.astype(np.int64))
        return durations_ns

    def _comm_types(self, kind: NDArray[np.uint64], given: Places) -> Places:
        """Only collectives have one: some writers put the node type there on sends and receives."""
        types = np.where(kind == NodeKind.COLLECTIVE, given, NONE)
        self._refuse(types > max(CollectiveKind), types, "unknown comm_type {}.", "it can be 0 to 9.")
        return types

    def _refuse(self, bad: NDArray[np.bool_], values: NDArray[Any], what: str, fix: str) -> None:
        at = np.flatnonzero(bad)
        if len(at):
            raise self.node_error(int(at[0]), what.format(values[at[0]]), fix)

    def _names(self, fields: Fields) -> NDArray[np.object_]:
        data, names = self.frames.data, np.full(self.count, "", object)
        rows = zip(fields.message.tolist(), fields.start.tolist(), fields.stop.tolist(), strict=True)
        node = 0
        try:
            for node, start, stop in rows:
                names[node] = data[start:stop].decode()
        except UnicodeDecodeError as error:
            raise self.fail(node) from error
        return names

    def _attributes(self, fields: Fields) -> dict[str, Any]:
        found = attrs.find(self.buffer, fields, self.node_error)
        return {
            **attrs.read_integers(found, self.count, self.node_error),
            "group": attrs.read_groups(found, self.count, self.node_error),
            "involved_dims": attrs.read_dimensions(found, self.count, self.node_error),
        }


def _ends(kind: NDArray[np.uint64], columns: dict[str, Any]) -> dict[str, Places]:
    """Peer, own rank and tag of sends and receives; NONE elsewhere."""
    send, receive = kind == NodeKind.SEND, kind == NodeKind.RECV
    source, destination = columns["comm_src"], columns["comm_dst"]
    return {
        "peer": np.select([send, receive], [destination, source], NONE),
        "own_rank": np.select([send, receive], [source, destination], NONE),
        "tag": np.where(send | receive, columns["tag"], NONE),
    }


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
    in_order = bool((ids[1:] > ids[:-1]).all())
    order = np.arange(len(ids)) if in_order else np.argsort(ids, kind="stable")
    ids_sorted = ids if in_order else ids[order]
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
    return RankTrace(rank, raw.nodes if in_order else raw.nodes.take(order), offsets, deps, raw.source)


def distinct_edges(rows: Places, deps: Places, count: int) -> tuple[Places, Places]:
    """(row, row depended on), in order and each once. Sorting beats hashing: edges are in order but for a few."""
    edges = np.sort(rows * count + deps, kind="stable")
    edges = edges[np.concatenate(([True], edges[1:] != edges[:-1]))[: len(edges)]]
    return edges // count, edges % count


def _owners(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))


def _resolved(
    raw: RawTrace, order: NDArray[np.int64], owner: NDArray[np.int64], found: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """CSR of sorted rows: (offsets, rows depended on), ascending and without repeats."""
    count = len(order)
    row_of = np.empty(count, np.int64)
    row_of[order] = np.arange(count)
    rows, deps = distinct_edges(row_of[owner], found, count)
    if (rows == deps).any():
        node_id = raw.nodes.node_id[order][rows[rows == deps][0]]
        raise InputError(
            f"node {node_id} depends on itself.",
            where=raw.source,
            fix="genie trace check --fix drops it if safe.",
        )
    offsets = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=count)))).astype(np.int64)
    return offsets, deps.astype(np.int64)
