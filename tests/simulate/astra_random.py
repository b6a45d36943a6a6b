"""Random jobs, systems and networks, given to the builtin simulator and to ASTRA-sim itself: do they agree to the tick?

By hand, with GENIE_ASTRA_SIM set: python tests/simulate/astra_random.py SEED COUNT
"""

import math
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from genie.core.netmodel import Dimension, DimensionModel, Estimate, Topology
from genie.core.schedule import Schedule
from genie.core.system import MemoryKind, Optimization, RemoteMemory, Scheduling, System
from genie.core.workload import CollectiveKind, Group, NodeKind, Workload
from genie.errors import GenieError
from genie.lower import lower
from genie.patterns import TraceBuilder, as_workload
from genie.simulate import astra
from genie.simulate.astra import AstraSim
from genie.simulate.astra_process import Limits
from genie.simulate.builtin import simulate
from genie.simulate.compare import first_parting
from genie.units import astra_gbps_to_bps

KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)
ALGORITHMS = ("ring", "ring", "direct", "direct1", "direct3", "halvingDoubling", "doubleBinaryTree")
FLAT = ("oneRing", "oneDirect", "oneHalvingDoubling")
SHAPES = ((2,), (3,), (4,), (5,), (8,), (2, 2), (4, 2), (2, 3), (2, 2, 2), (3, 2, 2), (4, 4))


@dataclass
class Case:
    workload: Workload
    system: System
    network: DimensionModel


class _Job:
    """A random graph of nodes: the communication of all ranks alike, the rest as it comes, or everything alike."""

    def __init__(self, draw: random.Random, ranks: int, dimensions: int, *, memory: bool, roofline: bool) -> None:
        self.draw, self.ranks, self.dimensions = draw, ranks, dimensions
        self.memory, self.roofline = memory, roofline
        self.traces = [TraceBuilder(rank) for rank in range(ranks)]
        self.rows = [0] * ranks
        self.chained = draw.choice((0.2, 0.8, 1.0))
        self.alike = draw.random() < 0.35
        self.groups: list[Group] = []
        self.shared: dict[int, list[int]] = {}
        if ranks > 2 and not self.alike and draw.random() < 0.4:
            members = draw.sample(range(ranks), draw.randint(2, ranks))
            self.groups.append(Group("1", tuple(members)))
            rest = [rank for rank in range(ranks) if rank not in members]
            if len(rest) > 1:
                self.groups.append(Group("2", tuple(rest)))

    def after(self, rank: int) -> list[int]:
        count = self.rows[rank]
        return self.shared.setdefault(count, self.drawn(count)) if self.alike else self.drawn(count)

    def drawn(self, count: int) -> list[int]:
        if count and self.draw.random() < self.chained:
            return [count - 1]
        return self.draw.sample(range(count), self.draw.randint(0, min(2, count))) if count else []

    def add(self, rank: int, kind: NodeKind, **values: object) -> None:
        self.traces[rank]._add(kind, f"n{self.rows[rank]}", self.after(rank), **values)
        self.rows[rank] += 1

    def step(self) -> None:
        draw = self.draw
        choice = draw.random()
        if choice < 0.35:
            self.compute()
        elif choice < 0.75:
            self.collective()
        elif choice < 0.9 and not self.alike:
            self.message()
        elif self.memory:
            self.each(self.access)

    def each(self, made: Callable[[], tuple[NodeKind, dict[str, object]]]) -> None:
        """A node on every rank, drawn once where all are alike."""
        kind, values = made()
        for rank in range(self.ranks):
            if rank and not self.alike:
                kind, values = made()
            self.add(rank, kind, **values)

    def access(self) -> tuple[NodeKind, dict[str, object]]:
        kind = self.draw.choice((NodeKind.MEM_LOAD, NodeKind.MEM_STORE))
        return kind, {"tensor_bytes": self.draw.randint(1, 1 << 20)}

    def compute(self) -> None:
        cpu = self.draw.random() < 0.15

        def made() -> tuple[NodeKind, dict[str, object]]:
            values: dict[str, object] = {"duration_ns": 1000 * self.draw.randint(0, 30), "is_cpu": cpu}
            if self.roofline:
                values |= {"num_ops": self.draw.randint(1, 1 << 34), "tensor_bytes": self.draw.randint(1, 1 << 24)}
            return NodeKind.COMP, values

        self.each(made)

    def collective(self) -> None:
        draw = self.draw
        kind, size = draw.choice(KINDS), draw.choice((draw.randint(1, 4096), draw.randint(4096, 1 << 22)))
        group = draw.choice([None, *self.groups])
        values = {"comm_type": kind, "size_bytes": size, "group": group.name if group else ""}
        if self.dimensions > 1 and draw.random() < 0.2:
            values["involved_dims"] = draw.randint(1, (1 << self.dimensions) - 1)
        for rank in group.ranks if group else range(self.ranks):
            self.add(rank, NodeKind.COLLECTIVE, **values)

    def message(self) -> None:
        draw = self.draw
        source, destination = draw.sample(range(self.ranks), 2)
        size, tag = draw.randint(1, 1 << 20), draw.randint(0, 3)
        self.add(source, NodeKind.SEND, peer=destination, size_bytes=size, tag=tag)
        self.add(destination, NodeKind.RECV, peer=source, size_bytes=size, tag=tag)

    def workload(self) -> Workload:
        for rank in range(self.ranks):
            if not self.rows[rank]:
                self.add(rank, NodeKind.COMP, duration_ns=1000, num_ops=1000, tensor_bytes=1000)
        return as_workload("random", self.traces, self.groups)


