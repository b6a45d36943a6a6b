"""Every metric against figures worked out by hand."""

import math

import numpy as np
import pandas as pd
import pytest
from made import COMP, NETWORK, SEND, all_reduce, message, operator, timeline

from genie.core.timeline import Messages
from genie.core.workload import CollectiveKind, NodeKind
from genie.report import frames, metrics


def flows(*messages):
    return frames.flows(timeline(messages=messages))


@pytest.mark.parametrize(
    ("kind", "members", "factor"),
    [
        (CollectiveKind.ALL_REDUCE, 2, 1.0),
        (CollectiveKind.ALL_REDUCE, 4, 1.5),
        (CollectiveKind.ALL_REDUCE, 8, 1.75),
        (CollectiveKind.REDUCE_SCATTER, 4, 0.75),
        (CollectiveKind.ALL_GATHER, 4, 0.75),
        (CollectiveKind.ALL_TO_ALL, 8, 0.875),
        (CollectiveKind.BROADCAST, 8, 1.0),
        (CollectiveKind.REDUCE, 8, 1.0),
    ],
)
def test_bus_factors(kind, members, factor):
    assert metrics.bus_factor(kind, members) == factor


@pytest.mark.parametrize(
    ("kind", "algbw_bps", "busbw_bps"),
    [
        (CollectiveKind.ALL_REDUCE, 8e9, 12e9),
        (CollectiveKind.REDUCE_SCATTER, 8e9, 6e9),
        (CollectiveKind.ALL_TO_ALL, 8e9, 6e9),
        (CollectiveKind.ALL_GATHER, 32e9, 24e9),
        (CollectiveKind.BROADCAST, 8e9, 8e9),
    ],
)
def test_bandwidths_of_1000_bytes_in_1000_ns_on_four(kind, algbw_bps, busbw_bps):
    """An all-gather's comm_size is what one rank contributes, so its total is four times that."""
    assert metrics.bandwidths_bps(kind, 1000, 4, 1000) == (algbw_bps, busbw_bps)


def test_bandwidth_of_no_time_and_of_unknown_time():
    assert metrics.bandwidths_bps(CollectiveKind.BROADCAST, 1, 2, 0) == (np.inf, np.inf)
    assert np.isnan(metrics.bandwidths_bps(CollectiveKind.BROADCAST, 1, 2, np.nan)).all()


def test_fct_percentiles_by_size():
    found = metrics.fct(flows(*(message(0, 1, 100, 5, 5 + t) for t in (10, 20, 30)), message(0, 1, 200, 0, 80)))
    assert found["size_from_bytes"].tolist() == found["size_to_bytes"].tolist() == [100, 200]
    assert found["messages"].tolist() == [3, 1]
    assert found["fct_p50_ns"].tolist() == [20, 80]
    assert found["fct_p90_ns"].tolist() == pytest.approx([28, 80])
    assert found["fct_p99_ns"].tolist() == pytest.approx([29.8, 80])
    assert found["fct_max_ns"].tolist() == [30, 80]
    assert found["goodput_gb_per_s"].tolist() == pytest.approx([300 / 60, 200 / 80])


def test_fct_leaves_out_what_was_never_delivered():
    found = metrics.fct(flows(message(0, 1, 100, 0, 10), message(0, 1, 100, 0, -1)))
    assert found["messages"].tolist() == [1]
    assert metrics.fct(flows(message(0, 1, 100, 0, -1))).empty
    assert metrics.fct(flows()).empty


def test_fct_by_collective_and_group():
    operators = [all_reduce(0, 0, 9, node=1, group="1"), operator(0, 2, SEND, 0, 9)]
    messages = [message(0, 1, 8, 0, 10, node=1), message(0, 1, 8, 0, 30, node=2, tag=6)]
    found = metrics.fct(frames.flows(timeline(operators=operators, messages=messages)), by=["collective", "group"])
    assert found[["collective", "group", "fct_p50_ns"]].to_numpy().tolist() == [["", "", 30], ["ALL_REDUCE", "1", 10]]


def test_many_sizes_fall_into_bins_of_a_power_of_two():
    sizes = [0, 1, 2, 3, 4, 7, 8, 1023, 1024, 1025, 2047, 2048, 1 << 40, (1 << 40) + 1]
    found = metrics.size_bins(pd.Series(sizes))
    assert found["size_from_bytes"].tolist() == [0, 1, 2, 2, 4, 4, 8, 512, 1024, 1024, 1024, 2048, 1 << 40, 1 << 40]
    assert found["size_to_bytes"].tolist()[:4] == [0, 1, 3, 3]
    assert found["size_to_bytes"].tolist()[-1] == (1 << 41) - 1


