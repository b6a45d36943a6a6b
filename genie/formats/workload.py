"""A whole workload from its files: ``PREFIX.0.et``, ``PREFIX.1.et``, ... and comm groups."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from genie.core.workload import Group, Nodes, RankTrace, Workload
from genie.errors import InputError
from genie.formats.attributes import MAX_INT64
from genie.formats.chakra_many import read_traces
from genie.formats.chakra_writer import write_trace
from genie.formats.comm_groups import read_comm_groups, write_comm_groups
from genie.formats.textfile import read_json

TRACE_NAME = re.compile(r"^(?P<prefix>.*)\.(?P<rank>\d+)\.et(\.gz)?$")


def find_traces(prefix: Path | str) -> dict[int, Path]:
    """Rank -> file for a prefix, or for a directory that holds traces of one prefix.

    Raises:
        InputError: nothing found, several prefixes in the directory, two files for one rank.
    """
    prefix = Path(prefix)
    folder, wanted = (prefix, None) if prefix.is_dir() else (prefix.parent, prefix.name)
    if not folder.is_dir():
        raise InputError("no such folder.", where=str(folder))
    matches = [(m, path) for path in sorted(folder.iterdir()) if (m := TRACE_NAME.match(path.name))]
    prefixes = Counter(m["prefix"] for m, _ in matches if wanted is None or m["prefix"] == wanted)
    if len(prefixes) != 1:
        raise InputError(
            f"{len(prefixes)} trace prefixes match{': ' if prefixes else ''}{', '.join(sorted(prefixes))}.",
            where=str(prefix),
            fix="name a prefix such that PREFIX.0.et exists.",
        )
    found: dict[int, Path] = {}
    for match, path in matches:
        if match["prefix"] in prefixes and found.setdefault(int(match["rank"]), path) != path:
            raise InputError(f"rank {match['rank']} has two files.", where=f"{found[int(match['rank'])]} and {path}")
    return found


def load_workload(
    prefix: Path | str,
    *,
    comm_groups: Path | str | None = None,
    scale_bytes: float = 1.0,
    ranks: int | None = None,
) -> Workload:
    """Read all ranks of a workload.

    Args:
        prefix: path such that PREFIX.0.et exists, or a folder with one such prefix.
        comm_groups: comm-group JSON; when absent, PREFIX.json is taken if it is there and all its keys are numbers.
        scale_bytes: factor on every comm_size (rounded, at least 1 byte), to make a huge job replayable.
        ranks: how many ranks the network has; more files than that are ignored, as by ASTRA-sim.

    Raises:
        InputError: missing ranks, a factor that is not above zero, or anything wrong in a file.
    """
    if not 0 < scale_bytes < math.inf:
        raise InputError(f"bytes cannot be scaled by {scale_bytes}.", fix="use a factor above zero.")
    files = find_traces(prefix)
    count = max(files) + 1 if ranks is None else ranks
    missing, first = absent_ranks(files, count, 8)
    if missing:
        more = ", ..." if missing > len(first) else ""
        raise InputError(
            f"traces of ranks {', '.join(map(str, first))}{more} are missing.",
            where=f"{prefix}.RANK.et",
            fix=f"{count} ranks are needed, {len(files)} files are there.",
        )
    groups = find_comm_groups(files[0], comm_groups)
    traces = _scaled(read_traces({rank: files[rank] for rank in range(count)}), scale_bytes)
    return Workload(_name(files[0]), traces, groups)


def absent_ranks(have: Collection[int], count: int, most: int) -> tuple[int, list[int]]:
    """How many of the ranks below `count` are not there, and the first of them; `count` may be any number."""
    missing = count - sum(0 <= rank < count for rank in have)
    return missing, list(islice((rank for rank in range(count) if rank not in have), min(missing, most)))


def _name(path: Path) -> str:
    match = TRACE_NAME.match(path.name)
    return match["prefix"] if match else path.name


def find_comm_groups(first: Path, given: Path | str | None) -> tuple[Group, ...]:
    """The groups of the file that was given, else of the one beside a trace; none if there is neither.

    Raises:
        InputError: the file cannot be read, or holds no groups.
    """
    if given is not None:
        return read_comm_groups(given)
    beside = comm_groups_beside(first)
    return read_comm_groups(beside) if beside is not None else ()


def comm_groups_beside(first: Path) -> Path | None:
    """PREFIX.json beside PREFIX.0.et, if it looks like comm groups: an object all of whose keys are numbers."""
    beside = first.with_name(f"{_name(first)}.json")
    if not beside.is_file():
        return None
    content = read_json(beside)
    looks_so = isinstance(content, dict) and bool(content) and all(name.isdigit() for name in content)
    return beside if looks_so else None


def _scaled(traces: tuple[RankTrace, ...], factor: float) -> tuple[RankTrace, ...]:
    """Sends and receives of equal size stay equal, since every size is scaled alike; equal ranks still share."""
    if factor == 1.0:
        return traces
    scaled = {id(trace.nodes): _scaled_nodes(trace, factor) for trace in traces}
    return tuple(replace(trace, nodes=scaled[id(trace.nodes)]) for trace in traces)


def _scaled_nodes(trace: RankTrace, factor: float) -> Nodes:
    columns = trace.nodes.columns()
    size_bytes = columns["size_bytes"]
    scaled = np.where(size_bytes > 0, np.maximum(1, np.rint(size_bytes * factor)), size_bytes)
    if scaled.max(initial=0) >= MAX_INT64:
        raise InputError(
            f"scaled by {factor}, a size is out of range.", where=trace.source, fix="use a smaller factor."
        )
    return Nodes(**{**columns, "size_bytes": scaled.astype(np.int64)})


def save_workload(prefix: Path | str, workload: Workload) -> list[Path]:
    """Write PREFIX.RANK.et for every rank, and PREFIX.json when there are groups; the files written."""
    prefix = Path(prefix)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for trace in workload.traces:
        written.append(prefix.parent / f"{prefix.name}.{trace.rank}.et")
        write_trace(written[-1], trace)
    if workload.groups:
        written.append(prefix.parent / f"{prefix.name}.json")
        write_comm_groups(written[-1], workload.groups)
    return written
