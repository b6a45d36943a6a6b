"""Packets as bytes: what the fast builder makes is what a plain one makes, and the checker takes exactly that."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.formats.icrc import Way, icrc
from genie.formats.roce import parse
from genie.replay.transports.payload import payload
from genie.replay.transports.roce.layout import Layout, Outgoing
from genie.replay.transports.roce.packets import CHUNK, Builder, Checker, Inbox

WAYS = [Way.between("10.1.2.3", "10.4.5.6", 50_000), Way.between("fd00::1", "fd00::2", 49_152)]
QPN, RKEY = 0x123456, 0xABCDEF01


def message_of(layout, size_bytes, sequence=3):
    message = Outgoing(1, -5, size_bytes, 0, 7, sequence, 0)
    message.packets = layout.packets(size_bytes)
    return message


def plain(layout, message, index, psn, way, position, ack_request):
    """A packet from the codec, its ICRC from all of its bytes."""
    builder = Builder(way, layout, QPN, RKEY, 1, seal=False)
    single = builder.single(message, layout.part(message, index), psn, ack_request=ack_request)
    body = b"".join(single.buffers)[:-4]
    return body + icrc(way.masked(len(body) + 4, position if way is WAYS[0] else 0), body).to_bytes(4, "little")


def taken(checker, layout, packets, told):
    inbox = Inbox(layout)
    inbox.view[: len(packets)] = packets
    return checker.are_middles(inbox, *told)


@settings(max_examples=60)
@given(st.data())
def test_middle_packets_are_as_if_built_one_by_one(data):
    layout = Layout(data.draw(st.sampled_from([256, 1024, 4096])), data.draw(st.booleans()))
    way = data.draw(st.sampled_from(WAYS))
    segments = data.draw(st.sampled_from([1, 4, 15]))
    message = message_of(layout, 400 * layout.mtu, data.draw(st.integers(0, 1 << 20)))
    first_psn = data.draw(st.sampled_from([0, 77, 0xFF_FF80]))
    builder, checker = Builder(way, layout, QPN, RKEY, segments), Checker(way, layout, QPN, segments)
    index = data.draw(st.integers(1, 30))
    for _ in range(data.draw(st.integers(1, 6))):
        count = data.draw(st.integers(1, segments))
        asks = data.draw(st.booleans())
        psn = first_psn + index & 0xFF_FFFF
        built = b"".join(builder.middles(message, index, psn, count, ack_request=asks))
        for at in range(count):
            one = plain(layout, message, index + at, psn + at & 0xFF_FFFF, way, at, asks and at == count - 1)
            packet = built[at * layout.middle_bytes : (at + 1) * layout.middle_bytes]
            assert packet == one
            assert checker.is_sealed(memoryview(packet))
        offset = index * layout.mtu - layout.lead
        told = (count, psn, message.sequence, offset)
        assert taken(checker, layout, built, told)
        wrong = bytearray(built)
        wrong[data.draw(st.integers(0, len(wrong) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        assert not taken(checker, layout, wrong, told)
        index += data.draw(st.sampled_from([count, count, -index + 1, CHUNK]))
        if index + segments >= message.packets - 1:
            break


@given(st.data())
def test_any_packet_is_built_right(data):
    layout = Layout(256, data.draw(st.booleans()))
    way = data.draw(st.sampled_from(WAYS))
    size = data.draw(st.integers(0, 2_000))
    message = message_of(layout, size, data.draw(st.integers(0, 9)))
    index = data.draw(st.integers(0, message.packets - 1))
    position = data.draw(st.integers(0, 14))
    part = layout.part(message, index)
    builder = Builder(way, layout, QPN, RKEY, 15)
    single = builder.single(message, part, 9, ack_request=True, position=position)
    packet = b"".join(single.buffers)
    assert packet == plain(layout, message, index, 9, way, position, ack_request=True)
    assert len(packet) == single.wire_bytes == part.wire_bytes
    parsed = parse(packet)
    assert (parsed.opcode, parsed.qpn, parsed.psn, parsed.ack_request) == (part.opcode, QPN, 9, True)
    assert parsed.payload[part.lead :] == bytes(payload(message.sequence, part.offset, part.length))
    assert Checker(way, layout, QPN, 15).is_sealed(memoryview(packet))


@pytest.mark.parametrize("byte", [0, 1, 3, 5, 8, 11, 12, 200, 267, 271])
def test_a_flipped_bit_is_found(byte):
    layout = Layout(256)
    message = message_of(layout, 1_024)
    builder, checker = Builder(WAYS[0], layout, QPN, RKEY, 1), Checker(WAYS[0], layout, QPN, 1)
    packet = bytearray(b"".join(builder.middles(message, 1, 5, 1, ack_request=False)))
    packet[byte] ^= 0x10
    assert not checker.is_sealed(memoryview(packet))


def test_what_a_router_changes_is_not_covered():
    layout = Layout(256)
    message = message_of(layout, 1_024)
    packet = bytearray(b"".join(Builder(WAYS[0], layout, QPN, RKEY, 1).middles(message, 1, 5, 1, ack_request=False)))
    packet[4] ^= 0xC0  # FECN and BECN
    assert Checker(WAYS[0], layout, QPN, 1).is_sealed(memoryview(packet))


def test_without_seals_nothing_is_computed():
    layout = Layout(256)
    message = message_of(layout, 1_024)
    builder = Builder(WAYS[0], layout, QPN, RKEY, 4, seal=False)
    packets = b"".join(builder.middles(message, 1, 5, 2, ack_request=True))
    assert packets[-4:] == bytes(4)
    checker = Checker(WAYS[0], layout, QPN, 4, sealed=False)
    assert taken(checker, layout, packets, (2, 5, 3, 256))
    packets = packets[:100] + b"?" + packets[101:]
    assert taken(checker, layout, packets, (2, 5, 3, 256))  # nobody asked for its content to be checked
    assert not taken(Checker(WAYS[0], layout, QPN, 4, sealed=False, content=True), layout, packets, (2, 5, 3, 256))
