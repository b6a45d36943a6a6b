"""Checks that need one trace only: its graph, and what each node says by itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from genie.core.workload import NONE, CollectiveKind, Group, NodeKind, Nodes
from genie.formats.chakra import RawTrace
from genie.formats.findings import ERROR, WARNING, Finding, Found, about_node
from genie.formats.graph import Graph, find_cycle

FIRST_COLLECTIVE_TAG: Final = 500_000_000
"""ASTRA-sim gives tags from here on to collectives; a send's tag is taken modulo this."""

_BY_RANKS: Final = {
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.REDUCE_SCATTER_BLOCK,
}
"""Collectives whose buffer is cut into one piece a rank."""

_TREES: Final = {CollectiveKind.REDUCE, CollectiveKind.BARRIER, CollectiveKind.BROADCAST}
_NO_RUN: Final = {CollectiveKind.GATHER, CollectiveKind.SCATTER}
_SHOWN_NODES: Final = 12


def is_wrapper(nodes: Nodes) -> Any:
    """Mask of CPU-side collectives without type or size: the call, not the transfer, which has a node of its own."""
    bare = (nodes.comm_type == NONE) | (nodes.size_bytes <= 0)
    return (nodes.kind == NodeKind.COLLECTIVE) & nodes.is_cpu & bare


def check_graph(raw: RawTrace, graph: Graph) -> Found:
    """Ids and dependencies."""
    for row in graph.repeated.tolist():
        what = f"the id {raw.nodes.node_id[row]} occurs before in the file"
        yield about_node(raw, row, ERROR, "duplicate-id", what, "number the nodes uniquely (ASTRA-sim merges them).")
    for bad in graph.bad:
        kind = "ctrl" if bad.control else "data"
        fix = f"--fix drops {'self' if bad.itself else 'dangling'} ctrl dependencies."
        if bad.itself:
            rule, what = "self-dependency", f"a {kind} dependency on itself"
        else:
            rule, what = "dangling-dependency", f"a {kind} dependency on node {bad.node_id}, which is not in the file"
        yield about_node(raw, bad.row, ERROR, rule, what, fix if bad.control else "convert the trace again.")
    cycle = find_cycle(graph)
    if cycle:
        ids = raw.nodes.node_id[cycle].tolist()
        more = f" (and {len(cycle) - _SHOWN_NODES} more)" if len(cycle) > _SHOWN_NODES else ""
        named = " -> ".join(map(str, [*ids[:_SHOWN_NODES], ids[0]]))
        what = f"these nodes wait for each other for ever: {named}{more}"
        yield about_node(
            raw, cycle[0], ERROR, "cycle", what, "drop one of these (--fix drops ctrl ones that contradict data)."
        )


