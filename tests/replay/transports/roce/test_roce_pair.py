"""The two halves of a queue pair over a channel that loses, repeats and reorders, by an injected clock."""

import heapq
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genie.formats.roce import Aeth, Kind, Nak, Opcode
from genie.replay.transports.roce import layout as layout_module
from genie.replay.transports.roce.control import Window
from genie.replay.transports.roce.layout import Layout, Outgoing
from genie.replay.transports.roce.requester import NEVER, Patience, Requester
from genie.replay.transports.roce.responder import Fate, Piece, Responder

RKEY = 0xC0FFEE
MS = 1_000_000


def piece_of(layout, message, index, ack_request=False, rkey=RKEY):
    part = layout.part(message, index)
    tag = message.tag & (1 << 64) - 1
    return Piece(
        message.first + index,
        part.opcode,
        part.length + part.lead,
        tag,
        rkey,
        part.piece_bytes,
        message.number,
        ack_request,
    )


class Channel:
    """A link of 1 us a packet and 100 us of delay, with bad luck both ways."""

    def __init__(self, layout, seed, *, psn=0, window=16, depth=0, bad=0.0, patience=None):
        patience = patience or Patience()
        self.layout, self.luck, self.bad = layout, random.Random(seed), bad
        self.requester = Requester(layout, psn, Window(window), patience)
        self.responder = Responder(layout, psn, RKEY, selective=patience.selective, depth=depth)
        self.now_ns, self.serial = 0, 0
        self.flying, self.arrived, self.completed = [], [], []
        self.take_after_ns = 0

    def fly(self, what, *args):
        copies = 1 if self.luck.random() >= self.bad else self.luck.choice([0, 0, 2])
        for _ in range(copies):
            late = self.luck.randrange(300_000) if self.luck.random() < self.bad else 0
            self.serial += 1
            heapq.heappush(self.flying, (self.now_ns + 100_000 + late, self.serial, what, args))

    def send_all(self):
        requester = self.requester
        while (run := requester.next_run(8, self.now_ns)) is not None:
            requester.take(run, run.packets * self.layout.mtu, self.now_ns)
            asks = requester.wants_acknowledgement(run, self.now_ns)
            for at in range(run.packets):
                ask = asks and at == run.packets - 1
                self.fly(self.at_responder, piece_of(self.layout, run.message, run.at + at, ask))
            self.now_ns += 1_000

    def at_responder(self, piece):
        number = self.responder.number(self.requester.psn(piece.number))
        assert number == piece.number
        _, done = self.responder.on_piece(piece, self.now_ns)
        self.arrived += done
        self.responder.waiting += len(done)
        for answer in self.responder.answers():
            self.fly(self.at_requester, answer)

    def at_requester(self, answer):
        self.completed += self.requester.on_acknowledge(answer.psn, answer.aeth, self.now_ns)

    def run(self, messages, until_ns=NEVER):
        for message in messages:
            self.requester.post(message)
        while not self.requester.failed and not self.requester.idle and self.now_ns < until_ns:
            self.send_all()
            wake_ns = self.requester.wake_ns()
            if self.flying and self.flying[0][0] <= wake_ns:
                at_ns, _, what, args = heapq.heappop(self.flying)
                self.now_ns = max(self.now_ns, at_ns)
                what(*args)
            else:
                assert wake_ns < NEVER, "nothing flies and no clock runs: it would hang"
                self.now_ns = max(self.now_ns, wake_ns)
            if self.responder.waiting and self.now_ns >= self.take_after_ns:
                self.responder.waiting = 0
            self.requester.on_time(self.now_ns)


def messages_of(sizes):
    return [Outgoing(handle, -handle, size, 0, handle % 3) for handle, size in enumerate(sizes)]


def check(channel, sizes):
    assert not channel.requester.failed
    assert [m.handle for m in channel.completed] == list(range(len(sizes)))
    assert [(m.tag, m.size_bytes, m.number, m.sequence) for m in channel.arrived] == [
        (-handle, size, handle % 3, handle) for handle, size in enumerate(sizes)
    ]
    assert all(m.first_byte_ns <= m.done_ns for m in channel.arrived)


SIZES = st.lists(st.sampled_from([0, 1, 8, 255, 256, 257, 1_000, 5_000, 20_000]), min_size=1, max_size=12)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    SIZES,
    st.integers(0, 1 << 30),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.02, 0.2]),
    st.sampled_from([0, 0xFF_FFF0, 0x7F_FFFE]),
    st.sampled_from([1, 2, 7, 64]),
)
def test_every_message_arrives_once_and_in_order(sizes, seed, send, selective, bad, psn, window):
    patience = Patience(retries=1_000, selective=selective)
    channel = Channel(Layout(256, send), seed, psn=psn, window=window, bad=bad, patience=patience)
    channel.run(messages_of(sizes))
    check(channel, sizes)
    if not bad:
        assert channel.requester.counts.again == 0


