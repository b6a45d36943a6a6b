"""The virtual clock: order of ticks, order within a tick, refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.errors import InputError, InternalError
from genie.network.queue import EventQueue


@given(st.lists(st.integers(1, 20)))
def test_ticks_ascend_and_ties_keep_their_order(ticks):
    queue, seen = EventQueue(), []
    for number, tick in enumerate(ticks):
        queue.at(tick, lambda n: seen.append((queue.now_ns, n)), number)
    queue.run()
    assert seen == sorted(zip(ticks, range(len(ticks)), strict=True))


def test_what_is_added_to_the_running_tick_runs_in_the_same_pass_behind_the_rest():
    queue, seen = EventQueue(), []

    def first():
        seen.append(("first", queue.now_ns))
        queue.at(queue.now_ns, lambda: seen.append(("added", queue.now_ns)))

    queue.at(5, first)
    queue.at(5, lambda: seen.append(("second", queue.now_ns)))
    queue.at(6, lambda: seen.append(("later", queue.now_ns)))
    queue.run()
    assert seen == [("first", 5), ("second", 5), ("added", 5), ("later", 6)]


def test_the_past_is_a_bug():
    queue = EventQueue()
    queue.at(5, lambda: queue.at(4, lambda: None))
    with pytest.raises(InternalError, match="tick 4 came at tick 5"):
        queue.run()


def test_a_tick_that_has_run_is_past():
    queue = EventQueue()
    queue.at(3, lambda: None)
    queue.at(5, lambda: queue.at(3, lambda: None))
    with pytest.raises(InternalError):
        queue.run()


def test_tick_zero_is_refused_only_under_strict_zero():
    seen = []
    strict, lax = EventQueue(strict_zero=True), EventQueue()
    for queue in (strict, lax):
        queue.at(0, seen.append, 1)
    with pytest.raises(InputError, match="tick 0"):
        strict.run()
    assert seen == []
    lax.run()
    assert seen == [1]


def test_strict_zero_does_not_mind_later_ticks():
    queue, seen = EventQueue(strict_zero=True), []
    queue.at(1, lambda: queue.at(1, seen.append, "no delay, but not at tick 0"))
    queue.run()
    assert seen == ["no delay, but not at tick 0"]
    assert queue.now_ns == 1


def test_run_can_go_on():
    queue, seen = EventQueue(), []
    queue.at(2, seen.append, "a")
    queue.run()
    queue.at(2, seen.append, "b")
    queue.run()
    assert seen == ["a", "b"]
