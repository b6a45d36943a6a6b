from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import all_reduce, compute, ring_job, schedule

from genie.core.netmodel import Dimension, DimensionModel, Estimate, Topology
from genie.core.timeline import UNKNOWN
from genie.replay.selfcheck import busy_ns, own_shares, self_check
from genie.simulate.builtin import simulate

COUNTS, GROUPS, SENT, CAUSAL, DEPENDENCIES, LATE, OWN = range(7)
JOB = ring_job(ranks=3, size_bytes=3000, us=10)
TIMELINE = simulate(JOB, DimensionModel((Dimension(Topology.RING, 3, Estimate(1e10), Estimate(500.0)),), aware=False))


def moved(job, iterations=1):
    counts = {rank: {"sent": {}, "received": {}} for rank in range(len(job.ranks))}
    for (source, destination), count in job.expected().items():
        counts[source]["sent"][destination] = [iterations * n for n in count]
        counts[destination]["received"][source] = [iterations * n for n in count]
    return counts


def check(timeline=TIMELINE, counts=None, iterations=1, job=JOB):
    return self_check(job, timeline, moved(job, iterations) if counts is None else counts, iterations)


def wrong(checks):
    return [at for at, one in enumerate(checks) if not one.ok]


def with_column(table, name, row, value):
    column = getattr(table, name).copy()
    column[row] = value
    return replace(table, **{name: column})


def test_a_good_run_passes():
    checks = check(iterations=5)
    assert wrong(checks) == []
    assert [one.hard for one in checks] == [True] * 5 + [False] * 2
    assert checks[COUNTS].value == "60 messages between 3 pairs of ranks"


@pytest.mark.parametrize("way", ["sent", "received"])
@pytest.mark.parametrize("change", [0, 1])
def test_one_message_or_byte_too_few_is_found(way, change):
    counts = moved(JOB)
    peer = min(counts[1][way])
    counts[1][way][peer][change] -= 1
    checks = check(counts=counts)
    assert wrong(checks) == [COUNTS]
    assert checks[COUNTS].value == "1 pairs differ"
    assert f"{way} " in checks[COUNTS].detail


def test_a_pair_that_should_not_talk_is_found():
    counts = moved(JOB)
    counts[0]["sent"][2] = [1, 8]
    assert "0->2: scheduled [0, 0], sent [1, 8], received [0, 0]" in check(counts=counts)[COUNTS].detail


def test_a_replay_that_moved_nothing_fails():
    nothing = replace(TIMELINE, messages=TIMELINE.messages.take(np.empty(0, np.int64)))
    assert set(wrong(check(nothing, counts={}))) == {COUNTS, GROUPS, SENT}


def test_a_schedule_without_messages_need_move_nothing():
    job = schedule([compute(5)], [compute(5)])
    network = DimensionModel((Dimension(Topology.RING, 2, Estimate(1e10), Estimate(500.0)),), aware=False)
    assert wrong(check(simulate(job, network), job=job)) == []


def test_bytes_of_another_group_are_found():
    other = replace(TIMELINE, messages=with_column(TIMELINE.messages, "size_bytes", 0, 1001))
    assert wrong(check(other)) == [GROUPS]


def test_a_message_before_its_post_is_found():
    early = replace(TIMELINE, messages=with_column(TIMELINE.messages, "delivered_ns", 4, 9))
    checks = check(early)
    assert wrong(checks) == [CAUSAL]
    assert checks[CAUSAL].value == "0 not delivered, 1 early"
    assert "delivered_ns 9" in checks[CAUSAL].detail


def test_a_message_before_its_cause_is_found():
    early = replace(TIMELINE, messages=with_column(TIMELINE.messages, "posted_ns", 4, 0))
    assert wrong(check(early)) == [CAUSAL]


def test_a_lost_message_is_found():
    lost = replace(TIMELINE, messages=with_column(TIMELINE.messages, "delivered_ns", 4, UNKNOWN))
    assert check(lost)[CAUSAL].value == "1 not delivered, 0 early"
    unasked = replace(lost, messages=with_column(lost.messages, "acknowledged_ns", 4, 10**6))
    assert wrong(check(unasked)) == []


@pytest.mark.parametrize(("column", "value"), [("issue_ns", 0), ("done_ns", UNKNOWN), ("done_ns", 10**9)])
def test_an_operator_before_its_dependency_is_found(column, value):
    operators = TIMELINE.operators
    row = int(np.flatnonzero((operators.rank == 1) & (operators.node_id == 1))[0])
    checks = check(replace(TIMELINE, operators=with_column(operators, column, row, value)))
    assert wrong(checks) == [DEPENDENCIES]
    assert checks[DEPENDENCIES].detail.startswith("rank 1, iteration 0: node ")


def test_late_posts_are_the_tools_own_time():
    messages = TIMELINE.messages
    late = replace(
        TIMELINE,
        messages=replace(messages, posted_ns=messages.caused_ns + 400, delivered_ns=messages.delivered_ns + 400),
    )
    checks = check(late)
    assert wrong(checks) == [OWN]
    assert not checks[OWN].hard
    finish_ns = int(TIMELINE.ranks.finish_ns[0])
    assert own_shares(late) == {(0, rank): 4 * 400 / finish_ns for rank in range(3)}
    assert "p50 0.4 us, p99 0.4 us" in checks[OWN].detail


def test_posts_that_wait_side_by_side_count_once():
    job = schedule(*([all_reduce(4000)] for _ in range(2)))
    timeline = simulate(
        job, DimensionModel((Dimension(Topology.RING, 2, Estimate(1e10), Estimate(500.0)),), aware=False)
    )
    messages = timeline.messages.take(np.repeat(np.arange(len(timeline.messages)), 2))
    doubled = replace(timeline, messages=replace(messages, posted_ns=messages.caused_ns + 100))
    assert own_shares(doubled)[0, 0] == pytest.approx(200 / int(timeline.ranks.finish_ns[0]))


INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


@given(INTERVALS)
def test_busy_time_is_the_union(intervals):
    begin = np.array([b for b, _ in intervals], np.int64)
    end = np.array([b + length for b, length in intervals], np.int64)
    covered = {t for b, length in intervals for t in range(b, b + length)}
    assert busy_ns(begin, end) == len(covered)