@settings(max_examples=30)
@given(SIZES, st.integers(0, 1 << 30), st.integers(1, 3), st.sampled_from([0.0, 0.1]))
def test_a_receiver_without_receives_slows_its_sender_down(sizes, seed, depth, bad):
    channel = Channel(Layout(256), seed, depth=depth, bad=bad, patience=Patience(retries=1_000))
    channel.take_after_ns = 3 * MS
    channel.run(messages_of(sizes))
    check(channel, sizes)


def test_rnr_retries_end():
    channel = Channel(Layout(256), 0, depth=1, patience=Patience(rnr_retries=3))
    channel.take_after_ns = NEVER
    channel.run(messages_of([1, 1, 1]))
    assert channel.requester.failed == "it was not ready to receive, 4 times in a row"
    assert channel.requester.counts.rnr_naks == 4


def test_selective_repeat_sends_only_what_is_missing():
    def lost_packets(selective):
        channel = Channel(Layout(256), 1, window=64, patience=Patience(selective=selective))
        lose = {5, 9}
        fly = channel.fly

        def flaky(what, *args):
            number = args[0].number if isinstance(args[0], Piece) else -1
            if number in lose:
                lose.discard(number)
            else:
                fly(what, *args)

        channel.fly = flaky
        channel.run(messages_of([64 * 256]))
        check(channel, [64 * 256])
        assert channel.requester.counts.timeouts == 0
        return channel.requester.counts.again

    assert lost_packets(selective=True) == 2
    assert lost_packets(selective=False) > 20


def test_a_silent_peer_ends_in_an_error_after_the_retries():
    requester = Requester(Layout(256), 0, Window(4), Patience(timeout_ns=10 * MS, retries=3))
    requester.post(Outgoing(0, 0, 1_000, 0))
    now_ns, sent_at = 0, []
    while not requester.failed:
        while (run := requester.next_run(8, now_ns)) is not None:
            requester.take(run, 0, now_ns)
            sent_at.append(now_ns)
        now_ns = requester.wake_ns()
        requester.on_time(now_ns)
    assert requester.failed == "no acknowledgement after 3 retries"
    assert sorted(set(sent_at)) == [0, 10 * MS, 30 * MS, 70 * MS]
    assert now_ns == 150 * MS
    assert requester.wake_ns() == NEVER
    assert requester.next_run(8, now_ns) is None


def test_the_time_out_grows_with_the_round_trip():
    requester = Requester(Layout(256), 0, Window(1), Patience(timeout_ns=MS))
    for number in range(50):
        requester.post(Outgoing(number, 0, 1, 0))
        now_ns = number * 1_000 * MS
        run = requester.next_run(1, now_ns)
        requester.take(run, 1, now_ns)
        assert requester.wants_acknowledgement(run, now_ns)
        if number == 49:
            assert 100 * MS <= requester.wake_ns() - now_ns <= 300 * MS
        requester.on_acknowledge(number, Aeth(Kind.ACK, 31, 0), now_ns + 50 * MS)


@pytest.mark.parametrize("psn", [5, 1_000, 0xFF_FFFF])
@pytest.mark.parametrize("kind", [Kind.ACK, Kind.NAK, Kind.RNR_NAK])
def test_answers_to_what_was_never_sent_are_ignored(psn, kind):
    requester = Requester(Layout(256), 0, Window(4), Patience())
    requester.post(Outgoing(0, 0, 1_000, 0))
    requester.take(requester.next_run(2, 0), 0, 0)
    assert requester.on_acknowledge(psn, Aeth(kind, 0, 0), 0) == []
    assert (requester.una, requester.failed, requester.counts.naks) == (0, "", 0)


@pytest.mark.parametrize("reason", [Nak.INVALID_REQUEST, Nak.REMOTE_ACCESS, Nak.REMOTE_OPERATION, 17])
def test_a_refusal_is_final(reason):
    requester = Requester(Layout(256), 0, Window(4), Patience())
    requester.post(Outgoing(0, 0, 1, 0))
    requester.take(requester.next_run(2, 0), 0, 0)
    requester.on_acknowledge(0, Aeth(Kind.NAK, reason, 0), 0)
    assert requester.failed.startswith("it ")
    assert requester.next_run(2, 0) is None


WRONG = [
    (Piece(0, Opcode.WRITE_MIDDLE, 256), Nak.INVALID_REQUEST),
    (Piece(0, Opcode.WRITE_LAST_IMM, 256), Nak.INVALID_REQUEST),
    (Piece(0, Opcode.SEND_ONLY_IMM, 9), Nak.INVALID_REQUEST),
    (Piece(0, Opcode.WRITE_ONLY_IMM, 5, 1, RKEY + 1, 5), Nak.REMOTE_ACCESS),
    (Piece(0, Opcode.WRITE_ONLY_IMM, 5, 1, RKEY, 6), Nak.INVALID_REQUEST),
    (Piece(0, Opcode.WRITE_FIRST, 256, 1, RKEY, 256), Nak.INVALID_REQUEST),
    (Piece(0, Opcode.WRITE_FIRST, 255, 1, RKEY, 1_000), Nak.INVALID_REQUEST),
    (Piece(0, Opcode.WRITE_FIRST, 256, 1, RKEY, 1 << 31), Nak.INVALID_REQUEST),
    (Piece(0, Opcode.WRITE_ONLY_IMM, 300, 1, RKEY, 300), Nak.INVALID_REQUEST),
]


