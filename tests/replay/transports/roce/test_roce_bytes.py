"""Packets as bytes: what the fast builder makes is what a plain one makes, and the checker takes exactly that."""

import ctypes
import socket
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.formats.icrc import Way, icrc
from genie.formats.roce import parse
from genie.replay.transports.payload import payload
from genie.replay.transports.roce import mmsg
from genie.replay.transports.roce.inlet import SLOTS, Inlet
from genie.replay.transports.roce.layout import Layout, Outgoing
from genie.replay.transports.roce.middles import CHUNK, Middles, MiddleSender
from genie.replay.transports.roce.packets import Builder, Checker
from genie.replay.transports.roce.slots import Slot

WAYS = [Way.between("10.1.2.3", "10.4.5.6", 50_000), Way.between("fd00::1", "fd00::2", 49_152)]
QPN, RKEY = 0x123456, 0xABCDEF01


def message_of(layout, size_bytes, sequence=3):
    message = Outgoing(1, -5, size_bytes, 0, 7, sequence, 0)
    message.packets = layout.packets(size_bytes)
    return message


def plain(layout, message, index, psn, way, position, ack_request):
    """A packet from the codec, its ICRC from all of its bytes."""
    builder = Builder(way, layout, QPN, RKEY, seal=False)
    single = builder.single(message, layout.part(message, index), psn, ack_request=ack_request)
    body = b"".join(single.buffers)[:-4]
    return body + icrc(way.masked(len(body) + 4, position if way is WAYS[0] else 0), body).to_bytes(4, "little")


class Wire:
    """Takes the place of a socket: keeps the datagrams that the kernel is asked to send, out of the same tables."""

    def __init__(self, monkeypatch, room=1 << 20):
        self.datagrams, self.room = [], room
        monkeypatch.setattr(mmsg, "send_many", self.send_many)

    def send_many(self, _, table, count):
        for at in range(min(count, self.room)):
            row = (ctypes.c_uint64 * 8).from_address(table + at * mmsg.ROW_BYTES)
            pieces = (ctypes.c_uint64 * (2 * row[mmsg.VECTOR_COUNT])).from_address(row[mmsg.VECTORS])
            self.datagrams.append(b"".join(map(ctypes.string_at, pieces[::2], pieces[1::2])))
        return min(count, self.room)


def sender_of(layout, segments, way=WAYS[0], *, seal=True):
    to = mmsg.pack_address("10.4.5.6", 4791)
    return MiddleSender(Middles(way, layout, QPN, segments, seal=seal), layout, segments, to)


def built(sender, message, index, psn, count, *, ack_request):
    with pytest.MonkeyPatch.context() as patch:
        wire = Wire(patch)
        while count:
            at, ready = sender.prepare(message.sequence, index, psn)
            now = min(count, ready)
            assert sender.send(0, at, now, ack_request=ack_request and now == count) == now
            index, psn, count = index + now, psn + now & 0xFF_FFFF, count - now
        return wire.datagrams


def slot_of(layout, packets):
    """As the kernel fills it."""
    slot = Slot(layout)
    at = 0
    for address, size in slot.vectors().tolist():
        piece = packets[at : at + size]
        ctypes.memmove(address, bytes(piece), len(piece))
        at += size
    slot.size, slot.segment = len(packets), min(layout.middle_bytes, len(packets))
    return slot


def taken(checker, layout, packets, told):
    return checker.are_middles(slot_of(layout, packets), *told)


