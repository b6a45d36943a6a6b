from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given

from genie.replay.transports.pacing import CATCH_UP_NS, QUANTUM_NS, Pacer

RATE_BPS = 80_000_000  # a byte is 100 ns
BYTE_NS = 100


@dataclass(eq=False)
class Queue:
    """Something to send; the kernel takes `room` bytes of it."""

    unsent_bytes: int
    room: int = 1 << 40
    blocked: bool = False
    log: list[tuple[int, int]] = field(default_factory=list)

    def push(self, now_ns, allowance):
        taken = min(allowance, self.unsent_bytes, self.room)
        self.blocked = taken == self.room
        self.unsent_bytes -= taken
        self.room -= taken
        self.log.append((now_ns, taken))
        return taken


def drive(pacer, now_ns, late_ns=0, limit=10_000):
    """Wake when told; the time when all is sent."""
    for _ in range(limit):
        wait_ns = pacer.wait_ns(now_ns)
        if wait_ns is None:
            return now_ns
        now_ns += wait_ns + late_ns
        pacer.push(now_ns)
    raise AssertionError("it never ends")


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=5), st.integers(0, 2 * QUANTUM_NS))
def test_all_is_sent_when_the_link_could_have_sent_it(sizes, late_ns):
    pacer, queues = Pacer(RATE_BPS), [Queue(size) for size in sizes]
    for queue in queues:
        pacer.add(queue, 5_000)
    ideal_ns = 5_000 + sum(sizes) * BYTE_NS
    slack_ns = (late_ns + 10 * BYTE_NS) * (len(sizes) + 1)  # what one leaves of its share waits for another round
    assert ideal_ns <= drive(pacer, 5_000, late_ns) <= ideal_ns + slack_ns
    for queue in queues:
        assert queue.unsent_bytes == 0


@given(st.integers(1, 4), st.integers(50_000, 200_000))
def test_the_link_is_shared_evenly(others, size):
    queues = [Queue(size) for _ in range(others + 1)]
    pacer = Pacer(RATE_BPS)
    for queue in queues:
        pacer.add(queue, 0)
    now_ns = 0
    while all(queue.unsent_bytes for queue in queues):
        now_ns += pacer.wait_ns(now_ns)
        pacer.push(now_ns)
        sent = [size - queue.unsent_bytes for queue in queues]
        assert max(sent) - min(sent) <= 2 * QUANTUM_NS // BYTE_NS


def test_nothing_leaves_before_a_portion_may():
    pacer, queue = Pacer(RATE_BPS), Queue(1_000_000)
    pacer.add(queue, 0)
    assert pacer.wait_ns(0) == QUANTUM_NS
    assert pacer.push(QUANTUM_NS - 1) == []
    assert queue.log == []
    pacer.push(QUANTUM_NS)
    assert queue.log == [(QUANTUM_NS, QUANTUM_NS // BYTE_NS)]


def test_an_idle_link_saves_nothing_up():
    pacer = Pacer(RATE_BPS)
    pacer.add(Queue(10), 0)
    drive(pacer, 0)
    late = Queue(1_000)
    pacer.add(late, 10**9)
    assert pacer.wait_ns(10**9) == 1_000 * BYTE_NS


def test_lateness_is_made_up_for_within_bounds():
    pacer, queue = Pacer(RATE_BPS), Queue(1 << 40)
    pacer.add(queue, 0)
    pacer.push(10 * CATCH_UP_NS)
    assert queue.log == [(10 * CATCH_UP_NS, CATCH_UP_NS // BYTE_NS)]


def test_a_blocked_connection_is_handed_back_and_the_others_go_on():
    pacer, stuck, free = Pacer(RATE_BPS), Queue(50_000, room=3_000), Queue(50_000)
    for queue in (stuck, free):
        pacer.add(queue, 0)
        pacer.add(queue, 0)
    assert pacer.push(QUANTUM_NS) == [stuck]
    assert drive(pacer, QUANTUM_NS) == 53_000 * BYTE_NS
    assert (free.unsent_bytes, stuck.unsent_bytes) == (0, 47_000)
    stuck.room, stuck.blocked = 1 << 40, False
    pacer.add(stuck, 10**9)
    assert drive(pacer, 10**9) == 10**9 + 47_000 * BYTE_NS
