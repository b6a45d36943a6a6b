"""BPF programs at a port, without a compiler: ECN marks by a phantom queue, losses, and hashes for spraying packets.

Programs are lists of instructions (Documentation/bpf/standardization/instruction-set.rst of the kernel), loaded by
bpf(2) and attached by traffic control. bpf(2) wants privileges of the machine: not so in a user namespace.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from genie.core.testbed import PPM
from genie.errors import NotReadyError
from genie.testbed.netlink import CREATE, EXCLUSIVE, QUEUE, Request, attribute, number
from genie.units import BITS_PER_BYTE, NS_PER_S

EGRESS, INGRESS = 0xFFFF_FFF3, 0xFFFF_FFF2
_SYSCALL: Final = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_LOOK_UP, _PROG_LOAD = 0, 1, 5
_ARRAY, _SCHED_CLS = 2, 3
_NEW_QDISC, _NEW_FILTER = 36, 44
_CLSACT, _CLSACT_HANDLE = 0xFFFF_FFF1, 0xFFFF_0000
_PRIORITY: Final = 5 << 16
_ALL_PROTOCOLS: Final = 0x0300
_INSTRUCTION: Final = struct.Struct("=BBhi")
_UNION_BYTES: Final = 144

_LOOK_UP, _TIME, _RANDOM, _SET_HASH, _SET_CE = 1, 5, 7, 48, 97
_SHOT, _UNSPEC = 2, -1
_WIRE_LEN_AT: Final = 160
"""Offset in struct __sk_buff (uapi/linux/bpf.h): bytes with the headers of every segment."""

_LEAST_BULK_BYTES: Final = 256 + 14
"""Shorter frames have a class of their own and are not charged to the link."""

_SHIFT: Final = 16
"""Binary places of the ns that a byte takes."""

_STATE: Final = struct.Struct("=QQ")
"""When the phantom queue will be empty (ns), and packets marked."""


def _op(code: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> bytes:
    return _INSTRUCTION.pack(code, src << 4 | dst, off, imm)


def _move(dst: int, src: int) -> bytes:
    return _op(0xBF, dst, src)


def _wide(dst: int, value: int, src: int = 0) -> bytes:
    """A 64-bit constant; with `src` 1 a map's descriptor."""
    return _op(0x18, dst, src, 0, value & 0x7FFF_FFFF | -(value >> 31 & 1) << 31) + _op(0, 0, 0, 0, value >> 32)


def _call(helper: int) -> bytes:
    return _op(0x85, imm=helper)


_GO_ON: Final = (_op(0xB4, 0, imm=_UNSPEC), _op(0x95))


def _marker(fd: int, wire_bps: int, mark_bytes: int, buffer_bytes: int) -> list[bytes]:
    """A queue in numbers only, which drains at the link's rate: what would wait longer than `mark_bytes` is marked.

    r6 context, r7 bytes, r8 now, r9 the state; jumps count instructions (a wide constant has two).
    """

    def drain_ns(size: int) -> int:
        return size * BITS_PER_BYTE * NS_PER_S // wire_bps

    per_byte = round((BITS_PER_BYTE * NS_PER_S << _SHIFT) / wire_bps)
    mark = [_move(1, 6), _call(_SET_CE), _op(0x79, 1, 9, 8), _op(0x0F, 1, 0), _op(0x7B, 9, 1, 8)]
    charge = [_move(4, 7), _op(0x27, 4, imm=per_byte), _op(0x77, 4, imm=_SHIFT), _op(0x0F, 1, 4), _op(0x7B, 9, 1, 0)]
    compare = [_wide(3, drain_ns(mark_bytes)), _op(0xBD, 2, 3, len(mark))]
    waiting = [_wide(3, drain_ns(buffer_bytes)), _op(0x2D, 2, 3, len(charge) + 3)]
    body = [
        *(_op(0x79, 1, 9, 0), _op(0x3D, 1, 8, 1), _move(1, 8)),
        *(_move(2, 1), _op(0x1F, 2, 8)),
        *waiting,
        *charge,
        *compare,
        *mark,
    ]
    steps = sum(len(one) for one in body) // _INSTRUCTION.size
    look_up = [_op(0x62, 10, 0, -4, 0), _wide(1, fd, 1), _move(2, 10), _op(0x07, 2, imm=-4), _call(_LOOK_UP)]
    found = [_op(0x15, 0, 0, steps + 1, 0), _move(9, 0)]
    before = [_call(_TIME), _move(8, 0), *look_up, *found]
    skipped = sum(len(one) for one in before) // _INSTRUCTION.size + steps
    head = [_move(6, 1), _op(0x61, 7, 6, _WIRE_LEN_AT), _op(0xA5, 7, 0, skipped, _LEAST_BULK_BYTES)]
    return [*head, *before, *body, *_GO_ON]


