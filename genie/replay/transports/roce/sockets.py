"""UDP sockets as a RoCE port: how they are set up, what leaves them, errors of the way."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from typing import Final, NamedTuple

from genie.errors import NotReadyError, RunError
from genie.formats.roce import PORT
from genie.replay.transports.roce.middles import UDP_SEGMENT, MiddleSender
from genie.replay.transports.roce.packets import Buffers

_SO_SNDBUFFORCE: Final = 32
_IP_MTU_DISCOVER, _IP_RECVERR, _IP_RECVTOS, _DO = 10, 11, 13, 2
_IPV6_MTU_DISCOVER, _IPV6_RECVERR, _IPV6_RECVTCLASS = 23, 25, 66
_MSG_ERRQUEUE: Final = 0x2000
_SEGMENT: Final = struct.Struct("=H")
_EXTENDED_ERROR: Final = struct.Struct("=I")
_ERROR_BYTES: Final = 512

Address = tuple[str, int] | tuple[str, int, int, int]


class Marking(NamedTuple):
    """What packets' traffic class says: DSCP, and whether switches may mark instead of drop."""

    dscp: int
    ecn: bool

    @property
    def byte(self) -> int:
        """Type of service or traffic class; ECT(0) is 2."""
        return self.dscp << 2 | (2 if self.ecn else 0)


def address_of(ip: str, port: int = PORT) -> Address:
    """As sockets want it."""
    return (ip, port, 0, 0) if ":" in ip else (ip, port)


def open_socket(ip: str, port: int, marking: Marking, send_bytes: int) -> socket.socket:
    """A non-blocking socket bound to an address and port, whose packets are never fragmented.

    It is not connected: only then are the IP identifications of a super-packet 0, 1, 2, ..., which the ICRC covers.

    Raises:
        NotReadyError: the address is not ours, or the port is in use.
    """
    six = ":" in ip
    sock = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        if six:
            for option, value in ((_IPV6_MTU_DISCOVER, _DO), (_IPV6_RECVERR, 1), (_IPV6_RECVTCLASS, 1)):
                sock.setsockopt(socket.IPPROTO_IPV6, option, value)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, marking.byte)
        else:
            for option, value in ((_IP_MTU_DISCOVER, _DO), (_IP_RECVERR, 1), (_IP_RECVTOS, 1)):
                sock.setsockopt(socket.IPPROTO_IP, option, value)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, marking.byte)
        set_buffer(sock, _SO_SNDBUFFORCE, socket.SO_SNDBUF, send_bytes)
        sock.bind((ip, port))
        sock.setblocking(False)  # noqa: FBT003 - socket knows no keyword
    except OSError as error:
        sock.close()
        raise NotReadyError(
            f"cannot use UDP port {port} of {ip}: {error.strerror}.",
            fix="is the address one of this host's, and no other run going on here?",
        ) from error
    return sock


def set_buffer(sock: socket.socket, force: int, plain: int, size_bytes: int) -> None:
    """As much as is wanted, or as much as an ordinary user gets."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, force, size_bytes)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, plain, size_bytes)


class Outlet:
    """A socket to send from, with its source port.

    Attributes:
        blocked: the kernel took no more; it will say when it does.
        watched: that is waited for.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sport = int(sock.getsockname()[1])
        self.blocked = self.watched = False
        self._fd = sock.fileno()
        self._ancillary: dict[int, list[tuple[int, int, bytes]]] = {}

    def send(self, buffers: Buffers, segment: int, to: Address) -> bool:
        """Send packets of `segment` bytes each (the last may be shorter; 0: one packet); False if there is no room.

        Raises:
            RunError: the packets are too large for the way.
        """
        ancillary = self._ancillary.get(segment)
        if ancillary is None:
            told = [(socket.IPPROTO_UDP, UDP_SEGMENT, _SEGMENT.pack(segment))] if segment else []
            ancillary = self._ancillary[segment] = told
        try:
            self.sock.sendmsg(buffers, ancillary, 0, to)
        except BlockingIOError:
            self.blocked = True
            return False
        except OSError as error:
            _refuse(error, segment or sum(map(len, buffers)), str(to[0]))
        return True

    def send_middles(self, middles: MiddleSender, at: int, count: int, to: Address, *, ack_request: bool) -> int:
        """Send middle packets; how many left: there was room for no more.

        Raises:
            RunError: the packets are too large for the way.
        """
        try:
            sent = middles.send(self._fd, at, count, ack_request=ack_request)
        except OSError as error:
            _refuse(error, middles.segment, str(to[0]))
            return min(count, middles.segments)
        self.blocked = sent < count
        return sent


def _refuse(error: OSError, size: int, to: str) -> None:
    """Say why the kernel does not send; return if that may be over soon.

    Raises:
        RunError: it will not.
    """
    if error.errno == errno.EMSGSIZE:
        raise RunError(
            f"packets of {size} bytes are too large for the way to {to}.",
            fix="choose a smaller path MTU (--transport-option mtu=1024), or raise the links' MTU.",
        ) from error
    if error.errno not in _PASSING:
        raise RunError(f"cannot send to {to}: {os.strerror(error.errno or 0)}.") from error


_PASSING: Final = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENOBUFS, errno.EPERM}
"""What may be over when the packet is sent again; a firewall's EPERM becomes a time-out with a sentence of its own."""


def troubles(sock: socket.socket) -> list[tuple[str, int]]:
    """(address, errno) of what routers and hosts said about packets sent from here; empties the queue."""
    found = []
    with contextlib.suppress(OSError):
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        while True:
            _, ancillary, _, to = sock.recvmsg(0, _ERROR_BYTES, _MSG_ERRQUEUE)
            for level, kind, data in ancillary:
                if (level, kind) in {(socket.IPPROTO_IP, _IP_RECVERR), (socket.IPPROTO_IPV6, _IPV6_RECVERR)}:
                    found.append((str(to[0]), int(_EXTENDED_ERROR.unpack_from(data)[0])))
    return found
