"""What travels on a TCP connection between two ranks: a hello and its answer, then data one way, acknowledgements back.

A secret proves that both ends belong to one run. It never travels: each end shows a keyed digest of who it is.
"""

from __future__ import annotations

import hmac
import struct
from enum import IntEnum
from typing import Final, NamedTuple

from genie.errors import RunError

MAGIC: Final = 0x6E1E
VERSION: Final = 2
SECRET_BYTES: Final = 32
MAX_MESSAGE_BYTES: Final = 8 << 30

DATA: Final = 1
ACK: Final = 2
_FRAME: Final = struct.Struct("!HHIqQQ")
FRAME_BYTES: Final = _FRAME.size
_HELLO: Final = struct.Struct("!HHIII32s")
HELLO_BYTES: Final = _HELLO.size
_ANSWER: Final = struct.Struct("!HHI32s")
ANSWER_BYTES: Final = _ANSWER.size
_WHO: Final = struct.Struct("!HIII")


class Frame(NamedTuple):
    """DATA announces `size_bytes` of payload that follow; ACK says that all messages up to `sequence` are here.

    `number` counts messages of one key among all connections of a pair of ranks (0 where there is one connection).
    """

    kind: int
    tag: int
    size_bytes: int
    sequence: int
    number: int = 0

    def pack(self) -> bytes:
        """As bytes."""
        return _FRAME.pack(MAGIC, self.kind, self.number, self.tag, self.size_bytes, self.sequence)


def parse(data: bytes | bytearray | memoryview, at: int = 0) -> Frame:
    """The frame that starts at byte `at`.

    Raises:
        RunError: no frame of ours, or a size beyond any message.
    """
    magic, kind, number, tag, size_bytes, sequence = _FRAME.unpack_from(data, at)
    if magic != MAGIC or kind not in {DATA, ACK} or size_bytes > MAX_MESSAGE_BYTES:
        raise RunError("what came is no frame of ours.", fix="is another program on that port?")
    return Frame(kind, tag, size_bytes, sequence, number)


class Link(NamedTuple):
    """Which connection: from whom, to whom, which of several."""

    source: int
    destination: int
    flow: int


class Verdict(IntEnum):
    """How a hello was received."""

    WELCOME = 0
    OTHER_VERSION = 1
    OTHER_SECRET = 2
    UNEXPECTED = 3


REASONS: Final = {
    Verdict.OTHER_VERSION: "it speaks another version of Genie's protocol",
    Verdict.OTHER_SECRET: "it has the secret of another run",
    Verdict.UNEXPECTED: "that rank or flow is not expected there",
}


def pack_hello(link: Link, secret: bytes) -> bytes:
    """First words of a caller."""
    return _HELLO.pack(MAGIC, VERSION, *link, _proof(b"hello", link, secret))


def parse_hello(data: bytes | bytearray, secret: bytes) -> tuple[Link, Verdict]:
    """Who calls, and whether it belongs to this run (UNEXPECTED: it is no hello at all)."""
    magic, version, source, destination, flow, proof = _HELLO.unpack(data)
    link = Link(source, destination, flow)
    if magic != MAGIC:
        return link, Verdict.UNEXPECTED
    if version != VERSION:
        return link, Verdict.OTHER_VERSION
    if not hmac.compare_digest(proof, _proof(b"hello", link, secret)):
        return link, Verdict.OTHER_SECRET
    return link, Verdict.WELCOME


def pack_answer(link: Link, verdict: Verdict, secret: bytes) -> bytes:
    """What a caller is told."""
    return _ANSWER.pack(MAGIC, VERSION, verdict, _proof(b"answer", link, secret))


def parse_answer(data: bytes | bytearray, link: Link, secret: bytes) -> str:
    """Why the connection cannot be used; "" if it can."""
    magic, version, verdict, proof = _ANSWER.unpack(data)
    if magic != MAGIC:
        return "what answers there is another program"
    if verdict != Verdict.WELCOME:
        return f"it refuses rank {link.source}: {REASONS.get(verdict, 'no reason given')}"
    if version != VERSION or not hmac.compare_digest(proof, _proof(b"answer", link, secret)):
        return "what answers there belongs to another run"
    return ""


def _proof(role: bytes, link: Link, secret: bytes) -> bytes:
    return hmac.digest(secret, role + _WHO.pack(VERSION, *link), "sha256")
