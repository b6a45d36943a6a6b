"""Static analysis of traces: every problem in one list, before anything runs; and safe repairs.

An error is what would abort, hang or falsify a run; a warning is what deserves a look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from genie.core.columns import csr_from_lists, csr_transpose
from genie.core.workload import NONE, CollectiveKind, Group, NodeKind, Nodes
from genie.errors import InputError
from genie.formats.chakra import RawTrace, read_raw
from genie.formats.chakra_writer import rewrite
from genie.formats.comm_groups import read_comm_groups
from genie.formats.workload import find_traces

MAX_EACH: Final = 20
"""Findings of one rule in one file; more are counted in a last one."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem: where it is, what it is, what to do."""

    severity: str
    rule: str
    file: str
    node_id: int | None
    name: str
    what: str
    fix: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON and tables."""
        return {
            "severity": self.severity,
            "rule": self.rule,
            "file": self.file,
            "node_id": self.node_id,
            "name": self.name,
            "what": self.what,
            "fix": self.fix,
        }


Found = Iterator[Finding]
MessageKey = tuple[int, int, int, int]
"""(source, destination, tag, size_bytes)"""


def check_files(
    prefix: Path | str, *, comm_groups: Path | str | None = None, ranks: int | None = None
) -> list[Finding]:
    """All problems of PREFIX.RANK.et, errors first.

    Raises:
        InputError: no trace is there at all, or the comm-group file cannot be read.
    """
    files = find_traces(prefix)
    beside = files[min(files)].with_name(f"{Path(prefix).name}.json")
    source = comm_groups or (beside if beside.is_file() else None)
    groups = read_comm_groups(source) if source else ()
    raws, findings = {}, []
    for rank, path in sorted(files.items()):
        try:
            raws[rank] = read_raw(path)
        except InputError as error:
            findings.append(_finding("error", "unreadable", str(path), None, "", str(error), error.fix))
    findings += check(raws, groups, ranks=ranks, expected_ranks=max(files) + 1)
    return sorted(findings, key=lambda finding: (finding.severity != "error", finding.file, finding.node_id or 0))


def check(
    raws: dict[int, RawTrace], groups: Iterable[Group] = (), *, ranks: int | None = None, expected_ranks: int = 0
) -> list[Finding]:
    """All problems of traces that could be read (rank -> trace)."""
    known = {group.name: group for group in groups}
    count = ranks or max(expected_ranks, max(raws, default=-1) + 1)
    findings = list(_rank_numbers(raws, count, ranks))
    for rank, raw in raws.items():
        findings += _limited(_graph(raw))
        findings += _limited(_nodes(raw, rank, known, count))
    for group in known.values():
        findings += _group_range(group, count)
    findings += _limited(_messages(raws))
    findings += _limited(_collective_order(raws, known, count))
    return findings


def _finding(severity: str, rule: str, file: str, node: int | None, name: str, what: str, fix: str) -> Finding:
    return Finding(severity, rule, file, node, name, what, fix)


def _at(raw: RawTrace, row: int, severity: str, rule: str, what: str, fix: str) -> Finding:
    return _finding(severity, rule, raw.source, int(raw.nodes.node_id[row]), str(raw.nodes.name[row]), what, fix)


def _limited(findings: Iterable[Finding]) -> list[Finding]:
    """At most MAX_EACH of a rule and file, then how many more."""
    kept, counts = [], Counter[tuple[str, str]]()
    last: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        key = (finding.rule, finding.file)
        counts[key] += 1
        if counts[key] <= MAX_EACH:
            kept.append(finding)
        last[key] = finding
    for key, count in counts.items():
        if count > MAX_EACH:
            kept.append(replace(last[key], node_id=None, name="", what=f"and {count - MAX_EACH} more like these"))
    return kept


def _rank_numbers(raws: dict[int, RawTrace], count: int, ranks: int | None) -> Found:
    missing = [rank for rank in range(count) if rank not in raws]
    if missing:
        what = f"no readable trace for ranks {', '.join(map(str, missing[:8]))} of {count}"
        yield _finding("error", "missing-rank", "", None, "", what, "add the files, or use a network of fewer ranks.")
    extra = [rank for rank in raws if ranks is not None and rank >= ranks]
    if extra:
        what = f"{len(extra)} more traces than the network has ranks; they are ignored"
        yield _finding(
            "warning", "extra-rank", raws[extra[0]].source, None, "", what, "check the network's npus_count."
        )


def _edges(raw: RawTrace) -> Iterator[tuple[str, int, int]]:
    """Every dependency as (kind, row, id depended on)."""
    for kind, offsets, ids in (("data", raw.data_offsets, raw.data_ids), ("ctrl", raw.ctrl_offsets, raw.ctrl_ids)):
        rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        yield from ((kind, row, node) for row, node in zip(rows.tolist(), ids.tolist(), strict=True))


def _graph(raw: RawTrace) -> Found:
    """Ids and dependencies within one file."""
    ids = raw.nodes.node_id.tolist()
    row_of: dict[int, int] = {}
    for row, node in enumerate(ids):
        if node in row_of:
            yield _at(raw, row, "error", "duplicate-id", f"id {node} occurs again", "number the nodes uniquely.")
        row_of.setdefault(node, row)
    deps: list[list[int]] = [[] for _ in ids]
    for kind, row, node in _edges(raw):
        if node == ids[row]:
            yield _at(raw, row, "error", "self-dependency", f"{kind} dependency on itself", "--fix drops a ctrl one.")
        elif node not in row_of:
            yield _at(
                raw, row, "error", "dangling-dependency", f"{kind} dependency on absent node {node}", _DANGLING[kind]
            )
        else:
            deps[row].append(row_of[node])
    cycle = find_cycle(deps)
    if cycle:
        names = " -> ".join(str(ids[row]) for row in [*cycle, cycle[0]])
        yield _at(raw, cycle[0], "error", "cycle", f"nodes depend on each other: {names}", "break the cycle.")


_DANGLING: Final = {"ctrl": "--fix drops dangling ctrl dependencies.", "data": "convert the trace again."}


def find_cycle(deps: list[list[int]]) -> list[int]:
    """Rows of one dependency cycle, in order; empty if there is none."""
    offsets, values = csr_from_lists(deps)
    child_offsets, children = csr_transpose(offsets, values, len(deps))
    missing = np.diff(offsets).tolist()
    ready = [row for row, count in enumerate(missing) if count == 0]
    first, kids = child_offsets.tolist(), children.tolist()
    for row in ready:
        for child in kids[first[row] : first[row + 1]]:
            missing[child] -= 1
            if missing[child] == 0:
                ready.append(child)
    at = next((row for row, count in enumerate(missing) if count > 0), None)
    path: list[int] = []
    seen: dict[int, int] = {}
    while at is not None and at not in seen:
        seen[at] = len(path)
        path.append(at)
        at = next(dep for dep in deps[at] if missing[dep] > 0)
    return path[seen[at] :] if at is not None else []


def _nodes(raw: RawTrace, rank: int, groups: dict[str, Group], count: int) -> Found:
    """What each node says by itself."""
    columns = {name: column.tolist() for name, column in raw.nodes.columns().items()}
    for row in range(len(raw.nodes)):
        kind = columns["kind"][row]
        if kind == NodeKind.METADATA:
            yield _at(raw, row, "error", "metadata-node", "METADATA nodes abort ASTRA-sim", "--fix takes them out.")
        elif kind == NodeKind.INVALID:
            yield _at(raw, row, "warning", "invalid-node", "an INVALID node releases nobody by itself", "remove it.")
        elif kind in {NodeKind.SEND, NodeKind.RECV}:
            yield from _point_to_point(raw, row, columns, rank, count)
        elif kind == NodeKind.COLLECTIVE:
            yield from _collective(raw, row, columns, rank, groups)


def _point_to_point(raw: RawTrace, row: int, columns: dict[str, Any], rank: int, count: int) -> Found:
    peer, size = columns["peer"][row], columns["size_bytes"][row]
    if peer == NONE:
        yield _at(raw, row, "error", "no-peer", "a send or receive that names no peer", "add comm_dst or comm_src.")
    elif peer == rank:
        yield _at(raw, row, "error", "self-message", "a message to the own rank", "peers are global ranks.")
    elif peer >= count:
        what = f"peer {peer} of {count} ranks"
        yield _at(raw, row, "error", "peer-out-of-range", what, "peers are global ranks: check the number of files.")
    if size <= 0:
        yield _at(raw, row, "error", "no-size", f"comm_size is {_shown(size)}", "give it a comm_size above zero.")


def _shown(size: int) -> str:
    return "missing" if size == NONE else str(size)


def _collective(raw: RawTrace, row: int, columns: dict[str, Any], rank: int, groups: dict[str, Group]) -> Found:
    kind, size, name = columns["comm_type"][row], columns["size_bytes"][row], columns["group"][row]
    if columns["is_cpu"][row] and (kind == NONE or size <= 0):
        yield _at(raw, row, "error", "cpu-wrapper", "a CPU-side wrapper of a collective", "--fix takes wrappers out.")
        return
    if kind == NONE:
        yield _at(raw, row, "error", "no-comm-type", "comm_type is missing", "convert the trace with its device part.")
    if size <= 0 and kind != CollectiveKind.BARRIER:
        yield _at(raw, row, "error", "no-size", f"comm_size is {_shown(size)}", "give it a comm_size above zero.")
    if kind in {CollectiveKind.REDUCE, CollectiveKind.BARRIER, CollectiveKind.BROADCAST}:
        what = f"{CollectiveKind(kind).name} is not modelled by ASTRA-sim"
        yield _at(raw, row, "warning", "not-in-astra-sim", what, "--extended sends it as a tree.")
    if kind in {CollectiveKind.GATHER, CollectiveKind.SCATTER}:
        yield _at(
            raw, row, "error", "unsupported", f"{CollectiveKind(kind).name} cannot be run", "use sends and receives."
        )
    yield from _membership(raw, row, name, size, rank, groups)


def _membership(raw: RawTrace, row: int, name: str, size: int, rank: int, groups: dict[str, Group]) -> Found:
    if name in {"", "0"}:
        return
    group = groups.get(name)
    if group is None:
        yield _at(raw, row, "error", "unknown-group", f"group {name!r} is in no comm-group file", "pass --comm-groups.")
    elif rank not in group.ranks:
        what = f"rank {rank} is no member of group {name} {list(group.ranks)[:8]}"
        fix = "the file lists global ranks" + (
            ": these look like ranks within the group." if max(group.ranks) < len(group.ranks) <= rank else "."
        )
        yield _at(raw, row, "error", "not-a-member", what, fix)
    elif len(group.ranks) == 1:
        what = f"group {name} has one member; ASTRA-sim never finishes its collectives"
        yield _at(raw, row, "warning", "group-of-one", what, "--extended lets it finish at once.")
    elif size > 0 and size % len(group.ranks):
        what = f"{size} bytes do not divide by the {len(group.ranks)} members"
        yield _at(raw, row, "warning", "indivisible", what, "the remainder is dropped, as in ASTRA-sim.")


def _group_range(group: Group, count: int) -> Found:
    if max(group.ranks) >= count:
        what = f"group {group.name} names rank {max(group.ranks)} of {count}"
        yield _finding("error", "group-out-of-range", "", None, "", what, "correct the comm-group file.")


def _messages(raws: dict[int, RawTrace]) -> Found:
    """Sends against receives, by (source, destination, tag, size)."""
    sends: dict[MessageKey, list[tuple[int, int]]] = {}
    receives: dict[MessageKey, list[tuple[int, int]]] = {}
    for rank, raw in raws.items():
        nodes = raw.nodes
        for row in np.flatnonzero((nodes.kind == NodeKind.SEND) | (nodes.kind == NodeKind.RECV)).tolist():
            sending = nodes.kind[row] == NodeKind.SEND
            peer, tag, size = int(nodes.peer[row]), max(0, int(nodes.tag[row])), int(nodes.size_bytes[row])
            key = (rank, peer, tag, size) if sending else (peer, rank, tag, size)
            (sends if sending else receives).setdefault(key, []).append((rank, row))
    for key in sorted(sends.keys() | receives.keys()):
        yield from _unmatched(raws, key, sends.get(key, []), receives.get(key, []))


def _unmatched(
    raws: dict[int, RawTrace], key: MessageKey, sends: list[tuple[int, int]], receives: list[tuple[int, int]]
) -> Found:
    source, destination, tag, size = key
    which = f"{size} bytes from rank {source} to rank {destination} under tag {tag}"
    for extra, rule, what in (
        (sends[len(receives) :], "send-without-receive", f"{which}: nobody receives it"),
        (receives[len(sends) :], "receive-without-send", f"{which}: nobody sends it"),
    ):
        for rank, row in extra:
            yield _at(raws[rank], row, "error", rule, what, "give its partner the same tag, size and ranks.")


def _collective_order(raws: dict[int, RawTrace], groups: dict[str, Group], count: int) -> Found:
    """Members of a group must issue the same collectives in the same order (here: by id)."""
    issued: dict[str, dict[int, list[tuple[int, int, int]]]] = {}
    for rank, raw in raws.items():
        nodes = raw.nodes
        for row in np.argsort(nodes.node_id, kind="stable").tolist():
            if nodes.kind[row] == NodeKind.COLLECTIVE and nodes.comm_type[row] != NONE:
                name = "" if nodes.group[row] == "0" else str(nodes.group[row])
                what = (int(nodes.comm_type[row]), int(nodes.size_bytes[row]), row)
                issued.setdefault(name, {}).setdefault(rank, []).append(what)
    for name, by_rank in sorted(issued.items()):
        members = groups[name].ranks if name in groups else tuple(range(count))
        yield from _compare(raws, name, [rank for rank in members if rank in raws], by_rank)


def _compare(
    raws: dict[int, RawTrace], name: str, members: list[int], by_rank: dict[int, list[tuple[int, int, int]]]
) -> Found:
    if not members:
        return
    first = members[0]
    reference = by_rank.get(first, [])
    where = f"group {name}" if name else "all ranks"
    for rank in members[1:]:
        own = by_rank.get(rank, [])
        at = next((k for k, (a, b) in enumerate(zip(reference, own, strict=False)) if a[:2] != b[:2]), None)
        if at is None and len(own) == len(reference):
            continue
        at = min(len(own), len(reference)) if at is None else at
        what = f"collective {at} of {where}: rank {first} issues {_named(reference, at)}, rank {rank} {_named(own, at)}"
        fix = "members that issue different collectives wait for each other for ever."
        if at < len(own):
            yield _at(raws[rank], own[at][2], "error", "collective-mismatch", what, fix)
        else:
            yield _finding("error", "collective-mismatch", raws[rank].source, None, "", what, fix)


def _named(issued: list[tuple[int, int, int]], at: int) -> str:
    return f"{CollectiveKind(issued[at][0]).name} of {issued[at][1]} bytes" if at < len(issued) else "none"


def fix(raw: RawTrace) -> tuple[RawTrace, list[str]]:
    """A repaired copy, and what was changed: only what changes no meaning.

    Dangling and self control dependencies are dropped; METADATA nodes and CPU-side wrappers of collectives are taken
    out, their children then wait for what they waited for.
    """
    nodes, ids = raw.nodes, raw.nodes.node_id.tolist()
    gone = [row for row in range(len(nodes)) if _removable(nodes, row)]
    parents = _parents(raw, set(ids))
    dropped = len(raw.ctrl_ids) - sum(len(ctrl) for _, ctrl in parents.values())
    changes = [f"{raw.source}: dropped {dropped} dangling or self ctrl dependencies"] if dropped else []
    changes += [f"{raw.source}: took out node {ids[row]} ({nodes.name[row]})" for row in gone]
    keep = [row for row in range(len(nodes)) if row not in set(gone)]
    removed = {ids[row] for row in gone}
    data = [sorted(_bridge(parents, ids[row], 0, removed)) for row in keep]
    ctrl = [sorted(_bridge(parents, ids[row], 1, removed)) for row in keep]
    data_offsets, data_ids = csr_from_lists(data)
    ctrl_offsets, ctrl_ids = csr_from_lists(ctrl)
    kept = nodes.take(np.array(keep, np.int64))
    repaired = replace(
        raw,
        nodes=kept,
        data_offsets=data_offsets,
        data_ids=data_ids.astype(np.uint64),
        ctrl_offsets=ctrl_offsets,
        ctrl_ids=ctrl_ids.astype(np.uint64),
        own_rank=raw.own_rank[keep],
        frames=raw.frames[keep],
        offsets=raw.offsets[keep],
    )
    return repaired, changes


def _removable(nodes: Nodes, row: int) -> bool:
    if nodes.kind[row] == NodeKind.METADATA:
        return True
    wrapper = nodes.comm_type[row] == NONE or nodes.size_bytes[row] <= 0
    return bool(nodes.kind[row] == NodeKind.COLLECTIVE and nodes.is_cpu[row] and wrapper)


def _parents(raw: RawTrace, known: set[int]) -> dict[int, tuple[list[int], list[int]]]:
    """Id -> (data, ctrl) dependencies; ctrl ones on absent nodes or on the node itself are left out."""
    ids = raw.nodes.node_id.tolist()
    parents: dict[int, tuple[list[int], list[int]]] = {node: ([], []) for node in ids}
    for kind, row, node in _edges(raw):
        if kind == "data":
            parents[ids[row]][0].append(node)
        elif node in known and node != ids[row]:
            parents[ids[row]][1].append(node)
    return parents


def _bridge(parents: dict[int, tuple[list[int], list[int]]], node: int, which: int, removed: set[int]) -> set[int]:
    """Dependencies of a kind, with removed nodes replaced by what those depended on."""
    found, seen, queue = set(), set(), list(parents[node][which])
    while queue:
        parent = queue.pop()
        if parent in removed and parent not in seen:
            seen.add(parent)
            queue += [*parents[parent][0], *parents[parent][1]]
        elif parent not in removed and parent != node:
            found.add(parent)
    return found


def repair_files(prefix: Path | str, folder: Path) -> list[str]:
    """Write repaired copies of PREFIX.RANK.et into a folder; what was changed.

    Raises:
        InputError: a file that cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    changes = []
    for path in find_traces(prefix).values():
        repaired, made = fix(read_raw(path))
        rewrite(folder / path.name.removesuffix(".gz"), repaired)
        changes += made
    return changes or ["nothing to repair; copies were written"]
