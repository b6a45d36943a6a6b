import hypothesis.strategies as st
import pytest
from hypothesis import given

from genie.errors import RunError
from genie.replay.transports import framing
from genie.replay.transports.framing import (
    ACK,
    ANSWER_BYTES,
    DATA,
    FRAME_BYTES,
    HELLO_BYTES,
    MAX_MESSAGE_BYTES,
    Frame,
    Link,
    Verdict,
)

SECRET = bytes(range(32))
U32 = st.integers(0, (1 << 32) - 1)
FRAMES = st.builds(
    Frame,
    st.sampled_from([DATA, ACK]),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(0, MAX_MESSAGE_BYTES),
    st.integers(0, (1 << 64) - 1),
    U32,
)
LINKS = st.builds(Link, U32, U32, U32)


@given(FRAMES, st.binary(max_size=40))
def test_frames_are_read_as_written(frame, before):
    data = frame.pack()
    assert len(data) == FRAME_BYTES
    assert framing.parse(before + data + b"more", len(before)) == frame


@given(st.binary(min_size=FRAME_BYTES, max_size=FRAME_BYTES))
def test_noise_is_refused(noise):
    with pytest.raises(RunError, match="no frame of ours"):
        framing.parse(b"\0" + noise[1:])


@given(FRAMES, st.integers(0, 3), st.integers(1, 255))
def test_a_damaged_start_is_refused_or_another_kind(frame, at, damage):
    data = bytearray(frame.pack())
    data[at] ^= damage
    try:
        assert framing.parse(data).kind != frame.kind
    except RunError as error:
        assert "no frame of ours" in error.what  # noqa: PT017 - either is right


@given(LINKS, st.binary(min_size=32, max_size=32))
def test_hellos_need_the_secret(link, other):
    hello = framing.pack_hello(link, SECRET)
    assert len(hello) == HELLO_BYTES
    assert framing.parse_hello(hello, SECRET) == (link, Verdict.WELCOME)
    assert framing.parse_hello(hello, other) == (link, Verdict.OTHER_SECRET)


@given(LINKS, st.integers(0, HELLO_BYTES - 1), st.integers(1, 255))
def test_a_hello_cannot_be_changed(link, at, damage):
    hello = bytearray(framing.pack_hello(link, SECRET))
    hello[at] ^= damage
    assert framing.parse_hello(hello, SECRET)[1] is not Verdict.WELCOME


@given(LINKS)
def test_an_answer_counts_for_its_own_link_and_role_alone(link):
    answer = framing.pack_answer(link, Verdict.WELCOME, SECRET)
    assert len(answer) == ANSWER_BYTES
    assert framing.parse_answer(answer, link, SECRET) == ""
    assert "another run" in framing.parse_answer(answer, link._replace(flow=link.flow ^ 1), SECRET)
    echo = answer[:8] + framing.pack_hello(link, SECRET)[16:]
    assert "another run" in framing.parse_answer(echo, link, SECRET)


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.WELCOME])
def test_every_refusal_has_its_reason(verdict):
    link = Link(4, 5, 0)
    told = framing.parse_answer(framing.pack_answer(link, verdict, SECRET), link, SECRET)
    assert told == f"it refuses rank 4: {framing.REASONS[verdict]}"
