"""One stage of the work each: load, simulate, replay, fit. What `loop` repeats and the command line offers singly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from genie.core.experiment import BUILTIN, AstraRule, Experiment, ReplayRule
from genie.core.faults import steps
from genie.core.netmodel import DimensionModel, Estimate, FabricModel, Link, NetworkModel
from genie.core.schedule import Schedule
from genie.core.system import Profile, System
from genie.core.testbed import Testbed
from genie.core.timeline import Timeline
from genie.errors import GenieError, InputError, NotReadyError
from genie.formats.astra import read_custom_collectives, read_memory, read_network, read_system
from genie.formats.runfile import RunWriter
from genie.formats.workload import find_traces, load_workload
from genie.lower import lower
from genie.lower.pairing import refuse_unpaired
from genie.replay.during import Quiet, Together
from genie.replay.faulting import Alter, Faulting
from genie.replay.launcher import LaunchOptions, Progress
from genie.replay.local import Place, Replayed, ReplayOptions, replay
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
from genie.testbed.namespaces import capability

Watch = Callable[[Progress], None]
LOOPBACK: Final = "127.1.0."
MAX_LOOPBACK_RANKS: Final = 250
LOOPBACK_MTU: Final = 65_535
LOOPBACK_SEGMENTS: Final = 15
DEFAULT_RULE: Final = ReplayRule()

RDMA_LAB: Final = "rdma-lab"
"""The kind of hosts that have RDMA devices: inside a guest."""

FIDELITY: Final = {
    "root": "network namespaces, every link shaped by the kernel: full fidelity of the emulation.",
    "userns": "network namespaces inside a user namespace, every link shaped by the kernel: full fidelity; only the "
    "priority of the rank processes cannot be raised.",
    RDMA_LAB: "a guest with Soft-RoCE in the rdma-lab, every link of its fabric shaped: real verbs on "
    "one processor. What is measured is what this processor can do as well as what the fabric allows.",
    "none": "no namespaces here: loopback with user-space pacing. Each rank's sending rate and the delays hold, but "
    "there are no switches: no shared links, no ECMP, no incast at the receiver. Use it to try Genie, not to "
    "measure.",
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """An experiment with everything that its files say."""

    experiment: Experiment
    testbed: Testbed
    system: System
    schedule: Schedule
    network: DimensionModel | None

    def files(self) -> list[tuple[Path, str]]:
        """(file, role) of every input, for the run directory."""
        experiment = self.experiment
        files = [(experiment.system, "system"), (experiment.testbed, "testbed")]
        for path, role in (
            (experiment.source, "experiment"),
            (experiment.memory, "memory"),
            (experiment.network, "network"),
            (experiment.comm_groups, "comm groups"),
        ):
            if path is not None:
                files.append((path, role))
        return files + [(path, "trace") for path in find_traces(experiment.traces).values()]


def load(experiment: Experiment) -> Loaded:
    """Read all inputs and lower the workload.

    Raises:
        InputError: anything wrong in any file, or more ranks than the testbed has places.
    """
    choice(experiment.replay.transport).check(experiment.replay.options)
    from genie.testbed.files import load_testbed  # noqa: PLC0415 - pydantic is slow to import

    testbed = load_testbed(experiment.testbed)
    system = read_system(
        experiment.system,
        queues_per_dim=experiment.queues_per_dim,
        memory=read_memory(experiment.memory) if experiment.memory else None,
    )
    system = replace(system, profile=experiment.profile, extended=experiment.extended)
    network = read_network(experiment.network, aware=experiment.model == "aware") if experiment.network else None
    workload = load_workload(experiment.traces, comm_groups=experiment.comm_groups, scale_bytes=experiment.scale_bytes)
    if workload.ranks > len(testbed.placement):
        raise InputError(
            f"the workload has {workload.ranks} ranks, the testbed places for {len(testbed.placement)}.",
            where=str(experiment.testbed),
            fix="use a larger testbed or a smaller workload.",
        )
    steps(experiment.replay.faults, testbed, workload.ranks, experiment.replay.repeats)
    sizes = tuple(d.size for d in network.dimensions) if network else None
    schedule = lower(workload, system, sizes, read_custom_collectives(system))
    return Loaded(experiment, testbed, system, schedule, network)


@dataclass(frozen=True, slots=True)
class Hosting:
    """Where ranks run: a fabric that is up, or loopback."""

    kind: str
    places: tuple[Place, ...]
    routes: dict[tuple[int, int], tuple[str, ...]]
    rate_bps: int
    counters: Callable[[], dict[str, dict[str, int]]]
    mtu_bytes: int = LOOPBACK_MTU
    super_packet_segments: int = LOOPBACK_SEGMENTS
    alter: Callable[[], Alter] | None = None


class Lab(AbstractContextManager["Lab"]):
    """A testbed that is up for as long as this context lasts; `hosting` makes the places of a number of ranks."""

    def __init__(self, testbed: Testbed, kind: str | None = None) -> None:
        self.testbed, self.kind = testbed, kind or capability()[0]
        self._fabric: Any = None
        self._context: AbstractContextManager[Any] = nullcontext()

    def __enter__(self) -> Self:
        if self.kind == RDMA_LAB:
            from genie.testbed.rdma_fabric import RdmaFabric  # noqa: PLC0415 - pyroute2 is slow to import

            self._context = RdmaFabric(self.testbed)
        elif self.kind != "none":
            from genie.testbed.emulated import EmulatedFabric  # noqa: PLC0415 - pyroute2 is slow to import

            self._context = EmulatedFabric(self.testbed)
        self._fabric = self._context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(None, None, None)

    def hosting(self, ranks: int, rule: ReplayRule = DEFAULT_RULE) -> Hosting:
        """Places for so many ranks, with the routes that the first flow of every pair takes under a rule."""
        return self._on_loopback(ranks) if self._fabric is None else self._on_fabric(ranks, rule)

    def recording(self, ports: str | None, folder: Path) -> AbstractContextManager[Any]:
        """Captures on a comma-separated list of ports, as long as the context lasts; nothing for None.

        Raises:
            InputError: no such port.
            NotReadyError: this is no fabric whose ports can be captured.
        """
        if ports is None:
            return nullcontext()
        from genie.testbed.capture import Recorder, chosen_ports  # noqa: PLC0415

        links = chosen_ports(ports, list(self.testbed.links()))
        if self._fabric is None:
            raise NotReadyError(
                "there are no ports to capture at on loopback.", fix="run where namespaces are allowed."
            )
        return Recorder([self._fabric.tap(link) for link in links], folder)

    def _on_fabric(self, ranks: int, rule: ReplayRule) -> Hosting:
        fabric, ends, links = self._fabric, self.testbed.endpoints, self.testbed.links()
        routes, chosen = {}, choice(rule.transport)
        for source in range(ranks):
            for destination in range(ranks):
                if source != destination:
                    port = chosen.source_port(ranks, source, destination, 0, rule.options)
                    routes[source, destination] = fabric.route(
                        ends[source], ends[destination], port, chosen.port, chosen.protocol
                    )
        delays = {pair: sum(links[name].delay_ns for name in route) for pair, route in routes.items()}
        rates = {pair: min((links[name].rate_bps for name in route), default=0) for pair, route in routes.items()}

        segments = fabric.super_packet_segments
        shaping = chosen.shaping(self.testbed.mtu, segments, self._credit_ns())

        def place(rank: int) -> Place:
            end = ends[rank]
            enter = partial(fabric.enter, end)
            return Place(fabric.address(end), enter, _to(delays, rank), _to(rates, rank), shaping)

        places = tuple(place(rank) for rank in range(ranks))
        alter = None if self.kind == RDMA_LAB else self._alterations
        return Hosting(self.kind, places, routes, 0, fabric.counters, self.testbed.mtu, segments, alter)

    def _credit_ns(self) -> int:
        """Virtual time that the slowest link may catch up."""
        from genie.testbed.shaping import credit_ns  # noqa: PLC0415 - pyroute2 is slow to import

        wire_bps = min(self.testbed.wire_bps(cable) for cable in self.testbed.cables)
        return credit_ns(wire_bps, self.testbed.mtu) // self.testbed.dilation

    def _alterations(self) -> Alter:
        from genie.testbed.alter import Alterations  # noqa: PLC0415 - pyroute2 is slow to import

        return Alterations(self._fabric)

    def _on_loopback(self, ranks: int) -> Hosting:
        """Every rank has a loopback address of its own and paces itself at its host link's rate."""
        if ranks > MAX_LOOPBACK_RANKS:
            raise NotReadyError(f"{ranks} ranks are too many for loopback.", fix="run where namespaces are allowed.")
        routes = shortest_routes(self.testbed, ranks)
        links = self.testbed.links()
        delays = {pair: sum(links[name].delay_ns for name in route) for pair, route in routes.items()}
        places = tuple(Place(f"{LOOPBACK}{rank + 1}", delays_ns=_to(delays, rank)) for rank in range(ranks))
        slowest = min(links[route[0]].rate_bps for route in routes.values())
        return Hosting("none", places, routes, slowest // self.testbed.dilation, dict)


def _to(values: dict[tuple[int, int], int], rank: int) -> dict[int, int]:
    """Of the paths to a rank, by where they come from."""
    return {source: value for (source, destination), value in values.items() if destination == rank}


def shortest_routes(testbed: Testbed, ranks: int) -> dict[tuple[int, int], tuple[str, ...]]:
    """(source rank, destination rank) -> links of a shortest path, the first of equal ones."""
    routes, ends = {}, testbed.endpoints
    for destination in range(ranks):
        hops = testbed.next_hops(ends[destination])
        for source in range(ranks):
            if source != destination:
                way = testbed.follow(hops, ends[source], ends[destination], lambda _, near: near[0])
                routes[source, destination] = way
    return routes


def fabric_model(testbed: Testbed, routes: dict[tuple[int, int], tuple[str, ...]]) -> FabricModel:
    """The testbed's own figures as a model: what a fit starts from and a prediction without measurement uses."""
    cables = testbed.links()
    links = tuple(
        Link(name, Estimate(float(cable.rate_bps)), float(cable.delay_ns), cable.klass)
        for name, cable in cables.items()
    )
    number = {link.name: at for at, link in enumerate(links)}
    numbered = {pair: tuple(number[name] for name in route) for pair, route in routes.items()}
    return FabricModel(1 + max(max(pair) for pair in routes), links, numbered)


def load_astra(**options: Any) -> tuple[Schedule, NetworkModel, list[tuple[Path, str]], str]:
    """(schedule, model, files with roles, name) from ASTRA-sim's own files; keys are `genie simulate`'s options.

    Raises:
        InputError: anything wrong in any file.
    """
    memory = options["memory"]
    system = read_system(
        options["system"],
        queues_per_dim=options["num_queues_per_dim"],
        injection_scale=options["injection_scale"],
        rendezvous=options["rendezvous"],
        memory=read_memory(memory) if memory else None,
    )
    system = replace(system, extended=options["extended"], profile=Profile(options["profile"]))
    model = read_network(options["network"], aware=options["model"] == "aware")
    workload = load_workload(options["workload"], comm_groups=options["comm_groups"], ranks=model.ranks)
    sizes = tuple(d.size for d in model.dimensions)
    schedule = lower(workload, system, sizes, read_custom_collectives(system))
    files = [(Path(options[role]), role) for role in ("system", "network", "memory", "comm_groups") if options[role]]
    files += [(path, "trace") for rank, path in find_traces(options["workload"]).items() if rank < model.ranks]
    return schedule, model, files, workload.name


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


def run_replay(
    schedule: Schedule,
    testbed: Testbed,
    hosting: Hosting,
    rule: ReplayRule,
    run: RunWriter,
    watch: Watch = lambda _: None,
    metrics: Metrics | None = None,
) -> Replayed:
    """Replay into a run directory; a failed replay is written too, then told by the result's `error`."""
    options = ReplayOptions(
        dilation=testbed.dilation,
        launch=LaunchOptions(rule.warmup, rule.repeats, rule.stall_timeout_s),
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
        result = replay(schedule, hosting.places, options, watch, Together(faulting, sampler, exporter))
    for name, table in (({"faults": faulting.table()} if rule.faults else {}) | sampler.tables()).items():
        run.save_table(name, table)
    _save_counters(run, before, hosting.counters())
    run.add_environment(cpu_pressure=pressure.share(), clock_bound_ns=0)  # all ranks share this machine's clock
    run.save_timeline(result.timeline)
    _save_statistics(run, result.statistics)
    status = result.timeline.status.value
    results: dict[str, Any] = {} if result.error else summary(result.timeline)
    if result.error:
        results["error"] = str(result.error)
    run.finish(status, results, [check.as_dict() for check in result.checks])
    return result


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
