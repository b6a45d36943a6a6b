"""Slots, credits and work requests: two ends played against each other, without any device."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.errors import RunError
from genie.replay.transports.verbs_window import (
    Intake,
    SendQueue,
    Window,
    is_taken,
    piece_word,
    slot_bytes_for,
    taken_word,
)

BEFORE_WRAP = (1 << 31) - 3


@given(st.integers(2, 16), st.lists(st.integers(0, 20), max_size=200), st.sampled_from([0, BEFORE_WRAP]))
def test_no_slot_is_written_twice_before_it_was_read_and_nothing_stalls(slots, turns, start):
    """Each turn sends as many pieces as asked and allowed, then takes in as many; messages have one to three pieces."""
    window, intake = Window(slots), Intake(slots)
    window.posted = window.taken = intake.taken = intake._told = start
    wire, free, unread_words = [], set(range(slots)), 0
    for turn in turns:
        for _ in range(min(turn, window.free)):
            number = window.take()
            free.remove(number % slots)
            wire.append(piece_word(number))
        for _ in range(min(turn, len(wire))):
            free.add(intake.arrive(wire.pop(0)))
            if turn % 3 == 0:
                intake.finish()
        if intake.owes:
            word = intake.tell()
            unread_words += 1
            assert is_taken(word)
            window.told(word)
        assert window.posted - window.taken <= slots
    assert window.free or wire or not intake.owes
    while wire:
        free.add(intake.arrive(wire.pop(0)))
    intake.finish()
    if intake.owes:
        window.told(intake.tell())
    assert window.free == slots
    assert len(free) == slots


@given(st.integers(2, 40), st.lists(st.integers(1, 30), min_size=1, max_size=60))
def test_a_receiver_that_looks_only_when_woken_never_stalls_its_sender(slots, messages):
    """Messages of so many pieces; first and last pieces wake, and those that the window says."""
    window, intake = Window(slots), Intake(slots)
    pieces = [(at in {0, size - 1}, at == size - 1) for size in messages for at in range(size)]
    unseen = []
    while pieces:
        assert window.free, "the window is full, and nobody will ever be woken"
        woken = False
        while window.free and pieces:
            ends, last = pieces.pop(0)
            number = window.take()
            unseen.append((number, last))
            woken = woken or ends or window.wakes(number)
        while woken and unseen:
            number, last = unseen.pop(0)
            intake.arrive(piece_word(number))
            if last:
                intake.finish()
        if woken and intake.owes:
            window.told(intake.tell())


def test_half_of_the_slots_or_a_message_is_a_reason_to_tell():
    intake = Intake(8)
    for piece in range(4):
        assert not intake.owes
        intake.arrive(piece)
    assert intake.owes
    assert intake.tell() == taken_word(4)
    assert not intake.owes
    intake.arrive(4)
    assert not intake.owes
    intake.finish()
    assert intake.owes


def test_words_that_cannot_be_are_told():
    with pytest.raises(RunError, match="piece 1 came where 0 was due"):
        Intake(4).arrive(1)
    window = Window(4)
    window.take()
    with pytest.raises(RunError, match="took in 2 pieces where 1 were under way"):
        window.told(taken_word(2))
    with pytest.raises(RunError, match="took in"):
        window.told(taken_word(-1))


@given(st.integers(2, 64), st.integers(1, 100), st.data())
def test_a_full_queue_always_holds_a_request_that_will_tell(depth, every, data):
    queue, signalled = SendQueue(depth, every), []
    for _ in range(200):
        if queue.free and data.draw(st.booleans()):
            number, tells = queue.post()
            if tells:
                signalled.append(number)
        elif signalled and data.draw(st.booleans()):
            queue.done(signalled.pop(0))
        assert queue.free or signalled
    while signalled:
        queue.done(signalled.pop(0))
    assert queue.idle == (not queue.unsignalled)
    if queue.unsignalled:
        number, tells = queue.post(signalled=True)
        assert tells
        queue.done(number)
    assert queue.idle


def test_a_request_that_was_never_posted_cannot_be_done():
    queue = SendQueue(4, 1)
    queue.post()
    with pytest.raises(RunError, match="request 2"):
        queue.done(2)


@given(st.integers(1, 5_000), st.integers(2, 64), st.integers(1 << 16, 1 << 30))
def test_slots_keep_to_the_budget_where_it_allows_the_least(queue_pairs, slots, budget):
    size = slot_bytes_for(queue_pairs, slots, budget, 1 << 20)
    assert 4096 <= size <= 1 << 20
    assert size.bit_count() == 1
    assert size == 4096 or size * queue_pairs * slots <= budget
