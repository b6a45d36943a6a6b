"""What a report says of a run: the verdict, the few numbers that matter, and the sections below them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from genie.formats.runfile import Run
from genie.report import metrics, sections, show
from genie.report.document import Document, Fact, Level, Verdict
from genie.report.subject import Subject, View, subject_of

_KINDS: Final = {
    "simulate": "simulation",
    "replay": "replay",
    "loop": "loop of simulation and replay",
    "fit": "fit of a network model",
    "validate": "validation",
}


def document_of(run: Run) -> Document:
    """The report of a run.

    Raises:
        InputError: the path of a part of the run leads out of its directory.
    """
    subject = subject_of(run)
    meta = run.meta
    return Document(
        title=run.name,
        kind=_KINDS.get(run.kind, run.kind),
        origin=f"{str(meta['created'])[:19].replace('T', ' ')} UTC, Genie {meta['genie']}, {run.path.name}",
        verdict=verdict(subject),
        facts=list(_facts(subject)),
        sections=list(sections.sections(subject)),
    )


def verdict(subject: Subject) -> Verdict:
    """Whether the numbers may be used."""
    run, why = subject.run, _reasons(subject)
    if run.status in {"failed", "damaged"} or any(_failed(check) for _, check in _decisive(subject)):
        return Verdict(Level.BAD, f"Do not use these numbers: the run {_ended(run.status)}.", why)
    if run.status == "partial":
        return Verdict(Level.BAD, "Incomplete: the run was interrupted before its end, or is still going on.", why)
    return _agreement(subject, why) if subject.rounds else _one_time(subject, why)


def _one_time(subject: Subject, why: list[str]) -> Verdict:
    """Of a simulation or a replay."""
    iteration_ns = subject.run.results.get("iteration_ns")
    if iteration_ns is None:
        return Verdict(Level.PLAIN, "This run holds no iteration time.", why)
    takes = f"one iteration takes {show.time(iteration_ns)}"
    if subject.measured is None:
        return Verdict(Level.PLAIN, f"Predicted, not measured: {takes}.", why)
    if not subject.checks:
        return Verdict(Level.WARN, f"Measured, but nobody checked the run: {takes}.", why)
    if why:
        return Verdict(Level.WARN, f"Measured, with {len(why)} warning{'s' * (len(why) > 1)}: {takes}.", why)
    return Verdict(Level.GOOD, f"Measured, and every self-check holds: {takes}.", why)


def _ended(status: str) -> str:
    return {"failed": "failed", "damaged": "is damaged"}.get(status, "fails its own self-check")


def _failed(check: Mapping[str, Any]) -> bool:
    return bool(check["hard"]) and not check["ok"]


def _decisive(subject: Subject) -> list[tuple[str, Mapping[str, Any]]]:
    """Checks of the run itself, and of the rounds that its results rest on: a lost round does not lose the others."""
    used = {"", *(row["run"] for row in subject.rounds)}
    return [(where, check) for where, check in subject.checks if where in used]


def _reasons(subject: Subject) -> list[str]:
    """Everything that a reader should know before believing a number, gravest first."""
    run = subject.run
    errors = [str(error) for error in (run.results.get("error"), *run.results.get("errors", [])) if error]
    hard = [_told(where, check) for where, check in subject.checks if _failed(check)]
    soft = [_told(where, check) for where, check in subject.checks if not check["ok"] and not check["hard"]]
    return [*errors, *hard, *subject.problems, *soft]


def _told(where: str, check: Mapping[str, Any]) -> str:
    place = f"{where}: " if where else ""
    limit = f"; expected: {check['limit']}" if check.get("limit") else ""
    return f"{place}{check['name']}. Found: {check['value']}{limit}"


def _agreement(subject: Subject, why: list[str]) -> Verdict:
    rounds = subject.rounds
    error = rounds[-1]["error"]
    tolerance = subject.run.meta.get("loop", {}).get("tolerance")
    after = f"after {len(rounds)} round{'s' * (len(rounds) > 1)}"
    reasons = [f"stopped since {subject.run.results['stopped']}"] if subject.run.results.get("stopped") else []
    if tolerance is None:
        return Verdict(Level.PLAIN, f"Prediction is {show.change(error)} off measurement {after}.", reasons + why)
    if abs(error) <= tolerance:
        headline = f"Prediction and measurement agree: {show.change(error)} {after} (asked for {tolerance:.1%})."
        return Verdict(Level.WARN if why else Level.GOOD, headline, reasons + why)
    headline = f"Prediction is still {show.change(error)} off measurement {after} (asked for {tolerance:.1%})."
    return Verdict(Level.WARN, headline, reasons + why)


def _facts(subject: Subject) -> Iterator[Fact]:
    if subject.main is not None and subject.main.finished:
        yield from _times(subject.main)
    yield from _last_round(subject.rounds)
    if subject.main is not None:
        yield from _messages(subject.main)
    if subject.checks:
        bad = sum(not check["ok"] for _, check in subject.checks)
        level = Level.BAD if any(_failed(check) for _, check in subject.checks) else Level.WARN if bad else Level.GOOD
        yield Fact("self-checks that hold", f"{len(subject.checks) - bad} of {len(subject.checks)}", level=level)


def _times(view: View) -> Iterator[Fact]:
    (row,) = metrics.iteration(view.ranks).to_dict("records")
    many = f"median of {row['iterations']}, spread {show.share(row['spread'])}" if row["iterations"] > 1 else ""
    yield Fact(f"iteration time, {view.label}", show.time(row["iteration_ns"]), many)
    exposed = metrics.exposed_share(view.ranks)
    yield Fact("exposed communication", show.share(exposed), "of a rank's time, median")


def _last_round(rounds: list[dict[str, Any]]) -> Iterator[Fact]:
    if not rounds:
        return
    last = rounds[-1]
    detail = f"predicted {show.time(last['predicted_ns'])}; first round {show.change(rounds[0]['error'])}"
    yield Fact("error of the prediction", show.change(last["error"]), detail)
    for parameter in last["fitted"][:3]:
        value, _, interval = show.parameter(parameter)
        yield Fact(parameter["name"], value, f"95 %: {interval}" if parameter["stderr"] is not None else interval)


def _messages(view: View) -> Iterator[Fact]:
    delivered = view.flows[view.flows["fct_ns"].notna()] if len(view.flows) else view.flows
    if len(delivered):
        p50, p99 = (float(delivered["fct_ns"].quantile(q)) for q in (0.5, 0.99))
        detail = f"median {show.time(p50)}, {len(delivered):,} messages"
        yield Fact("message completion, p99", show.time(p99), detail)
