"""One rank's replay: the engine, a real clock and a transport.

Virtual time is (real time - start) / dilation. An event carries the virtual time at which it *happened*: a timer's due
time, a message's last byte at the wire plus what the emulator leaves out of its way; never the time at which this
process got round to it. What follows from an event is computed from that time, so a late wake-up delays what is posted,
which is recorded as lateness, but never accumulates. docs/replay.md, "Time", has the reasons.

Events reach the engine in the order of their times. One that turns up after a later one was taken (its packet was still
in the kernel) counts as of that later one, since what it allows could not have been posted before.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from genie.core.faults import DelayChange
from genie.core.shaping import UNSHAPED, Ahead, Shaping
from genie.core.system import RemoteMemory
from genie.core.timeline import UNKNOWN
from genie.engine.events import (
    AccessMemory,
    Action,
    Event,
    OperatorDone,
    OperatorIssued,
    PostRecv,
    PostSend,
    RankFinished,
    RecvDone,
    SendDone,
    SetTimer,
    Start,
    TimerFired,
)
from genie.replay.clock import Clock
from genie.replay.record import OperatorRows, RankRecord, ReceiveRows, SendRows
from genie.replay.transports.base import Completion, Kind, Transport

IDLE_POLL_NS: Final = 50_000_000
"""Longest wait before the rank looks after its control channel."""

MAX_TOLD: Final = 10_000
"""Most posts of one kind that a rank lists when it is asked what it waits for."""


class Engine(Protocol):
    """What the runner drives: see engine.rank.RankEngine."""

    def step(self, event: Event) -> list[Action]:
        """Take one event; what is to be done."""
        ...

    def running(self) -> Sequence[int]:
        """Rows of operators issued and not done."""
        ...


@dataclass(frozen=True, slots=True)
class Pace:
    """How virtual time runs.

    Attributes:
        start_ns: real time of virtual 0 (CLOCK_MONOTONIC).
        dilation: real ns per virtual ns.
        spin_ns: last real part of a wait that is spun; 0 when ranks share cores.
    """

    start_ns: int
    dilation: int
    spin_ns: int = 0

    def virtual_ns(self, real_ns: int) -> int:
        """Real to virtual."""
        return (real_ns - self.start_ns) // self.dilation

    def real_ns(self, virtual_ns: int) -> int:
        """Virtual to real."""
        return self.start_ns + virtual_ns * self.dilation


@dataclass(slots=True)
class _Log:
    """Rows in the making."""

    operators: dict[int, list[int]] = field(default_factory=dict)
    sends: dict[int, list[int]] = field(default_factory=dict)
    expected: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    receives: list[tuple[int, ...]] = field(default_factory=list)
    sent: dict[tuple[int, int, int], int] = field(default_factory=dict)
    received: dict[tuple[int, int, int], int] = field(default_factory=dict)


_SIZE: Final = tuple(SendRows.SCHEMA).index("size_bytes")
"""Of what was sent and of what is expected alike."""

_FLOW: Final = tuple(SendRows.SCHEMA).index("flow")
_ACKNOWLEDGED: Final = tuple(SendRows.SCHEMA).index("acknowledged_ns")


def _next_index(counts: dict[tuple[int, int, int], int], key: tuple[int, int, int]) -> int:
    index = counts[key] = counts.get(key, -1) + 1
    return index


class Runner:
    """Drives one rank through one iteration.

    What the engine does at the start is worked out when this is made, so that it need not be when all ranks start.

    Args:
        engine: fresh for this iteration.
        transport: connected.
        clock: injected.
        dilation: real ns per virtual ns.
        spin_ns: see Pace.
        delays_ns: peer -> virtual one-way delay of the path from it, which this end adds: to the arrival of a message,
            and to that of an acknowledgement.
        memory: the remote memory model (that requests of several ranks queue at one pool is not modelled here).
        attend: called between events at least every 50 ms; may raise to abort.
        changes: of those delays, for a while.
        rates_bps: peer -> virtual rate of the slowest link on the path from it, where that is emulated.
        shaping: what that does to messages; this end adds what they are early by.
    """

    def __init__(
        self,
        engine: Engine,
        transport: Transport,
        clock: Clock,
        dilation: int = 1,
        spin_ns: int = 0,
        delays_ns: Mapping[int, int] | None = None,
        memory: RemoteMemory | None = None,
        attend: Callable[[], None] = lambda: None,
        changes: Sequence[DelayChange] = (),
        rates_bps: Mapping[int, int] | None = None,
        shaping: Shaping = UNSHAPED,
    ) -> None:
        self._engine, self._transport, self._clock = engine, transport, clock
        self._pace = Pace(0, dilation, spin_ns)
        self._delays_ns, self._memory, self._attend = delays_ns or {}, memory or RemoteMemory(), attend
        self._rates_bps = rates_bps or {}
        self._ahead = {kind: Ahead(shaping) for kind in Kind}
        self._changes: dict[int, list[DelayChange]] = {}
        for change in changes:
            self._changes.setdefault(change.peer, []).append(change)
        self._due: list[tuple[int, int, Event]] = []
        self._serial = 0
        self._event_ns = 0
        self._notify: set[int] = set()
        self._unacknowledged: set[int] = set()
        self._log = _Log()
        self._carry_out: dict[type, Callable[[Any], None]] = {
            SetTimer: self._set_timer,
            PostSend: self._send,
            PostRecv: self._expect,
            OperatorIssued: self._issued,
            OperatorDone: self._done,
            AccessMemory: self._access_memory,
            RankFinished: self._finished,
        }
        self.finish_ns = self.compute_ns = UNKNOWN
        self.events = 0
        self._first = engine.step(Start(0))

    def run(self, start_ns: int) -> RankRecord:
        """Run to the end: the engine finished, every send acknowledged.

        Args:
            start_ns: real time of virtual 0 (CLOCK_MONOTONIC).

        Raises:
            RunError: what the transport or `attend` raises.
        """
        self._pace = replace(self._pace, start_ns=start_ns)
        self._schedule(Start(0))
        while self.finish_ns == UNKNOWN or self._unacknowledged:
            for completion in self._transport.poll(self._wait_ns()):
                self._complete(completion)
            self._feed_due()
            self._attend()
        return self.record()

    @property
    def waits_for_timer(self) -> bool:
        """Whether something is still due by the clock: then standing still is no stall."""
        return bool(self._due)

    def _schedule(self, event: Event) -> None:
        self._serial += 1
        heapq.heappush(self._due, (event.now_ns, self._serial, event))

    def _wait_ns(self) -> int:
        """How long to leave the rank to its transport; 0 once the next event is so near that waiting is spinning."""
        if not self._due:
            return IDLE_POLL_NS
        left_ns = self._pace.real_ns(self._due[0][0]) - self._clock.now_ns() - self._pace.spin_ns
        return max(0, min(left_ns, IDLE_POLL_NS))

    def _feed_due(self) -> None:
        while self._due and self._pace.real_ns(self._due[0][0]) <= self._clock.now_ns():
            self._feed(heapq.heappop(self._due)[2])

    def _feed(self, event: Event) -> None:
        self.events += 1
        if event.now_ns < self._event_ns:
            event = event._replace(now_ns=self._event_ns)
        self._event_ns = event.now_ns
        for action in self._first if type(event) is Start else self._engine.step(event):
            self._carry_out[type(action)](action)

    def _set_timer(self, action: SetTimer) -> None:
        self._schedule(TimerFired(self._event_ns + action.delay_ns, action.handle))

    def _access_memory(self, action: AccessMemory) -> None:
        busy_ns = self._memory.latency_ns + int(action.size_bytes / self._memory.bytes_per_ns)
        self._schedule(TimerFired(self._event_ns + busy_ns, action.handle))

    def _now_ns(self) -> int:
        return self._pace.virtual_ns(self._clock.now_ns())

    def _issued(self, action: OperatorIssued) -> None:
        self._log.operators[action.row] = [self._event_ns, UNKNOWN, max(0, self._now_ns() - self._event_ns)]

    def _done(self, action: OperatorDone) -> None:
        self._log.operators[action.row][1] = self._event_ns

    def _finished(self, action: RankFinished) -> None:
        self.finish_ns, self.compute_ns = self._event_ns, action.compute_ns

    def _expect(self, action: PostRecv) -> None:
        self._log.expected[action.handle] = (action.peer, action.tag, action.size_bytes, self._event_ns)
        self._transport.post_recv(action.handle, action.peer, action.tag, action.size_bytes)

    def _send(self, action: PostSend) -> None:
        key = (action.peer, action.tag, action.size_bytes)
        index = _next_index(self._log.sent, key)
        self._log.sends[action.handle] = [*key, index, 0, *action.origin, self._event_ns, self._now_ns(), UNKNOWN]
        self._unacknowledged.add(action.handle)
        if action.notify:
            self._notify.add(action.handle)
        self._transport.post_send(action.handle, *key)

    def _complete(self, completion: Completion) -> None:
        wire_ns = max(0, self._pace.virtual_ns(completion.done_ns))
        delay_ns = self._delay_ns(completion.peer, wire_ns)
        done_ns = wire_ns + delay_ns + self._early_ns(completion, wire_ns)
        if completion.kind is Kind.SEND:
            self._acknowledged(completion, done_ns)
        else:
            self._received(completion, done_ns, delay_ns)

    def _early_ns(self, completion: Completion, wire_ns: int) -> int:
        rate_bps = self._rates_bps.get(completion.peer, 0)
        if not rate_bps:
            return 0
        kind, log, first_ns = completion.kind, self._log, completion.first_byte_ns
        rows: Mapping[int, Sequence[int]] = log.sends if kind is Kind.SEND else log.expected
        begin_ns = wire_ns if first_ns == UNKNOWN else self._pace.virtual_ns(first_ns)
        return self._ahead[kind].of(rows[completion.handle][_SIZE], rate_bps, begin_ns)

    def _delay_ns(self, peer: int, wire_ns: int) -> int:
        """Of what arrived at that time."""
        delay_ns = self._delays_ns.get(peer, 0)
        for change in self._changes.get(peer, ()):
            if change.start_ns <= wire_ns < change.end_ns:
                delay_ns += change.more_ns
        return delay_ns

    def _acknowledged(self, completion: Completion, done_ns: int) -> None:
        row = self._log.sends[completion.handle]
        row[_FLOW], row[_ACKNOWLEDGED] = completion.flow, done_ns
        self._unacknowledged.discard(completion.handle)
        if completion.handle in self._notify:
            self._notify.discard(completion.handle)
            self._schedule(SendDone(done_ns, completion.handle))

    def _received(self, completion: Completion, done_ns: int, delay_ns: int) -> None:
        *parts, asked_ns = self._log.expected.pop(completion.handle)
        key = (parts[0], parts[1], parts[2])
        first_ns = completion.first_byte_ns
        if first_ns != UNKNOWN:
            first_ns = max(0, self._pace.virtual_ns(first_ns)) + delay_ns
        index = _next_index(self._log.received, key)
        self._log.receives.append((*key, index, completion.flow, first_ns, done_ns))
        # a message that was here before the engine asked for it is news only since it asked
        self._schedule(RecvDone(max(done_ns, asked_ns), completion.handle))

    def outstanding(self) -> dict[str, list[Any]]:
        """What this rank waits for.

        Returns:
            "receives" and "sends" (those not acknowledged): [peer, tag, size_bytes] each; "operators": rows issued and
            not done.
        """
        receives = [list(row[:3]) for row in self._log.expected.values()]
        sends = [self._log.sends[handle][:3] for handle in sorted(self._unacknowledged)]
        running = list(self._engine.running())
        return {"receives": receives[:MAX_TOLD], "sends": sends[:MAX_TOLD], "operators": running[:MAX_TOLD]}

    def record(self) -> RankRecord:
        """All that was seen so far."""
        log = self._log
        return RankRecord(
            self.finish_ns,
            self.compute_ns,
            OperatorRows.from_rows([(row, *times) for row, times in sorted(log.operators.items())]),
            SendRows.from_rows([tuple(row) for row in log.sends.values()]),
            ReceiveRows.from_rows(log.receives),
        )
