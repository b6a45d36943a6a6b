from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from jobs import FINISH, Script, ScriptedTransport, operator

from genie.core.shaping import Shaping
from genie.core.system import MemoryKind, RemoteMemory
from genie.core.timeline import UNKNOWN
from genie.engine.events import (
    AccessMemory,
    OperatorIssued,
    Origin,
    PostRecv,
    PostSend,
    RecvDone,
    SetTimer,
    TimerFired,
)
from genie.replay.clock import ManualClock
from genie.replay.runner import IDLE_POLL_NS, Runner

ORIGIN = Origin(5, 0, 1, 2)


def run(answers, *, start_ns=1_000, clock=None, transport=None, **options):
    clock = clock or ManualClock()
    transport = transport or ScriptedTransport(clock)
    engine = Script(answers)
    runner = Runner(engine, transport, clock, **options)
    return runner.run(start_ns), engine, transport


def post(handle, peer, tag, size_bytes, *, notify=False):
    return PostSend(handle, peer, tag, size_bytes, ORIGIN, notify)


def lists(table):
    return {name: column.tolist() for name, column in table.columns().items()}


def chain(delays):
    """A timer after the other; each is an operator."""
    answers = {None: [SetTimer(0, delays[0])]}
    for at, delay_ns in enumerate(delays[1:]):
        answers[at] = operator(at, SetTimer(at + 1, delay_ns))
    answers[len(delays) - 1] = operator(len(delays) - 1, FINISH)
    return answers


@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=20),
    st.integers(1, 5000),
    st.integers(0, 10**6),
    st.integers(0, 10**9),
)
def test_late_wakeups_do_not_accumulate(delays, dilation, tardy_ns, start_ns):
    clock = ManualClock()
    transport = ScriptedTransport(clock, tardy_ns=tardy_ns)
    record, _, _ = run(chain(delays), start_ns=start_ns, clock=clock, transport=transport, dilation=dilation)
    assert record.finish_ns == sum(delays)
    done = [sum(delays[: at + 1]) for at in range(len(delays))]
    assert record.operators.done_ns.tolist() == done == record.operators.issue_ns.tolist()
    assert all(0 <= late_ns * dilation <= tardy_ns for late_ns in record.operators.late_ns.tolist())


def test_a_late_wakeup_is_recorded_as_lateness():
    clock = ManualClock()
    record, _, _ = run(chain([100, 100]), clock=clock, transport=ScriptedTransport(clock, tardy_ns=70), dilation=10)
    assert record.operators.late_ns.tolist() == [7, 7]


def test_the_engine_starts_before_time_but_acts_at_the_start():
    clock = ManualClock()
    transport = ScriptedTransport(clock)
    engine = Script({None: [post(1, 2, 3, 4), FINISH]})
    runner = Runner(engine, transport, clock)
    assert len(engine.events) == 1
    assert transport.posts == []
    runner.run(5_000)
    assert transport.posts == [("send", 1, 5_000)]
    assert len(engine.events) == 1


def receive_then_timer(handle=1):
    return {
        None: [OperatorIssued(0), PostRecv(handle, 4, 8, 64, ORIGIN)],
        handle: [*operator(1), SetTimer(2, 1_000)],
        2: operator(2, FINISH),
    }


def test_a_message_happened_when_it_was_on_the_wire():
    clock = ManualClock()
    transport = ScriptedTransport(clock, arrivals={1: (3_000, 6_000, 6_770)})
    record, _, _ = run(receive_then_timer(), clock=clock, transport=transport, dilation=10)
    assert record.operators.issue_ns.tolist() == [0, 500, 1_500]
    assert record.operators.late_ns.tolist() == [0, 77, 0]
    assert lists(record.receives) == {
        "peer": [4],
        "tag": [8],
        "size_bytes": [64],
        "index": [0],
        "flow": [3],
        "first_byte_ns": [200],
        "delivered_ns": [500],
    }


