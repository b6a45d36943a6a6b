"""Connection management messages of InfiniBand: 256-byte MADs that set queue pairs up and take them down.

They travel as UD SENDs to queue pair 1. Layouts: InfiniBand Architecture Specification, volume 1, 12.6; fields that
only make sense on an InfiniBand subnet are left zero.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from genie.errors import InputError
from genie.formats.roce import MTUS, Opcode, Packet

CM_QPN: Final = 1
CM_QKEY: Final = 0x8001_0000
MAD_BYTES: Final = 256
_MAD: Final = struct.Struct("!BBBBHHQHHI")
_CLASS, _VERSION, _SEND = 0x07, 2, 0x03
_TWO: Final = struct.Struct("!II")


class Kind(IntEnum):
    """Attribute identifiers of the messages used here."""

    REQUEST = 0x0010
    REJECT = 0x0012
    REPLY = 0x0013
    READY = 0x0014
    DISCONNECT = 0x0015
    DISCONNECT_REPLY = 0x0016


class Reason(IntEnum):
    """Why a request is rejected."""

    INVALID_MTU = 26
    CONSUMER = 28


PRIVATE_BYTES: Final = {
    Kind.REQUEST: 92,
    Kind.REJECT: 148,
    Kind.REPLY: 196,
    Kind.READY: 224,
    Kind.DISCONNECT: 220,
    Kind.DISCONNECT_REPLY: 224,
}
_PRIVATE_AT: Final = {kind: MAD_BYTES - 24 - size for kind, size in PRIVATE_BYTES.items()}
_QPN_AT: Final = {Kind.REQUEST: 32, Kind.REPLY: 12, Kind.DISCONNECT: 8}
_PSN_AT: Final = {Kind.REQUEST: 44, Kind.REPLY: 20}
_MTU_AT: Final = 50
_REASON_AT: Final = 10


@dataclass(frozen=True, slots=True)
class Meeting:
    """One message.

    Attributes:
        local, remote: the sender's and the receiver's number of this connection; a REQUEST knows no remote one.
        qpn, psn: REQUEST, REPLY: the sender's queue pair and its first PSN; DISCONNECT: the receiver's queue pair.
        mtu: REQUEST: path MTU.
        reason: REJECT: see Reason.
        private: what the two ends have to say to each other, padded with zeros.
    """

    kind: Kind
    local: int
    remote: int = 0
    qpn: int = 0
    psn: int = 0
    mtu: int = MTUS[-1]
    reason: int = 0
    private: bytes = b""

    def packet(self, psn: int) -> Packet:
        """As a UD SEND to queue pair 1."""
        body = bytearray(MAD_BYTES)
        _MAD.pack_into(body, 0, 1, _CLASS, _VERSION, _SEND, 0, 0, self.local, self.kind, 0, 0)
        _TWO.pack_into(body, 24, self.local, self.remote)
        if self.kind in _QPN_AT:
            _put24(body, 24 + _QPN_AT[self.kind], self.qpn)
        if self.kind in _PSN_AT:
            _put24(body, 24 + _PSN_AT[self.kind], self.psn)
        if self.kind is Kind.REQUEST:
            body[24 + _MTU_AT] = MTUS.index(self.mtu) + 1 << 4
        if self.kind is Kind.REJECT:
            struct.pack_into("!H", body, 24 + _REASON_AT, self.reason)
        at = 24 + _PRIVATE_AT[self.kind]
        body[at : at + len(self.private)] = self.private
        return Packet(Opcode.UD_SEND_ONLY, CM_QPN, psn, deth=(CM_QKEY, CM_QPN), payload=bytes(body[:MAD_BYTES]))


def _put24(body: bytearray, at: int, value: int) -> None:
    body[at : at + 3] = value.to_bytes(3, "big")


def parse(packet: Packet) -> Meeting:
    """The message in a packet.

    Raises:
        InputError: it is none, or of a kind not known here.
    """
    body = packet.payload
    if packet.opcode is not Opcode.UD_SEND_ONLY or packet.qpn != CM_QPN or len(body) != MAD_BYTES:
        raise InputError("no connection management message.")
    version, kind_of_mad, class_version, method, _, _, _, attribute, _, _ = _MAD.unpack_from(body)
    if (version, kind_of_mad, class_version, method) != (1, _CLASS, _VERSION, _SEND) or attribute not in set(Kind):
        raise InputError("no connection management message that is known here.")
    kind = Kind(attribute)
    local, remote = _TWO.unpack_from(body, 24)
    code = body[24 + _MTU_AT] >> 4
    return Meeting(
        kind,
        local,
        remote,
        qpn=_take24(body, 24 + _QPN_AT[kind]) if kind in _QPN_AT else 0,
        psn=_take24(body, 24 + _PSN_AT[kind]) if kind in _PSN_AT else 0,
        mtu=MTUS[code - 1] if kind is Kind.REQUEST and 1 <= code <= len(MTUS) else 0,
        reason=struct.unpack_from("!H", body, 24 + _REASON_AT)[0] if kind is Kind.REJECT else 0,
        private=body[24 + _PRIVATE_AT[kind] :],
    )


def _take24(body: bytes, at: int) -> int:
    return int.from_bytes(body[at : at + 3], "big")
