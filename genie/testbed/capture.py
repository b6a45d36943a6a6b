"""Captures on ports of an emulated fabric: one process a port, headers only, in pcap files.

What leaves a port and what comes in are both seen; super-packets are seen whole (genie pcap takes them apart).
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Self

from genie.errors import InputError, NotReadyError
from genie.formats.pcap import Frame, pcap_header, pcap_record
from genie.testbed.namespaces import die_with_parent
from genie.units import NS_PER_S

FRAME_BYTES: Final = 256
"""A slot of the ring that the kernel fills: room for all headers of a packet, and no payload to speak of."""

FRAMES: Final = 1 << 17
_BLOCK_BYTES: Final = 1 << 20
_ALL: Final = 0x0003
_SOL_PACKET, _RX_RING, _STATISTICS, _VERSION, _VERSION_2 = 263, 5, 6, 10, 1
_RING: Final = struct.Struct("=IIII")
_HEADER: Final = struct.Struct("=IIIHHII")
_STATUS: Final = struct.Struct("=I")
_FILLED: Final = 1
_POLL_S: Final = 0.1
_FLUSH_BYTES: Final = 1 << 20
_READY: Final = b"."
_LOST: Final = 75
"""Exit code of a recording process that could not keep up."""


class Recorder(AbstractContextManager["Recorder"]):
    """Records for as long as this context lasts.

    Args:
        ports: (name, how to enter its namespace, interface) of each.
        folder: where NAME.pcap go.

    Attributes:
        notes: captures that lack packets, in sentences.

    Raises:
        NotReadyError: no permission to capture.
    """

    def __init__(self, ports: Sequence[tuple[str, Callable[[], None], str]], folder: Path) -> None:
        self._ports, self._folder = ports, folder
        self.notes: list[str] = []
        self._children: list[tuple[str, int]] = []

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, enter, interface in self._ports:
            read_end, write_end = os.pipe()
            path = self._folder / f"{name.replace('>', '-to-')}.pcap"
            pid = os.fork()
            if pid == 0:
                os._exit(_record(enter, interface, path, write_end))
            os.close(write_end)
            self._children.append((name, pid))
            with os.fdopen(read_end, "rb") as stream:
                word = stream.read()
            if word != _READY:
                self.__exit__(None, None, None)
                raise NotReadyError(f"cannot capture on {name}: {word.decode()}.", fix="run as root.")
        return self

    def __exit__(self, *_: object) -> None:
        for name, pid in self._children:
            os.kill(pid, signal.SIGTERM)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if code:
                lost = "lost packets: the machine was too busy" if code == _LOST else f"broke off (code {code})"
                self.notes.append(f"the capture on {name} {lost}.")
        self._children = []

    @property
    def files(self) -> list[Path]:
        """What was written."""
        return sorted(self._folder.glob("*.pcap"))


def _record(enter: Callable[[], None], interface: str, path: Path, ready: int) -> int:
    """The whole life of a recording process; its exit code."""
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        enter()
        die_with_parent()
        sock, ring = _ring(interface)
        file = path.open("wb")
        file.write(pcap_header(FRAME_BYTES))
    except (OSError, NotReadyError) as error:
        os.write(ready, str(getattr(error, "strerror", error)).encode())
        return 1
    os.write(ready, _READY)
    os.close(ready)
    with file, sock:
        _copy(sock, ring, file.write, lambda: bool(stop))
        return _LOST if _STATUS.unpack_from(sock.getsockopt(_SOL_PACKET, _STATISTICS, 8), 4)[0] else 0


def _ring(interface: str) -> tuple[socket.socket, mmap.mmap]:
    """A packet socket whose packets the kernel copies, cut short, into memory that is ours, too (packet(7))."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.setsockopt(_SOL_PACKET, _VERSION, _VERSION_2)
    blocks = FRAMES * FRAME_BYTES // _BLOCK_BYTES
    sock.setsockopt(_SOL_PACKET, _RX_RING, _RING.pack(_BLOCK_BYTES, blocks, FRAME_BYTES, FRAMES))
    ring = mmap.mmap(sock.fileno(), FRAMES * FRAME_BYTES)
    sock.bind((interface, _ALL))
    return sock, ring


def _copy(sock: socket.socket, ring: mmap.mmap, write: Callable[[bytes], object], stopped: Callable[[], bool]) -> None:
    """Until told to stop and nothing is left."""
    at, pending = 0, bytearray()
    while True:
        status, length, captured, mac, _, seconds, ns = _HEADER.unpack_from(ring, at)
        if not status & _FILLED:
            write(bytes(pending))
            pending.clear()
            if not select.select([sock], [], [], _POLL_S)[0] and stopped():
                return
            continue
        data = ring[at + mac : at + mac + captured]
        pending += pcap_record(Frame(seconds * NS_PER_S + ns, data, length))
        _STATUS.pack_into(ring, at, 0)
        at = (at + FRAME_BYTES) % len(ring)
        if len(pending) > _FLUSH_BYTES:
            write(bytes(pending))
            pending.clear()


def chosen_ports(wanted: str, links: Sequence[str]) -> list[str]:
    """The links that a comma-separated list means: links (``h0>leaf0``) or nodes (``h0``: the first link from there).

    Raises:
        InputError: one of them is not in the testbed.
    """
    found = []
    for word in wanted.split(","):
        matching = [link for link in links if word in {link, link.split(">")[0]}]
        if not matching:
            raise InputError(f"there is no port {word!r}.", where="--capture", fix="genie testbed show lists links.")
        found.append(matching[0])
    return found
