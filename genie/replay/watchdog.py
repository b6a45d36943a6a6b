"""When to give up on a replay: pure bookkeeping of signs of life; the launcher feeds it and acts on its verdict.

Ranks report five times a second while they run, with how many bytes they moved and whether they wait for a timer. So
patience need not scale with the schedule or the dilation: as long as a byte moves or a compute is being waited out
somewhere, however slowly, nothing is stuck.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Trouble(Enum):
    """What is wrong."""

    SILENT = "silent"
    STALLED = "stalled"
    OVERDUE = "overdue"


class Verdict(NamedTuple):
    """Trouble, with the ranks that it concerns and how long it has lasted."""

    trouble: Trouble
    ranks: tuple[int, ...]
    for_ns: int


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in real ns.

    Attributes:
        silence_ns: for a running rank to say anything.
        stall_ns: for any rank to move a byte or fire a timer.
        phase_ns: for all ranks to open, connect or prepare.
    """

    silence_ns: int = 5_000_000_000
    stall_ns: int = 10_000_000_000
    phase_ns: int = 60_000_000_000


@dataclass(slots=True)
class _Life:
    heard_ns: int
    progress: tuple[int, ...] = ()
    timer: bool = False


class Watchdog:
    """Judges one phase after another."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._running = False
        self._begun_ns = self._moved_ns = 0
        self._waiting: dict[int, _Life] = {}

    def begin(self, ranks: Iterable[int], now_ns: int, *, running: bool) -> None:
        """A phase starts; only in a `running` one do ranks report by themselves."""
        self._running, self._begun_ns, self._moved_ns = running, now_ns, now_ns
        self._waiting = {rank: _Life(now_ns) for rank in ranks}

    def report(self, rank: int, now_ns: int, progress: tuple[int, ...], *, timer: bool) -> None:
        """A rank says how far it is; `timer`: something is due by its clock."""
        life = self._waiting.get(rank)
        if life is None:
            return
        if progress != life.progress:
            self._moved_ns = now_ns
        life.heard_ns, life.progress, life.timer = now_ns, progress, timer

    def finish(self, rank: int, now_ns: int) -> None:
        """A rank is done with the phase."""
        self._waiting.pop(rank, None)
        self._moved_ns = now_ns

    def verdict(self, now_ns: int) -> Verdict | None:
        """What is wrong by now, if anything."""
        if not self._waiting:
            return None
        return self._judge_running(now_ns) if self._running else self._judge_phase(now_ns)

    def _judge_phase(self, now_ns: int) -> Verdict | None:
        for_ns = now_ns - self._begun_ns
        if for_ns <= self._patience.phase_ns:
            return None
        return Verdict(Trouble.OVERDUE, tuple(sorted(self._waiting)), for_ns)

    def _judge_running(self, now_ns: int) -> Verdict | None:
        silent = [rank for rank, life in self._waiting.items() if now_ns - life.heard_ns > self._patience.silence_ns]
        if silent:
            longest = max(now_ns - self._waiting[rank].heard_ns for rank in silent)
            return Verdict(Trouble.SILENT, tuple(sorted(silent)), longest)
        for_ns = now_ns - self._moved_ns
        if for_ns > self._patience.stall_ns and not any(life.timer for life in self._waiting.values()):
            return Verdict(Trouble.STALLED, tuple(sorted(self._waiting)), for_ns)
        return None
