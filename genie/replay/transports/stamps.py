"""A stream socket whose reads tell when the kernel got the bytes, in CLOCK_MONOTONIC ns.

The kernel stamps each packet as it comes in (SO_TIMESTAMPNS) and gives the stamp of the last one that a read returned.
That is tens of microseconds, on a busy machine milliseconds, before a process gets to read. It is not believed when it
cannot be true of a byte that only now became readable:

* later than now: the real-time clock was set;
* earlier than the last time there was nothing to read: the packet came in time but waited behind a lost one;
* packets were out of order since the last message: some byte came later than the last one.

Then the time of the read counts. Stamps on one connection never decrease, since TCP delivers in order.

The kernel begins to stamp some ms after the first socket on the machine asked for it: ask as early as possible.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from typing import Final

from genie.replay.clock import realtime_offset_ns
from genie.units import NS_PER_S

SO_TIMESTAMPNS: Final = 35
_TIMESPEC: Final = struct.Struct("=qq")
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_TIMESPEC.size)

_OUT_OF_ORDER: Final = struct.Struct("=I")
_OUT_OF_ORDER_AT: Final = 224
_INFO_BYTES: Final = _OUT_OF_ORDER_AT + _OUT_OF_ORDER.size
"""struct tcp_info up to tcpi_rcv_ooopack (Linux 5.4)."""


def ask_for_stamps(sock: socket.socket) -> None:
    """Have what this socket, or one accepted from it, receives stamped."""
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


class StampedSocket:
    """Reads of a connected, non-blocking TCP socket.

    Attributes:
        stamp_ns: when the newest byte read so far was here; -1 before the first.
        drained: the last read took all there was.
        ended: why nothing will come any more; "" as long as something may.
    """

    def __init__(self, sock: socket.socket, now: Callable[[], int]) -> None:
        self.sock, self._now = sock, now
        self.stamp_ns = -1
        self.drained = False
        self.ended = ""
        self._offset_ns = realtime_offset_ns()
        self._empty_ns = now()
        self._out_of_order = 0
        ask_for_stamps(sock)

    def read(self, view: memoryview, flags: int = 0) -> int:
        """Read into a view that is not empty; how many bytes, 0 if there are none now or ever."""
        before_ns = self._now()
        try:
            count, ancillary, _, _ = self.sock.recvmsg_into([view], _ANCILLARY_BYTES, flags)
        except BlockingIOError:
            count, ancillary = 0, []
        except OSError as error:
            self.ended = os.strerror(error.errno or 0)
            count, ancillary = 0, []
        else:
            if count == 0:
                self.ended = "it closed the connection"
        if count:
            self.stamp_ns = max(self.stamp_ns, self._stamp(ancillary))
        self.drained = count < len(view)
        if self.drained:
            self._empty_ns = before_ns
        return count

    def _stamp(self, ancillary: list[tuple[int, int, bytes]]) -> int:
        now_ns = self._now()
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
                seconds, ns = _TIMESPEC.unpack(data)
                stamp_ns = int(seconds) * NS_PER_S + int(ns) - self._offset_ns
                if self._empty_ns <= stamp_ns <= now_ns:
                    return stamp_ns
                if abs(stamp_ns - now_ns) > NS_PER_S:
                    self._offset_ns = realtime_offset_ns()
        return now_ns

    def reordered(self) -> bool:
        """Whether packets came out of order since the last call: then no stamp since then can be believed."""
        info = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        if len(info) < _INFO_BYTES:
            return False
        before, (self._out_of_order,) = self._out_of_order, _OUT_OF_ORDER.unpack_from(info, _OUT_OF_ORDER_AT)
        return before != self._out_of_order
