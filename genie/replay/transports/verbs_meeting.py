"""What the ends of queue pairs must know of each other, told over the connections that the handshake made."""

from __future__ import annotations

import json
import selectors
import socket
import struct
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from genie.errors import RunError
from genie.replay.clock import Clock
from genie.replay.transports.verbs_connection import Target
from genie.replay.transports.verbs_library import PeerEnd
from genie.units import NS_PER_S

MAX_WORDS_BYTES: Final = 64 << 10
_LENGTH: Final = struct.Struct("!I")
_MAX_QUEUE_PAIR: Final = (1 << 24) - 1
_MAX_KEY: Final = (1 << 32) - 1
_MAX_ADDRESS: Final = (1 << 64) - 1


class Meeting:
    """Everybody tells everybody something, as often as called.

    Args:
        rank: ours.
        outgoing, incoming: peer -> a connected, non-blocking socket.
        clock: against which deadlines are held.
    """

    def __init__(
        self, rank: int, outgoing: Mapping[int, socket.socket], incoming: Mapping[int, socket.socket], clock: Clock
    ) -> None:
        self._rank, self._outgoing, self._incoming, self._clock = rank, outgoing, incoming, clock

    def exchange(self, told: Mapping[int, Any], deadline_ns: int) -> dict[int, Any]:
        """Tell each peer its part of `told` (plain JSON values); what each told us.

        Raises:
            RunError: names the peers that said nothing in time, hung up, or said what is no JSON.
        """
        heard: dict[int, Any] = {}
        buffers = {peer: bytearray() for peer in self._incoming}
        with selectors.DefaultSelector() as selector:
            for peer, words in told.items():
                data = json.dumps(words).encode()
                self._outgoing[peer].sendall(_LENGTH.pack(len(data)) + data)  # a new connection has room for it
                selector.register(self._incoming[peer], selectors.EVENT_READ, partial(self._hear, peer))
            while len(heard) < len(told):
                left_ns = deadline_ns - self._clock.now_ns()
                if left_ns <= 0:
                    raise self._missing(set(told) - set(heard), "it has told us nothing")
                for key, _ in selector.select(left_ns / NS_PER_S):
                    if key.data(buffers, heard):
                        selector.unregister(key.fileobj)
        return heard

    def _hear(self, peer: int, buffers: dict[int, bytearray], heard: dict[int, Any]) -> bool:
        """Take some bytes, never more than the words; whether they are complete."""
        buffer = buffers[peer]
        try:
            data = self._incoming[peer].recv(_left(buffer))
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._missing({peer}, str(error.strerror)) from error
        if not data:
            raise self._missing({peer}, "it hung up")
        buffer += data
        if _left(buffer) > MAX_WORDS_BYTES:
            raise self._missing({peer}, "what it says is too long")
        if _left(buffer):
            return False
        try:
            heard[peer] = json.loads(buffer[_LENGTH.size :])
        except ValueError as error:
            raise self._missing({peer}, "what it says is no JSON") from error
        return True

    def _missing(self, peers: set[int], why: str) -> RunError:
        named = ", ".join(f"{peer} ({why})" for peer in sorted(peers))
        return RunError(
            f"no connection with ranks {named} in time.",
            where=f"rank {self._rank}",
            fix="did those ranks start, and can packets pass between the hosts?",
        )


def _left(buffer: bytearray) -> int:
    """Bytes still to come of what a peer says: first its length, then so many."""
    if len(buffer) < _LENGTH.size:
        return _LENGTH.size - len(buffer)
    return int(_LENGTH.unpack_from(buffer)[0]) + _LENGTH.size - len(buffer)


def describe(pairs: list[tuple[int, int]], target: list[Target], shape: tuple[int, int, int]) -> dict[str, Any]:
    """For one peer: our queue pairs' numbers and first packets, where their slots are, and how many of which size."""
    return {"pairs": pairs, "targets": [list(one) for one in target], "shape": list(shape)}


def parse_description(
    words: Any, flows: int, shape: tuple[int, int, int], gid: str, lid: int
) -> list[tuple[PeerEnd, Target]]:
    """What a peer described, one a queue pair.

    Raises:
        RunError: it is incomplete, out of range, or has other slots than we.
    """
    try:
        pairs = [(int(number), int(packet)) for number, packet in words["pairs"]]
        targets = [Target(int(address), int(key)) for address, key in words["targets"]]
        theirs = tuple(int(number) for number in words["shape"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError("what it says of its queue pairs is no description of ours.") from error
    numbers = [number for pair in pairs for number in pair]
    good = all(0 <= number <= _MAX_QUEUE_PAIR for number in numbers)
    good = good and all(0 <= t.address <= _MAX_ADDRESS and 0 <= t.key <= _MAX_KEY for t in targets)
    if not good or len(pairs) != flows or len(targets) != flows:
        raise RunError("what it says of its queue pairs is no description of ours.")
    if theirs != shape:
        raise RunError(
            f"it has landing slots of another shape: {theirs}, not {shape}.", fix="give all ranks the same options."
        )
    return [(PeerEnd(*pair, gid, lid), target) for pair, target in zip(pairs, targets, strict=True)]
