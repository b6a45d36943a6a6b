"""Verdicts that can be trusted: planted faults named first, A/A pairs alike, 3 % found; a million flows in time.

Parts by name (`python benchmarks/bench_results.py blame compare size`, of blame also the faults: slow-link ...), all of
them by default. Needs root; the lossy link needs nft besides.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from report import Row, at_most, write

from genie.core.experiment import ReplayRule
from genie.core.testbed import Cable, LinkSpec, Testbed, leaf_spine
from genie.core.timeline import Messages, Operators, Ranks, Timeline
from genie.core.workload import CollectiveKind, NodeKind, Workload
from genie.formats.runfile import RunWriter, open_run
from genie.hosts import Lab
from genie.lower import lower
from genie.patterns import generate
from genie.report.blame import blame
from genie.report.comparison import Outcome, compare
from genie.report.html import render
from genie.report.notebook import open_results
from genie.report.subject import View
from genie.stages import run_replay
from genie.testbed.addressing import ports
from genie.testbed.namespaces import inside
from genie.validate import RING

TRIALS = int(os.environ.get("TRIALS", "20"))
PAIRS = int(os.environ.get("PAIRS", "40"))
REPEATS = 8
FAST = LinkSpec(200_000_000_000, 1_000, 4 << 20)


def bed_of(seed: int, leaves: int = 2, spines: int = 4) -> Testbed:
    """8 hosts; as many uplinks as hosts at a leaf: what is slow is a fault or a collision."""
    nodes, cables = leaf_spine(8, leaves, spines, FAST, FAST, seed)
    hosts = tuple(f"h{at}" for at in range(8))
    return Testbed("bench", nodes, cables, hosts, dilation=1000, mtu=9000)


def step(slow: int = -1) -> Workload:
    """A data-parallel step on 8 ranks; of rank `slow` the computes take half as long again."""
    made = generate("data_parallel", 8, 4 << 20, layers=2, compute_us=150)
    traces = [
        replace(trace, nodes=replace(trace.nodes, duration_ns=trace.nodes.duration_ns * 3 // 2))
        if trace.rank == slow
        else trace
        for trace in made.traces
    ]
    return replace(made, traces=tuple(traces))


def replayed(
    folder: Path,
    real: Testbed,
    nominal: Testbed,
    workload: Workload,
    repeats: int,
    prepare: Callable[[Lab], None] = lambda _: None,
) -> Path:
    """A replay on `real`, which its run believes to be `nominal`."""
    rule = ReplayRule(1, repeats)
    run = RunWriter.create(folder, "replay", nominal.name)
    with Lab(real) as lab:
        prepare(lab)
        result = run_replay(lower(workload, SYSTEM), nominal, lab.hosting(workload.ranks, rule), rule, run)
    if result.error is not None:
        raise result.error
    return run.path


# --- who is to blame -------------------------------------------------------------------------------------------------


def fabric_cables(bed: Testbed) -> list[Cable]:
    return [cable for cable in bed.cables if cable.klass == "fabric"]


def used_cables(bed: Testbed, workload: Workload) -> list[Cable]:
    """Cables between switches that the traffic of the workload crosses: a fault elsewhere does nobody harm."""
    with Lab(bed) as lab:
        routes = lab.hosting(workload.ranks).routes
    pairs = lower(workload, SYSTEM).expected()
    crossed = {link for pair in pairs for link in routes[pair]}
    return [c for c in fabric_cables(bed) if {f"{c.a}>{c.b}", f"{c.b}>{c.a}"} & crossed]


def name_of(cable: Cable) -> str:
    return "-".join(sorted((cable.a, cable.b)))


Trial = tuple[Path, Callable[[str, str], bool]]
"""A run, and whether (kind, name) of a suspect is what was planted."""


def slow_link(folder: Path, dice: random.Random) -> Trial:
    """Any cable at a quarter of its rate; four leaves, so that messages can tell the cables of a spine apart."""
    bed = bed_of(dice.randrange(1, 1 << 20), leaves=4, spines=2)
    cable = dice.choice([*used_cables(bed, exchange()), *bed.cables[:8]])
    slower = tuple(replace(c, rate_bps=c.rate_bps // 4) if c == cable else c for c in bed.cables)
    path = replayed(folder, replace(bed, cables=slower), bed, exchange(), 3)
    return path, lambda kind, name: kind == "slow link" and name == name_of(cable)


def exchange() -> Workload:
    """Every rank to every other."""
    return generate("all_to_all", 8, 8 << 20)


SYSTEM = replace(RING, extended=True, algorithms=RING.algorithms | {CollectiveKind.ALL_TO_ALL: ("direct",)})
"""All-to-all directly: every pair of ranks is a flow."""


def lossy_link(folder: Path, dice: random.Random) -> Trial:
    bed = bed_of(dice.randrange(1, 1 << 20), leaves=4, spines=2)
    cable = dice.choice(used_cables(bed, exchange()))
    with Lab(bed) as lab:
        routes = lab.hosting(8).routes
    pairs = lower(exchange(), SYSTEM).expected()
    crossed = {link for pair in pairs for link in routes[pair]}
    link = dice.choice([one for one in (f"{cable.a}>{cable.b}", f"{cable.b}>{cable.a}") if one in crossed])

    def lose(lab: Lab) -> None:
        source, _, target = link.partition(">")
        (port,) = [one for one in ports(bed) if one.node == target and one.peer == source]
        rules = f"""add table ip bench
