"""Datagrams between all NICs of a fabric: which arrive, with which DSCP and ECN bits, how large they may be."""

from __future__ import annotations

import contextlib
import itertools
import random
import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from genie.core.testbed import Endpoint
from genie.testbed.emulated import EmulatedFabric
from genie.testbed.namespaces import inside

PORT: Final = 4789
UDP_IP_BYTES: Final = 28
ALL_PAIRS: Final = 32
"""Up to so many NICs all pairs are tried, beyond, each NIC with so many others."""

TRIES, TRIES_WITH_LOSSES = 2, 8
PATIENCE_S: Final = 0.25
_IP_TOS, _IP_RECVERR, _IP_RECVTOS, _IP_MTU_DISCOVER, _PROBE = 1, 11, 13, 10, 3
_TOLD: Final = struct.Struct("=IIB")
_ANCILLARY_BYTES: Final = 512
_OFFENDER_AT: Final = 16 + 4
"""Where the address of who complained is in an extended error (ip(7)): behind the error, in a sockaddr."""

Pair = tuple[Endpoint, Endpoint]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A datagram that came: its TOS byte when sent and when received."""

    sent_tos: int
    tos: int


def pairs_of(ends: Sequence[Endpoint], seed: int = 1) -> list[Pair]:
    """All ordered pairs of NICs of different hosts, or a sample of many."""
    if len(ends) <= ALL_PAIRS:
        return [(a, b) for a, b in itertools.permutations(ends, 2) if a.host != b.host]
    draw, found = random.Random(seed), []
    for end in ends:
        others = [other for other in draw.sample(ends, ALL_PAIRS) if other.host != end.host]
        found += [(end, other) for other in others]
    return found


class Mesh:
    """A socket on every NIC; close it after use."""

    def __init__(self, fabric: EmulatedFabric) -> None:
        self._fabric, self._stack = fabric, contextlib.ExitStack()
        self.ends = list(fabric.nics())
        self._number = {end: at for at, end in enumerate(self.ends)}
        self._sockets = [self._open(end) for end in self.ends]
        self._tries = TRIES_WITH_LOSSES if any(cable.loss_ppm for cable in fabric.testbed.cables) else TRIES
        self.complaints: dict[Pair, str] = {}

    def _open(self, end: Endpoint) -> socket.socket:
        with inside(self._fabric.namespace_fd(end)):
            sock = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        for option, value in ((_IP_RECVERR, 1), (_IP_RECVTOS, 1), (_IP_MTU_DISCOVER, _PROBE)):
            sock.setsockopt(socket.IPPROTO_IP, option, value)
        sock.bind((self._fabric.address(end), PORT))
        sock.settimeout(0)
        return sock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def send(self, pairs: Iterable[Pair], ip_bytes: int, tos: int = 0) -> dict[Pair, Arrival]:
        """One datagram of that many IP bytes for every pair, again if it does not come; those that came.

        Who says that a packet is too large is remembered in `complaints`.
        """
        wanted, came = set(pairs), dict[Pair, Arrival]()
        self.complaints = {pair: who for pair, who in self.complaints.items() if pair not in wanted}
        for _ in range(self._tries):
            missing = sorted(wanted - came.keys())
            if not missing:
                break
            for source, row in itertools.groupby(missing, key=lambda pair: pair[0]):
                came |= self._burst(source, [pair[1] for pair in row], ip_bytes, tos)
        return came

    def _burst(self, source: Endpoint, to: Sequence[Endpoint], ip_bytes: int, tos: int) -> dict[Pair, Arrival]:
        """From one NIC to others; waits until all have come, or nothing comes any more."""
        sock, came = self._sockets[self._number[source]], dict[Pair, Arrival]()
        sock.setsockopt(socket.IPPROTO_IP, _IP_TOS, tos)
        for end in to:
            told = _TOLD.pack(self._number[source], self._number[end], tos)
            content = told.ljust(ip_bytes - UDP_IP_BYTES, b"\0")
            with contextlib.suppress(OSError):  # an error of an earlier one is told by the next: read below
                sock.sendto(content, (self._fabric.address(end), PORT))
        waiting = [self._sockets[self._number[end]] for end in to]
        deadline = time.monotonic() + PATIENCE_S * len(to)
        while len(came) < len(to) and time.monotonic() < deadline:
            ready = select.select([*waiting, sock], [], [], PATIENCE_S)[0]
            if not ready:
                break
            self._complain(sock, source)
            came |= dict(found for one in ready for found in self._read(one))
            if all((source, end) in came or (source, end) in self.complaints for end in to):
                break
        return came

    def _read(self, sock: socket.socket) -> Iterator[tuple[Pair, Arrival]]:
        with contextlib.suppress(OSError):
            while True:
                words, ancillary, _, _ = sock.recvmsg(_TOLD.size, _ANCILLARY_BYTES)
                source, destination, sent_tos = _TOLD.unpack(words)
                tos = next((value[0] for level, kind, value in ancillary if (level, kind) == (0, _IP_TOS)), 0)
                yield (self.ends[source], self.ends[destination]), Arrival(sent_tos, tos)

    def _complain(self, sock: socket.socket, source: Endpoint) -> None:
        """Read the errors that routers sent back."""
        with contextlib.suppress(OSError):
            while True:
                words, ancillary, _, _ = sock.recvmsg(_TOLD.size, _ANCILLARY_BYTES, socket.MSG_ERRQUEUE)
                if len(words) < _TOLD.size:
                    continue
                _, destination, _ = _TOLD.unpack(words)
                for level, kind, value in ancillary:
                    if (level, kind) == (0, _IP_RECVERR):
                        offender = socket.inet_ntoa(value[_OFFENDER_AT : _OFFENDER_AT + 4])
                        self.complaints[source, self.ends[destination]] = offender

    def largest(self, pair: Pair, at_most: int) -> int:
        """IP bytes of the largest datagram that passes, by halving; 0 if none does."""
        low, high = UDP_IP_BYTES + _TOLD.size, at_most
        if not self.send([pair], low):
            return 0
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.send([pair], middle) else (low, middle - 1)
        return low
