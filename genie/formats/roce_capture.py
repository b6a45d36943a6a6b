"""RoCEv2 packets of a capture as columns: headers read with numpy, whole captures at a time.

Understands Ethernet with up to two VLAN tags, Linux cooked captures and bare IP; IPv4 with options, IPv6 without
extension headers; packets cut short by a snap length; super-packets (what a host sees of its own segmentation and
aggregation), which are taken apart:
by the headers inside where those were captured, else as the middle packets of a message that they then must be.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from genie.formats.icrc import Way, ip_id_changes
from genie.formats.pcap import ETHERNET, IPV4, IPV6, LINUX_COOKED, LINUX_COOKED_2, RAW_IP, Capture
from genie.formats.roce import (
    BTH_BYTES,
    EXTENSION_BYTES,
    ICRC_BYTES,
    MTUS,
    PORT,
    REQUESTS,
    WITH_AETH,
    WITH_IMM,
    WITH_RETH,
)

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

UNKNOWN: Final = -1
_VLANS: Final = (0x8100, 0x88A8)
_IP4, _IP6, _UDP = 0x0800, 0x86DD, 17
_LARGEST: Final = BTH_BYTES + 20 + MTUS[-1] + ICRC_BYTES
_CE: Final = 3
_MIX: Final = np.int64(0x1E3779B97F4A7C15)
_MIDDLES: Final = (0x01, 0x07)
_EXTENSIONS: Final = np.array([EXTENSION_BYTES.get(code, 0) for code in range(256)], np.int64)


def _among(codes: frozenset[Any]) -> Mask:
    found = np.zeros(256, bool)
    found[[int(code) for code in codes]] = True
    return found


IS_REQUEST, HAS_RETH, HAS_AETH, HAS_IMM = (_among(codes) for codes in (REQUESTS, WITH_RETH, WITH_AETH, WITH_IMM))


@dataclass(frozen=True, slots=True)
class RocePackets:
    """One row a RoCEv2 packet, in the order of the capture.

    Attributes:
        time_ns: when it was seen.
        source, destination: rows of `addresses`.
        sport: UDP source port.
        opcode, qpn, psn, ack_request, becn: of the BTH.
        payload_bytes: without padding, as the lengths say (captured or not).
        address, dma_bytes: of the RETH; syndrome, msn: of the AETH; immediate: UNKNOWN where there is none or it was
            not captured. `address` is the unsigned virtual address as a signed number.
        marked: congestion experienced.
        at, udp_bytes: where the UDP payload begins in the capture's data, and its length; 0 where not wholly captured.
        ip_id: identification; -1 in IPv6.
    """

    time_ns: Numbers
    source: Numbers
    destination: Numbers
    sport: Numbers
    opcode: Numbers
    qpn: Numbers
    psn: Numbers
    ack_request: Mask
    becn: Mask
    payload_bytes: Numbers
    address: Numbers
    dma_bytes: Numbers
    syndrome: Numbers
    msn: Numbers
    immediate: Numbers
    marked: Mask
    at: Numbers
    udp_bytes: Numbers
    ip_id: Numbers

    def __len__(self) -> int:
        return len(self.time_ns)

    def take(self, rows: Any) -> RocePackets:
        """Some rows."""
        return RocePackets(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Seen:
    """A capture's RoCEv2 packets, the addresses in it, and how many packets were something else."""

    packets: RocePackets
    addresses: tuple[bytes, ...]
    others: int
    cut_short: int


class _Reader:
    """Numbers at many places of the capture at once; what lies behind a packet's end reads as something: mask it."""

    def __init__(self, data: Bytes) -> None:
        self._last = len(data) - 8
        self._views = {size: np.ndarray((len(data) - 7,), f">u{size}", data, strides=(1,)) for size in (1, 2, 4)}

    def _at(self, at: Numbers, size: int) -> Numbers:
        return self._views[size][np.minimum(at, self._last)].astype(np.int64)

    def u8(self, at: Numbers) -> Numbers:
        return self._at(at, 1)

    def u16(self, at: Numbers) -> Numbers:
        return self._at(at, 2)

    def u24(self, at: Numbers) -> Numbers:
        return self._at(at, 4) >> 8

    def u32(self, at: Numbers) -> Numbers:
        return self._at(at, 4)


def roce_packets(capture: Capture) -> Seen:
    """Find the RoCEv2 packets of a capture."""
    read = _Reader(capture.data)
    ip, end = _network(capture, read)
    version = read.u8(ip) >> 4
    four = (ip >= 0) & (version == 4) & (end - ip >= 28)  # noqa: PLR2004 - IP version
    six = (ip >= 0) & (version == 6) & (end - ip >= 48)  # noqa: PLR2004
    protocol = np.where(four, read.u8(ip + 9), read.u8(ip + 6))
    fragment = np.where(four, read.u16(ip + 6) & 0x1FFF, 0)
    udp = ip + np.where(four, (read.u8(ip) & 15) * 4, 40)
    fits = (four | six) & (protocol == _UDP) & (fragment == 0) & (udp + 8 + BTH_BYTES <= end)
    rows = np.flatnonzero(fits & (read.u16(udp + 2) == PORT))
    cut = int(((four | six) & (protocol == _UDP) & (udp + 4 <= end) & (udp + 8 + BTH_BYTES > end)).sum())
    return _of_rows(capture, read, rows, ip[rows], udp[rows], four[rows], end[rows], cut)


