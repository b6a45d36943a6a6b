"""What a check of traces finds: one value a problem, and where it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from genie.formats.chakra import RawTrace

ERROR: Final = "error"
"""Would abort, hang or falsify a run."""

WARNING: Final = "warning"
"""Deserves a look."""

MAX_EACH: Final = 20
"""Findings of one rule in one file that are listed; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem.

    Attributes:
        severity: ERROR or WARNING.
        rule: a short name for the kind of problem.
        file: the trace; "" when it concerns the workload as a whole.
        node_id: the node's id, None when it concerns the file as a whole.
        name: the node's name.
        what: the problem, in one sentence.
        fix: the remedy.
    """

    severity: str
    rule: str
    file: str
    node_id: int | None
    name: str
    what: str
    fix: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON and tables."""
        return asdict(self)


Found = Iterator[Finding]


def about_node(raw: RawTrace, row: int, severity: str, rule: str, what: str, fix: str) -> Finding:
    """A finding on one node of a trace."""
    return Finding(severity, rule, raw.source, int(raw.nodes.node_id[row]), str(raw.nodes.name[row]), what, fix)


def about_file(file: str, severity: str, rule: str, what: str, fix: str) -> Finding:
    """A finding on a file, or on the workload ("")."""
    return Finding(severity, rule, file, None, "", what, fix)


def limited(findings: Iterable[Finding]) -> list[Finding]:
    """The first MAX_EACH of every rule and file, and one more that counts the others."""
    kept: list[Finding] = []
    counts = Counter[tuple[str, str]]()
    last: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        key = (finding.rule, finding.file)
        counts[key] += 1
        last[key] = finding
        if counts[key] <= MAX_EACH:
            kept.append(finding)
    rest = {key: count - MAX_EACH for key, count in counts.items() if count > MAX_EACH}
    return kept + [
        replace(last[key], node_id=None, name="", what=f"and {count} more like these") for key, count in rest.items()
    ]


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, then by file and node."""
    return sorted(findings, key=lambda f: (f.severity != ERROR, f.file, f.node_id is None, f.node_id or 0, f.rule))
