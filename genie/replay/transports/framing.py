"""What travels on a TCP connection between two ranks: a hello each way, data frames forth, acknowledgements back."""

from __future__ import annotations

import hmac
import struct
from typing import Final, NamedTuple

from genie.errors import RunError

MAGIC: Final = 0x6E1E
VERSION: Final = 1
SECRET_BYTES: Final = 32
MAX_MESSAGE_BYTES: Final = 8 << 30

DATA: Final = 1
ACK: Final = 2
_FRAME: Final = struct.Struct("!HHIqQQ")
FRAME_BYTES: Final = _FRAME.size
_HELLO: Final = struct.Struct(f"!HHIIi{SECRET_BYTES}s")
HELLO_BYTES: Final = _HELLO.size


class Frame(NamedTuple):
    """DATA announces `size_bytes` of payload that follow; ACK says that message `sequence` is wholly here."""

    kind: int
    tag: int
    size_bytes: int
    sequence: int

    def pack(self) -> bytes:
        """As bytes."""
        return _FRAME.pack(MAGIC, self.kind, 0, self.tag, self.size_bytes, self.sequence)


def parse(data: bytes | bytearray | memoryview, peer: int) -> Frame:
    """A frame from its bytes.

    Raises:
        RunError: no frame of ours, or a size beyond any message.
    """
    magic, kind, zero, tag, size_bytes, sequence = _FRAME.unpack(data)
    if magic != MAGIC or kind not in {DATA, ACK} or zero or size_bytes > MAX_MESSAGE_BYTES:
        raise RunError("sent something that is no frame.", where=f"rank {peer}", fix="is another program on that port?")
    return Frame(kind, tag, size_bytes, sequence)


class Hello(NamedTuple):
    """First words on a connection: who calls whom, which of several connections this is, and the run's secret."""

    source: int
    destination: int
    flow: int
    secret: bytes

    def pack(self) -> bytes:
        """As bytes."""
        return _HELLO.pack(MAGIC, VERSION, self.source, self.destination, self.flow, self.secret)


def parse_hello(data: bytes, secret: bytes) -> Hello:
    """A hello from its bytes, its secret compared.

    Raises:
        RunError: another protocol or version, or a wrong secret.
    """
    magic, version, source, destination, flow, theirs = _HELLO.unpack(data)
    if magic != MAGIC or version != VERSION:
        raise RunError("a stranger connected: another program, or another version of Genie.")
    if not hmac.compare_digest(theirs, secret):
        raise RunError(f"rank {source} connected with the secret of another run.", fix="stop the other run first.")
    return Hello(source, destination, flow, theirs)
