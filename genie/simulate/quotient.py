"""One rank simulated for all that do the same: what it sends to another is what it receives from that one's mirror.

A frame is a way to name ranks such that the representative at hand keeps its own name. Crossing from a sender's frame
into a receiver's, every translation is taken relative to the receiver. Shared state is kept once a class: a rank's
engine, a link's queue.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from genie.core.netmodel import DimensionModel
from genie.core.schedule import COLLECTIVE_TAGS, GRANT_TAGS, STREAMS_PER_GROUP, OpKind, Schedule
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
from genie.network.models import check_message, message_cost, route
from genie.simulate.outcome import Outcome, RankRecord
from genie.simulate.symmetry import Symmetry
from genie.simulate.ties import NOTHING, Place, TieQueue
from genie.units import bps_to_bytes_per_ns

Key = tuple[int, int, int]
"""(src in the receiver's frame, tag, size_bytes)."""


def simulate_quotient(
    schedule: Schedule, network: DimensionModel, symmetry: Symmetry, *, strict_zero: bool, keep_messages: bool
) -> Outcome:
    """Step the representatives alone.

    Raises:
        InputError: as simulate_plainly.
        Unproven: a tie could set equal ranks apart.
    """
    simulation = _Quotient(schedule, network, symmetry, strict_zero=strict_zero, keep_messages=keep_messages)
    simulation.run()
    everyone = np.arange(symmetry.ranks)
    number = {rank: at for at, rank in enumerate(simulation.ranks)}
    of = everyone - symmetry.translation(everyone)
    record_of = np.array([number[rank] for rank in of.tolist()], np.int64)
    messages = _all_messages(simulation) if keep_messages else None
    return Outcome([rank.record for rank in simulation.ranks.values()], record_of, messages)


class _Rank(Place):
    """A representative: its engine, its timers, what has arrived and what is expected."""

    __slots__ = (
        "_arrived",
        "_expected",
        "_sent",
        "engine",
        "number",
        "queue",
        "record",
        "rows",
        "simulation",
        "timers",
    )

    def __init__(self, simulation: _Quotient, number: int) -> None:
        super().__init__()
        self.simulation, self.number, self.queue = simulation, number, simulation.queue
        self.engine = RankEngine(simulation.schedule, number)
        self.record = RankRecord()
        self.timers: dict[int, list[int]] = {}
        self.rows: list[list[Any]] = []
        self._arrived: dict[Key, int] = {}
        self._expected: dict[Key, deque[int]] = {}
        self._sent: dict[tuple[int, int, int], int] = {}

    def feed(self, event: Event) -> None:
        """Let the engine step, carry out what it asks for, in order."""
        for action in self.engine.step(event):
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, SetTimer):
            self._set_timer(action.delay_ns, action.handle)
        elif isinstance(action, PostSend):
            self.simulation.send(self, action)
        elif isinstance(action, PostRecv):
            tag = self.simulation.written_tag(action.tag)
            self._expect((action.peer, tag, action.size_bytes), action.handle)
        elif isinstance(action, OperatorIssued):
            self.record.issued[action.row] = self.queue.now_ns
        elif isinstance(action, OperatorDone):
            self.record.done[action.row] = self.queue.now_ns
        elif isinstance(action, AccessMemory):
            memory = self.simulation.schedule.system.memory
            self._set_timer(memory.latency_ns + int(action.size_bytes / memory.bytes_per_ns), action.handle)
        elif isinstance(action, RankFinished):
            self.record.finish_ns, self.record.compute_ns = self.queue.now_ns, action.compute_ns

    def _set_timer(self, delay_ns: int, handle: int) -> None:
        """The first timer of a tick enters the queue; later ones join it there, also while it runs."""
        when_ns = self.queue.now_ns + delay_ns
        timers = self.timers.get(when_ns)
        if timers is None:
            timers = self.timers[when_ns] = []
            self.queue.put(when_ns, self, 0, self.queue.root, self._run_timers, when_ns)
        timers.append(handle)

    def _run_timers(self, when_ns: int) -> None:
        self.queue.touch(self, 0, None)
        timers = self.timers[when_ns]
        for handle in timers:  # the list may grow while it runs
            self.feed(TimerFired(when_ns, handle))
        del self.timers[when_ns]

    def _expect(self, key: Key, handle: int) -> None:
        if self._arrived.get(key, 0):
            self._arrived[key] -= 1
            self.queue.put(self.queue.now_ns, self, 0, self.queue.root, self._answer, handle)
        else:
            self._expected.setdefault(key, deque()).append(handle)

    def _answer(self, handle: int) -> None:
        self.queue.touch(self, 0, None)
        self.feed(RecvDone(self.queue.now_ns, handle))

    def sent(self, handle: int) -> None:
        """A message of this rank's was delivered."""
        self.queue.touch(self, 0, None)
        self.feed(SendDone(self.queue.now_ns, handle))

    def arrive(self, key: Key, moved: int, back: int) -> None:
        """A message is here, from a frame from which `moved` leads to this rank's, and `back` back."""
        waiting = self._expected.get(key)
        if not waiting:
            self.queue.touch(self, moved, None, NOTHING)
            self._arrived[key] = self._arrived.get(key, 0) + 1
            return
        handle = waiting.popleft()
        self.queue.touch(self, moved, None, self.engine.interchangeable(handle))
        self.queue.enter(back)
        self.feed(RecvDone(self.queue.now_ns, handle))

    def posted(self, action: PostSend) -> list[Any]:
        """A new message's record (in the order of Messages.SCHEMA)."""
        key = (action.peer, action.tag, action.size_bytes)
        index = self._sent.get(key, -1) + 1
        self._sent[key] = index
        now_ns = self.queue.now_ns
        row = [0, self.number, *key, index, 0, *action.origin, now_ns, now_ns, UNKNOWN, UNKNOWN, UNKNOWN, 0]
        self.rows.append(row)
        return row


