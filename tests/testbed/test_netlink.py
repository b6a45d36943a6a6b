import errno
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.testbed import netlink
from genie.testbed.namespaces import create, inside
from genie.testbed.netlink import Conversation, End


@given(st.lists(st.tuples(st.integers(1, 1000), st.binary(max_size=40)), max_size=8))
def test_attributes_come_back(pairs):
    assert list(netlink.attributes(b"".join(netlink.attribute(*pair) for pair in pairs))) == pairs


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_run_away(data):
    assert sum(len(value) for _, value in netlink.attributes(data)) <= len(data)


@pytest.fixture
def conversation():
    fd = create()
    with inside(fd):
        talk = Conversation()
    yield talk
    talk.close()
    os.close(fd)


@pytest.mark.netns
def test_the_kernel_names_the_request_that_it_refuses(conversation):
    end = End("a0", 10, b"\x02\0\0\0\0\1"), End("b0", 11, b"\x02\0\0\0\0\2")
    good, bad = netlink.veth(*end, 9000, 4), netlink.address(99, "10.0.0.1", 30)
    with pytest.raises(OSError, match="giving address") as caught:
        conversation.say([good, bad, netlink.up(10)])
    assert caught.value.errno == errno.ENODEV
    assert len(list(conversation.dump(netlink.GET_LINK, netlink.INTERFACE.pack(0, 0, 0, 0, 0)))) >= 3


@pytest.mark.netns
def test_more_requests_than_one_batch(conversation):
    end = End("a0", 10, b"\x02\0\0\0\0\1"), End("b0", 11, b"\x02\0\0\0\0\2")
    count = 3 * netlink.BATCH + 7
    neighbours = [netlink.neighbour(10, f"10.0.{i // 250}.{i % 250 + 1}", bytes(6)) for i in range(count)]
    conversation.say([netlink.veth(*end, 9000, 4), netlink.up(10), netlink.up(11), *neighbours])
    found = [body for body in conversation.dump(30, bytes([socket.AF_INET]) + bytes(11)) if b"\x0a\x00" in body]
    assert len(found) >= count
