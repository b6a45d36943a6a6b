"""The sending half of a queue pair, without I/O: what may leave, what acknowledgements complete, when to try again.

Packets are numbered without wrap from the queue pair's beginning; PSNs are those plus the first PSN, modulo 2^24.
Every method that can depend on the time takes it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from genie.formats.roce import Aeth, Kind, Nak, credits_of, psn_add, psn_distance, rnr_wait_ns
from genie.replay.transports.roce.control import Control
from genie.replay.transports.roce.layout import Layout, Outgoing
from genie.units import NS_PER_MS

NEVER: Final = 1 << 62
MAX_TIMEOUT_NS: Final = 8_000 * NS_PER_MS
INFINITE_RNR: Final = 7
ASKS_PER_WINDOW: Final = 4
"""How often in a window packets ask for an acknowledgement."""

_REASONS: Final = {
    Nak.INVALID_REQUEST: "it refused a request as invalid",
    Nak.REMOTE_ACCESS: "it refused our key for its memory",
    Nak.REMOTE_OPERATION: "it could not carry out a request",
    Nak.INVALID_RD_REQUEST: "it refused a request as invalid for its kind of queue pair",
}


@dataclass(frozen=True, slots=True)
class Patience:
    """When to send again and when to give up.

    Attributes:
        timeout_ns: least time without an acknowledgement before packets count as lost; doubled with every retry.
        retries: how often in a row; RNR retries likewise, where 7 means for ever.
        selective: send again what is missing; else everything from there on (go-back-N).
    """

    timeout_ns: int = 40 * NS_PER_MS
    retries: int = 7
    rnr_retries: int = INFINITE_RNR
    selective: bool = False


class Run(NamedTuple):
    """Packets that may leave now: `packets` of a message, from its number `at` on; alike if there is more than one."""

    message: Outgoing
    at: int
    packets: int
    again: bool

    @property
    def start(self) -> int:
        """Number of the first one."""
        return self.message.first + self.at


@dataclass(slots=True)
class Counts:
    """What happened, in packets, for the run's record."""

    sent: int = 0
    again: int = 0
    naks: int = 0
    rnr_naks: int = 0
    timeouts: int = 0
    notifications: int = 0


