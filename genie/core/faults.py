"""What is to go wrong during a replay, and when: faults on a timeline of virtual time, as steps in order.

A fault strikes in one iteration. What has no end lasts to the end of its iteration; then everything is undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from genie.core.testbed import PPM, Testbed, link_name
from genie.errors import InputError

MAX_STEPS: Final = 10_000
FOREVER_NS: Final = 1 << 62


class FaultKind(StrEnum):
    """What goes wrong."""

    LINK_DOWN = "link-down"
    FLAP = "flap"
    RATE = "rate"
    LOSS = "loss"
    DELAY = "delay"
    BUFFER = "buffer"
    PAUSE = "pause"
    KILL = "kill"


OF_CABLES: Final = frozenset({FaultKind.LINK_DOWN, FaultKind.FLAP})
OF_LINKS: Final = frozenset({FaultKind.RATE, FaultKind.LOSS, FaultKind.DELAY, FaultKind.BUFFER})
OF_PORTS: Final = OF_CABLES | OF_LINKS - {FaultKind.DELAY}
"""What only an emulated fabric can do (delays are added by the receiving ranks)."""


class Action(StrEnum):
    """What a step does; REROUTE: the switches' routes follow what links are up."""

    BEGIN = "begin"
    END = "end"
    REROUTE = "reroute"


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of the timeline, times virtual, from the start of the iteration.

    Attributes:
        kind: what.
        target: name or pattern (`*`, `?`): a cable `leaf0-spine1`, one direction `leaf0>spine1` of it, a host `h3`, or
            `rank 5`.
        start_ns, end_ns: when; end None: to the end of the iteration.
        iteration: recorded iteration, from 0.
        value: rate (bit/s), loss (parts of a million), delay (ns), or buffer (bytes) meanwhile.
        period_ns: of a flap: down for its first half, up for its second.
        reroute_ns: how long after a link went or came the switches' routes follow; None: never.

    Raises:
        InputError: times or values out of range.
    """

    kind: FaultKind
    target: str
    start_ns: int
    end_ns: int | None = None
    iteration: int = 0
    value: int = 0
    period_ns: int = 0
    reroute_ns: int | None = 0

    def __post_init__(self) -> None:
        if self.start_ns < 0 or self.iteration < 0:
            raise self.wrong("a time or an iteration is negative")
        if self.end_ns is not None and (self.end_ns <= self.start_ns or self.kind is FaultKind.KILL):
            raise self.wrong("its end is not after its start" if self.kind is not FaultKind.KILL else "it has no end")
        if self.kind is FaultKind.FLAP and (self.end_ns is None or self.period_ns < 2):  # noqa: PLR2004 - two halves
            raise self.wrong("it needs an end and a period")
        least = 0 if self.kind is FaultKind.DELAY else 1
        if self.kind in OF_LINKS and self.value < least:
            raise self.wrong("its value is out of range")
        if self.kind is FaultKind.LOSS and self.value > PPM:
            raise self.wrong("more than everything cannot be lost")

    def wrong(self, why: str) -> InputError:
        """The error that says so."""
        return InputError(f"{why}.", where=f"fault {self.kind} of {self.target}")

    @property
    def until_ns(self) -> int:
        """Its end; far away if it has none."""
        return FOREVER_NS if self.end_ns is None else self.end_ns

    def targets(self, testbed: Testbed, ranks: int) -> tuple[str, ...]:
        """Names of all that it strikes: cables, directed links, or ranks (`rank 5`).

        Raises:
            InputError: nothing of that name.
        """
        found = tuple(dict.fromkeys(self._matches(testbed, ranks)))
        if not found:
            raise InputError(
                "strikes nothing of this testbed.",
                where=f"fault {self.kind} of {self.target}",
                fix="use a name or pattern of " + self._choices(testbed),
            )
        return found

    def _matches(self, testbed: Testbed, ranks: int) -> Iterator[str]:
        if self.kind in OF_CABLES or self.kind in OF_LINKS:
            for cable in testbed.cables:
                both = fnmatchcase(f"{cable.a}-{cable.b}", self.target) or fnmatchcase(
                    f"{cable.b}-{cable.a}", self.target
                )
                ways = (link_name(cable.a, cable.b), link_name(cable.b, cable.a))
                if self.kind in OF_CABLES and both:
                    yield f"{cable.a}-{cable.b}"
                elif self.kind in OF_LINKS:
                    yield from (way for way in ways if both or fnmatchcase(way, self.target))
        else:
            for rank, host in enumerate(testbed.placement[:ranks]):
                if fnmatchcase(f"rank {rank}", self.target) or fnmatchcase(host, self.target):
                    yield f"rank {rank}"

    def _choices(self, testbed: Testbed) -> str:
        cable = testbed.cables[0]
        if self.kind in OF_CABLES:
            return f"links, such as {cable.a}-{cable.b}."
        if self.kind in OF_LINKS:
            return f"links, such as {cable.a}-{cable.b}, or one direction, such as {link_name(cable.a, cable.b)}."
        return f"hosts that have a rank, such as {testbed.placement[0]}, or ranks, such as rank 0."


class Step(NamedTuple):
    """Something to do at `at_ns` (virtual) of an iteration: `fault` is the fault's place in the list."""

    iteration: int
    at_ns: int
    fault: int
    kind: FaultKind
    target: str
    action: Action
    value: int