def test_slowdown_against_line_rate_and_base_time():
    """1,000 bytes at 800 Gb/s take 10 ns, 5 ns base time: 30 ns are twice the ideal."""
    assert metrics.slowdown(flows(message(0, 1, 1000, 0, 30)), 800e9, 5.0).tolist() == [2.0]


def test_a_collective_runs_from_its_first_issue_to_its_last_completion():
    made = timeline(operators=[all_reduce(0, 10, 90), all_reduce(1, 20, 110)])
    (row,) = metrics.collectives(frames.operators(made)).to_dict("records")
    assert (row["time_ns"], row["skew_ns"], row["straggler_gap_ns"]) == (100, 10, 20)
    assert (row["members"], row["total_bytes"]) == (2, 1000)
    assert (row["algbw_gb_per_s"], row["busbw_gb_per_s"]) == (10.0, 10.0)


def test_a_collective_is_told_by_group_and_order_not_by_node_id():
    """Ranks number their nodes differently; groups of two within four ranks have n = 2."""
    operators = [
        all_reduce(0, 0, 10, node=1, group="1"),
        all_reduce(1, 0, 20, node=4, group="1"),
        all_reduce(2, 0, 30, node=1, group="2"),
        all_reduce(3, 0, 40, node=1, group="2"),
        all_reduce(0, 50, 60, node=2, group="1"),
        all_reduce(1, 50, 90, node=9, group="1"),
    ]
    found = metrics.collectives(frames.operators(timeline(operators=operators)))
    assert found[["group", "instance", "members", "time_ns"]].to_numpy().tolist() == [
        ["1", 0, 2, 20],
        ["2", 0, 2, 40],
        ["1", 1, 2, 40],
    ]


def test_medians_over_iterations():
    operators = [all_reduce(rank, 0, done, iteration=k) for k, done in enumerate((10, 30, 80)) for rank in (0, 1)]
    (row,) = metrics.collectives(frames.operators(timeline(operators=operators))).to_dict("records")
    assert row["time_ns"] == 30


def test_a_collective_that_one_member_never_ended_has_no_time():
    (row,) = metrics.collectives(
        frames.operators(timeline(operators=[all_reduce(0, 10, 90), all_reduce(1, 20, -1)]))
    ).to_dict("records")
    assert math.isnan(row["time_ns"])
    assert math.isnan(row["busbw_gb_per_s"])


def test_the_summary_joins_collectives_of_one_kind_and_size():
    operators = [
        all_reduce(rank, start, start + time, node=node)
        for node, start, time in ((1, 0, 100), (2, 200, 300))
        for rank in (0, 1)
    ]
    (row,) = metrics.collective_summary(frames.operators(timeline(operators=operators))).to_dict("records")
    assert (row["count"], row["members"], row["total_bytes"], row["time_ns"]) == (2, 2, 1000, 200)
    assert row["busbw_gb_per_s"] == 5.0


def test_no_collectives():
    for metric in (metrics.collectives, metrics.collective_summary):
        assert metric(frames.operators(timeline(operators=[operator(0, 1, COMP, 0, 5)]))).empty
        assert metric(frames.operators(timeline())).empty


def test_iteration_time_is_that_of_the_last_rank():
    ranks = [(0, 0, 90, 0), (0, 1, 100, 0), (1, 0, 120, 0), (1, 1, 80, 0), (2, 0, 110, 0), (2, 1, 70, 0)]
    (row,) = metrics.iteration(frames.ranks(timeline(ranks=ranks))).to_dict("records")
    assert (row["iterations"], row["iteration_ns"], row["min_ns"], row["max_ns"]) == (3, 110, 100, 120)
    assert row["spread"] == pytest.approx(20 / 110)
    assert row["cv"] == pytest.approx(10 / 110)


def test_a_rank_that_never_finished_leaves_no_iteration_time():
    (row,) = metrics.iteration(frames.ranks(timeline(ranks=[(0, 0, 90, 0), (0, 1, -1, -1)]))).to_dict("records")
    assert math.isnan(row["iteration_ns"])


def test_exposed_share_is_the_median_over_ranks():
    assert metrics.exposed_share(frames.ranks(timeline())) == pytest.approx((0.4 + 0.5) / 2)
    assert math.isnan(metrics.exposed_share(frames.ranks(timeline(ranks=[(0, 0, -1, -1)]))))


def breakdown(*, operators=(), messages=()):
    made = timeline(operators=operators, messages=messages)
    return metrics.breakdown(metrics.activity(frames.operators(made), frames.flows(made)))


def test_where_a_ranks_time_goes():
    """compute 0-40 and 60-80, communication 30-50: 10 overlap, 10 exposed, 10 idle before the end at 80."""
    operators = [operator(0, 1, COMP, 0, 40), operator(0, 2, COMP, 60, 80), all_reduce(0, 30, 50, node=3)]
    (row,) = breakdown(operators=operators).to_dict("records")
    assert (row["compute_ns"], row["communication_ns"], row["overlapped_ns"]) == (60, 20, 10)
    assert (row["exposed_ns"], row["idle_ns"], row["overlap"]) == (10, 10, 0.5)


