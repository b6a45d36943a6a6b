"""The builtin simulator: ASTRA-sim's cycles by the cheapest path that provably gives them.

symmetric: one rank is stepped for all that do the same (quotient.py), where that can be proved;
compiled: every rank is simulated by compiled code over arrays (genie.simulate.kernel), for what is large;
plain: every rank's engine is stepped (plain.py), which is what the others are held against.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Final

from genie.core.netmodel import DimensionModel, NetworkModel
from genie.core.schedule import Collective, OpKind, Schedule, StepKind, TokenProgram
from genie.core.timeline import Timeline
from genie.errors import InputError
from genie.simulate.compiled import Refused, simulate_compiled, why_not
from genie.simulate.outcome import Outcome
from genie.simulate.plain import simulate_plainly
from genie.simulate.quotient import simulate_quotient
from genie.simulate.symmetry import find_symmetry
from genie.simulate.ties import Unproven

ENVIRONMENT: Final = "GENIE_SIMULATE_PATH"
"""Forces a path: auto, plain, symmetric or compiled."""

FEW_MESSAGES: Final = 2_000
"""Below this, looking for symmetry costs more than it saves."""

COMPILED_MESSAGES: Final = 30_000
"""From here on the compiled path pays for importing numba,"""

COMPILING_MESSAGES: Final = 400_000
"""and from here on for compiling, which takes half a minute, once a machine."""

STEPPED_MESSAGE_NS: Final = 30_000
COMPILED_MESSAGE_NS: Final = 800
COMPILED_START_NS: Final = 1_000_000_000
"""What a message costs on a path that steps engines and on the compiled one, and what the latter needs to start: from
`make bench-sim`, rounded up; they only decide which path is taken.
"""

KEPT_MESSAGES: Final = 1_000_000
"""A timeline with more messages than this leaves them out: ranks and operators say enough, and tables stay small."""


class Way(StrEnum):
    """Ways to the same cycles."""

    AUTO = "auto"
    PLAIN = "plain"
    SYMMETRIC = "symmetric"
    COMPILED = "compiled"


def simulate(schedule: Schedule, network: NetworkModel, *, strict: bool = True, way: Way | None = None) -> Timeline:
    """Predict the timeline of a schedule on a network.

    The timeline's notes say which path was taken, and whether messages were left out.

    Args:
        schedule: what every rank does.
        network: as many ranks as the schedule has.
        strict: refuse what ASTRA-sim aborts on (zero delay at the start of time), unless the system is extended.
        way: which path to take; None: what the environment variable GENIE_SIMULATE_PATH says, else the cheapest.

    Raises:
        InputError: rank counts differ, a message that the network cannot carry, ranks that never finish: says what
            they wait for; or a path was forced that cannot be taken.
    """
    ranks = len(schedule.ranks)
    if network.ranks != ranks:
        raise InputError(
            f"the network has {network.ranks} ranks, the workload {ranks}.",
            fix="use a network of equal size.",
        )
    # a dimension model is ASTRA-sim's and inherits the refusal; a fabric of ours need not
    strict = strict and not schedule.system.extended and isinstance(network, DimensionModel)
    choice = _Choice(schedule, network, strict, way or _from_environment())
    outcome = choice.outcome()
    return outcome.timeline(schedule, tuple(choice.notes))


def _from_environment() -> Way:
    text = os.environ.get(ENVIRONMENT, Way.AUTO)
    try:
        return Way(text)
    except ValueError as error:
        raise InputError(f"{ENVIRONMENT}={text}: no such path.", fix=f"use one of {', '.join(Way)}.") from error


class _Choice:
    """Tries the paths, cheapest first."""

    def __init__(self, schedule: Schedule, network: NetworkModel, strict: bool, way: Way) -> None:
        self.schedule, self.network, self.strict, self.way = schedule, network, strict, way
        self.messages = count_messages(schedule)
        self.keep_messages = self.messages <= KEPT_MESSAGES
        self.notes: list[str] = []

    def outcome(self) -> Outcome:
        """The cheapest path's."""
        if self.way is Way.SYMMETRIC or (self.way is Way.AUTO and self.messages > FEW_MESSAGES):
            outcome = self._symmetric()
            if outcome is not None:
                return outcome
            if self.way is Way.SYMMETRIC:
                raise InputError(f"the symmetric path cannot be taken: {self.notes[-1]}")
        if self.way is Way.COMPILED or (self.way is Way.AUTO and self.messages > COMPILED_MESSAGES):
            outcome = self._compiled()
            if outcome is not None:
                return outcome
            if self.way is Way.COMPILED:
                raise InputError(f"the compiled path cannot be taken: {self.notes[-1]}")
        self.notes.append("path: plain (every rank was simulated).")
        self._note_messages()
        return simulate_plainly(self.schedule, self.network, strict_zero=self.strict, keep_messages=self.keep_messages)

    def _note_messages(self) -> None:
        if not self.keep_messages:
            self.notes.append(f"{self.messages:,} messages are left out: more than {KEPT_MESSAGES:,}.")

    def _symmetric(self) -> Outcome | None:
        network = self.network
        if not isinstance(network, DimensionModel):
            self.notes.append("not symmetric: the network is a fabric of links.")
            return None
        symmetry = find_symmetry(self.schedule, network)
        if symmetry.order == 1:
            self.notes.append("not symmetric: no translation of the ranks leaves the job unchanged.")
            return None
        if self.way is Way.AUTO and self._compiled_is_cheaper(network, self.messages / symmetry.order):
            self.notes.append("symmetric, but the compiled path takes less time.")
            return None
        try:
            outcome = simulate_quotient(
                self.schedule, network, symmetry, strict_zero=self.strict, keep_messages=self.keep_messages
            )
        except Unproven as reason:
            self.notes.append(f"not symmetric: {reason}.")
            return None
        classes = symmetry.ranks // symmetry.order
        self.notes.append(f"path: symmetric ({classes} of {symmetry.ranks} ranks stand for all, as was proved).")
        self._note_messages()
        return outcome

    def _compiled_is_cheaper(self, network: DimensionModel, stepped: float) -> bool:
        """With so many messages stepped one by one on the symmetric path."""
        compiled_ns = COMPILED_START_NS + self.messages * COMPILED_MESSAGE_NS
        if stepped * STEPPED_MESSAGE_NS < compiled_ns or why_not(self.schedule, network):
            return False
        return not self._not_compiled()

    def _compiled(self) -> Outcome | None:
        """None where the tables cannot hold the job, or compiling would take longer than it saves."""
        network = self.network
        reason = "the network is a fabric of links"
        if isinstance(network, DimensionModel):
            reason = why_not(self.schedule, network) or self._not_compiled()
        if reason or not isinstance(network, DimensionModel):
            self.notes.append(f"not compiled: {reason}.")
            return None
        try:
            outcome = simulate_compiled(
                self.schedule, network, strict_zero=self.strict, keep_messages=self.keep_messages
            )
        except Refused:
            self.notes.append("not compiled: a message cannot be sent.")
            return None
        self.notes.append("path: compiled (every rank was simulated).")
        self._note_messages()
        return outcome

    def _not_compiled(self) -> str:
        try:
            from genie.simulate.kernel import loop  # noqa: PLC0415 - imports numba, which takes half a second
        except ImportError:
            return "numba is not installed"
        if self.way is Way.COMPILED or self.messages > COMPILING_MESSAGES or loop.is_cached():
            return ""
        return "compiling would take longer than it saves"


def count_messages(schedule: Schedule) -> int:
    """How many messages the schedule sends, rendezvous grants included."""
    of_collective = [_collective_messages(collective) for collective in schedule.collectives]
    known: dict[int, float] = {}
    total = 0.0
    for part in schedule.ranks:
        operators = part.operators
        if id(operators) not in known:
            used = operators.collective[operators.collective >= 0].tolist()
            sends = int((operators.kind == OpKind.SEND).sum())
            known[id(operators)] = sends + sum(of_collective[at] for at in used)
        total += known[id(operators)]
    return round(total) * (2 if schedule.system.rendezvous else 1)


def _collective_messages(collective: Collective) -> float:
    """Messages that a member sends, on average."""
    each = 0.0
    for phase in collective.phases:
        programs = phase.variants[0]
        sends = [
            p.steps if isinstance(p, TokenProgram) else sum(step.kind is StepKind.SEND for step in p.steps)
            for p in programs
        ]
        each += sum(sends) / len(sends)
    return collective.chunks * each
