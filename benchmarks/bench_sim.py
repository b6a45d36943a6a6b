"""What does a simulation cost? Time and peak memory of whole `genie simulate` commands, against ASTRA-sim's own.

Ring all-reduces of 1 GiB (Ring topology, 50 GB/s, 500 ns) over ranks, chunks and both network models; an all-to-all,
three dimensions, a pipeline, and jobs in which every rank has another compute time; then how cost grows with ranks,
chunks and nodes. Times are CPU seconds, start of Python and run directory included, as ASTRA-sim's are; the figures of
ASTRA-sim (commit 518bd51) were measured on another machine of the same class.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from report import ROOT, Row, at_most, write
from rich.console import Console
from rich.table import Table

from genie.core.workload import CollectiveKind, Workload
from genie.formats.runfile import open_run
from genie.formats.workload import save_workload
from genie.patterns import TraceBuilder, as_workload, collective, pipeline

GIB = 1 << 30
ASTRA_SIM = {
    (64, 1, 1): (0.02, 0.02),
    (64, 16, 1): (0.09, 0.12),
    (64, 16, 16): (0.12, 0.14),
    (256, 1, 1): (0.15, 0.19),
    (256, 16, 1): (1.6, 2.1),
    (256, 16, 16): (2.6, 3.5),
    (1024, 1, 1): (2.7, 3.8),
    (1024, 16, 1): (38.0, 47.0),
    (1024, 16, 16): (100.0, 115.0),
    (4096, 1, 1): (77.0, 120.0),
}
"""(ranks, chunks, active chunks) -> CPU seconds of ASTRA-sim's unaware and aware front ends."""

MODELS = ("unaware", "aware")
LIMITS_S = {(1024, 16, 16): 5.0, (4096, 1, 1): 4.0}
"""Of the symmetric cases."""


@dataclass(frozen=True)
class Case:
    """One command."""

    name: str
    workload: str
    topology: tuple[str, ...]
    sizes: tuple[int, ...]
    model: str = "unaware"
    chunks: int = 1
    active: int = 1
    algorithm: str = "ring"
    astra_s: float | None = None
    limit_s: float | None = None

    @property
    def ranks(self) -> int:
        """How many."""
        return int(np.prod(self.sizes))


@dataclass(frozen=True)
class Cost:
    """What it took."""

    cpu_s: float
    wall_s: float
    peak_mib: float
    iteration_ns: int
    path: str


