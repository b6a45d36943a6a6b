"""Capture files, pcap and pcapng: where each packet's bytes are in the file, when it was seen, how long it was.

Layouts: IETF drafts draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng. Nothing of a packet is copied.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from genie.errors import InputError
from genie.units import NS_PER_S, NS_PER_US

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

ETHERNET, RAW_IP, LINUX_COOKED, IPV4, IPV6, LINUX_COOKED_2 = 1, 101, 113, 228, 229, 276
_MICRO, _NANO, _SECTION = 0xA1B2C3D4, 0xA1B23C4D, 0x0A0D0D0A
_SECTION_MAGIC: Final = 0x1A2B3C4D
_INTERFACE, _SIMPLE, _ENHANCED = 1, 3, 6
_RESOLUTION_OPTION: Final = 9
_FILE_BYTES, _RECORD_BYTES = 24, 16
MAX_RECORD_BYTES: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Capture:
    """Packets of a capture file, in the file's order.

    Attributes:
        data: the file, with 64 zero bytes behind its end.
        at: where each packet begins in `data`.
        captured, original: its bytes in the file, and when it was on the wire.
        time_ns: when it was seen (real-time clock).
        link: link type of each (ETHERNET, RAW_IP, ...).
    """

    data: Bytes
    at: Numbers
    captured: Numbers
    original: Numbers
    time_ns: Numbers
    link: Numbers

    def __len__(self) -> int:
        return len(self.at)


class _Interface(NamedTuple):
    """What a pcapng interface says: link type, ticks a second, most bytes of a packet."""

    link: int
    ticks_per_s: int
    snap: int


def read_capture(path: Path | str) -> Capture:
    """Read a capture file; a last packet that is cut off by the file's end is left out.

    Raises:
        InputError: missing, no capture file, or broken.
    """
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, 2)
            words: bytes | mmap.mmap = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
            view = memoryview(words)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    if len(view) < _FILE_BYTES:
        raise InputError("too short for a capture file.", where=str(path))
    try:
        columns = _pcapng(view) if struct.unpack_from("<I", view)[0] == _SECTION else _pcap(view)
    except (struct.error, InputError) as error:
        what = error.what if isinstance(error, InputError) else "it breaks off in a block's header."
        raise InputError(what, where=str(path), fix="is it a pcap or pcapng file?") from error
    data = np.concatenate([np.frombuffer(view, np.uint8), np.zeros(64, np.uint8)])
    return Capture(data, *columns)


def _pcap(view: memoryview) -> Numbers:
    for order in "<>":
        magic = struct.unpack_from(order + "I", view)[0]
        if magic in {_MICRO, _NANO}:
            break
    else:
        raise InputError("it begins like no capture file.")
    unit_ns = NS_PER_US if magic == _MICRO else 1
    link = struct.unpack_from(order + "I", view, 20)[0] & 0xFFFF
    length_at, end, at = struct.Struct(order + "8xI").unpack_from, len(view), _FILE_BYTES
    places = []
    while at + _RECORD_BYTES <= end:
        (captured,) = length_at(view, at)
        if captured > MAX_RECORD_BYTES:
            raise InputError(f"a packet of {captured} bytes at byte {at}.")
        places.append(at)
        at += _RECORD_BYTES + captured
    if at > end:
        places.pop()
    begin = np.array(places, np.int64)
    seconds, fraction, captured, original = (_words(view, begin + field, order) for field in (0, 4, 8, 12))
    time_ns = seconds * NS_PER_S + fraction * unit_ns
    return np.stack([begin + _RECORD_BYTES, captured, original, time_ns, np.full(len(begin), link, np.int64)])


def _words(view: memoryview, at: Numbers, order: str) -> Numbers:
    """32-bit numbers at any places of a file."""
    overlapping = np.ndarray((max(0, len(view) - 3),), order + "u4", view, strides=(1,))
    return overlapping[at].astype(np.int64)


def _pcapng(view: memoryview) -> Numbers:
    rows: list[tuple[int, ...]] = []
    interfaces: list[_Interface] = []
    at, end, order = 0, len(view), "<"
    while at + 12 <= end:
        kind, length = struct.unpack_from(order + "II", view, at)
        if kind == _SECTION:
            order = "<" if struct.unpack_from("<I", view, at + 8)[0] == _SECTION_MAGIC else ">"
            if struct.unpack_from(order + "I", view, at + 8)[0] != _SECTION_MAGIC:
                raise InputError(f"the section at byte {at} has no byte order.")
            length, interfaces = struct.unpack_from(order + "I", view, at + 4)[0], []
        if length < 12 or length % 4 or length > MAX_RECORD_BYTES:  # noqa: PLR2004 - two lengths and a type
            raise InputError(f"a block of {length} bytes at byte {at}.")
        if at + length > end:
            break
        if kind == _INTERFACE:
            interfaces.append(_interface(view[at : at + length], order))
        elif kind == _ENHANCED:
            rows.append(_enhanced(view, at, length, order, interfaces))
        elif kind == _SIMPLE:
            original = struct.unpack_from(order + "I", view, at + 8)[0]
            face = _face(interfaces, 0, at)
            rows.append((at + 12, min(original, face.snap or original, length - 16), original, 0, face.link))
        at += length
    return np.array(rows, np.int64).reshape(-1, 5).T


def _face(interfaces: list[_Interface], number: int, at: int) -> _Interface:
    if number >= len(interfaces):
        raise InputError(f"the packet at byte {at} is of an interface that is not described.")
    return interfaces[number]


def _enhanced(
    view: memoryview, at: int, length: int, order: str, interfaces: list[_Interface]
) -> tuple[int, int, int, int, int]:
    number, high, low, captured, original = struct.unpack_from(order + "IIIII", view, at + 8)
    face = _face(interfaces, number, at)
    if captured > length - 32:
        raise InputError(f"a packet of {captured} bytes in a block of {length} at byte {at}.")
    ticks = high << 32 | low
    return at + 28, captured, original, ticks * NS_PER_S // face.ticks_per_s, face.link


def _interface(block: memoryview, order: str) -> _Interface:
    link, _, snap = struct.unpack_from(order + "HHI", block, 8)
    ticks, at = 1_000_000, 16
    while at + 8 <= len(block):
        code, length = struct.unpack_from(order + "HH", block, at)
        if code == 0:
            break
        if code == _RESOLUTION_OPTION and length:
            value = block[at + 4]
            ticks = 1 << (value & 0x7F) if value & 0x80 else 10 ** (value & 0x7F)
        at += 4 + length + -length % 4
    return _Interface(link, min(ticks, 1 << 62), snap)


class Frame(NamedTuple):
    """A packet to be written: when it was seen, its bytes, and its length on the wire."""

    time_ns: int
    data: bytes
    original: int


def pcap_header(snap: int = 1 << 18, link: int = ETHERNET) -> bytes:
    """The beginning of a pcap file with times in ns."""
    return struct.pack("<IHHiIII", _NANO, 2, 4, 0, 0, snap, link)


def pcap_record(frame: Frame) -> bytes:
    """One packet of it."""
    seconds, ns = divmod(frame.time_ns, NS_PER_S)
    return struct.pack("<IIII", seconds, ns, len(frame.data), frame.original) + frame.data


def write_pcap(path: Path, frames: Iterable[Frame], link: int = ETHERNET) -> None:
    """Write a pcap file."""
    path.write_bytes(pcap_header(link=link) + b"".join(map(pcap_record, frames)))
