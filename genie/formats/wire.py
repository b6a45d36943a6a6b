"""Protobuf's wire format, decoded for many messages at once.

One Python object a field would make a million nodes a matter of half a minute. Here all messages advance together, one
field a step, in numpy; the last few stragglers, and small files, are walked one by one. Source of the format:
https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from genie.core.columns import Columns
from genie.errors import InputError

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
Numbers = NDArray[np.uint64]
Fail = Callable[[int], InputError]
"""Makes the error for a damaged message, given its position."""

PAD_BYTES: Final = 32
"""Zeros that must follow the data in a buffer: a number that runs out of the data ends there."""

FEW: Final = 48
"""So many messages, or fewer, are quicker one by one."""

MAX_VARINT_BYTES: Final = 10
_FAR: Final = 1 << 62


class Wire(IntEnum):
    """Wire types that Chakra can hold; groups (3, 4) it never had."""

    VARINT = 0
    FIXED64 = 1
    LENGTH = 2
    FIXED32 = 5


_KNOWN_WIRES: Final = np.isin(np.arange(8), list(Wire))
_FIXED_BYTES: Final = {Wire.FIXED64: 8, Wire.FIXED32: 4}


@dataclass(frozen=True, slots=True, eq=False)
class Fields(Columns):
    """Fields of many messages, one row each; those of one message are in their order.

    Attributes:
        message: position of the message.
        number: field number.
        wire: a Wire.
        value: what a VARINT or FIXED field holds, as unsigned bits; the length of a LENGTH field.
        start, stop: where in the buffer a LENGTH field's content is.
    """

    SCHEMA: ClassVar[dict[str, Any]] = {
        "message": np.int64,
        "number": np.int64,
        "wire": np.int8,
        "value": np.uint64,
        "start": np.int64,
        "stop": np.int64,
    }

    message: Places
    number: Places
    wire: NDArray[np.int8]
    value: Numbers
    start: Places
    stop: Places

    def numbered(self, number: int) -> Fields:
        """The fields of one number."""
        return self.take(np.flatnonzero(self.number == number))


def varints(buffer: Bytes, at: Places) -> tuple[Numbers, Places]:
    """The numbers that start at those places, and the places after them (far away when a number does not end)."""
    byte = buffer[at]
    value = (byte & 0x7F).astype(np.uint64)
    after = at + 1
    more = np.flatnonzero(byte >= 0x80)  # noqa: PLR2004 - the continuation bit
    for count in range(1, MAX_VARINT_BYTES + 1):
        if not len(more):
            break
        if count == MAX_VARINT_BYTES:
            after[more] = _FAR
            break
        byte = buffer[after[more]]
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * count)
        after[more] += 1
        more = more[byte >= 0x80]  # noqa: PLR2004
    return value, after


def scan(buffer: Bytes, start: Places, stop: Places, fail: Fail) -> Fields:
    """All fields of the messages at `start` to `stop`.

    Args:
        buffer: the data and PAD_BYTES zeros.
        start: first byte of each message.
        stop: the byte after each message.
        fail: makes the error for a message that is damaged.

    Raises:
        InputError: what `fail` made.
    """
    at = start.copy()
    active = np.flatnonzero(at < stop)
    parts = []
    while len(active) > FEW:
        parts.append(_step(buffer, active, at, stop, fail))
        active = active[at[active] < stop[active]]
    data = memoryview(buffer.data)
    for message in active.tolist():
        rows = list(_walk(data, message, int(at[message]), int(stop[message]), fail))
        parts.append(Fields.from_rows(rows))
    return Fields.concat(parts)


def _step(buffer: Bytes, active: Places, at: Places, stop: Places, fail: Fail) -> Fields:
    """The next field of every active message; moves `at` on."""
    tag, here = varints(buffer, at[active])
    limit = stop[active]
    number, wire = (tag >> np.uint64(3)).astype(np.int64), (tag & np.uint64(7)).astype(np.int8)
    _refuse((here >= limit) | (number < 1) | ~_KNOWN_WIRES[wire], active, fail)
    value, after = varints(buffer, here)
    for kind, size in _FIXED_BYTES.items():
        rows = np.flatnonzero(wire == kind)
        value[rows], after[rows] = _fixed(buffer, here[rows], size), here[rows] + size
    _refuse(after > limit, active, fail)
    begin = after
    framed = np.flatnonzero(wire == Wire.LENGTH)
    _refuse(value[framed] > (limit - after)[framed].astype(np.uint64), active[framed], fail)
    after = after.copy()
    after[framed] += value[framed].astype(np.int64)
    at[active] = after
    return Fields(active, number, wire, value, begin, after)


def _refuse(bad: NDArray[np.bool_], messages: Places, fail: Fail) -> None:
    if bad.any():
        raise fail(int(messages[np.flatnonzero(bad)[0]]))


def _fixed(buffer: Bytes, at: Places, size: int) -> Numbers:
    value = np.zeros(len(at), np.uint64)
    for k in range(size):
        value |= buffer[np.minimum(at + k, len(buffer) - 1)].astype(np.uint64) << np.uint64(8 * k)
    return value


def _walk(data: memoryview, message: int, at: int, stop: int, fail: Fail) -> Iterator[tuple[int, ...]]:
    """The same as repeated `_step`, for one message."""
    while at < stop:
        tag, at = varint_at(data, at, stop)
        number, wire = tag >> 3, tag & 7
        if at >= stop or not number or not _KNOWN_WIRES[wire]:
            raise fail(message)
        if wire in _FIXED_BYTES:
            size = _FIXED_BYTES[Wire(wire)]
            value, begin = int.from_bytes(data[at : at + size], "little"), at + size
        else:
            value, begin = varint_at(data, at, stop)
        at = begin + value if wire == Wire.LENGTH else begin
        if at > stop or begin > stop:
            raise fail(message)
        yield message, number, wire, value, begin, at


def varint_at(data: memoryview | bytearray | bytes, at: int, stop: int) -> tuple[int, int]:
    """The number at a place and the place after it (far away when it does not end before `stop`)."""
    value = 0
    for count in range(min(MAX_VARINT_BYTES, stop - at)):
        byte = data[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:  # noqa: PLR2004 - the continuation bit
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + count + 1
    return 0, _FAR


def repeated(buffer: Bytes, fields: Fields, messages: int, fail: Fail) -> tuple[Places, Numbers]:
    """A repeated number's values by message, packed or not: CSR offsets (messages + 1) and values.

    Raises:
        InputError: what `fail` made, for a packed field that ends within a number.
    """
    fields = fields.take(np.argsort(fields.message, kind="stable"))
    single = fields.wire == Wire.VARINT
    counts, values = _packed(buffer, fields, single, fail)
    offsets = np.zeros(messages + 1, np.int64)
    np.cumsum(np.bincount(fields.message, counts, messages).astype(np.int64), out=offsets[1:])
    return offsets, values


def _packed(buffer: Bytes, fields: Fields, single: NDArray[np.bool_], fail: Fail) -> tuple[Places, Numbers]:
    """How many numbers each field holds, and all of them one after another."""
    length = np.where(single, 1, fields.stop - fields.start)
    ends = np.cumsum(length)
    place = np.arange(ends[-1] if len(ends) else 0) + np.repeat(fields.start - (ends - length), length)
    data = buffer[place]
    data[(ends - 1)[single]] = 0  # stands in for a number that is known already
    last = data < 0x80  # noqa: PLR2004 - the continuation bit
    held = np.flatnonzero(length > 0)
    _refuse(~last[ends[held] - 1], fields.message[held], fail)
    finish = np.flatnonzero(last)
    begin = np.concatenate(([0], finish[:-1] + 1))[: len(finish)]
    width = finish - begin + 1
    seen = np.concatenate(([0], np.cumsum(last)))
    counts = seen[ends] - seen[ends - length]
    _refuse(width > MAX_VARINT_BYTES, np.repeat(fields.message, counts), fail)
    values = np.zeros(len(finish), np.uint64)
    for k in range(int(width.max(initial=0))):
        rows = np.flatnonzero(width > k)
        values[rows] |= (data[begin[rows] + k] & 0x7F).astype(np.uint64) << np.uint64(7 * k)
    values[(np.cumsum(counts) - 1)[single]] = fields.value[single]
    return counts, values