class _Letter:
    """A message under way, in its sender's frame."""

    __slots__ = ("action", "route", "row", "sender")

    def __init__(self, sender: _Rank, action: PostSend, row: list[Any] | None, route: list[int]) -> None:
        self.sender, self.action, self.row, self.route = sender, action, row, route


class _Link(Place):
    """A class of links; letters wait with the translation from their frame to the link."""

    __slots__ = ("busy", "waiting")

    def __init__(self) -> None:
        super().__init__()
        self.busy = False
        self.waiting: deque[tuple[_Letter, int, int]] = deque()


class _Quotient:
    def __init__(
        self,
        schedule: Schedule,
        network: DimensionModel,
        symmetry: Symmetry,
        *,
        strict_zero: bool,
        keep_messages: bool,
    ) -> None:
        self.schedule, self.model, self.symmetry, self.keep = schedule, network, symmetry, keep_messages
        self.queue = TieQueue(symmetry, strict_zero=strict_zero)
        self.ranks = {rank: _Rank(self, rank) for rank in symmetry.representatives().tolist()}
        self._links: dict[tuple[int, int], _Link] = {}
        self._link_at: dict[tuple[int, int], tuple[_Link, int]] = {}
        self._costs: dict[tuple[int, int], tuple[float, float]] = {}
        self._targets: dict[tuple[int, int], tuple[_Rank, int, int, int]] = {}
        self._bytes_per_ns = bps_to_bytes_per_ns(network.dimensions[0].bandwidth_bps.value)
        self._latency_ns = network.dimensions[0].latency_ns.value
        self._groups = {int(a): int(b) for a, b in symmetry.group_of.items() if a != b}

    def run(self) -> None:
        for rank in self.ranks.values():
            self.queue.begin()
            rank.feed(Start(0))
        self.queue.run()

    def written_tag(self, tag: int) -> int:
        """The tag with the number of the group that stands for all of its images."""
        if not self._groups or tag % GRANT_TAGS < COLLECTIVE_TAGS:
            return tag
        group = (tag % GRANT_TAGS - COLLECTIVE_TAGS) // STREAMS_PER_GROUP
        return tag + (self._groups.get(group, group) - group) * STREAMS_PER_GROUP

    def send(self, sender: _Rank, action: PostSend) -> None:
        row = sender.posted(action) if self.keep else None
        if self.model.aware:
            check_message(sender.number, action.peer, action.size_bytes, self.symmetry.ranks)
            way = route(self.model.dimensions[0], sender.number, action.peer)
            self._hop(_Letter(sender, action, row, way), 0, sender)
            return
        cost = self._costs.get((sender.number, action.peer))
        if cost is None or action.size_bytes <= 0:
            cost = message_cost(self.model, sender.number, action.peer, action.size_bytes)
            self._costs[sender.number, action.peer] = cost
        queue = self.queue
        when_ns = queue.now_ns + int(cost[0] + action.size_bytes / cost[1])
        queue.put(when_ns, sender, 0, queue.root, self._deliver, sender, action, row)

    def _deliver(self, sender: _Rank, action: PostSend, row: list[Any] | None) -> None:
        """The sender hears of it first, then the receiver, in its own frame."""
        if action.notify:
            sender.sent(action.handle)
        if row is not None:
            row[13] = row[14] = self.queue.now_ns
        receiver, moved, back, source = self._target(sender.number, action.peer)
        key = (source, self.written_tag(action.tag), action.size_bytes)
        receiver.arrive(key, moved, back)

    def _target(self, sender: int, peer: int) -> tuple[_Rank, int, int, int]:
        """(receiver's representative, translation onto the peer, its inverse, the sender as the receiver sees it)."""
        found = self._targets.get((sender, peer))
        if found is None:
            moved = int(self.symmetry.translation(peer))
            back = self.symmetry.inverse(moved)
            found = self.ranks[peer - moved], moved, back, int(self.symmetry.moved(sender, back))
            self._targets[sender, peer] = found
        return found

    def _hop(self, letter: _Letter, at: int, home: Place | None) -> None:
        """A letter is at a device of its route: into the next link, or delivered."""
        if at == len(letter.route) - 1:
            self._deliver(letter.sender, letter.action, letter.row)
            return
        link, moved = self._link(letter.route[at], letter.route[at + 1])
        self.queue.touch(link, moved, home)
        if link.busy:
            link.waiting.append((letter, at, moved))
        else:
            root = self.symmetry.moved(self.queue.root, self.symmetry.inverse(moved))
            self._start(link, letter, at, moved, root)

    def _link(self, a: int, b: int) -> tuple[_Link, int]:
        """The class of a link, and the translation from its representative; a switch is device number `size`."""
        found = self._link_at.get((a, b))
        if found is None:
            switch = self.symmetry.ranks
            moved = int(self.symmetry.translation(b if a == switch else a))
            back = self.symmetry.inverse(moved)
            ends = tuple(end if end == switch else int(self.symmetry.moved(end, back)) for end in (a, b))
            found = self._links.setdefault((ends[0], ends[1]), _Link()), moved
            self._link_at[a, b] = found
        return found

    def _start(self, link: _Link, letter: _Letter, at: int, moved: int, root: int) -> None:
        """Begin to send; `root` is seen from the link. Arrival first, then the link is free: that decides ties."""
        link.busy = True
        queue, serialisation_ns = self.queue, letter.action.size_bytes / self._bytes_per_ns
        seen = self.symmetry.moved(root, moved)
        arrival_ns = queue.now_ns + int(self._latency_ns + serialisation_ns)
        queue.put(arrival_ns, link, moved, seen, self._hop, letter, at + 1, None)
        queue.put(queue.now_ns + int(serialisation_ns), link, 0, root, self._free, link)

    def _free(self, link: _Link) -> None:
        self.queue.touch(link, 0, None)
        link.busy = False
        if link.waiting:
            letter, at, moved = link.waiting.popleft()
            self._start(link, letter, at, moved, self.queue.root)