def test_a_message_is_held_back_for_the_delay_of_its_path():
    clock = ManualClock()
    transport = ScriptedTransport(clock, arrivals={1: (3_000, 6_000, 6_770)})
    record, engine, _ = run(
        receive_then_timer(), clock=clock, transport=transport, dilation=10, delays_ns={4: 2_000, 5: 9}
    )
    assert engine.events[1:] == [RecvDone(2_500, 1), TimerFired(3_500, 2)]
    assert record.receives.first_byte_ns.tolist() == [2_200]
    assert record.receives.delivered_ns.tolist() == [2_500]
    assert record.operators.late_ns.tolist() == [0, 0, 0]
    assert clock.now_ns() == 1_000 + 10 * 3_500


def test_the_end_of_a_message_is_held_back_by_what_the_emulator_lets_through_early():
    """64 bytes and 8 ahead of them are a super-packet of 50 and one of 22, which takes 22 ns at 8 Gb/s."""
    clock = ManualClock()
    transport = ScriptedTransport(clock, arrivals={1: (3_000, 6_000, 6_770)})
    early = {"rates_bps": {4: 8_000_000_000}, "shaping": Shaping(50, 8)}
    record, engine, _ = run(
        receive_then_timer(), clock=clock, transport=transport, dilation=10, delays_ns={4: 2_000}, **early
    )
    assert engine.events[1] == RecvDone(2_522, 1)
    assert record.receives.first_byte_ns.tolist() == [2_200]
    assert record.receives.delivered_ns.tolist() == [2_522]


def test_an_acknowledgement_cannot_precede_that_end():
    answers = {None: [post(1, 4, 8, 64, notify=True)], 1: [FINISH]}
    early = {"rates_bps": {4: 8_000_000_000}, "shaping": Shaping(50, 8)}
    record, _, _ = run(answers, clock=ManualClock(), delays_ns={4: 700}, dilation=1, **early)
    assert record.sends.acknowledged_ns.tolist() == [732]


def test_what_comes_from_where_no_rate_is_known_is_not_held_back():
    answers = {None: [post(1, 4, 8, 64, notify=True)], 1: [FINISH]}
    record, _, _ = run(answers, clock=ManualClock(), rates_bps={5: 1_000}, shaping=Shaping(50, 8))
    assert record.sends.acknowledged_ns.tolist() == [10]


def test_an_acknowledgement_is_held_back_for_the_way_back():
    clock = ManualClock()
    record, engine, _ = run(
        {None: [post(1, 4, 8, 64, notify=True)], 1: [FINISH]}, clock=clock, delays_ns={4: 700}, dilation=1
    )
    assert record.sends.acknowledged_ns.tolist() == [710]
    assert record.finish_ns == engine.events[-1].now_ns == 710
    assert clock.now_ns() == 1_710


def test_a_message_that_was_early_counts_from_when_it_was_asked_for():
    clock = ManualClock()
    answers = {
        None: [SetTimer(0, 800)],
        0: [PostRecv(1, 4, 8, 64, ORIGIN)],
        1: operator(0, FINISH),
    }
    transport = ScriptedTransport(clock, arrivals={1: (1_100, 1_200, 1_200)})
    record, _, _ = run(answers, clock=clock, transport=transport)
    assert record.receives.delivered_ns.tolist() == [200]
    assert record.operators.issue_ns.tolist() == [800]
    assert record.finish_ns == 800


def race(told_ns):
    """A timer due at 1000 and a message that was on the wire at 900 but is told at `told_ns`."""
    clock = ManualClock()
    answers = {
        None: [PostRecv(1, 4, 8, 64, ORIGIN), SetTimer(2, 1_000)],
        1: operator(1, SetTimer(3, 500)),
        2: operator(2),
        3: [FINISH],
    }
    transport = ScriptedTransport(clock, arrivals={1: (850, 900, told_ns)}, tardy_ns=100)
    return run(answers, start_ns=0, clock=clock, transport=transport)


