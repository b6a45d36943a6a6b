"""Queue pairs that share one simulated link, whose queue marks (as RED does) and drops at its end; by its clock."""

from __future__ import annotations

import heapq
import random
from collections import deque
from typing import NamedTuple

from genie.replay.transports.roce.control import CONTROLS, ControlSettings
from genie.replay.transports.roce.layout import Layout, Outgoing
from genie.replay.transports.roce.requester import NEVER, Patience, Requester
from genie.replay.transports.roce.responder import Piece, Responder

MTU = 4096
CNP_NS = 50_000


class Told(NamedTuple):
    """What a stretch of time gave each queue pair: payload bytes; and what was dropped in it."""

    taken_bytes: list[int]
    dropped: int


class SharedLink:
    """Senders with links of the same rate into one bottleneck, each with a lot to send."""

    def __init__(self, pairs, control, rate_bps, *, window=128, red=(5_000, 200_000, 0.01), starts_ns=(), dilation=1):
        layout = Layout(MTU)
        self.rate_bps, self.red, self.buffer_bytes = rate_bps, red, 400_000
        self.luck = random.Random(1)
        settings = ControlSettings(window, rate_bps, dilation)
        self.requesters = [Requester(layout, 0, CONTROLS[control](settings), Patience()) for _ in range(pairs)]
        self.responders = [Responder(layout, 0, 1) for _ in range(pairs)]
        self.layout, self.control = layout, control
        self.now_ns = self.dropped = self.serial = 0
        self.queue: deque[tuple[int, Piece, bool, int]] = deque()
        self.queued_bytes = 0
        self.events: list[tuple[int, int, object, tuple[object, ...]]] = []
        self.free_ns = [0] * pairs
        self.marked = [False] * pairs
        self.interval_ns = CNP_NS * dilation
        self.notified_ns = [-self.interval_ns] * pairs
        self.starts_ns = list(starts_ns) or [0] * pairs
        for requester in self.requesters:
            requester.post(Outgoing(0, 0, 1 << 33, 0))

    def at(self, time_ns, what, *args):
        self.serial += 1
        heapq.heappush(self.events, (time_ns, self.serial, what, args))

    def send(self, number):
        """One packet at the rate of the sender's own link, if it may."""
        requester = self.requesters[number]
        if self.now_ns < max(self.free_ns[number], self.starts_ns[number], requester.control.may_send_ns()):
            return
        run = requester.next_run(1, self.now_ns)
        if run is None:
            return
        part = self.layout.part(run.message, run.at)
        requester.take(run, part.wire_bytes, self.now_ns)
        asks = requester.wants_acknowledgement(run, self.now_ns)
        piece = Piece(run.start, part.opcode, part.length, 0, 1, part.piece_bytes, 0, asks)
        self.free_ns[number] = self.now_ns + part.wire_bytes * 8 * 10**9 // self.rate_bps
        self.at(self.free_ns[number], self.arrive, number, piece, part.wire_bytes)

    def arrive(self, number, piece, size):
        if self.queued_bytes + size > self.buffer_bytes:
            self.dropped += 1
            return
        self.queue.append((number, piece, self.luck.random() < self.share(), size))
        self.queued_bytes += size
        if len(self.queue) == 1:
            self.at(self.now_ns + size * 8 * 10**9 // self.rate_bps, self.depart)

    def share(self):
        """How likely a packet is marked now: not up to `least` bytes in the queue, always from `most` on."""
        least, most, likely = self.red
        if self.queued_bytes >= most:
            return 1.0
        return likely * (self.queued_bytes - least) / (most - least) if self.queued_bytes > least else 0.0

    def depart(self):
        number, piece, marked, size = self.queue.popleft()
        self.queued_bytes -= size
        if self.queue:
            self.at(self.now_ns + self.queue[0][3] * 8 * 10**9 // self.rate_bps, self.depart)
        self.at(self.now_ns + 5_000, self.take, number, piece, marked)

    def take(self, number, piece, marked):
        responder = self.responders[number]
        responder.on_piece(piece, self.now_ns)
        self.marked[number] |= marked
        if marked and self.control == "dcqcn" and self.now_ns - self.notified_ns[number] >= self.interval_ns:
            self.notified_ns[number] = self.now_ns
            self.at(self.now_ns + 5_000, self.notify, number)
        for answer in responder.answers():
            self.at(self.now_ns + 5_000, self.hear, number, answer, self.marked[number])
            self.marked[number] = False

    def notify(self, number):
        self.requesters[number].on_notification(self.now_ns)

    def hear(self, number, answer, marked):
        self.requesters[number].on_acknowledge(answer.psn, answer.aeth, self.now_ns, marked=marked)

    def run(self, until_ns):
        """Go on until a time; what was taken in it."""
        before = [responder.received_bytes for responder in self.responders]
        dropped = self.dropped
        while self.now_ns < until_ns:
            for number, requester in enumerate(self.requesters):
                self.send(number)
                requester.on_time(self.now_ns)
            wakes = [max(r.wake_ns(), f) for r, f in zip(self.requesters, self.free_ns, strict=True)]
            next_ns = min(self.events[0][0] if self.events else NEVER, *(wake for wake in wakes if wake > self.now_ns))
            next_ns = min([next_ns, *(start for start in self.starts_ns if start > self.now_ns)])
            self.now_ns = next_ns
            while self.events and self.events[0][0] <= self.now_ns:
                _, _, what, args = heapq.heappop(self.events)
                what(*args)
        taken = [r.received_bytes - b for r, b in zip(self.responders, before, strict=True)]
        return Told(taken, self.dropped - dropped)


def jain(values):
    """Jain's index: 1 when all are equal."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))
