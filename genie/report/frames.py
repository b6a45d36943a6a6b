"""Tidy pandas tables of a run or a timeline; every column that has a unit says it. docs/metrics.md defines them.

A loop's tables hold the rows of all its runs, told apart by `run` (path within the loop's directory, "" for the run
itself) and `measured`. Times are virtual ns since the iteration's start; one that was not observed is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from genie.core.columns import Columns
from genie.core.timeline import UNKNOWN, Timeline
from genie.core.workload import CollectiveKind, NodeKind
from genie.formats.runfile import Run, rounds_columns
from genie.units import transfer_ns

Source = Run | Timeline

_OBSERVED: Final = (
    "issue_ns",
    "done_ns",
    "first_byte_ns",
    "delivered_ns",
    "acknowledged_ns",
    "finish_ns",
    "exposed_ns",
)
"""Columns in which UNKNOWN stands for "not observed"."""


@dataclass(frozen=True, slots=True)
class Part:
    """One timeline of a source; `run` is the directory that it lies in, if any, `label` its path within the source."""

    label: str
    timeline: Timeline
    run: Run | None = None


def parts(source: Source) -> Iterator[Part]:
    """The timelines of a source: a loop has those of its runs."""
    if isinstance(source, Timeline):
        yield Part("", source)
        return
    if source.has_timeline:
        yield Part("", source.timeline(), source)
    for child in source.children():
        if child.has_timeline:
            yield Part(str(child.path.relative_to(source.path)), child.timeline(), child)


def flows(source: Source) -> pd.DataFrame:
    """One row a message: the columns of `Messages`, and what follows from them.

    Added: fct_ns (post to delivery), sender_fct_ns (post to acknowledgement), late_ns (post after it was allowed),
    operator, collective, group (of the sender's trace node); of a replay also ideal_fct_ns and slowdown.
    """
    return _concat([flows_of(part) for part in parts(source)])


def operators(source: Source) -> pd.DataFrame:
    """One row an executed trace node: the columns of `Operators`, kinds by name, duration_ns, instance.

    instance numbers the collectives of a rank and group from 0: rows of equal group and instance are one collective.
    """
    return _concat([_operators(part) for part in parts(source)])


def ranks(source: Source) -> pd.DataFrame:
    """One row a rank and iteration: finish_ns, exposed_ns."""
    return _concat([_plain(part, part.timeline.ranks) for part in parts(source)])


def rounds(run: Run) -> pd.DataFrame:
    """One row a round and fitted parameter of a loop: see `formats.runfile.rounds_columns`."""
    return pd.DataFrame(rounds_columns(run.results.get("rounds", [])))


def links(run: Run) -> pd.DataFrame:
    """One row a directed link: class, rate_bps, delay_ns, buffer_bytes; empty if the run does not tell."""
    return _table(run, "links", ("link", "class", "rate_bps", "delay_ns", "buffer_bytes"))


def routes(run: Run) -> pd.DataFrame:
    """One row a link on the way from rank src to rank dst, hop from 0; empty if the run does not tell."""
    return _table(run, "routes", ("src", "dst", "hop", "link"))


def counters(run: Run) -> pd.DataFrame:
    """One row a directed link: what it sent and dropped during the whole replay; empty if nobody counted."""
    return _table(run, "counters", ("link", "sent_bytes", "sent_packets", "dropped_packets"))


def _table(run: Run, name: str, columns: tuple[str, ...]) -> pd.DataFrame:
    """A table of the run's, or of its last run that has one."""
    holders = [run, *reversed(run.children())]
    holder = next((one for one in holders if name in one.tables()), None)
    return pd.DataFrame(columns=list(columns)) if holder is None else pd.DataFrame(holder.table(name))


def _concat(frames: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _plain(part: Part, columns: Columns) -> pd.DataFrame:
    """A table's columns behind those that tell where it is from."""
    frame = pd.DataFrame(columns.columns())
    for name in frame.columns.intersection(list(_OBSERVED)):
        frame[name] = frame[name].astype(np.float64).where(frame[name] != UNKNOWN)
    frame.insert(0, "run", part.label)
    frame.insert(1, "measured", part.timeline.measured)
    return frame


def _names(kind: type[NodeKind | CollectiveKind], numbers: pd.Series[Any]) -> pd.Series[Any]:
    return numbers.map({int(member): member.name for member in kind}).fillna("")


def _operators(part: Part) -> pd.DataFrame:
    frame = _plain(part, part.timeline.operators)
    frame["duration_ns"] = frame["done_ns"] - frame["issue_ns"]
    frame["kind"] = _names(NodeKind, frame["kind"])
    frame["collective"] = _names(CollectiveKind, frame.pop("comm_type"))
    frame["group"] = frame["group"].replace("0", "")
    ordered = frame[frame["collective"] != ""].sort_values("node_id", kind="stable")
    frame["instance"] = ordered.groupby(["iteration", "rank", "group"]).cumcount()
    frame["instance"] = frame["instance"].fillna(-1).astype(np.int64)
    return frame


def flows_of(part: Part) -> pd.DataFrame:
    """`flows` of one part."""
    frame = _plain(part, part.timeline.messages)
    frame["fct_ns"] = frame["delivered_ns"] - frame["posted_ns"]
    frame["sender_fct_ns"] = frame["acknowledged_ns"] - frame["posted_ns"]
    frame["late_ns"] = frame["posted_ns"] - frame["caused_ns"]
    nodes = _operators(part).drop_duplicates(["rank", "node_id"]).rename(columns={"rank": "src", "name": "operator"})
    frame = frame.merge(nodes[["src", "node_id", "operator", "collective", "group"]], on=["src", "node_id"], how="left")
    return frame if part.run is None else _with_ideal(frame, part.run)


def _with_ideal(frame: pd.DataFrame, run: Run) -> pd.DataFrame:
    """ideal_fct_ns = size / least rate on the path + the path's delays; slowdown = fct_ns / ideal_fct_ns."""
    if not {"links", "routes"} <= set(run.tables()):
        return frame
    paths = routes(run).merge(links(run), on="link").groupby(["src", "dst"])
    path = pd.DataFrame({"delay_ns": paths["delay_ns"].sum()})
    path["ns_per_byte"] = paths["rate_bps"].min().map(lambda rate_bps: transfer_ns(1, rate_bps))
    found = frame[["src", "dst", "size_bytes"]].merge(path.reset_index(), on=["src", "dst"], how="left")
    frame["ideal_fct_ns"] = (found["size_bytes"] * found["ns_per_byte"] + found["delay_ns"]).to_numpy()
    frame["slowdown"] = frame["fct_ns"] / frame["ideal_fct_ns"]
    return frame
