"""Every rank's engine on one virtual clock, one by one: the path that all others are held against.

Carries the engines' actions out in ASTRA-sim's event order, so that ties fall as they do there: one global list of
callbacks a tick, and one list of timers a rank and tick that enters the global list when its first timer is set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from genie.core.netmodel import NetworkModel
from genie.core.schedule import Schedule
from genie.core.system import MemoryKind, RemoteMemory
from genie.core.timeline import UNKNOWN, Messages
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
from genie.engine.rank import RankEngine
from genie.network.models import build
from genie.network.queue import EventQueue
from genie.simulate.outcome import Outcome, RankRecord

Key = tuple[int, int, int, int]
"""(src, dst, tag, size_bytes): messages and receives of one key match first with first."""


def simulate_plainly(
    schedule: Schedule, network: NetworkModel, *, strict_zero: bool, keep_messages: bool = True
) -> Outcome:
    """Step every rank.

    Raises:
        InputError: a message that the network cannot carry, something without duration at tick 0 under `strict_zero`.
    """
    simulation = _Simulation(schedule, network, strict_zero=strict_zero, keep_messages=keep_messages)
    simulation.run()
    records = [rank.record for rank in simulation.ranks]
    rows = simulation.matching.rows
    return Outcome(records, None, None if rows is None else Messages.from_rows([tuple(row) for row in rows]))


class _Matching:
    """Which send belongs to which receive, and the record of every message."""

    def __init__(self, queue: EventQueue, *, keep: bool) -> None:
        self._queue = queue
        self._sent: dict[Key, int] = {}
        self._arrived: dict[Key, int] = {}
        self._expected: dict[Key, deque[Callable[[], None]]] = {}
        self.rows: list[list[Any]] | None = [] if keep else None

    def post(self, rank: int, action: PostSend) -> list[Any]:
        """A new message's record."""
        key = (rank, action.peer, action.tag, action.size_bytes)
        index = self._sent.get(key, -1) + 1
        self._sent[key] = index
        now_ns = self._queue.now_ns
        row = [0, *key, index, 0, *action.origin, now_ns, now_ns, UNKNOWN, UNKNOWN, UNKNOWN, 0]
        if self.rows is not None:
            self.rows.append(row)
        return row

    def expect(self, key: Key, done: Callable[[], None]) -> None:
        """A receive: answered at once, at the end of this tick's list, if its message is here."""
        if self._arrived.get(key, 0):
            self._arrived[key] -= 1
            self._queue.at(self._queue.now_ns, done)
        else:
            self._expected.setdefault(key, deque()).append(done)

    def arrive(self, key: Key, row: list[Any]) -> None:
        """The message is at its receiver."""
        row[13] = row[14] = self._queue.now_ns
        waiting = self._expected.get(key)
        if waiting:
            waiting.popleft()()
        else:
            self._arrived[key] = self._arrived.get(key, 0) + 1


class _Memory:
    """Remote memory: per rank at once, or one request at a time per node or pool."""

    def __init__(self, memory: RemoteMemory) -> None:
        self._memory = memory
        self._waiting: dict[int, deque[tuple[Callable[..., None], int, Callable[[], None]]]] = {}
        self._busy: set[int] = set()

    def access(self, rank: int, size_bytes: int, set_timer: Callable[..., None], done: Callable[[], None]) -> None:
        """Serve, or queue behind the requests of the same node."""
        if self._memory.kind is MemoryKind.PER_NPU:
            set_timer(self._time_ns(size_bytes), done)
            return
        node = rank // self._memory.ranks_per_node if self._memory.kind is MemoryKind.PER_NODE else 0
        if node in self._busy:
            self._waiting.setdefault(node, deque()).append((set_timer, size_bytes, done))
        else:
            self._serve(node, set_timer, size_bytes, done)

    def _time_ns(self, size_bytes: int) -> int:
        return self._memory.latency_ns + int(size_bytes / self._memory.bytes_per_ns)

    def _serve(self, node: int, set_timer: Callable[..., None], size_bytes: int, done: Callable[[], None]) -> None:
        self._busy.add(node)
        set_timer(self._time_ns(size_bytes), done)
        set_timer(self._time_ns(size_bytes), lambda: self._free(node))

    def _free(self, node: int) -> None:
        if self._waiting.get(node):
            self._serve(node, *self._waiting[node].popleft())
        else:
            self._busy.discard(node)


