"""The sections of a report, in the order in which a reader asks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pandas as pd

from genie.report import metrics, plots, show
from genie.report.blame import blame
from genie.report.document import (
    Beside,
    Block,
    Cell,
    Code,
    Folded,
    Level,
    Picture,
    Section,
    Table,
    Text,
)
from genie.report.subject import Subject, View

MAX_ROWS: Final = 16
"""Rows of a table that are shown at once; the rest is folded away."""

MAX_FOLDED: Final = 500


def sections(subject: Subject) -> Iterator[Section]:
    """All sections that the run has something to say in."""
    for title, make in (
        ("Rounds", _rounds),
        ("Calibrated model", _model),
        ("Can this run be trusted?", _trust),
        ("Where the time goes", _time),
        ("Who is to blame", _blamed),
        ("Messages", _messages),
        ("Collectives", _collectives),
        ("Timeline", _timelines),
        ("Links", _links),
        ("Notes", _notes),
        ("How to do it again", _again),
        ("Environment", _environment),
    ):
        blocks = list(make(subject))
        if blocks:
            yield Section(title, blocks)


def long_table(head: Sequence[str], rows: Sequence[Sequence[str | Cell]], what: str) -> Iterator[Block]:
    """A table whose later rows are folded away."""
    if rows:
        yield Table(head, rows[:MAX_ROWS])
    if len(rows) > MAX_ROWS:
        rest = rows[MAX_ROWS : MAX_ROWS + MAX_FOLDED]
        left = len(rows) - MAX_ROWS - len(rest)
        more: list[Block] = [Table(head, rest)]
        if left:
            more.append(Text(f"and {left:,} more; the run's tables hold them all."))
        yield Folded(f"{len(rows) - MAX_ROWS:,} more {what}", more)


def _rounds(subject: Subject) -> Iterator[Block]:
    rounds = subject.rounds
    if not rounds:
        return
    unit = show.time_unit([row[key] for row in rounds for key in ("predicted_ns", "measured_ns")])
    names = [parameter["name"] for parameter in rounds[-1]["fitted"]]
    head = ["round", f"predicted, {unit.name}", f"measured, {unit.name}", "error", *names, "run"]
    rows = []
    for row in rounds:
        values = {parameter["name"]: show.parameter(parameter)[0] for parameter in row["fitted"]}
        fitted = [values.get(name, show.NOTHING) for name in names]
        times = [unit(row["predicted_ns"]), unit(row["measured_ns"])]
        rows.append([str(row["round"]), *times, show.change(row["error"]), *fitted, row["run"]])
    yield Table(head, rows, frozenset({0, len(head) - 1}))
    pictures = [
        Picture("Iteration time, round by round; above, the error of the prediction.", lambda: plots.rounds(rounds))
    ]
    if names:
        caption = f"Fitted {names[0]} with its 95 % interval, round by round."
        pictures.append(Picture(caption, lambda: plots.parameter(rounds, names[0])))
    yield Beside(pictures)


def _model(subject: Subject) -> Iterator[Block]:
    last = subject.rounds[-1] if subject.rounds else subject.run.results
    fitted = last.get("fitted", [])
    if fitted:
        head = ("parameter", "value", "standard error", "95 % interval", "messages")
        yield Table(head, [[p["name"], *show.parameter(p), f"{p['samples']:,}"] for p in fitted])
    for sentence in last.get("unidentified", []):
        yield Text(sentence, Level.WARN)


def _trust(subject: Subject) -> Iterator[Block]:
    own = (subject.measured.run if subject.measured is not None else None) or subject.run
    checks = own.meta["checks"]
    if checks:
        head = ("", "self-check", "found", "expected")
        yield Table(head, [_check(check) for check in checks], frozenset({0, 1, 2, 3}))
        details = [[check["name"], check["detail"]] for check in checks if check.get("detail")]
        if details:
            yield Folded("details", [Table(("self-check", "detail"), details, frozenset({0, 1}))])
    if own is not subject.run:
        others = sorted({where for where, _ in subject.checks} - {""})
        yield Text(f"Shown is {own.path.name}. Checked runs of this loop: {', '.join(others) or 'none'}.")
    if subject.measured is not None and len(subject.measured.operators):
        late = metrics.lateness(subject.measured.operators, subject.measured.flows)
        rows = [
            [row["what"], f"{row['count']:,}", *(show.time(row[f"late_{q}_ns"]) for q in ("p50", "p99", "max"))]
            for row in late.to_dict("records")
        ]
        yield Table(("how late were", "count", "median", "p99", "worst"), rows)


def _check(check: Mapping[str, Any]) -> list[str | Cell]:
    level = Level.GOOD if check["ok"] else Level.BAD if check["hard"] else Level.WARN
    word = {Level.GOOD: "holds", Level.WARN: "warning", Level.BAD: "FAILS"}[level]
    return [Cell(word, level), check["name"], check["value"], check["limit"]]


def _time(subject: Subject) -> Iterator[Block]:
    views = [view for view in subject.views if view.finished]
    if not views:
        return
    head = ("", "iterations", "median", "shortest", "longest", "spread", "CV", "exposed")
    rows = []
    for view in views:
        (row,) = metrics.iteration(view.ranks).to_dict("records")
        times = [show.time(row[key]) for key in ("iteration_ns", "min_ns", "max_ns")]
        shares = [show.share(value) for value in (row["spread"], row["cv"], metrics.exposed_share(view.ranks))]
        rows.append([view.label, f"{row['iterations']}", *times, *shares])
    yield Table(head, rows)
    ranks = metrics.breakdown(views[0].activity)
    if len(ranks):
        yield from _by_rank(ranks, views[0])


def _by_rank(ranks: pd.DataFrame, view: View) -> Iterator[Block]:
    names = ("compute_ns", "communication_ns", "overlapped_ns", "exposed_ns", "idle_ns")
    unit = show.time_unit(ranks[list(names)].to_numpy().ravel())
    longest = max(float(ranks[list(names)].to_numpy().max()), 1.0)
    head = ("rank", *(f"{name.removesuffix('_ns')}, {unit.name}" for name in names), "overlap")
    rows: list[list[str | Cell]] = []
    for row in ranks.to_dict("records"):
        bars: list[str | Cell] = [Cell(unit(row[name]), bar=row[name] / longest) for name in names]
        rows.append([str(row["rank"]), *bars, show.share(row["overlap"])])
    yield Text(
        f"Per rank, {view.label}: exposed is communication that no compute hides, waiting for the members of a "
        "collective included; overlap is the hidden share of the smaller of compute and communication."
    )
    yield from long_table(head, rows, "ranks")


def _blamed(subject: Subject) -> Iterator[Block]:
    view = subject.main
    if view is None or not view.finished or view.activity.empty:
        return
    found = blame(view)
    yield Text(found.paragraph(), Level.WARN if any(one.fault for one in found.suspects) else Level.PLAIN)
    rows: list[list[str | Cell]] = []
    for one in found.suspects:
        share = one.cost_ns / max(found.iteration_ns, 1.0)
        cost = Cell(f"{show.time(one.cost_ns)}, {show.share(share)}", bar=min(share, 1.0))
        rows.append([one.kind, one.name, cost, one.evidence])
    if rows:
        yield from long_table(("what", "who", "costs", "evidence"), rows, "suspects")
    slowest = found.slowest[found.slowest["excess_ns"] > 0]
    if len(slowest):
        cells = [
            [f"{row['src']} to {row['dst']}", show.size(row["size_bytes"])]
            + [show.time(row[name]) for name in ("posted_ns", "fct_ns", "excess_ns")]
            for row in slowest.to_dict("records")
        ]
        table = Table(("message", "size", "posted at", "took", "longer than it should"), cells)
        yield Folded("messages that took longest beyond what this fabric should need", [table])


def _messages(subject: Subject) -> Iterator[Block]:
    series = {view.label: view.flows["fct_ns"].dropna() for view in subject.views if len(view.flows)}
    if not any(len(values) for values in series.values()):
        return
    caption = "Share of messages that are complete within so much time, from post to last byte."
    pictures = [Picture(caption, lambda: plots.fct_cdf(series))]
    if subject.measured is not None and subject.predicted is not None:
        pairs = metrics.matched(subject.predicted.flows, subject.measured.flows)
        if len(pairs):
            caption = (
                "How far the prediction of a message is off, by size (below it: how many): median, the middle half "
                "(thick) and 90 % (thin)."
            )
            pictures.append(Picture(caption, lambda: plots.error_by_size(pairs)))
    yield Beside(pictures)
    for view in subject.views[:1]:
        yield Text(f"By size, {view.label}:")
        yield _fct_table(metrics.fct(view.flows), "size")
        by = metrics.fct(view.flows, by=["collective", "group"])
        if len(by) > 1:
            yield Folded("by collective and group", [_fct_table(by, "collective")])


def _fct_table(found: pd.DataFrame, by: str) -> Table:
    quantiles = [f"fct_{name}_ns" for name in metrics.QUANTILES]
    unit = show.time_unit(found["fct_max_ns"])
    head = [by, "messages", *(f"{_quantile(name)}, {unit.name}" for name in metrics.QUANTILES), "GB/s"]
    slow = "slowdown_p99" in found
    rows = []
    for row in found.head(MAX_FOLDED).to_dict("records"):
        times = [unit(row[name]) for name in quantiles]
        slowdown = [show.number(row["slowdown_p99"], 3)] if slow else []
        rows.append([_label(row), f"{row['messages']:,}", *times, show.number(row["goodput_gb_per_s"], 2), *slowdown])
    return Table([*head, "slowdown p99"] if slow else head, rows)


def _quantile(name: str) -> str:
    return {"p50": "median", "p99_9": "p99.9", "max": "worst"}.get(name, name)


def _label(row: Mapping[Any, Any]) -> str:
    if "size_from_bytes" in row:
        return show.size_range(row["size_from_bytes"], row["size_to_bytes"])
    collective = str(row["collective"] or "point to point").lower().replace("_", "-")
    return f"{collective}, group {row['group']}" if row["group"] else collective


def _collectives(subject: Subject) -> Iterator[Block]:
    if subject.main is None:
        return
    found = metrics.collective_summary(subject.main.operators)
    if found.empty:
        return
    unit = show.time_unit(found["time_ns"])
    times = [f"{what}, {unit.name}" for what in ("time", "arrival skew", "straggler gap")]
    head = ["collective", "ranks", "size", "count", *times, "algbw, GB/s", "busbw, GB/s"]
    rows = [
        [
            row["collective"].lower().replace("_", "-"),
            str(row["members"]),
            show.size(row["total_bytes"]),
            f"{row['count']:,}",
            *(unit(row[name]) for name in ("time_ns", "skew_ns", "straggler_gap_ns")),
            *(show.number(row[name], 2) for name in ("algbw_gb_per_s", "busbw_gb_per_s")),
        ]
        for row in found.to_dict("records")
    ]
    yield Text(
        f"Medians, {subject.main.label}. Sizes and bandwidths as nccl-tests counts them, n being a group's ranks."
    )
    yield from long_table(head, rows, "collectives")


def _timelines(subject: Subject) -> Iterator[Block]:
    views = [view for view in subject.views if len(view.activity)]
    end_ns = max((float(view.activity["done_ns"].max()) for view in views), default=0.0)
    for view in views:
        iteration = int(view.activity["iteration"].min())
        ranks = view.activity["rank"].nunique()
        some = f", {plots.MAX_RANKS} of {ranks:,} ranks" if ranks > plots.MAX_RANKS else ""
        caption = f"{view.label.capitalize()}, iteration {iteration}{some}. Point at a bar to see what it is."
        yield Picture(caption, lambda view=view: plots.timeline(view.activity, end_ns=end_ns), wide=True)  # type: ignore[misc]


def _links(subject: Subject) -> Iterator[Block]:
    view = subject.measured
    if view is None:
        return
    links, counters = view.links, view.counters
    if links.empty:
        return
    if view.finished and len(view.flows):
        (iteration_ns,) = metrics.iteration(view.ranks)["iteration_ns"]
        links = metrics.link_load(view.flows, view.routes, links, iteration_ns)
        yield from _load(links)
        yield from _drawn(view, links)
    if len(counters):
        drops = int(counters["dropped_packets"].sum())
        level = Level.WARN if drops else Level.PLAIN
        sent = show.size(float(counters["sent_bytes"].sum()))
        yield Text(
            f"Counted during the whole replay, warm-up and headers included: {sent} sent, {drops:,} drops.", level
        )


def _drawn(view: View, load: pd.DataFrame) -> Iterator[Block]:
    nodes = {end for link in load["link"] for end in str(link).split(">")}
    if len(nodes) <= plots.MAX_DRAWN:
        caption = "The fabric: each cable coloured by the busier of its directions. Point at one to see its load."
        yield Picture(caption, lambda: plots.fabric(load), wide=True)
    iteration = int(view.flows["iteration"].min())
    profile = metrics.link_profile(view.flows[view.flows["iteration"] == iteration], view.routes, view.links)
    if len(profile):
        some = f", the {plots.MAX_LINKS} busiest of {len(profile):,} links" if len(profile) > plots.MAX_LINKS else ""
        caption = f"How busy links are over time, iteration {iteration}{some}, if every message moves evenly."
        yield Picture(caption, lambda: plots.link_heat(profile), wide=True)


def _load(links: pd.DataFrame) -> Iterator[Block]:
    rows: list[list[str | Cell]] = []
    for row in links.sort_values("load", ascending=False, kind="stable").to_dict("records"):
        load = Cell(show.share(row["load"]), bar=min(row["load"], 1.0))
        payload = show.size(row["payload_bytes"])
        rows.append([row["link"], row["class"], show.rate(row["rate_bps"]), payload, load])
    yield Text("Load is the share of an iteration that a link's payload keeps it busy at its rate.")
    told = [
        f"{name} links: busiest / mean {metrics.max_mean_ratio(part):.2f}, Jain's index {metrics.jain_index(part):.3f}"
        for name, part in links.groupby("class")["payload_bytes"]
        if part.sum() > 0
    ]
    if told:
        yield Text(f"How evenly they carry (1: all alike): {'; '.join(told)}.")
    yield from long_table(("link", "class", "rate", "payload an iteration", "load"), rows, "links")


def _notes(subject: Subject) -> Iterator[Block]:
    notes = [*subject.run.meta["notes"], *(note for view in subject.views for note in view.timeline.notes)]
    testbed = subject.measured.meta.get("testbed") if subject.measured is not None else None
    if testbed:
        yield Text("Testbed: " + ", ".join(f"{key} {value}" for key, value in testbed.items()) + ".")
    for note in dict.fromkeys(str(note) for note in notes):
        yield Text(note)


def _again(subject: Subject) -> Iterator[Block]:
    meta = subject.run.meta
    yield Code(f"cd {shlex.quote(meta['directory'])}\n{shlex.join(meta['command'])}")
    yield Text("This page, from the run's directory alone:")
    yield Code(f"genie report {shlex.quote(str(subject.run.path))}")
    rows = [[entry["role"], entry["given"], entry["copy"], entry["sha256"][:16]] for entry in meta["inputs"]]
    if rows:
        table = Table(("role", "as given", "copy in the run", "sha256"), rows[:MAX_FOLDED], frozenset({0, 1, 2, 3}))
        yield Folded(f"{len(rows)} inputs, kept as they were", [table])


def _environment(subject: Subject) -> Iterator[Block]:
    environment = subject.run.meta["environment"]
    rows = [["genie", subject.run.meta["genie"]]]
    rows += [[str(key), _flat(value)] for key, value in environment.items() if key != "packages"]
    rows.append(["packages", _flat(environment.get("packages", {}))])
    yield Folded("machine and versions", [Table(("", ""), rows, frozenset({0, 1}))])


def _flat(value: Any) -> str:
    return ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, Mapping) else str(value)
