"""Who is to blame for an iteration's length, in one paragraph with its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pandas as pd

from genie.errors import InputError
from genie.report import show
from genie.report.markup import Markup, element, together
from genie.report.subject import View
from genie.report.suspects import Case, Suspect, suspects
from genie.units import transfer_ns

MAX_NAMED: Final = 5
_PARTS: Final = ("compute_ns", "serialisation_ns", "queueing_ns", "latency_ns", "waiting_ns")


@dataclass(frozen=True, slots=True)
class Blame:
    """What one iteration's length is made of, and who is to blame for it.

    Attributes:
        iteration: which: the one of median length.
        iteration_ns: its length.
        parts: of the critical path: compute_ns, serialisation_ns, queueing_ns, latency_ns, waiting_ns.
        suspects: worst first.
        slowest: the messages that took longest beyond what they should: src, dst, size_bytes, fct_ns, excess_ns.
    """

    iteration: int
    iteration_ns: float
    parts: dict[str, float]
    suspects: tuple[Suspect, ...]
    slowest: pd.DataFrame

    def paragraph(self) -> str:
        """In words."""
        return " ".join([self._verdict(), self._path(), *self._others()])

    def _verdict(self) -> str:
        if not self.suspects:
            return "Nobody stands out: no link, path or rank costs a noticeable share of the iteration."
        first = self.suspects[0]
        return (
            f"To blame first: {_kind(first)} {first.name}. It {first.evidence}. "
            f"It costs {self._cost(first)} of the {show.time(self.iteration_ns)} that iteration {self.iteration} takes."
            if first.kind != "ECMP collision"
            else f"To blame first: an ECMP collision on {first.name}: {first.evidence}. "
            f"It costs {self._cost(first)} of the {show.time(self.iteration_ns)} that iteration {self.iteration} takes."
        )

    def _cost(self, one: Suspect) -> str:
        return f"{show.time(one.cost_ns)} ({show.share(one.cost_ns / max(self.iteration_ns, 1.0), 0)})"

    def _path(self) -> str:
        whole = max(sum(self.parts.values()), 1.0)
        told = [f"{name.removesuffix('_ns')} {show.share(self.parts[name] / whole, 0)}" for name in _PARTS]
        return f"The critical path is {', '.join(told)}."

    def _others(self) -> list[str]:
        rest = self.suspects[1:MAX_NAMED]
        if not rest:
            return []
        named = [f"{_kind(one)} {one.name} ({show.time(one.cost_ns)})" for one in rest]
        return [f"Next: {'; '.join(named)}."]

    def table(self) -> pd.DataFrame:
        """The suspects: kind, name, cost_ns, share, fault, evidence."""
        rows = [
            (s.kind, s.name, s.cost_ns, s.cost_ns / max(self.iteration_ns, 1.0), s.fault, s.evidence)
            for s in self.suspects
        ]
        return pd.DataFrame(rows, columns=["kind", "name", "cost_ns", "share", "fault", "evidence"])

    def _repr_html_(self) -> str:
        table = Markup(self.table().to_html(index=False)) if self.suspects else None
        return together(element("p", self.paragraph()), table)


def _kind(one: Suspect) -> str:
    """With its article; ranks have their kind in their name already."""
    if one.kind in {"slow rank", "late rank"}:
        return f"the {one.kind.split()[0]}"
    return {"missing path": "the missing path"}.get(one.kind, f"the {one.kind}")


def blame(view: View) -> Blame:
    """Who is to blame for the length of a timeline's median iteration.

    Raises:
        InputError: no iteration that every rank finished.
    """
    if not view.finished:
        raise InputError("nobody can be blamed for an iteration that has no end: a rank did not finish.")
    case = Case(view)
    return Blame(case.iteration, case.iteration_ns, _parts(case), tuple(suspects(case)), _slowest(case))


def _parts(case: Case) -> dict[str, float]:
    """The critical path by what it is spent on.

    Of a message, latency is its path's delay, serialisation its size / least rate on the path, queueing the rest; where
    links are not known all is serialisation.
    """
    parts = dict.fromkeys(_PARTS, 0.0)
    messages = {row: rest for row, *rest in case.all_flows[["src", "dst", "size_bytes"]].itertuples()}
    for step in case.path:
        if step.kind != "message":
            parts[f"{step.kind}_ns"] += step.length_ns
            continue
        src, dst, size = (int(value) for value in messages[step.row])
        way = case.fabric.routes.get((src, dst), ()) if case.fabric is not None else ()
        if case.fabric is None or not way:
            parts["serialisation_ns"] += step.length_ns
            continue
        latency = min(sum(case.fabric.delays_ns[link] for link in way), step.length_ns)
        wire = transfer_ns(size, min(case.fabric.rates_bps[link] for link in way))
        wire = min(wire, step.length_ns - latency)
        for name, value in (("latency_ns", latency), ("serialisation_ns", wire)):
            parts[name] += value
        parts["queueing_ns"] += step.length_ns - latency - wire
    return parts


def _slowest(case: Case) -> pd.DataFrame:
    found = case.flows.assign(excess_ns=case.fct_ns - case.nominal_ns)
    return found.nlargest(MAX_NAMED, "excess_ns")[["src", "dst", "size_bytes", "posted_ns", "fct_ns", "excess_ns"]]
