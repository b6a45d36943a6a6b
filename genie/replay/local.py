"""A replay on this machine: a schedule and the places of its ranks -> a measured Timeline with its self-check."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from genie.core.schedule import Schedule
from genie.core.timeline import Status, Timeline
from genie.engine.rank import RankEngine
from genie.errors import InputError, RunError
from genie.replay.agent import AgentPlan
from genie.replay.assemble import assemble
from genie.replay.clock import SPIN_NS
from genie.replay.launcher import LaunchOptions, Outcome, Progress, launch
from genie.replay.selfcheck import Check, self_check
from genie.replay.transports.framing import SECRET_BYTES
from genie.replay.transports.tcp import TcpOptions, TcpTransport

FIRST_SOURCE_PORT: Final = 20_000
LISTEN_PORT: Final = 18_515
MAX_FLOWS: Final = 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank runs: its address, how to get there, and the virtual delay of the path from every other rank."""

    address: str
    enter: Callable[[], None] = lambda: None
    delays_ns: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How to replay.

    Attributes:
        dilation: real ns per virtual ns.
        launch: repeats and patience.
        flows: connections per ordered pair of ranks.
        rate_bps: real rate that each rank paces itself at; 0 leaves it to the fabric.
        receive_buffer_bytes: bounds what one sender has in flight.
        verify: check every payload byte.
    """

    dilation: int = 1
    launch: LaunchOptions = LaunchOptions()
    flows: int = 1
    rate_bps: int = 0
    receive_buffer_bytes: int = 256 << 10
    verify: bool = False


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay gave: the timeline (all there is of it), the checks, and the error that ended it, if one did."""

    timeline: Timeline
    checks: tuple[Check, ...]
    error: RunError | None = None


def source_port(ranks: int, source: int, destination: int, flow: int) -> int:
    """The local port that a connection is made from: fixed, so that ECMP takes the same path in every run."""
    return FIRST_SOURCE_PORT + (source * ranks + destination) * MAX_FLOWS % 40_000 + flow


def replay(
    schedule: Schedule,
    places: Sequence[Place],
    options: ReplayOptions,
    watch: Callable[[Progress], None] = lambda _: None,
) -> Replayed:
    """Send the schedule for real.

    Raises:
        InputError: fewer places than ranks, or more flows than ports were set aside for.
    """
    ranks = len(schedule.ranks)
    if len(places) < ranks:
        raise InputError(f"{ranks} ranks, but the testbed has places for {len(places)}.", fix="use a larger testbed.")
    if not 1 <= options.flows <= MAX_FLOWS:
        raise InputError(f"flows must lie in 1 to {MAX_FLOWS}, not {options.flows}.")
    secret = secrets.token_bytes(SECRET_BYTES)
    plans = [_plan(schedule, rank, places[rank], options, secret) for rank in range(ranks)]
    partners = _partners(schedule)
    outcome = launch(plans, options.launch, watch, lambda rank: partners.get(rank, set()))
    return _result(schedule, options, outcome)


def _partners(schedule: Schedule) -> dict[int, set[int]]:
    """Whom each rank exchanges messages with, in either direction."""
    partners: dict[int, set[int]] = {}
    for source, destination in schedule.expected():
        partners.setdefault(source, set()).add(destination)
        partners.setdefault(destination, set()).add(source)
    return partners


def _plan(schedule: Schedule, rank: int, place: Place, options: ReplayOptions, secret: bytes) -> AgentPlan:
    ranks = len(schedule.ranks)
    tcp = TcpOptions(
        address=place.address,
        port=LISTEN_PORT,
        secret=secret,
        flows=options.flows,
        source_port=lambda peer, flow: source_port(ranks, rank, peer, flow),
        rate_bps=options.rate_bps,
        receive_buffer_bytes=options.receive_buffer_bytes,
        verify=options.verify,
    )
    return AgentPlan(
        rank=rank,
        make_engine=lambda: RankEngine(schedule, rank),
        make_transport=lambda: TcpTransport(rank, tcp),
        enter=place.enter,
        dilation=options.dilation,
        spin_ns=SPIN_NS if ranks < (os.cpu_count() or 1) else 0,
        delays_ns=place.delays_ns,
        memory=schedule.system.memory,
    )


def _result(schedule: Schedule, options: ReplayOptions, outcome: Outcome) -> Replayed:
    complete = [records for records in outcome.records if _complete(records, len(schedule.ranks))]
    kept = outcome.records if outcome.error else complete
    status = outcome.status
    timeline = assemble(schedule, kept, "replay", status)
    if outcome.error is not None:
        return Replayed(timeline, (), outcome.error)
    iterations = options.launch.warmup + options.launch.repeats
    checks = tuple(self_check(schedule, timeline, outcome.moved, iterations, complete))
    failed = [check for check in checks if check.hard and not check.ok]
    if not failed:
        return Replayed(timeline, checks)
    error = RunError(f"the self-check failed: {failed[0].name}: {failed[0].value} (must be: {failed[0].limit}).")
    return Replayed(assemble(schedule, kept, "replay", Status.FAILED), checks, error)


def _complete(records: Mapping[int, object], ranks: int) -> bool:
    return len(records) == ranks
