import numpy as np
import pytest
from jobs import addresses, all_reduce, compute, receive, ring_job, schedule, send

from genie.core.netmodel import Dimension, DimensionModel, Estimate, Topology
from genie.core.system import System
from genie.core.timeline import UNKNOWN, Status
from genie.core.workload import CollectiveKind, NodeKind
from genie.errors import InputError, NotReadyError
from genie.replay.launcher import LaunchOptions
from genie.replay.local import MAX_FLOWS, Place, ReplayOptions, replay, run_in_process, source_port
from genie.replay.transports.memory import Hub
from genie.simulate.builtin import simulate

TWICE = LaunchOptions(warmup=1, repeats=2)


def on_loopback(job, *, delays_ns=None, **options):
    places = [Place(address, delays_ns=delays_ns or {}) for address in addresses(len(job.ranks))]
    return replay(job, places, ReplayOptions(**{"dilation": 100, "launch": TWICE} | options))


def failed(result):
    return [check.name for check in result.checks if check.hard and not check.ok]


def network(ranks):
    return DimensionModel((Dimension(Topology.RING, ranks, Estimate(1e11), Estimate(500.0)),), aware=False)


@pytest.fixture(params=["threads and memory", "processes and TCP"])
def execute(request):
    if request.param == "processes and TCP":
        return on_loopback
    return lambda job: run_in_process(job, ReplayOptions(dilation=100, launch=TWICE))


def test_a_replay_sends_what_the_schedule_says(execute):
    job = ring_job(ranks=4, size_bytes=1 << 16, us=200)
    result = execute(job)
    assert result.error is None
    assert failed(result) == []
    assert len(result.checks) == 7
    timeline = result.timeline
    assert (timeline.status, timeline.measured) == (Status.OK, True)
    assert timeline.ranks.iteration.tolist() == [0] * 4 + [1] * 4
    assert len(timeline.operators) == 2 * 4 * 3
    messages = timeline.messages
    assert len(messages) == 2 * 4 * 6
    assert int(messages.size_bytes.sum()) == 2 * 4 * 6 * (1 << 14)
    assert (messages.caused_ns >= 200_000).all()
    assert (messages.caused_ns <= messages.posted_ns).all()
    assert (messages.posted_ns <= messages.first_byte_ns).all()
    assert (messages.first_byte_ns <= messages.delivered_ns).all()
    assert (messages.delivered_ns <= messages.acknowledged_ns + 1).all()
    assert (timeline.ranks.finish_ns - timeline.ranks.exposed_ns == 400_000).all()


def test_it_sends_the_same_messages_as_the_simulator(execute):
    job = ring_job(ranks=4)
    names = ("src", "dst", "tag", "size_bytes", "index", "node_id", "chunk", "phase", "step")

    def key(messages):
        return sorted(zip(*(getattr(messages, name).tolist() for name in names), strict=True))

    predicted = key(simulate(job, network(4)).messages)
    measured = execute(job).timeline.messages
    assert key(measured.take(measured.iteration == 0)) == predicted
    assert key(measured.take(measured.iteration == 1)) == predicted


def test_compute_alone_takes_exactly_its_time(execute):
    job = schedule([compute(300), compute(50, [0]), compute(7, [1])], [compute(120)])
    timeline = execute(job).timeline
    assert timeline.ranks.finish_ns.tolist() == [357_000, 120_000] * 2
    assert timeline.ranks.exposed_ns.tolist() == [0] * 4
    rank0 = timeline.operators.take((timeline.operators.rank == 0) & (timeline.operators.iteration == 0))
    assert rank0.done_ns.tolist() == [300_000, 350_000, 357_000]
    assert len(timeline.messages) == 0


def test_sends_and_receives_match_by_tag_and_size(execute):
    there = [send(1, 1000, tag=1), send(1, 10, tag=2), send(1, 1000, tag=1), receive(1, 5, tag=9)]
    back = [receive(0, 10, tag=2), receive(0, 1000, [0], tag=1), receive(0, 1000, [1], tag=1), send(0, 5, [2], tag=9)]
    result = execute(schedule(there, back))
    assert (result.error, failed(result)) == (None, [])
    messages = result.timeline.messages
    sent = messages.take((messages.iteration == 0) & (messages.src == 0))
    assert sorted(zip(sent.tag.tolist(), sent.index.tolist(), strict=True)) == [(1, 0), (1, 1), (2, 0)]


def test_rendezvous_grants_are_sent_and_counted(execute):
    system = System(splits=1, rendezvous=True, algorithms={CollectiveKind.ALL_REDUCE: ("ring",)})
    result = execute(ring_job(ranks=2, system=system))
    assert (result.error, failed(result)) == (None, [])
    assert sorted(set(result.timeline.messages.size_bytes.tolist())) == [8192, 1 << 15]


