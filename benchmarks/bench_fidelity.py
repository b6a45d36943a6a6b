"""How close prediction comes to measurement: eight workloads, ring and direct, three rounds each, on 8 ranks.

Then a model calibrated on the four collectives predicts the four training patterns, and the same model, put on a fabric
of 16 hosts, predicts 16 ranks. Errors are |predicted - measured| / measured of the iteration time.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace

from report import ROOT, Row, at_most, write

from genie.core.netmodel import FabricModel
from genie.core.schedule import Schedule
from genie.core.system import System
from genie.core.timeline import Timeline
from genie.core.workload import CollectiveKind
from genie.fit import fit
from genie.hosts import Hosting, Lab, fabric_model
from genie.lower import lower
from genie.patterns import generate
from genie.replay.launcher import LaunchOptions
from genie.replay.local import ReplayOptions, replay
from genie.simulate.builtin import simulate
from genie.testbed.files import load_testbed

MIB = 1 << 20
FIRST = {"all_reduce": 16 * MIB, "all_gather": 2 * MIB, "reduce_scatter": 16 * MIB, "all_to_all": 8 * MIB}
LAST = {"data_parallel": 8 * MIB, "pipeline": 4 * MIB, "tensor_parallel": 8 * MIB, "mixture_of_experts": 8 * MIB}
ROUNDS = 3
REPEATS = 2


@dataclass
class Case:
    """One workload under one algorithm: its measured timelines and the error of each round."""

    name: str
    schedule: Schedule
    timelines: list[Timeline] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)


def schedule_of(pattern: str, size_bytes: int, algorithm: str, ranks: int) -> Schedule:
    names = dict.fromkeys(CollectiveKind, (algorithm,))
    system = System(splits=1, algorithms=names, local_mem_bytes_per_s=1.6e12, extended=True)
    return lower(generate(pattern, ranks, size_bytes), system)


def measure(schedule: Schedule, hosting: Hosting, dilation: int) -> Timeline:
    result = replay(schedule, hosting.places, ReplayOptions(dilation=dilation, launch=LaunchOptions(1, REPEATS)))
    if result.error:
        raise result.error
    return result.timeline


def error_of(model: FabricModel, schedule: Schedule, timeline: Timeline) -> float:
    return simulate(schedule, model).iteration_ns / timeline.iteration_ns - 1


def run_case(case: Case, hosting: Hosting, start: FabricModel, dilation: int) -> None:
    model = start
    for _ in range(ROUNDS):
        timeline = measure(case.schedule, hosting, dilation)
        case.errors.append(error_of(model, case.schedule, timeline))
        case.timelines.append(timeline)
        model = fit(model, case.timelines).model
    print(case.name, " ".join(f"{error:+.2%}" for error in case.errors), file=sys.stderr, flush=True)


def wrong(model: FabricModel) -> FabricModel:
    """The given figures at half the rate: the loop has something to do."""
    links = tuple(
        replace(link, capacity_bps=replace(link.capacity_bps, value=link.capacity_bps.value / 2))
        for link in model.links
    )
    return replace(model, links=links)


def on_eight() -> tuple[list[Case], FabricModel]:
    testbed = load_testbed(ROOT / "testbed/leaf-spine-8.yml")
    cases = [
        Case(f"{pattern}, {algorithm}", schedule_of(pattern, size, algorithm, 8))
        for pattern, size in (FIRST | LAST).items()
        for algorithm in ("ring", "direct")
    ]
    with Lab(testbed) as lab:
        hosting = lab.hosting(8)
        given = fabric_model(testbed, hosting.routes)
        for case in cases:
            run_case(case, hosting, wrong(given), testbed.dilation)
    return cases, given


def on_sixteen(calibrated: FabricModel) -> list[Row]:
    """The calibrated classes of links on a fabric twice the size, against its measurement."""
    testbed = load_testbed(ROOT / "testbed/leaf-spine-16.yml")
    capacity = {link.klass: link.capacity_bps for link in calibrated.links}
    rows = []
    with Lab(testbed) as lab:
        hosting = lab.hosting(16)
        given = fabric_model(testbed, hosting.routes)
        links = tuple(replace(link, capacity_bps=capacity[link.klass]) for link in given.links)
        model = replace(given, links=links, message_ns=calibrated.message_ns)
        for pattern, size in (("all_reduce", 16 * MIB), ("data_parallel", 8 * MIB)):
            schedule = schedule_of(pattern, size, "ring", 16)
            error = error_of(model, schedule, measure(schedule, hosting, testbed.dilation))
            rows.append(at_most(f"16 ranks from the 8-rank model: {pattern}, ring", abs(error) * 100, 5, "%"))
    return rows


def main() -> None:
    cases, given = on_eight()
    rows = []
    for algorithm in ("ring", "direct"):
        chosen = [case for case in cases if case.name.endswith(algorithm)]
        rows += [at_most(f"{case.name}, round {ROUNDS}", abs(case.errors[-1]) * 100, 4, "%") for case in chosen]
        within = sum(abs(case.errors[-1]) <= 0.02 for case in chosen)
        rows.append(Row(f"{algorithm}: workloads within 2 %", within, "of 8", ">= 7", within >= 7))
    collectives = [case for case in cases if case.name.split(",")[0] in FIRST]
    calibrated = fit(wrong(given), [timeline for case in collectives for timeline in case.timelines[:1]]).model
    for case in cases:
        if case.name.split(",")[0] in LAST:
            error = error_of(calibrated, case.schedule, case.timelines[-1])
            rows.append(at_most(f"held out: {case.name}", abs(error) * 100, 5, "%"))
    rows += on_sixteen(calibrated)
    write("fidelity", rows)


if __name__ == "__main__":
    main()
