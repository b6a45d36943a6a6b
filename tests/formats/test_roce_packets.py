"""RoCEv2 headers and ICRC, against scapy as an independent implementation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.errors import InputError
from genie.formats.icrc import Way, apply, icrc, ip_id_changes, register, sealed, shift, word_tables
from genie.formats.roce import (
    PSN_MASK,
    WITH_AETH,
    WITH_IMM,
    WITH_RETH,
    Aeth,
    Kind,
    Opcode,
    Packet,
    Reth,
    credits_code,
    credits_of,
    parse,
    psn_add,
    psn_distance,
    rnr_code,
    rnr_wait_ns,
    send_opcode,
    write_opcode,
)

U24 = st.integers(0, PSN_MASK)
U32 = st.integers(0, 0xFFFF_FFFF)


@st.composite
def packets(draw):
    opcode = draw(st.sampled_from(Opcode))
    return Packet(
        opcode=opcode,
        qpn=draw(U24),
        psn=draw(U24),
        ack_request=draw(st.booleans()),
        solicited=draw(st.booleans()),
        becn=draw(st.booleans()),
        fecn=draw(st.booleans()),
        pkey=draw(st.integers(0, 0xFFFF)),
        reth=Reth(draw(st.integers(0, (1 << 64) - 1)), draw(U32), draw(U32)) if opcode in WITH_RETH else None,
        aeth=Aeth(draw(st.sampled_from(Kind)), draw(st.integers(0, 31)), draw(U24)) if opcode in WITH_AETH else None,
        immediate=draw(U32) if opcode in WITH_IMM else None,
        deth=(draw(U32), draw(U24)) if opcode == Opcode.UD_SEND_ONLY else None,
        payload=draw(st.binary(max_size=40)),
    )


WAYS = [Way.between("10.1.2.3", "10.4.5.6", 50_000), Way.between("fd00::1", "fd00::2", 49_152)]
ways = st.sampled_from(WAYS)


@given(packets(), ways)
def test_what_is_built_is_parsed_again(packet, way):
    data = sealed(way, packet.body())
    parsed = parse(data)
    assert parsed.icrc == icrc(way.masked(len(data)), data[:-4])
    assert Packet(**{name: getattr(parsed, name) for name in Packet.__slots__ if name != "icrc"}) == packet
    assert len(data) % 4 == 0


@given(st.binary(max_size=100))
def test_anything_is_parsed_or_refused(data):
    try:
        packet = parse(data)
    except InputError:
        return
    assert len(data) >= 16
    assert packet.opcode in Opcode


@given(packets(), ways, st.integers(0, 0xFFFF), st.integers(0, 255), st.integers(0, 255))
def test_scapy_computes_the_same_icrc(packet, way, ip_id, ttl, tos):
    from scapy.contrib.roce import BTH  # noqa: PLC0415
    from scapy.layers.inet import IP, UDP  # noqa: PLC0415
    from scapy.layers.inet6 import IPv6  # noqa: PLC0415

    data = sealed(way, packet.body(), ip_id)
    if way is WAYS[0]:
        network = IP(src="10.1.2.3", dst="10.4.5.6", id=ip_id, ttl=ttl, tos=tos, flags="DF")
    else:
        network = IPv6(src="fd00::1", dst="fd00::2", tc=tos, fl=ip_id, hlim=ttl)
    raw = bytes(network / UDP(sport=way.sport, dport=4791) / data)
    seen = (IP if way is WAYS[0] else IPv6)(raw)
    bth = seen[BTH]
    assert bth.opcode == packet.opcode
    assert (bth.psn, bth.dqpn, bth.ackreq) == (packet.psn, packet.qpn, packet.ack_request)
    bth.icrc = None
    assert bytes(seen)[-4:] == data[-4:]


@given(st.binary(min_size=1, max_size=60), st.integers(0, 200), U32)
def test_the_register_is_linear(data, more, before):
    assert register(data, before) == register(bytes(len(data)), before) ^ register(data)
    moved = apply(shift(more), np.array([before], np.uint32))
    assert moved[0] == register(bytes(more), before)


@given(U32, st.integers(0, 100))
def test_what_a_word_changes(word, after):
    changed = apply(word_tables(after), np.array([word], np.uint32))
    assert changed[0] == register(word.to_bytes(4, "big") + bytes(after))


@given(st.binary(max_size=30).map(lambda data: data + bytes(-len(data) % 4)), st.integers(0, 127), ways)
def test_what_the_ip_identification_changes(payload, ip_id, way):
    body = Packet(Opcode.SEND_ONLY, 7, 9, payload=payload).body()
    first, other = (icrc(way.masked(len(body) + 4, i), body) for i in (0, ip_id))
    assert first ^ other == ip_id_changes(way.ip_bytes, len(body) + 4)[ip_id]


@given(U24, st.integers(-(1 << 23), (1 << 23) - 1))
def test_psn_arithmetic_across_the_wrap(psn, count):
    assert psn_distance(psn_add(psn, count), psn) == count


def test_opcodes():
    assert write_opcode(first=True, last=True, immediate=True) is Opcode.WRITE_ONLY_IMM
    assert write_opcode(first=False, last=True) is Opcode.WRITE_LAST
    assert write_opcode(first=True, last=False) is Opcode.WRITE_FIRST
    assert send_opcode(first=False, last=False) is Opcode.SEND_MIDDLE
    assert send_opcode(first=True, last=True) is Opcode.SEND_ONLY


@given(st.integers(0, 40_000))
def test_credits_promise_no_more_than_there_is(messages):
    assert credits_of(credits_code(messages)) <= messages
    assert credits_of(credits_code(None)) is None


@given(st.integers(0, 600_000_000))
def test_rnr_waits_are_long_enough(wait_ns):
    assert rnr_wait_ns(rnr_code(wait_ns)) >= wait_ns


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "0 bytes"),
        (bytes(15), "15 bytes"),
        (b"\x06" + bytes(20), "too few for opcode 0x06"),
        (b"\x55" + bytes(20), "opcode 0x55"),
        (b"\x04\x01" + bytes(20), "header version 1"),
        (b"\x11" + bytes(11) + b"\x40" + bytes(7), "reserved"),
    ],
)
def test_what_is_no_packet_is_told(data, told):
    with pytest.raises(InputError, match=told):
        parse(data)
