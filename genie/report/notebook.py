"""Runs in a notebook: tables, figures, numbers. `genie.open_run` gives a `Results`. docs/notebooks.md shows how."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from genie.core.timeline import Timeline
from genie.errors import InputError
from genie.formats.runfile import Run, open_run
from genie.report import frames, metrics
from genie.report import scores as scoring
from genie.report.content import verdict
from genie.report.markup import Markup, element, together
from genie.report.subject import Subject, View, subject_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from genie.report.blame import Blame

_SHOWN = ("iteration_ns", "jct_ratio", "exposed_share", "fct_p50_ns", "fct_p99_ns", "slowdown_p99", "own_share")


class Results:
    """What a run or a timeline holds, as tables and figures; each is made when it is asked for.

    Times are virtual ns since the iteration's start, rates GB/s (decimal) or bit/s as their names say. Of a loop,
    `flows`, `operators` and `ranks` hold all its runs, told apart by `run` and `measured`; numbers and figures are
    those of the last good round.
    """

    def __init__(self, source: Run | Timeline, name: str = "") -> None:
        self.source = source
        self.name = name or (source.name if isinstance(source, Run) else source.executor)
        self.plot = Plots(self)

    @property
    def meta(self) -> Mapping[str, Any]:
        """The content of run.json; empty for a bare timeline."""
        return self.source.meta if isinstance(self.source, Run) else {}

    @cached_property
    def subject(self) -> Subject | None:
        """What the run's report is about; None for a bare timeline."""
        return subject_of(self.source) if isinstance(self.source, Run) else None

    @cached_property
    def view(self) -> View:
        """The timeline that numbers and figures are made of: what was measured, else what was predicted.

        Raises:
            InputError: the run holds no timeline.
        """
        if isinstance(self.source, Timeline):
            return View(None, self.source)
        if self.subject is None or self.subject.main is None:
            raise InputError("the run holds no timeline.", where=str(self.source.path))
        return self.subject.main

    @cached_property
    def flows(self) -> pd.DataFrame:
        """One row a message: src, dst, size_bytes, posted_ns, delivered_ns, fct_ns, slowdown, ...; see frames.flows."""
        return frames.flows(self.source)

    @cached_property
    def operators(self) -> pd.DataFrame:
        """One row an executed trace node: rank, kind, name, issue_ns, done_ns, ...; see frames.operators."""
        return frames.operators(self.source)

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """One row a rank and iteration: finish_ns, exposed_ns."""
        return frames.ranks(self.source)

    @cached_property
    def collectives(self) -> pd.DataFrame:
        """One row a collective: members, total_bytes, time_ns, algbw_gb_per_s, busbw_gb_per_s, ..., medians."""
        return metrics.collectives(self.view.operators)

    @property
    def counters(self) -> pd.DataFrame:
        """One row a directed link: sent_bytes, sent_packets, dropped_packets during the whole replay."""
        return self.view.counters

    @property
    def links(self) -> pd.DataFrame:
        """One row a directed link: class, rate_bps, delay_ns, buffer_bytes."""
        return self.view.links

    @property
    def routes(self) -> pd.DataFrame:
        """One row a link on the way from rank src to rank dst: hop, link."""
        return self.view.routes

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row a round and fitted parameter of a loop: predicted_ns, measured_ns, error, parameter, value, ..."""
        return frames.rounds(self.source) if isinstance(self.source, Run) else pd.DataFrame()

    @cached_property
    def link_load(self) -> pd.DataFrame:
        """`links` with payload_bytes of an iteration and load (payload / (rate x iteration time))."""
        view = self.view
        if view.links.empty or not view.finished:
            raise InputError("the links of this run are not known, or it did not finish.", where=self.name)
        (iteration_ns,) = metrics.iteration(view.ranks)["iteration_ns"]
        return metrics.link_load(view.flows, view.routes, view.links, float(iteration_ns))

    @cached_property
    def samples(self) -> pd.DataFrame:
        """Every figure of every iteration: metric, scope, iteration, value."""
        return scoring.samples(self.view)

    def metrics(self) -> pd.DataFrame:
        """Every figure of the run: metric, scope, value, unit, low, high (95 %), cv, samples, better, about."""
        return scoring.scores(self.samples)

    def blame(self) -> Blame:
        """Who is to blame for the length of the median iteration: `.paragraph()`, `.table()`, `.parts`, `.slowest`.

        Raises:
            InputError: no iteration that every rank finished.
        """
        from genie.report.blame import blame  # noqa: PLC0415 - only when it is asked for

        return blame(self.view)

    def beside(self, table: pd.DataFrame) -> pd.DataFrame:
        """The run's collectives beside those of another table, such as `genie.open_nccl_tests` gives.

        Returns:
            One row per kind, members and size that both have: collective, members, total_bytes, time_ns and
            busbw_gb_per_s of this run, other_time_ns, other_busbw_gb_per_s, time_ratio (this / other).
        """
        keys = ["collective", "members", "total_bytes"]
        own = metrics.collective_summary(self.view.operators)[[*keys, "time_ns", "busbw_gb_per_s"]]
        names = {"time_ns": "other_time_ns", "busbw_gb_per_s": "other_busbw_gb_per_s"}
        found = own.merge(table[[*keys, *names]].rename(columns=names), on=keys)
        return found.assign(time_ratio=found["time_ns"] / found["other_time_ns"])

    def __repr__(self) -> str:
        kind = self.source.kind if isinstance(self.source, Run) else "timeline"
        return f"<genie {kind} {self.name!r}>"

    def _repr_html_(self) -> str:
        return together(element("h4", self.name), self._says(), self._few())

    def _says(self) -> Markup | None:
        """Whether the numbers may be used: above all else."""
        if self.subject is None:
            return None
        found = verdict(self.subject)
        return element("p", element("b", found.headline), " " + " ".join(found.reasons))

    def _few(self) -> Markup | None:
        if isinstance(self.source, Run) and (self.subject is None or self.subject.main is None):
            return None
        found = self.metrics()
        few = found[found["metric"].isin(_SHOWN) & (found["scope"] == "")]
        return Markup(few[["metric", "value", "unit", "low", "high", "samples"]].to_html(index=False, na_rep=""))


class Plots:
    """The figures of a run; each is a matplotlib Figure that a notebook shows by itself."""

    def __init__(self, results: Results) -> None:
        self._results = results

    def fct_cdf(self) -> Figure:
        """Share of messages that are complete within so much time; of a loop, measured beside predicted."""
        from genie.report import plots  # noqa: PLC0415 - matplotlib takes a second: only when something is drawn

        subject = self._results.subject
        views = subject.views if subject is not None else [self._results.view]
        return plots.fct_cdf({view.label: view.flows["fct_ns"].dropna() for view in views})

    def timeline(self, iteration: int | None = None) -> Figure:
        """Who did what when, a row a rank: computes above, communication below."""
        from genie.report import plots  # noqa: PLC0415 - see above

        return plots.timeline(self._results.view.activity, iteration)

    def link_utilisation(self, iteration: int | None = None) -> Figure:
        """How busy each link is over time.

        Raises:
            InputError: the run does not know its links.
        """
        from genie.report import plots  # noqa: PLC0415 - see above

        view = self._results.view
        if view.links.empty:
            raise InputError("the links of this run are not known.", where=self._results.name)
        return plots.link_heat(profile_of(view, iteration))

    def rounds(self) -> Figure:
        """A loop's rounds: predicted and measured iteration time.

        Raises:
            InputError: no loop, or it has no round.
        """
        from genie.report import plots  # noqa: PLC0415 - see above

        subject = self._results.subject
        if subject is None or not subject.rounds:
            raise InputError("there are no rounds: this is no loop.", where=self._results.name)
        return plots.rounds(subject.rounds)

    def slowdown(self) -> Figure:
        """Slowdown of messages against the unloaded fabric, by size.

        Raises:
            InputError: the run does not know its links.
        """
        from genie.report import plots  # noqa: PLC0415 - see above

        flows = self._results.view.flows
        if "slowdown" not in flows:
            raise InputError("the links of this run are not known, so no ideal times.", where=self._results.name)
        return plots.slowdown(flows)


def profile_of(view: View, iteration: int | None = None) -> pd.DataFrame:
    """metrics.link_profile of one iteration of a view, the first when none is named."""
    number = view.flows["iteration"].min() if iteration is None else iteration
    return metrics.link_profile(view.flows[view.flows["iteration"] == number], view.routes, view.links)


def open_results(path: Path | str) -> Results:
    """Open a run directory.

    Raises:
        InputError: not one, damaged, or written by a newer Genie.
    """
    return Results(open_run(path))