@settings(max_examples=60)
@given(st.data())
def test_middle_packets_are_as_if_built_one_by_one(data):
    layout = Layout(data.draw(st.sampled_from([256, 1024, 4096])), data.draw(st.booleans()))
    way = data.draw(st.sampled_from(WAYS))
    segments = data.draw(st.sampled_from([1, 4, 15]))
    message = message_of(layout, 3_000 * layout.mtu, data.draw(st.integers(0, 1 << 20)))
    first_psn = data.draw(st.sampled_from([0, 77, 0xFF_FF80]))
    sender, checker = sender_of(layout, segments, way), Checker(way, layout, QPN, segments)
    index = data.draw(st.integers(1, 30))
    for _ in range(data.draw(st.integers(1, 6))):
        supers = data.draw(st.integers(1, 3))
        count = segments * supers if supers > 1 else data.draw(st.integers(1, segments))
        asks = data.draw(st.booleans())
        offset = index * layout.mtu - layout.lead
        for number, packets in enumerate(
            built(sender, message, index, first_psn + index & 0xFF_FFFF, count, ack_request=asks)
        ):
            done = number * segments
            psn, each = first_psn + index + done & 0xFF_FFFF, len(packets) // layout.middle_bytes
            for at in range(each):
                last = asks and done + at == count - 1
                one = plain(layout, message, index + done + at, psn + at & 0xFF_FFFF, way, at, last)
                packet = packets[at * layout.middle_bytes : (at + 1) * layout.middle_bytes]
                assert packet == one
                assert checker.is_sealed(memoryview(packet))
            told = (each, psn, message.sequence, offset + done * layout.mtu)
            slot = slot_of(layout, packets)
            assert slot.qpn == QPN
            assert slot.asks(each) == (asks and done + each == count)
            assert bytes(slot.whole()) == packets
            assert checker.are_middles(slot, *told)
            wrong = bytearray(packets)
            wrong[data.draw(st.integers(0, len(wrong) - 1))] ^= 1 << data.draw(st.integers(0, 7))
            slot = slot_of(layout, wrong)
            assert not checker.are_middles(slot, *told)
            assert bytes(slot.whole()) == wrong
        index += data.draw(st.sampled_from([count, count, -index + 1, CHUNK]))
        if index + 3 * segments >= message.packets - 1:
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
    builder = Builder(way, layout, QPN, RKEY)
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
    checker = Checker(WAYS[0], layout, QPN, 1)
    packet = bytearray(built(sender_of(layout, 1), message, 1, 5, 1, ack_request=False)[0])
    packet[byte] ^= 0x10
    assert not checker.is_sealed(memoryview(packet))


def test_what_a_router_changes_is_not_covered():
    layout = Layout(256)
    message = message_of(layout, 1_024)
    packet = bytearray(built(sender_of(layout, 1), message, 1, 5, 1, ack_request=False)[0])
    packet[4] ^= 0xC0  # FECN and BECN
    assert Checker(WAYS[0], layout, QPN, 1).is_sealed(memoryview(packet))


def test_without_seals_nothing_is_computed():
    layout = Layout(256)
    message = message_of(layout, 1_024)
    packets = built(sender_of(layout, 4, seal=False), message, 1, 5, 2, ack_request=True)[0]
    assert packets[-4:] == bytes(4)
    checker = Checker(WAYS[0], layout, QPN, 4, sealed=False)
    assert taken(checker, layout, packets, (2, 5, 3, 256))
    packets = packets[:100] + b"?" + packets[101:]
    assert taken(checker, layout, packets, (2, 5, 3, 256))  # nobody asked for its content to be checked
    assert not taken(Checker(WAYS[0], layout, QPN, 4, sealed=False, content=True), layout, packets, (2, 5, 3, 256))


def test_what_the_kernel_has_no_room_for_is_sent_later(monkeypatch):
    layout = Layout(256)
    message, sender = message_of(layout, 100_000), sender_of(layout, 4)
    wire = Wire(monkeypatch, room=2)
    at, _ = sender.prepare(3, 1, 5)
    assert sender.send(0, at, 16, ack_request=True) == 8
    later, _ = sender.prepare(3, 9, 13)
    assert sender.send(0, later, 8, ack_request=False) == 8
    expected = [plain(layout, message, 1 + k, 5 + k, WAYS[0], k % 4, ack_request=False) for k in range(16)]
    assert b"".join(wire.datagrams) == b"".join(expected)


@pytest.mark.parametrize(("family", "home"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_datagrams_of_all_sizes_through_the_kernel(family, home):
    layout = Layout(1024)
    try:
        far, near = (socket.socket(family, socket.SOCK_DGRAM) for _ in range(2))
        near.bind((home, 0))
    except OSError:
        assert family == socket.AF_INET6  # a machine without it
        return
    far.bind((home, 0))
    sent = [
        bytes([k % 251]) * size for k, size in enumerate((1, 12, 1035, 1036, 1037, 1040, 2080, 30_000, 65_000, 0) * 2)
    ]
    inlet, found = Inlet(near, 1 << 22, layout, lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC)), []
    before_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    for data in sent:
        far.sendto(data, near.getsockname())
    while count := inlet.read():
        assert count <= SLOTS
        for slot in inlet.slots[:count]:
            found.append(bytes(slot.whole()))
            assert (slot.source, slot.sport) == (home, far.getsockname()[1])
            assert slot.segment == slot.size
            assert not slot.marked
            assert before_ns <= slot.stamp_ns <= time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    assert found == sent
    near.close()
    far.close()
