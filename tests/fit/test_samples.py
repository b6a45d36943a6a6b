"""What a fit sees: which messages, where their time begins, and who stood before them in line."""

from dataclasses import replace

import numpy as np
import pytest
from fit_traffic import dimensions, posts, timeline

from genie.errors import InputError
from genie.fit.busy import ends_busy_period
from genie.fit.samples import NEVER, collect, posts_ns, predict, software_ns

TRUTH = dimensions(("Switch", 8, 8e9, 1000))  # one byte a ns


def with_columns(measured, **columns):
    changed = {**measured.messages.columns(), **{name: np.array(column) for name, column in columns.items()}}
    return replace(measured, messages=type(measured.messages)(**changed))


def two_in_line():
    """Two messages of one pair, the second posted while the first is under way."""
    measured = timeline(TRUTH, [[(0, 0, 1, 5000), (10, 0, 1, 3000)]])
    return with_columns(measured, delivered_ns=[7000, 10_000])


def test_a_prediction_of_its_own_deliveries_is_exact():
    """Also of messages that overlap, with a network that queues them itself."""
    aware = replace(TRUTH, aware=True)
    measured = timeline(aware, [posts(8, 50, 100_000, i) for i in range(3)])
    samples = collect([measured, measured])
    assert len(samples) == 300
    assert len(np.unique(samples.batches)) == 6
    assert (predict(aware, samples) == samples.fct_ns).all()


def test_time_begins_at_the_post_less_what_software_takes_on_average():
    measured = with_columns(two_in_line(), caused_ns=[0, 7005], posted_ns=[1, 7010])
    assert collect([measured]).start_ns.tolist() == [1 - 3, 7010 - 3]


def test_the_average_is_over_the_messages_whose_cause_is_known():
    measured = with_columns(two_in_line(), caused_ns=[-1, 7005], posted_ns=[0, 7010])
    assert collect([measured]).start_ns.tolist() == [-5, 7005]


def test_a_host_that_stalled_once_is_no_software_time():
    measured = timeline(TRUTH, [[(50_000 * i, i % 8, (i + 1) % 8, 100) for i in range(200)]])
    caused = measured.messages.posted_ns - 7
    caused[100] = measured.messages.posted_ns[100] - 10**9
    late = with_columns(measured, caused_ns=caused).messages
    assert software_ns(late, np.zeros(len(late), np.int64)) == 7


def test_a_late_post_behind_other_messages_is_no_software_time():
    measured = with_columns(two_in_line(), caused_ns=[0, 0], posted_ns=[4, 900])
    assert software_ns(measured.messages, np.zeros(2, np.int64)) == 4
    assert software_ns(measured.messages, np.arange(2)) == 452, "of another iteration it is"


def test_starts_before_zero_are_predicted_like_others():
    measured = with_columns(two_in_line(), caused_ns=[0, 0], posted_ns=[50, 60])
    early = collect([measured])
    assert early.start_ns.tolist() == [0, 10]
    shifted = replace(early, start_ns=early.start_ns - 40, before_ns=np.full(2, NEVER))
    assert predict(TRUTH, shifted).tolist() == predict(TRUTH, replace(early, before_ns=np.full(2, NEVER))).tolist()


def test_undelivered_and_failed_messages_are_left_out_and_counted():
    measured = timeline(TRUTH, [posts(8, 10, 100_000, 1)])
    delivered = measured.messages.delivered_ns.copy()
    delivered[0] = -1
    samples = collect([with_columns(measured, delivered_ns=delivered, status=[0] * 9 + [5])])
    assert (len(samples), samples.lost) == (8, 2)


def test_nothing_delivered_is_refused():
    with pytest.raises(InputError, match="no delivered message"):
        collect([])


def test_messages_of_a_connection_stand_in_line_under_the_unaware_model():
    samples = collect([two_in_line()])
    assert samples.before_ns.tolist() == [NEVER, 7000]
    assert posts_ns(TRUTH, samples).tolist() == [0, 5000]  # two hops of 1,000 ns before 7,000
    assert predict(TRUTH, samples).tolist() == [7000, 9990]


def test_other_models_queue_by_themselves():
    aware = replace(TRUTH, aware=True)
    assert posts_ns(aware, collect([two_in_line()])).tolist() == [0, 10]


def test_a_message_that_overtook_did_not_stand_in_line():
    overtaken = with_columns(two_in_line(), delivered_ns=[9000, 4000])
    assert collect([overtaken]).before_ns.tolist() == [NEVER, NEVER]


def test_other_connections_of_a_pair_are_other_lines():
    assert collect([with_columns(two_in_line(), flow=[0, 1])]).before_ns.tolist() == [NEVER, NEVER]


def test_the_last_of_those_that_shared_a_receiver_ends_the_busy_period():
    measured = timeline(TRUTH, [[(0, 1, 0, 10), (0, 2, 0, 10), (0, 3, 0, 10), (9000, 1, 0, 10), (0, 1, 4, 10)]])
    samples = collect([with_columns(measured, delivered_ns=[100, 300, 200, 9100, 150])])
    order = samples.messages.delivered_ns.tolist()
    ends = dict(zip(order, ends_busy_period(samples).tolist(), strict=True))
    assert ends == {100: False, 200: False, 300: True, 9100: True, 150: True}