add chain ip bench wire {{ type filter hook prerouting priority -300; }}
add rule ip bench wire iifname "{port.name}" meta length gt 256 numgen random mod 100 lt 1 drop
"""
        with inside(lab._fabric.namespace_fd(target)):  # noqa: SLF001 - a fault that the testbed itself does not know
            subprocess.run([str(shutil.which("nft")), "-f", "-"], input=rules, text=True, check=True)

    path = replayed(folder, bed, bed, exchange(), 5, lose)
    return path, lambda kind, name: kind == "lossy link" and name == link


def slow_rank(folder: Path, dice: random.Random) -> Trial:
    bed = bed_of(dice.randrange(1, 1 << 20))
    rank = dice.randrange(8)
    path = replayed(folder, bed, bed, step(rank), 3)
    return path, lambda kind, name: kind == "slow rank" and name == f"rank {rank}"


def missing_path(folder: Path, dice: random.Random) -> Trial:
    """Two spines, one of them without its cable to a leaf: all traffic between the leaves shares the other."""
    bed = bed_of(dice.randrange(1, 1 << 20), spines=2)
    cable = dice.choice(fabric_cables(bed))
    real = replace(bed, cables=tuple(c for c in bed.cables if c != cable))
    path = replayed(folder, real, bed, generate("shift", 8, 4 << 20), 3)
    gone = {name_of(c) for c in fabric_cables(bed) if {c.a, c.b} & {cable.a, cable.b} & {"spine0", "spine1"}}
    return path, lambda kind, name: kind == "missing path" and name in gone


def collision(folder: Path, dice: random.Random) -> Trial:
    """A shift across the core, under a seed by which flows of a leaf meet on one uplink and cost something."""
    workload = generate("shift", 8, 4 << 20)
    while True:
        bed = bed_of(dice.randrange(1, 1 << 20))
        with Lab(bed) as lab:
            routes = lab.hosting(8).routes
        uplinks = [routes[rank, (rank + 4) % 8][1] for rank in range(8)]
        most = max(uplinks.count(link) for link in uplinks)
        if most > 1:
            break
    path = replayed(folder, bed, bed, workload, 3)
    worst = {link for link in uplinks if uplinks.count(link) == most}
    return path, lambda kind, name: kind == "ECMP collision" and name in worst


FAULTS = {
    "slow link": slow_link,
    "1 % lossy link": lossy_link,
    "ECMP collision": collision,
    "slow rank": slow_rank,
    "missing path": missing_path,
}


def blamed(rows: list[Row], chosen: list[str]) -> None:
    for kind, plant in FAULTS.items():
        if chosen and kind.replace(" ", "-") not in chosen:
            continue
        if kind == "1 % lossy link" and shutil.which("nft") is None:
            print("the lossy link is left out: nft is not installed")
            continue
        found = 0
        dice = random.Random(kind)
        for trial in range(TRIALS):
            with tempfile.TemporaryDirectory() as folder:
                path, right = plant(Path(folder), dice)
                run = open_run(path)
                said = blame(View(run, run.timeline()))
                first = said.suspects[0] if said.suspects else None
                good = first is not None and right(first.kind, first.name)
                found += good
                if not good:
                    print(f"{kind}, trial {trial}: {said.paragraph()}", flush=True)
        rows.append(Row(f"{kind}: named first, of {TRIALS} trials", found, "", ">= 19", found >= TRIALS - 1))
        print(rows[-1], flush=True)


# --- comparing -------------------------------------------------------------------------------------------------------


def compared(rows: list[Row], _: list[str]) -> None:
    """A, A and a fabric that is 3 % slower, in turn: 40 pairs of each kind."""
    bed = bed_of(7)
    slower = replace(bed, cables=tuple(replace(c, rate_bps=round(c.rate_bps / 1.03)) for c in bed.cables))
    alike, worse = 0, 0
    crossing = generate("shift", 8, 8 << 20)  # long messages: what is tested is the comparison, not the machine
    for _trial in range(PAIRS):
        with tempfile.TemporaryDirectory() as folder:
            runs = [replayed(Path(folder), one, one, crossing, REPEATS) for one in (bed, slower, bed)]
            first, slow, second = runs
            alike += compare(first, second, force=True).outcome is not Outcome.SAME
            worse += compare(first, slow, force=True).outcome is Outcome.WORSE
    rows.append(at_most(f"A/A pairs called different, of {PAIRS}", alike / PAIRS * 100, 5, "%"))
    rows.append(Row("3 % slower fabric called worse", worse / PAIRS * 100, "%", ">= 95", worse >= 0.95 * PAIRS))


# --- a million flows -------------------------------------------------------------------------------------------------


def million(folder: Path) -> Path:
    """10 iterations of 100,000 messages among 64 ranks, on a fabric whose links are known."""
    dice = np.random.default_rng(1)
    count, ranks, iterations = 1_000_000, 64, 10
    src = dice.integers(0, ranks, count).astype(np.int32)
    dst = ((src + dice.integers(1, ranks, count)) % ranks).astype(np.int32)
    posted = dice.integers(0, 10**9, count)
    size = 1 << dice.integers(10, 22, count)
    fct = (size * dice.uniform(0.04, 0.2, count)).astype(np.int64) + 3000
    columns = dict.fromkeys(Messages.SCHEMA, np.zeros(count, np.int64)) | {
        "iteration": np.arange(count) // (count // iterations),
        "src": src,
        "dst": dst,
        "size_bytes": size,
        "index": np.arange(count),
        "caused_ns": posted,
        "posted_ns": posted,
        "first_byte_ns": posted + 3000,
        "delivered_ns": posted + fct,
        "acknowledged_ns": posted + fct,
    }
    cells = [(k, r) for k in range(iterations) for r in range(ranks)]
    made = Timeline(
        "made",
        measured=True,
        ranks=Ranks.from_rows([(k, r, 1_300_000_000, 300_000_000) for k, r in cells]),
        operators=Operators.from_rows(
            [(k, r, 0, NodeKind.COMP, -1, "", "work", 0, 0, 1_000_000_000, 0) for k, r in cells]
        ),
        messages=Messages(**columns),
    )
    run = RunWriter.create(folder, "replay", "million")
    run.save_timeline(made)
    tables(run, ranks)
    run.finish("ok", {"iteration_ns": 1_300_000_000})
    return run.path


def tables(run: RunWriter, ranks: int) -> None:
    """Links and routes of a leaf-spine fabric of 8 leaves and 8 spines."""
    nodes, cables = leaf_spine(ranks, 8, 8, FAST, FAST, 1)
    bed = Testbed("million", nodes, cables, tuple(f"h{r}" for r in range(ranks)))
    links = bed.links()
    columns = {"link": list(links), "class": [c.klass for c in links.values()]}
    columns |= {name: [getattr(c, name) for c in links.values()] for name in ("rate_bps", "delay_ns", "buffer_bytes")}
    run.save_table("links", columns)
    ways = [
        (a, b, hop, link)
        for a in range(ranks)
        for b in range(ranks)
        if a != b
        for hop, link in enumerate(bed.route(f"h{a}", f"h{b}", lambda _, hops, key=a + b: hops[key % len(hops)]))
    ]
    run.save_table("routes", dict(zip(("src", "dst", "hop", "link"), map(list, zip(*ways, strict=True)), strict=True)))


def sized(rows: list[Row], _: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = million(Path(folder))
        begun = time.perf_counter()
        count = len(open_results(path).flows)
        rows.append(at_most(f"{count:,} flows opened as a table", time.perf_counter() - begun, 3, "s"))
        begun = time.perf_counter()
        render(open_run(path), Path(folder) / "report.html")
        rows.append(at_most("their report written", time.perf_counter() - begun, 30, "s"))
        rows.append(Row("size of that page", (Path(folder) / "report.html").stat().st_size / 1e6, "MB"))


PARTS = {"size": sized, "blame": blamed, "compare": compared}


def main() -> None:
    chosen = [one for one in sys.argv[1:] if one in PARTS] or list(PARTS)
    rows: list[Row] = []
    for part in chosen:
        PARTS[part](rows, [one for one in sys.argv[1:] if one not in PARTS])
    write("results" if len(chosen) == len(PARTS) else f"results-{'-'.join(chosen)}", rows)


if __name__ == "__main__":
    main()