def _network(capture: Capture, read: _Reader) -> tuple[Numbers, Numbers]:
    """(where the IP header begins, -1 for packets that are no IP; where what was captured of the packet ends)."""
    at, link = capture.at, capture.link
    ip = np.where((link == RAW_IP) | (link == IPV4) | (link == IPV6), at, UNKNOWN)
    kinds = {ETHERNET: (12, 14), LINUX_COOKED: (14, 16), LINUX_COOKED_2: (0, 20)}
    for number, (type_at, header) in kinds.items():
        rows = np.flatnonzero(link == number)
        if not len(rows):
            continue
        start, kind = at[rows] + header, read.u16(at[rows] + type_at)
        for _ in range(2):
            tagged = np.isin(kind, _VLANS)
            kind = np.where(tagged, read.u16(start + 2), kind)
            start = np.where(tagged, start + 4, start)
        ip[rows] = np.where((kind == _IP4) | (kind == _IP6), start, UNKNOWN)
    return ip, at + capture.captured


def _of_rows(
    capture: Capture, read: _Reader, rows: Numbers, ip: Numbers, udp: Numbers, four: Mask, end: Numbers, cut: int
) -> Seen:
    source, destination, addresses = _addresses(capture.data, read, ip, four)
    total = np.where(four, read.u16(ip + 2) - (udp - ip), read.u16(ip + 4)) - 8
    outer = capture.original[rows] - (udp + 8 - capture.at[rows])  # a super-packet's IP length may be 0
    length = np.where(total > 0, np.minimum(total, outer), outer)
    traffic = np.where(four, read.u8(ip + 1), read.u16(ip) >> 4 & 0xFF)
    identification = np.where(four, read.u16(ip + 4), UNKNOWN)
    row, start, size, position = _taken_apart(capture.data, read, udp + 8, length, end)
    captured = start + BTH_BYTES <= end[row]
    packets = _headers(
        read,
        start,
        size,
        end[row],
        head=np.where(captured, start, (udp + 8)[row]),
        ahead=np.where(captured, 0, position),
        time_ns=capture.time_ns[rows][row],
        source=source[row],
        destination=destination[row],
        sport=read.u16(udp)[row],
        marked=(traffic & 3 == _CE)[row],
        ip_id=np.where(four[row], identification[row] + position & 0xFFFF, UNKNOWN),
    )
    return Seen(packets, addresses, len(capture) - len(rows), cut)


def _addresses(data: Bytes, read: _Reader, ip: Numbers, four: Mask) -> tuple[Numbers, Numbers, tuple[bytes, ...]]:
    """(source, destination) as rows of a table of addresses; there are few, so a hash of 64 bits tells them apart."""
    at = np.concatenate([ip + np.where(four, 12, 8), ip + np.where(four, 16, 24)])
    keys = read.u32(at)
    six = np.flatnonzero(np.tile(~four, 2))
    for word in (4, 8, 12):
        keys[six] = keys[six] * _MIX + read.u32(at[six] + word)
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    sizes = np.where(np.tile(four, 2)[first], 4, 16).tolist()
    table = tuple(data[begin : begin + size].tobytes() for begin, size in zip(at[first].tolist(), sizes, strict=True))
    both = which.reshape(2, -1).astype(np.int64)
    return both[0], both[1], table


