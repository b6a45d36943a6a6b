import re
from xml.dom.minidom import parseString

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from made import COMP, FITTED, SEND, all_reduce, message, operator, round_row, small, timeline

from genie.report import frames, metrics, plots

ROUNDS = [round_row(1, 12_000_000, 8_000_000), round_row(2, 8_100_000, 8_000_000)]


def activity(made):
    return metrics.activity(frames.operators(made), frames.flows(made))


def pairs():
    return metrics.matched(frames.flows(small(measured=False)), frames.flows(small()))


FIGURES = {
    "rounds": lambda: plots.rounds(ROUNDS),
    "parameter": lambda: plots.parameter(ROUNDS, "bandwidth"),
    "fct_cdf": lambda: plots.fct_cdf({"measured": pd.Series([1.0, 2.0, 500.0]), "predicted": pd.Series([2.0])}),
    "error_by_size": lambda: plots.error_by_size(pairs()),
    "timeline": lambda: plots.timeline(activity(small())),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_well_formed_and_follows_the_page(name):
    text = plots.svg(FIGURES[name](), "f7")
    assert parseString(text).documentElement.tagName == "svg"  # noqa: S318 - our own drawing
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert ids
    assert all(one.startswith("f7-") for one in ids)
    assert len(ids) == len(set(ids))
    assert {ref[1:] for ref in re.findall(r'href="([^"]*)"', text)} <= set(ids)
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(ids)
    assert not re.search(r"https?:", text)
    assert "var(--ink)" in text
    assert not [colour for colour in plots.THEME if colour in text]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_alike_every_time(name):
    assert plots.svg(FIGURES[name]()) == plots.svg(FIGURES[name]())


def test_drawing_leaves_no_global_state():
    before = dict(mpl.rcParams)
    plots.svg(FIGURES["timeline"]())
    assert dict(mpl.rcParams) == before


def test_rounds_are_told_in_their_unit_with_their_errors():
    text = plots.svg(plots.rounds(ROUNDS))
    for told in ("iteration time, µs", "+50.00%", "+1.25%", "predicted", "measured"):
        assert told in text


def test_a_parameter_has_its_interval():
    axes = plots.parameter(ROUNDS, "bandwidth").axes[0]
    assert axes.get_ylabel() == "bandwidth, Gb/s"
    (bars,) = axes.collections
    assert np.array([segment[:, 1] for segment in bars.get_segments()]) == pytest.approx(np.array([[198, 202]] * 2))
    assert FITTED[0]["low"] == 1.98e11


def test_a_cdf_rises_from_none_to_all():
    axes = plots.fct_cdf({"measured": pd.Series([4.0, 1.0, 3.0, 2.0])}).axes[0]
    (line,) = axes.lines
    assert line.get_xdata().tolist() == [1, 1, 2, 3, 4]
    assert line.get_ydata().tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert axes.get_xscale() == "linear"
    assert plots.fct_cdf({"measured": pd.Series([1.0, 100.0])}).axes[0].get_xscale() == "log"


def test_a_cdf_of_nothing():
    assert not plots.fct_cdf({"measured": pd.Series([], dtype=float)}).axes[0].lines


def bars(figure):
    return [(b.get_x(), b.get_y(), b.get_width(), b.get_facecolor()) for b in figure.axes[0].patches]


def test_a_timeline_draws_compute_above_communication():
    made = timeline(operators=[operator(0, 1, COMP, 0, 40), all_reduce(0, 30, 50), operator(1, 2, SEND, 5, 25)])
    compute, collective, send = bars(plots.timeline(activity(made)))
    assert compute[:3] == (0, 0.06, 40)
    assert collective[:3] == (30, 0.5, 20)
    assert send[:3] == (5, 1.5, 20)
    assert len({bar[3] for bar in (compute, collective, send)}) == 3


def test_bars_tell_what_they_are():
    made = timeline(operators=[operator(3, 1, COMP, 0, 40, name="<b> & co")])
    text = plots.svg(plots.timeline(activity(made)))
    assert "<title>&lt;b&gt; &amp; co, rank 3: 0.0 to 40.0 ns</title>" in text


def test_only_one_iteration_is_drawn():
    assert len(bars(plots.timeline(activity(small())))) == 4
    assert len(bars(plots.timeline(activity(small()), iteration=1))) == 4


def test_many_ranks_are_thinned_out_evenly():
    made = timeline(operators=[operator(rank, 1, COMP, 0, 40) for rank in range(1000)])
    ticks = [label.get_text() for label in plots.timeline(activity(made)).axes[0].get_yticklabels()]
    assert len(ticks) == plots.MAX_RANKS
    assert (ticks[0], ticks[-1]) == ("0", "999")


def test_very_many_bars_are_joined_where_they_touch():
    """3,000 computes back to back but for one gap become two bars."""
    starts = np.arange(3000) * 10
    starts[1500:] += 1_000
    made = timeline(operators=[operator(0, at, COMP, int(s), int(s) + 10) for at, s in enumerate(starts)])
    found = bars(plots.timeline(activity(made)))
    assert [bar[2] for bar in found] == pytest.approx([15.0, 15.0])
    text = plots.svg(plots.timeline(activity(made)))
    assert "1,500 operators, rank 0: 0.0 to 15.0 µs" in text


def test_receives_are_drawn_as_their_messages_come():
    made = timeline(messages=[message(0, 1, 8, 100, 130)])
    made.messages.chunk.flags.writeable = True
    made.messages.chunk[:] = -1
    assert [bar[:3] for bar in bars(plots.timeline(activity(made)))] == [(100, 0.5, 30)]


def test_the_fabric_is_drawn_in_tiers():
    places = plots._tiers([("h0", "l0"), ("h1", "l0"), ("h2", "l1"), ("l0", "s0"), ("l1", "s0"), ("h3", "l1")])
    assert {name: y for name, (_, y) in places.items()} == {
        **dict.fromkeys(("h0", "h1", "h2", "h3"), 0.0),
        **dict.fromkeys(("l0", "l1"), 1.0),
        "s0": 2.0,
    }
    assert [name for name, (_, y) in sorted(places.items(), key=lambda one: one[1][0]) if y == 0] == [
        "h0",
        "h1",
        "h2",
        "h3",
    ]


def test_the_fabric_tells_the_busier_direction_of_each_cable():
    load = pd.DataFrame({"link": ["h0>l0", "l0>h0", "l0>h1"], "load": [0.2, 0.9, 0.1]})
    text = plots.svg(plots.fabric(load))
    assert "h0 - l0: 90.0%" in text
    assert "h1 - l0: 10.0%" in text


def test_the_heat_map_shows_the_busiest_links():
    profile = pd.DataFrame(
        [[at / 100] * 3 for at in range(80)], index=[f"link{at:02}" for at in range(80)], columns=[0.0, 10.0, 20.0]
    )
    text = plots.svg(plots.link_heat(profile))
    assert "link79" in text
    assert "link10" not in text
