"""Runs a replay on this machine: a process a rank, a common start, a watchdog, and everything collected at the end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from genie.core.timeline import Status
from genie.errors import RunError
from genie.replay.agent import AgentPlan, run_forked_agent
from genie.replay.control import Channel, Message
from genie.replay.record import RankRecord
from genie.replay.story import Outstanding, tell

CONNECT_TIMEOUT_S: Final = 20.0
START_MARGIN_NS: Final = 60_000_000
"""Between the order to run and the common start, so that every rank has its engine ready."""

SILENCE_S: Final = 5.0
"""A rank that has not been heard of for this long (it beats five times a second) is stopped or starved."""

STORY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """For people who watch: iteration (negative while warming up), ranks done, bytes moved so far."""

    iteration: int
    ranks_done: int
    ranks: int
    moved_bytes: int


@dataclass(slots=True)
class Outcome:
    """What a launch brought back: records by iteration and rank, what was moved, and how it ended."""

    records: list[dict[int, RankRecord]] = field(default_factory=list)
    moved: dict[int, dict[str, dict[int, list[int]]]] = field(default_factory=dict)
    baseline: dict[int, dict[str, dict[int, list[int]]]] = field(default_factory=dict)
    cpu_ns: dict[int, int] = field(default_factory=dict)
    status: Status = Status.OK
    error: RunError | None = None


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How often and how patiently.

    Attributes:
        warmup: iterations that are not recorded.
        repeats: iterations that are.
        stall_timeout_s: give up when no byte moves and no timer runs for this long.
    """

    warmup: int = 1
    repeats: int = 1
    stall_timeout_s: float = 10.0


class _Child:
    def __init__(self, rank: int, pid: int, channel: Channel) -> None:
        self.rank, self.pid, self.channel = rank, pid, channel
        self.heard_s = time.monotonic()
        self.progress: tuple[int, int] = (0, 0)
        self.timer = False
        self.done = False


def launch(
    plans: Sequence[AgentPlan],
    options: LaunchOptions,
    watch: Callable[[Progress], None] = lambda _: None,
    peers_of: Callable[[int], set[int]] | None = None,
) -> Outcome:
    """Run a replay.

    Args:
        plans: one a rank, in order.
        options: repeats and patience.
        watch: told about progress.
        peers_of: whom a rank exchanges messages with; everybody when absent.

    Returns:
        What was measured; `status` and `error` tell of a run that failed or was interrupted, with what there is of it.
    """
    launcher = _Launcher(plans, options, watch, peers_of or (lambda _: set(range(len(plans)))))
    try:
        launcher.run()
    except RunError as error:
        launcher.outcome.status, launcher.outcome.error = Status.FAILED, error
    except KeyboardInterrupt:
        launcher.outcome.status = Status.PARTIAL
        launcher.outcome.error = RunError("interrupted; what had been measured is kept.")
    finally:
        launcher.close()
    return launcher.outcome


