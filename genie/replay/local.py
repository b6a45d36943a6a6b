"""A replay on this machine: a schedule and the places of its ranks -> a measured Timeline with its self-check."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from genie.core.schedule import Schedule
from genie.core.shaping import UNSHAPED, Shaping
from genie.core.timeline import Status, Timeline
from genie.engine.rank import RankEngine
from genie.errors import GenieError, InputError, RunError
from genie.replay.agent import AgentPlan
from genie.replay.assemble import assemble
from genie.replay.clock import SPIN_NS
from genie.replay.clocksync import ClockRow
from genie.replay.during import During
from genie.replay.launcher import LaunchOptions, Outcome, PostMortem, Progress, launch
from genie.replay.ranks import Rank, Spawn, fork, thread
from genie.replay.selfcheck import Check, self_check
from genie.replay.transports.base import Transport
from genie.replay.transports.choice import LISTEN_PORT, MAX_FLOWS, Options, Wiring, choice, source_port
from genie.replay.transports.framing import SECRET_BYTES
from genie.replay.transports.memory import Hub, MemoryTransport


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank runs.

    Attributes:
        address: of its NIC.
        enter: moves a process there.
        delays_ns: other rank -> virtual delay of the path from it.
        rates_bps: other rank -> virtual rate of the slowest link on the path from it, if the emulator shapes that.
        shaping: what that does to the transport's messages.
        slot: which of several ranks of that address.
        namespace: file of the network namespace, for a rank that is started elsewhere.
    """

    address: str
    enter: Callable[[], None] = lambda: None
    delays_ns: Mapping[int, int] = field(default_factory=dict)
    rates_bps: Mapping[int, int] = field(default_factory=dict)
    shaping: Shaping = UNSHAPED
    slot: int = 0
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How to replay.

    Attributes:
        dilation: real ns per virtual ns.
        launch: repeats and patience.
        flows: connections per ordered pair of ranks.
        rate_bps: real rate that each rank paces itself at; 0 leaves it to the fabric.
        window_bytes: bounds the payload that one connection has in flight.
        verify: check every payload byte.
        transport: name of what moves the messages.
        options: what only that transport understands.
        line_bps, mtu_bytes, super_packet_segments: of the fabric: see transports.choice.Wiring.
    """

    dilation: int = 1
    launch: LaunchOptions = field(default_factory=LaunchOptions)
    flows: int = 1
    rate_bps: int = 0
    window_bytes: int = 128 << 10
    verify: bool = False
    transport: str = "tcp"
    options: Options = field(default_factory=dict)
    line_bps: int = 10_000_000_000
    mtu_bytes: int = 65_535
    super_packet_segments: int = 15


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay gave: the timeline (all there is of it), the checks, and the error that ended it, if one did.

    `statistics`: rank -> what else its transport counted; `clocks`: of ranks with clocks of their own.
    """

    timeline: Timeline
    checks: tuple[Check, ...]
    error: GenieError | None = None
    statistics: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    clocks: tuple[ClockRow, ...] = ()


class Elsewhere(Protocol):
    """Who starts the ranks where this process cannot fork them."""

    def spawn(self, plan: AgentPlan, others: Sequence[Rank]) -> Rank:
        """See ranks.Spawn."""
        ...

    def post_mortem(self) -> GenieError | None:
        """Why a rank ended, if that is known better than its end of the control channel tells."""
        ...


def new_secret() -> bytes:
    """What the ranks of one run know each other by."""
    return secrets.token_bytes(SECRET_BYTES)


def plan_of(schedule: Schedule, rank: int, place: Place, options: ReplayOptions, secret: bytes) -> AgentPlan:
    """What one rank of a replay does."""

    def transport(number: int) -> Transport:
        return choice(options.transport).make(_wiring(len(schedule.ranks), number, place, options, secret))

    return _plan(schedule, rank, place, options, transport)


def replay(
    schedule: Schedule,
    places: Sequence[Place],
    options: ReplayOptions,
    watch: Callable[[Progress], None] = lambda _: None,
    during: During | None = None,
    elsewhere: Elsewhere | None = None,
) -> Replayed:
    """Send the schedule for real; `during`: what happens beside the ranks meanwhile; `elsewhere`: if not forked here.

    Raises:
        InputError: fewer places than ranks, more flows than ports were set aside for, an unknown transport or one that
            does not understand its options.
    """
    ranks = len(schedule.ranks)
    if len(places) < ranks:
        raise InputError(f"{ranks} ranks, but the testbed has places for {len(places)}.", fix="use a larger testbed.")
    if not 1 <= options.flows <= MAX_FLOWS:
        raise InputError(f"flows must lie in 1 to {MAX_FLOWS}, not {options.flows}.")
    secret = new_secret()
    choice(options.transport).check(options.options)
    return _execute(
        [plan_of(schedule, rank, places[rank], options, secret) for rank in range(ranks)],
        schedule,
        options,
        watch,
        fork if elsewhere is None else elsewhere.spawn,
        during,
        (lambda: None) if elsewhere is None else elsewhere.post_mortem,
    )


