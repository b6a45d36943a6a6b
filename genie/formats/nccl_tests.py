"""What nccl-tests print, as columns: the table on standard output, or the JSON of its -J option."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from genie.core.workload import CollectiveKind
from genie.errors import InputError
from genie.units import us_to_ns

_PROGRAMS: Final = {
    "all_reduce": CollectiveKind.ALL_REDUCE,
    "all_gather": CollectiveKind.ALL_GATHER,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "broadcast": CollectiveKind.BROADCAST,
    "reduce": CollectiveKind.REDUCE,
}
_NAME: Final = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce)_perf\b")
_RANK: Final = re.compile(r"^#\s+Rank\s+(\d+)\b")
_TIMES: Final = ((5, "time_ns"), (6, "algbw_gb_per_s"), (7, "busbw_gb_per_s"))
"""Columns of a line: size count type redop root, then out of place: time algbw busbw #wrong."""

MAX_BYTES: Final = 64 << 20

Columns = dict[str, list[Any]]


def read_nccl_tests(
    path: Path | str, *, collective: CollectiveKind | None = None, members: int | None = None
) -> Columns:
    """The out-of-place results of an nccl-tests log or JSON file.

    Args:
        path: the file.
        collective: which test it was, where the file does not say.
        members: how many ranks took part, where the file does not say.

    Returns:
        collective (names), members, total_bytes (nccl-tests' size), time_ns, algbw_gb_per_s, busbw_gb_per_s.

    Raises:
        InputError: cannot be read, holds no result, or does not say which collective or how many ranks.
    """
    text, where = _text(Path(path)), str(path)
    kind = collective if collective is not None else _kind(text, where)
    count = members if members is not None else _members(text, where)
    rows = list(_from_json(text, where) if text.lstrip().startswith("{") else _from_table(text))
    if not rows:
        raise InputError("holds no result of nccl-tests.", where=where, fix="give the whole output.")
    names = ("total_bytes", *(name for _, name in _TIMES))
    found: Columns = {"collective": [kind.name] * len(rows), "members": [count] * len(rows)}
    return found | {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"is larger than {MAX_BYTES} bytes: no output of nccl-tests.", where=str(path))
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError("is no text.", where=str(path)) from error


def _kind(text: str, where: str) -> CollectiveKind:
    found = _NAME.search(text)
    if found is None:
        raise InputError("does not say which collective was tested.", where=where, fix="name it: collective=...")
    return _PROGRAMS[found[1]]


def _members(text: str, where: str) -> int:
    """From the lines that name the ranks' devices, or this tool's own heading."""
    ranks = {int(found[1]) for line in text.splitlines() if (found := _RANK.match(line))}
    own = re.search(r"_perf, (\d+) ranks", text)
    if not ranks and own is None:
        raise InputError("does not say how many ranks took part.", where=where, fix="say it: members=...")
    return max(ranks) + 1 if ranks else int(own[1]) if own else 0


def _from_table(text: str) -> Iterator[tuple[float, ...]]:
    for line in text.splitlines():
        words = line.split()
        if len(words) > _TIMES[-1][0] and words[0].isdecimal() and words[1].isdecimal():
            try:
                time_us, algbw, busbw = (float(words[at]) for at, _ in _TIMES)
            except ValueError:
                continue
            yield int(words[0]), us_to_ns(time_us), algbw, busbw


def _from_json(text: str, where: str) -> Iterator[tuple[float, ...]]:
    try:
        for row in json.loads(text)["results"]:
            body = row["out_of_place"]
            yield int(row["size"]), us_to_ns(float(body["time"])), float(body["alg_bw"]), float(body["bus_bw"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("is no JSON of nccl-tests.", where=where) from error
