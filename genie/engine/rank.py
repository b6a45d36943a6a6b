"""RankEngine: one rank's part of a schedule as a state machine, `step(event) -> actions`."""

from __future__ import annotations

from genie.core.schedule import STREAMS_PER_GROUP, OpKind, RankOperators, Schedule, Slot
from genie.core.system import Profile
from genie.engine.events import Action, Event, OperatorDone, OperatorIssued, Origin, RankFinished, Start
from genie.engine.port import Port
from genie.engine.programs import TokenRun
from genie.engine.readiness import Readiness
from genie.engine.streams import Streams
from genie.errors import InternalError


class RankEngine:
    """Decides what a rank does next; carries nothing out.

    The executor feeds `Start` once, then an event for every answered handle, and carries the returned actions out in
    order. Equal events in equal order give equal actions: the engine reads no clock and draws no random number.

    Raises (from `step`):
        InternalError: an event that answers nothing.
    """

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self.rank = rank
        part: RankOperators = schedule.ranks[rank]
        self._schedule, self._operators = schedule, part.operators
        self._node_ids = schedule.workload.traces[rank].nodes.node_id
        self._readiness = Readiness(part)
        system = schedule.system
        self._port = Port(rendezvous=system.rendezvous, narrow=not system.extended)
        self._streams = Streams(schedule.system, rank, self._port)
        self._stream_ids = _StreamIds()
        self._overlap = schedule.system.profile is Profile.OVERLAP
        self._compute_ns = 0
        self._running: dict[int, None] = {}
        self.finished = False

    def step(self, event: Event) -> list[Action]:
        """Take one event; what is to be done now, in order."""
        if isinstance(event, Start):
            self._issue_ready()
            self._finish_if_idle()
        else:
            self._port.answer(event.handle)
        return self._port.take_actions()

    def interchangeable(self, handle: int) -> object | None:
        """Equal for handles whose answers have equal effects, none of them at once; None where that is not known.

        Whichever message of a token program comes first, it makes the next token.
        """
        waiting = self._port.waiting(handle)
        return waiting if getattr(waiting, "__func__", None) is TokenRun.received else None

    def running(self) -> tuple[int, ...]:
        """Rows issued and not done: what the rank is waiting for."""
        return tuple(self._running)

    def _issue_ready(self) -> None:
        for row in self._readiness.scan():
            self._issue(row)

    def _issue(self, row: int) -> None:
        operators = self._operators
        kind = operators.kind[row]
        self._port.actions.append(OperatorIssued(row))
        self._running[row] = None
        if kind == OpKind.SKIP:
            self._close(row)
        elif kind in {OpKind.COMPUTE, OpKind.WAIT}:
            self._compute(row, kind)
        elif kind == OpKind.COLLECTIVE:
            self._launch(row)
        elif kind == OpKind.MEMORY:
            self._port.memory(int(operators.size_bytes[row]), lambda: self._done(row))
        else:
            self._exchange(row, kind)

    def _compute(self, row: int, kind: int) -> None:
        duration_ns = int(self._operators.duration_ns[row])
        if kind == OpKind.COMPUTE and self._operators.slot[row] != Slot.CPU:
            self._compute_ns += duration_ns
        self._port.timer(duration_ns, lambda: self._done(row))

    def _exchange(self, row: int, kind: int) -> None:
        operators = self._operators
        post = self._port.send if kind == OpKind.SEND else self._port.receive
        post(
            int(operators.peer[row]),
            int(operators.tag[row]),
            int(operators.size_bytes[row]),
            Origin(int(self._node_ids[row])),
            lambda: self._done(row),
        )

    def _launch(self, row: int) -> None:
        collective = self._schedule.collectives[int(self._operators.collective[row])]
        if self._overlap:
            first, lane = int(self._operators.first_stream[row]), int(self._operators.lane[row])
        else:
            first, lane = self._stream_ids.take(collective.group, collective.chunks), 0
        self._streams.launch(collective, first, lane, int(self._node_ids[row]), lambda: self._done(row))

    def _done(self, row: int) -> None:
        if self.finished:
            raise InternalError(f"row {row} ended after its rank had finished.", where=f"rank {self.rank}")
        self._close(row)
        self._issue_ready()
        self._finish_if_idle()

    def _close(self, row: int) -> None:
        del self._running[row]
        self._readiness.done(row)
        self._port.actions.append(OperatorDone(row))

    def _finish_if_idle(self) -> None:
        if self._readiness.idle and not self.finished:
            self.finished = True
            self._port.actions.append(RankFinished(self._compute_ns))


class _StreamIds:
    """Running numbers of chunks: one for all ranks together, one a group."""

    def __init__(self) -> None:
        self._all = 0
        self._by_group: dict[str, int] = {}

    def take(self, group: str, chunks: int) -> int:
        """First of `chunks` consecutive ids; chunks of groups count in the overall number too."""
        if not group:
            first = self._all
        else:
            first = self._by_group.get(group, int(group) * STREAMS_PER_GROUP if group.isdigit() else 0)
            self._by_group[group] = first + chunks
        self._all += chunks
        return first
