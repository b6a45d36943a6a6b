"""What ends of queue pairs tell each other."""

import json
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from genie.errors import RunError
from genie.replay.clock import RealClock
from genie.replay.transports.verbs_connection import Target
from genie.replay.transports.verbs_library import PeerEnd
from genie.replay.transports.verbs_meeting import Meeting, describe, parse_description

SHAPE = (8, 4096, 1)
PATIENCE_NS = 20_000_000_000


def soon():
    return time.monotonic_ns() + PATIENCE_NS


@pytest.fixture
def pair():
    """Two ranks' meetings over two connections, and rank 1's sockets."""
    ours_out, theirs_in = socket.socketpair()
    theirs_out, ours_in = socket.socketpair()
    for sock in (ours_out, theirs_in, theirs_out, ours_in):
        sock.setblocking(False)  # noqa: FBT003 - socket knows no keyword
    yield (
        Meeting(0, {1: ours_out}, {1: ours_in}, RealClock()),
        Meeting(1, {0: theirs_out}, {0: theirs_in}, RealClock()),
        theirs_out,
    )
    for sock in (ours_out, theirs_in, theirs_out, ours_in):
        sock.close()


def test_both_hear_what_the_other_tells_however_often(pair):
    first, second, _ = pair
    with ThreadPoolExecutor(1) as pool:
        for words in ({"pairs": [[1, 2]]}, "ready", ["x" * 50_000]):
            other = pool.submit(second.exchange, {0: [words]}, soon())
            assert first.exchange({1: words}, soon()) == {1: [words]}
            assert other.result(20) == {0: words}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "told us nothing"),
        (struct.pack("!I", 10), "told us nothing"),
        (struct.pack("!I", 1 << 30), "too long"),
        (struct.pack("!I", 3) + b"abc", "no JSON"),
        (None, "hung up"),
    ],
)
def test_words_that_do_not_come_are_told(pair, data, told):
    first, _, theirs = pair
    if data is None:
        theirs.close()
    else:
        theirs.send(data)
    with pytest.raises(RunError, match=rf"no connection with ranks 1 \(.*{told}\) in time"):
        first.exchange({1: "words"}, time.monotonic_ns() + 50_000_000)


def described(**changes):
    about = describe([(17, 5)], [Target(0x7F00_0000_0000, 0x1234)], SHAPE) | changes
    return json.loads(json.dumps(about))


def test_a_description_comes_back_as_it_was():
    assert parse_description(described(), 1, SHAPE, "::ffff:10.0.0.1", 0) == [
        (PeerEnd(17, 5, "::ffff:10.0.0.1", 0), Target(0x7F00_0000_0000, 0x1234))
    ]


@pytest.mark.parametrize(
    "words",
    [
        None,
        "ready",
        [],
        {},
        described(pairs=[]),
        described(pairs=[[1 << 24, 0]]),
        described(pairs=[[-1, 0]]),
        described(pairs=[["x", 0]]),
        described(pairs=[[1]]),
        described(targets=[[1 << 64, 0]]),
        described(targets=[[0, -1]]),
        described(targets=[]),
        described(shape=None),
    ],
)
def test_nonsense_is_told(words):
    with pytest.raises(RunError, match="no description of ours"):
        parse_description(words, 1, SHAPE, "::1", 0)


def test_slots_of_another_shape_are_told():
    with pytest.raises(RunError, match="landing slots of another shape"):
        parse_description(described(shape=[8, 8192, 1]), 1, SHAPE, "::1", 0)
