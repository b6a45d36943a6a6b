"""The outer layer of a trace file: frames of a varint length and that many bytes, read strictly."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from genie.errors import InputError

GZIP_MAGIC: Final = b"\x1f\x8b"
MAX_FILE_BYTES: Final = 8 << 30
"""More than this is refused before memory is taken for it."""

MAX_VARINT_BYTES: Final = 10
_PIECE_BYTES: Final = 1 << 24


def read_file(path: Path) -> bytes:
    """The file's bytes, unpacked if it is gzip.

    Raises:
        InputError: missing, unreadable, too large, or a damaged gzip stream.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"the file is larger than {MAX_FILE_BYTES >> 30} GiB.", where=str(path))
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    return _unpack(data, path) if data.startswith(GZIP_MAGIC) else data


def _unpack(data: bytes, path: Path) -> bytes:
    pieces, total = [], 0
    try:
        import io  # noqa: PLC0415 - only for the rare gzip trace

        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            while piece := stream.read(_PIECE_BYTES):
                pieces.append(piece)
                total += len(piece)
                if total > MAX_FILE_BYTES:
                    raise InputError(f"unpacks to more than {MAX_FILE_BYTES >> 30} GiB.", where=str(path))
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"the gzip stream is damaged: {error}.", where=str(path)) from error
    return b"".join(pieces)


def frames(data: bytes, path: Path) -> Iterator[tuple[int, bytes]]:
    """(byte offset, payload) of every frame.

    Raises:
        InputError: a truncated or overlong length, a frame that reaches past the end; names frame and byte offset.
    """
    at, number, end = 0, 0, len(data)
    while at < end:
        start, length = at, data[at]
        at += 1
        if length & 0x80:
            length, at = _long_varint(data, start, number, path)
        if at + length > end:
            raise InputError(
                f"frame {number} claims {length} bytes, only {end - at} are left.",
                where=f"{path}, byte {start}",
                fix="the file is truncated or no Chakra trace: copy or generate it again.",
            )
        yield start, data[at : at + length]
        at += length
        number += 1


def _long_varint(data: bytes, start: int, number: int, path: Path) -> tuple[int, int]:
    value = 0
    for count in range(MAX_VARINT_BYTES):
        if start + count >= len(data):
            raise InputError(f"the file ends within the length of frame {number}.", where=f"{path}, byte {start}")
        byte = data[start + count]
        value |= (byte & 0x7F) << (7 * count)
        if not byte & 0x80:
            return value, start + count + 1
    raise InputError(f"the length of frame {number} is no varint.", where=f"{path}, byte {start}")


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
