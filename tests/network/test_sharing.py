"""Max-min fairness by its definition: nobody can get more without taking from one who has no more than they."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.network.sharing import share_max_min


@st.composite
def loads(draw):
    capacity = draw(st.lists(st.floats(0.01, 1000), min_size=1, max_size=8))
    links = st.lists(st.integers(0, len(capacity) - 1), min_size=1, max_size=4, unique=True)
    return draw(st.lists(links, max_size=30)), capacity


@given(loads())
def test_no_link_is_above_capacity_and_every_flow_has_a_bottleneck(load):
    routes, capacity = load
    rates = share_max_min(routes, capacity)
    used = [0.0] * len(capacity)
    most = [0.0] * len(capacity)
    for route, rate in zip(routes, rates, strict=True):
        assert rate > 0
        for at in route:
            used[at] += rate
            most[at] = max(most[at], rate)
    assert all(u <= c * (1 + 1e-9) for u, c in zip(used, capacity, strict=True))
    for route, rate in zip(routes, rates, strict=True):
        assert any(used[at] >= capacity[at] * (1 - 1e-9) and rate >= most[at] * (1 - 1e-9) for at in route), (
            "a flow without a bottleneck could have more"
        )


@given(loads(), st.randoms(use_true_random=False))
def test_shares_do_not_depend_on_the_order_of_flows(load, rng):
    routes, capacity = load
    order = list(range(len(routes)))
    rng.shuffle(order)
    rates = share_max_min(routes, capacity)
    assert share_max_min([routes[at] for at in order], capacity) == [rates[at] for at in order]


def test_the_text_book_case():
    """Flow 0 crosses both links; the narrow one holds it back, and the rest of the wide one is flow 2's."""
    assert share_max_min([[0, 1], [0], [1]], [1.0, 10.0]) == pytest.approx([0.5, 0.5, 9.5])


def test_nobody_sends():
    assert share_max_min([], [1.0]) == []
