import ctypes
import threading
import time

import hypothesis.strategies as st
from hypothesis import given

from genie.replay.clock import SPIN_NS, ManualClock, RealClock, realtime_offset_ns, sharpen_timers

PR_GET_TIMERSLACK = 30
TIMES = st.integers(-(1 << 60), 1 << 60)


@given(TIMES, st.lists(TIMES))
def test_a_manual_clock_goes_where_sleepers_want_and_never_back(start_ns, wishes):
    clock = ManualClock(start_ns)
    for wish_ns in wishes:
        before_ns = clock.now_ns()
        late_ns = clock.sleep_until_ns(wish_ns)
        assert clock.now_ns() == max(before_ns, wish_ns)
        assert late_ns == clock.now_ns() - wish_ns >= 0


def test_a_manual_clock_moves_when_told():
    clock = ManualClock(5)
    clock.advance_ns(7)
    assert clock.now_ns() == 12


def test_the_real_clock_is_monotonic_time():
    clock = RealClock()
    assert time.monotonic_ns() <= clock.now_ns() <= time.monotonic_ns()


def test_a_sleep_is_never_short_and_tells_how_late_it_was():
    clock = RealClock()
    lateness = []
    for wait_ns in [SPIN_NS // 2, 3 * SPIN_NS] * 20:
        due_ns = clock.now_ns() + wait_ns
        late_ns = clock.sleep_until_ns(due_ns)
        after_ns = clock.now_ns()
        assert 0 <= late_ns <= after_ns - due_ns
        lateness.append(late_ns)
    assert min(lateness) < 20_000  # the machine may be busy, but not every time


def test_a_time_that_is_past_is_returned_from_at_once():
    clock = RealClock()
    now_ns = clock.now_ns()
    assert clock.sleep_until_ns(now_ns - 10**9) >= 10**9
    assert clock.now_ns() - now_ns < 10**9


def test_the_offset_turns_monotonic_time_into_real_time():
    before_ns, real_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
    offset_ns = realtime_offset_ns()
    assert before_ns - 100_000 <= real_ns - offset_ns <= after_ns + 100_000


def test_sharpened_timers_are_those_of_the_calling_thread():
    slack_ns = []

    def ask():
        libc = ctypes.CDLL(None)
        slack_ns.append(libc.prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0))
        sharpen_timers()
        slack_ns.append(libc.prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    before_ns, sharpened_ns = slack_ns
    assert sharpened_ns <= min(1, before_ns)