def case(seed: int) -> Case:
    """A random case; the same for the same seed."""
    draw = random.Random(seed)
    aware = draw.random() < 0.5
    shape = draw.choice([s for s in SHAPES if len(s) == 1] if aware else SHAPES)
    memory, roofline = draw.random() < 0.2, draw.random() < 0.15
    job = _Job(draw, math.prod(shape), len(shape), memory=memory, roofline=roofline)
    for _ in range(draw.randint(1, 7)):
        job.step()
    dimensions = tuple(
        Dimension(
            draw.choice(list(Topology)),
            size,
            Estimate(astra_gbps_to_bps(draw.choice((50.0, draw.uniform(0.5, 400.0))))),
            Estimate(draw.choice((500.0, draw.uniform(0.0, 3000.0)))),
        )
        for size in shape
    )
    if aware and dimensions[0].size == 2 and dimensions[0].topology is Topology.RING:
        return case(seed + 1_000_003)
    system = _system(draw, shape, memory=memory, roofline=roofline)
    return Case(job.workload(), system, DimensionModel(dimensions, aware))


def _system(draw: random.Random, shape: tuple[int, ...], *, memory: bool, roofline: bool) -> System:
    def algorithm(names: tuple[str, ...], ranks: int, kind: CollectiveKind) -> str:
        """Any, but seldom one that cannot work."""
        halves = ranks & (ranks - 1) == 0 and kind is not CollectiveKind.ALL_TO_ALL
        sound = [name for name in names if "alving" not in name and "Tree" not in name]
        return draw.choice(names if halves or draw.random() < 0.02 else sound)

    def algorithms(kind: CollectiveKind) -> tuple[str, ...]:
        if draw.random() < 0.1:
            return (algorithm(FLAT, math.prod(shape), kind),)
        return tuple(algorithm(ALGORITHMS, size, kind) for size in shape)

    kind = draw.choice([MemoryKind.PER_NPU, MemoryKind.PER_NODE, MemoryKind.POOL]) if memory else MemoryKind.NONE
    return System(
        splits=draw.randint(1, 6),
        active_chunks=draw.randint(1, 6),
        queues_per_dim=draw.choice((1, 1, 1, 2, 3, 4)),
        endpoint_delay_ns=draw.choice((1, 10, draw.randint(1, 2000))),
        scheduling=draw.choice([Scheduling.LIFO, Scheduling.FIFO]),
        optimization=draw.choice(list(Optimization)),
        algorithms={each: algorithms(each) for each in KINDS},
        local_mem_bytes_per_s=draw.choice((0.0, 1.6e12, draw.uniform(1.0, 3000.0) * 1e9)) if not roofline else 2e12,
        peak_flops=9e14 if roofline else 0.0,
        roofline=roofline,
        rendezvous=draw.random() < 0.1,
        memory=RemoteMemory(kind, draw.randint(1, 1000), draw.randint(1, 100), draw.choice((1, 2))),
    )


def compare(found: Case, folder: Path) -> tuple[str, str]:
    """(outcome, details): agree, both fail, or what differs."""
    using, model = AstraSim(limits=Limits(60.0)), found.network
    ours = ours_error = theirs = theirs_error = None
    try:
        schedule = lower(found.workload, found.system, tuple(d.size for d in model.dimensions))
        ours = simulate(schedule, model)
    except GenieError as error:
        ours_error = str(error)
        schedule = Schedule(found.workload, found.system, (), (), ())
    try:
        theirs = astra.simulate(schedule, model, folder, using).timeline
    except GenieError as error:
        theirs_error = str(error)
    if ours is None or theirs is None:
        both = f"builtin: {ours_error}; ASTRA-sim: {theirs_error}"
        crashed = "SIGSEGV" in str(theirs_error) and _has_cpu_or_memory(found.workload)
        if ours is not None and ("a bug of its own" in str(theirs_error) or crashed):
            return "ASTRA-sim's own bug", both
        return "both fail" if ours is None and theirs is None else "one fails", both
    if ours.ranks.finish_ns.tolist() != theirs.ranks.finish_ns.tolist():
        return "finish differs", f"{ours.ranks.finish_ns} {theirs.ranks.finish_ns} {first_parting(ours, theirs)}"
    if ours.ranks.exposed_ns.tolist() != theirs.ranks.exposed_ns.tolist():
        return "exposed differs", f"{ours.ranks.exposed_ns} {theirs.ranks.exposed_ns}"
    parting = first_parting(ours, theirs)
    return ("agree", "") if parting is None else ("an operator differs", str(parting))


def _has_cpu_or_memory(workload: Workload) -> bool:
    """ASTRA-sim's statistics cannot do these."""
    kinds = (NodeKind.MEM_LOAD, NodeKind.MEM_STORE)
    return any((trace.nodes.is_cpu | np.isin(trace.nodes.kind, kinds)).any() for trace in workload.traces)


def main() -> None:
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(seed, seed + count):
            outcome, details = compare(case(number), Path(folder) / str(number))
            outcomes[outcome] += 1
            shutil.rmtree(Path(folder) / str(number), ignore_errors=True)
            if outcome not in {"agree", "both fail", "ASTRA-sim's own bug"} or "-v" in sys.argv:
                sys.stdout.write(f"seed {number}: {outcome}: {details[:900]}\n")
    sys.stdout.write(", ".join(f"{name}: {total}" for name, total in sorted(outcomes.items())) + "\n")


if __name__ == "__main__":
    main()
