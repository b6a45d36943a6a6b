"""The engine as a list of events in and actions out: no clock, no network."""

from dataclasses import replace

import pytest

from genie.core.system import Profile, System
from genie.core.workload import CollectiveKind
from genie.engine.events import (
    OperatorDone,
    OperatorIssued,
    PostRecv,
    PostSend,
    RankFinished,
    RecvDone,
    SendDone,
    SetTimer,
    Start,
    TimerFired,
)
from genie.engine.rank import RankEngine
from genie.errors import InternalError
from genie.lower import lower
from genie.patterns import TraceBuilder, as_workload, collective

RING = System(splits=1, algorithms=dict.fromkeys(CollectiveKind, ("ring",)))


def engine(workload, system=RING, rank=0):
    return RankEngine(lower(workload, system), rank)


def kinds(actions):
    return [type(action).__name__ for action in actions]


def test_a_ring_of_two_step_by_step():
    machine = engine(collective(CollectiveKind.ALL_GATHER, 2, 100))
    issued, timer = machine.step(Start(0))
    assert issued == OperatorIssued(0)
    assert (timer.delay_ns, type(timer)) == (10, SetTimer)
    send, receive = machine.step(TimerFired(10, timer.handle))
    assert (send.peer, send.size_bytes, send.notify, send.tag) == (1, 100, False, 500_000_000)
    assert (receive.peer, receive.size_bytes) == (1, 100)
    (timer,) = machine.step(RecvDone(50, receive.handle))
    done, finished = machine.step(TimerFired(60, timer.handle))
    assert (done, finished) == (OperatorDone(0), RankFinished(0))
    assert machine.finished


def two_independent_sends():
    traces = [TraceBuilder(0), TraceBuilder(1)]
    for peer, trace in ((1, traces[0]), (0, traces[1])):
        trace.send("a", peer, 10, 1)
        trace.send("b", peer, 10, 2)
        trace.receive("c", peer, 10, 1)
        trace.receive("d", peer, 10, 2)
    return as_workload("sends", traces)


def test_one_communication_operator_at_a_time_in_the_default_profile():
    machine = engine(two_independent_sends())
    actions = machine.step(Start(0))
    assert kinds(actions) == ["OperatorIssued", "PostSend", "OperatorIssued", "PostRecv", "OperatorIssued", "PostRecv"]
    send = next(action for action in actions if isinstance(action, PostSend))
    assert kinds(machine.step(SendDone(5, send.handle))) == ["OperatorDone", "OperatorIssued", "PostSend"]


def test_sends_side_by_side_in_the_other():
    machine = engine(two_independent_sends(), replace(RING, profile=Profile.OVERLAP))
    assert kinds(machine.step(Start(0))).count("PostSend") == 2


def test_compute_and_communication_overlap_and_lower_rows_go_first():
    traces = [TraceBuilder(0), TraceBuilder(1)]
    for trace in traces:
        trace.compute("x", 3)
        trace.compute("y", 2)
        trace.collective("r", CollectiveKind.ALL_REDUCE, 64)
    actions = engine(as_workload("w", traces)).step(Start(0))
    assert [a.row for a in actions if isinstance(a, OperatorIssued)] == [0, 2]
    assert [a.delay_ns for a in actions if isinstance(a, SetTimer)] == [3000, 10]


def test_rendezvous_waits_for_the_grant():
    machine = engine(two_independent_sends(), replace(RING, rendezvous=True))
    actions = machine.step(Start(0))
    grant = next(a for a in actions if isinstance(a, PostRecv))
    assert (grant.size_bytes, grant.tag) == (8192, 1_000_000_001)
    (send,) = machine.step(RecvDone(9, grant.handle))
    assert (send.size_bytes, send.tag) == (10, 1)


def test_an_answer_to_nothing_is_a_bug():
    machine = engine(collective(CollectiveKind.ALL_GATHER, 2, 100))
    machine.step(Start(0))
    with pytest.raises(InternalError, match="handle 99"):
        machine.step(TimerFired(1, 99))


def test_equal_events_give_equal_actions():
    first, second = (engine(collective(CollectiveKind.ALL_REDUCE, 4, 999)) for _ in range(2))
    assert first.step(Start(0)) == second.step(Start(0))
