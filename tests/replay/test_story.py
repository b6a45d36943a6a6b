import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.replay.story import MAX_NAMED, tell, wait_cycle

GRAPHS = st.dictionaries(st.integers(0, 6), st.sets(st.integers(0, 6), max_size=4), max_size=7)


def waiting(*receives, sends=(), operators=()):
    return {
        "receives": [[peer, 3, 100] for peer in receives],
        "sends": [[peer, 4, 200] for peer in sends],
        "operators": list(operators),
    }


def has_cycle(waits):
    """Whether taking away ranks that wait for nobody leaves any."""
    left = dict(waits)
    while done := [rank for rank, peers in left.items() if not peers & set(left)]:
        for rank in done:
            del left[rank]
    return bool(left)


@given(GRAPHS)
def test_a_ring_is_found_if_there_is_one(waits):
    ring = wait_cycle(waits)
    assert bool(ring) == has_cycle(waits)
    for rank, peer in zip(ring, ring[1:] + ring[:1], strict=True):
        assert peer in waits[rank]


def test_the_ring_is_named():
    text = tell({2: waiting(0, operators=["node 5 (gather)"]), 0: waiting(1), 1: waiting(2)})
    assert text.startswith(
        "ranks wait for each other, 0 -> 1 -> 2 -> 0 (rank 0 waits for 100 bytes from rank 1 (tag 3);"
    )
    assert "rank 2 waits in node 5 (gather) for 100 bytes from rank 0" in text


@pytest.mark.parametrize(
    ("options", "blamed"),
    [
        ({}, "rank 2 ("),
        ({"silent": {2}}, "rank 2, which does not answer ("),
        ({"finished": {2}}, "rank 2, which has finished and sends nothing more ("),
    ],
)
def test_all_waiting_ends_at_somebody(options, blamed):
    assert tell({0: waiting(1), 1: waiting(2)}, **options).startswith(f"all wait in the end for {blamed}")


def test_somebody_may_wait_for_acknowledgements():
    text = tell({0: waiting(1), 1: waiting(sends=[2, 2, 2])})
    assert text.startswith("all wait in the end for rank 1, whose messages are not acknowledged (")
    assert text.endswith(
        "rank 1 waits for the acknowledgement of 200 bytes by rank 2 and "
        "the acknowledgement of 200 bytes by rank 2 and 1 messages more)."
    )


def test_a_silent_rank_that_acknowledges_nothing_is_named():
    assert tell({0: waiting(sends=[1])}, silent={1}).startswith("all wait in the end for rank 1, which does not answer")


def test_acknowledgements_alone_point_at_the_path():
    assert "the path between these ranks carries nothing" in tell({0: waiting(sends=[1]), 1: waiting(sends=[0])})


def test_an_operator_that_waits_for_no_message_is_told():
    assert (
        tell({0: waiting(operators=["node 1"])})
        == "no rank waits for a message (rank 0 waits in node 1 for no message)."
    )


def test_nothing_to_tell():
    assert tell({0: waiting(), 1: waiting()}) == ""


def test_only_the_first_are_told_in_detail():
    ranks = MAX_NAMED + 5
    assert f"rank {MAX_NAMED - 1} waits" in tell({rank: waiting(99) for rank in range(ranks)})
    assert tell({rank: waiting(99) for rank in range(ranks)}).endswith("; and 5 ranks more).")
