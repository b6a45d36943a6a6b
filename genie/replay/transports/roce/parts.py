"""A message split over all queue pairs of a peer: a part on each, whole when all parts are here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from genie.replay.transports.matching import Arrived, Key
from genie.replay.transports.roce.layout import Outgoing
from genie.replay.transports.roce.responder import Message


@dataclass(slots=True)
class _Coming:
    """Parts of a message that are here."""

    tag: int = 0
    size_bytes: int = 0
    first_byte_ns: int = 0
    done_ns: int = 0
    flows: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Going:
    """Parts of a message that are not acknowledged yet."""

    size_bytes: int
    left: int
    first_byte_ns: int = -1


class Parts:
    """Splits, and puts together again in the order of the posts; `flows` parts a message."""

    def __init__(self, flows: int) -> None:
        self._flows = flows
        self._next_out: dict[int, int] = {}
        self._next_in: dict[int, int] = {}
        self._going: dict[int, _Going] = {}
        self._coming: dict[tuple[int, int], _Coming] = {}

    def split(self, handle: int, peer: int, tag: int, size_bytes: int, now_ns: int) -> list[Outgoing]:
        """A message's parts, one a queue pair, sizes as equal as can be."""
        number = self._next_out[peer] = self._next_out.get(peer, -1) + 1
        share, rest = divmod(size_bytes, self._flows)
        self._going[handle] = _Going(size_bytes, self._flows)
        return [
            Outgoing(handle, tag, share + (flow < rest), now_ns, number & 0xFFFF_FFFF) for flow in range(self._flows)
        ]

    def acknowledged(self, part: Outgoing) -> tuple[int, int] | None:
        """(size of the whole message, when its first byte left) once its last part is acknowledged."""
        going = self._going[part.handle]
        going.left -= 1
        first_ns = part.first_byte_ns
        going.first_byte_ns = first_ns if going.first_byte_ns < 0 else min(going.first_byte_ns, first_ns)
        if going.left:
            return None
        del self._going[part.handle]
        return going.size_bytes, going.first_byte_ns

    def arrived(self, peer: int, flow: int, part: Message) -> Iterator[tuple[Key, Arrived]]:
        """The messages that are now whole, and not behind one that is not."""
        coming = self._coming.setdefault((peer, part.number), _Coming(part.tag, 0, part.first_byte_ns))
        coming.size_bytes += part.size_bytes
        coming.first_byte_ns = min(coming.first_byte_ns, part.first_byte_ns)
        coming.done_ns = max(coming.done_ns, part.done_ns)
        coming.flows.add(flow)
        number = self._next_in.get(peer, 0)
        while (whole := self._coming.get((peer, number))) is not None and len(whole.flows) == self._flows:
            del self._coming[peer, number]
            number = self._next_in[peer] = (number + 1) & 0xFFFF_FFFF
            yield (peer, whole.tag, whole.size_bytes), Arrived(whole.first_byte_ns, whole.done_ns, flow)
