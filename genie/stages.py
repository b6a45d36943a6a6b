"""One stage of the work each: load, simulate, replay, fit. What `loop` repeats and the command line offers singly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from genie.core.experiment import BUILTIN, AstraRule, ReplayRule
from genie.core.netmodel import NetworkModel
from genie.core.schedule import Schedule
from genie.core.testbed import Testbed
from genie.core.timeline import Timeline
from genie.errors import GenieError, InputError
from genie.formats.runfile import RunWriter
from genie.hosts import LAB, Hosting, Lab, fabric_model
from genie.loading import Loaded, load
from genie.lower.pairing import refuse_unpaired
from genie.replay.clocksync import ClockRow, worst_bound_ns
from genie.replay.during import Quiet, Together
from genie.replay.faulting import Faulting
from genie.replay.launcher import LaunchOptions, Progress
from genie.replay.local import Elsewhere, Replayed, ReplayOptions, replay
from genie.replay.pressure import CpuPressure
from genie.replay.prometheus import Metrics
from genie.replay.sampling import Sampler
from genie.replay.transports.choice import choice
from genie.simulate import astra
from genie.simulate.astra import AstraSim
from genie.simulate.astra_binary import FrontEnd
from genie.simulate.astra_files import Physical
from genie.simulate.astra_process import Limits
from genie.simulate.builtin import simulate

Watch = Callable[[Progress], None]


def first_model(loaded: Loaded, routes: dict[tuple[int, int], tuple[str, ...]]) -> NetworkModel:
    """The model that the experiment starts from."""
    if loaded.experiment.model == "fabric" or loaded.network is None:
        return fabric_model(loaded.testbed, routes)
    return loaded.network


@dataclass(frozen=True, slots=True)
class Predictor:
    """Which simulator, and how: `say` is told of its progress."""

    simulator: str = BUILTIN
    astra_sim: AstraRule = field(default_factory=AstraRule)
    say: Callable[[str], None] = lambda _: None


def run_simulation(schedule: Schedule, model: NetworkModel, run: RunWriter, using: Predictor | None = None) -> Timeline:
    """Simulate into a run directory; a simulation that fails is written too.

    Raises:
        GenieError: as the simulators do.
    """
    using = using or Predictor()
    run.describe(simulator=using.simulator)
    try:
        refuse_unpaired(schedule)
        timeline = simulate(schedule, model) if using.simulator == BUILTIN else _run_astra(schedule, model, run, using)
    except GenieError as error:
        run.finish("failed", {"error": str(error)})
        raise
    run.save_timeline(timeline)
    if timeline.notes:
        run.note(*timeline.notes)
    run.finish("ok", summary(timeline))
    return timeline


def _run_astra(schedule: Schedule, model: NetworkModel, run: RunWriter, using: Predictor) -> Timeline:
    """ASTRA-sim's files and output are kept in the run's folder astra-sim."""
    rule = using.astra_sim
    how = AstraSim(
        program=rule.program,
        front_end=FrontEnd(rule.front_end) if rule.front_end else None,
        limits=Limits(rule.timeout_s, rule.memory_bytes),
        physical=Physical(rule.ns3_config, rule.htsim_topology),
        point_to_point=rule.point_to_point,
    )
    outcome = astra.simulate(schedule, model, run.path / "astra-sim", how, using.say)
    run.describe(astra_sim=outcome.about)
    return outcome.timeline


def replay_options(testbed: Testbed, hosting: Hosting, rule: ReplayRule) -> ReplayOptions:
    """What a rule means on a testbed."""
    return ReplayOptions(
        dilation=testbed.dilation,
        launch=LaunchOptions(rule.warmup, rule.repeats, rule.stall_timeout_s, clocks=hosting.kind == LAB),
        flows=rule.flows,
        rate_bps=hosting.rate_bps,
        window_bytes=testbed.window_bytes,
        verify=rule.verify,
        transport=rule.transport,
        options=rule.options,
        line_bps=_slowest_host_bps(testbed) // testbed.dilation,
        mtu_bytes=hosting.mtu_bytes,
        super_packet_segments=hosting.super_packet_segments,
    )


def run_replay(
    schedule: Schedule,
    testbed: Testbed,
    hosting: Hosting,
    rule: ReplayRule,
    run: RunWriter,
    watch: Watch = lambda _: None,
    metrics: Metrics | None = None,
    elsewhere: Elsewhere | None = None,
) -> Replayed:
    """Replay into a run directory; a failed replay is written too, then told by the result's `error`."""
    options = replay_options(testbed, hosting, rule)
    run.describe(
        testbed={"name": testbed.name, "hosting": hosting.kind, "dilation": testbed.dilation, "mtu": testbed.mtu},
        replay={
            "warmup": rule.warmup,
            "repeats": rule.repeats,
            "flows": rule.flows,
            "transport": rule.transport,
            "options": dict(rule.options),
        },
        delays="added at the receiving endpoint",
    )
    _save_network(run, testbed, hosting, rule)
    before, pressure = hosting.counters(), CpuPressure()
    alter = hosting.alter() if hosting.alter is not None and rule.faults else None
    faulting = Faulting(rule.faults, testbed, hosting.routes, rule.repeats, alter)
    sampler = Sampler(testbed, hosting.counters)
    with metrics.exporting(sampler) if metrics else nullcontext(Quiet()) as exporter:
        during = Together(faulting, sampler, exporter)
        result = replay(schedule, hosting.places, options, watch, during, elsewhere)
    for name, table in (({"faults": faulting.table()} if rule.faults else {}) | sampler.tables()).items():
        run.save_table(name, table)
    _save_counters(run, before, hosting.counters())
    _save_clocks(run, result.clocks)
    run.add_environment(cpu_pressure=pressure.share(), clock_bound_ns=worst_bound_ns(result.clocks))
    run.save_timeline(result.timeline)
    _save_statistics(run, result.statistics)
    status = result.timeline.status.value
    results: dict[str, Any] = {} if result.error else summary(result.timeline)
    if result.error:
        results["error"] = str(result.error)
    run.finish(status, results, [check.as_dict() for check in result.checks])
    return result


