"""Static analysis of traces: every problem in one list, before anything runs. The rules: docs/trace-check.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from genie.core.workload import Group
from genie.errors import InputError
from genie.formats.chakra import RawTrace
from genie.formats.chakra_sound import read_sound
from genie.formats.check_nodes import NodeCheck, check_graph
from genie.formats.check_ranks import (
    check_collectives,
    check_groups,
    check_messages,
    check_places,
    check_rank_numbers,
    check_work,
)
from genie.formats.findings import ERROR, MAX_EACH, Finding, about_file, by_severity, limited
from genie.formats.graph import graph_of
from genie.formats.repair import fix, repair_files
from genie.formats.workload import find_comm_groups, find_traces

__all__ = ["Finding", "check", "check_files", "fix", "repair_files"]


def check_files(
    prefix: Path | str,
    *,
    comm_groups: Path | str | None = None,
    ranks: int | None = None,
    places: int | None = None,
) -> list[Finding]:
    """All problems of PREFIX.RANK.et, errors first.

    Args:
        prefix: as for `load_workload`.
        comm_groups: comm-group file; when absent, the one beside the traces if there is one.
        ranks: how many ranks the network has, if that is known.
        places: how many ranks the testbed has room for, if that is known.

    Raises:
        InputError: no trace is there at all, or the comm-group file cannot be read.
    """
    files = find_traces(prefix)
    given = max(files) + 1
    groups = find_comm_groups(files[min(files)], comm_groups)
    raws, findings = {}, list(check_places(given, places))
    for rank, path in sorted(files.items()):
        if ranks is not None and rank >= ranks:
            continue
        raw, unreadable = _read(path)
        findings += unreadable
        if raw is None:
            continue
        if unreadable:  # its graph would miss the bad nodes
            known = {group.name: group for group in groups}
            findings += limited(NodeCheck(raw, rank, known, given if ranks is None else ranks).findings())
        else:
            raws[rank] = raw
    return by_severity(findings + check(raws, groups, ranks=ranks, expected_ranks=given))


def _read(path: Path) -> tuple[RawTrace | None, list[Finding]]:
    """The sound nodes of a file, and a finding for each attribute or node that cannot be read."""
    source = str(path)
    try:
        raw, problems = read_sound(path, MAX_EACH)
    except InputError as error:
        return None, [about_file(source, ERROR, "unreadable", _placed(error, source), error.fix)]
    findings = [
        Finding(ERROR, "unreadable", source, bad.node_id, bad.name, _placed(bad, source), bad.fix) for bad in problems
    ]
    if raw is None and len({bad.frame for bad in problems}) >= MAX_EACH:
        what = f"{MAX_EACH} nodes that cannot be read: what comes after them was not looked at"
        findings.append(about_file(source, ERROR, "unreadable", what, "generate the trace again."))
    return raw, findings


def _placed(error: InputError, source: str) -> str:
    return f"{error.where.removeprefix(source).strip(', ')}: {error.what}".removeprefix(": ")


def check(
    raws: Mapping[int, RawTrace], groups: Iterable[Group] = (), *, ranks: int | None = None, expected_ranks: int = 0
) -> list[Finding]:
    """All problems of traces that could be read.

    Args:
        raws: rank -> trace.
        groups: the process groups.
        ranks: how many ranks the network or testbed has, if that is known.
        expected_ranks: how many ranks there are files of, readable or not.
    """
    known = {group.name: group for group in groups}
    given = max(expected_ranks, max(raws, default=-1) + 1)
    count = given if ranks is None else ranks
    graphs = {rank: graph_of(raw) for rank, raw in raws.items()}
    findings = list(check_rank_numbers(raws, count, ranks, given))
    findings += check_groups(known, count)
    findings += check_work(raws)
    for rank, raw in raws.items():
        findings += limited(check_graph(raw, graphs[rank]))
        findings += limited(NodeCheck(raw, rank, known, count).findings())
    findings += limited(check_messages(raws, known))
    findings += limited(check_collectives(raws, graphs, known))
    return by_severity(findings)