def test_events_reach_the_engine_in_the_order_of_their_times():
    record, engine, _ = race(told_ns=1_100)
    assert engine.events[1:] == [RecvDone(900, 1), TimerFired(1_000, 2), TimerFired(1_400, 3)]
    assert record.finish_ns == 1_400


def test_an_event_that_turns_up_too_late_counts_as_of_the_one_before():
    record, engine, _ = race(told_ns=1_200)
    assert engine.events[1:] == [TimerFired(1_000, 2), RecvDone(1_000, 1), TimerFired(1_500, 3)]
    assert record.receives.delivered_ns.tolist() == [900]


def test_the_rank_stays_until_its_messages_are_acknowledged():
    clock = ManualClock()
    answers = {None: operator(0, post(1, 4, 8, 64), post(2, 4, 8, 64), FINISH)}
    record, engine, _ = run(answers, clock=clock, transport=ScriptedTransport(clock, send_ns=123))
    assert clock.now_ns() == 1_123
    assert record.finish_ns == 0
    assert len(engine.events) == 1
    assert lists(record.sends) == {
        "peer": [4, 4],
        "tag": [8, 8],
        "size_bytes": [64, 64],
        "index": [0, 1],
        "flow": [3, 3],
        "node_id": [5, 5],
        "chunk": [0, 0],
        "phase": [1, 1],
        "step": [2, 2],
        "caused_ns": [0, 0],
        "posted_ns": [0, 0],
        "acknowledged_ns": [123, 123],
    }


def test_remote_memory_takes_its_latency_and_its_bytes():
    memory = RemoteMemory(MemoryKind.PER_NPU, latency_ns=40, bytes_per_ns=3)
    record, _, _ = run({None: [AccessMemory(1, 100)], 1: [FINISH]}, memory=memory)
    assert record.finish_ns == 40 + 33


def test_the_last_part_of_a_wait_is_spun():
    clock = ManualClock()
    transport = ScriptedTransport(clock, spin_ns=10)
    run(chain([10_000]), clock=clock, transport=transport, start_ns=0, spin_ns=500)
    assert transport.timeouts == [0, 9_490, *[0] * 50]


def test_without_spinning_it_sleeps_to_the_end():
    _, _, transport = run(chain([10_000]), start_ns=0)
    assert transport.timeouts == [0, 10_000]


def test_a_long_wait_is_cut_so_that_the_launcher_is_heard():
    attended = []
    clock = ManualClock()
    run(chain([10 * IDLE_POLL_NS]), clock=clock, start_ns=0, attend=lambda: attended.append(clock.now_ns()))
    assert max(b - a for a, b in pairwise(attended)) <= IDLE_POLL_NS


def test_it_can_say_what_it_waits_for():
    clock = ManualClock()
    said = []

    def attend():
        said.append((runner.outstanding(), runner.waits_for_timer))

    answers = {
        None: [PostRecv(1, 4, 8, 64, ORIGIN), post(2, 6, 9, 32)],
        1: [SetTimer(3, 5)],
        3: [FINISH],
    }
    transport = ScriptedTransport(clock, arrivals={1: (100, 200, 200)}, send_ns=50)
    runner = Runner(Script(answers), transport, clock, attend=attend)
    record = runner.run(0)
    assert said[0] == ({"receives": [[4, 8, 64]], "sends": [[6, 9, 32]], "operators": [7]}, False)
    assert ({"receives": [], "sends": [], "operators": [7]}, True) in said
    assert record.finish_ns == 205


def test_an_unfinished_record_says_so():
    clock = ManualClock()
    runner = Runner(Script({}), ScriptedTransport(clock), clock)
    record = runner.record()
    assert (record.finish_ns, record.compute_ns, len(record.sends)) == (UNKNOWN, UNKNOWN, 0)
