"""The invariant CRC that ends every RoCEv2 packet: CRC-32 of everything that a router leaves alone.

It covers eight bytes of ones, the IP and UDP headers and the UDP payload, with ones in place of what changes on the way
(type of service, TTL or hop limit, flow label, both checksums, and the BTH's reserved byte). InfiniBand Architecture
Specification, annex A17; the value is written in little-endian order.

CRC-32 without its complements is linear over GF(2): the register after `n` more bytes is the register after `n` zeros,
exclusive-or what the bytes alone leave. So what a few varying bits change can be kept in tables, and the ICRCs of a
thousand packets of a message cost a few look-ups each, without touching their payload.
"""

from __future__ import annotations

import functools
import socket
import struct
import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

ONES: Final = 0xFFFF_FFFF
IPV4_BYTES, IPV6_BYTES, UDP_BYTES = 20, 40, 8
_LRH: Final = b"\xff" * 8
_IPV4: Final = struct.Struct("!BBHHHBBH4s4s")
_IPV6: Final = struct.Struct("!IHBB16s16s")
_UDP: Final = struct.Struct("!HHHH")
_DONT_FRAGMENT: Final = 0x4000
_PROTOCOL: Final = 17
_RESERVED_AT: Final = 4
"""Where in the BTH the byte is that counts as ones."""


@dataclass(frozen=True, slots=True)
class Way:
    """What of a packet's network headers the ICRC covers: packed addresses (4 or 16 bytes) and UDP ports."""

    source: bytes
    destination: bytes
    sport: int
    dport: int = 4791

    @staticmethod
    def between(source: str, destination: str, sport: int, dport: int = 4791) -> Way:
        """A way between printed addresses."""
        family = socket.AF_INET6 if ":" in source else socket.AF_INET
        return Way(socket.inet_pton(family, source), socket.inet_pton(family, destination), sport, dport)

    @property
    def ip_bytes(self) -> int:
        """Length of the IP header."""
        return IPV4_BYTES if len(self.source) == 4 else IPV6_BYTES  # noqa: PLR2004 - an IPv4 address

    def masked(self, udp_payload_bytes: int, ip_id: int = 0) -> bytes:
        """Network headers as the ICRC sees them; the don't-fragment bit is set, as RoCEv2 asks."""
        udp = _UDP.pack(self.sport, self.dport, UDP_BYTES + udp_payload_bytes, 0xFFFF)
        if self.ip_bytes == IPV6_BYTES:
            ip = _IPV6.pack(0x6FFF_FFFF, UDP_BYTES + udp_payload_bytes, _PROTOCOL, 0xFF, self.source, self.destination)
        else:
            total = IPV4_BYTES + UDP_BYTES + udp_payload_bytes
            fragment = (0xFF, _PROTOCOL, 0xFFFF)
            ip = _IPV4.pack(0x45, 0xFF, total, ip_id, _DONT_FRAGMENT, *fragment, self.source, self.destination)
        return _LRH + ip + udp


def icrc(masked: bytes, body: bytes | bytearray | memoryview) -> int:
    """ICRC of a packet: `masked` network headers, and the UDP payload without its last four bytes."""
    view = memoryview(body)
    head = zlib.crc32(bytes(view[:_RESERVED_AT]) + b"\xff", zlib.crc32(masked))
    return zlib.crc32(view[_RESERVED_AT + 1 :], head)


def sealed(way: Way, body: bytes, ip_id: int = 0) -> bytes:
    """A UDP payload with its ICRC at the end."""
    return body + icrc(way.masked(len(body) + 4, ip_id), body).to_bytes(4, "little")


def register(data: bytes | memoryview, before: int = 0) -> int:
    """The CRC register after some bytes, without complements: linear in both."""
    return zlib.crc32(data, before ^ ONES) ^ ONES


@functools.lru_cache(maxsize=256)
def shift(bytes_after: int) -> Words:
    """(4, 256): what each byte of a register (least significant first) becomes after so many zero bytes."""
    zeros = bytes(bytes_after)
    return _spread([register(zeros, 1 << bit) for bit in range(32)])


def _spread(bits: list[int]) -> Words:
    """Tables of four bytes from what each single bit contributes, least significant first."""
    tables = np.zeros((4, 256), np.uint32)
    for bit, value in enumerate(bits):
        row, size = tables[bit // 8], 1 << bit % 8
        row[size : 2 * size] = row[:size] ^ np.uint32(value)
    return tables


def apply(tables: Words, values: Words) -> Words:
    """Exclusive-or of what the four bytes of each value stand for."""
    found: Words = tables[0][values & 255] ^ tables[1][values >> 8 & 255]
    found ^= tables[2][values >> 16 & 255]
    found ^= tables[3][values >> 24]
    return found


@functools.lru_cache(maxsize=256)
def word_tables(bytes_after: int) -> Words:
    """(4, 256): what a big-endian word adds, by its bytes (least significant first), so many bytes before the end."""
    zeros = bytes(bytes_after)
    return _spread([register((1 << bit).to_bytes(4, "big") + zeros) for bit in range(32)])


@functools.lru_cache(maxsize=256)
def ip_id_changes(way_ip_bytes: int, udp_payload_bytes: int, count: int = 128) -> Words:
    """What the IP identifications 0, 1, ... add to an ICRC (nothing in IPv6, which has none)."""
    if way_ip_bytes == IPV6_BYTES:
        return np.zeros(count, np.uint32)
    after = IPV4_BYTES - 6 + UDP_BYTES + udp_payload_bytes - 4
    return apply(word_tables(after), np.arange(count, dtype=np.uint32))
