"""Public traces, unchanged, replayed on the embedded fabric: `make bench-real`.

The shared trace collection must lie beside the checkout. A row holds when the replay ended well and so did its own
checks: bytes and messages equal the schedule's per rank, peer and group, nothing was early, nothing was lost.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from report import ROOT, Row, write

TRACES = ROOT.parent / "shared/traces"
EXAMPLES = TRACES / "astra-sim-examples/examples"
STG = ("gpt_tp2_dp2", "llama_dp2_tp2_pp2", "llama_dp4", "llama_dp4_fsdp", "llama_pp4", "llama_tp2_v001", "llama_tp4")
LARGE = {"gpt_tp2_dp2": 0.1, "llama_dp2_tp2_pp2": 0.1}


@dataclass(frozen=True)
class Case:
    """A trace set and what it is replayed with."""

    name: str
    prefix: Path
    system: Path
    ranks: int
    others: tuple[str, ...] = ()


def cases() -> list[Case]:
    micro = EXAMPLES / "workload/microbenchmarks"
    ring = ROOT / "astra_configs/system/ring.json"
    native = EXAMPLES / "system/native_collectives/Ring_4chunks.json"
    found = [
        Case(f"{kind}, {ranks} ranks", micro / f"{kind}/{ranks}npus_1MB/{kind}", native, ranks)
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
        for ranks in (4, 8, 16)
    ]
    branch = TRACES / "genie-branch"
    found.append(Case("genie-branch all-gather", branch / "workload/ALL_GATHER", branch / "system.json", 4))
    custom = TRACES / "jinsun-example-scripts/custom_collective/sample/allreduce_ring_8ranks"
    found.append(Case("custom collective", custom, ring, 8))
    for name in STG:
        prefix, scale = TRACES / "gen-stg" / name / "workload", LARGE.get(name, 1.0)
        groups = ("--comm-groups", f"{prefix}.json", *(("--scale-bytes", str(scale)) if scale != 1 else ()))
        scaled = f", bytes x {scale:g}" if scale != 1 else ""
        found.append(Case(f"gen-stg {name}{scaled}", prefix, ring, 8, groups))
    return found


def replay(case: Case, out: str) -> Row:
    testbed = ROOT / f"testbed/leaf-spine-{16 if case.ranks > 8 else 8}.yml"
    command = [sys.executable, "-m", "genie", "replay", "--json", "--repeats", "1", "--out", out]
    command += ["--workload", str(case.prefix), "--system", str(case.system), "--testbed", str(testbed), *case.others]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{case.name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return Row(case.name, float("nan"), "us", "checks good", holds=False)
    found = json.loads(done.stdout)
    good = bool(found["checks"]) and all(check["ok"] for check in found["checks"] if check["hard"])
    print(case.name, found["iteration_ns"] / 1e3, "us", file=sys.stderr, flush=True)
    return Row(case.name, found["iteration_ns"] / 1e3, "us", "checks good", good)


def main() -> None:
    if not TRACES.is_dir():
        sys.exit(f"needs the shared trace collection at {TRACES}")
    with tempfile.TemporaryDirectory() as out:
        write("real", [replay(case, out) for case in cases()])


if __name__ == "__main__":
    main()
