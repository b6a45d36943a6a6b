"""Running one phase of one chunk on one rank: token programs and graph programs.

Source of the rules: ASTRA-sim's collective implementations; section "Collectives" of docs/simulator.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from genie.core.schedule import (
    COLLECTIVE_TAGS,
    GraphProgram,
    GraphStep,
    Phase,
    Reduce,
    StepKind,
    TokenProgram,
)
from genie.engine.events import Origin
from genie.engine.port import Port


class Costs(Protocol):
    """What a local step costs on this rank."""

    def reduction_ns(self, size_bytes: int) -> int:
        """Time to reduce `size_bytes` into the local buffer."""
        ...


class Seat:
    """Where a phase runs: the rank's place among the members, the chunk's stream, and whom to tell at the end."""

    __slots__ = (
        "at",
        "chunk",
        "clockwise",
        "costs",
        "ended",
        "node_id",
        "phase",
        "port",
        "position",
        "ranks",
        "tag",
    )

    def __init__(
        self,
        *,
        port: Port,
        costs: Costs,
        phase: Phase,
        at: int,
        rank: int,
        clockwise: bool,
        stream: int,
        chunk: int,
        node_id: int,
        ended: Callable[[], None],
    ) -> None:
        self.port, self.costs, self.phase, self.at = port, costs, phase, at
        self.position, self.ranks = phase.members.position(rank), phase.members.of(rank)
        self.clockwise, self.chunk, self.node_id, self.ended = clockwise, chunk, node_id, ended
        self.tag = COLLECTIVE_TAGS + stream % COLLECTIVE_TAGS

    def origin(self, step: int) -> Origin:
        """What a message of this phase belongs to."""
        return Origin(self.node_id, self.chunk, self.at, step)


class TokenRun:
    """A token program in progress (see core.schedule.TokenProgram for the rules)."""

    __slots__ = ("_delivered", "_made", "_program", "_seat", "_sent", "_steps", "_usable")

    def __init__(self, program: TokenProgram, seat: Seat) -> None:
        self._program, self._seat, self._steps = program, seat, program.steps
        self._made = self._usable = self._sent = self._delivered = 0

    def start(self) -> None:
        """Make the first tokens."""
        for _ in range(self._program.start_tokens):
            self._make_token()

    def received(self) -> None:
        """A message of the phase is here: it makes a token, from whomever it came."""
        self._delivered += 1
        self._make_token()

    def _make_token(self) -> None:
        token = self._made
        self._made += 1
        run, place = divmod(token, self._program.start_tokens + self._program.marked_run)
        marked = place >= self._program.start_tokens and self._reduces(run)
        seat = self._seat
        after = self._usable_now
        if marked:
            size_bytes = self._exchange(token)[1]
            after = lambda: seat.port.timer(seat.costs.reduction_ns(size_bytes), self._usable_now)  # noqa: E731
        seat.port.timer(seat.phase.endpoint_delay_ns, after)

    def _reduces(self, run: int) -> bool:
        reduce = self._program.reduce
        return reduce is Reduce.LATER_RUNS or (reduce is Reduce.ODD_RUNS and run % 2 == 0)

    def _usable_now(self) -> None:
        self._usable += 1
        program = self._program
        if 0 <= program.gate_step <= self._sent:
            if self._delivered < program.gate_step:
                return
            for _ in range(program.start_tokens):
                self._exchange_next()
        else:
            self._exchange_next()
        if self._sent == self._steps and self._usable == program.start_tokens:
            self._seat.ended()

    def _exchange(self, step: int) -> tuple[int, int]:
        """(offset, size_bytes) of a step; past the end, of the last."""
        program = self._program
        if len(program.counts) == 1:
            return program.offsets[0], program.sizes_bytes[0]
        at = min(step, self._steps - 1)
        return program.offsets[at], program.sizes_bytes[at]

    def _exchange_next(self) -> None:
        if self._sent == self._steps or self._usable == 0:
            return
        seat, step = self._seat, self._sent
        offset, size_bytes = self._exchange(step)
        members, origin = len(seat.ranks), seat.origin(step)
        to = self._program.send_peer(seat.position, offset, members, clockwise=seat.clockwise)
        source = self._program.recv_peer(seat.position, offset, members, clockwise=seat.clockwise)
        self._sent += 1
        self._usable -= 1
        seat.port.send(seat.ranks[to], seat.tag, size_bytes, origin)
        seat.port.receive(seat.ranks[source], seat.tag, size_bytes, origin, self.received)


class GraphRun:
    """A graph program in progress: a step starts when all that it depends on are done, lowest first."""

    __slots__ = ("_children", "_left", "_missing", "_seat", "_steps", "_wait")

    def __init__(self, program: GraphProgram, seat: Seat) -> None:
        self._steps, self._seat, self._wait = program.steps, seat, program.await_sends
        self._missing = [len(step.deps) for step in program.steps]
        self._children: list[list[int]] = [[] for _ in program.steps]
        for at, step in enumerate(program.steps):
            for dep in step.deps:
                self._children[dep].append(at)
        self._left = len(program.steps)

    def start(self) -> None:
        """Start every step that waits for nothing."""
        self._begin([at for at, missing in enumerate(self._missing) if missing == 0])

    def _begin(self, steps: list[int]) -> None:
        """Start the steps; posting a send ends it at once where nobody awaits its delivery."""
        ended = 0
        for at in steps:
            self._carry_out(at, self._steps[at])
            ended += self._steps[at].kind is StepKind.SEND and not self._wait
        self._left -= ended
        if ended and self._left == 0:
            self._seat.ended()

    def _carry_out(self, at: int, step: GraphStep) -> None:
        seat = self._seat
        tag = seat.tag if step.tag < 0 else step.tag
        done = lambda: self._done(at)  # noqa: E731 - one continuation a step
        if step.kind is StepKind.SEND:
            awaited = done if self._wait else None
            seat.port.send(seat.ranks[step.peer], tag, step.size_bytes, seat.origin(at), awaited)
        elif step.kind is StepKind.RECV:
            seat.port.receive(seat.ranks[step.peer], tag, step.size_bytes, seat.origin(at), done)
        elif step.kind is StepKind.COMPUTE:
            seat.port.timer(step.duration_ns, done)
        elif step.kind is StepKind.REDUCE:
            cost = seat.costs.reduction_ns(step.size_bytes)
            seat.port.timer(seat.phase.endpoint_delay_ns, lambda: seat.port.timer(cost, done))
        else:
            seat.port.timer(seat.phase.endpoint_delay_ns, done)

    def _done(self, at: int) -> None:
        ready = []
        for child in self._children[at]:
            self._missing[child] -= 1
            if self._missing[child] == 0:
                ready.append(child)
        self._left -= 1
        if self._left == 0:
            self._seat.ended()
        else:
            self._begin(ready)
