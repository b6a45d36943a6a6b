"""A run in other tools' formats: Chrome/Perfetto trace, CSV, nccl-tests' table and JSON, ns-3's file of flows."""

from __future__ import annotations

import gzip
import heapq
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd

from genie.core.workload import CollectiveKind, NodeKind
from genie.errors import InputError
from genie.formats.runfile import Run
from genie.formats.tables import write_text, write_whole
from genie.report import frames, metrics
from genie.report.subject import View, subject_of
from genie.units import ns_to_us

Event = dict[str, Any]


def csv(run: Run, folder: Path) -> list[Path]:
    """Every table of the run as NAME.csv in a folder; the files written.

    Raises:
        InputError: a table is damaged.
        NotReadyError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    operators = frames.operators(run)
    tables = {
        "flows": frames.flows(run),
        "operators": operators,
        "ranks": frames.ranks(run),
        "collectives": metrics.collectives(operators),
        "rounds": frames.rounds(run),
        "links": frames.links(run),
        "routes": frames.routes(run),
        "counters": frames.counters(run),
    }
    written = []
    for name, table in tables.items():
        if len(table):
            written.append(folder / f"{name}.csv")
            write_text(written[-1], table.to_csv(index=False))
    return written


# --- Chrome and Perfetto ---------------------------------------------------------------------------------------------

_OUT: Final = "messages out"
_LANES: Final = (("compute", NodeKind.COMP.name), ("collectives", NodeKind.COLLECTIVE.name))


def chrome_trace(run: Run, out: Path) -> Path:
    """The run as Chrome's trace event JSON, which Perfetto opens too; compressed when `out` ends in .gz.

    A process a rank; in it threads for computes, collectives, messages out and messages in. Slices that overlap get
    threads of their own, since the format only nests. Iterations follow one another. Arrows lead from a message's post
    to its first byte at the receiver. Times are us, as the format wants.

    Raises:
        InputError: the run holds no timeline, or it is damaged.
        NotReadyError: `out` cannot be written.
    """
    views = subject_of(run).views
    if not views:
        raise InputError("the run holds no timeline.", where=str(run.path))
    events = (event for number, view in enumerate(views) for event in _chrome_events(view, number * _PROCESSES))
    write_whole(out, lambda partial: _write_events(partial, events, compress=out.suffix == ".gz"))
    return out


_PROCESSES: Final = 1_000_000
"""Process numbers set apart for one timeline's ranks."""