class _Launcher:
    def __init__(
        self,
        plans: Sequence[AgentPlan],
        options: LaunchOptions,
        watch: Callable[[Progress], None],
        peers_of: Callable[[int], set[int]],
    ) -> None:
        self._plans, self._options, self._watch, self._peers_of = plans, options, watch, peers_of
        self._children: list[_Child] = []
        self.outcome = Outcome()
        self._iteration = -options.warmup
        self._running = False  # beats come only while iterations run; connecting has its own deadline
        self._moved_s = time.monotonic()

    def run(self) -> None:
        for plan in self._plans:
            self._children.append(self._fork(plan))
        self._connect()
        self._running = True
        for iteration in range(-self._options.warmup, self._options.repeats):
            self._iteration = iteration
            self._run_once()
        for child in self._children:
            child.channel.send({"op": "stop"})

    def _fork(self, plan: AgentPlan) -> _Child:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                ours.close()
                for child in self._children:
                    child.channel.close()
                code = run_forked_agent(plan, Channel(theirs), parent)
            finally:
                os._exit(code)
        theirs.close()
        return _Child(plan.rank, pid, Channel(ours))

    def _connect(self) -> None:
        endpoints: dict[int, Any] = {}
        self._gather("opened", lambda child, message, _: endpoints.update({child.rank: message["endpoint"]}))
        deadline_ns = time.monotonic_ns() + int(CONNECT_TIMEOUT_S * 1e9)
        for child in self._children:
            peers = {p: endpoints[p] for p in sorted(self._peers_of(child.rank) - {child.rank})}
            child.channel.send({"op": "connect", "peers": peers, "deadline_ns": deadline_ns})
        self._gather("connected", lambda *_: None)

    def _run_once(self) -> None:
        start_ns = time.monotonic_ns() + START_MARGIN_NS
        records: dict[int, RankRecord] = {}

        def take(child: _Child, message: Message, block: bytes) -> None:
            records[child.rank] = RankRecord.from_bytes(block)
            self.outcome.moved[child.rank] = _numbers(message["moved"])
            self.outcome.cpu_ns[child.rank] = message["cpu_ns"]

        if self._iteration >= 0:
            self.outcome.records.append(records)
        for child in self._children:
            child.channel.send({"op": "run", "start_ns": start_ns})
        self._gather("done", take)
        if self._iteration == -1:
            self.outcome.baseline = dict(self.outcome.moved)

    def _gather(self, op: str, take: Callable[[_Child, Message, bytes], None]) -> None:
        """Wait until every child has sent `op`; meanwhile watch over them all."""
        self._moved_s = time.monotonic()
        for child in self._children:
            child.done, child.heard_s = False, time.monotonic()
        while waiting := [child for child in self._children if not child.done]:
            ready = select.select([child.channel for child in waiting], [], [], 0.1)[0]
            for child in [child for child in waiting if child.channel in ready]:
                self._listen(child, op, take)
            self._guard([child for child in waiting if not child.done])
            self._tell(op)

    def _listen(self, child: _Child, op: str, take: Callable[[_Child, Message, bytes], None]) -> None:
        try:
            message, block = child.channel.receive()
        except RunError as error:
            raise self._dead(child) from error
        child.heard_s = time.monotonic()
        if message["op"] == op:
            child.done = True
            self._moved_s = child.heard_s
            take(child, message, block)
        elif message["op"] == "beat":
            self._beat(child, message)
        elif message["op"] == "failed":
            self._keep(child, block)
            raise self._first_cause(child, message)

    def _beat(self, child: _Child, message: Message) -> None:
        progress = (message["bytes"], message["events"])
        if progress != child.progress:
            child.progress, self._moved_s = progress, time.monotonic()
        child.timer = message["timer"]

    def _guard(self, waiting: list[_Child]) -> None:
        now_s = time.monotonic()
        for child in waiting:
            if self._running and now_s - child.heard_s > SILENCE_S:
                raise RunError(
                    f"rank {child.rank} (process {child.pid}) has not been heard of for {SILENCE_S:g} s.",
                    where=f"rank {child.rank}",
                    fix="is it stopped, or is the machine overloaded?",
                )
        stalled = now_s - self._moved_s > self._options.stall_timeout_s
        if self._running and waiting and stalled and not any(child.timer for child in waiting):
            raise RunError(
                f"nothing has moved for {self._options.stall_timeout_s:g} s: {self._stories(waiting)}",
                fix="genie trace check finds receives without sends; genie testbed check finds broken paths.",
            )

    def _stories(self, waiting: list[_Child]) -> str:
        """Ask everybody what they wait for; keep what they had measured."""
        outstanding: dict[int, Outstanding] = {}
        for child in waiting:
            with contextlib.suppress(RunError):
                child.channel.send({"op": "story"})
        deadline_s = time.monotonic() + STORY_S
        missing = list(waiting)
        while missing and time.monotonic() < deadline_s:
            for channel in select.select([child.channel for child in missing], [], [], 0.1)[0]:
                child = next(child for child in missing if child.channel is channel)
                try:
                    message, block = child.channel.receive()
                except RunError:
                    missing.remove(child)
                    continue
                if message["op"] == "story":
                    missing.remove(child)
                    self._keep(child, block)
                    outstanding[child.rank] = message["outstanding"]
        return tell(outstanding)

    def _keep(self, child: _Child, block: bytes) -> None:
        if block and self.outcome.records and child.rank not in self.outcome.records[-1]:
            self.outcome.records[-1][child.rank] = RankRecord.from_bytes(block)

    def _dead(self, child: _Child) -> RunError:
        _, status = os.waitpid(child.pid, 0)
        child.pid = 0
        code = os.waitstatus_to_exitcode(status)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return RunError(f"rank {child.rank} {how}.", where=f"rank {child.rank}", fix="look at what ended it.")

    def _first_cause(self, child: _Child, message: Message) -> RunError:
        """A rank that lost its peer complains before the peer's end is seen: look for a dead one first."""
        for other in self._children:
            if other.pid and other is not child and os.waitpid(other.pid, os.WNOHANG)[0]:
                other_error = RunError(f"rank {other.rank} died; {message['what']}", where=f"rank {other.rank}")
                other.pid = 0
                return other_error
        return RunError(message["what"], where=message["where"] or f"rank {child.rank}", fix=message["fix"])

    def _tell(self, op: str) -> None:
        if op == "done":
            done = sum(child.done for child in self._children)
            moved = sum(child.progress[0] for child in self._children) // 2
            self._watch(Progress(self._iteration, done, len(self._children), moved))

    def close(self) -> None:
        """No child outlives this."""
        for child in self._children:
            child.channel.close()
        grace_s = 1.0 if self.outcome.status is Status.OK else 0.0
        deadline_s = time.monotonic() + grace_s
        for child in self._children:
            while child.pid:
                _reap(child, kill=time.monotonic() >= deadline_s)


def _reap(child: _Child, *, kill: bool) -> None:
    """Collect a child that has ended, or end it."""
    if kill:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
    if os.waitpid(child.pid, 0 if kill else os.WNOHANG)[0]:
        child.pid = 0
    else:
        time.sleep(0.002)


def _numbers(moved: Mapping[str, Mapping[str, list[int]]]) -> dict[str, dict[int, list[int]]]:
    return {way: {int(peer): total for peer, total in totals.items()} for way, totals in moved.items()}