def test_a_message_that_nobody_receives_is_sent_all_the_same(execute):
    result = execute(schedule([send(1, 100)], [compute(1)]))
    assert result.error is None
    checks = {check.name: check.ok for check in result.checks}
    assert checks["messages and bytes equal the schedule's, per rank and peer"]


def test_modelled_delays_are_in_every_time():
    job = schedule([send(1, 100), compute(1, [0])], [receive(0, 100), compute(1, [0])])
    timeline = on_loopback(job, delays_ns={0: 300_000, 1: 500_000}, dilation=50).timeline
    messages = timeline.messages
    assert (messages.first_byte_ns >= 300_000).all()
    assert (messages.acknowledged_ns >= 500_000).all()
    first = timeline.operators.take(timeline.operators.iteration == 0)
    receiver = first.take((first.rank == 1) & (first.kind == NodeKind.RECV))
    assert receiver.done_ns.tolist() == messages.take(messages.iteration == 0).delivered_ns.tolist()
    assert (timeline.ranks.finish_ns >= [501_000, 301_000] * 2).all()


def test_memory_messages_take_the_hubs_time():
    hub = Hub(latency_ns=2_000_000, bytes_per_ns=0.01)
    job = schedule([send(1, 10_000)], [receive(0, 10_000)])
    timeline = run_in_process(job, ReplayOptions(dilation=10, launch=LaunchOptions(0, 3)), hub).timeline
    taken_ns = timeline.messages.delivered_ns - timeline.messages.posted_ns
    assert (taken_ns >= 300_000).all()
    assert timeline.iteration_times_ns().tolist() == timeline.messages.delivered_ns.tolist()


def test_progress_is_told():
    told = []
    places = [Place(address) for address in addresses(2)]
    replay(ring_job(ranks=2), places, ReplayOptions(dilation=100, launch=TWICE), told.append)
    assert [progress.iteration for progress in told if progress.ranks_done == 2] == [-1, 0, 1]
    assert {progress.ranks for progress in told} == {2}


def test_several_flows_are_used_in_turn():
    result = on_loopback(ring_job(ranks=2, size_bytes=4000), flows=2)
    assert (result.error, failed(result)) == (None, [])
    assert set(result.timeline.messages.flow.tolist()) == {0, 1}


def test_pacing_holds_the_rate():
    job = schedule([send(1, 2_000_000)], [receive(0, 2_000_000)])
    timeline = on_loopback(job, rate_bps=200_000_000, dilation=1, launch=LaunchOptions(0, 1)).timeline
    taken_ns = int((timeline.messages.delivered_ns - timeline.messages.posted_ns)[0])
    assert 70_000_000 <= taken_ns <= 160_000_000


@pytest.mark.parametrize("flows", [0, MAX_FLOWS + 1])
def test_flows_are_bounded(flows):
    with pytest.raises(InputError, match="flows"):
        on_loopback(ring_job(ranks=2), flows=flows)


def test_every_rank_needs_a_place():
    with pytest.raises(InputError, match="places for 1"):
        replay(ring_job(ranks=2), [Place("127.0.0.1")], ReplayOptions())


def test_an_address_that_is_not_ours_is_an_unready_machine():
    result = replay(ring_job(ranks=2), [Place("127.9.9.1"), Place("203.0.113.1")], ReplayOptions())
    assert isinstance(result.error, NotReadyError)
    assert (result.timeline.status, len(result.timeline.operators)) == (Status.FAILED, 0)
    assert "203.0.113.1" in str(result.error)
    assert "rank 1" in str(result.error)


def test_source_ports_of_one_rank_differ():
    ports = [source_port(16, 3, peer, flow) for peer in range(16) for flow in range(MAX_FLOWS)]
    assert len(set(ports)) == len(ports)
    assert 1024 < min(ports) <= max(ports) < 65_536


def test_unfinished_ranks_are_unknown():
    result = replay(
        schedule([receive(1, 100)], [compute(1)]),
        [Place(address) for address in addresses(2)],
        ReplayOptions(dilation=1, launch=LaunchOptions(0, 1, stall_timeout_s=0.5)),
    )
    assert result.timeline.status is Status.FAILED
    assert result.timeline.ranks.finish_ns.tolist() == [UNKNOWN, 1_000]
    assert np.array_equal(result.timeline.operators.done_ns, [UNKNOWN, 1_000])
    assert "rank 1, which has finished and sends nothing more" in str(result.error)
    assert "rank 0 waits in node 0 (recv) for 100 bytes from rank 1" in str(result.error)


def test_a_large_collective_of_everybody_on_threads():
    job = schedule(*([all_reduce(1 << 20)] for _ in range(8)))
    result = run_in_process(job, ReplayOptions(launch=LaunchOptions(0, 1)))
    assert (result.error, failed(result)) == (None, [])
