"""One rank's side of a replay: connects, runs iterations when told, reports, and ends with its launcher."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from genie.core.faults import DelayChange
from genie.core.shaping import UNSHAPED, Shaping
from genie.core.system import RemoteMemory
from genie.errors import GenieError, InternalError, RunError
from genie.replay.clock import Clock, RealClock, sharpen_timers
from genie.replay.control import Channel, Message
from genie.replay.priority import die_with, take_precedence
from genie.replay.runner import Engine, Runner
from genie.replay.transports.base import Counting, Transport

HEARTBEAT_NS: Final = 200_000_000
LINGER_NS: Final = 5_000_000
"""A rank that is done keeps taking in and acknowledging what its peers send; it looks for orders this often."""


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """What one rank needs to know.

    Attributes:
        rank: which.
        make_engine: a fresh engine an iteration.
        make_transport: called inside the host's namespace.
        enter: moves the process into its host; nothing on one plain machine.
        dilation, spin_ns: see runner.Pace.
        delays_ns: peer -> virtual delay of the path from it.
        rates_bps, shaping: see runner.Runner.
        memory: remote memory model.
        clock: real time.
        describe: an operator's row, for people.
        real_time: whether the rank's process may have real-time priority.
    """

    rank: int
    make_engine: Callable[[], Engine]
    make_transport: Callable[[], Transport]
    enter: Callable[[], None] = lambda: None
    dilation: int = 1
    spin_ns: int = 0
    delays_ns: Mapping[int, int] | None = None
    rates_bps: Mapping[int, int] = field(default_factory=dict)
    shaping: Shaping = UNSHAPED
    memory: RemoteMemory | None = None
    clock: Clock = field(default_factory=RealClock)
    describe: Callable[[int], str] = lambda row: f"operator {row}"
    real_time: bool = True


class Agent:
    """Obeys the launcher.

    ======== ============================================== ===========================
    order    what it does                                   answer
    ======== ============================================== ===========================
    (start)  enters its host, opens the transport           opened: endpoint, priority
    connect  connects to the given peers                    connected
    prepare  makes the next iteration's engine              ready
    run      runs it from the given start; beats meanwhile  done: cpu_ns, record
    story    says what it waits for, at any time            story: outstanding, record
    count    says what the transport moved                  counted: moved, statistics
    clock    reads its clock                                clock: now_ns
    stop     ends                                           (closes)
    ======== ============================================== ===========================

    A failure is told in an answer "failed", which ends the agent.
    """

    def __init__(self, plan: AgentPlan, channel: Channel, priority: str = "ordinary") -> None:
        self._plan, self._channel, self._clock, self._priority = plan, channel, plan.clock, priority
        self._transport: Transport | None = None
        self._runner: Runner | None = None
        self._lingering = False
        self._beat_ns = 0
        self._orders: dict[str, Callable[[Message], None]] = {
            "connect": self._connect,
            "prepare": self._prepare,
            "run": self._run,
            "story": self._tell_story,
            "count": self._count,
            "clock": self._tell_clock,
        }

    def serve(self) -> None:
        """Until told to stop, or the launcher is gone.

        Raises:
            GenieError: why it failed; the launcher has been told.
        """
        try:
            self._serve()
        except GenieError as error:
            self._report(error)
            raise
        finally:
            if self._transport is not None:
                self._transport.close()

    def _serve(self) -> None:
        try:
            self._plan.enter()
            self._transport = self._plan.make_transport()
            endpoint = dict(self._transport.open())
            self._channel.send({"op": "opened", "endpoint": endpoint, "priority": self._priority})
            while (message := self._next_order())["op"] != "stop":
                self._orders[message["op"]](message)
        except GenieError:
            raise
        except OSError as error:
            raise RunError(f"the system refused something: {error}.", where=f"rank {self._plan.rank}") from error
        except Exception as error:
            raise InternalError(_crash(error), where=f"rank {self._plan.rank}") from error

    def _next_order(self) -> Message:
        while self._lingering and not self._channel.ready():
            self._open_transport().poll(LINGER_NS)
        return self._channel.receive()[0]

    def _open_transport(self) -> Transport:
        if self._transport is None:
            raise InternalError("an order came before the transport was open.")
        return self._transport

    def _connect(self, message: Message) -> None:
        peers = {int(peer): endpoint for peer, endpoint in message["peers"].items()}
        self._open_transport().connect(peers, message["deadline_ns"])
        self._channel.send({"op": "connected"})

    def _prepare(self, message: Message) -> None:
        plan = self._plan
        self._lingering = False
        self._runner = None
        gc.collect()  # now, since it is off while ranks run
        self._runner = Runner(
            plan.make_engine(),
            self._open_transport(),
            self._clock,
            plan.dilation,
            plan.spin_ns,
            plan.delays_ns,
            plan.memory,
            self._attend,
            [DelayChange(*row) for row in message.get("delays", ())],
            plan.rates_bps,
            plan.shaping,
        )
        self._channel.send({"op": "ready"})

    def _run(self, message: Message) -> None:
        if self._runner is None:
            raise InternalError("told to run before it was prepared.")
        before_ns = time.thread_time_ns()
        record = self._runner.run(message["start_ns"])
        self._lingering = True
        self._channel.send({"op": "done", "cpu_ns": time.thread_time_ns() - before_ns}, record.to_bytes())

    def _attend(self) -> None:
        """Now and then say that we live, and look whether the launcher wants something."""
        now_ns = self._clock.now_ns()
        if now_ns - self._beat_ns < HEARTBEAT_NS or self._runner is None:
            return
        self._beat_ns = now_ns
        progress = [self._open_transport().progress_bytes(), self._runner.events]
        self._channel.send({"op": "beat", "progress": progress, "timer": self._runner.waits_for_timer})
        while self._channel.ready():
            message, _ = self._channel.receive()
            if message["op"] != "story":
                raise RunError("stopped by the launcher.", where=f"rank {self._plan.rank}")
            self._tell_story(message)

    def _tell_story(self, _: Message) -> None:
        self._channel.send({"op": "story", "outstanding": self._outstanding()}, self._seen())

    def _outstanding(self) -> dict[str, list[Any]]:
        if self._runner is None:
            return {"receives": [], "sends": [], "operators": []}
        outstanding = self._runner.outstanding()
        outstanding["operators"] = [self._plan.describe(row) for row in outstanding["operators"]]
        return outstanding

    def _seen(self) -> bytes:
        return self._runner.record().to_bytes() if self._runner is not None else b""

    def _count(self, _: Message) -> None:
        transport = self._open_transport()
        transport.poll(0)  # what no receive asked for may have arrived unseen
        moved = transport.moved()
        plain = {way: {str(peer): list(total) for peer, total in totals.items()} for way, totals in moved.items()}
        statistics = transport.statistics() if isinstance(transport, Counting) else {}
        self._channel.send({"op": "counted", "moved": plain, "statistics": dict(statistics)})

    def _tell_clock(self, _: Message) -> None:
        self._channel.send({"op": "clock", "now_ns": self._clock.now_ns()})

    def _report(self, error: GenieError) -> None:
        report = {"op": "failed", "kind": type(error).__name__, "outstanding": self._outstanding()}
        try:
            self._channel.send({**report, "what": error.what, "where": error.where, "fix": error.fix}, self._seen())
        except RunError:
            return  # the launcher is gone; there is nobody left to tell


def _crash(error: Exception) -> str:
    """A bug of ours in one sentence: what, and in which line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else "nowhere"
    return f"{type(error).__name__} at {place}: {error}."


def run_forked_agent(plan: AgentPlan, channel: Channel, parent: int) -> int:
    """The whole life of a forked rank; its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher, which ends us in order
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not die_with(parent):
        return RunError.exit_code
    priority = take_precedence(real_time=plan.real_time)
    gc.freeze()  # what was inherited need not be looked through, nor copied because of it
    gc.disable()
    sharpen_timers()
    try:
        Agent(_reattached(plan, parent), channel, priority).serve()
    except GenieError as error:
        return error.exit_code
    finally:
        channel.close()
    return os.EX_OK


def _reattached(plan: AgentPlan, parent: int) -> AgentPlan:
    """The plan, but bound to the launcher's life again once inside the host."""

    def enter() -> None:
        plan.enter()
        die_with(parent)

    return replace(plan, enter=enter)
