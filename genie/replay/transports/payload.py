"""What messages are filled with: slices of one static block, so that nothing is copied and content can be checked.

Byte k of message number s is byte (k + 7919 s) mod 65521 of a fixed random block. Both numbers are primes: bytes that
are lost, swapped, repeated or another message's show.
"""

from __future__ import annotations

import random
from typing import Final

PIECE_BYTES: Final = 1 << 20
"""Longest slice: most that is handed to or taken from the kernel at once."""

PERIOD: Final = 65_521
_STRIDE: Final = 7_919
_BLOCK: Final = random.Random(0).randbytes(PERIOD) * (PIECE_BYTES // PERIOD + 2)
_VIEW: Final = memoryview(_BLOCK)


def block() -> bytes:
    """What all slices are of: for a device that reads memory itself."""
    return _BLOCK


def start_of(sequence: int, offset: int) -> int:
    """Where in `block` byte `offset` of a message is; PIECE_BYTES follow."""
    return (sequence * _STRIDE + offset) % PERIOD


def payload(sequence: int, offset: int, size_bytes: int) -> memoryview:
    """The bytes [offset, offset + size_bytes) of a message; at most PIECE_BYTES."""
    start = start_of(sequence, offset)
    return _VIEW[start : start + size_bytes]


def first_difference(received: memoryview, sequence: int, offset: int) -> int:
    """Position in the message of the first byte that is not what was sent; -1 if all are."""
    start = start_of(sequence, offset)
    if _BLOCK.startswith(received, start):  # without a copy, and faster than comparing views
        return -1
    return offset + next(at for at, byte in enumerate(received) if byte != _BLOCK[start + at])