class NodeCheck:
    """Checks the nodes of one rank.

    Args:
        raw: the trace.
        rank: whose it is.
        groups: name -> group.
        count: ranks of the job.
    """

    def __init__(self, raw: RawTrace, rank: int, groups: Mapping[str, Group], count: int) -> None:
        self.raw, self.rank, self.groups, self.count = raw, rank, groups, count

    def findings(self) -> Found:
        """All of them."""
        kinds = self.raw.nodes.kind
        wrappers = is_wrapper(self.raw.nodes)
        for row in np.flatnonzero(wrappers).tolist():
            what = "the CPU side of a collective, without type or size"
            yield self._at(row, ERROR, "cpu-wrapper", what, "--fix takes these out; the GPU side stays.")
        for row in np.flatnonzero((kinds != NodeKind.COMP) & ~wrappers).tolist():
            yield from self._node(row)

    def _at(self, row: int, severity: str, rule: str, what: str, fix: str) -> Finding:
        return about_node(self.raw, row, severity, rule, what, fix)

    def _node(self, row: int) -> Found:
        kind = NodeKind(self.raw.nodes.kind[row])
        if kind is NodeKind.METADATA:
            yield self._at(
                row, ERROR, "metadata-node", "a METADATA node (ASTRA-sim aborts on it)", "--fix takes it out."
            )
        elif kind is NodeKind.INVALID:
            what = "a node of type INVALID: in ASTRA-sim its children wait for some other node to end"
            yield self._at(row, WARNING, "invalid-node", what, "take it out.")
        elif kind in {NodeKind.SEND, NodeKind.RECV}:
            yield from self._message(row, kind)
        elif kind in {NodeKind.MEM_LOAD, NodeKind.MEM_STORE}:
            if self.raw.nodes.tensor_bytes[row] == NONE:
                yield self._at(row, ERROR, "no-size", "a memory access without tensor_size", "add tensor_size.")
        else:
            yield from self._collective(row)

    def _message(self, row: int, kind: NodeKind) -> Found:
        nodes = self.raw.nodes
        peer, own, tag = int(nodes.peer[row]), int(self.raw.own_rank[row]), int(nodes.tag[row])
        far, near = ("comm_dst", "comm_src") if kind is NodeKind.SEND else ("comm_src", "comm_dst")
        if peer == NONE:
            yield self._at(row, ERROR, "no-peer", f"a {kind.name} without {far}", f"add {far}, a global rank.")
        elif peer == self.rank:
            yield self._at(row, ERROR, "self-message", f"{far} is the rank's own", f"{far} is a global rank.")
        elif peer >= self.count:
            what = f"{far} is rank {peer}, the job has ranks 0 to {self.count - 1}"
            yield self._at(row, ERROR, "peer-out-of-range", what, "correct it, or add the missing traces.")
        if own not in {NONE, self.rank}:
            what = f"{near} is rank {own}, the file is rank {self.rank}'s"
            yield self._at(row, WARNING, "other-rank", what, "check that the files are numbered by rank.")
        if tag >= FIRST_COLLECTIVE_TAG:
            what = f"comm_tag {tag} is in the range of collectives; it is taken modulo {FIRST_COLLECTIVE_TAG}"
            yield self._at(row, WARNING, "large-tag", what, f"use tags below {FIRST_COLLECTIVE_TAG}.")
        yield from self._size(row)

    def _size(self, row: int) -> Found:
        size = int(self.raw.nodes.size_bytes[row])
        if size <= 0:
            what = "comm_size is missing" if size == NONE else "comm_size is 0"
            yield self._at(row, ERROR, "no-size", what, "give the node a comm_size above zero.")

    def _collective(self, row: int) -> Found:
        nodes = self.raw.nodes
        kind = int(nodes.comm_type[row])
        if kind == NONE:
            what = "a collective without comm_type"
            yield self._at(row, ERROR, "no-comm-type", what, "convert the trace together with its device part.")
        elif kind in _NO_RUN:
            what = f"{CollectiveKind(kind).name} cannot be run"
            yield self._at(row, ERROR, "unsupported", what, "write it as sends and receives.")
        elif kind in _TREES:
            what = f"ASTRA-sim has no model of {CollectiveKind(kind).name}"
            yield self._at(row, WARNING, "not-in-astra-sim", what, "--extended sends it as a tree.")
        if kind != CollectiveKind.BARRIER:
            yield from self._size(row)
        yield from self._membership(row, kind)

    def _membership(self, row: int, kind: int) -> Found:
        name, size = str(self.raw.nodes.group[row]), int(self.raw.nodes.size_bytes[row])
        members: Sequence[int] = range(min(self.count, sys.maxsize))
        if name not in {"", "0"}:
            if name not in self.groups:
                what = f"the group {name!r} is in no comm-group file"
                yield self._at(row, ERROR, "unknown-group", what, "pass the file: --comm-groups.")
                return
            members = self.groups[name].ranks
        if self.rank not in members:
            yield self._not_a_member(row, self.groups[name])
        elif len(members) == 1:
            what = "a collective of one rank (ASTRA-sim never finishes it)"
            yield self._at(row, WARNING, "group-of-one", what, "--extended lets it finish at once.")
        elif size > 0 and size % len(members) and kind in _BY_RANKS:
            what = f"{size} bytes do not divide by the {len(members)} members; the remainder is not sent"
            yield self._at(row, WARNING, "indivisible", what, f"use a multiple of {len(members)}.")

    def _not_a_member(self, row: int, group: Group) -> Finding:
        members = ", ".join(map(str, group.ranks[:_SHOWN_NODES]))
        what = f"rank {self.rank} issues a collective of group {group.name}, whose ranks are {members}"
        fix = "correct the comm-group file, or the node's pg_name."
        if sorted(group.ranks) == list(range(len(group.ranks))) and self.rank >= len(group.ranks):
            fix = "the file seems to number ranks within each group; it needs global ranks."
        return self._at(row, ERROR, "not-a-member", what, fix)
