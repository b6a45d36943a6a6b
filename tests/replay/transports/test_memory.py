import itertools

import pytest
from conformance import Conformance, Party

from genie.errors import RunError
from genie.replay.clock import ManualClock
from genie.replay.transports.base import Kind
from genie.replay.transports.memory import Hub, MemoryTransport

LATENCY_NS = 2_000


class TestMemory(Conformance):
    def make(self, ranks):
        hub = Hub()
        return [MemoryTransport(rank, hub) for rank in range(ranks)]


class TestMemoryWithDelays(TestMemory):
    def make(self, ranks):
        hub = Hub(latency_ns=20_000, bytes_per_ns=10.0)
        return [MemoryTransport(rank, hub) for rank in range(ranks)]


def timed(ranks=2):
    """Ranks on a clock that moves when somebody waits: 2 us, then a byte a ns."""
    hub = Hub(LATENCY_NS, 1.0, ManualClock(1_000))
    ends = [MemoryTransport(rank, hub) for rank in range(ranks)]
    for end in ends:
        end.open()
    for rank, end in enumerate(ends):
        end.connect({peer: {} for peer in range(ranks) if peer != rank}, 10**9)
    return ends, hub.clock


def test_a_message_takes_latency_and_its_size_over_the_rate():
    (sender, receiver), clock = timed()
    receiver.post_recv(1, 0, 0, 500)
    sender.post_send(2, 1, 0, 500)
    assert receiver.poll(100) == []
    assert clock.now_ns() == 1_100
    assert receiver.poll(10**9) == [(1, Kind.RECV, 0, 1_000, 1_000, 3_500, 0)]
    assert clock.now_ns() == 3_500
    assert sender.poll(10**9) == [(2, Kind.SEND, 1, 1_000, 1_000, 3_500, 0)]


def test_messages_of_one_sender_share_its_link_and_those_of_others_do_not():
    ends, _ = timed(3)
    for handle, (source, destination) in enumerate([(0, 1), (0, 2), (1, 2)]):
        ends[source].post_send(handle, destination, 0, 1_000)
    arrivals = {}
    for rank in (1, 2):
        ends[rank].post_recv(10, 0, 0, 1_000)
    ends[2].post_recv(11, 1, 0, 1_000)
    for rank in (1, 2):
        while len(arrivals) < 3 and (done := ends[rank].poll(10_000)):
            arrivals |= {(c.peer, rank): c.done_ns for c in done if c.kind is Kind.RECV}
    assert arrivals == {(0, 1): 4_000, (0, 2): 5_000, (1, 2): 4_000}


def test_two_runs_are_the_same():
    def run():
        ends, clock = timed(4)
        seen = []
        for handle, (source, destination) in enumerate(itertools.permutations(range(4), 2)):
            ends[destination].post_recv(100 + handle, source, 0, 100 * source)
            ends[source].post_send(handle, destination, 0, 100 * source)
        for _ in range(10):
            for end in ends:
                seen += end.poll(1_000)
        return seen, clock.now_ns()

    first = run()
    assert first == run()
    assert len(first[0]) == 24


def test_a_deadline_on_a_manual_clock_is_kept_without_waiting():
    hub = Hub(clock=ManualClock())
    end = MemoryTransport(0, hub)
    end.open()
    with pytest.raises(RunError, match="ranks 1, 2 in time"):
        end.connect({1: {}, 2: {}}, 10**15)
    assert hub.clock.now_ns() == 10**15


def test_a_receiver_that_leaves_while_a_message_is_on_its_way_is_named():
    hub = Hub(latency_ns=10**12)
    with Party([MemoryTransport(rank, hub) for rank in range(2)]) as party:
        party.send(0, 1, 1, 100)
        party.dies(1)
        with pytest.raises(RunError, match="rank 1 is gone; 1 sends to it and 0 receives"):
            party.poll(0)
