"""How far messages on an emulated link end ahead of their time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.core.shaping import UNSHAPED, Ahead, Shaping

BYTE_A_NS = 8_000_000_000


@pytest.mark.parametrize(
    ("size_bytes", "last_ns"),
    [(68, 100), (69, 1), (100, 32), (168, 100), (0, 32)],
    ids=["full", "next", "part", "two", "lead"],
)
def test_the_last_super_packet_is_what_the_full_ones_leave(size_bytes, last_ns):
    assert Shaping(super_packet_bytes=100, lead_bytes=32).last_ns(size_bytes, BYTE_A_NS) == last_ns


def test_a_slower_link_takes_longer_for_it():
    assert Shaping(100).last_ns(50, BYTE_A_NS // 4) == 200


@pytest.mark.parametrize(("shaping", "rate_bps"), [(UNSHAPED, BYTE_A_NS), (Shaping(100, 0, 50), 0)])
def test_without_a_shaper_nothing_is_early(shaping, rate_bps):
    assert Ahead(shaping).of(12_345, rate_bps, 0) == 0


def test_a_message_on_an_idle_link_is_early_by_its_last_super_packet_and_the_link_s_credit():
    assert Ahead(Shaping(100, 0, credit_ns=40)).of(250, BYTE_A_NS, 1_000) == 50 + 40


def test_what_follows_without_a_gap_is_early_by_the_same_credit():
    ahead = Ahead(Shaping(100, 0, credit_ns=40))
    ahead.of(250, BYTE_A_NS, 1_000)  # paid for at 1,210, and a true link were busy until 1,250
    assert ahead.of(230, BYTE_A_NS, 1_210) == 30 + 40
    assert ahead.of(230, BYTE_A_NS, 1_300) == 30 + 40


def test_after_a_short_message_some_of_the_credit_is_left():
    ahead = Ahead(Shaping(100, 0, credit_ns=1_000))
    assert ahead.of(70, BYTE_A_NS, 5_000) == 70, "it is early by all of itself"
    assert ahead.of(250, BYTE_A_NS, 5_000) == 70 + 250, "and the next by both"


def test_messages_that_share_a_link_share_its_credit():
    """Both begin at once, and end at about 2 x 250: the second can be no earlier than its link is."""
    ahead = Ahead(Shaping(100, 0, credit_ns=40))
    assert [ahead.of(250, BYTE_A_NS, 0) for _ in range(2)] == [50 + 40, 50 + 40]


class Link:
    """A shaper as HTB is one: credit, tokens that go below zero, super-packets that pass while there are any."""

    def __init__(self, shaping):
        self.shaping, self.tokens, self.at_ns = shaping, shaping.credit_ns, 0

    def send(self, size_bytes, now_ns):
        """When a message's first and last super-packets are through; a byte a ns."""
        first_ns, left = -1, size_bytes
        while left:
            self.tokens = min(self.shaping.credit_ns, self.tokens + max(0, now_ns - self.at_ns))
            self.at_ns = max(self.at_ns, now_ns)
            now_ns = max(now_ns, self.at_ns)
            if self.tokens < 0:
                now_ns = self.at_ns - self.tokens
                continue
            first_ns = now_ns if first_ns < 0 else first_ns
            piece = min(left, self.shaping.super_packet_bytes)
            self.tokens -= piece
            left -= piece
        return first_ns, now_ns


@given(
    st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 3_000)), min_size=1, max_size=20),
    st.integers(1, 500),
    st.integers(0, 800),
)
def test_with_it_a_shaped_link_is_one_that_sends_a_byte_a_ns(messages, super_packet_bytes, credit_ns):
    """Each message is posted some time after the one before has ended on the true link, as a rank's are."""
    shaping = Shaping(super_packet_bytes, 0, credit_ns)
    link, ahead, true_ns = Link(shaping), Ahead(shaping), 0
    for size_bytes, pause_ns in messages:
        post_ns = true_ns + pause_ns
        true_ns = post_ns + size_bytes
        begin_ns, end_ns = link.send(size_bytes, post_ns)
        assert end_ns + ahead.of(size_bytes, BYTE_A_NS, begin_ns) == pytest.approx(true_ns, abs=1)
