"""The clock of a quotient simulation: EventQueue, and a watch over ties that could set equal ranks apart.

In the full simulation, events of one tick run in the order in which they were scheduled; so two of them are ordered by
the ticks of the events that scheduled them, those by the ticks of their own causes, and so on; only if all these
ticks are equal do ranks decide, as ranks start in ascending order. An event therefore carries a number that stands
for the ticks of all its causes (`history`): two events of unequal history come in the same order on every rank of a
class. Events of equal history that meet at one place do so too

* if they were scheduled at one and the same place, whose own order is the same everywhere, or
* if they run at one place and only touch this one, or
* if their causes started on ranks that are moved alike (`root`), as the ranks of two classes keep their order.

If none of this holds, their order may differ from rank to rank. That does no harm where they are arrivals that are
interchangeable, message by message or sender by sender. Else the simulation cannot go on: Unproven.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from genie.errors import InternalError
from genie.network.queue import zero_delay
from genie.simulate.symmetry import Symmetry


class Unproven(Exception):  # noqa: N818 - no error: another path takes over
    """Equal ranks may part here."""


class Place:
    """Where events meet: a rank or a link, standing for all its images."""

    __slots__ = ("tick", "touches")

    def __init__(self) -> None:
        self.tick = -1
        self.touches: list[Touch] = []


class Cause(NamedTuple):
    """By which event, and where, something was scheduled; `moved` from there to here."""

    event: int
    place: Place | None
    moved: int


class Touch(NamedTuple):
    """An event's effect at a place.

    Attributes:
        event: its number.
        moved: the translation from the event's own frame to the place.
        history: stands for the ticks of all its causes.
        root: the translation from the event's frame to the rank on which its causes began.
        cause: of the event.
        home: the other place where the event runs, in its own frame; None if it runs here.
        effect: see RankEngine.interchangeable; NOTHING for an arrival that nobody waits for yet.
    """

    event: int
    moved: int
    history: int
    root: int
    cause: Cause
    home: Place | None
    effect: object


NOTHING = object()
"""The effect of an arrival before its receive is posted: it is counted, under a key of its own."""

Item = tuple[Callable[..., None], tuple[Any, ...], int, int, Cause]


class _Tick:
    __slots__ = ("histories", "items")

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.histories: dict[int, int] = {}


class TieQueue:
    """Callbacks in ASTRA-sim's order, each in a frame: translations are written relative to it.

    Attributes:
        now_ns: the present tick.
        event: number of the event that runs.
        root: where its causes began, in the present frame.
        merged: interchangeable arrivals have met: from then on `root` tells nothing any more.
    """

    def __init__(self, symmetry: Symmetry, *, strict_zero: bool) -> None:
        self.now_ns = self.event = self.root = 0
        self.merged = False
        self._symmetry, self._strict_zero = symmetry, strict_zero
        self._history = 0
        self._histories = 0
        self._cause = Cause(0, None, 0)
        self._ticks: list[int] = []
        self._at: dict[int, _Tick] = {}
        self._suspects: dict[int, Place] = {}

    def put(self, when_ns: int, place: Place, moved: int, root: int, callback: Callable[..., None], *args: Any) -> None:
        """Call `callback(*args)` at `when_ns`, in the frame from which `moved` leads to the scheduling place."""
        tick = self._at.get(when_ns)
        if tick is None:
            if when_ns < self.now_ns:
                raise InternalError(f"an event for tick {when_ns} came at tick {self.now_ns}.")
            tick = self._at[when_ns] = _Tick()
            heapq.heappush(self._ticks, when_ns)
        history = tick.histories.get(self._history)
        if history is None:
            self._histories = history = tick.histories[self._history] = self._histories + 1
        tick.items.append((callback, args, history, root, Cause(self.event, place, moved)))

    def begin(self) -> None:
        """The next rank starts."""
        self.event += 1

    def enter(self, back: int) -> None:
        """The rest of the event runs in another frame, that of `back`'s inverse; it counts as an event of its own."""
        self.event += 1
        if back:
            cause, moved = self._cause, self._symmetry.moved
            self.root = moved(self.root, back)
            self._cause = Cause(cause.event, cause.place, moved(cause.moved, back))

    def touch(self, place: Place, moved: int, home: Place | None, effect: object = None) -> None:
        """The event that runs has an effect at a place."""
        touches = place.touches
        if place.tick != self.now_ns:
            place.tick = self.now_ns
            touches.clear()
        elif touches[-1].event == self.event and touches[-1].moved == moved:
            return
        else:
            self._suspects[id(place)] = place
        touches.append(Touch(self.event, moved, self._history, self.root, self._cause, home, effect))

    def run(self) -> None:
        """Run until nothing is left.

        Raises:
            InputError: a callback at tick 0 under `strict_zero`.
            Unproven: equal ranks may part.
        """
        self._settle()
        while self._ticks:
            self.now_ns = now_ns = self._ticks[0]
            if now_ns == 0 and self._strict_zero:
                raise zero_delay()
            items = self._at[now_ns].items
            while items:
                callback, args, self._history, self.root, self._cause = items.popleft()
                self.event += 1
                callback(*args)
            if self._suspects:
                self._settle()
            heapq.heappop(self._ticks)
            del self._at[now_ns]

    def _settle(self) -> None:
        """Are the ties of this tick the same on all ranks? Twice, if an early answer relied on `root`."""
        before = self.merged
        places = list(self._suspects.values())
        self._suspects.clear()
        for place in places:
            self._check(place)
        if self.merged and not before:
            for place in places:
                self._check(place)

    def _check(self, place: Place) -> None:
        by_history = sorted(place.touches, key=lambda touch: touch.history)  # stable: in order of their running
        for _, found in groupby(by_history, key=lambda touch: touch.history):
            tied = list(found)
            if len(tied) > 1 and not self._ordered(tied):
                self._refuse_unless_interchangeable(tied)
                self.merged = True

    def _ordered(self, tied: Sequence[Touch]) -> bool:
        """One of the rules at the top of the module holds for all."""
        if len({self._origin(touch) for touch in tied}) == 1:
            return True
        homes = {(id(touch.home), touch.moved) for touch in tied}
        if len(homes) == 1 and tied[0].home is not None:
            return True
        return not self.merged and len({self._from(touch, touch.root) for touch in tied}) == 1

    def _from(self, touch: Touch, translation: int) -> int:
        """A translation in the event's frame, seen from the place."""
        return int(self._symmetry.moved(translation, self._symmetry.inverse(touch.moved)))

    def _origin(self, touch: Touch) -> tuple[int, int]:
        return id(touch.cause.place), self._from(touch, touch.cause.moved)

    def _refuse_unless_interchangeable(self, tied: Sequence[Touch]) -> None:
        if any(touch.effect is None for touch in tied):
            raise Unproven(f"at tick {self.now_ns}, the order of two events depends on the rank")
        effects = [touch.effect for touch in tied if touch.effect is not NOTHING]
        if all(effect == effects[0] for effect in effects):
            return
        senders: dict[tuple[int, int], list[Touch]] = {}
        for touch in tied:
            senders.setdefault(self._origin(touch), []).append(touch)
        sequences = [[t.effect for t in touches if t.effect is not NOTHING] for touches in senders.values()]
        together = all(len({touch.cause.event for touch in touches}) == 1 for touches in senders.values())
        if not together or any(sequence != sequences[0] for sequence in sequences):
            raise Unproven(f"at tick {self.now_ns}, arrivals of several collectives tie in an order that varies")
