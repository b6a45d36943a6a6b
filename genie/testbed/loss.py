"""Random loss at a port of an emulated fabric: a BPF program of six instructions before the port's queue.

The program is written down as numbers (Documentation/bpf/standardization of the kernel has the encoding), so that no
compiler is needed. bpf(2) wants privileges of the machine: inside a user namespace there is no loss.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from typing import TYPE_CHECKING, Final

from genie.core.testbed import PPM
from genie.errors import NotReadyError
from genie.testbed.netlink import CREATE, EXCLUSIVE, QUEUE, Request, attribute, number

if TYPE_CHECKING:
    from genie.testbed.addressing import Port
    from genie.testbed.emulated import EmulatedFabric

_SYSCALL: Final = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _SCHED_CLS = 5, 3
_NEW_QDISC, _NEW_FILTER, _DELETE_FILTER = 36, 44, 45
_CLSACT: Final = 0xFFFF_FFF1
_CLSACT_HANDLE: Final = 0xFFFF_0000
_EGRESS: Final = 0xFFFF_FFF3
_KIND, _OPTIONS = 1, 2
_BPF_FD, _BPF_NAME, _BPF_FLAGS, _DIRECT_ACTION = 6, 7, 8, 1
_PRIORITY: Final = 7 << 16
_ALL_PROTOCOLS: Final = 0x0300
_INSTRUCTION: Final = struct.Struct("=BBhi")
_RANDOM: Final = 7
_SHOT, _UNSPEC = 2, -1
_CALL, _EXIT, _MOVE_32, _JUMP_LESS = 0x85, 0x95, 0xB4, 0xA5
_LEAST: Final = (1 << 31) - 1


def _program(ppm: int) -> bytes:
    """Drop when a random number of 31 bits is below the share, else go on.

    A comparison takes a signed number of 32 bits, hence 31: r0 = random >> 1.
    """
    shift = _INSTRUCTION.pack(0x74, 0, 0, 1)
    below = min(_LEAST, (ppm << 31) // PPM)
    return b"".join(
        (
            _INSTRUCTION.pack(_CALL, 0, 0, _RANDOM),
            shift,
            _INSTRUCTION.pack(_JUMP_LESS, 0, 2, below),
            _INSTRUCTION.pack(_MOVE_32, 0, 0, _UNSPEC),
            _INSTRUCTION.pack(_EXIT, 0, 0, 0),
            _INSTRUCTION.pack(_MOVE_32, 0, 0, _SHOT),
            _INSTRUCTION.pack(_EXIT, 0, 0, 0),
        )
    )


def _load(ppm: int) -> int:
    """A descriptor of the program.

    Raises:
        NotReadyError: not allowed here, or another processor.
    """
    call = _SYSCALL.get(platform.machine())
    if call is None:
        raise NotReadyError(f"losses need BPF, which is not known here for {platform.machine()}.")
    code = ctypes.create_string_buffer(text := _program(ppm), len(text))
    licence = ctypes.create_string_buffer(b"GPL")
    told = struct.pack(
        "=IIQQIIQ",
        _SCHED_CLS,
        len(text) // _INSTRUCTION.size,
        ctypes.addressof(code),
        ctypes.addressof(licence),
        0,
        0,
        0,
    ).ljust(144, b"\0")
    asked = ctypes.create_string_buffer(told, len(told))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    fd = int(libc.syscall(ctypes.c_long(call), ctypes.c_int(_PROG_LOAD), asked, ctypes.c_uint(len(told))))
    if fd < 0:
        why = os.strerror(ctypes.get_errno())
        raise NotReadyError(f"losses need BPF, which is refused: {why}.", fix="run as root of the machine.")
    return fd


def _request(kind: int, flags: int, index: int, parent: int, more: bytes, what: str, handle: int = 0) -> Request:
    info = (_PRIORITY | _ALL_PROTOCOLS) if kind != _NEW_QDISC else 0
    return Request(kind, flags, QUEUE.pack(0, index, handle, parent, info) + more, what)


def lose(fabric: EmulatedFabric, port: Port, ppm: int) -> None:
    """From now on lose so many of a million packets at random, acknowledgements among them; 0 ends it.

    A super-packet of several segments is lost as a whole.

    Raises:
        NotReadyError: not possible here.
        OSError: the kernel refused.
    """
    kind = attribute(_KIND, b"bpf\0")
    if ppm == 0:
        fabric.say(port.node, [_request(_DELETE_FILTER, 0, port.index, _EGRESS, kind, "ending a loss")])
        return
    fd = _load(ppm)
    try:
        hook = _request(
            _NEW_QDISC,
            CREATE | EXCLUSIVE,
            port.index,
            _CLSACT,
            attribute(_KIND, b"clsact\0"),
            "adding clsact",
            _CLSACT_HANDLE,
        )
        try:
            fabric.say(port.node, [hook])
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise
        options = number(_BPF_FD, fd) + attribute(_BPF_NAME, b"loss\0") + number(_BPF_FLAGS, _DIRECT_ACTION)
        more = kind + attribute(_OPTIONS, options)
        fabric.say(port.node, [_request(_NEW_FILTER, CREATE, port.index, _EGRESS, more, "adding a loss", 1)])
    finally:
        os.close(fd)
