from collections import Counter, defaultdict

import hypothesis.strategies as st
from hypothesis import given

from genie.replay.transports.matching import Arrived, KeyNumbers, Matcher, Posted, Tally

KEYS = st.tuples(st.integers(0, 2), st.integers(0, 1), st.sampled_from([0, 8]))


def arrived(number):
    return Arrived(number, number, 0)


@given(st.lists(st.tuples(st.booleans(), KEYS)))
def test_the_nth_arrival_of_a_key_meets_its_nth_receive(steps):
    matcher, posts, arrivals, pairs = Matcher(), Counter(), Counter(), defaultdict(list)
    for is_post, key in steps:
        if is_post:
            found = matcher.post(key, Posted(posts[key], 0))
            pair = None if found is None else (posts[key], found.done_ns)
            posts[key] += 1
        else:
            found = matcher.arrive(key, arrived(arrivals[key]))
            pair = None if found is None else (found.handle, arrivals[key])
            arrivals[key] += 1
        if pair:
            pairs[key].append(pair)
    for key in posts.keys() | arrivals.keys():
        assert pairs[key] == [(n, n) for n in range(min(posts[key], arrivals[key]))]
    for peer in range(3):
        waiting = sum(max(0, posts[key] - arrivals[key]) for key in posts if key[0] == peer)
        assert matcher.expected_from(peer) == waiting


@given(st.lists(KEYS), st.randoms())
def test_nothing_is_kept_of_what_was_matched(keys, choose):
    matcher = Matcher()
    steps = [(key, is_post) for key in keys for is_post in (True, False)]
    choose.shuffle(steps)
    for number, (key, is_post) in enumerate(steps):
        if is_post:
            matcher.post(key, Posted(number, 0))
        else:
            matcher.arrive(key, arrived(number))
    assert not matcher._posted
    assert not matcher._arrived


@given(st.lists(KEYS, min_size=1), st.data())
def test_a_cancelled_receive_is_passed_over(keys, data):
    matcher = Matcher()
    for handle, key in enumerate(keys):
        matcher.post(key, Posted(handle, 0))
    gone = data.draw(st.integers(0, len(keys) - 1))
    assert matcher.cancel(gone)
    assert not matcher.cancel(gone)
    left = [handle for handle in range(len(keys)) if handle != gone]
    found = [matcher.arrive(key, arrived(0)) for handle, key in enumerate(keys) if handle != gone]
    assert sorted(posted.handle for posted in found) == left
    assert matcher.arrive(keys[gone], arrived(0)) is None


@given(st.lists(KEYS), st.randoms())
def test_numbers_undo_any_overtaking(keys, choose):
    here, there = KeyNumbers(), KeyNumbers()
    messages = [(key, here.take(key), arrived(at)) for at, key in enumerate(keys)]
    choose.shuffle(messages)
    told = defaultdict(list)
    for key, number, message in messages:
        told[key] += [due.done_ns for due in there.in_order(key, number, message)]
    assert told == {key: [at for at, other in enumerate(keys) if other == key] for key in keys}
    assert not there._early


def test_only_the_newest_number_can_be_given_back():
    numbers, key = KeyNumbers(), (0, 0, 0)
    assert [numbers.take(key) for _ in range(3)] == [0, 1, 2]
    assert not numbers.give_back(key, 1)
    assert numbers.give_back(key, 2)
    assert numbers.take(key) == 2
    assert not numbers.give_back((1, 0, 0), 0)


def test_a_tally_hands_out_copies():
    tally = Tally()
    tally.sent(1, 10)
    tally.sent(1, 0)
    tally.received(2, 5)
    totals = tally.totals()
    assert totals == {"sent": {1: [2, 10]}, "received": {2: [1, 5]}}
    totals["sent"][1][0] = 99
    assert tally.totals()["sent"] == {1: [2, 10]}
