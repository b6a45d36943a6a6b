import socket
import struct
import threading

import pytest

from genie.errors import RunError
from genie.replay.control import MAX_BLOCK_BYTES, MAX_JSON_BYTES, Channel

HEAD = struct.Struct("!IQ")


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours, patience_s=0.05), theirs


def test_messages_and_blocks_arrive_in_order(ends):
    channel, theirs = ends
    other = Channel(theirs)
    block = bytes(range(256)) * 5_000
    sender = threading.Thread(target=lambda: [other.send({"op": "a", "n": 1}, block), other.send({"op": "b"})])
    sender.start()
    assert channel.receive() == ({"op": "a", "n": 1}, block)
    assert channel.receive() == ({"op": "b"}, b"")
    sender.join()
    assert not channel.ready()


def test_the_end_is_told(ends):
    channel, theirs = ends
    theirs.close()
    assert channel.ready()
    with pytest.raises(RunError, match="gone"):
        channel.receive()
    with pytest.raises(RunError, match="gone"):
        channel.send({"op": "a"})


@pytest.mark.parametrize("sizes", [(MAX_JSON_BYTES + 1, 0), (2, MAX_BLOCK_BYTES + 1)])
def test_sizes_are_bounded_before_memory_is_taken(ends, sizes):
    channel, theirs = ends
    theirs.sendall(HEAD.pack(*sizes))
    with pytest.raises(RunError, match="beyond all bounds"):
        channel.receive()


@pytest.mark.parametrize("text", [b"\x80\x04pickle", b"[1]", b'{"no": "op"}', b'{"op": 3}', b"{", b"\xff\xfe"])
def test_what_is_no_message_is_refused(ends, text):
    channel, theirs = ends
    theirs.sendall(HEAD.pack(len(text), 0) + text)
    with pytest.raises(RunError, match="a control message"):
        channel.receive()


def test_an_end_that_stops_in_the_middle_does_not_hold_us_up(ends):
    channel, theirs = ends
    theirs.sendall(HEAD.pack(100, 0) + b"{")
    with pytest.raises(RunError, match="in the middle"):
        channel.receive()


def test_an_end_that_takes_nothing_does_not_hold_us_up(ends):
    channel, _ = ends
    with pytest.raises(RunError, match="gone"):
        channel.send({"op": "a"}, bytes(64 << 20))