def uneven(ranks: int, layers: int = 1) -> Workload:
    """Every rank computes for another time before each all-reduce."""
    traces = [TraceBuilder(rank) for rank in range(ranks)]
    for trace in traces:
        last: list[int] = []
        for layer in range(layers):
            duration_us = 50 + (trace.rank * 7919 + layer * 31) % (2 * ranks)
            compute = trace.compute(f"compute {layer}", duration_us, last)
            last = [trace.collective(f"all-reduce {layer}", CollectiveKind.ALL_REDUCE, GIB // layers, [compute])]
    return as_workload("uneven", traces)


def chain(ranks: int, nodes: int) -> Workload:
    """Small all-reduces, one after another."""
    traces = [TraceBuilder(rank) for rank in range(ranks)]
    for trace in traces:
        last: list[int] = []
        for node in range(nodes):
            last = [trace.collective(f"all-reduce {node}", CollectiveKind.ALL_REDUCE, 1 << 20, last)]
    return as_workload("chain", traces)


WORKLOADS = {
    "all-reduce": lambda ranks: collective(CollectiveKind.ALL_REDUCE, ranks, GIB),
    "all-to-all": lambda ranks: collective(CollectiveKind.ALL_TO_ALL, ranks, GIB),
    "pipeline": lambda ranks: pipeline(ranks, 1 << 24, microbatches=64, replicas=16),
    "uneven": uneven,
    "uneven-4": lambda ranks: uneven(ranks, 4),
    **{f"chain-{nodes}": lambda ranks, nodes=nodes: chain(ranks, nodes) for nodes in (16, 64, 256, 1024)},
}


def cases() -> Iterator[Case]:
    for ranks in (64, 256, 1024, 4096):
        for chunks, active in ((1, 1), (16, 1), (16, 16)):
            for at, model in enumerate(MODELS):
                astra = ASTRA_SIM.get((ranks, chunks, active), (None, None))[at]
                name = f"ring all-reduce, {ranks} ranks, {chunks} chunks ({active} active), {model}"
                limit_s = LIMITS_S.get((ranks, chunks, active))
                yield Case(name, "all-reduce", ("Ring",), (ranks,), model, chunks, active, "ring", astra, limit_s)
    for model in MODELS:
        yield Case(
            f"direct all-to-all, Switch of 1024, {model}", "all-to-all", ("Switch",), (1024,), model, 1, 1, "direct"
        )
    yield Case(
        "all-reduce on 8x8x16, 16 chunks", "all-reduce", ("Ring", "Ring", "Switch"), (8, 8, 16), "unaware", 16, 4
    )
    for model in MODELS:
        yield Case(f"1F1B pipeline, 64 stages x 16, 64 microbatches, {model}", "pipeline", ("Switch",), (1024,), model)
    for at, model in enumerate(MODELS):
        for ranks, chunks in ((256, 16), (1024, 1)):
            astra = ASTRA_SIM[ranks, chunks, chunks][at]
            name = (
                f"every rank computes for another time, then ring all-reduce, {ranks} ranks, {chunks} chunks, {model}"
            )
            yield Case(name, "uneven", ("Ring",), (ranks,), model, chunks, chunks, "ring", astra, 2 * astra)


DIFFERENT = "all different: "


def growth() -> dict[str, list[tuple[int, Case]]]:
    """Series of one quantity: (its value, the case)."""

    def ring(ranks: int, chunks: int, workload: str = "all-reduce") -> Case:
        return Case(f"{workload} {ranks} {chunks}", workload, ("Ring",), (ranks,), "aware", chunks, chunks)

    return {
        "all alike: ranks (1 chunk)": [(ranks, ring(ranks, 1)) for ranks in (512, 1024, 2048, 4096)],
        DIFFERENT + "ranks (1 chunk)": [(ranks, ring(ranks, 1, "uneven")) for ranks in (1024, 1448, 2048)],
        "all alike: chunks (512 ranks)": [(chunks, ring(512, chunks)) for chunks in (4, 16, 64)],
        DIFFERENT + "chunks (256 ranks)": [(chunks, ring(256, chunks, "uneven")) for chunks in (16, 32, 64)],
        "all alike: nodes a rank (64 ranks)": [(nodes, ring(64, 1, f"chain-{nodes}")) for nodes in (16, 64, 256, 1024)],
    }


def measure(case: Case, folder: Path) -> Cost:
    """Run the command."""
    prefix = folder / f"{case.workload}-{case.ranks}" / "t"
    if not prefix.parent.is_dir():
        # in a process of its own: a command's peak memory would never be less than this one's
        subprocess.run([sys.executable, __file__, case.workload, str(case.ranks), str(prefix)], check=True)
    system, network = folder / "system.json", folder / "network.yml"
    names = {f"{kind}-implementation": [case.algorithm] * len(case.sizes) for kind in KINDS}
    system.write_text(
        json.dumps(
            SYSTEM
            | names
            | {
                "preferred-dataset-splits": case.chunks,
                "active-chunks-per-dimension": case.active,
            }
        )
    )
    count = len(case.sizes)
    network.write_text(
        f"topology: [{', '.join(case.topology)}]\nnpus_count: {list(case.sizes)}\n"
        f"bandwidth: {[50.0] * count}\nlatency: {[500.0] * count}\n"
    )
    command = [
        sys.executable, "-m", "genie", "simulate", "--workload", str(prefix), "--system", str(system),
        "--network", str(network), "--model", case.model, "--json", "--out", str(folder / "runs"),
    ]  # fmt: skip
    if (prefix.parent / "t.json").is_file():
        command += ["--comm-groups", str(prefix.parent / "t.json")]
    return _run(command, folder)


SYSTEM = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 10,
    "collective-optimization": "localBWAware",
    "local-mem-bw": 1600,
}
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


def _run(command: list[str], folder: Path) -> Cost:
    with (folder / "out.json").open("w") as out:
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=out)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    found = json.loads((folder / "out.json").read_text())
    notes = open_run(found["run"]).meta["notes"]
    path = next((note.split(":")[1].split("(")[0].strip() for note in notes if note.startswith("path:")), "")
    return Cost(_cpu(used), wall_s, used.ru_maxrss / 1024, found["iteration_ns"], path)