@pytest.mark.parametrize(("piece", "nak"), WRONG)
def test_wrong_requests_are_refused_for_good(piece, nak):
    responder = Responder(Layout(256), 7, RKEY)
    assert responder.on_piece(piece, 0) == (Fate.REFUSED, [])
    (answer,) = responder.answers()
    assert (answer.psn, answer.aeth.kind, answer.aeth.value) == (7, Kind.NAK, nak)
    assert responder.on_piece(Piece(0, Opcode.WRITE_ONLY_IMM, 0, 0, RKEY, 0), 0) == (Fate.REFUSED, [])
    assert responder.received_bytes == 0


@pytest.mark.parametrize(
    "second",
    [
        Piece(1, Opcode.WRITE_FIRST, 256, 1, RKEY, 600),
        Piece(1, Opcode.WRITE_LAST_IMM, 100),
        Piece(1, Opcode.WRITE_MIDDLE, 200),
        Piece(1, Opcode.SEND_MIDDLE, 256),
    ],
)
def test_a_message_must_go_on_as_it_began(second):
    responder = Responder(Layout(256), 0, RKEY)
    assert responder.on_piece(Piece(0, Opcode.WRITE_FIRST, 256, 1, RKEY, 600), 0)[0] is Fate.TAKEN
    assert responder.unfinished == "message 0 (tag 1), 256 bytes of it here"
    assert responder.on_piece(second, 0)[0] is Fate.REFUSED


@pytest.mark.parametrize("send", [False, True])
def test_what_is_longer_than_a_piece_is_several_writes(monkeypatch, send):
    monkeypatch.setattr(layout_module, "PIECE_BYTES", 1_024)
    sizes = [1_024, 1_025, 4_096, 5_000, 1_016, 3]
    channel = Channel(Layout(256, send), 3, bad=0.05, patience=Patience(retries=100))
    channel.run(messages_of(sizes))
    check(channel, sizes)
    starts = [channel.layout.part(message, at).opcode for message in channel.completed[3:4] for at in range(20)]
    assert sum(opcode in {Opcode.WRITE_FIRST, Opcode.SEND_FIRST} for opcode in starts) == 5


def test_a_sign_of_life_is_acknowledged_and_no_message():
    channel = Channel(Layout(256), 0)
    channel.run([Outgoing(-1, 0, 0, 0), Outgoing(4, -4, 10, 0, 1), Outgoing(-1, 0, 0, 0)])
    assert [m.handle for m in channel.completed] == [-1, 4, -1]
    assert [m.tag for m in channel.arrived] == [-4]
    assert channel.requester.outstanding == 0


def test_only_what_has_not_started_waits():
    requester = Requester(Layout(256), 0, Window(4), Patience())
    for number in range(3):
        requester.post(Outgoing(number, 0, 1_024, 0))
    run = requester.next_run(8, 0)
    assert (run.start, run.packets) == (0, 1)  # a message's first packet is longer than those that follow
    requester.take(run, 0, 0)
    run = requester.next_run(8, 0)
    assert (run.at, run.packets) == (1, 2)
    requester.take(run, 0, 0)
    assert [m.handle for m in requester.waiting] == [1, 2]
    assert requester.outstanding == 3


@pytest.mark.parametrize("selective", [False, True])
def test_packets_that_only_changed_places_before_answers_are_due_are_taken(selective):
    responder = Responder(Layout(256), 0, RKEY, selective=selective)
    message = Outgoing(1, 5, 4 * 256, 0, 0, 0, 0, 4)
    for index in (0, 2, 3):
        responder.on_piece(piece_of(Layout(256), message, index), 0)
    fate, done = responder.on_piece(piece_of(Layout(256), message, 1), 0)
    assert (fate, [m.size_bytes for m in done]) == (Fate.TAKEN, [1_024])
    assert [answer.aeth.kind for answer in responder.answers()] == ([Kind.NAK] if selective else [])


def test_go_back_n_forgets_what_is_behind_a_gap():
    responder = Responder(Layout(256), 0, RKEY)
    message = Outgoing(1, 5, 4 * 256, 0, 0, 0, 0, 4)
    for index in (0, 2, 3):
        responder.on_piece(piece_of(Layout(256), message, index), 0)
    (answer,) = responder.answers()
    assert (answer.psn, answer.aeth.kind) == (1, Kind.NAK)
    assert responder.answers() == []
    responder.on_piece(piece_of(Layout(256), message, 1), 0)
    assert responder.expected == 2