def _taken_apart(
    data: Bytes, read: _Reader, start: Numbers, length: Numbers, end: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Super-packets into packets: (row, where it begins, UDP payload bytes, place in the super-packet)."""
    opcode = read.u8(start)
    dma = read.u32(start + BTH_BYTES + 12)
    body = length - BTH_BYTES - _EXTENSIONS[opcode] - ICRC_BYTES
    only = HAS_RETH[opcode] & np.isin(opcode, (0x0A, 0x0B))
    part = np.isin(opcode, (0, 1, 6, 7))
    several = (length > _LARGEST) | (part & ~np.isin(body, MTUS)) | (only & (body > dma + 3))
    segments = np.zeros(len(start), np.int64)
    known: dict[int, int] = {}
    suspects = np.flatnonzero(several)
    for at in suspects.tolist():
        there = min(int(length[at]), int(end[at] - start[at]))
        segments[at] = _segment(data[start[at] : start[at] + there], known)
        if not segments[at] and there < length[at] and opcode[at] in _MIDDLES:
            segments[at] = _guessed(int(length[at]))
    count = np.where(segments > 0, -(-length // np.maximum(segments, 1)), 1)
    row = np.repeat(np.arange(len(start)), count)
    position = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    begin = start[row] + position * segments[row]
    size = np.where(segments[row] > 0, np.minimum(segments[row], length[row] - position * segments[row]), length[row])
    known_kind = (begin + BTH_BYTES <= end[row]) | np.isin(opcode[row], _MIDDLES)
    return row[known_kind], begin[known_kind], size[known_kind], position[known_kind]


def _guessed(length: int) -> int:
    """Bytes of each of the middle packets in a super-packet of which only the first header was captured."""
    sizes = (BTH_BYTES + mtu + ICRC_BYTES for mtu in reversed(MTUS))
    return next((size for size in sizes if length % size == 0), 0)


def _segment(packet: Bytes, known: dict[int, int]) -> int:
    """Bytes of each packet of a super-packet: where the next header is, with the next PSN; 0 if it cannot be told."""
    words = packet.tobytes()
    pkey_and_qpn, psn = words[2:4] + words[5:8], int.from_bytes(words[9:12], "big")
    following = (psn + 1 & 0xFF_FFFF).to_bytes(3, "big")
    opcode = words[0]
    extension = EXTENSION_BYTES.get(opcode, 0)
    likely = [BTH_BYTES + extension + mtu + ICRC_BYTES for mtu in reversed(MTUS)]
    for size in [known.get(opcode, 0), *likely, *range(16, len(words) // 2 + 1, 4)]:
        if size and _is_next(words, size, pkey_and_qpn, following):
            known[opcode] = int(size)
            return int(size)
    return 0


def _is_next(words: bytes, size: int, pkey_and_qpn: bytes, psn: bytes) -> bool:
    next_head = words[size : size + BTH_BYTES]
    return next_head[9:12] == psn and next_head[2:4] + next_head[5:8] == pkey_and_qpn


def _headers(
    read: _Reader, start: Numbers, size: Numbers, end: Numbers, head: Numbers, ahead: Numbers, **others: Any
) -> RocePackets:
    """Of packets whose header is at `head`: their own, or that of a packet so many `ahead` of them."""
    opcode, flags = read.u8(head), read.u8(head + 1)
    extension = start + BTH_BYTES
    there = extension + _EXTENSIONS[opcode] <= end
    reth, aeth, imm = (mask[opcode] & there for mask in (HAS_RETH, HAS_AETH, HAS_IMM))
    after_reth = extension + np.where(reth, 16, 0)
    address = (read.u32(extension) << 32) | read.u32(extension + 4)
    payload = size - BTH_BYTES - _EXTENSIONS[opcode] - ICRC_BYTES - (flags >> 4 & 3)
    return RocePackets(
        opcode=opcode,
        qpn=read.u24(head + 5),
        psn=read.u24(head + 9) + ahead & 0xFF_FFFF,
        ack_request=(read.u8(head + 8) >= 0x80) & (ahead == 0),  # noqa: PLR2004 - the upper bit
        becn=read.u8(head + 4) & 0x40 > 0,
        payload_bytes=np.maximum(payload, 0),
        address=np.where(reth, address, UNKNOWN),
        dma_bytes=np.where(reth, read.u32(extension + 12), UNKNOWN),
        syndrome=np.where(aeth, read.u8(extension), UNKNOWN),
        msn=np.where(aeth, read.u24(extension + 1), UNKNOWN),
        immediate=np.where(imm, read.u32(after_reth), UNKNOWN),
        at=start,
        udp_bytes=np.where(start + size <= end, size, 0),
        **others,
    )


def wrong_icrcs(capture: Capture, seen: Seen) -> tuple[int, int]:
    """(packets whose ICRC is wrong, packets that could be checked): those that were wholly captured."""
    packets = seen.packets
    rows = np.flatnonzero(packets.udp_bytes >= BTH_BYTES + ICRC_BYTES)
    columns = (packets.source, packets.destination, packets.sport, packets.at, packets.udp_bytes, packets.ip_id)
    view, wrong = memoryview(capture.data.data), 0
    masked: dict[tuple[int, int, int, int], int] = {}
    changes: dict[int, Any] = {}
    for source, destination, sport, at, size, ip_id in zip(*(column[rows].tolist() for column in columns), strict=True):
        key = (source, destination, sport, size)
        before = masked.get(key)
        if before is None:
            way = Way(seen.addresses[source], seen.addresses[destination], sport)
            before = masked[key] = zlib.crc32(way.masked(size))
            if ip_id >= 0 and size not in changes:
                changes[size] = ip_id_changes(way.ip_bytes, size, 1 << 16)
        value = zlib.crc32(view[at + 5 : at + size - 4], zlib.crc32(bytes(view[at : at + 4]) + b"\xff", before))
        if ip_id > 0:
            value ^= int(changes[size][ip_id])
        wrong += value != int.from_bytes(view[at + size - 4 : at + size], "little")
    return int(wrong), len(rows)
