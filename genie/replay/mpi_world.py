"""The processes that mpirun starts: world rank 0 passes bytes between the launcher and the ranks, the rest are ranks.

The only module that uses mpi4py. Nothing is pickled; what is sent are bytes. Open MPI spins in blocking calls, which
would take the processor from the ranks, so a wait is a look now and then with sleeps between.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from mpi4py import MPI

from genie.errors import RunError
from genie.replay.control import Channel, Message, encoded

RELAY: Final = 0
_PIECE_BYTES: Final = 1 << 20
_SHORTEST_S: Final = 0.0005
_LONGEST_S: Final = 0.02
_HELLO_BYTES: Final = 4
_END: Final = b""


class World:
    """All processes of the job."""

    def __init__(self) -> None:
        self._comm: Any = MPI.COMM_WORLD
        self.me = int(self._comm.Get_rank())
        self.ranks = int(self._comm.Get_size()) - 1

    @property
    def library(self) -> str:
        """Name and version of the MPI library."""
        return str(MPI.Get_library_version()).split("\0")[0].split(",")[0].strip()

    def share(self, data: bytes) -> bytes:
        """World rank 0's bytes, at everybody."""
        size = np.array([len(data)], np.int64)
        self._comm.Bcast(size, root=RELAY)
        content = np.frombuffer(data, np.uint8).copy() if self.me == RELAY else np.empty(int(size[0]), np.uint8)
        self._comm.Bcast(content, root=RELAY)
        return content.tobytes()

    def together(self) -> None:
        """Wait until everybody is here."""
        self._comm.Barrier()

    def send(self, data: bytes, to: int) -> None:
        """Bytes to another process."""
        self._comm.Send([np.frombuffer(data, np.uint8), MPI.BYTE], dest=to)

    def receive(self) -> tuple[int, bytes] | None:
        """(from whom, bytes) of what is here; None if nothing is."""
        status = MPI.Status()
        if not self._comm.Iprobe(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status):
            return None
        content = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        self._comm.Recv([content, MPI.BYTE], source=status.Get_source(), tag=status.Get_tag())
        return int(status.Get_source()), content.tobytes()


class WorldChannel(Channel):
    """A rank's control channel by way of world rank 0."""

    def __init__(self, world: World) -> None:
        ours, theirs = socket.socketpair()  # the messages' own format, read from what came by MPI
        super().__init__(ours)
        self._feed, self._world = theirs, world

    def send(self, message: Message, block: bytes = b"") -> None:
        """See Channel."""
        data = encoded(message, block)
        for at in range(0, len(data), _PIECE_BYTES):
            self._world.send(data[at : at + _PIECE_BYTES], RELAY)

    def ready(self) -> bool:
        """See Channel."""
        return super().ready() or self._take()

    def _take(self) -> bool:
        found = self._world.receive()
        if found is None:
            return False
        if found[1] == _END:
            self._feed.close()
        else:
            self._feed.sendall(found[1])
        return True

    def receive(self) -> tuple[Message, bytes]:
        """See Channel."""
        while not self.ready():
            time.sleep(_SHORTEST_S)
        return super().receive()


def relay(world: World, path: Path) -> None:
    """World rank 0: a connection to the launcher for every rank, bytes passed on until the launcher hangs up.

    Raises:
        RunError: the launcher cannot be reached.
    """
    sockets = {rank: _connected(path, rank) for rank in range(world.ranks)}
    pause_s = _SHORTEST_S
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for rank, sock in sockets.items():
            stack.enter_context(sock)
            selector.register(sock, selectors.EVENT_READ, rank)
        while selector.get_map():
            busy = _downwards(world, selector, pause_s)
            busy |= _upwards(world, sockets)
            pause_s = _SHORTEST_S if busy else min(2 * pause_s, _LONGEST_S)


def _connected(path: Path, rank: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(str(path))
        sock.sendall(rank.to_bytes(_HELLO_BYTES, "big"))
    except OSError as error:
        sock.close()
        raise RunError(
            f"the launcher cannot be reached from the first host: {error.strerror}.",
            fix="start genie on the first host of the hostfile.",
        ) from error
    return sock


def _downwards(world: World, selector: selectors.BaseSelector, pause_s: float) -> bool:
    busy = False
    for key, _ in selector.select(pause_s):
        sock, busy = key.fileobj, True
        try:
            piece = sock.recv(_PIECE_BYTES)  # type: ignore[union-attr]
        except OSError:
            piece = _END
        if piece == _END:
            selector.unregister(key.fileobj)
        world.send(piece, key.data + 1)
    return busy


def _upwards(world: World, sockets: dict[int, socket.socket]) -> bool:
    busy = False
    while (found := world.receive()) is not None:
        busy = True
        with contextlib.suppress(OSError):  # the launcher hung up; it wants nothing more
            sockets[found[0] - 1].sendall(found[1])
    return busy


def run(bundle: Callable[[], bytes], path: Path, live: Callable[[int, bytes, WorldChannel], int]) -> int:
    """The life of one process of the job; its exit code.

    Args:
        bundle: what world rank 0 shares with all.
        path: the launcher's socket.
        live: a rank's life, given its number, the bundle, and its channel.
    """
    world = World()
    shared = world.share(bundle() if world.me == RELAY else b"")
    world.together()
    if world.me == RELAY:
        relay(world, path)
        return 0
    return live(world.me - 1, shared, WorldChannel(world))
