"""A run as one HTML file: needs no network, reads well on a phone and on paper."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genie.core.timeline import Timeline
from genie.errors import InputError
from genie.report import metrics, plots
from genie.units import bps_to_gigabits, ns_to_us

if TYPE_CHECKING:
    from genie.formats.runfile import Run

_STYLE = """
:root{color-scheme:light dark;--fg:#1c2026;--bg:#fff;--soft:#f3f5f8;--line:#d9dee6;--good:#12723a;--bad:#b3261e;--warn:#8a5a00}
@media (prefers-color-scheme:dark){:root{--fg:#e6e9ee;--bg:#14171c;--soft:#1e232b;--line:#363d49;--good:#5fd08b;--bad:#ff8a80;
--warn:#f2bd5b}figure{background:#fff;border-radius:6px}}
*{box-sizing:border-box}body{margin:0 auto;max-width:60rem;padding:1rem;font:16px/1.5 system-ui,sans-serif;color:var(--fg);
background:var(--bg)}h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.15rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem;min-width:100%}
th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child,td.text{text-align:left;white-space:normal;overflow-wrap:anywhere}
.wide{overflow-x:auto}figure{margin:.5rem 0}figure svg{width:100%;height:auto;display:block}
.lead{font-size:1.15rem;background:var(--soft);padding:.8rem 1rem;border-radius:8px;border-left:5px solid var(--line)}
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}.lead.good{border-color:var(--good)}
.lead.bad{border-color:var(--bad)}.lead.good,.lead.bad{color:var(--fg)}code,pre{font:.85rem ui-monospace,monospace}
pre{background:var(--soft);padding:.7rem;overflow-x:auto;border-radius:6px}
@media print{body{max-width:none}h2{break-after:avoid}figure,table{break-inside:avoid}}
"""


def render(run: Run, out: Path) -> Path:
    """Write the report of a run to `out`; gives `out` back.

    Raises:
        InputError: the run's tables are damaged.
    """
    timelines = _timelines(run)
    body = "\n".join(part for part in _parts(run, timelines) if part)
    title = escape(f"{run.meta['name']} - {run.meta['kind']}")
    out.write_text(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n",
        encoding="utf-8",
    )
    return out


def _timelines(run: Run) -> list[tuple[str, Timeline]]:
    """(label, timeline): of a loop the last measured one and its prediction."""
    if run.meta["kind"] != "loop":
        return [_labelled(run)] if run.has_timeline else []
    good = [child for child in run.children() if child.status == "ok" and child.has_timeline]
    last = {child.meta["kind"]: child for child in good}
    return [_labelled(last[kind]) for kind in ("replay", "simulate") if kind in last]


def _labelled(run: Run) -> tuple[str, Timeline]:
    timeline = run.timeline()
    return ("measured" if timeline.measured else "predicted"), timeline


def _parts(run: Run, timelines: list[tuple[str, Timeline]]) -> Iterable[str]:
    yield f"<h1>{escape(run.meta['name'])}</h1><p>{escape(run.meta['kind'])}, {escape(run.meta['created'])}</p>"
    yield _lead(run)
    yield _checks(run)
    yield _rounds(run)
    for label, timeline in timelines[:1]:
        yield _times(label, timeline)
    if timelines:
        yield f"<h2>Messages</h2>{_figure(plots.fct_cdf(timelines))}{_frame(metrics.fct_by_size(timelines[0][1]))}"
        yield _collectives(timelines[0][1])
    for label, timeline in timelines:
        yield f"<h2>Timeline, {label}</h2>{_figure(plots.timeline(timeline))}"
    yield _counters(run)
    yield _environment(run)


def _lead(run: Run) -> str:
    """The first thing to know: does it hold, and what came out."""
    failed = [check for check in _all_checks(run) if check["hard"] and not check["ok"]]
    rounds = run.results.get("rounds")
    if run.status != "ok" or failed:
        reason = failed[0]["name"] if failed else run.results.get("error") or "; ".join(run.results.get("errors", []))
        return f'<p class="lead bad"><b>Do not use these numbers.</b> The run is {escape(run.status)}: {escape(str(reason))}</p>'
    if rounds:
        last = rounds[-1]
        return (
            f'<p class="lead good">After {len(rounds)} rounds the prediction is <b>{last["error"]:+.2%}</b> off the measured '
            f"{ns_to_us(last['measured_ns']):,.1f} us; stopped since {escape(str(run.results.get('stopped', '')))}.</p>"
        )
    if "iteration_ns" in run.results:
        return f'<p class="lead good">One iteration takes <b>{ns_to_us(run.results["iteration_ns"]):,.1f} us</b>.</p>'
    return ""


def _all_checks(run: Run) -> list[Mapping[str, Any]]:
    own = list(run.meta.get("checks", []))
    return own + [check for child in run.children() for check in child.meta.get("checks", [])]


def _checks(run: Run) -> str:
    checks = list(run.meta.get("checks", []))
    replays = [child for child in run.children() if child.meta["kind"] == "replay"]
    if not checks and replays:
        checks = list(replays[-1].meta.get("checks", []))
    if not checks:
        return ""
    rows = [(_mark(check), escape(check["name"]), escape(check["value"])) for check in checks]
    return f"<h2>Can this run be trusted?</h2>{_table(('', 'check', 'found'), rows, text=True)}"


def _mark(check: Mapping[str, Any]) -> str:
    kind, word = ("good", "ok") if check["ok"] else (("bad", "FAIL") if check["hard"] else ("warn", "warning"))
    return f'<b class="{kind}">{word}</b>'


def _rounds(run: Run) -> str:
    rounds: Sequence[dict[str, Any]] = run.results.get("rounds", [])
    if not rounds:
        return ""
    rows = [
        (
            str(r["round"]),
            f"{ns_to_us(r['predicted_ns']):,.1f}",
            f"{ns_to_us(r['measured_ns']):,.1f}",
            f"{r['error']:+.2%}",
        )
        for r in rounds
    ]
    fitted = [_parameter(p) for p in rounds[-1]["fitted"]]
    notes = "".join(f"<p>{escape(text)}</p>" for text in rounds[-1].get("unidentified", []))
    return (
        f"<h2>Rounds</h2>{_table(('round', 'predicted us', 'measured us', 'error'), rows)}{_figure(plots.rounds(rounds))}"
        f"<h2>Calibrated model</h2>{_table(('parameter', 'value', 'std. error', '95 % interval', 'messages'), fitted)}{notes}"
    )


def _parameter(row: Mapping[str, Any]) -> tuple[str, ...]:
    rate = row["unit"] == "bit/s"

    def show(value: float | None) -> str:
        return "-" if value is None else f"{bps_to_gigabits(value) if rate else value:,.2f}"

    unit = "Gb/s" if rate else row["unit"]
    interval = "kept as given" if row["stderr"] is None else f"{show(row['low'])} to {show(row['high'])}"
    return escape(row["name"]), f"{show(row['value'])} {unit}", show(row["stderr"]), interval, str(row["samples"])


def _times(label: str, timeline: Timeline) -> str:
    try:
        times = timeline.iteration_times_ns()
    except InputError:
        return ""
    rows = [
        ("iterations", str(len(times))),
        ("iteration time, median us", f"{ns_to_us(timeline.iteration_ns):,.1f}"),
        ("spread (max - min) / median", f"{(times.max() - times.min()) / max(timeline.iteration_ns, 1):.2%}"),
        ("exposed communication, share of a rank's time", f"{metrics.exposed_share(timeline):.1%}"),
    ]
    return f"<h2>Iteration, {label}</h2>{_table(('', ''), rows)}"


def _collectives(timeline: Timeline) -> str:
    operators = timeline.operators
    members = {
        str(group): len(set(operators.rank[operators.group == group].tolist()))
        for group in set(operators.group.tolist())
    }
    members[""] = len(set(operators.rank.tolist()))
    frame = metrics.collectives(timeline, members)
    return "" if frame.empty else f"<h2>Collectives</h2>{_frame(frame.drop(columns=['node_id']))}"


def _counters(run: Run) -> str:
    source = next((child for child in reversed(run.children()) if (child.path / "counters.parquet").is_file()), run)
    if not (source.path / "counters.parquet").is_file():
        return ""
    columns = source.table("counters")
    rows = [tuple(str(columns[key][at]) for key in columns) for at in range(len(columns["link"]))]
    return f"<h2>Links</h2>{_table(tuple(columns), rows)}"


def _environment(run: Run) -> str:
    environment = run.meta["environment"]
    rows = [(escape(str(k)), escape(str(v))) for k, v in environment.items() if k != "packages"]
    rows += [(escape(k), escape(str(v))) for k, v in environment["packages"].items()]
    rows += [(escape(i["role"]), escape(f"{i['given']} (sha256 {i['sha256'][:16]})")) for i in run.meta["inputs"]]
    command = escape(shlex.join(run.meta["command"]))
    return (
        f"<h2>How to do it again</h2><pre>{command}</pre><p>Inputs as they were are in <code>inputs/</code> of the run.</p>"
        f"<h2>Environment</h2>{_table(('', ''), [('genie', escape(run.meta['genie'])), *rows], text=True)}"
    )


def _figure(figure: Any) -> str:
    return f"<figure>{plots.svg(figure)}</figure>"


def _frame(frame: Any) -> str:
    rows = [tuple(escape(_cell(value)) for value in row) for row in frame.head(200).itertuples(index=False)]
    return _table(tuple(str(c).replace("_", " ") for c in frame.columns), rows)


def _cell(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else (f"{value:,}" if isinstance(value, int) else str(value))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, text: bool = False) -> str:
    """A table of cells that are escaped already."""
    klass = ' class="text"' if text else ""
    top = "".join(f"<th>{escape(h)}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td{klass}>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'
