"""Communicator groups: ASTRA-sim's JSON, ``{"1": [0, 1], ...}``; list order is ring order, ranks are global."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from genie.core.workload import Group
from genie.errors import InputError
from genie.formats.textfile import MAX_INT32, as_count, read_json


def read_comm_groups(path: Path | str) -> tuple[Group, ...]:
    """The groups of a file; any path that contains "empty" means none, as in ASTRA-sim.

    Raises:
        InputError: not a mapping of positive integer names to lists of ranks.
    """
    if "empty" in str(path) and not Path(path).exists():
        return ()
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError("comm groups are a mapping of group number to ranks.", where=str(path))
    return tuple(_group(str(name), ranks, path) for name, ranks in content.items())


def _group(name: str, ranks: Any, path: Path | str) -> Group:
    number = as_count(name)
    if not number or name != str(number):
        raise InputError(
            f"group {name!r} is no plain number from 1 to {MAX_INT32} (0 and no name mean all ranks).",
            where=str(path),
            fix='name groups "1", "2", ... as pg_name does.',
        )
    if not isinstance(ranks, list) or not all(type(rank) is int and as_count(rank) is not None for rank in ranks):
        raise InputError(
            f"the ranks of group {name} are no list of numbers from 0.", where=str(path), fix="list global ranks."
        )
    try:
        return Group(name, tuple(ranks))
    except InputError as error:
        raise InputError(error.what, where=f"{path}, group {name}") from error


def write_comm_groups(path: Path | str, groups: Iterable[Group]) -> None:
    """Write groups as ASTRA-sim reads them."""
    content = {group.name: list(group.ranks) for group in groups}
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
