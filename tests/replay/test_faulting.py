"""Faults while ranks run; on loopback those that need no fabric."""

import pytest
from jobs import FINISH, Script, ScriptedTransport, addresses, compute, receive, schedule, send

from genie.core.faults import DelayChange, Fault, FaultKind
from genie.core.testbed import LinkSpec, Testbed, single_switch
from genie.core.timeline import Status
from genie.engine.events import PostRecv
from genie.errors import NotReadyError, RunError
from genie.replay.clock import ManualClock
from genie.replay.faulting import Faulting
from genie.replay.launcher import LaunchOptions
from genie.replay.local import Place, ReplayOptions, replay
from genie.replay.runner import Runner

Testbed.__test__ = False
LINK = LinkSpec(10_000_000_000, 500, 1 << 20)
ROUTES = {(0, 1): ("h0>switch0", "switch0>h1"), (1, 0): ("h1>switch0", "switch0>h0")}
MS = 1_000_000


def faulting(*faults, repeats=1, alter=None):
    nodes, cables = single_switch(2, LINK, 1)
    return Faulting(faults, Testbed("t", nodes, cables, ("h0", "h1"), dilation=1), ROUTES, repeats, alter)


def run(job, during, repeats=1):
    options = ReplayOptions(launch=LaunchOptions(1, repeats, stall_timeout_s=2.0))
    return replay(job, [Place(address) for address in addresses(2)], options, during=during)


def ping(us=100_000):
    """Rank 0 computes, sends to rank 1, which computes and answers."""
    return schedule(
        [compute(us), send(1, 64, [0]), receive(1, 64)], [receive(0, 64), compute(us, [0]), send(0, 64, [1])]
    )


def rows(during):
    return [(row.kind, row.target, row.action, row.iteration) for row in during.record]


def test_a_paused_host_makes_the_run_longer_and_it_ends_well():
    during = faulting(Fault(FaultKind.PAUSE, "h1", 150 * MS, 600 * MS, iteration=1), repeats=2)
    result = run(ping(), during, repeats=2)
    assert result.error is None
    first, second = (result.timeline.ranks.finish_ns[result.timeline.ranks.iteration == n].max() for n in (0, 1))
    assert first < 600 * MS <= second
    assert rows(during) == [("pause", "rank 1", "begin", 1), ("pause", "rank 1", "end", 1)]
    for row in during.record:
        assert row.happened_ns >= row.planned_ns


def test_a_killed_rank_ends_the_run_with_its_name_and_the_fault():
    during = faulting(Fault(FaultKind.KILL, "rank 1", 150 * MS))
    result = run(ping(), during)
    assert isinstance(result.error, RunError)
    assert "rank 1 (process " in str(result.error)
    assert "was killed by SIGKILL" in str(result.error)
    assert "Faults of the experiment were on: kill of rank 1 since 150000000 ns." in str(result.error)
    assert result.timeline.status is Status.FAILED
    assert rows(during) == [("kill", "rank 1", "begin", 0)]


def test_a_longer_delay_holds_what_arrives_over_that_link():
    during = faulting(Fault(FaultKind.DELAY, "h0>switch0", 0, value=300 * MS + 500))
    messages = run(ping(us=1_000), during).timeline.messages
    taken = messages.delivered_ns - messages.posted_ns
    assert taken[messages.src == 0].tolist() >= [300 * MS]
    assert rows(during) == [("delay", "h0>switch0", "begin", 0), ("delay", "h0>switch0", "undone", 0)]
    assert during.record[0].happened_ns == 0


def test_a_delay_changes_for_what_arrives_in_its_time_only():
    clock = ManualClock()
    arrivals = {0: (100, 100, 100), 1: (200, 200, 200), 2: (300, 300, 300)}
    engine = Script({None: [PostRecv(handle, 1, handle, 64, (0, 0, 0, 0)) for handle in arrivals], 2: [FINISH]})
    changes = [DelayChange(1, 200, 300, 1_000)]
    runner = Runner(engine, ScriptedTransport(clock, arrivals), clock, delays_ns={1: 7}, changes=changes)
    record = runner.run(0)
    assert dict(zip(record.receives.tag.tolist(), record.receives.delivered_ns.tolist(), strict=True)) == {
        0: 107,
        1: 1_207,
        2: 307,
    }


def test_what_the_iteration_was_too_short_for_is_in_the_record():
    during = faulting(
        Fault(FaultKind.PAUSE, "h0", 10_000 * MS), Fault(FaultKind.DELAY, "h1>switch0", 0, 10_000 * MS, value=2_000)
    )
    assert run(ping(), during).error is None
    assert rows(during) == [
        ("delay", "h1>switch0", "begin", 0),
        ("delay", "h1>switch0", "undone", 0),
        ("pause", "rank 0", "not reached", 0),
    ]
    assert during.record[-1].happened_ns == -1


def test_faults_of_links_need_a_fabric():
    with pytest.raises(NotReadyError, match="needs an emulated fabric"):
        faulting(Fault(FaultKind.LINK_DOWN, "h0-switch0", 0))


def test_everything_is_undone_when_the_run_fails():
    done = []
    during = faulting(
        Fault(FaultKind.LINK_DOWN, "h0-switch0", 10 * MS, 10_000 * MS),
        Fault(FaultKind.KILL, "rank 1", 50 * MS),
        alter=lambda step: done.append((step.target, str(step.action))),
    )
    assert run(ping(), during).error is not None
    assert done == [("h0-switch0", action) for action in ("begin", "reroute", "end", "reroute")]


def test_a_fault_that_cannot_be_done_ends_the_run():
    def refuse(step):
        if step.action == "begin":
            raise RunError("could not be done: no such thing.", where="fault")

    result = run(ping(), faulting(Fault(FaultKind.LINK_DOWN, "h0-switch0", 10 * MS), alter=refuse))
    assert "could not be done" in str(result.error)
