import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.core.faults import Action, Fault, FaultKind, delay_changes, steps
from genie.core.testbed import LinkSpec, Testbed, leaf_spine
from genie.errors import InputError

LINK = LinkSpec(200_000_000_000, 500, 1 << 20)


def testbed():
    nodes, cables = leaf_spine(4, 2, 2, LINK, LINK, 1)
    return Testbed("t", nodes, cables, ("h0", "h1", "h2", "h3"))


testbed.__test__ = False
Testbed.__test__ = False


def fault(kind, target, start=10, end=None, **more):
    return Fault(FaultKind(kind), target, start, end, **more)


@pytest.mark.parametrize(
    ("one", "struck"),
    [
        (fault("link-down", "leaf0-spine1"), ["leaf0-spine1"]),
        (fault("link-down", "spine1-leaf*"), ["leaf0-spine1", "leaf1-spine1"]),
        (fault("rate", "leaf0>spine*", value=5), ["leaf0>spine0", "leaf0>spine1"]),
        (fault("loss", "h3-leaf1", value=5), ["h3>leaf1", "leaf1>h3"]),
        (fault("pause", "h[12]"), ["rank 1", "rank 2"]),
        (fault("kill", "rank 2"), ["rank 2"]),
    ],
)
def test_targets_are_names_or_patterns(one, struck):
    assert list(one.targets(testbed(), 4)) == struck


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (fault("link-down", "leaf0>spine1"), "links, such as h0-leaf0"),
        (fault("rate", "leaf9*", value=5), "h0>leaf0"),
        (fault("kill", "rank 4"), "rank 0"),
    ],
)
def test_a_target_that_is_none_is_refused_with_examples(one, words):
    with pytest.raises(InputError, match="strikes nothing") as caught:
        steps([one], testbed(), 4, 1)
    assert words in caught.value.fix


@pytest.mark.parametrize(
    "make",
    [
        lambda: fault("link-down", "x", 10, 10),
        lambda: fault("link-down", "x", -1),
        lambda: fault("flap", "x", 0, 10),
        lambda: fault("rate", "x", 0, 10, value=0),
        lambda: fault("loss", "x", 0, 10, value=1_000_001),
        lambda: fault("kill", "x", 0, 10),
    ],
)
def test_what_cannot_be_is_refused(make):
    with pytest.raises(InputError):
        make()


def test_an_iteration_that_is_never_run_is_refused():
    with pytest.raises(InputError, match="never run"):
        steps([fault("kill", "h0", iteration=2)], testbed(), 4, 2)


def test_too_fast_a_flap_is_refused():
    with pytest.raises(InputError, match="more than"):
        steps([fault("flap", "h0-leaf0", 0, 1_000_000, period_ns=2)], testbed(), 4, 2)


@given(
    start=st.integers(0, 1000),
    length=st.integers(1, 1000),
    period=st.integers(20, 500),
    reroute=st.none() | st.integers(0, 50),
)
def test_a_flapping_link_is_up_at_the_end(start, length, period, reroute):
    one = fault("flap", "leaf0-spine0", start, start + length, period_ns=period, reroute_ns=reroute)
    made = steps([one], testbed(), 4, 1)
    assert [step.at_ns for step in made] == sorted(step.at_ns for step in made)
    changes = [step for step in made if step.action is not Action.REROUTE]
    assert [step.action for step in changes] == [Action.BEGIN, Action.END] * (len(changes) // 2)
    assert len(changes) == 2 * -(-length // period)
    assert changes[-1].at_ns <= start + length
    reroutes = len(made) - len(changes)
    assert reroutes == (0 if reroute is None else len(changes))


def test_a_delay_is_added_where_the_route_crosses_the_link():
    way = ("h0>leaf0", "leaf0>spine0", "spine0>leaf1", "leaf1>h2")
    routes = {(0, 2): way, (2, 0): ("h2>leaf1", "leaf1>spine1", "spine1>leaf0", "leaf0>h0")}
    found = delay_changes([fault("delay", "leaf?>spine0", 5, 9, value=2_000)], testbed(), routes, 0)
    assert found == {2: [(0, 5, 9, 1_500)]}
    assert delay_changes([fault("delay", "leaf?>spine0", 5, 9, value=2_000)], testbed(), routes, 1) == {}
