"""The outer layer of a trace file: frames of a varint length and that many bytes, read strictly."""

from __future__ import annotations

import gzip
import io
import stat
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from genie.errors import InputError
from genie.formats.wire import PAD_BYTES, varint_at

GZIP_MAGIC: Final = b"\x1f\x8b"
MAX_FILE_BYTES: Final = 2 << 30
"""More than this, packed or unpacked, is refused before memory is taken: some 30 million nodes."""

MAX_GZIP_RATIO: Final = 250
"""Traces pack to a tenth or so; what unpacks to more than this many times its size would only take memory."""

_PIECE_BYTES: Final = 1 << 22
_AGAIN: Final = "copy or generate the file again."


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """A trace file in memory, and where its frames are.

    Attributes:
        source: the file.
        data: its bytes, unpacked, and PAD_BYTES zeros.
        offset: first byte of each frame, its length included.
        start, stop: first byte of each frame's content, and the byte after it.
    """

    source: Path
    data: bytearray
    offset: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offset)

    def content(self, frame: int) -> bytes:
        """One frame's content."""
        return bytes(self.data[self.start[frame] : self.stop[frame]])

    def where(self, frame: int) -> str:
        """A frame's place, for messages; offsets of a gzip file count unpacked bytes."""
        return f"{self.source}, frame {frame}, byte {self.offset[frame]}"


def read_frames(path: Path | str) -> Frames:
    """Read a trace file, unpacked if it is gzip, and find its frames. Opens for reading only.

    Raises:
        InputError: missing, unreadable, no regular file, empty, too large, a damaged gzip stream, a length that does
            not end or is larger than the rest of the file; names frame and byte offset.
    """
    path = Path(path)
    data = _read(path)
    if data.startswith(GZIP_MAGIC):
        data = _unpack(data, path)
    if not data:
        raise InputError("the file is empty.", where=str(path), fix="generate the trace again.")
    end = len(data)
    data += bytes(PAD_BYTES)
    bounds = _bounds(data, end, path)
    return Frames(path, data, *(np.array(column, np.int64) for column in bounds))


def _read(path: Path) -> bytearray:
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise InputError("is no regular file.", where=str(path), fix="name a trace file.")
        if about.st_size > MAX_FILE_BYTES:
            what = f"the file is larger than {MAX_FILE_BYTES >> 30} GiB."
            raise InputError(what, where=str(path), fix="record fewer iterations.")
        data = bytearray(about.st_size)
        with path.open("rb") as stream:
            del data[stream.readinto(data) :]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}.", where=str(path), fix="check the path.") from error
    return data


def _unpack(data: bytearray, path: Path) -> bytearray:
    limit = min(MAX_FILE_BYTES, _PIECE_BYTES + MAX_GZIP_RATIO * len(data))
    unpacked = bytearray()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            while piece := stream.read(_PIECE_BYTES):
                unpacked += piece
                if len(unpacked) > limit:
                    what = f"{len(data)} bytes of gzip unpack to more than {limit}: no trace does."
                    raise InputError(what, where=str(path), fix="gunzip the file first if it is to be trusted.")
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"the gzip stream is damaged: {error}.", where=str(path), fix=_AGAIN) from error
    return unpacked


def _bounds(data: bytearray, end: int, path: Path) -> tuple[list[int], list[int], list[int]]:
    """Offset, start and stop of every frame in the first `end` bytes; the zeros behind them end any number."""
    offsets: list[int] = []
    starts: list[int] = []
    stops: list[int] = []
    at = 0
    while at < end:
        offsets.append(at)
        length = data[at]
        at += 1
        if length & 0x80:
            second = data[at]
            at += 1
            length = length & 0x7F | second << 7
            if second & 0x80:
                length, at = varint_at(data, offsets[-1], end)
        starts.append(at)
        at += length
        if at > end:
            raise _cut_off(offsets, starts, end, path)
        stops.append(at)
    return offsets, starts, stops


def _cut_off(offsets: list[int], starts: list[int], end: int, path: Path) -> InputError:
    number, left = len(starts) - 1, end - starts[-1]
    what = "its length does not end" if left < 0 else f"it is longer than the {left} bytes that are left"
    return InputError(
        f"frame {number} is cut off or damaged: {what}.",
        where=f"{path}, frame {number}, byte {offsets[-1]}",
        fix=f"the file is truncated or no Chakra trace: {_AGAIN}",
    )


def pack(payloads: Iterable[bytes]) -> bytes:
    """Frames of the payloads, one after another."""
    return b"".join(piece for payload in payloads for piece in (varint(len(payload)), payload))


def varint(value: int) -> bytes:
    """Protobuf's base-128 encoding of a number from 0 on."""
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
