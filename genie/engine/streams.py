"""A rank's chunks on their way through the phases: queues per dimension, a limit of chunks in flight each.

Source: ASTRA-sim's system layer; section "Queues" of docs/simulator.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from genie.core.schedule import Collective, Phase, TokenProgram, Turns
from genie.core.system import System
from genie.engine.port import Port
from genie.engine.programs import GraphRun, Seat, TokenRun

QueueKey = tuple[int, int, int]
"""(lane, dimension, number within the dimension); the lane is 0 but for overlapping groups."""


class _Queue:
    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.waiting: deque[_Stream] = deque()


class _Stream:
    """One chunk of one collective."""

    __slots__ = ("at", "chunk", "queue", "queues", "runs", "tracker")

    def __init__(self, tracker: _Tracker, chunk: int) -> None:
        self.tracker, self.chunk = tracker, chunk
        self.runs: list[TokenRun | GraphRun] = []
        self.queues: list[QueueKey] = []
        self.at = -1
        self.queue: _Queue | None = None


class _Tracker:
    """How many chunks of a collective are still under way."""

    __slots__ = ("done", "left")

    def __init__(self, chunks: int, done: Callable[[], None]) -> None:
        self.left, self.done = chunks, done


class Streams:
    """Takes collectives, runs their chunks, tells when each collective is done on this rank."""

    def __init__(self, system: System, rank: int, port: Port) -> None:
        self._rank, self._port, self._system = rank, port, system
        self._turns = Turns(system.queues_per_dim)
        self._limit = -(-system.active_chunks // system.queues_per_dim)
        self._queues: dict[QueueKey, _Queue] = {}
        self._memory_bytes_per_s = system.local_mem_bytes_per_s

    def reduction_ns(self, size_bytes: int) -> int:
        """One write and two reads of local memory; free when the system names no memory bandwidth."""
        if not self._memory_bytes_per_s:
            return 0
        return 3 * int(size_bytes / self._memory_bytes_per_s * 1e9)

    def launch(
        self, collective: Collective, first_stream: int, lane: int, node_id: int, done: Callable[[], None]
    ) -> None:
        """Start a collective whose chunks carry the stream ids from `first_stream` on."""
        tracker = _Tracker(collective.chunks, done)
        for chunk in range(collective.chunks):
            stream = _Stream(tracker, chunk)
            for at, phase in enumerate(collective.phases):
                self._prepare(stream, collective, phase, at, first_stream + chunk, lane, node_id)
            self._proceed(stream)

    def _prepare(
        self,
        stream: _Stream,
        collective: Collective,
        phase: Phase,
        at: int,
        stream_id: int,
        lane: int,
        node_id: int,
    ) -> None:
        number, clockwise = (0, True) if collective.fixed_queue else self._turns.queue(phase.dimension, phase.lane)
        seat = Seat(
            port=self._port,
            costs=self,
            phase=phase,
            at=at,
            rank=self._rank,
            clockwise=clockwise,
            stream=stream_id,
            chunk=stream.chunk,
            node_id=node_id,
            ended=lambda: self._proceed(stream),
        )
        program = phase.program(self._turns.variant(phase), seat.position)
        run = TokenRun(program, seat) if isinstance(program, TokenProgram) else GraphRun(program, seat)
        stream.runs.append(run)
        stream.queues.append((lane, phase.dimension, number))

    def _proceed(self, stream: _Stream) -> None:
        """Leave the queue of the phase that ended, enter the next one's; the old queue admits first."""
        left = stream.queue
        stream.at += 1
        if stream.at == len(stream.runs):
            self._finish(stream, left)
            return
        entered = stream.queue = self._queues.setdefault(stream.queues[stream.at], _Queue())
        entered.waiting.append(stream)
        if left is not None:
            left.running -= 1
            self._admit(left)
        self._admit(entered)

    def _finish(self, stream: _Stream, left: _Queue | None) -> None:
        """The collective's completion runs before the chunk leaves its queue, as it may launch the next."""
        tracker = stream.tracker
        tracker.left -= 1
        if tracker.left == 0:
            tracker.done()
        if left is not None:
            left.running -= 1
            self._admit(left)

    def _admit(self, queue: _Queue) -> None:
        while queue.waiting and queue.running < self._limit:
            stream = queue.waiting.popleft()
            queue.running += 1
            stream.runs[stream.at].start()