def _save_clocks(run: RunWriter, clocks: Sequence[ClockRow]) -> None:
    """Every rank's clock against ours, where ranks have clocks of their own; else all share this machine's."""
    if clocks:
        run.save_table("clocks", {name: [getattr(row, name) for row in clocks] for name in ClockRow._fields})


def _save_statistics(run: RunWriter, statistics: Mapping[int, Mapping[str, int]]) -> None:
    """What every rank's transport counted besides bytes, one row a rank, if it counts."""
    if statistics:
        names = list(next(iter(statistics.values())))
        columns = {name: [counts[name] for counts in statistics.values()] for name in names}
        run.save_table("transport", {"rank": list(statistics)} | columns)


def _slowest_host_bps(testbed: Testbed) -> int:
    """Of all hosts' links."""
    hosts = set(testbed.hosts)
    return min(cable.rate_bps for cable in testbed.cables if cable.a in hosts or cable.b in hosts)


def _save_counters(run: RunWriter, before: dict[str, dict[str, int]], after: dict[str, dict[str, int]]) -> None:
    if not after:
        return
    names = list(after)
    columns: dict[str, list[Any]] = {"link": names}
    for name, key in (("sent_bytes", "bytes"), ("sent_packets", "packets"), ("dropped_packets", "drops")):
        columns[name] = [after[link][key] - before[link][key] for link in names]
    run.save_table("counters", columns)


def _save_network(run: RunWriter, testbed: Testbed, hosting: Hosting, rule: ReplayRule) -> None:
    """What every link is, and which links each ordered pair of ranks crosses: from it slowdowns and loads are told."""
    links = testbed.links()
    run.save_table(
        "links",
        {
            "link": list(links),
            "class": [cable.klass for cable in links.values()],
            "rate_bps": [cable.rate_bps for cable in links.values()],
            "delay_ns": [cable.delay_ns for cable in links.values()],
            "buffer_bytes": [cable.buffer_bytes for cable in links.values()],
        },
    )
    ranks, chosen = len(hosting.places), choice(rule.transport)
    hops = [
        (*pair, hop, link, chosen.source_port(ranks, *pair, 0, rule.options), chosen.port)
        for pair, route in hosting.routes.items()
        for hop, link in enumerate(route)
    ]
    columns = ("src", "dst", "hop", "link", "sport", "dport")
    run.save_table("routes", {name: [row[at] for row in hops] for at, name in enumerate(columns)})


