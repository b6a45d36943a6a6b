"""The same experiment with ranks that mpirun starts and with forked ones, taking turns."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from report import ROOT, Row, at_most, write

from genie.units import ns_to_us

TURNS = 3


def iteration_ns(launcher: str, folder: str) -> int:
    experiment = ROOT / "examples/quickstart/experiment.yaml"
    command = [sys.executable, "-m", "genie", "replay", str(experiment), "--launcher", launcher, "--json"]
    done = subprocess.run([*command, "--out", folder], capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout)["iteration_ns"])


def main() -> None:
    found: dict[str, list[int]] = {"local": [], "mpi": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(TURNS):
            for launcher, times in found.items():
                times.append(iteration_ns(launcher, str(Path(folder) / launcher)))
    rows = [
        Row(f"quickstart, launcher {launcher}: iteration", ns_to_us(statistics.median(times)), "us")
        for launcher, times in found.items()
    ]
    ratios = [mpi / local for local, mpi in zip(found["local"], found["mpi"], strict=True)]
    off = max(abs(ratio - 1) for ratio in ratios) * 100
    write("mpi", [*rows, at_most(f"the two apart: worst of {TURNS} turns", off, 2, "%")])


if __name__ == "__main__":
    main()
