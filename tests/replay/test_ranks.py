import os
import signal
import time

import pytest

from genie.errors import InternalError, NotReadyError
from genie.replay.agent import AgentPlan
from genie.replay.ranks import first_killed, fork, thread


def no_transport():
    raise NotReadyError("nothing to send with.")


def plan(rank, enter=lambda: None):
    return AgentPlan(rank, make_engine=object, make_transport=no_transport, enter=enter)


def sleep_long():
    time.sleep(60)


@pytest.fixture
def forked():
    started = []

    def start(enter):
        started.append(fork(plan(len(started), enter), started))
        return started[-1]

    yield start
    for rank in started:
        rank.end(0)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_rank_that_fails_says_why_and_ends_with_its_code(forked):
    rank = forked(lambda: None)
    message, _ = rank.channel.receive()
    assert (message["op"], message["kind"], message["what"]) == ("failed", "NotReadyError", "nothing to send with.")
    assert rank.wait_ms(5_000)
    assert rank.ended() == f"ended with exit code {NotReadyError.exit_code}"
    assert not rank.killed


def test_a_rank_dies_of_a_signal(forked):
    rank = forked(sleep_long)
    assert rank.ended() == ""
    os.kill(rank.pid, signal.SIGTERM)
    assert rank.wait_ms(5_000)
    assert rank.ended() == "was killed by SIGTERM"
    assert rank.killed


def test_ctrl_c_is_not_for_ranks(forked):
    rank = forked(sleep_long)
    time.sleep(0.1)
    os.kill(rank.pid, signal.SIGINT)
    assert not rank.wait_ms(100)


def test_a_rank_that_does_not_end_is_ended(forked):
    rank = forked(sleep_long)
    begun_s = time.monotonic()
    rank.end(grace_ms=50)
    assert 0.05 <= time.monotonic() - begun_s < 5
    assert rank.ended() == "was killed by SIGKILL"


def test_a_stopped_rank_is_ended_too(forked):
    rank = forked(sleep_long)
    os.kill(rank.pid, signal.SIGSTOP)
    rank.end(grace_ms=0)
    assert rank.killed


def test_the_killed_one_is_found_among_those_that_merely_failed(forked):
    ranks = [forked(lambda: None), forked(sleep_long), forked(sleep_long)]
    assert ranks[0].wait_ms(5_000)
    os.kill(ranks[2].pid, signal.SIGKILL)
    assert first_killed(ranks, within_ms=5_000) is ranks[2]


def test_nobody_was_killed(forked):
    assert first_killed([forked(sleep_long)], within_ms=50) is None
    assert first_killed([], within_ms=5_000) is None


def test_a_rank_does_not_hold_on_to_the_channels_of_others(forked):
    first, _ = forked(lambda: None), forked(sleep_long)
    assert first.channel.receive()[0]["op"] == "failed"
    assert first.wait_ms(5_000)
    first.channel.close()
    assert first_killed([first], within_ms=50) is None


def test_no_process_left_to_start_is_an_unready_machine(monkeypatch):
    def refuse():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(NotReadyError, match="rank 4 cannot be started: Resource temporarily unavailable"):
        fork(plan(4), [])


def test_a_thread_ends_when_its_channel_does():
    def crash():
        raise KeyError("enter")

    rank = thread(plan(0, crash), [])
    message, _ = rank.channel.receive()
    assert message["kind"] == InternalError.__name__
    assert message["what"].startswith("KeyError at test_ranks.py:")
    rank.end(0)
    assert rank.ended() == "ended"
