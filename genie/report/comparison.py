"""Two runs, or two sets of runs measured in turn: what differs in what went in, and in what came out, and how surely.

Of single runs their iterations are compared, as independent samples; of several runs on each side (A B A B ...) the
runs' robust means, in pairs when there are equally many. A change counts when it is beyond the margin at 5 %, adjusted
for the number of figures tested (Holm); where none is found, the table says what change would have been.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pandas as pd

from genie.errors import InputError
from genie.formats.runfile import Run
from genie.report import show
from genie.report.catalogue import METRICS, Better
from genie.report.content import verdict
from genie.report.document import Level
from genie.report.markup import Markup, element, together
from genie.report.notebook import Results, open_results
from genie.report.statistics import POWER, Difference, difference, holm, paired, robust_mean

ALPHA: Final = 0.05
MAX_DIFFERENCES: Final = 40
PRIMARY: Final = "iteration_ns"
_Side = Path | str | Results


class Outcome(StrEnum):
    """What a comparison of one figure says."""

    BETTER = "better"
    WORSE = "worse"
    CHANGED = "changed"
    SAME = "no difference"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of both sides.

    Attributes:
        metric, scope: see `genie.report.scores`.
        found: base, new and their difference, in the metric's unit.
        p: adjusted for the number of figures tested; NaN for one that is shown only.
        outcome: the verdict.
    """

    metric: str
    scope: str
    found: Difference
    p: float
    outcome: Outcome

    @property
    def change(self) -> float:
        """(new - base) / |base|; NaN where base is 0."""
        return self.found.value / abs(self.found.base) if self.found.base else math.nan

    def relative(self, value: float) -> float:
        """A difference as a share of base."""
        return value / abs(self.found.base) if self.found.base else math.nan

    def as_dict(self) -> dict[str, Any]:
        """For JSON; what is not known is None."""
        body = {
            "base": self.found.base,
            "new": self.found.new,
            "change": self.change,
            "low": self.relative(self.found.low),
            "high": self.relative(self.found.high),
            "p": self.p,
            "would_be_found": self.relative(self.found.smallest),
        }
        known = {name: value if math.isfinite(value) else None for name, value in body.items()}
        unit = METRICS[self.metric].unit
        return {"metric": self.metric, "scope": self.scope, "unit": unit, **known, "verdict": str(self.outcome)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` found.

    Attributes:
        base, new: names of the two sides.
        differences: what differs in inputs and environment: (what, base, new).
        changes: the figures; those that decide first.
        margin: relative changes up to this do not count.
        warnings: why the figures deserve less trust.
    """

    base: str
    new: str
    differences: tuple[tuple[str, str, str], ...]
    changes: tuple[Change, ...]
    margin: float
    warnings: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """Of the iteration time."""
        return next((one.outcome for one in self.changes if one.metric == PRIMARY), Outcome.UNKNOWN)

    def sentence(self) -> str:
        """The verdict in words, with its figures."""
        own = next((one for one in self.changes if one.metric == PRIMARY), None)
        if own is None:
            return "The runs hold no iteration time."
        times = f"{show.time(own.found.base)} to {show.time(own.found.new)}"
        if own.outcome is Outcome.UNKNOWN:
            return f"Iteration time: {times}. Without repeats nobody can tell whether that is a difference."
        shares = [own.relative(value) for value in (own.found.low, own.found.high, own.found.smallest)]
        low, high, seen = (show.change(share) for share in shares)
        told = f"Iteration time: {own.outcome}, {show.change(own.change)} ({times}; 95 % interval {low} to {high})."
        if own.outcome is not Outcome.SAME or own.found.stderr == 0:
            return told
        return f"{told} A change of {seen.lstrip('+')} would have been found with a power of {POWER:.0%}."

    def table(self) -> pd.DataFrame:
        """The figures: metric, scope, unit, base, new, change, low, high, p, would_be_found, verdict."""
        return pd.DataFrame([one.as_dict() for one in self.changes])

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "base": self.base,
            "new": self.new,
            "verdict": str(self.outcome),
            "sentence": self.sentence(),
            "margin": self.margin,
            "warnings": list(self.warnings),
            "differences": [dict(zip(("what", "base", "new"), row, strict=True)) for row in self.differences],
            "changes": [one.as_dict() for one in self.changes],
        }

    def _repr_html_(self) -> str:
        head = element("h4", f"{self.new} against {self.base}")
        warned = element("ul", *(element("li", text) for text in self.warnings)) if self.warnings else None
        rows = pd.DataFrame(self.differences, columns=["what differs", "base", "new"])
        tables = [Markup(table.to_html(index=False, na_rep="")) for table in (rows, self.table()) if len(table)]
        return together(head, element("p", element("b", self.sentence())), warned, *tables)


def compare(
    base: _Side | Sequence[_Side], new: _Side | Sequence[_Side], *, margin: float = 0.01, force: bool = False
) -> Comparison:
    """Compare two runs, or two sets of runs; see the module.

    Raises:
        InputError: a side is empty, or the runs are too unlike and `force` is not given.
    """
    first, second = _side(base), _side(new)
    unlike = list(_unlike([*first, *second]))
    if unlike and not force:
        raise InputError(
            f"these runs are too unlike to compare: {'; '.join(unlike)}.",
            where=f"{first[0].name} and {second[0].name}",
            fix="compare them all the same with --force.",
        )
    changes = tuple(_changes(first, second, margin))
    return Comparison(_called(first), _called(second), tuple(_differences(first, second)), changes, margin, (*unlike,))


def _side(given: _Side | Sequence[_Side]) -> list[Results]:
    each = [given] if isinstance(given, Path | str | Results) else list(given)
    if not each:
        raise InputError("nothing to compare: a side has no run.")
    return [one if isinstance(one, Results) else open_results(one) for one in each]


def _called(side: Sequence[Results]) -> str:
    first = side[0]
    name = first.source.path.name if isinstance(first.source, Run) else first.name
    return name if len(side) == 1 else f"{name} and {len(side) - 1} more"


# --- what went in ----------------------------------------------------------------------------------------------------


def _unlike(each: Sequence[Results]) -> Iterator[str]:
    """Why the figures of these runs should not be compared."""
    first = each[0]
    kinds = {one.view.label for one in each}
    if len(kinds) > 1:
        yield "one was measured, the other predicted"
    if len({frozenset(_hashes(one, "trace").items()) for one in each}) > 1:
        yield "their traces differ"
    counts = sorted({int(one.view.ranks["rank"].nunique()) for one in each})
    if len(counts) > 1:
        yield f"they have {' and '.join(map(str, counts))} ranks"
    rules = [(first.view.meta.get("testbed", {}).get("hosting"), one.view.meta.get("testbed", {})) for one in each]
    if any(rule.get("hosting") != hosting for hosting, rule in rules):
        yield "one ran on a fabric, the other on loopback"
    for one in each:
        if one.subject is not None and (found := verdict(one.subject)).level is Level.BAD:
            yield f"{_called([one])}: {found.headline.rstrip('.')}"


def _hashes(one: Results, role: str = "") -> dict[str, str]:
    """Role and name of each input -> its hash."""
    return {
        f"{entry['role']} {Path(entry['copy']).name}": entry["sha256"]
        for entry in one.meta.get("inputs", [])
        if role in {"", entry["role"]}
    }


def _differences(first: Sequence[Results], second: Sequence[Results]) -> Iterator[tuple[str, str, str]]:
    """What differs between the first runs of both sides: inputs, how they ran, machine and versions."""
    a, b = first[0], second[0]
    for what, left, right in _unequal(_hashes(a), _hashes(b)):
        yield f"input {what}", left[:12], right[:12]
    for key in ("testbed", "replay", "loop"):
        for what, left, right in _unequal(_flat(a.view.meta.get(key)), _flat(b.view.meta.get(key))):
            yield f"{key} {what}", left, right
    yield from _links(a, b)
    told = (dict(one.meta.get("environment", {})) | {"genie": one.meta.get("genie", "")} for one in (a, b))
    yield from _unequal(*(_flat(environment) for environment in told))


_NOISE: Final = {"cpu_pressure", "clock_bound_ns"}
"""Of the environment, what is measured: it differs between any two runs."""


def _flat(content: Any, prefix: str = "") -> dict[str, str]:
    """Nested names -> values, as text."""
    if not isinstance(content, Mapping):
        return {prefix: str(content)} if prefix else {}
    found: dict[str, str] = {}
    for name, value in content.items():
        if name not in _NOISE:
            found |= _flat(value, f"{prefix}.{name}" if prefix else str(name))
    return found


def _unequal(left: Mapping[str, str], right: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys([*left, *right]):
        pair = left.get(name, show.NOTHING), right.get(name, show.NOTHING)
        if pair[0] != pair[1]:
            yield name, *pair


def _links(a: Results, b: Results) -> Iterator[tuple[str, str, str]]:
    """Links whose rate, delay or buffer differ."""
    if a.view.links.empty or b.view.links.empty:
        return
    sides = [one.view.links.set_index("link")[["rate_bps", "delay_ns", "buffer_bytes"]] for one in (a, b)]
    texts = [{str(link): _link(*row) for link, row in _rows(side)} for side in sides]
    found = [(f"link {link}", left, right) for link, left, right in _unequal(*texts)]
    yield from found[:MAX_DIFFERENCES]
    if len(found) > MAX_DIFFERENCES:
        yield "links", f"{len(found) - MAX_DIFFERENCES} more differ", ""


def _link(rate_bps: float, delay_ns: float, buffer_bytes: float) -> str:
    return f"{show.rate(rate_bps)}, {show.time(delay_ns)}, {show.size(buffer_bytes)}"


def _rows(frame: pd.DataFrame) -> Iterator[tuple[Any, list[Any]]]:
    return zip(frame.index, frame.to_numpy().tolist(), strict=True)


# --- what came out ---------------------------------------------------------------------------------------------------


def _changes(first: Sequence[Results], second: Sequence[Results], margin: float) -> Iterator[Change]:
    """Figures that both sides have: tested ones first, in the catalogue's order."""
    sides = [_gathered(side) for side in (first, second)]
    keys = [key for key in sides[0] if key in sides[1]]
    order = {name: at for at, name in enumerate(METRICS)}
    keys.sort(key=lambda key: (not METRICS[key[0]].primary, order[key[0]], key[1]))
    exact = not first[0].view.timeline.measured and not second[0].view.timeline.measured
    pairs = len(first) == len(second) > 1
    found = [_difference(sides[0][key], sides[1][key], margin, exact=exact, pairs=pairs) for key in keys]
    tested = [one.p if METRICS[key[0]].primary else math.nan for key, one in zip(keys, found, strict=True)]
    adjusted = holm(tested)
    for key, one, p in zip(keys, found, adjusted, strict=True):
        yield Change(*key, one, p, _judged(key[0], one, p if METRICS[key[0]].primary else one.p))


def _gathered(side: Sequence[Results]) -> dict[tuple[str, str], list[float]]:
    """(metric, scope) -> values: of one run its iterations', of several their robust means."""
    found: dict[tuple[str, str], list[float]] = {}
    for one in side:
        for (metric, scope), own in one.samples.groupby(["metric", "scope"], sort=False)["value"]:
            values = own.tolist()
            found.setdefault((str(metric), str(scope)), []).extend(values if len(side) == 1 else [robust_mean(values)])
    return {key: values for key, values in found.items() if len(side) == 1 or len(values) == len(side)}


def _difference(base: list[float], new: list[float], margin: float, *, exact: bool, pairs: bool) -> Difference:
    """Of predictions, which have no noise, single values tell all."""
    reach = margin * abs(robust_mean(base))
    if exact:
        left, right = robust_mean(base), robust_mean(new)
        gap = right - left
        return Difference(left, right, gap, gap, 0.0, float(abs(gap) <= reach), reach)
    return (paired if pairs else difference)(base, new, margin=reach, alpha=ALPHA)


def _judged(metric: str, found: Difference, p: float) -> Outcome:
    if math.isnan(p):
        return Outcome.UNKNOWN
    if p > ALPHA or found.value == 0:
        return Outcome.SAME
    better = METRICS[metric].better
    if better is Better.NEITHER:
        return Outcome.CHANGED
    return Outcome.WORSE if (found.value > 0) == (better is Better.LOWER) else Outcome.BETTER