def _loser(ppm: int) -> list[bytes]:
    """Drop when a random number of 31 bits is below the share."""
    below = min((1 << 31) - 1, (ppm << 31) // PPM)
    shot = [_op(0xB4, 0, imm=_SHOT), _op(0x95)]
    return [_call(_RANDOM), _op(0x74, 0, imm=1), _op(0xA5, 0, 0, len(_GO_ON), below), *_GO_ON, *shot]


def _sprayer() -> list[bytes]:
    """Give the packet a random hash, which a switch that trusts hashes chooses its way by."""
    return [_move(6, 1), _call(_RANDOM), _move(1, 6), _move(2, 0), _call(_SET_HASH), *_GO_ON]


def _bpf(command: int, told: bytes) -> int:
    call = _SYSCALL.get(platform.machine())
    if call is None:
        raise NotReadyError(f"marks, losses and per-packet ways need BPF, unknown here for {platform.machine()}.")
    asked = ctypes.create_string_buffer(told, max(len(told), _UNION_BYTES))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    result = int(libc.syscall(ctypes.c_long(call), ctypes.c_int(command), asked, ctypes.c_uint(len(asked))))
    if result < 0:
        why = os.strerror(ctypes.get_errno())
        raise NotReadyError(
            f"marks, losses and per-packet ways need BPF, which is refused: {why}.", fix="run as root of the machine."
        )
    return result


def _load(program: Sequence[bytes]) -> int:
    text = b"".join(program)
    code, licence = ctypes.create_string_buffer(text, len(text)), ctypes.create_string_buffer(b"GPL")
    at = (ctypes.addressof(code), ctypes.addressof(licence))
    return _bpf(_PROG_LOAD, struct.pack("=IIQQIIQ", _SCHED_CLS, len(text) // _INSTRUCTION.size, *at, 0, 0, 0))


class Marker:
    """The phantom queue of one port.

    Raises:
        NotReadyError: no BPF here.
    """

    def __init__(self, wire_bps: int, mark_bytes: int, buffer_bytes: int) -> None:
        self._map = _bpf(_MAP_CREATE, struct.pack("=IIII", _ARRAY, 4, _STATE.size, 1))
        self.program = _load(_marker(self._map, wire_bps, mark_bytes, buffer_bytes))

    def close(self) -> None:
        """Let go; the port keeps its program."""
        os.close(self.program)
        os.close(self._map)

    def marked(self) -> int:
        """How many packets (super-packets count as one) this port has marked."""
        key, value = ctypes.create_string_buffer(4), ctypes.create_string_buffer(_STATE.size)
        _bpf(_MAP_LOOK_UP, struct.pack("=IIQQQ", self._map, 0, ctypes.addressof(key), ctypes.addressof(value), 0))
        return int(_STATE.unpack(value.raw)[1])


def loser(ppm: int) -> int:
    """Descriptor of a program that loses so many packets of a million."""
    return _load(_loser(ppm))


def sprayer() -> int:
    """Descriptor of a program that gives packets random hashes."""
    return _load(_sprayer())


def attach(index: int, programs: Sequence[tuple[int, int]]) -> Iterator[Request]:
    """What to ask for so that an interface runs programs: (descriptor, EGRESS or INGRESS), in this order."""
    queue = QUEUE.pack(0, index, _CLSACT_HANDLE, _CLSACT, 0) + attribute(1, b"clsact\0")
    yield Request(_NEW_QDISC, CREATE | EXCLUSIVE, queue, "adding clsact")
    for at, (fd, hook) in enumerate(programs):
        options = number(6, fd) + attribute(7, b"genie\0") + number(8, 1)  # descriptor, name, the result is the verdict
        body = QUEUE.pack(0, index, 1, hook, _PRIORITY + (at << 16) | _ALL_PROTOCOLS)
        yield Request(
            _NEW_FILTER, CREATE | EXCLUSIVE, body + attribute(1, b"bpf\0") + attribute(2, options), "adding a program"
        )