def steps(faults: Sequence[Fault], testbed: Testbed, ranks: int, repeats: int) -> tuple[Step, ...]:
    """Everything that has to be done, in order.

    Raises:
        InputError: a target that does not exist, an iteration that is never run, a value that cannot be emulated, or
            more steps than `MAX_STEPS`.
    """
    found: list[Step] = []
    for number, fault in enumerate(faults):
        if fault.iteration >= repeats:
            raise fault.wrong(f"iteration {fault.iteration} is never run: there are {repeats}, from 0")
        for target in fault.targets(testbed, ranks):
            for step in _of_target(number, fault, target):
                found.append(step)
                if len(found) > MAX_STEPS:
                    raise fault.wrong(f"the timeline has more than {MAX_STEPS} steps")
    return tuple(sorted(found, key=lambda step: (step.iteration, step.at_ns)))


def _of_target(number: int, fault: Fault, target: str) -> Iterator[Step]:
    for start_ns, end_ns in _spells(fault):
        for at_ns, action in ((start_ns, Action.BEGIN), (end_ns, Action.END)):
            if at_ns is None:
                continue
            yield Step(fault.iteration, at_ns, number, fault.kind, target, action, fault.value)
            if fault.kind in OF_CABLES and fault.reroute_ns is not None:
                later_ns = at_ns + fault.reroute_ns
                yield Step(fault.iteration, later_ns, number, fault.kind, target, Action.REROUTE, 0)


def _spells(fault: Fault) -> Iterable[tuple[int, int | None]]:
    """(start, end) of every time that it strikes."""
    if fault.kind is not FaultKind.FLAP or fault.end_ns is None:
        return [(fault.start_ns, fault.end_ns)]
    starts = range(fault.start_ns, fault.end_ns, fault.period_ns)
    return ((at, min(at + fault.period_ns // 2, fault.until_ns)) for at in starts)


class DelayChange(NamedTuple):
    """What arrives from `peer` from `start_ns` to before `end_ns` (virtual, at the wire) has `more_ns` more delay."""

    peer: int
    start_ns: int
    end_ns: int
    more_ns: int


def delay_changes(
    faults: Sequence[Fault], testbed: Testbed, routes: Mapping[tuple[int, int], Sequence[str]], iteration: int
) -> dict[int, list[DelayChange]]:
    """Receiving rank -> changes of its delays in an iteration, along the routes that were looked up at the start."""
    found: dict[int, list[DelayChange]] = {}
    links, ranks = testbed.links(), 1 + max((max(pair) for pair in routes), default=0)
    for fault in faults:
        if fault.kind is not FaultKind.DELAY or fault.iteration != iteration:
            continue
        struck = set(fault.targets(testbed, ranks))
        for (source, destination), route in routes.items():
            more_ns = sum(fault.value - links[link].delay_ns for link in route if link in struck)
            if more_ns:
                change = DelayChange(source, fault.start_ns, fault.until_ns, more_ns)
                found.setdefault(destination, []).append(change)
    return found
