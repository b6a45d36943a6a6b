"""Small jobs and scripted parts for the tests of the replay."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field

from genie.core.columns import csr_from_lists
from genie.core.system import System
from genie.core.workload import ALL_DIMENSIONS, NONE, CollectiveKind, NodeKind, Nodes, RankTrace, Workload
from genie.engine.events import Action, Event, OperatorDone, OperatorIssued, RankFinished, Start
from genie.lower import lower
from genie.replay.transports.base import Completion, Kind

_subnets = itertools.count(1)


def addresses(ranks):
    """Loopback addresses that no other test, and no other test process, uses."""
    subnet = f"127.{100 + os.getpid() % 100}.{next(_subnets) % 250}"
    return [f"{subnet}.{rank + 1}" for rank in range(ranks)]


def node(kind, deps=(), name="", **columns):
    row = dict.fromkeys(Nodes.SCHEMA, NONE)
    row |= {"duration_ns": 0, "group": "", "is_cpu": False, "priority": 0, "involved_dims": ALL_DIMENSIONS, "root": 0}
    return row | {"kind": kind, "name": name or kind.name.lower()} | columns, deps


def compute(us, deps=()):
    return node(NodeKind.COMP, deps, duration_ns=us * 1000)


def send(peer, size_bytes, deps=(), tag=0):
    return node(NodeKind.SEND, deps, peer=peer, size_bytes=size_bytes, tag=tag)


def receive(peer, size_bytes, deps=(), tag=0):
    return node(NodeKind.RECV, deps, peer=peer, size_bytes=size_bytes, tag=tag)


def all_reduce(size_bytes, deps=()):
    return node(NodeKind.COLLECTIVE, deps, comm_type=CollectiveKind.ALL_REDUCE, size_bytes=size_bytes)


def schedule(*ranks, system=None):
    """A schedule from each rank's nodes, dependencies by row."""
    traces = []
    for rank, nodes in enumerate(ranks):
        rows = [tuple((row | {"node_id": at})[name] for name in Nodes.SCHEMA) for at, (row, _) in enumerate(nodes)]
        offsets, deps = csr_from_lists([list(deps) for _, deps in nodes])
        traces.append(RankTrace(rank, Nodes.from_rows(rows), offsets, deps))
    ring = {CollectiveKind.ALL_REDUCE: ("ring",)}
    return lower(Workload("job", tuple(traces)), system or System(splits=1, algorithms=ring))


def ring_job(ranks=4, size_bytes=1 << 16, us=20, system=None):
    """Compute, an all-reduce of everybody, compute."""
    return schedule(
        *([compute(us), all_reduce(size_bytes, [0]), compute(us, [1])] for _ in range(ranks)), system=system
    )


@dataclass
class Script:
    """An engine that answers each event with what the test wrote down: by handle, `None` for the start."""

    answers: dict[int | None, list[Action]]
    events: list[Event] = field(default_factory=list)

    def step(self, event):
        self.events.append(event)
        return self.answers.get(None if isinstance(event, Start) else event.handle, [])

    def running(self):
        return [7]


def operator(row, *more):
    """Actions of an operator that is done at once, then more."""
    return [OperatorIssued(row), OperatorDone(row), *more]


FINISH = RankFinished(0)


@dataclass
class ScriptedTransport:
    """A transport on a manual clock: completions come when the test says, every timed wait ends late by `tardy_ns`.

    `arrivals`: handle of a receive -> (first byte, last byte, when poll tells it).
    `send_ns`: from a send's post to its acknowledgement; `spin_ns`: how long a poll without waiting takes.
    """

    clock: object
    arrivals: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    send_ns: int = 10
    tardy_ns: int = 0
    spin_ns: int = 0
    posts: list[tuple[str, int, int]] = field(default_factory=list)
    timeouts: list[int] = field(default_factory=list)
    due: list[tuple[int, Completion]] = field(default_factory=list)

    def post_send(self, handle, peer, *_):
        now_ns = self.clock.now_ns()
        self.posts.append(("send", handle, now_ns))
        done_ns = now_ns + self.send_ns
        self.due.append((done_ns, Completion(handle, Kind.SEND, peer, now_ns, now_ns, done_ns, 3)))

    def post_recv(self, handle, peer, *_):
        now_ns = self.clock.now_ns()
        self.posts.append(("receive", handle, now_ns))
        if handle in self.arrivals:
            first_ns, done_ns, told_ns = self.arrivals[handle]
            self.due.append((told_ns, Completion(handle, Kind.RECV, peer, now_ns, first_ns, done_ns, 3)))

    def poll(self, timeout_ns):
        self.timeouts.append(timeout_ns)
        wake_ns = self.clock.now_ns() + (timeout_ns + self.tardy_ns if timeout_ns else self.spin_ns)
        self.clock.sleep_until_ns(min([wake_ns, *(max(told, self.clock.now_ns()) for told, _ in self.due)]))
        now_ns = self.clock.now_ns()
        ready = [completion for told, completion in self.due if told <= now_ns]
        self.due = [(told, completion) for told, completion in self.due if told > now_ns]
        return ready