def _all_messages(simulation: _Quotient) -> Messages:
    """Every representative's messages, once for each rank that it stands for; ordered by tick and sender."""
    symmetry, everyone = simulation.symmetry, np.arange(simulation.symmetry.ranks)
    translations = symmetry.translation(everyone)
    tables = []
    for rank in simulation.ranks.values():
        made = Messages.from_rows([tuple(row) for row in rank.rows])
        images = translations[everyone - translations == rank.number].tolist()
        tables += [_moved_messages(simulation, made, rank.number, by) for by in images]
    messages = Messages.concat(tables)
    return messages.take(np.lexsort((messages.src, messages.posted_ns)))


def _moved_messages(simulation: _Quotient, made: Messages, rank: int, by: int) -> Messages:
    """A representative's messages as those of its image."""
    if by == 0 or not len(made):
        return made
    schedule, symmetry = simulation.schedule, simulation.symmetry
    nodes, image = (schedule.workload.traces[r].nodes for r in (rank, rank + by))
    columns = made.columns() | {
        "src": made.src + by,
        "dst": symmetry.moved(made.dst.astype(np.int64), by),
    }
    rows = np.searchsorted(nodes.node_id, made.node_id)
    if nodes is not image:
        columns["node_id"] = image.node_id[rows]
    if simulation._groups:  # noqa: SLF001 - the simulation's own output
        apart = _group_numbers(schedule, rank + by)[rows] - _group_numbers(schedule, rank)[rows]
        own = made.tag % GRANT_TAGS < COLLECTIVE_TAGS  # a custom collective's sends carry tags of their own
        columns["tag"] = made.tag + np.where(own, 0, STREAMS_PER_GROUP * apart)
    return Messages(**columns)


def _group_numbers(schedule: Schedule, rank: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """For each row the number of its collective's group, 0 for others."""
    operators = schedule.ranks[rank].operators
    names = [
        schedule.collectives[at].group if kind == OpKind.COLLECTIVE else ""
        for kind, at in zip(operators.kind.tolist(), operators.collective.tolist(), strict=True)
    ]
    return np.array([int(name) if name.isdigit() else 0 for name in names], np.int64)
