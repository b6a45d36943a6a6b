"""Runs a replay on this machine: starts the ranks, agrees on starts, watches over them, brings everything home."""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from genie import errors
from genie.core.timeline import Status
from genie.errors import GenieError, RunError
from genie.replay.agent import AgentPlan
from genie.replay.clock import Clock, RealClock
from genie.replay.clocksync import ROUND_TRIPS, ClockRow, Offset, RoundTrip, clock_row, offset_of
from genie.replay.control import Message
from genie.replay.during import During, Quiet
from genie.replay.interrupt import InterruptedRunError, Interrupts
from genie.replay.ranks import Rank, Spawn, first_killed, fork
from genie.replay.record import RankRecord
from genie.replay.story import Outstanding, tell
from genie.replay.watchdog import Patience, Trouble, Verdict, Watchdog
from genie.units import ns_to_s, s_to_ns

CONNECT_NS: Final = 20_000_000_000
START_MARGIN_NS: Final = 30_000_000
"""Between the order to run and the common start: every rank is ready by then, the order only has to reach it."""

TICK_S: Final = 0.1
STORY_NS: Final = 1_000_000_000
POST_MORTEM_MS: Final = 200
GRACE_MS: Final = 1_000

PostMortem = Callable[[], GenieError | None]

Moved = dict[str, dict[int, list[int]]]
"""What one rank's transport counted: "sent" or "received" -> peer -> [messages, bytes]."""


@dataclass(frozen=True, slots=True)
class Progress:
    """For people who watch: iteration (negative while warming up), ranks done, bytes moved so far."""

    iteration: int
    ranks_done: int
    ranks: int
    moved_bytes: int


