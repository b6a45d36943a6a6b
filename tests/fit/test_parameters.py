"""Vectors of parameters: names, ties, what a pair of ranks has to do with, and back to the model."""

import numpy as np
import pytest
from fit_traffic import dimensions, leaf_spine
from hypothesis import given
from hypothesis import strategies as st

from genie.core.netmodel import Estimate
from genie.errors import InputError
from genie.fit.envelope import envelope
from genie.fit.parameters import layout_of


@pytest.mark.parametrize("per_link", [False, True])
@pytest.mark.parametrize(
    "model", [dimensions(("Ring", 4, 4e11, 5), ("Switch", 2, 1e11, 7)), leaf_spine()], ids=["dimensions", "fabric"]
)
def test_a_model_is_its_own_values(model, per_link):
    layout = layout_of(model, per_link=per_link)
    assert layout.model([parameter.given for parameter in layout.parameters]) == model


@given(st.floats(1e3, 1e15), st.floats(1e-6, 0.5))
def test_a_rate_is_a_logarithm(rate, error):
    (bandwidth, latency) = layout_of(dimensions(("Ring", 4, 4e11, 5))).parameters
    assert bandwidth.decode(bandwidth.encode(rate)) == pytest.approx(rate)
    assert bandwidth.stderr(bandwidth.encode(rate), error) == pytest.approx(rate * error)
    assert latency.decode(latency.encode(error)) == error


def test_links_are_tied_by_class_or_not_at_all():
    tied, apart = layout_of(leaf_spine()), layout_of(leaf_spine(), per_link=True)
    assert [p.name for p in tied.parameters] == ["core link capacity", "host link capacity", "overhead a message"]
    assert len(apart.parameters) == 24 + 1
    assert tied.crossed(0, 1) == (1, 2)
    assert tied.crossed(0, 4) == (0, 1, 2)
    names = [apart.parameters[at].name for at in apart.crossed(0, 4)]
    assert set(names[:-1]) == {f"link {link} capacity" for link in ("h0>l0", "l0>s0", "s0>l1", "l1>h4")}


def test_links_of_their_own_can_start_from_their_classes():
    layout = layout_of(leaf_spine(), per_link=True)
    spread = layout.spread_classes([1.0, 2.0, 3.0])
    for parameter, entry in zip(layout.parameters, spread, strict=True):
        assert entry == (3.0 if not parameter.rate else 1.0 if "s" in parameter.name.split()[1] else 2.0)


def test_a_sending_gap_is_a_parameter_only_if_the_model_has_one():
    model = leaf_spine()
    with_gap = type(model)(model.ranks, model.links, model.routes, model.message_ns, Estimate(50.0))
    layout = layout_of(with_gap)
    assert layout.parameters[-1].name == "gap between sends"
    assert layout.model([p.given for p in layout.parameters]) == with_gap


def test_a_pair_without_a_route_is_refused():
    with pytest.raises(InputError, match="no route from rank 3 to rank 3"):
        layout_of(leaf_spine()).crossed(3, 3)


def test_the_envelope_sees_past_contention_and_stragglers():
    rng = np.random.default_rng(0)
    sizes = rng.choice([1 << 16, 1 << 18, 1 << 20, 1 << 22], 400).astype(float)
    fct = 3000 + sizes / 25.0
    fct *= np.where(rng.random(400) < 0.7, 1.0, rng.uniform(1, 8, 400))
    rate, fixed = envelope(sizes, fct)
    assert rate == pytest.approx(200e9, rel=0.01)
    assert fixed == pytest.approx(3000, rel=0.05)


def test_the_envelope_of_one_size_is_its_rate():
    rate, fixed = envelope(np.full(20, 1e6), np.full(20, 4e4))
    assert (rate, fixed) == (pytest.approx(200e9), 0.0)
