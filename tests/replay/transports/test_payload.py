import hypothesis.strategies as st
from hypothesis import given

from genie.replay.transports.payload import PIECE_BYTES, first_difference, payload

SEQUENCES = st.integers(0, 1 << 40)
OFFSETS = st.integers(0, 8 << 30)


@given(SEQUENCES, OFFSETS, st.integers(0, 5_000))
def test_what_was_sent_is_recognised(sequence, offset, size):
    data = payload(sequence, offset, size)
    assert len(data) == size
    assert first_difference(data, sequence, offset) == -1


@given(SEQUENCES, OFFSETS, st.integers(1, 2_000), st.data())
def test_a_changed_byte_is_found(sequence, offset, size, data):
    received = bytearray(payload(sequence, offset, size))
    at = data.draw(st.integers(0, size - 1))
    received[at] ^= data.draw(st.integers(1, 255))
    assert first_difference(memoryview(received), sequence, offset) == offset + at


@given(SEQUENCES, OFFSETS, st.integers(1, 1 << 20))
def test_shifted_bytes_and_those_of_the_next_message_are_found(sequence, offset, shift):
    if shift % 65_521:
        assert first_difference(payload(sequence, offset + shift, 64), sequence, offset) >= offset
    assert first_difference(payload(sequence + 1, offset, 64), sequence, offset) >= offset


def test_pieces_may_be_as_long_as_promised_from_any_place():
    for sequence in (0, 1, 65_520):
        data = payload(sequence, 65_520, PIECE_BYTES)
        assert len(data) == PIECE_BYTES
        assert first_difference(data, sequence, 65_520) == -1