def test_a_receive_communicates_only_while_its_message_is_under_way():
    """Posted at 100, though the receive waits from 0; a message within a collective is not counted twice."""
    operators = [operator(1, 1, NodeKind.RECV, 0, 130), operator(0, 1, SEND, 100, 130), operator(0, 2, COMP, 0, 100)]
    plain, chunk = list(message(0, 1, 8, 100, 130, node=1)), message(0, 1, 8, 200, 260, index=1)
    plain[list(Messages.SCHEMA).index("chunk")] = -1
    sender, receiver = breakdown(operators=operators, messages=[tuple(plain), chunk]).to_dict("records")
    assert (sender["communication_ns"], sender["exposed_ns"], sender["idle_ns"]) == (30, 30, 0)
    assert (receiver["communication_ns"], receiver["exposed_ns"], receiver["idle_ns"]) == (30, 30, 100)


def test_overlap_needs_both():
    (row,) = breakdown(operators=[operator(0, 1, COMP, 0, 40)]).to_dict("records")
    assert math.isnan(row["overlap"])
    assert breakdown().empty


def test_union_of_intervals():
    assert metrics.union_ns([0, 5, 20, 21], [10, 12, 30, 25]) == 22
    assert metrics.union_ns([], []) == 0


def test_lateness_of_operators_and_messages():
    operators = [operator(0, node, COMP, 0, 1, late=late) for node, late in enumerate((0, 10, 20))]
    messages = [message(0, 1, 8, 5, 9, caused=1), message(0, 1, 8, 15, 19, caused=7, index=1)]
    made = timeline(operators=operators, messages=messages)
    issued, posted = metrics.lateness(frames.operators(made), frames.flows(made)).to_dict("records")
    assert (issued["count"], issued["late_p50_ns"], issued["late_max_ns"]) == (3, 10, 20)
    assert issued["late_p99_ns"] == pytest.approx(19.8)
    assert (posted["count"], posted["late_p50_ns"], posted["late_max_ns"]) == (2, 6, 8)


def test_traffic_of_an_iteration():
    messages = [message(0, 1, size, 0, 9, iteration=k, index=size) for k in range(2) for size in (100, 50)]
    messages.append(message(1, 0, 7, 0, 9, iteration=1))
    found = metrics.traffic(flows(*messages))
    assert found[["src", "dst", "messages", "sent_bytes"]].to_numpy().tolist() == [[0, 1, 2, 150], [1, 0, 0.5, 3.5]]


def test_link_load_is_the_time_that_its_payload_needs():
    """300 bytes at 1 and at 0.5 byte/ns keep the links busy for 300 and 600 of 1,200 ns."""
    network = {name: pd.DataFrame(columns) for name, columns in NETWORK.items()}
    found = metrics.link_load(flows(message(0, 1, 300, 0, 700)), network["routes"], network["links"], 1200.0)
    assert found["payload_bytes"].tolist() == [300, 300]
    assert found["load"].tolist() == pytest.approx([0.25, 0.5])


def test_imbalance():
    assert metrics.max_mean_ratio([3, 1, 2, 2]) == 1.5
    assert metrics.jain_index([5, 5, 5]) == pytest.approx(1.0)
    assert metrics.jain_index([8, 0, 0, 0]) == 0.25
    assert math.isnan(metrics.jain_index([0, 0]))
    assert math.isnan(metrics.max_mean_ratio([]))


def test_every_measured_message_meets_its_prediction():
    predicted = flows(message(0, 1, 8, 0, 30), message(0, 1, 8, 40, 60, index=1))
    measured = flows(
        message(0, 1, 8, 0, 20),
        message(0, 1, 8, 40, 65, index=1),
        message(0, 1, 8, 0, -1, iteration=1),
        message(1, 0, 8, 0, 5),
    )
    found = metrics.matched(predicted, measured)
    assert found[["predicted_fct_ns", "measured_fct_ns", "error"]].to_numpy().tolist() == [
        [30, 20, 0.5],
        [20, 25, -0.2],
    ]


def test_cdf_ends_at_one_and_thins_out_evenly():
    values, share = metrics.cdf([3, 1, np.nan, 2])
    assert (values.tolist(), share.tolist()) == ([1, 2, 3], pytest.approx([1 / 3, 2 / 3, 1]))
    values, share = metrics.cdf(np.arange(100_000), points=11)
    assert len(values) == 11
    assert (values[-1], share[-1]) == (99_999, 1)
    assert metrics.cdf([])[0].size == 0