def _write_events(path: Path, events: Iterable[Event], *, compress: bool) -> None:
    with gzip.open(path, "wt", encoding="utf-8") if compress else path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        for at, event in enumerate(events):
            file.write((",\n" if at else "") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")


def _chrome_events(view: View, first: int) -> Iterator[Event]:
    starts = _starts(view)
    for rank in sorted(view.ranks["rank"].unique().tolist()):
        yield _named("process_name", first + rank, 0, f"rank {rank}, {view.label}")
        yield {"ph": "M", "name": "process_sort_index", "pid": first + rank, "args": {"sort_index": first + rank}}
    threads = _Threads(first)
    for title, kind in _LANES:
        chosen = view.operators[(view.operators["kind"] == kind) & view.operators["done_ns"].notna()]
        yield from threads.slices(title, _operator_slices(chosen, starts))
    arrived = view.flows[view.flows["delivered_ns"].notna()]
    yield from threads.slices(_OUT, _message_slices(arrived, starts, "src"))
    came = arrived.assign(posted_ns=arrived["first_byte_ns"].fillna(arrived["posted_ns"]))
    yield from threads.slices("messages in", _message_slices(came, starts, "dst"))


def _starts(view: View) -> dict[int, float]:
    """Iteration -> when it starts, if each starts as the one before it ends."""
    lengths = view.ranks.groupby("iteration")["finish_ns"].max().fillna(0.0).sort_index()
    return dict(zip(lengths.index, lengths.cumsum().shift(fill_value=0.0), strict=True))


@dataclass(frozen=True, slots=True)
class _Slice:
    rank: int
    start_ns: float
    end_ns: float
    name: str
    args: dict[str, Any]
    arrow: int | None = None


def _operator_slices(operators: pd.DataFrame, starts: dict[int, float]) -> Iterator[_Slice]:
    for row in operators.sort_values(["rank", "iteration", "issue_ns"]).to_dict("records"):
        at_ns = starts[row["iteration"]]
        args = {name: row[name] for name in ("iteration", "node_id", "group", "size_bytes", "late_ns")}
        yield _Slice(row["rank"], at_ns + row["issue_ns"], at_ns + row["done_ns"], row["name"], args)


def _message_slices(flows: pd.DataFrame, starts: dict[int, float], rank: str) -> Iterator[_Slice]:
    columns = ["iteration", "src", "dst", "size_bytes", "tag", "chunk", "step", "posted_ns", "delivered_ns", "operator"]
    ordered = flows[columns].sort_values([rank, "iteration", "posted_ns"], kind="stable")
    for arrow, row in zip(ordered.index.tolist(), ordered.to_dict("records"), strict=True):
        at_ns, name = starts[row["iteration"]], f"{row['src']} to {row['dst']}: {row['operator']}"
        args = {key: row[key] for key in ("iteration", "size_bytes", "tag", "chunk", "step")}
        yield _Slice(row[rank], at_ns + row["posted_ns"], at_ns + row["delivered_ns"], name, args, arrow)


class _Threads:
    """Hands out thread numbers: slices of a rank and title that overlap come to lie on different ones."""

    def __init__(self, first: int) -> None:
        self._first, self._titles = first, 0

    def slices(self, title: str, slices: Iterable[_Slice]) -> Iterator[Event]:
        """Events of slices that come ordered by rank and start."""
        base = self._titles * _LANE_NUMBERS
        self._titles += 1
        rank, free, lanes = -1, list[tuple[float, int]](), 0
        for one in slices:
            if one.rank != rank:
                rank, free, lanes = one.rank, [], 0
            if free and free[0][0] <= one.start_ns:
                _, lane = heapq.heappop(free)
            else:
                lane, lanes = lanes, lanes + 1
                name = title if lane == 0 else f"{title} ({lane + 1})"
                yield _named("thread_name", self._first + rank, base + lane, name)
            heapq.heappush(free, (one.end_ns, lane))
            yield from _drawn(one, self._first, base + lane, title)


_LANE_NUMBERS: Final = 10_000


def _drawn(one: _Slice, first: int, thread: int, title: str) -> Iterator[Event]:
    place = {"pid": first + one.rank, "tid": thread, "ts": ns_to_us(one.start_ns)}
    length = {"dur": ns_to_us(one.end_ns - one.start_ns)}
    yield {"ph": "X", "name": one.name, "cat": title, **place, **length, "args": one.args}
    if one.arrow is not None:
        arrow = {"ph": "s"} if title == _OUT else {"ph": "f", "bp": "e"}
        yield {**arrow, "name": "message", "cat": "message", "id": first + one.arrow, **place}


def _named(what: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


# --- nccl-tests ------------------------------------------------------------------------------------------------------

_REDUCING: Final = {"ALL_REDUCE", "REDUCE_SCATTER", "REDUCE"}
_SHARED: Final = {"ALL_GATHER", "REDUCE_SCATTER", "ALL_TO_ALL"}
"""Collectives whose count is that of one rank's share."""

_PROGRAMS: Final = {"ALL_TO_ALL": "alltoall_perf"}
_IN_PLACE: Final = "In-place columns repeat the out-of-place ones: on the wire they do not differ."


def nccl_results(run: Run) -> list[dict[str, Any]]:
    """One result per kind, number of ranks and size of collective, with nccl-tests' keys; bytes are the elements.

    time is in us, bandwidths in GB/s (decimal). As in nccl-tests without its data check, nwrong is None: payloads are
    not computed, so none is compared.

    Raises:
        InputError: the run holds no timeline.
    """
    view = subject_of(run).main
    if view is None:
        raise InputError("the run holds no timeline.", where=str(run.path))
    iterations = int(view.ranks["iteration"].nunique())
    found = metrics.collective_summary(view.operators)
    found = found[found["time_ns"].notna() & (found["collective"] != CollectiveKind.BARRIER.name)]
    return [_nccl_result(row, iterations) for row in found.sort_values("size_bytes").to_dict("records")]


def _nccl_result(row: dict[Any, Any], iterations: int) -> dict[str, Any]:
    kind, members = row["collective"], row["members"]
    body = {
        "time": ns_to_us(row["time_ns"]),
        "alg_bw": row["algbw_gb_per_s"],
        "bus_bw": row["busbw_gb_per_s"],
        "nwrong": None,
    }
    return {
        "size": int(row["total_bytes"]),
        "count": int(row["total_bytes"]) // (members if kind in _SHARED else 1),
        "type": "uint8",
        "redop": "sum" if kind in _REDUCING else "none",
        "root": "-1",
        "out_of_place": body,
        "in_place": dict(body),
        "actual_iterations": iterations * row["count"],
        "experiment_name": f"{_PROGRAMS.get(kind, kind.lower() + '_perf')}, {members} ranks",
    }


def nccl_json(run: Run) -> dict[str, Any]:
    """nccl-tests' JSON: its keys as far as they mean something here."""
    results = nccl_results(run)
    return {
        "version": 2,
        "start_time": run.meta["created"],
        "end_time": run.meta.get("finished"),
        "args": run.meta["command"],
        "note": _IN_PLACE,
        "results": results,
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": _average(results), "okay": "unchecked"},
    }


def _average(results: list[dict[str, Any]]) -> float:
    return sum(r["out_of_place"]["bus_bw"] for r in results) / len(results) if results else 0.0


def nccl_table(run: Run) -> str:
    """nccl-tests' table, a block for each kind of collective and number of ranks."""
    results = nccl_results(run)
    blocks = []
    for name in dict.fromkeys(r["experiment_name"] for r in results):
        own = [r for r in results if r["experiment_name"] == name]
        blocks += [f"# Collective test starting: {name}", f"# {_IN_PLACE}", *_nccl_head(), *map(_nccl_line, own)]
        blocks += [f"# {'Out of bounds values':<20} : 0 OK", f"# {'Avg bus bandwidth':<20} : {_average(own):g} ", "#"]
    return "\n".join(blocks) + "\n" if blocks else "# no collective was measured\n"


def _nccl_head() -> list[str]:
    """Three lines whose columns stand where nccl-tests has them."""
    columns = ("time", "algbw", "busbw", "#wrong")
    units = ("(us)", "(GB/s)", "(GB/s)", "")

    def line(first: tuple[str, ...], rest: tuple[str, ...]) -> str:
        a, b, c, d, e = first
        return f"# {a:>10}  {b:>12}  {c:>8}  {d:>6}  {e:>6}" + "".join(
            f"  {time:>7}  {algbw:>6}  {busbw:>6}  {wrong:>6}" for time, algbw, busbw, wrong in (rest, rest)
        )

    places = f"# {'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}           out-of-place                       in-place"
    names, in_units = ("size", "count", "type", "redop", "root"), ("(B)", "(elements)", "", "", "")
    return ["#", places, line(names, columns), line(in_units, units)]


def _nccl_line(result: dict[str, Any]) -> str:
    body = result["out_of_place"]
    wide = (_fitting(body["time"], 7), _fitting(body["alg_bw"], 6), _fitting(body["bus_bw"], 6))
    half = "  {:>7}  {:>6}  {:>6}     N/A".format(*wide)
    first = f"{result['size']:>12}  {result['count']:>12}  {result['type']:>8}  {result['redop']:>6}"
    return f"{first}  {result['root']:>6}{half}{half}"


def _fitting(value: float, width: int) -> str:
    """A number in at most `width` characters, with as many digits after the point (up to two) as there is room for."""
    texts = (f"{value:.{digits}f}" for digits in (2, 1, 0))
    return next((text for text in texts if len(text) <= width), f"{value:.1e}")


# --- ns-3 ------------------------------------------------------------------------------------------------------------


def fct_lines(run: Run) -> Iterator[str]:
    """The measured messages as ns-3's RDMA simulations (HPCC's and those that descend from it) write their flows.

    Columns: source and destination address (hexadecimal, 11.0.0.1 + 256 x rank), source port (10000 + flow),
    destination port, size in bytes, start, FCT and stand-alone FCT in ns.

    Raises:
        InputError: the run does not know its links, and so no stand-alone FCT.
    """
    view = subject_of(run).measured
    if view is None or "ideal_fct_ns" not in view.flows:
        raise InputError(
            "a file of flows needs a measured run that knows its links.",
            where=str(run.path),
            fix="name a replay or loop.",
        )
    starts = _starts(view)
    good = view.flows[view.flows["fct_ns"].notna() & view.flows["ideal_fct_ns"].notna()]
    columns = ["iteration", "src", "dst", "flow", "size_bytes", "posted_ns", "fct_ns", "ideal_fct_ns"]
    for iteration, src, dst, flow, size, posted, fct, ideal in good[columns].itertuples(index=False):
        times = f"{starts[iteration] + posted:.0f} {fct:.0f} {ideal:.0f}"
        yield f"{_address(src):08x} {_address(dst):08x} {10_000 + flow} {_PORT} {size} {times}"


_PORT: Final = 100


def _address(rank: int) -> int:
    """ns-3's address of a node, as HPCC numbers them."""
    return 0x0B000001 + (rank // 256 << 16) + (rank % 256 << 8)


def _one_file(make: Callable[[Run], str]) -> Callable[[Run, Path], list[Path]]:
    def write(run: Run, out: Path) -> list[Path]:
        write_text(out, make(run))
        return [out]

    return write


@dataclass(frozen=True, slots=True)
class Format:
    """A format to export to: what it is, the name of its file (or folder), and who writes it."""

    about: str
    file: str
    write: Callable[[Run, Path], list[Path]]


FORMATS: Final[dict[str, Format]] = {
    "perfetto": Format("Chrome/Perfetto trace", "trace.json.gz", lambda run, out: [chrome_trace(run, out)]),
    "csv": Format("every table as CSV", "csv", csv),
    "nccl": Format("nccl-tests' table", "nccl.txt", _one_file(nccl_table)),
    "nccl-json": Format(
        "nccl-tests' JSON", "nccl.json", _one_file(lambda run: json.dumps(nccl_json(run), indent=1) + "\n")
    ),
    "fct": Format(
        "ns-3's file of flows", "fct.txt", _one_file(lambda run: "".join(f"{line}\n" for line in fct_lines(run)))
    ),
}
