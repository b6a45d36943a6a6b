"""RoCEv2 packets: UDP payload <-> headers, without I/O; InfiniBand Architecture Specification, volume 1, chapter 9.

A RoCEv2 packet is a UDP datagram to port 4791: BTH, extension headers as the opcode says, payload padded to four bytes,
ICRC (genie.formats.icrc). Everything is in network byte order.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from genie.errors import InputError

PORT: Final = 4791
MTUS: Final = (256, 512, 1024, 2048, 4096)
"""Path MTUs: payload bytes of every packet of a message but the last."""

BTH_BYTES, RETH_BYTES, IMM_BYTES, AETH_BYTES, DETH_BYTES, ICRC_BYTES = 12, 16, 4, 4, 8, 4
DEFAULT_PKEY: Final = 0xFFFF
PSN_MASK: Final = 0xFF_FFFF
_PSN_HALF: Final = 1 << 23
ACK_REQUEST: Final = 1 << 31
_SOLICITED, _MIGRATED = 0x80, 0x40
_BECN: Final = 0x40
_FECN: Final = 0x80

_BTH: Final = struct.Struct("!BBHBBHI")
_RETH: Final = struct.Struct("!QII")
_WORD: Final = struct.Struct("!I")
_DETH: Final = struct.Struct("!II")


class Opcode(IntEnum):
    """BTH opcodes that occur here (the upper three bits are the transport: 000 RC, 011 UD, 100 CNP)."""

    SEND_FIRST = 0x00
    SEND_MIDDLE = 0x01
    SEND_LAST = 0x02
    SEND_LAST_IMM = 0x03
    SEND_ONLY = 0x04
    SEND_ONLY_IMM = 0x05
    WRITE_FIRST = 0x06
    WRITE_MIDDLE = 0x07
    WRITE_LAST = 0x08
    WRITE_LAST_IMM = 0x09
    WRITE_ONLY = 0x0A
    WRITE_ONLY_IMM = 0x0B
    READ_REQUEST = 0x0C
    READ_FIRST = 0x0D
    READ_MIDDLE = 0x0E
    READ_LAST = 0x0F
    READ_ONLY = 0x10
    ACKNOWLEDGE = 0x11
    UD_SEND_ONLY = 0x64
    CNP = 0x81


O = Opcode  # noqa: E741 - short, for the tables below alone
STARTS: Final = frozenset({O.SEND_FIRST, O.SEND_ONLY, O.SEND_ONLY_IMM, O.WRITE_FIRST, O.WRITE_ONLY, O.WRITE_ONLY_IMM})
ENDS: Final = frozenset(
    {
        *(O.SEND_LAST, O.SEND_LAST_IMM, O.SEND_ONLY, O.SEND_ONLY_IMM),
        *(O.WRITE_LAST, O.WRITE_LAST_IMM, O.WRITE_ONLY, O.WRITE_ONLY_IMM),
    }
)
WITH_IMM: Final = frozenset({O.SEND_LAST_IMM, O.SEND_ONLY_IMM, O.WRITE_LAST_IMM, O.WRITE_ONLY_IMM})
WITH_RETH: Final = frozenset({O.WRITE_FIRST, O.WRITE_ONLY, O.WRITE_ONLY_IMM, O.READ_REQUEST})
WITH_AETH: Final = frozenset({O.ACKNOWLEDGE, O.READ_FIRST, O.READ_LAST, O.READ_ONLY})
REQUESTS: Final = frozenset(range(O.SEND_FIRST, O.WRITE_ONLY_IMM + 1))
"""SEND and RDMA WRITE in all their parts."""

del O

EXTENSION_BYTES: Final[dict[int, int]] = {
    opcode: RETH_BYTES * (opcode in WITH_RETH)
    + IMM_BYTES * (opcode in WITH_IMM)
    + AETH_BYTES * (opcode in WITH_AETH)
    + DETH_BYTES * (opcode == Opcode.UD_SEND_ONLY)
    + 16 * (opcode == Opcode.CNP)
    for opcode in Opcode
}
"""Opcode -> bytes between BTH and payload (a CNP's are sixteen reserved bytes)."""


def write_opcode(*, first: bool, last: bool, immediate: bool = False) -> Opcode:
    """The opcode of a packet of an RDMA WRITE."""
    return Opcode(send_opcode(first=first, last=last, immediate=immediate) + Opcode.WRITE_FIRST)


def send_opcode(*, first: bool, last: bool, immediate: bool = False) -> Opcode:
    """The opcode of a packet of a SEND."""
    if not last:
        return Opcode.SEND_FIRST if first else Opcode.SEND_MIDDLE
    return Opcode((Opcode.SEND_ONLY if first else Opcode.SEND_LAST) + immediate)


def psn_add(psn: int, count: int) -> int:
    """A PSN so many packets later (or earlier)."""
    return (psn + count) & PSN_MASK


def psn_distance(later: int, earlier: int) -> int:
    """How many packets `later` is ahead of `earlier`: -2^23 to 2^23 - 1, right across the wrap."""
    return ((later - earlier + _PSN_HALF) & PSN_MASK) - _PSN_HALF


class Kind(IntEnum):
    """What an AETH syndrome says (its bits 6 and 5)."""

    ACK = 0
    RNR_NAK = 1
    NAK = 3


class Nak(IntEnum):
    """Why a request is refused (bits 4 to 0 of a NAK's syndrome)."""

    SEQUENCE = 0
    INVALID_REQUEST = 1
    REMOTE_ACCESS = 2
    REMOTE_OPERATION = 3
    INVALID_RD_REQUEST = 4


UNLIMITED_CREDITS: Final = 31
_CREDITS: Final = (
    *(0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096),
    *(6144, 8192, 12288, 16384, 24576, 32768),
)
_RNR_10_US: Final = (
    *(65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096),
    *(6144, 8192, 12288, 16384, 24576, 32768, 49152),
)
"""Credit counts and RNR waits (in 10 us) by their five-bit codes."""


def credits_code(messages: int | None) -> int:
    """The code of the largest credit count that is at most `messages`; None: without limit."""
    if messages is None:
        return UNLIMITED_CREDITS
    return max(code for code, count in enumerate(_CREDITS) if count <= max(0, messages))


def credits_of(code: int) -> int | None:
    """What a credit code allows; None: without limit."""
    return None if code == UNLIMITED_CREDITS else _CREDITS[code]


def rnr_code(wait_ns: int) -> int:
    """The code of the shortest RNR wait that is at least `wait_ns` (the longest, if none is)."""
    fitting = [code for code, ten_us in enumerate(_RNR_10_US) if ten_us * 10_000 >= wait_ns]
    return min(fitting, key=lambda code: _RNR_10_US[code], default=0)


def rnr_wait_ns(code: int) -> int:
    """How long an RNR NAK asks to wait."""
    return _RNR_10_US[code & 0x1F] * 10_000


@dataclass(frozen=True, slots=True)
class Reth:
    """RDMA extended transport header: where a WRITE goes, with which key, and how long it is."""

    address: int
    rkey: int
    length: int


@dataclass(frozen=True, slots=True)
class Aeth:
    """ACK extended transport header: what became of requests (kind, its five-bit value), messages done (24 bits)."""

    kind: Kind
    value: int
    msn: int


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet's headers and payload.

    Attributes:
        opcode, qpn, psn: of the BTH.
        ack_request, solicited, becn, fecn: bits of the BTH.
        pkey: partition.
        reth, aeth, immediate, deth: extension headers; None where there is none. `deth` is (Q_Key, source QPN).
        payload: without padding.
        icrc: as found in the packet (little-endian on the wire); set when building from the network header.
    """

    opcode: Opcode
    qpn: int
    psn: int
    ack_request: bool = False
    solicited: bool = False
    becn: bool = False
    fecn: bool = False
    pkey: int = DEFAULT_PKEY
    reth: Reth | None = None
    aeth: Aeth | None = None
    immediate: int | None = None
    deth: tuple[int, int] | None = None
    payload: bytes = b""
    icrc: int = 0

    def headers(self) -> bytes:
        """BTH and extension headers."""
        pad = -len(self.payload) % 4
        flags = self.solicited * _SOLICITED | _MIGRATED | pad << 4
        notified = self.fecn * _FECN | self.becn * _BECN
        word = self.psn | self.ack_request * ACK_REQUEST
        parts = [_BTH.pack(self.opcode, flags, self.pkey, notified, self.qpn >> 16, self.qpn & 0xFFFF, word)]
        if self.deth is not None:
            parts.append(_DETH.pack(*self.deth))
        if self.reth is not None:
            parts.append(_RETH.pack(self.reth.address, self.reth.rkey, self.reth.length))
        if self.aeth is not None:
            parts.append(_WORD.pack((self.aeth.kind << 5 | self.aeth.value) << 24 | self.aeth.msn))
        if self.immediate is not None:
            parts.append(_WORD.pack(self.immediate))
        if self.opcode == Opcode.CNP:
            parts.append(bytes(16))
        return b"".join(parts)

    def body(self) -> bytes:
        """The UDP payload but for the ICRC."""
        return self.headers() + self.payload + bytes(-len(self.payload) % 4)


def parse(data: bytes | bytearray | memoryview) -> Packet:
    """The packet in a UDP payload.

    Raises:
        InputError: too short for what its opcode promises, another header version, or an opcode not known here.
    """
    view = memoryview(data)
    if len(view) < BTH_BYTES + ICRC_BYTES:
        raise InputError(f"{len(view)} bytes are no RoCE packet.")
    opcode, flags, pkey, notified, high, low, word = _BTH.unpack_from(view)
    extension = EXTENSION_BYTES.get(opcode)
    if extension is None or flags & 0x0F:
        raise InputError(f"opcode {opcode:#04x}, header version {flags & 0x0F}: no RoCE packet that is known here.")
    start, end = BTH_BYTES + extension, len(view) - ICRC_BYTES - (flags >> 4 & 3)
    if end < start:
        raise InputError(f"{len(view)} bytes are too few for opcode {opcode:#04x}.")
    at = BTH_BYTES
    reth = aeth = deth = immediate = None
    if opcode == Opcode.UD_SEND_ONLY:
        deth = _DETH.unpack_from(view, at)
    if opcode in WITH_RETH:
        reth = Reth(*_RETH.unpack_from(view, at))
        at += RETH_BYTES
    if opcode in WITH_AETH:
        aeth = parse_aeth(_WORD.unpack_from(view, at)[0])
    if opcode in WITH_IMM:
        immediate = _WORD.unpack_from(view, at)[0]
    return Packet(
        opcode=Opcode(opcode),
        qpn=high << 16 | low,
        psn=word & PSN_MASK,
        ack_request=bool(word & ACK_REQUEST),
        solicited=bool(flags & _SOLICITED),
        becn=bool(notified & _BECN),
        fecn=bool(notified & _FECN),
        pkey=pkey,
        reth=reth,
        aeth=aeth,
        immediate=immediate,
        deth=deth,
        payload=bytes(view[start:end]),
        icrc=int.from_bytes(view[-ICRC_BYTES:], "little"),
    )


def parse_aeth(word: int) -> Aeth:
    """An AETH from its 32 bits.

    Raises:
        InputError: a reserved kind.
    """
    syndrome = word >> 24
    if syndrome >> 5 & 3 == 2:  # noqa: PLR2004 - the one reserved kind
        raise InputError(f"syndrome {syndrome:#04x} is reserved.")
    return Aeth(Kind(syndrome >> 5 & 3), syndrome & 0x1F, word & PSN_MASK)
