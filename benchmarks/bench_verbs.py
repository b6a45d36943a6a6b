"""What the verbs transport adds to verbs: goodput against a bare pyverbs loop, both in one guest of the rdma-lab.

Soft-RoCE in a guest with one processor is slow; only the ratio says something about the transport.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path

from report import ROOT, Row, write

from genie.testbed.rdma_vm import GuestOptions, run_in_guest
from genie.units import bps_to_gigabits

INSIDE = Path(__file__).with_name("verbs_in_guest.py")
TARGET = 0.9


def measure() -> dict[str, list[float]]:
    """Figures of every round, from inside the guest."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        options = GuestOptions(memory_bytes=1 << 30, timeout_s=900.0, folder=ROOT)
        code = run_in_guest([sys.executable, str(INSIDE), str(file)], Path(folder), options)
        if code:
            sys.exit(code)
        return json.loads(file.read_text())


def main() -> None:
    found = measure()
    ratios = {
        name: statistics.median(ours / bare for ours, bare in zip(found[name], found["bare"], strict=True))
        for name in ("write", "send")
    }
    rows = [
        Row("bare pyverbs loop, RDMA WRITE of 1 MiB, 16 in flight", bps_to_gigabits(_median(found["bare"])), "Gb/s")
    ]
    for name, ratio in ratios.items():
        rows.append(Row(f"transport, {name}: 32 MiB", bps_to_gigabits(_median(found[name])), "Gb/s"))
        target = f">= {TARGET}" if name == "write" else ""
        rows.append(
            Row(f"transport, {name}: share of the bare loop", ratio, "", target, ratio >= TARGET if target else None)
        )
    rows.append(Row("64 B: post to the peer's acknowledgement", _median(found["small"]), "us"))
    write("verbs", rows)


def _median(values: list[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    main()
