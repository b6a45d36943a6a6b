"""Messages between ranks of one process, for tests: the hub keeps them, a delay may be put on their way."""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from genie.errors import RunError
from genie.replay.clock import Clock, RealClock
from genie.replay.transports.base import Completion, Endpoint, Kind
from genie.replay.transports.matching import Arrived, Matcher, Posted, Tally
from genie.units import NS_PER_S


class Hub:
    """What connects the memory transports of one run; every rank may live in a thread of its own.

    With any clock but the real one, waiting moves the clock: then one thread drives all ranks, and every run of it is
    the same.

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

    def wait_until_ns(self, until_ns: int) -> None:
        """Until a time, or until another thread did something (the hub's lock is held)."""
        if isinstance(self.clock, RealClock):
            self.condition.wait((until_ns - self.clock.now_ns()) / NS_PER_S)
        else:
            self.clock.sleep_until_ns(until_ns)


class _Message(NamedTuple):
    """On its way. `handle` is the sender's."""

    source: int
    destination: int
    handle: int
    tag: int
    size_bytes: int
    posted_ns: int


class MemoryTransport:
    """See base.Transport."""

    def __init__(self, rank: int, hub: Hub) -> None:
        self._rank, self._hub = rank, hub
        self._matcher, self._tally = Matcher(), Tally()
        self._due: list[tuple[int, int, _Message]] = []
        self._serial = 0
        self._ready: list[Completion] = []
        self._peers: set[int] = set()
        self._sending: Counter[int] = Counter()
        self._coming: Counter[int] = Counter()
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
                if self._hub.clock.now_ns() >= deadline_ns:
                    names = ", ".join(map(str, missing))
                    raise RunError(f"no connection with ranks {names} in time.", where=f"rank {self._rank}")
                self._hub.wait_until_ns(deadline_ns)
        self._peers = set(peers)

    def post_send(self, handle: int, peer: int, tag: int, size_bytes: int) -> None:
        """See base.Transport."""
        with self._hub.condition:
            if peer not in self._peers:
                raise RunError(f"rank {peer} is not connected.", where=f"rank {self._rank}")
            end = self._hub.ends.get(peer)
            if end is None:
                raise self._lost(peer)
            now_ns = self._hub.clock.now_ns()
            due_ns = self._hub.delivery_ns(self._rank, size_bytes, now_ns)
            message = _Message(self._rank, peer, handle, tag, size_bytes, now_ns)
            end.schedule(due_ns, message)
            self.schedule(due_ns, message)
            self._hub.condition.notify_all()

    def schedule(self, due_ns: int, message: _Message) -> None:
        """Let a message arrive, or be acknowledged, at a time (the hub's lock is held)."""
        self._serial += 1
        heapq.heappush(self._due, (due_ns, self._serial, message))
        if message.source == self._rank:
            self._sending[message.destination] += 1
        else:
            self._coming[message.source] += 1

    def post_recv(self, handle: int, peer: int, tag: int, size_bytes: int) -> None:
        """See base.Transport."""
        with self._hub.condition:
            posted = Posted(handle, self._hub.clock.now_ns())
            arrived = self._matcher.post((peer, tag, size_bytes), posted)
            if arrived is not None:
                self._complete(posted, arrived, peer)

    def _complete(self, posted: Posted, arrived: Arrived, peer: int) -> None:
        self._ready.append(Completion(posted.handle, Kind.RECV, peer, posted.posted_ns, *arrived))

    def poll(self, timeout_ns: int) -> list[Completion]:
        """See base.Transport."""
        deadline_ns = self._hub.clock.now_ns() + timeout_ns
        with self._hub.condition:
            while True:
                now_ns = self._hub.clock.now_ns()
                self._deliver(now_ns)
                self._check_peers()
                if self._ready or now_ns >= deadline_ns:
                    break
                self._hub.wait_until_ns(min(deadline_ns, self._due[0][0] if self._due else deadline_ns))
        ready, self._ready = self._ready, []
        return ready

    def _check_peers(self) -> None:
        """A peer that leaves with nothing outstanding is merely done; what it sent before still comes."""
        for peer in self._peers - self._hub.ends.keys():
            if self._sending[peer] or (self._matcher.expected_from(peer) and not self._coming[peer]):
                raise self._lost(peer)

    def _lost(self, peer: int) -> RunError:
        totals = {way: peers.get(peer, [0, 0])[1] for way, peers in self._tally.totals().items()}
        return RunError(
            f"rank {peer} is gone; {self._sending[peer]} sends to it and {self._matcher.expected_from(peer)} receives "
            f"from it were outstanding; {totals['sent']} bytes had gone to it and {totals['received']} come from it.",
            where=f"rank {self._rank}",
            fix=f"look at what ended rank {peer}.",
        )

    def _deliver(self, now_ns: int) -> None:
        while self._due and self._due[0][0] <= now_ns:
            due_ns, _, message = heapq.heappop(self._due)
            self._moved_bytes += message.size_bytes
            if message.source == self._rank:
                self._on_acknowledgement(message, due_ns)
            else:
                self._on_arrival(message, due_ns)

    def _on_acknowledgement(self, message: _Message, due_ns: int) -> None:
        peer, posted_ns = message.destination, message.posted_ns
        self._sending[peer] -= 1
        self._tally.sent(peer, message.size_bytes)
        self._ready.append(Completion(message.handle, Kind.SEND, peer, posted_ns, posted_ns, due_ns, 0))

    def _on_arrival(self, message: _Message, due_ns: int) -> None:
        source = message.source
        self._coming[source] -= 1
        self._tally.received(source, message.size_bytes)
        arrived = Arrived(message.posted_ns, due_ns, 0)
        posted = self._matcher.arrive((source, message.tag, message.size_bytes), arrived)
        if posted is not None:
            self._complete(posted, arrived, source)

    def cancel(self, handle: int) -> bool:
        """See base.Transport; a send has always started."""
        with self._hub.condition:
            return self._matcher.cancel(handle)

    def moved(self) -> Mapping[str, Any]:
        """See base.Transport."""
        return self._tally.totals()

    def progress_bytes(self) -> int:
        """See base.Transport."""
        return self._moved_bytes

    def close(self) -> None:
        """See base.Transport."""
        with self._hub.condition:
            self._hub.ends.pop(self._rank, None)
            self._hub.condition.notify_all()
