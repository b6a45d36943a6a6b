"""Carries out a timeline of faults while ranks run, and keeps the record of when each really happened."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from genie.core.faults import OF_PORTS, Action, DelayChange, Fault, FaultKind, Step, delay_changes, steps
from genie.core.testbed import Testbed
from genie.core.timeline import UNKNOWN
from genie.errors import NotReadyError, RunError
from genie.replay.ranks import Rank

Alter = Callable[[Step], None]
"""Lets a step happen on a fabric's ports."""

UNDONE: Final = "undone"
NOT_REACHED: Final = "not reached"


class Happened(NamedTuple):
    """A row of the record; times virtual, `happened_ns` -1 for what the iteration was too short for."""

    fault: int
    kind: str
    target: str
    iteration: int
    action: str
    value: int
    planned_ns: int
    happened_ns: int


class Faulting:
    """See During.

    Args:
        faults: the experiment's.
        testbed: whose links and hosts they name.
        routes: (source, destination) -> directed links.
        repeats: recorded iterations.
        alter: what changes the fabric's ports; None where there is no fabric.

    Raises:
        InputError: a fault that names nothing or cannot be.
        NotReadyError: a fault of links without a fabric.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        testbed: Testbed,
        routes: Mapping[tuple[int, int], Sequence[str]],
        repeats: int,
        alter: Alter | None,
    ) -> None:
        self._faults, self._testbed, self._routes, self._alter = faults, testbed, routes, alter
        ranks = 1 + max((max(pair) for pair in routes), default=0)
        self._steps = steps(faults, testbed, ranks, repeats)
        for fault in faults if alter is None else ():
            if fault.kind in OF_PORTS:
                raise NotReadyError(
                    f"fault {fault.kind} of {fault.target} needs an emulated fabric, and here is none.",
                    fix="run where network namespaces are allowed (genie doctor).",
                )
        self._left: deque[Step] = deque()
        self._active: dict[tuple[int, str], Step] = {}
        self._ranks: dict[str, Rank] = {}
        self._start_ns = 0
        self.record: list[Happened] = []

    def delays(self, iteration: int) -> dict[int, list[DelayChange]]:
        """See During."""
        return delay_changes(self._faults, self._testbed, self._routes, iteration)

    def begin(self, iteration: int, start_ns: int, ranks: Sequence[Rank]) -> None:
        """See During."""
        self._start_ns, self._ranks = start_ns, {f"rank {rank.rank}": rank for rank in ranks}
        self._left = deque(step for step in self._steps if step.iteration == iteration)

    def due_ns(self) -> int | None:
        """See During."""
        return self._real_ns(self._left[0]) if self._left else None

    def _real_ns(self, step: Step) -> int:
        return self._start_ns + step.at_ns * self._testbed.dilation

    def act(self, now_ns: int) -> None:
        """See During."""
        while self._left and self._real_ns(self._left[0]) <= now_ns:
            step = self._left.popleft()
            self._do(step)
            self._note(step, step.action, now_ns)

    def _do(self, step: Step) -> None:
        if step.action is Action.BEGIN:
            self._active[step.fault, step.target] = step
        elif step.action is Action.END:
            self._active.pop((step.fault, step.target), None)
        if step.kind in OF_PORTS and self._alter is not None:
            self._alter(step)
        elif step.kind in _SIGNALS and step.action is not Action.REROUTE:
            self._signal(step)

    def _signal(self, step: Step) -> None:
        rank = self._ranks[step.target]
        number = _SIGNALS[step.kind][step.action]
        if number is None:
            return
        if not hasattr(rank, "pid"):
            raise RunError(f"{rank} is no process that could be stopped.", where=f"fault {step.kind}")
        if not rank.ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, number)

    def _note(self, step: Step, action: str, now_ns: int) -> None:
        when_ns = UNKNOWN if now_ns == UNKNOWN else (now_ns - self._start_ns) // self._testbed.dilation
        if step.kind is FaultKind.DELAY and when_ns != UNKNOWN and action != UNDONE:
            when_ns = step.at_ns  # the ranks know beforehand, and add it to the hour
        row = (step.fault, step.kind.value, step.target, step.iteration, str(action), step.value, step.at_ns, when_ns)
        self.record.append(Happened(*row))

    def end(self, now_ns: int) -> None:
        """See During; undoes, last first, what is still on."""
        for step in reversed(list(self._active.values())):
            self._do(step._replace(action=Action.END))
            if step.kind in {FaultKind.LINK_DOWN, FaultKind.FLAP}:
                self._do(step._replace(action=Action.REROUTE))
            if step.kind is not FaultKind.KILL:
                self._note(step, UNDONE, now_ns)
        for step in self._left:
            if step.action is Action.BEGIN:
                self._note(step, NOT_REACHED, UNKNOWN)
        self._left.clear()
        self._active.clear()

    def tell(self) -> str:
        """See During."""
        on = [f"{step.kind} of {step.target} since {step.at_ns} ns" for step in self._active.values()]
        return f"Faults of the experiment were on: {', '.join(on)}." if on else ""

    def table(self) -> dict[str, list[Any]]:
        """The record as columns."""
        return {name: [getattr(row, name) for row in self.record] for name in Happened._fields}


_SIGNALS: Final[dict[FaultKind, dict[Action, signal.Signals | None]]] = {
    FaultKind.PAUSE: {Action.BEGIN: signal.SIGSTOP, Action.END: signal.SIGCONT},
    FaultKind.KILL: {Action.BEGIN: signal.SIGKILL, Action.END: None},
}
