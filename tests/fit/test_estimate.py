"""Known parameters are found again in timelines that the same network code made, with noise on top."""

from dataclasses import replace

import numpy as np
import pytest

from genie.core.netmodel import Dimension, DimensionModel, Estimate, FabricModel, Link, Topology
from genie.core.system import System
from genie.core.timeline import Timeline
from genie.core.workload import CollectiveKind
from genie.errors import InputError
from genie.fit import fit
from genie.lower import lower
from genie.patterns import collective, generate
from genie.simulate.builtin import simulate

RANKS = 4


def ring(bandwidth=200e9, latency=2000.0, aware=False):
    return DimensionModel((Dimension(Topology.RING, RANKS, Estimate(bandwidth), Estimate(latency)),), aware)


def star(host=200e9, core=200e9, message=500.0):
    """Two leaves of two hosts each with one link between them."""
    links, routes = [], {}
    for rank in range(RANKS):
        links += [Link(f"up{rank}", Estimate(host), 100.0, "host"), Link(f"down{rank}", Estimate(host), 100.0, "host")]
    links += [Link("east", Estimate(core), 100.0, "core"), Link("west", Estimate(core), 100.0, "core")]
    for a in range(RANKS):
        for b in range(RANKS):
            across = () if a // 2 == b // 2 else ((8,) if a < b else (9,))
            if a != b:
                routes[a, b] = (2 * a, *across, 2 * b + 1)
    return FabricModel(RANKS, tuple(links), routes, Estimate(message))


def measured(model, pattern="data_parallel", algorithm="ring", noise=0.0, seed=1, repeats=2, size=1 << 20):
    names = dict.fromkeys(CollectiveKind, (algorithm,))
    timeline = simulate(lower(generate(pattern, RANKS, size), System(splits=1, algorithms=names, extended=True)), model)
    random, parts = np.random.default_rng(seed), []
    for iteration in range(repeats):
        messages = timeline.messages
        fct = messages.delivered_ns - messages.caused_ns
        late = np.rint(fct * np.abs(random.normal(0, noise, len(fct)))).astype(np.int64) if noise else 0
        parts.append(
            replace(messages, iteration=np.full(len(fct), iteration), delivered_ns=messages.delivered_ns + late)
        )
    return replace(timeline, messages=type(timeline.messages).concat(parts), measured=True)


def found(result, name):
    (row,) = [row for row in result.parameters() if row["name"] == name]
    return row


@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.parametrize("factor", [0.1, 0.5, 10.0])
def test_exact_times_give_exact_parameters_from_any_start(aware, factor):
    result = fit(ring(200e9 * factor, 2000.0 / factor, aware), [measured(ring(aware=aware))])
    assert found(result, "dimension 0 bandwidth")["value"] == pytest.approx(200e9, rel=2e-3)
    assert found(result, "dimension 0 latency")["value"] == pytest.approx(2000, abs=40)


def test_noise_widens_the_interval_and_the_truth_is_near():
    result = fit(ring(100e9, 200.0), [measured(ring(), noise=0.01, repeats=4)])
    row = found(result, "dimension 0 bandwidth")
    assert row["stderr"] > 0
    assert row["low"] < row["value"] < row["high"]
    assert row["value"] == pytest.approx(200e9, rel=0.03)


def test_outliers_are_named_and_do_not_move_the_fit():
    timeline: Timeline = measured(ring())
    delivered = timeline.messages.delivered_ns.copy()
    delivered[5] += 1_000_000
    spoiled = replace(timeline, messages=replace(timeline.messages, delivered_ns=delivered))
    result = fit(ring(100e9), [spoiled])
    assert found(result, "dimension 0 bandwidth")["value"] == pytest.approx(200e9, rel=0.01)
    assert result.outliers[0].residual_ns == pytest.approx(1_000_000, rel=0.05)


def test_one_size_cannot_tell_latency_from_bandwidth():
    timeline = measured(ring(), pattern="all_reduce")
    result = fit(ring(100e9, 2000.0), [timeline])
    assert any("latency" in sentence for sentence in result.unidentified)
    assert found(result, "dimension 0 latency")["stderr"] is None
    assert found(result, "dimension 0 bandwidth")["value"] == pytest.approx(200e9, rel=0.01)
    with pytest.raises(InputError, match="cannot tell"):
        fit(ring(100e9, 2000.0), [timeline], hold=False)


def test_too_few_messages_are_refused():
    with pytest.raises(InputError, match="too few"):
        fit(ring(), [measured(ring(), pattern="incast", repeats=1)])


def test_a_full_core_link_is_told_from_a_full_host_link():
    timelines = [measured(star(200e9, 100e9), p, "direct") for p in ("all_to_all", "data_parallel")]
    result = fit(star(50e9, 50e9, 0.0), timelines)
    assert found(result, "core link capacity")["value"] == pytest.approx(100e9, rel=0.05)
    assert found(result, "host link capacity")["value"] >= 150e9


def test_the_right_model_stands_when_nothing_can_be_told():
    """All messages of one size, all of them across the core: host and core cannot be told apart."""
    result = fit(star(), [measured(star(), pattern="shift", repeats=3)])
    assert result.median_error < 0.01


def test_predictions_with_the_fitted_model_are_right():
    truth = ring(150e9, 900.0)
    schedule = lower(
        collective(CollectiveKind.ALL_GATHER, RANKS, 3 << 20),
        System(1, algorithms={CollectiveKind.ALL_GATHER: ("ring",)}),
    )
    model = fit(ring(), [measured(truth)]).model
    assert simulate(schedule, model).iteration_ns == pytest.approx(simulate(schedule, truth).iteration_ns, rel=5e-3)