class _Rank:
    """One rank's engine, its timers and its records."""

    def __init__(self, simulation: _Simulation, rank: int) -> None:
        self.simulation, self.rank = simulation, rank
        self.engine = RankEngine(simulation.schedule, rank)
        self.queue = simulation.queue
        self.timers: dict[int, list[Callable[[], None]]] = {}
        self.record = RankRecord()

    def feed(self, event: Event) -> None:
        """Let the engine step, carry out what it asks for, in order."""
        for action in self.engine.step(event):
            self.carry_out(action)

    def carry_out(self, action: Action) -> None:
        if isinstance(action, SetTimer):
            self.set_timer(action.delay_ns, self._fired(action.handle))
        elif isinstance(action, PostSend):
            self.simulation.send(self, action)
        elif isinstance(action, PostRecv):
            key = (action.peer, self.rank, action.tag, action.size_bytes)
            self.simulation.matching.expect(key, lambda: self.feed(RecvDone(self.queue.now_ns, action.handle)))
        elif isinstance(action, OperatorIssued):
            self.record.issued[action.row] = self.queue.now_ns
        elif isinstance(action, OperatorDone):
            self.record.done[action.row] = self.queue.now_ns
        elif isinstance(action, AccessMemory):
            self.simulation.memory.access(self.rank, action.size_bytes, self.set_timer, self._fired(action.handle))
        elif isinstance(action, RankFinished):
            self.record.finish_ns, self.record.compute_ns = self.queue.now_ns, action.compute_ns

    def _fired(self, handle: int) -> Callable[[], None]:
        return lambda: self.feed(TimerFired(self.queue.now_ns, handle))

    def set_timer(self, delay_ns: int, done: Callable[[], None]) -> None:
        """The first timer of a tick enters the global list; later ones join it there, also while it runs."""
        when_ns = self.queue.now_ns + delay_ns
        timers = self.timers.get(when_ns)
        if timers is None:
            timers = self.timers[when_ns] = []
            self.queue.at(when_ns, self._run_timers, when_ns)
        timers.append(done)

    def _run_timers(self, when_ns: int) -> None:
        timers = self.timers[when_ns]
        for done in timers:  # the list may grow while it runs
            done()
        del self.timers[when_ns]


class _Simulation:
    def __init__(self, schedule: Schedule, network: NetworkModel, *, strict_zero: bool, keep_messages: bool) -> None:
        self.schedule = schedule
        self.queue = EventQueue(strict_zero=strict_zero)
        self.network = build(network, self.queue)
        self.matching = _Matching(self.queue, keep=keep_messages)
        self.memory = _Memory(schedule.system.memory)
        self.ranks = [_Rank(self, rank) for rank in range(len(schedule.ranks))]

    def run(self) -> None:
        for rank in self.ranks:
            rank.feed(Start(0))
        self.queue.run()

    def send(self, rank: _Rank, action: PostSend) -> None:
        row = self.matching.post(rank.rank, action)
        self.network.send(rank.rank, action.peer, action.size_bytes, self._delivered, rank, action, row)

    def _delivered(self, rank: _Rank, action: PostSend, row: list[Any]) -> None:
        """The sender hears of it first, then the receiver."""
        if action.notify:
            rank.feed(SendDone(self.queue.now_ns, action.handle))
        self.matching.arrive((rank.rank, action.peer, action.tag, action.size_bytes), row)