@dataclass(slots=True)
class Outcome:
    """What a launch brought back.

    Attributes:
        records: recorded iterations, each rank -> its record; incomplete where the run failed.
        moved: rank -> what its transport counted, warm-up included; empty where the run failed.
        cpu_ns: rank -> processor time of all its iterations.
        priorities: how the rank processes were scheduled (see priority.take_precedence).
        status: FAILED, or PARTIAL after an interrupt, if `error` is set.
        error: what ended the run early.
        statistics: rank -> what else its transport counted (see transports.base.Counting).
        clocks: every rank's clock against ours, where they may differ.
    """

    records: list[dict[int, RankRecord]] = field(default_factory=list)
    moved: dict[int, Moved] = field(default_factory=dict)
    cpu_ns: dict[int, int] = field(default_factory=dict)
    priorities: set[str] = field(default_factory=set)
    status: Status = Status.OK
    error: GenieError | None = None
    statistics: dict[int, dict[str, int]] = field(default_factory=dict)
    clocks: list[ClockRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How often and how patiently.

    Attributes:
        warmup: iterations that are not recorded.
        repeats: iterations that are.
        stall_timeout_s: give up when no byte moves and no timer runs for this long.
        silence_timeout_s: give up when a rank says nothing for this long (it does five times a second).
        clocks: whether ranks may have other clocks than ours: they are read, and starts are told in theirs.
    """

    warmup: int = 1
    repeats: int = 1
    stall_timeout_s: float = 10.0
    silence_timeout_s: float = 5.0
    clocks: bool = False

    def patience(self) -> Patience:
        """For the watchdog."""
        return Patience(silence_ns=s_to_ns(self.silence_timeout_s), stall_ns=s_to_ns(self.stall_timeout_s))


def launch(
    plans: Sequence[AgentPlan],
    options: LaunchOptions,
    watch: Callable[[Progress], None] = lambda _: None,
    peers_of: Callable[[int], set[int]] | None = None,
    spawn: Spawn = fork,
    clock: Clock | None = None,
    during: During | None = None,
    post_mortem: PostMortem = lambda: None,
) -> Outcome:
    """Run a replay.

    Args:
        plans: one a rank, in order.
        options: repeats and patience.
        watch: told about progress.
        peers_of: whom a rank exchanges messages with; everybody when absent.
        spawn: how ranks are started: ranks.fork or ranks.thread.
        clock: the launcher's.
        during: what happens beside the ranks while they run.
        post_mortem: why a rank ended, where somebody else than its parent knows.

    Returns:
        What was measured; `status` and `error` tell of a run that failed or was interrupted, with what there is of it.
        No process of it is left.
    """
    everybody = set(range(len(plans)))
    with Interrupts() as interrupts:
        launcher = _Launcher(plans, options, watch, peers_of or (lambda _: everybody), spawn, clock or RealClock())
        launcher.check, launcher.during = interrupts.check, during or Quiet()
        launcher.post_mortem = post_mortem
        try:
            launcher.run()
        except GenieError as error:
            launcher.fail(error)
        finally:
            launcher.close()
    return launcher.outcome


class _RankFailedError(GenieError):
    """A rank reported `error`, or is gone without a word."""

    def __init__(self, rank: Rank, error: GenieError | None = None) -> None:
        super().__init__(f"{rank} failed.")
        self.rank, self.error = rank, error


class _Launcher:
    def __init__(
        self,
        plans: Sequence[AgentPlan],
        options: LaunchOptions,
        watch: Callable[[Progress], None],
        peers_of: Callable[[int], set[int]],
        spawn: Spawn,
        clock: Clock,
    ) -> None:
        self._plans, self._options, self._watch, self._peers_of = plans, options, watch, peers_of
        self._spawn, self._clock = spawn, clock
        self._watchdog = Watchdog(options.patience())
        self._ranks: list[Rank] = []
        self._bytes: dict[int, int] = {}
        self._iteration = 0
        self._waiting: dict[int, Rank] = {}
        self._told: dict[int, Outstanding] = {}
        self.check: Callable[[], None] = lambda: None
        self.during: During = Quiet()
        self.post_mortem: PostMortem = lambda: None
        self._offsets: dict[int, Offset] = {}
        self.outcome = Outcome()

    def run(self) -> None:
        """All phases, one after the other."""
        for plan in self._plans:
            self.check()
            self._ranks.append(self._spawn(plan, self._ranks))
        self._connect()
        for iteration in range(-self._options.warmup, self._options.repeats):
            self._run_once(iteration)
        self._order({"op": "count"})
        self._gather("counted", lambda rank, message, _: self._take_count(rank, message))
        if self._options.clocks:
            after = self._read_clocks()
            self.outcome.clocks = [clock_row(rank, before, after[rank]) for rank, before in self._offsets.items()]
        self._order({"op": "stop"})

    def _order(self, message: Message) -> None:
        for rank in self._ranks:
            self._send(rank, message)

    def _send(self, rank: Rank, message: Message) -> None:
        try:
            rank.channel.send(message)
        except RunError:
            self._receive(rank)  # it may have said why before it went
            raise _RankFailedError(rank) from None

    def _connect(self) -> None:
        endpoints: dict[int, Any] = {}

        def take(rank: Rank, message: Message, _: bytes) -> None:
            endpoints[rank.rank] = message["endpoint"]
            self.outcome.priorities.add(message["priority"])

        self._gather("opened", take)
        if self._options.clocks:
            self._offsets = self._read_clocks()
        deadline_ns = self._clock.now_ns() + CONNECT_NS
        for rank in self._ranks:
            peers = {peer: endpoints[peer] for peer in sorted(self._peers_of(rank.rank) - {rank.rank})}
            self._send(rank, {"op": "connect", "peers": peers, "deadline_ns": self._theirs(rank, deadline_ns)})
        self._gather("connected", lambda *_: None)

    def _theirs(self, rank: Rank, ours_ns: int) -> int:
        """The same moment by a rank's clock."""
        return ours_ns + self._offsets[rank.rank].offset_ns if rank.rank in self._offsets else ours_ns

    def _read_clocks(self) -> dict[int, Offset]:
        """One rank after the other, so that no answer waits for another's."""
        found = {}
        for rank in self._ranks:
            trips = []
            for _ in range(ROUND_TRIPS):
                self.check()
                sent_ns = self._clock.now_ns()
                self._send(rank, {"op": "clock"})
                theirs_ns = self._receive(rank)[0]["now_ns"]
                trips.append(RoundTrip(sent_ns, theirs_ns, self._clock.now_ns()))
            found[rank.rank] = offset_of(trips)
        return found

    def _run_once(self, iteration: int) -> None:
        self._iteration = iteration
        delays = self.during.delays(iteration) if iteration >= 0 else {}
        for rank in self._ranks:
            self._send(rank, {"op": "prepare", "delays": delays.get(rank.rank, [])})
        self._gather("ready", lambda *_: None)
        records: dict[int, RankRecord] = {}
        if iteration >= 0:
            self.outcome.records.append(records)

        def take(rank: Rank, message: Message, block: bytes) -> None:
            records[rank.rank] = RankRecord.from_bytes(block)
            self.outcome.cpu_ns[rank.rank] = self.outcome.cpu_ns.get(rank.rank, 0) + message["cpu_ns"]

        start_ns = self._clock.now_ns() + START_MARGIN_NS
        for rank in self._ranks:
            self._send(rank, {"op": "run", "start_ns": self._theirs(rank, start_ns)})
        self.during.begin(iteration, start_ns, self._ranks)
        self._gather("done", take, running=True)
        self.during.end(self._clock.now_ns())

    def _take_count(self, rank: Rank, message: Message) -> None:
        if message["statistics"]:
            self.outcome.statistics[rank.rank] = message["statistics"]
        self.outcome.moved[rank.rank] = {
            way: {int(peer): total for peer, total in totals.items()} for way, totals in message["moved"].items()
        }

    def _gather(self, op: str, take: Callable[[Rank, Message, bytes], None], *, running: bool = False) -> None:
        """Wait until every rank has answered `op`; meanwhile watch over them all."""
        self._waiting = {rank.rank: rank for rank in self._ranks}
        self._watchdog.begin(self._waiting, self._clock.now_ns(), running=running)
        with selectors.DefaultSelector() as selector:
            for rank in self._ranks:
                selector.register(rank.channel, selectors.EVENT_READ, rank)
            while self._waiting:
                for key, _ in selector.select(self._act() if running else TICK_S):
                    if self._listen(key.data, op, take):
                        selector.unregister(key.fileobj)
                self.check()
                self._judge()
                if running:
                    self._show()

    def _act(self) -> float:
        """Whatever is due beside the ranks; seconds until something may be again."""
        due_ns = self.during.due_ns()
        if due_ns is not None and due_ns <= self._clock.now_ns():
            self.during.act(self._clock.now_ns())
            due_ns = self.during.due_ns()
        return TICK_S if due_ns is None else min(TICK_S, max(0.0, ns_to_s(due_ns - self._clock.now_ns())))

    def _listen(self, rank: Rank, op: str, take: Callable[[Rank, Message, bytes], None]) -> bool:
        """Take one message; whether it was the one waited for."""
        message, block = self._receive(rank)
        if message["op"] == "beat":
            self._bytes[rank.rank] = message["progress"][0]
            self._watchdog.report(rank.rank, self._clock.now_ns(), tuple(message["progress"]), timer=message["timer"])
        elif message["op"] == op:
            take(rank, message, block)
            del self._waiting[rank.rank]
            self._watchdog.finish(rank.rank, self._clock.now_ns())
            return True
        return False

    def _receive(self, rank: Rank) -> tuple[Message, bytes]:
        try:
            message, block = rank.channel.receive()
        except RunError as error:
            raise _RankFailedError(rank) from error
        if message["op"] == "failed":
            self._take_story(rank, message, block)
            raise _RankFailedError(rank, _as_error(rank, message))
        return message, block

    def _judge(self) -> None:
        verdict = self._watchdog.verdict(self._clock.now_ns())
        if verdict is not None:
            raise _trouble(verdict, self._ranks)

    def _show(self) -> None:
        done = len(self._ranks) - len(self._waiting)
        self._watch(Progress(self._iteration, done, len(self._ranks), sum(self._bytes.values()) // 2))

    def fail(self, error: GenieError) -> None:
        """Keep what was measured so far, find out why, set the outcome's error."""
        self.outcome.status = Status.PARTIAL if isinstance(error, InterruptedRunError) else Status.FAILED
        if isinstance(error, _RankFailedError):
            error = self.post_mortem() or _first_cause(self._ranks, error)
        meanwhile = self.during.tell()
        blame = self._collect_stories()
        if blame and not isinstance(error, InterruptedRunError):
            error = type(error)(f"{error.what} At that moment {blame}", where=error.where, fix=error.fix)
        if meanwhile and not isinstance(error, InterruptedRunError):
            error = type(error)(f"{error.what} {meanwhile}", where=error.where, fix=error.fix)
        self.outcome.error = error

    def _collect_stories(self) -> str:
        """Ask every rank that was still at work what it waited for and measured; what follows from the answers."""
        deadline_ns = self._clock.now_ns() + STORY_NS
        with selectors.DefaultSelector() as selector:
            for number, rank in self._waiting.items():
                if number not in self._told:
                    with contextlib.suppress(RunError):  # one that has gone may have said why before
                        rank.channel.send({"op": "story"})
                    selector.register(rank.channel, selectors.EVENT_READ, rank)
            while selector.get_map() and (left_ns := deadline_ns - self._clock.now_ns()) > 0:
                for key, _ in selector.select(ns_to_s(left_ns)):
                    if self._hear_story(key.data):
                        selector.unregister(key.fileobj)
        if not self._told:
            return ""
        finished = {rank.rank for rank in self._ranks} - set(self._waiting)
        return tell(self._told, finished, set(self._waiting) - set(self._told))

    def _hear_story(self, rank: Rank) -> bool:
        """Take one message; whether nothing more is to be expected."""
        try:
            message, block = rank.channel.receive()
        except RunError:
            return True
        if message["op"] == "done":
            self._keep(rank.rank, block)
        if message["op"] not in {"story", "failed"}:
            return False
        self._take_story(rank, message, block)
        return True

    def _take_story(self, rank: Rank, message: Message, block: bytes) -> None:
        self._keep(rank.rank, block)
        self._told[rank.rank] = message["outstanding"]

    def _keep(self, rank: int, block: bytes) -> None:
        """A record of the recorded iteration that is under way."""
        if block and self._iteration >= 0 and self.outcome.records:
            self.outcome.records[-1].setdefault(rank, RankRecord.from_bytes(block))

    def close(self) -> None:
        """No rank outlives this."""
        with contextlib.suppress(GenieError):  # a run that failed has said why
            self.during.end(self._clock.now_ns())
        grace_ms = GRACE_MS if self.outcome.status is Status.OK else 0
        for rank in self._ranks:
            rank.end(grace_ms)


def _as_error(rank: Rank, message: Message) -> GenieError:
    """The error that a rank reported, as it was there."""
    kind = getattr(errors, message["kind"], RunError)
    made: GenieError = kind(message["what"], where=message["where"] or f"rank {rank.rank}", fix=message["fix"])
    return made


def _first_cause(ranks: Sequence[Rank], failed: _RankFailedError) -> GenieError:
    """A rank that lost its peer may complain before the peer's own end is seen: look for a killed one first."""
    killed = first_killed(ranks, POST_MORTEM_MS)
    if killed is not None:
        return RunError(f"{killed} {killed.ended()}.", where=f"rank {killed.rank}", fix="look at what killed it.")
    if failed.error is not None:
        return failed.error
    return RunError(f"{failed.rank} {failed.rank.ended() or 'hung up'}.", where=f"rank {failed.rank.rank}")


def _trouble(verdict: Verdict, ranks: Sequence[Rank]) -> RunError:
    seconds = f"{ns_to_s(verdict.for_ns):.1f} s"
    names = ", ".join(str(rank) for rank in ranks if rank.rank in verdict.ranks)
    if verdict.trouble is Trouble.SILENT:
        return RunError(
            f"not heard of for {seconds}: {names}.", fix="is the process stopped, or the machine overloaded?"
        )
    if verdict.trouble is Trouble.OVERDUE:
        return RunError(
            f"not ready after {seconds}: {names}.", fix="is the machine overloaded, or the trace too large?"
        )
    return RunError(
        f"nothing has moved for {seconds}.",
        fix="genie trace check finds receives without sends; look for broken paths, too.",
    )
