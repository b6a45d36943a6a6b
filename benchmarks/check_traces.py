"""What `genie trace check` finds in every trace set under a folder, as the table of docs/trace-check.md.

Usage: python benchmarks/check_traces.py FOLDER
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

from genie.errors import InputError
from genie.formats.check import check_files
from genie.formats.findings import ERROR, WARNING, Finding
from genie.formats.workload import TRACE_NAME, find_traces


def prefixes(folder: Path) -> list[Path]:
    matches = ((path, TRACE_NAME.match(path.name)) for path in folder.rglob("*.et*"))
    return sorted({path.parent / match["prefix"] for path, match in matches if match})


def named(findings: list[Finding], severity: str) -> str:
    counts = Counter(finding.rule for finding in findings if finding.severity == severity)
    return ", ".join(f"{rule} ({count})" for rule, count in sorted(counts.items())) or "none"


def outcome(prefix: Path) -> tuple[str, str]:
    try:
        findings = check_files(prefix)
    except InputError as error:
        return f"refused: {error.what}", ""
    return named(findings, ERROR), named(findings, WARNING)


def main() -> None:
    folder = Path(sys.argv[1])
    rows: dict[tuple[str, str, str], list[Path]] = defaultdict(list)
    for prefix in prefixes(folder):
        rows[(str(prefix.parent.relative_to(folder)), *outcome(prefix))].append(prefix)
    print("| set | files | errors | warnings |\n|---|---|---|---|")
    for (where, errors, warnings), same in rows.items():
        name = same[0].name if len(same) == 1 else f"({len(same)} prefixes)"
        files = sum(len(find_traces(prefix)) for prefix in same)
        print(f"| {where}/{name} | {files} | {errors} | {warnings} |")


if __name__ == "__main__":
    main()
