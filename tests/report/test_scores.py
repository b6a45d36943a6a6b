"""Every figure of the catalogue against one worked out by hand."""

import math
from pathlib import Path

import pandas as pd
import pytest
from made import COMP, all_reduce, check, message, operator, saved, small, timeline

from genie.formats.runfile import RunWriter, open_run
from genie.report import metrics, scores
from genie.report.catalogue import METRICS
from genie.report.subject import View

ROOT = Path(__file__).resolve().parents[2]

LINKS = {
    "link": ["a>l", "b>l", "l>s1", "l>s2", "s1>m", "s2>m", "m>c", "m>d"],
    "class": ["host", "host", "fabric", "fabric", "fabric", "fabric", "host", "host"],
    "rate_bps": [8_000_000_000] * 8,
    "delay_ns": [10] * 8,
    "buffer_bytes": [9000] * 8,
}


def routes(**ways):
    rows = [(int(key[1]), int(key[2]), hop, link) for key, way in ways.items() for hop, link in enumerate(way.split())]
    return dict(zip(("src", "dst", "hop", "link"), map(list, zip(*rows, strict=True)), strict=True))


ROUTES = routes(r02="a>l l>s1 s1>m m>c", r12="b>l l>s1 s1>m m>c", r03="a>l l>s2 s2>m m>d", r13="b>l l>s2 s2>m m>d")


def view(tmp_path, made, *, network=None, checks=(), counters=None, environment=None):
    run = RunWriter.create(tmp_path, "replay", "job")
    run.save_timeline(made)
    for name, columns in ({"links": LINKS, "routes": ROUTES} if network is None else network).items():
        run.save_table(name, columns)
    if counters:
        run.save_table("counters", counters)
    run.add_environment(**(environment or {}))
    run.finish("ok", {}, list(checks))
    opened = open_run(run.path)
    return View(opened, opened.timeline())


def values(found, metric, scope=""):
    return found[(found["metric"] == metric) & (found["scope"] == scope)]["value"].tolist()


def crossing():
    """Ranks 0 and 1 compute 100 ns, then send 300 and 100 bytes to rank 2, 200 to rank 3; at 1 byte/ns."""
    return timeline(
        ranks=[(0, rank, finish, finish - 100) for rank, finish in enumerate((500, 600, 800, 400))],
        operators=[operator(rank, 1, COMP, 0, 100 + 10 * rank, late=rank) for rank in range(4)],
        messages=[
            message(0, 2, 300, 100, 540, caused=90),
            message(1, 2, 100, 200, 400, caused=200),
            message(1, 3, 200, 600, 840, caused=600),
        ],
    )


def test_times_and_shares_by_hand(tmp_path):
    found = scores.samples(view(tmp_path, crossing()))
    assert values(found, "iteration_ns") == [800]
    assert values(found, "exposed_share") == [pytest.approx((400 / 500 + 500 / 600) / 2)]
    assert values(found, "compute_spread") == [pytest.approx((130 - 115) / 115)]


def test_the_roofline_is_compute_and_the_busier_direction(tmp_path):
    """Rank 2 receives 400 bytes at 1 byte/ns and computes 120 ns: 520; the others less."""
    one = view(tmp_path, crossing())
    assert scores.roofline(one) == pytest.approx(520)
    assert values(scores.samples(one), "jct_ratio") == [pytest.approx(800 / 520)]


def test_messages_by_hand(tmp_path):
    """FCT 440, 200, 240; unloaded size + 40 ns: 340, 140, 240."""
    found = scores.samples(view(tmp_path, crossing()))
    assert values(found, "fct_p50_ns") == [240]
    assert values(found, "fct_max_ns") == [440]
    assert values(found, "fct_p99_ns") == [pytest.approx(436)]
    assert values(found, "fct_p99_ns", "size 300 B") == [440]
    assert values(found, "goodput_gb_per_s") == [pytest.approx(600 / 880)]
    assert values(found, "slowdown_p50") == [pytest.approx(440 / 340)]
    assert values(found, "slowdown_p99") == [pytest.approx(200 / 140 - 0.02 * (200 / 140 - 440 / 340), rel=1e-6)]


def test_the_gap_is_that_of_messages_of_one_size():
    made = timeline(messages=[message(0, 1, 8, 0, 30), message(1, 0, 8, 0, 50), message(0, 1, 9, 0, 500)])
    assert values(scores.samples(View(None, made)), "fct_gap_ns") == [20]


