"""The block decoder against protobuf's own."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.errors import InputError
from genie.formats import wire
from genie.formats.chakra_schema import AttributeProto, Node
from genie.formats.wire import PAD_BYTES, Wire, repeated, scan, varints

BITS = st.integers(0, (1 << 64) - 1)
NODES = st.lists(
    st.builds(
        Node,
        id=BITS,
        name=st.text(max_size=5),
        type=st.integers(0, 7),
        data_deps=st.lists(BITS, max_size=4),
        ctrl_deps=st.lists(BITS, max_size=2),
        duration_micros=BITS,
        attr=st.lists(
            st.one_of(
                st.builds(AttributeProto, name=st.text(max_size=3), int64_val=st.integers(-(1 << 63), (1 << 63) - 1)),
                st.builds(AttributeProto, name=st.text(max_size=3), double_val=st.floats()),
                st.builds(
                    AttributeProto, name=st.text(max_size=3), sfixed32_val=st.integers(-(1 << 31), (1 << 31) - 1)
                ),
            ),
            max_size=3,
        ),
    ),
    min_size=1,
    max_size=6,
)


def laid_out(messages):
    """(buffer, start, stop) of messages one after another."""
    ends = np.cumsum([len(message) for message in messages])
    buffer = np.frombuffer(b"".join(messages) + bytes(PAD_BYTES), np.uint8)
    return buffer, np.concatenate(([0], ends[:-1])).astype(np.int64), ends.astype(np.int64)


def refuse(message):
    return InputError(f"message {message}")


@pytest.fixture(params=[0, 10**9], ids=["together", "one by one"])
def few(request, monkeypatch):
    monkeypatch.setattr(wire, "FEW", request.param)


def walk(messages):
    return scan(*laid_out(messages), refuse)


@pytest.mark.usefixtures("few")
@settings(deadline=None)
@given(NODES)
def test_fields_are_those_that_protobuf_finds(nodes):
    messages = [node.SerializeToString() for node in nodes]
    buffer, start, stop = laid_out(messages)
    fields = scan(buffer, start, stop, refuse)
    for number, name in ((1, "id"), (7, "duration_micros"), (3, "type")):
        found = dict(zip(fields.numbered(number).message, fields.numbered(number).value, strict=True))
        assert [int(found.get(at, 0)) for at in range(len(nodes))] == [getattr(node, name) for node in nodes]
    for number, name in ((5, "data_deps"), (4, "ctrl_deps")):
        offsets, values = repeated(buffer, fields.numbered(number), len(nodes), refuse)
        assert [values[a:b].tolist() for a, b in pairwise(offsets.tolist())] == [
            list(getattr(node, name)) for node in nodes
        ]
    attributes = fields.numbered(10)
    contents = [buffer[a:b].tobytes() for a, b in zip(attributes.start, attributes.stop, strict=True)]
    expected = [(at, a.SerializeToString()) for at, node in enumerate(nodes) for a in node.attr]
    assert sorted(zip(attributes.message.tolist(), contents, strict=True)) == sorted(expected)


@settings(deadline=None)
@given(st.lists(BITS, max_size=9))
def test_varints(numbers):
    data = b"".join(encoded(number) for number in numbers)
    buffer = np.frombuffer(data + bytes(PAD_BYTES), np.uint8)
    starts = np.cumsum([0, *(len(encoded(number)) for number in numbers)])
    values, after = varints(buffer, starts[:-1])
    assert values.tolist() == numbers
    assert after.tolist() == starts[1:].tolist()


def encoded(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "damaged",
    [
        b"\x08",  # a number is due
        b"\x08\x80",  # a number that does not end
        b"\x08" + b"\xff" * 11,  # a number of more than ten bytes
        b"\x12\x05abc",  # a text longer than the message
        b"\x12" + encoded((1 << 64) - 1),  # longer than memory
        b"\x00\x01",  # field 0
        b"\x0b\x0c",  # a group
        b"\x0f\x01",  # no wire type
        b"\x0d\x01\x02\x03",  # four bytes are due
        b"\x09\x01\x02\x03\x04\x05\x06\x07",  # eight bytes are due
        b"\x88",  # a field number that does not end
    ],
)
def test_damage_is_refused_and_the_message_named(damaged):
    with pytest.raises(InputError, match="message 1"):
        walk([b"\x08\x01", damaged, b"\x08\x02"])


@pytest.mark.usefixtures("few")
def test_a_field_does_not_reach_into_the_next_message():
    with pytest.raises(InputError, match="message 0"):
        walk([b"\x08\x96", b"\x08\x00"])


@pytest.mark.usefixtures("few")
def test_fixed_fields():
    fields = walk([b"\x0d\x01\x00\x00\x80", b"\x09\x01\x00\x00\x00\x00\x00\x00\x80"])
    assert fields.wire.tolist() == [Wire.FIXED32, Wire.FIXED64]
    assert fields.value.tolist() == [0x8000_0001, 0x8000_0000_0000_0001]


def test_packed_and_single_numbers_mix_in_order():
    messages = [b"\x28\x07\x2a\x03\x01\x80\x01\x28\x09", b"\x2a\x00", b"\x28\xac\x02"]
    buffer, start, stop = laid_out(messages)
    offsets, values = repeated(buffer, scan(buffer, start, stop, refuse), 3, refuse)
    assert offsets.tolist() == [0, 4, 4, 5]
    assert values.tolist() == [7, 1, 128, 9, 300]


@pytest.mark.parametrize("packed", [b"\x01\x80", b"\xff" * 10 + b"\x01"])
def test_a_packed_field_that_ends_within_a_number(packed):
    buffer, start, stop = laid_out([b"\x28\x01", b"\x2a" + bytes([len(packed)]) + packed])
    with pytest.raises(InputError, match="message 1"):
        repeated(buffer, scan(buffer, start, stop, refuse), 2, refuse)
