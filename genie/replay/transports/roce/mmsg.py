"""sendmmsg(2) and recvmmsg(2): many datagrams a system call, out of and into memory that was laid out before.

What the kernel reads is kept in arrays: rows of `struct mmsghdr`, of `struct iovec`, socket addresses. Whoever makes
them keeps what they point to alive.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.uint64]

NAME, NAME_BYTES, VECTORS, VECTOR_COUNT, CONTROL, CONTROL_BYTES, FLAGS, LENGTH = range(8)
"""Columns of a `struct mmsghdr` as eight words (the padding behind 32-bit members belongs to them)."""

ROW_BYTES: Final = 64
ADDRESS_BYTES: Final = 28
"""Room for a socket address of either family."""

_V4: Final = struct.Struct("=H2s4s8x")
_V6: Final = struct.Struct("=H2s4x16sI")
_FAMILY: Final = struct.Struct("=H")
_CALL_TYPES: Final = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_SENDMMSG: Final = _LIBC.sendmmsg
_SENDMMSG.argtypes = _CALL_TYPES
_RECVMMSG: Final = _LIBC.recvmmsg
_RECVMMSG.argtypes = (*_CALL_TYPES, ctypes.c_void_p)


def messages(count: int) -> Table:
    """(count, 8): headers of as many datagrams, empty."""
    return np.zeros((count, 8), np.uint64)


def address_of(array: npt.NDArray[Any]) -> int:
    """Where an array's bytes are."""
    return int(array.ctypes.data)


def pack_address(ip: str, port: int) -> bytes:
    """A socket address as the kernel wants it."""
    if ":" in ip:
        return _V6.pack(socket.AF_INET6, port.to_bytes(2, "big"), socket.inet_pton(socket.AF_INET6, ip), 0)
    return _V4.pack(socket.AF_INET, port.to_bytes(2, "big"), socket.inet_aton(ip))


def unpack_address(packed: bytes) -> tuple[str, int]:
    """(address, port) of one that the kernel wrote; ("", 0) if it is of another family."""
    family = _FAMILY.unpack_from(packed)[0]
    if family == socket.AF_INET:
        _, port, ip = _V4.unpack_from(packed)
    elif family == socket.AF_INET6:
        _, port, ip, _ = _V6.unpack_from(packed)
    else:
        return "", 0
    return socket.inet_ntop(family, ip), int.from_bytes(port, "big")


def send_many(fd: int, table: int, count: int) -> int:
    """Send datagrams from the `struct mmsghdr` at an address on; how many the kernel took: all that it had room for.

    Raises:
        OSError: it took none, for another reason than room.
    """
    taken = int(_SENDMMSG(fd, table, count, socket.MSG_DONTWAIT))
    if taken >= 0:
        return taken
    number = ctypes.get_errno()
    if number in {errno.EAGAIN, errno.EINTR}:
        return 0
    raise OSError(number, os.strerror(number))


def receive_many(fd: int, table: int, count: int) -> int:
    """Read at most `count` datagrams; how many there were (an error of something sent earlier counts as none)."""
    return max(0, int(_RECVMMSG(fd, table, count, socket.MSG_DONTWAIT, None)))