def test_only_messages_that_meet_another_sender_make_an_incast(tmp_path):
    """Both of rank 2's overlap (FCT 440 and 200), rank 3's is alone: p99 / p50 = 437.6 / 320."""
    one = view(tmp_path, crossing())
    assert metrics.meets_others(one.flows).tolist() == [True, True, False]
    assert values(scores.samples(one), "incast_tail") == [pytest.approx(437.6 / 320)]


@pytest.mark.parametrize(("begin", "meets"), [(99, True), (100, False), (101, False)])
def test_messages_that_only_touch_do_not_meet(begin, meets):
    flows = View(None, timeline(messages=[message(0, 2, 8, 0, 100), message(1, 2, 8, begin, 200)])).flows
    assert metrics.meets_others(flows).tolist() == [meets, meets]


def test_messages_of_one_sender_do_not_meet_as_an_incast():
    flows = View(None, timeline(messages=[message(0, 2, 8, 0, 100), message(0, 2, 8, 0, 90, index=1)])).flows
    assert not metrics.meets_others(flows).any()


def test_collectives_by_hand():
    """1,000 bytes in 100 ns on 2 ranks: 10 GB/s; members issue 10 apart and end 20 apart."""
    made = timeline(operators=[all_reduce(0, 10, 90), all_reduce(1, 20, 110)])
    found = scores.samples(View(None, made))
    scope = "all-reduce, 2 ranks, 1,000 B"
    names = ("collective_ns", "skew_ns", "straggler_gap_ns", "algbw_gb_per_s", "busbw_gb_per_s")
    assert [values(found, name, scope) for name in names] == [[100], [10], [20], [10], [10]]


def test_links_and_parallel_paths_by_hand(tmp_path):
    """400 bytes over s1, 200 over s2 in 800 ns at 1 byte/ns; b>l carries 300, a>l 300, m>c 400, m>d 200."""
    found = scores.samples(view(tmp_path, crossing()))
    assert values(found, "link_load_max") == [0.5]
    assert values(found, "link_load_mean") == [pytest.approx((300 + 300 + 400 + 200 + 400 + 200 + 400 + 200) / 8 / 800)]
    assert values(found, "path_mmr") == [pytest.approx(400 / 300)]
    assert values(found, "path_jain") == [pytest.approx(600**2 / (2 * (400**2 + 200**2)))]


def test_ports_of_hosts_are_no_parallel_paths(tmp_path):
    """m>c and m>d lead to different hosts: that they carry unlike is traffic, not imbalance."""
    one = view(tmp_path, crossing())
    load = metrics.link_load(one.flows, one.routes, one.links, 800.0)
    assert list(scores.parallel_payloads(load, one.routes)) == [[400.0, 200.0]]


def test_counters_by_hand(tmp_path):
    counters = {
        "link": ["a>l", "l>s1"],
        "sent_bytes": [1000, 1000],
        "sent_packets": [60, 40],
        "dropped_packets": [0, 25],
        "ecn_marked_packets": [0, 10],
        "retransmitted_packets": [5, 0],
        "pause_ns": [70, 30],
    }
    found = scores.samples(view(tmp_path, crossing(), counters=counters))
    names = ("dropped_packets", "drop_share", "ecn_share", "retransmit_share", "pause_ns")
    assert [values(found, name) for name in names] == [[25], [0.2], [0.1], [0.05], [100]]
    assert set(found[found["metric"] == "drop_share"]["iteration"]) == {scores.WHOLE}


def test_what_nobody_counted_has_no_figure(tmp_path):
    counters = {"link": ["a>l"], "sent_bytes": [1], "sent_packets": [1], "dropped_packets": [0]}
    found = scores.samples(view(tmp_path, crossing(), counters=counters))
    assert values(found, "drop_share") == [0]
    assert not set(found["metric"]) & {"ecn_share", "retransmit_share", "pause_ns"}


