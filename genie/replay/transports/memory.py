"""Messages between ranks of one process, for tests: the hub keeps them, a delay may be put on their way."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Mapping
from typing import Any

from genie.errors import RunError
from genie.replay.clock import Clock, RealClock
from genie.replay.transports.base import Completion, Endpoint, Kind
from genie.replay.transports.matching import Arrived, Matcher, Posted
from genie.replay.transports.tcp import count


class Hub:
    """What connects the memory transports of one run; every rank may live in a thread of its own.

    Args:
        latency_ns: real time from post to delivery of an empty message.
        bytes_per_ns: what each rank's outgoing link carries; 0: infinitely much.
        clock: who says what time it is.
    """

    def __init__(self, latency_ns: int = 0, bytes_per_ns: float = 0.0, clock: Clock | None = None) -> None:
        self.latency_ns, self.bytes_per_ns, self.clock = latency_ns, bytes_per_ns, clock or RealClock()
        self.condition = threading.Condition()
        self.ends: dict[int, MemoryTransport] = {}
        self._free_at_ns: dict[int, int] = {}

    def delivery_ns(self, source: int, size_bytes: int, now_ns: int) -> int:
        """When a message posted now is delivered, behind what its sender sent before."""
        start_ns = max(now_ns, self._free_at_ns.get(source, 0))
        busy_ns = int(size_bytes / self.bytes_per_ns) if self.bytes_per_ns else 0
        self._free_at_ns[source] = start_ns + busy_ns
        return start_ns + busy_ns + self.latency_ns


class MemoryTransport:
    """See base.Transport."""

    def __init__(self, rank: int, hub: Hub) -> None:
        self._rank, self._hub = rank, hub
        self._matcher = Matcher()
        self._due: list[tuple[int, int, tuple[Any, ...]]] = []
        self._serial = 0
        self._ready: list[Completion] = []
        self._sent: dict[int, list[int]] = {}
        self._received: dict[int, list[int]] = {}
        self._peers: set[int] = set()
        self._moved_bytes = 0

    def open(self) -> Endpoint:
        """See base.Transport."""
        with self._hub.condition:
            self._hub.ends[self._rank] = self
            self._hub.condition.notify_all()
        return {"memory": self._rank}

    def connect(self, peers: Mapping[int, Endpoint], deadline_ns: int) -> None:
        """See base.Transport."""
        with self._hub.condition:
            while missing := [peer for peer in peers if peer not in self._hub.ends]:
                left_ns = deadline_ns - self._hub.clock.now_ns()
                if left_ns <= 0:
                    names = ", ".join(map(str, missing))
                    raise RunError(f"no connection with ranks {names} in time.", where=f"rank {self._rank}")
                self._hub.condition.wait(left_ns / 1e9)
        self._peers = set(peers)

    def post_send(self, handle: int, peer: int, tag: int, size_bytes: int) -> None:
        """See base.Transport."""
        with self._hub.condition:
            end = self._hub.ends.get(peer)
            if end is None or peer not in self._peers:
                raise RunError(f"rank {peer} is not connected.", where=f"rank {self._rank}")
            now_ns = self._hub.clock.now_ns()
            due_ns = self._hub.delivery_ns(self._rank, size_bytes, now_ns)
            end.schedule(due_ns, ("arrive", self._rank, tag, size_bytes, now_ns, due_ns))
            self.schedule(due_ns, ("sent", handle, peer, size_bytes, now_ns, due_ns))
            self._hub.condition.notify_all()

    def schedule(self, due_ns: int, what: tuple[Any, ...]) -> None:
        """Let something happen at a time (the hub's lock is held)."""
        self._serial += 1
        heapq.heappush(self._due, (due_ns, self._serial, what))

    def post_recv(self, handle: int, peer: int, tag: int, size_bytes: int) -> None:
        """See base.Transport."""
        with self._hub.condition:
            posted = Posted(handle, self._hub.clock.now_ns())
            arrived = self._matcher.post((peer, tag, size_bytes), posted)
            if arrived is not None:
                self._complete(posted, arrived, peer)

    def _complete(self, posted: Posted, arrived: Arrived, peer: int) -> None:
        self._ready.append(
            Completion(posted.handle, Kind.RECV, peer, posted.posted_ns, arrived.first_byte_ns, arrived.done_ns, 0)
        )

    def poll(self, timeout_ns: int) -> list[Completion]:
        """See base.Transport."""
        deadline_ns = self._hub.clock.now_ns() + timeout_ns
        with self._hub.condition:
            while True:
                self._check_peers()
                now_ns = self._hub.clock.now_ns()
                self._deliver(now_ns)
                if self._ready or now_ns >= deadline_ns:
                    break
                until_ns = min(deadline_ns, self._due[0][0] if self._due else deadline_ns)
                self._hub.condition.wait((until_ns - now_ns) / 1e9)
        ready, self._ready = self._ready, []
        return ready

    def _check_peers(self) -> None:
        for peer in self._peers:
            if peer not in self._hub.ends and self._matcher.expected_from(peer):
                raise RunError(
                    f"rank {peer} is gone; {self._matcher.expected_from(peer)} receives from it were outstanding.",
                    where=f"rank {self._rank}",
                )

    def _deliver(self, now_ns: int) -> None:
        while self._due and self._due[0][0] <= now_ns:
            _, _, (what, *rest) = heapq.heappop(self._due)
            if what == "sent":
                self._on_sent(*rest)
            else:
                self._on_arrival(*rest)

    def _on_sent(self, handle: int, peer: int, size_bytes: int, posted_ns: int, due_ns: int) -> None:
        count(self._sent, peer, size_bytes)
        self._moved_bytes += size_bytes
        self._ready.append(Completion(handle, Kind.SEND, peer, posted_ns, posted_ns, due_ns, 0))

    def _on_arrival(self, source: int, tag: int, size_bytes: int, posted_ns: int, due_ns: int) -> None:
        count(self._received, source, size_bytes)
        self._moved_bytes += size_bytes
        arrived = Arrived(posted_ns, due_ns, 0)
        posted = self._matcher.arrive((source, tag, size_bytes), arrived)
        if posted is not None:
            self._complete(posted, arrived, source)

    def cancel(self, handle: int) -> bool:
        """See base.Transport; a send has always started."""
        with self._hub.condition:
            return self._matcher.cancel(handle)

    def moved(self) -> Mapping[str, Any]:
        """See base.Transport."""
        return {
            "sent": {peer: list(total) for peer, total in self._sent.items()},
            "received": {peer: list(total) for peer, total in self._received.items()},
        }

    def progress_bytes(self) -> int:
        """See base.Transport."""
        return self._moved_bytes

    def close(self) -> None:
        """See base.Transport."""
        with self._hub.condition:
            self._hub.ends.pop(self._rank, None)
            self._hub.condition.notify_all()
