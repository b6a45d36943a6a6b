"""What the runner asks of a transport: one rank's end of the connections to all its peers.

A transport is driven by one thread, never blocks outside `connect` and `poll`, and reports in CLOCK_MONOTONIC ns
(real time; the runner knows about dilation). Matching is by (source, tag, size_bytes), first with first, so that a
receive may be posted before or after its message arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple, Protocol, runtime_checkable

Endpoint = Mapping[str, Any]
"""How others reach this end: plain JSON values, exchanged by the launcher."""


class Kind(Enum):
    """What completed."""

    SEND = "send"
    RECV = "recv"


class Completion(NamedTuple):
    """One finished post.

    Attributes:
        handle: as given to post_send or post_recv.
        kind: which of the two.
        peer: the other rank.
        posted_ns: when it was posted here.
        first_byte_ns: RECV: first byte of the message seen here; SEND: first byte handed to the network. -1: unknown.
        done_ns: RECV: last byte here, as near to the wire as the transport can tell (may precede the receive's post);
            SEND: the peer's acknowledgement of the whole message.
        flow: number of the connection that carried it (0, 1, ... per ordered pair of ranks).
    """

    handle: int
    kind: Kind
    peer: int
    posted_ns: int
    first_byte_ns: int
    done_ns: int
    flow: int


@runtime_checkable
class Counting(Protocol):
    """A transport that can tell more than what it moved: retransmissions, marks, errors."""

    def statistics(self) -> Mapping[str, int]:
        """Counts by name, since it was opened."""
        ...


class Transport(Protocol):
    """One rank's end. Life: `open` -> exchange endpoints -> `connect` -> posts and polls -> `close`."""

    def open(self) -> Endpoint:
        """Bind what peers will connect to.

        Raises:
            NotReadyError: the address or device cannot be used.
        """
        ...

    def connect(self, peers: Mapping[int, Endpoint], deadline_ns: int) -> None:
        """Connect to every given peer and wait until each has connected back.

        Raises:
            RunError: names the peers missing at `deadline_ns` (CLOCK_MONOTONIC), or one that refuses us (another run's
                secret, another version).
        """
        ...

    def post_send(self, handle: int, peer: int, tag: int, size_bytes: int) -> None:
        """Queue a message; messages to one peer leave in the order of their posts.

        Raises:
            RunError: the peer is not connected or known to be gone, or the message is too large.
        """
        ...

    def post_recv(self, handle: int, peer: int, tag: int, size_bytes: int) -> None:
        """Expect a message; one that is here already completes in the next poll.

        Raises:
            RunError: the peer is known to be gone.
        """
        ...

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Move bytes; return as soon as something completed, at the latest after `timeout_ns` (0: do not wait).

        Raises:
            RunError: a peer died or broke the protocol: says which, with the bytes moved so far.
        """
        ...

    def cancel(self, handle: int) -> bool:
        """Forget a post that has not started; False if it is too late."""
        ...

    def moved(self) -> Mapping[str, Any]:
        """Messages and payload bytes so far: ``{"sent": {peer: [messages, bytes]}, "received": {...}}``."""
        ...

    def progress_bytes(self) -> int:
        """Bytes moved so far in any direction, of unfinished messages too: the watchdog's sign of life."""
        ...

    def close(self) -> None:
        """Release everything; may be called twice."""
        ...