class Requester:
    """See the module.

    Attributes:
        waiting: messages not started, in order.
        started: messages of which a packet may have left, not wholly acknowledged, in order.
        una, nxt: numbers of the oldest packet not acknowledged and of the next new one.
        failed: why the queue pair is in the error state; "" as long as it works.
        counts: see Counts.
    """

    def __init__(self, layout: Layout, psn: int, control: Control, patience: Patience, segments: int = 1) -> None:
        self._segments = segments
        self.layout, self.control, self._psn, self._patience = layout, control, psn, patience
        self.waiting: deque[Outgoing] = deque()
        self.started: deque[Outgoing] = deque()
        self.una = self.nxt = 0
        self.high = 0
        self.failed = ""
        self.counts = Counts()
        self._holes: deque[tuple[int, int]] = deque()
        self._sequence = 0
        self._done = 0
        self._limit: int | None = None
        self._since_request = 0
        self._retries = self._rnr_retries = self._backoff = 0
        self._probing = False
        self._timer_ns = NEVER
        self._rnr_until_ns = 0
        self._recover = 0
        self._timed: tuple[int, int] | None = None
        self._srtt_ns = self._variation_ns = 0.0

    # ---- sending

    def post(self, message: Outgoing) -> None:
        """Queue a message."""
        message.packets = self.layout.packets(message.size_bytes)
        self.waiting.append(message)

    @property
    def outstanding(self) -> int:
        """Messages posted and not acknowledged (signs of life do not count)."""
        return sum(message.handle >= 0 for queue in (self.started, self.waiting) for message in queue)

    @property
    def idle(self) -> bool:
        """Nothing to send, nothing to wait for."""
        return not self.started and not self.waiting

    def psn(self, number: int) -> int:
        """The PSN of a packet."""
        return psn_add(self._psn, number)

    def next_run(self, limit: int, now_ns: int) -> Run | None:
        """What may leave now, at most `limit` packets; `take` says that it did."""
        if self.failed or now_ns < self._rnr_until_ns:
            return None
        if self._holes:
            start, end = self._holes[0]
            return self._run(self._find(start), start, min(limit, end - start))
        room = self.una + self.control.window - self.nxt
        if room <= 0:
            return None
        message = self._find(self.nxt) if self.nxt < self.high else self._next_message()
        if message is None:
            return None
        if room < self._segments and self.nxt > self.una and self._middles_left(message) > room:
            return None  # better a whole super-packet a little later
        return self._run(message, self.nxt, min(limit, room))

    def _middles_left(self, message: Outgoing) -> int:
        return self.layout.middles(message, self.nxt - message.first)

    def _run(self, message: Outgoing, start: int, limit: int) -> Run:
        index = start - message.first
        count = min(limit, max(1, self.layout.middles(message, index)))
        if start < self.high:  # what was sent before and what was not are different runs
            count = min(count, self.high - start)
        return Run(message, index, count, start < self.high)

    def _find(self, number: int) -> Outgoing:
        """The started message that a packet belongs to (near the end, or there are few)."""
        for message in reversed(self.started):
            if message.first <= number:
                return message
        raise LookupError(number)

    def _next_message(self) -> Outgoing | None:
        """The message that the next new packet belongs to, started if need be and allowed."""
        if self.started:
            message = self.started[-1]
            if self.nxt < message.first + message.packets:
                return message
        if not self.waiting or not self._may_start():
            return None
        message = self.waiting.popleft()
        message.first, message.sequence = self.nxt, self._sequence
        self._sequence += 1
        self.started.append(message)
        return message

    def _may_start(self) -> bool:
        """Whether the peer has credits left for another message; one may always be tried."""
        return self._limit is None or self._sequence < self._limit or not self.started

    def take(self, run: Run, size_bytes: int, now_ns: int) -> None:
        """A run left."""
        end = run.start + run.packets
        if self._holes:
            stop = self._holes[0][1]
            if end >= stop:
                self._holes.popleft()
            else:
                self._holes[0] = (end, stop)
        else:
            self.nxt = end
            self.high = max(self.high, end)
        if run.at == 0 and run.message.first_byte_ns < 0:
            run.message.first_byte_ns = now_ns
        self.counts.sent += run.packets
        self.counts.again += run.packets if run.again else 0
        if self._timer_ns == NEVER:
            self._timer_ns = now_ns + self._timeout_ns()
        self.control.on_sent(run.packets, size_bytes, now_ns)

    def wants_acknowledgement(self, run: Run, now_ns: int) -> bool:
        """Whether the last packet of a run that leaves asks for one; see `asks`."""
        asks = self.asks(run)
        self.asked(run, now_ns, asks=asks)
        return asks

    def asks(self, run: Run) -> bool:
        """Whether the last packet of a run should ask: a message's last, a window's last, a few in between.

        A paced sender asks with every run: at a low rate a part of a window may take longer than a time-out.
        """
        window, end = self.control.window, run.start + run.packets
        return (
            (self._since_request + run.packets) * ASKS_PER_WINDOW >= window
            or run.at + run.packets == run.message.packets
            or end - self.una > window - self._segments
            or run.again
            or self.control.may_send_ns() > 0
        )

    def asked(self, run: Run, now_ns: int, *, asks: bool) -> None:
        """A run leaves, and its last packet asks, or does not."""
        if not asks:
            self._since_request += run.packets
            return
        self._since_request = 0
        if self._timed is None and not run.again:
            self._timed = (run.start + run.packets, now_ns)

    # ---- what comes back

    def on_acknowledge(self, psn: int, aeth: Aeth, now_ns: int, *, marked: bool = False) -> list[Outgoing]:
        """An ACK or a NAK; the messages that it completes.

        An ACK is for all packets up to its PSN, a NAK for all before it. Selective repeat's NAK has in place of the
        message count the PSN of the first packet that did arrive behind the gap.
        """
        distance = psn_distance(psn, self.psn(self.una))
        upto = self.una + distance + (aeth.kind == Kind.ACK)
        if not self.una <= upto <= self.high or self.failed:
            return []  # an old one, or of what was never sent
        progress = upto > self.una
        done = self._advance(upto, now_ns, marked) if progress else []
        if aeth.kind == Kind.ACK:
            limit = credits_of(aeth.value)
            self._limit = None if limit is None else self._done + len(done) + limit
        elif aeth.kind == Kind.RNR_NAK:
            self._on_not_ready(aeth, now_ns)
        else:
            self._on_nak(aeth, now_ns)
        self._done += len(done)
        return done

    def _advance(self, upto: int, now_ns: int, marked: bool) -> list[Outgoing]:
        packets = upto - self.una
        self.una = upto
        # the answer to a probe: if it is for more than the probe, the rest was late, not lost
        self.nxt = upto if self._probing and packets == 1 else max(self.nxt, upto)
        self._probing = False
        self._retries = self._rnr_retries = 0
        while self._holes and self._holes[0][0] < upto:
            start, end = self._holes.popleft()
            if end > upto:
                self._holes.appendleft((max(start, upto), end))
        if self._timed is not None and upto >= self._timed[0]:
            self._measure(now_ns - self._timed[1])
            self._timed = None
        self._timer_ns = now_ns + self._timeout_ns() if self.una < self.high else NEVER
        self.control.on_acknowledged(packets, marked, now_ns)
        done = []
        while self.started and self.started[0].first + self.started[0].packets <= upto:
            done.append(self.started.popleft())
        return done

    def _measure(self, rtt_ns: int) -> None:
        """RFC 6298's estimate of the round trip; until there is one of a packet sent once, time-outs stay long."""
        self._backoff = 0
        if not self._srtt_ns:
            self._srtt_ns, self._variation_ns = float(rtt_ns), rtt_ns / 2
            return
        self._variation_ns += (abs(self._srtt_ns - rtt_ns) - self._variation_ns) / 4
        self._srtt_ns += (rtt_ns - self._srtt_ns) / 8

    def _timeout_ns(self) -> int:
        """The round trip holds the window's time at the line rate: so this scales with both."""
        measured = int(2 * self._srtt_ns + 4 * self._variation_ns)
        return min(MAX_TIMEOUT_NS, max(self._patience.timeout_ns, measured) << self._backoff)

    def _on_nak(self, aeth: Aeth, now_ns: int) -> None:
        self.counts.naks += 1
        if aeth.value != Nak.SEQUENCE:
            reasons = {int(reason): words for reason, words in _REASONS.items()}
            self.failed = reasons.get(aeth.value, f"it refused a request (code {aeth.value})")
            return
        if self.una >= self._recover:  # one cut a round trip
            self._recover = self.high
            self.control.on_loss(now_ns)
        self._timed = None
        if not self._patience.selective:
            self._holes.clear()
            self.nxt = self.una
            return
        end = self.una + psn_distance(aeth.msn, self.psn(self.una))
        if self.una < end <= self.high and not any(start <= self.una < stop for start, stop in self._holes):
            self._holes.append((self.una, end))

    def _on_not_ready(self, aeth: Aeth, now_ns: int) -> None:
        self.counts.rnr_naks += 1
        self._rnr_retries += 1
        if self._patience.rnr_retries != INFINITE_RNR and self._rnr_retries > self._patience.rnr_retries:
            self.failed = f"it was not ready to receive, {self._rnr_retries} times in a row"
            return
        self._timed = None
        self._holes.clear()
        self.nxt = self.una
        self._rnr_until_ns = now_ns + rnr_wait_ns(aeth.value)
        self._timer_ns = self._rnr_until_ns + self._timeout_ns()

    def on_notification(self, now_ns: int) -> None:
        """A CNP came."""
        self.counts.notifications += 1
        self.control.on_notification(now_ns)

    # ---- time

    def wake_ns(self) -> int:
        """When something is due by the clock: a time-out, the end of an RNR wait, the pace; NEVER if nothing is."""
        if self.failed:
            return NEVER
        wake = self._timer_ns
        if self._rnr_until_ns:
            wake = min(wake, self._rnr_until_ns)
        pace_ns = self.control.may_send_ns()
        if pace_ns and (self.waiting or self.nxt < self._end()) and self.nxt - self.una < self.control.window:
            wake = min(wake, pace_ns)
        return wake

    def _end(self) -> int:
        """Number behind the last packet of what has started."""
        return self.started[-1].first + self.started[-1].packets if self.started else self.nxt

    def on_time(self, now_ns: int) -> None:
        """Look at the clock: packets not acknowledged for too long are sent again, or the queue pair fails."""
        if self._rnr_until_ns and now_ns >= self._rnr_until_ns:
            self._rnr_until_ns = 0
        if now_ns < self._timer_ns or self.failed:
            return
        self.counts.timeouts += 1
        self._retries += 1
        if self._retries > self._patience.retries:
            self.failed = f"no acknowledgement after {self._patience.retries} retries"
            self._timer_ns = NEVER
            return
        self._backoff += 1
        self._timed = None
        self._holes.clear()
        self._holes.append((self.una, self.una + 1))  # the peer's answer tells what else is missing
        self._probing = not self._patience.selective
        self._recover = self.high
        self.control.on_loss(now_ns)
        self._timer_ns = now_ns + self._timeout_ns()
