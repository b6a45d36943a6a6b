"""Communicator groups: ASTRA-sim's JSON, ``{"1": [0, 1], ...}``; list order is ring order, ranks are global."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from genie.core.workload import Group
from genie.errors import InputError


def read_json(path: Path | str) -> Any:
    """A JSON file's content.

    Raises:
        InputError: missing or malformed, with line and column.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError("is no UTF-8 text.", where=str(path)) from error
    except json.JSONDecodeError as error:
        raise InputError(
            f"is no JSON: {error.msg}.", where=f"{path}, line {error.lineno}, column {error.colno}"
        ) from error


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
    if not name.isdigit() or int(name) == 0:
        raise InputError(f"group {name!r} is no number above zero (0 and no name mean all ranks).", where=str(path))
    if not isinstance(ranks, list) or not all(type(rank) is int and rank >= 0 for rank in ranks):
        raise InputError(f"the ranks of group {name} are no list of numbers from 0.", where=str(path))
    try:
        return Group(name, tuple(ranks))
    except InputError as error:
        raise InputError(error.what, where=f"{path}, group {name}") from error


def write_comm_groups(path: Path | str, groups: Iterable[Group]) -> None:
    """Write groups as ASTRA-sim reads them."""
    content = {group.name: list(group.ranks) for group in groups}
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
