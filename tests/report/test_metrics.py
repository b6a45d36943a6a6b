"""Hand-computed figures."""

import numpy as np
import pytest

from genie.core.timeline import Messages, Operators, Ranks, Timeline
from genie.core.workload import CollectiveKind, NodeKind
from genie.report import frames, metrics


def timeline(messages=(), operators=()):
    return Timeline(
        executor="hand",
        measured=True,
        ranks=Ranks.from_rows([(0, 0, 100, 40), (0, 1, 120, 60)]),
        operators=Operators.from_rows(list(operators)),
        messages=Messages.from_rows(list(messages)),
    )


def message(size, posted, delivered, caused=None):
    return (0, 0, 1, 5, size, 0, 0, 7, -1, -1, -1, posted if caused is None else caused, posted, -1, delivered, -1, 0)


def collective(rank, issue, done, size=1000):
    return (0, rank, 3, NodeKind.COLLECTIVE, CollectiveKind.ALL_REDUCE, "", "ar", size, issue, done, 0)


@pytest.mark.parametrize(
    ("kind", "members", "factor"),
    [
        (CollectiveKind.ALL_REDUCE, 4, 1.5),
        (CollectiveKind.ALL_REDUCE, 2, 1.0),
        (CollectiveKind.REDUCE_SCATTER, 4, 0.75),
        (CollectiveKind.ALL_GATHER, 4, 0.75),
        (CollectiveKind.ALL_TO_ALL, 8, 0.875),
        (CollectiveKind.BROADCAST, 8, 1.0),
    ],
)
def test_bus_factors(kind, members, factor):
    assert metrics.bus_factor(kind, members) == factor


def test_an_all_gathers_total_is_n_times_its_comm_size():
    found = metrics.collective_bandwidth(CollectiveKind.ALL_GATHER, 1000, 4, 1000)
    assert (found.algbw_bps, found.busbw_bps) == (32e9, 24e9)


def test_fct_runs_from_post_to_delivery_and_lateness_from_cause_to_post():
    frame = frames.flows(timeline([message(100, 10, 60, caused=4), message(100, 0, -1)]))
    assert frame["fct_ns"].tolist()[0] == 50
    assert np.isnan(frame["fct_ns"].tolist()[1])
    assert frame["late_ns"].tolist()[0] == 6


def test_percentiles_by_size():
    rows = metrics.fct_by_size(timeline([message(100, 0, t) for t in (10, 20, 30)] + [message(200, 0, 80)]))
    assert rows["size_bytes"].tolist() == [100, 200]
    assert rows["fct_p50_ns"].tolist() == [20, 80]
    assert rows["fct_max_ns"].tolist() == [30, 80]
    assert rows["goodput_gb_per_s"].tolist() == [100 / 20, 200 / 80]


def test_slowdown_against_line_rate_and_base_time():
    assert metrics.slowdown(timeline([message(1000, 0, 30)]), 800e9, 5.0).tolist() == [2.0]


def test_a_collective_ends_with_its_slowest_rank():
    (row,) = metrics.collectives(timeline(operators=[collective(0, 10, 90), collective(1, 20, 110)]), {"": 2}).to_dict(
        "records"
    )
    assert (row["time_ns"], row["straggler_gap_ns"]) == (100, 20)
    assert (row["algbw_gb_per_s"], row["busbw_gb_per_s"]) == (10.0, 10.0)


def test_exposed_share_is_the_median_over_ranks():
    assert metrics.exposed_share(timeline()) == pytest.approx((0.4 + 0.5) / 2)


def test_iteration_time_is_that_of_the_last_rank():
    assert timeline().iteration_ns == 120
