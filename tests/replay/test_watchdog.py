import pytest

from genie.replay.watchdog import Patience, Trouble, Verdict, Watchdog

PATIENCE = Patience(silence_ns=50, stall_ns=100, phase_ns=1_000)


@pytest.fixture
def dog():
    watchdog = Watchdog(PATIENCE)
    watchdog.begin([0, 1, 2], 0, running=True)
    return watchdog


def beat(watchdog, now_ns, *ranks, progress=(0, 0), timer=False):
    for rank in ranks:
        watchdog.report(rank, now_ns, progress, timer=timer)


def test_a_rank_that_says_nothing_is_found(dog):
    beat(dog, 40, 0, 2)
    assert dog.verdict(50) is None
    assert dog.verdict(51) == Verdict(Trouble.SILENT, (1,), 51)


def test_a_rank_that_is_done_need_not_say_anything(dog):
    dog.finish(1, 10)
    beat(dog, 40, 0, 2)
    assert dog.verdict(51) is None


def test_reports_without_progress_are_a_stall(dog):
    for now_ns in range(10, 140, 10):
        beat(dog, now_ns, 0, 1, 2, progress=(1, 1))
    assert dog.verdict(110) is None
    assert dog.verdict(111) == Verdict(Trouble.STALLED, (0, 1, 2), 101)


def test_one_rank_that_moves_is_enough(dog):
    for now_ns in range(10, 300, 10):
        beat(dog, now_ns, 0, 1)
        beat(dog, now_ns, 2, progress=(now_ns, 0))
    assert dog.verdict(300) is None


def test_a_compute_that_is_waited_out_is_no_stall(dog):
    for now_ns in range(10, 300, 10):
        beat(dog, now_ns, 0, 1)
        beat(dog, now_ns, 2, timer=True)
    assert dog.verdict(300) is None
    beat(dog, 300, 0, 1, 2)
    assert dog.verdict(301) == Verdict(Trouble.STALLED, (0, 1, 2), 291)


def test_a_phase_that_takes_too_long_is_found(dog):
    dog.begin([0, 1], 5_000, running=False)
    dog.finish(0, 5_500)
    assert dog.verdict(6_000) is None
    assert dog.verdict(6_001) == Verdict(Trouble.OVERDUE, (1,), 1_001)


@pytest.mark.parametrize("running", [True, False])
def test_nothing_is_wrong_when_all_are_done(dog, running):
    dog.begin([0], 0, running=running)
    dog.finish(0, 10)
    beat(dog, 20, 0)
    assert dog.verdict(1 << 60) is None