def summary(timeline: Timeline) -> dict[str, Any]:
    """What `--json` shows of a timeline: iteration_ns, and per rank the median finish and exposed communication."""
    import numpy as np  # noqa: PLC0415

    ranks = timeline.ranks
    order = np.argsort(ranks.rank, kind="stable")
    starts = np.flatnonzero(np.diff(ranks.rank[order], prepend=-1))
    medians = [
        [int(np.median(part)) if len(part) > 1 else int(part[0]) for part in np.split(column[order], starts[1:])]
        for column in (ranks.finish_ns, ranks.exposed_ns)
    ]
    rows = [
        {"rank": rank, "finish_ns": finish, "exposed_ns": exposed}
        for rank, finish, exposed in zip(ranks.rank[order][starts].tolist(), *medians, strict=True)
    ]
    times = timeline.iteration_times_ns().tolist()
    return {"iteration_ns": timeline.iteration_ns, "iterations_ns": times, "ranks": rows}


def save_inputs(run: RunWriter, files: Sequence[tuple[Path, str]]) -> None:
    """Copy every input file into the run directory."""
    run.add_inputs(files)


def paths_of_ports(
    file: Path, source: str | None, destination: str | None, ports: str, *, probe: bool, spread: int | None
) -> dict[str, Any]:
    """Paths between two hosts of an emulated testbed by UDP source port: "rows", and what was chosen of the ports.

    Raises:
        InputError: no such host, or ports that are none.
        NotReadyError: the testbed cannot be brought up.
    """
    from genie.testbed import paths  # noqa: PLC0415 - brings pyroute2
    from genie.testbed.emulated import EmulatedFabric  # noqa: PLC0415
    from genie.testbed.files import load_testbed  # noqa: PLC0415 - pydantic is slow to import
    from genie.testbed.namespaces import inside  # noqa: PLC0415

    testbed, numbers = load_testbed(file), _ports_of(ports)
    source, destination = source or testbed.hosts[0], destination or testbed.hosts[-1]
    with EmulatedFabric(testbed) as fabric:
        found = paths.looked_up(fabric, source, destination, numbers)
        chosen = {"chosen": paths.spread(found, spread)} if spread else {}
        if probe:
            with inside(fabric.namespace_fd(source)):
                hops = paths.probed(fabric.address(source), fabric.address(destination), numbers)
            links = fabric.arrivals()
            found = {port: tuple(links.get(hop, hop) for hop in way) for port, way in hops.items()}
    rows = [{"port": port, "path": " ".join(path)} for port, path in found.items()]
    return {"rows": rows, "from": source, "to": destination, "paths": len(set(found.values()))} | chosen


def paths_of_experiment(file: Path, experiment: Path) -> dict[str, Any]:
    """Links that several flows of an experiment's schedule use on a testbed: "rows", and how many flows there are."""
    from genie.formats.experiment import load_experiment  # noqa: PLC0415
    from genie.testbed.paths import shared_links  # noqa: PLC0415

    loaded = load(replace(load_experiment(experiment), testbed=file))
    with Lab(loaded.testbed) as lab:
        routes = lab.hosting(len(loaded.schedule.ranks), loaded.experiment.replay).routes
    pairs = sorted(loaded.schedule.expected())
    shared = shared_links(routes[pair] for pair in pairs)
    hosts = {link for route in routes.values() for link in (route[0], route[-1])}
    rows = [{"link": link, "flows": flows} for link, flows in shared.most_common() if link not in hosts]
    return {"rows": rows, "flows": len(pairs), "testbed": loaded.testbed.name}


def _ports_of(text: str) -> list[int]:
    """Port numbers from words such as 50000,50010-50020."""
    try:
        ends = [[int(end) for end in word.split("-")] for word in text.split(",")]
        found = [port for end in ends for port in range(end[0], end[-1] + 1)]
    except ValueError:
        found = []
    if not found or not all(0 < port < 1 << 16 for port in found):
        raise InputError(f"{text!r} are no ports.", where="--ports", fix="write 50000,50010-50020.")
    return found