def _cpu(used: resource.struct_rusage) -> float:
    return used.ru_utime + used.ru_stime


def table(costs: list[tuple[Case, Cost]], rows: list[Row]) -> None:
    shown = Table("case", "path", "CPU s", "wall s", "MiB", "ASTRA-sim s", "ratio", "cycles", title="genie simulate")
    for case, cost in costs:
        ratio = f"{case.astra_s / cost.cpu_s:,.1f}" if case.astra_s else ""
        astra = f"{case.astra_s:g}" if case.astra_s else ""
        figures = f"{cost.cpu_s:.2f}", f"{cost.wall_s:.2f}", f"{cost.peak_mib:.0f}"
        shown.add_row(case.name, cost.path, *figures, astra, ratio, f"{cost.iteration_ns:,}")
        if case.limit_s is None:
            rows.append(Row(f"{case.name}: CPU", round(cost.cpu_s, 3), "s"))
        else:
            rows.append(at_most(f"{case.name}: CPU", cost.cpu_s, case.limit_s, "s"))
        limit_mib = 1024 if case.ranks == 4096 and case.chunks == 1 else None
        peak = f"{case.name}: peak memory"
        rows.append(at_most(peak, cost.peak_mib, limit_mib, "MiB") if limit_mib else Row(peak, cost.peak_mib, "MiB"))
        rows.append(Row(f"{case.name}: finish", cost.iteration_ns, "cycles"))
        if case.astra_s and case.workload == "all-reduce" and case.astra_s >= 20:
            faster = case.astra_s / cost.cpu_s
            rows.append(Row(f"{case.name}: times as fast as ASTRA-sim", round(faster, 1), "", ">= 20", faster >= 20))
    Console(width=150).print(shown)


def exponents(folder: Path, rows: list[Row]) -> None:
    """Slopes of log cost over log quantity. What a command costs that simulates next to nothing is taken off first."""
    alike = measure(Case("base", "all-reduce", ("Ring",), (64,)), folder)
    os.environ["GENIE_SIMULATE_PATH"] = "compiled"
    different = measure(Case("base", "uneven", ("Ring",), (64,)), folder)
    del os.environ["GENIE_SIMULATE_PATH"]
    rows.append(Row("a command that simulates next to nothing: CPU", alike.cpu_s, "s"))
    rows.append(Row("the same on the compiled path: CPU", different.cpu_s, "s"))
    shown = Table("cost against", "values", "CPU s", "MiB", "exponent of time", "of memory", title="growth")
    for name, series in growth().items():
        base = different if name.startswith(DIFFERENT) else alike
        costs = [measure(case, folder) for _, case in series]
        values = np.log([value for value, _ in series])
        spent = np.array([max(cost.cpu_s - base.cpu_s, 0.01) for cost in costs])
        taken = np.array([max(cost.peak_mib - base.peak_mib, 1.0) for cost in costs])
        slope_s, slope_mib = (float(np.polyfit(values, np.log(column), 1)[0]) for column in (spent, taken))
        shown.add_row(
            name,
            " ".join(str(value) for value, _ in series),
            " ".join(f"{cost.cpu_s:.2f}" for cost in costs),
            " ".join(f"{cost.peak_mib:.0f}" for cost in costs),
            f"{slope_s:.2f}",
            f"{slope_mib:.2f}",
        )
        rows.append(Row(f"time against {name}: exponent", round(slope_s, 2), ""))
        rows.append(Row(f"memory against {name}: exponent", round(slope_mib, 2), ""))
    Console(width=150).print(shown)


def main() -> None:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=ROOT / "build" if (ROOT / "build").is_dir() else None) as name:
        folder = Path(name)
        begin = time.monotonic()
        compiling = measure(Case("", "uneven", ("Ring",), (512,)), folder)
        rows.append(Row("the first compiled run on this machine (0.5 million messages): CPU", compiling.cpu_s, "s"))
        costs = []
        for case in cases():
            costs.append((case, measure(case, folder)))
            print(f"{case.name}: {costs[-1][1].cpu_s:.2f} s", file=sys.stderr, flush=True)
        table(costs, rows)
        exponents(folder, rows)
        rows.append(at_most("the whole benchmark", time.monotonic() - begin, 300, "s"))
    write("sim", rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        save_workload(sys.argv[3], WORKLOADS[sys.argv[1]](int(sys.argv[2])))
    else:
        main()