def run_in_process(
    schedule: Schedule,
    options: ReplayOptions,
    hub: Hub | None = None,
    watch: Callable[[Progress], None] = lambda _: None,
) -> Replayed:
    """Replay with a thread a rank and messages in memory: for tests, and to try a schedule without a network.

    Args:
        schedule: what every rank does.
        options: of which only `dilation` and `launch` mean something here.
        hub: how long messages take; no time when absent.
        watch: told about progress.
    """
    shared = hub or Hub()
    place = Place("")

    def transport(rank: int) -> Transport:
        return MemoryTransport(rank, shared)

    plans = [_plan(schedule, rank, place, options, transport) for rank in range(len(schedule.ranks))]
    return _execute(plans, schedule, options, watch, thread)


def _execute(
    plans: Sequence[AgentPlan],
    schedule: Schedule,
    options: ReplayOptions,
    watch: Callable[[Progress], None],
    spawn: Spawn,
    during: During | None = None,
    post_mortem: PostMortem = lambda: None,
) -> Replayed:
    partners = _partners(schedule)
    outcome = launch(
        plans, options.launch, watch, lambda rank: partners.get(rank, set()), spawn, None, during, post_mortem
    )
    return _result(schedule, options, outcome)


def _partners(schedule: Schedule) -> dict[int, set[int]]:
    """Whom each rank exchanges messages with, in either direction."""
    partners: dict[int, set[int]] = {}
    for source, destination in schedule.expected():
        partners.setdefault(source, set()).add(destination)
        partners.setdefault(destination, set()).add(source)
    return partners


def _wiring(ranks: int, rank: int, place: Place, options: ReplayOptions, secret: bytes) -> Wiring:
    return Wiring(
        rank=rank,
        ranks=ranks,
        address=place.address,
        slot=place.slot,
        secret=secret,
        flows=options.flows,
        rate_bps=options.rate_bps,
        line_bps=options.line_bps,
        dilation=options.dilation,
        window_bytes=options.window_bytes,
        mtu_bytes=options.mtu_bytes,
        super_packet_segments=options.super_packet_segments,
        verify=options.verify,
        options=options.options,
    )


def _plan(
    schedule: Schedule, rank: int, place: Place, options: ReplayOptions, transport: Callable[[int], Transport]
) -> AgentPlan:
    nodes = schedule.workload.traces[rank].nodes
    return AgentPlan(
        rank=rank,
        make_engine=lambda: RankEngine(schedule, rank),
        make_transport=lambda: transport(rank),
        enter=place.enter,
        dilation=options.dilation,
        spin_ns=SPIN_NS if len(schedule.ranks) < (os.cpu_count() or 1) else 0,
        delays_ns=place.delays_ns,
        rates_bps=place.rates_bps,
        shaping=place.shaping,
        memory=schedule.system.memory,
        describe=lambda row: f"node {nodes.node_id[row]} ({nodes.name[row]})",
        real_time=not choice(options.transport).rdma,
    )


def _result(schedule: Schedule, options: ReplayOptions, outcome: Outcome) -> Replayed:
    notes = tuple(f"rank processes ran at {how} priority." for how in sorted(outcome.priorities))
    timeline = replace(assemble(schedule, outcome.records, "replay", outcome.status), notes=notes)
    if outcome.error is not None:
        return Replayed(timeline, (), outcome.error)
    iterations = options.launch.warmup + options.launch.repeats
    checks = tuple(self_check(schedule, timeline, outcome.moved, iterations))
    failed = [
        f"{check.name}: {check.value} (must be: {check.limit})" for check in checks if check.hard and not check.ok
    ]
    if not failed:
        return Replayed(timeline, checks, None, outcome.statistics, tuple(outcome.clocks))
    error = RunError(f"the self-check failed: {'; '.join(failed)}.")
    return Replayed(replace(timeline, status=Status.FAILED), checks, error)


__all__ = [
    "LISTEN_PORT",
    "MAX_FLOWS",
    "Place",
    "ReplayOptions",
    "Replayed",
    "replay",
    "run_in_process",
    "source_port",
]
