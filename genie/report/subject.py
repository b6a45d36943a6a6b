"""What a report is about: a run, and of a loop the round that tells most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from genie.core.timeline import Timeline
from genie.errors import InputError
from genie.formats.runfile import Run
from genie.report import frames, metrics


class View:
    """One timeline's frames, made when they are asked for. `label` is "measured" or "predicted"."""

    def __init__(self, run: Run | None, timeline: Timeline) -> None:
        self.run, self.timeline = run, timeline
        self.label = "measured" if timeline.measured else "predicted"
        self._part = frames.Part("", timeline, run)

    @cached_property
    def links(self) -> pd.DataFrame:
        """See frames.links."""
        return frames.links(self.run) if self.run is not None else pd.DataFrame(columns=["link", "class", "rate_bps"])

    @cached_property
    def routes(self) -> pd.DataFrame:
        """See frames.routes."""
        return frames.routes(self.run) if self.run is not None else pd.DataFrame(columns=["src", "dst", "hop", "link"])

    @cached_property
    def counters(self) -> pd.DataFrame:
        """See frames.counters."""
        return frames.counters(self.run) if self.run is not None else pd.DataFrame(columns=["link"])

    @cached_property
    def flows(self) -> pd.DataFrame:
        """See frames.flows."""
        return frames.flows_of(self._part)

    @cached_property
    def operators(self) -> pd.DataFrame:
        """See frames.operators."""
        return frames.operators(self.timeline)

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """See frames.ranks."""
        return frames.ranks(self.timeline)

    @cached_property
    def activity(self) -> pd.DataFrame:
        """See metrics.activity."""
        return metrics.activity(self.operators, self.flows)

    @property
    def meta(self) -> Mapping[str, Any]:
        """The run's run.json; empty for a bare timeline."""
        return self.run.meta if self.run is not None else {}

    @property
    def finished(self) -> bool:
        """Whether there is an iteration and every rank finished it."""
        return len(self.ranks) > 0 and bool(self.ranks["finish_ns"].notna().all())


@dataclass(frozen=True)
class Subject:
    """A run, the replay and the simulation that its report shows, and what could not be read.

    Attributes:
        run: as opened.
        measured, predicted: a run's own timeline, or those of a loop's last good round (of the last replay if none is).
        checks: of all its replays: (path of the run within this one, check).
        problems: sentences.
    """

    run: Run
    measured: View | None
    predicted: View | None
    checks: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    problems: tuple[str, ...] = field(default=())

    @property
    def main(self) -> View | None:
        """What was measured, else what was predicted."""
        return self.measured or self.predicted

    @property
    def views(self) -> list[View]:
        """Measured first."""
        return [view for view in (self.measured, self.predicted) if view is not None]

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """A loop's rounds."""
        return list(self.run.results.get("rounds", []))


def subject_of(run: Run) -> Subject:
    """Open what a report of `run` needs; what is damaged becomes a problem, not an end."""
    problems: list[str] = []
    children = run.children()
    problems += [note for child in children if child.status == "damaged" for note in child.meta["notes"]]
    chosen = _chosen(run, children) if run.kind == "loop" else [run]
    views = {view.label: view for one in chosen if (view := _view(one, problems)) is not None}
    checks = [("", check) for check in run.meta["checks"]]
    checks += [(str(c.path.relative_to(run.path)), check) for c in children for check in c.meta["checks"]]
    return Subject(run, views.get("measured"), views.get("predicted"), tuple(checks), tuple(problems))


def _chosen(run: Run, children: list[Run]) -> list[Run]:
    """The last round's replay and simulation."""
    rounds = run.results.get("rounds", [])
    last = (
        rounds[-1]["run"]
        if rounds
        else next((f"rounds/{c.path.name}" for c in reversed(children) if c.has_timeline), "")
    )
    number = last.rpartition("/")[2].partition("-")[0]
    return [child for child in children if child.path.name.partition("-")[0] == number]


def _view(run: Run, problems: list[str]) -> View | None:
    if not run.has_timeline:
        return None
    try:
        return View(run, run.timeline())
    except InputError as error:
        problems.append(str(error))
        return None
