"""Attributes of Chakra nodes -> columns, strictly by type. What each attribute means: docs/formats.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from genie.core.workload import ALL_DIMENSIONS, NONE
from genie.errors import InputError
from genie.formats.chakra_schema import INTEGER_LISTS, SCALARS, AttributeProto
from genie.formats.wire import Bytes, Fields, Places, Wire, scan

MAX_INT64: Final = (1 << 63) - 1
MAX_DIMENSIONS: Final = 62

INTEGERS: Final = {
    "comm_size": ("size_bytes", NONE),
    "tensor_size": ("tensor_bytes", NONE),
    "num_ops": ("num_ops", NONE),
    "comm_type": ("comm_type", NONE),
    "comm_src": ("comm_src", NONE),
    "comm_dst": ("comm_dst", NONE),
    "comm_tag": ("tag", NONE),
    "comm_priority": ("priority", 0),
    "is_cpu_op": ("is_cpu", 0),
    "comm_root": ("root", 0),
    "root_rank": ("root", 0),
}
"""Integer attributes that are read: the column that each fills, and what stands there without it."""

_KIND_NAMES: Final = {number + k: name + ["_val", "_list"][k] for name, number, _ in SCALARS for k in (0, 1)}
_NUMBERS: Final = {name: number for number, name in _KIND_NAMES.items()}
_WIRES: Final = {
    **dict.fromkeys(("double", "fixed64", "sfixed64"), Wire.FIXED64),
    **dict.fromkeys(("float", "fixed32", "sfixed32"), Wire.FIXED32),
    **dict.fromkeys(("string", "bytes"), Wire.LENGTH),
}
_WIRE_OF: Final = np.full(64, -1, np.int8)
_DOC: Final = 2
_WIRE_OF[1 : _DOC + 1] = Wire.LENGTH  # name and doc_string
for _name, _number, _ in SCALARS:
    _WIRE_OF[_number : _number + 2] = _WIRES.get(_name, Wire.VARINT), Wire.LENGTH


def _low(bits: NDArray[np.uint64]) -> NDArray[np.uint32]:
    return (bits & np.uint64(0xFFFF_FFFF)).astype(np.uint32)


def _zigzag(bits: NDArray[np.uint64]) -> NDArray[np.int64]:
    half: NDArray[np.int64] = (bits >> np.uint64(1)).view(np.int64)
    return half ^ -(bits & np.uint64(1)).view(np.int64)


_TO_INTEGER: Final[dict[str, Callable[[NDArray[np.uint64]], NDArray[Any]]]] = {
    "int32_val": lambda bits: _low(bits).view(np.int32),
    "int64_val": lambda bits: bits.view(np.int64),
    "uint32_val": _low,
    "uint64_val": lambda bits: bits.view(np.int64),
    "sint32_val": lambda bits: _zigzag(_low(bits).astype(np.uint64)),
    "sint64_val": _zigzag,
    "fixed32_val": _low,
    "fixed64_val": lambda bits: bits.view(np.int64),
    "sfixed32_val": lambda bits: _low(bits).view(np.int32),
    "sfixed64_val": lambda bits: bits.view(np.int64),
    "bool_val": lambda bits: bits != 0,
}
"""Every integer kind as int64; unsigned numbers of 2**63 or more come out negative, and are refused as such."""


@dataclass(frozen=True, slots=True, eq=False)
class Attributes:
    """All attributes of a block of nodes, one row each.

    Attributes:
        buffer: the file's bytes.
        node: which node has it.
        begin, end: the whole attribute in the buffer.
        name_start, name_stop: its name in the buffer.
        kind: field number of its value; 0 when none is set.
        bits: a number's bits.
        start, stop: where a text, list or bytes value is.
    """

    buffer: Bytes
    node: Places
    begin: Places
    end: Places
    name_start: Places
    name_stop: Places
    kind: Places
    bits: NDArray[np.uint64]
    start: Places
    stop: Places

    def named(self, name: str) -> Places:
        """Rows of the attributes of that name that have a value."""
        rows = np.flatnonzero((self.name_stop - self.name_start == len(name)) & (self.kind != 0))
        for k, letter in enumerate(name.encode()):
            rows = rows[self.buffer[self.name_start[rows] + k] == letter]
        return rows

    def texts(self, rows: Places) -> list[str]:
        """Text values."""
        data, known = memoryview(self.buffer.data), dict[bytes, str]()
        pieces = [data[a:b].tobytes() for a, b in zip(self.start[rows].tolist(), self.stop[rows].tolist(), strict=True)]
        return [known.get(piece) or known.setdefault(piece, piece.decode()) for piece in pieces]


NodeError = Callable[[int, str, str], InputError]
"""Makes the error for a node, from its position, what is wrong and the remedy."""

_DAMAGED: Final = "an attribute cannot be decoded."
_AGAIN: Final = "the file is damaged: copy or generate it again."


def find(buffer: Bytes, fields: Fields, error: NodeError) -> Attributes:
    """Look into the attribute fields of nodes.

    Raises:
        InputError: an attribute that cannot be decoded.
    """

    def fail(row: int) -> InputError:
        return error(int(fields.message[row]), _DAMAGED, _AGAIN)

    inner = scan(buffer, fields.start, fields.stop, fail)
    wrong = np.flatnonzero((inner.number >= len(_WIRE_OF)) | (_WIRE_OF[inner.number & 63] != inner.wire))
    if len(wrong):
        raise fail(int(inner.message[wrong[0]]))
    _check_texts(
        buffer, inner.take(np.flatnonzero((inner.number <= _DOC) | (inner.number == _NUMBERS["string_val"]))), fail
    )
    names, values = inner.numbered(1), inner.take(np.flatnonzero(inner.number >= SCALARS[0][1]))
    count = len(fields)
    return Attributes(
        buffer=buffer,
        node=fields.message,
        begin=fields.start,
        end=fields.stop,
        name_start=_spread(names.start, names.message, count),
        name_stop=_spread(names.stop, names.message, count),
        kind=_spread(values.number, values.message, count),
        bits=_spread(values.value, values.message, count),
        start=_spread(values.start, values.message, count),
        stop=_spread(values.stop, values.message, count),
    )


def _check_texts(buffer: Bytes, texts: Fields, fail: Callable[[int], InputError]) -> None:
    """Refuse texts that are no UTF-8: a damaged name would otherwise pass for an attribute that nobody reads."""
    low, high = texts.start.min(initial=len(buffer)), texts.stop.max(initial=0)
    beyond_ascii = np.flatnonzero(buffer[low:high] >= 0x80) + low  # noqa: PLR2004 - the first byte value that is no ASCII
    doubtful = np.searchsorted(beyond_ascii, texts.start) != np.searchsorted(beyond_ascii, texts.stop)
    for row in np.flatnonzero(doubtful).tolist():
        try:
            bytes(buffer[texts.start[row] : texts.stop[row]]).decode()
        except UnicodeDecodeError as wrong:
            raise fail(int(texts.message[row])) from wrong


def _spread(column: NDArray[Any], rows: Places, count: int) -> NDArray[Any]:
    """`column` put at `rows` of zeros; the last of several counts, as in protobuf."""
    out = np.zeros(count, column.dtype)
    out[rows] = column
    return out


def read_integers(attributes: Attributes, nodes: int, error: NodeError) -> dict[str, NDArray[np.int64]]:
    """The columns of INTEGERS.

    Raises:
        InputError: a value of another type, below zero or of 2**63 and more, or two different values.
    """
    columns: dict[str, NDArray[np.int64]] = {}
    for name, (column, default) in INTEGERS.items():
        values = columns.setdefault(column, np.full(nodes, default, np.int64))
        rows = attributes.named(name)
        if len(rows):
            read = _integers(attributes, name, rows, error)
            owner = attributes.node[rows]
            values[owner] = read
            _refuse_repeats(values[owner] != read, owner, name, error)
    return columns


def _refuse_repeats(differ: NDArray[np.bool_], owner: Places, name: str, error: NodeError) -> None:
    at = np.flatnonzero(differ)
    if len(at):
        raise error(int(owner[at[0]]), f"{name} is given twice, with different values.", "keep one of them.")


def _integers(attributes: Attributes, name: str, rows: Places, error: NodeError) -> NDArray[np.int64]:
    kinds, bits = attributes.kind[rows], attributes.bits[rows]
    values = np.zeros(len(rows), np.int64)
    for kind in np.flatnonzero(np.bincount(kinds)).tolist():
        at = np.flatnonzero(kinds == kind)
        convert = _TO_INTEGER.get(_KIND_NAMES[kind])
        if convert is None:
            raise error(
                int(attributes.node[rows[at[0]]]),
                f"{name} is a {_KIND_NAMES[kind].replace('_val', '').replace('_', ' ')}, an integer is needed.",
                "write it as int64 (ASTRA-sim throws bad_cast on it, too).",
            )
        values[at] = convert(bits[at])
    low = np.flatnonzero(values < 0)
    if len(low):
        value = int(values[low[0]])
        unsigned = _KIND_NAMES[int(kinds[low[0]])] in {"uint64_val", "fixed64_val"}
        shown = value + (1 << 64) if unsigned else value
        node = int(attributes.node[rows[low[0]]])
        raise error(node, f"{name} = {shown} is out of range.", "it can be 0 to 2^63 - 1; leave out what is unknown.")
    return values


def read_groups(attributes: Attributes, nodes: int, error: NodeError) -> NDArray[np.object_]:
    """pg_name as text, "" without one.

    Raises:
        InputError: neither text nor an integer, or two different ones.
    """
    groups = np.full(nodes, "", object)
    rows = attributes.named("pg_name")
    text = attributes.kind[rows] == _NUMBERS["string_val"]
    read = np.empty(len(rows), object)
    read[~text] = [str(value) for value in _integers(attributes, "pg_name", rows[~text], error).tolist()]
    read[text] = attributes.texts(rows[text])
    owner = attributes.node[rows]
    groups[owner] = read
    _refuse_repeats(groups[owner] != read, owner, "pg_name", error)
    return groups


def read_dimensions(attributes: Attributes, nodes: int, error: NodeError) -> NDArray[np.int64]:
    """involved_dim as bit masks, ALL_DIMENSIONS without one.

    Raises:
        InputError: no list of truth values, or two different ones.
    """
    masks = np.full(nodes, ALL_DIMENSIONS, np.int64)
    rows = attributes.named("involved_dim")
    known: dict[bytes, int] = {}
    read = np.zeros(len(rows), np.int64)
    for at, row in enumerate(rows.tolist()):
        data = bytes(attributes.buffer[attributes.begin[row] : attributes.end[row]])
        if data not in known:
            known[data] = _mask(data, int(attributes.node[row]), error)
        read[at] = known[data]
    owner = attributes.node[rows]
    masks[owner] = read
    _refuse_repeats(masks[owner] != read, owner, "involved_dim", error)
    return masks


def _mask(data: bytes, node: int, error: NodeError) -> int:
    try:
        attribute = AttributeProto.FromString(data)
    except DecodeError as wrong:
        raise error(node, _DAMAGED, _AGAIN) from wrong
    kind = attribute.WhichOneof("value")
    if kind not in INTEGER_LISTS or len(getattr(attribute, kind).values) > MAX_DIMENSIONS:
        raise error(node, f"involved_dim is no list of at most {MAX_DIMENSIONS} bools.", "write it as bool_list.")
    return sum(1 << at for at, involved in enumerate(getattr(attribute, kind).values) if involved)