def test_fidelity_by_hand(tmp_path):
    """Rank 0 waits 10 of 500 ns with a message that was allowed; the others never."""
    environment = {"cpu_pressure": 0.25, "clock_bound_ns": 40}
    one = view(tmp_path, crossing(), checks=[check(), check(ok=False, hard=False)], environment=environment)
    found = scores.samples(one)
    assert values(found, "message_late_p50_ns") == [0]
    assert values(found, "message_late_p99_ns") == [pytest.approx(9.8)]
    assert values(found, "operator_late_p50_ns") == [1.5]
    assert values(found, "operator_late_p99_ns") == [pytest.approx(2.97)]
    assert values(found, "own_share") == [0]
    assert metrics.own_shares(one.flows, one.ranks[one.ranks["rank"] == 0]).tolist() == [pytest.approx(10 / 500)]
    assert (values(found, "failed_checks"), values(found, "cpu_pressure")) == ([1], [0.25])
    assert values(found, "clock_bound_ns") == [40]


def test_waits_of_one_rank_side_by_side_count_once():
    made = timeline(
        ranks=[(0, 0, 100, 0)],
        messages=[message(0, 1, 8, 30, 40, caused=10), message(0, 1, 8, 35, 50, caused=20, index=1)],
    )
    one = View(None, made)
    assert metrics.own_shares(one.flows, one.ranks).tolist() == [0.25]


def test_a_prediction_has_no_fidelity(tmp_path):
    one = saved(tmp_path, small(measured=False), "simulate")
    found = scores.samples(View(one, one.timeline()))
    assert not set(found["metric"]) & {"own_share", "message_late_p99_ns"}


def test_overlap_and_exposed_communication():
    """Compute 0 to 40, reducing 30 to 50: 10 of 20 hidden, 10 exposed."""
    made = timeline(operators=[operator(0, 1, COMP, 0, 40), all_reduce(0, 30, 50)])
    found = scores.samples(View(None, made))
    assert (values(found, "overlap"), values(found, "exposed_ns")) == ([0.5], [10])


def test_interference_is_the_ratio_of_iteration_times():
    alone, beside = (View(None, timeline(ranks=[(0, 0, finish, 0)])).ranks for finish in (100, 130))
    assert metrics.interference(beside, alone) == 1.3


def test_scores_sum_up_over_iterations():
    ranks = [(k, 0, finish, 0) for k, finish in enumerate((100, 110, 120))]
    found = scores.scores(scores.samples(View(None, timeline(ranks=ranks))))
    (row,) = found[found["metric"] == "iteration_ns"].to_dict("records")
    assert (row["value"], row["unit"], row["samples"], row["better"]) == (110, "ns", 3, "lower")
    assert row["cv"] == pytest.approx(10 / 110)
    assert row["high"] == pytest.approx(110 + 4.3027 * 10 / math.sqrt(3), abs=0.1)


def test_an_empty_timeline_has_no_figure_but_no_end_either():
    found = scores.scores(scores.samples(View(None, timeline(ranks=[]))))
    assert found.empty


def test_a_rank_that_never_finished_leaves_no_iteration_time():
    found = scores.samples(View(None, timeline(ranks=[(0, 0, 90, 0), (0, 1, -1, -1)])))
    assert values(found, "iteration_ns") == []


def test_names_end_in_their_unit():
    for name, metric in METRICS.items():
        ending = {"ns": "_ns", "GB/s": "_gb_per_s"}.get(metric.unit)
        assert ending is None or name.endswith(ending)
        assert ending is not None or not name.endswith(("_ns", "_gb_per_s"))


def test_every_figure_is_defined_in_the_documentation():
    text = (ROOT / "docs" / "metrics.md").read_text()
    missing = [name for name in METRICS if f"`{name}`" not in text]
    assert missing == []


def test_link_profile_spreads_a_message_over_its_time():
    """100 bytes from 0 to 100 ns, then 100 more from 50 to 100: half the rate of a 2 bytes/ns link, then more."""
    links = pd.DataFrame({"link": ["x>y"], "rate_bps": [16_000_000_000]})
    ways = pd.DataFrame({"src": [0], "dst": [1], "hop": [0], "link": ["x>y"]})
    flows = View(None, timeline(messages=[message(0, 1, 100, 0, 100), message(0, 1, 100, 50, 100, index=1)])).flows
    found = metrics.link_profile(flows, ways, links, bins=4)
    assert found.columns.tolist() == [0, 25, 50, 75]
    assert found.loc["x>y"].tolist() == pytest.approx([0.5, 0.5, 1.5, 1.5])
