"""Capture files of both formats, broken ones too; RoCEv2 packets in them, against what scapy writes."""

import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.errors import InputError
from genie.formats.icrc import Way, sealed
from genie.formats.pcap import Frame, pcap_header, pcap_record, read_capture, write_pcap
from genie.formats.roce import Aeth, Kind, Opcode, Packet, Reth
from genie.formats.roce_capture import roce_packets, wrong_icrcs

SOURCE, DESTINATION = "10.1.2.3", "10.4.5.6"
WAY = Way.between(SOURCE, DESTINATION, 50_000)
WAY6 = Way.between("fd00::1", "fd00::2", 50_001)


def ethernet(payload, kind=0x0800, tags=()):
    frame = bytes(12)
    for tag in tags:
        frame += struct.pack("!HH", 0x8100, tag)
    return frame + struct.pack("!H", kind) + payload


def ipv4(udp_payload, tos=0, ip_id=0, sport=50_000, options=b""):
    udp = struct.pack("!HHHH", sport, 4791, 8 + len(udp_payload), 0) + udp_payload
    head = struct.pack(
        "!BBHHHBBH", 0x45 + len(options) // 4, tos, 20 + len(options) + len(udp), ip_id, 0x4000, 64, 17, 0
    )
    return head + bytes((10, 1, 2, 3, 10, 4, 5, 6)) + options + udp


def ipv6(udp_payload):
    udp = struct.pack("!HHHH", 50_001, 4791, 8 + len(udp_payload), 0) + udp_payload
    ends = bytes((0xFD,)) + bytes(14) + b"\1" + bytes((0xFD,)) + bytes(14) + b"\2"
    return struct.pack("!IHBB", 0x6000_0000 | 3 << 20, len(udp), 17, 64) + ends + udp


WRITE = Packet(
    Opcode.WRITE_ONLY_IMM, 17, 0xFF_FFFF, ack_request=True, reth=Reth(5, 9, 10), immediate=77, payload=b"0123456789"
)
ACK = Packet(Opcode.ACKNOWLEDGE, 33, 4, aeth=Aeth(Kind.NAK, 0, 3), becn=True)


def frames():
    return [
        Frame(1_000_000_001, ethernet(ipv4(sealed(WAY, WRITE.body(), 7), tos=3, ip_id=7)), 0),
        Frame(1_000_000_002, ethernet(ipv6(sealed(WAY6, ACK.body())), 0x86DD, (5,)), 0),
        Frame(1_000_000_003, ethernet(ipv4(sealed(WAY, WRITE.body()), options=bytes(8)), tags=(5, 6)), 0),
        Frame(1_000_000_004, ethernet(b"arp or so", 0x0806), 0),
        Frame(1_000_000_005, ethernet(ipv4(b"short")), 0),
    ]


def whole(rows):
    return [row._replace(original=len(row.data)) for row in rows]


def check(seen):
    packets = seen.packets
    assert packets.opcode.tolist() == [0x0B, 0x11, 0x0B]
    assert packets.qpn.tolist() == [17, 33, 17]
    assert packets.psn.tolist() == [0xFF_FFFF, 4, 0xFF_FFFF]
    assert packets.payload_bytes.tolist() == [10, 0, 10]
    assert packets.address.tolist() == [5, -1, 5]
    assert packets.dma_bytes.tolist() == [10, -1, 10]
    assert packets.immediate.tolist() == [77, -1, 77]
    assert packets.syndrome.tolist() == [-1, 0x60, -1]
    assert packets.msn.tolist() == [-1, 3, -1]
    assert packets.marked.tolist() == [True, True, False]
    assert packets.becn.tolist() == [False, True, False]
    assert packets.ack_request.tolist() == [True, False, True]
    assert packets.sport.tolist() == [50_000, 50_001, 50_000]
    assert [seen.addresses[at] for at in packets.source] == [WAY.source, WAY6.source, WAY.source]
    assert [seen.addresses[at] for at in packets.destination] == [WAY.destination, WAY6.destination, WAY.destination]


def test_pcap(tmp_path):
    path = tmp_path / "x.pcap"
    write_pcap(path, whole(frames()))
    capture = read_capture(path)
    assert capture.time_ns.tolist() == [1_000_000_001 + at for at in range(5)]
    seen = roce_packets(capture)
    check(seen)
    assert (seen.others, seen.cut_short) == (2, 1)

    assert wrong_icrcs(capture, seen) == (0, 3)


@pytest.mark.parametrize("kind", ["pcap", "pcapng"])
def test_what_scapy_writes(tmp_path, kind):
    from scapy.layers.l2 import Ether  # noqa: PLC0415
    from scapy.utils import PcapNgWriter, PcapWriter  # noqa: PLC0415

    path = tmp_path / f"x.{kind}"
    with (PcapWriter if kind == "pcap" else PcapNgWriter)(str(path)) as writer:
        for number, frame in enumerate(frames()):
            packet = Ether(frame.data)
            packet.time = 1.5 + number
            writer.write(packet)
    capture = read_capture(path)
    assert capture.time_ns.tolist() == [1_500_000_000 + 1_000_000_000 * at for at in range(5)]
    check(roce_packets(capture))


def block(kind, body, order="<"):
    body += bytes(-len(body) % 4)
    length = struct.pack(order + "I", 12 + len(body))
    return struct.pack(order + "I", kind) + length + body + length


def pcapng(order, resolution, link=1, simple=False):
    data = frames()[0].data
    section = block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)
    option = struct.pack(order + "HHBxxxHH", 9, 1, resolution, 0, 0)
    face = block(1, struct.pack(order + "HHI", link, 0, 0) + option, order)
    if simple:
        return section + face + block(3, struct.pack(order + "I", len(data)) + data, order)
    told = struct.pack(order + "IIIII", 0, 0, 3 << 20, len(data), len(data))
    return section + face + block(99, b"x", order) + block(6, told + data, order)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("resolution", "ticks"), [(6, 10**6), (9, 10**9), (0x80 | 20, 1 << 20)])
def test_pcapng_clocks_and_byte_orders(tmp_path, order, resolution, ticks):
    path = tmp_path / "x.pcapng"
    path.write_bytes(pcapng(order, resolution))
    capture = read_capture(path)
    assert capture.time_ns.tolist() == [(3 << 20) * 10**9 // ticks]
    assert roce_packets(capture).packets.psn.tolist() == [0xFF_FFFF]
    path.write_bytes(pcapng(order, resolution, simple=True))
    assert roce_packets(read_capture(path)).packets.psn.tolist() == [0xFF_FFFF]


@pytest.mark.parametrize(
    ("link", "frame"),
    [
        (101, ipv4(sealed(WAY, WRITE.body()))),
        (113, bytes(14) + b"\x08\x00" + ipv4(sealed(WAY, WRITE.body()))),
        (276, b"\x08\x00" + bytes(18) + ipv4(sealed(WAY, WRITE.body()))),
    ],
)
def test_other_links(tmp_path, link, frame):
    path = tmp_path / "x.pcap"
    write_pcap(path, [Frame(5, frame, len(frame))], link)
    seen = roce_packets(read_capture(path))
    assert seen.packets.psn.tolist() == [0xFF_FFFF]


def middles(count, mtu, psn=0xFF_FFFE):
    parts = [Packet(Opcode.WRITE_MIDDLE, 17, psn + at & 0xFF_FFFF, payload=bytes(mtu)).body() for at in range(count)]
    return b"".join(sealed(WAY, body, at) for at, body in enumerate(parts))


@pytest.mark.parametrize("mtu", [256, 1024, 4096])
@pytest.mark.parametrize("snap", [65_536, 80])
def test_super_packets_are_taken_apart(tmp_path, mtu, snap):
    data = ethernet(ipv4(middles(5, mtu)))
    path = tmp_path / "x.pcap"
    write_pcap(path, [Frame(5, data[:snap], len(data))])
    capture = read_capture(path)
    seen = roce_packets(capture)
    assert seen.packets.psn.tolist() == [0xFF_FFFE, 0xFF_FFFF, 0, 1, 2]
    assert seen.packets.payload_bytes.tolist() == [mtu] * 5
    assert wrong_icrcs(capture, seen) == ((0, 5) if snap > len(data) else (0, 0))


def test_whole_messages_in_a_super_packet_are_taken_apart(tmp_path):
    parts = []
    for at in range(4):
        size = 20 if at < 3 else 7
        packet = Packet(Opcode.WRITE_ONLY_IMM, 17, at, reth=Reth(at, 1, size), immediate=at, payload=bytes(range(size)))
        parts.append(sealed(WAY, packet.body(), at))
    data = ethernet(ipv4(b"".join(parts)))
    path = tmp_path / "x.pcap"
    write_pcap(path, [Frame(5, data, len(data))])
    capture = read_capture(path)
    seen = roce_packets(capture)
    assert seen.packets.payload_bytes.tolist() == [20, 20, 20, 7]
    assert seen.packets.address.tolist() == [0, 1, 2, 3]
    assert wrong_icrcs(capture, seen) == (0, 4)


def test_wrong_icrcs_are_counted(tmp_path):
    rows = []
    for at in range(6):
        data = bytearray(ethernet(ipv4(sealed(WAY, WRITE.body(), at), ip_id=at)))
        data[-6] ^= at % 2
        rows.append(Frame(at, bytes(data), len(data)))
    path = tmp_path / "x.pcap"
    write_pcap(path, rows)
    capture = read_capture(path)
    assert wrong_icrcs(capture, roce_packets(capture)) == (3, 6)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (b"", "too short"),
        (bytes(100), "like no capture"),
        (pcap_header() + struct.pack("<IIII", 0, 0, 1 << 25, 0), "33554432 bytes"),
        (pcapng("<", 6)[:40] + b"\xff" * 40, r"block of \d+ bytes"),
        (block(0x0A0D0D0A, bytes(16)) + bytes(12), "no byte order"),
        (block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)) + block(6, bytes(40)), "not described"),
    ],
)
def test_what_is_no_capture_is_told(tmp_path, words, told):
    path = tmp_path / "x"
    path.write_bytes(words)
    with pytest.raises(InputError, match=told) as caught:
        read_capture(path)
    assert str(path) in str(caught.value)
    with pytest.raises(InputError, match="cannot be read"):
        read_capture(tmp_path / "absent")


def test_a_file_that_breaks_off_is_read_as_far_as_it_goes(tmp_path):
    path = tmp_path / "x"
    rows = whole(frames())
    path.write_bytes(pcap_header() + b"".join(map(pcap_record, rows))[:-3])
    assert len(read_capture(path)) == len(rows) - 1


@given(st.binary(max_size=200), st.integers(0, 1 << 30))
def test_noise_is_read_or_refused(tmp_path_factory, noise, seed):
    choose = random.Random(seed)
    path = tmp_path_factory.getbasetemp() / "noise"
    rows = [Frame(5, ethernet(ipv4(noise)), 5_000), Frame(6, noise, len(noise))]
    words = bytearray(pcap_header() + b"".join(map(pcap_record, rows)))
    words[choose.randrange(24, len(words))] = choose.randrange(256)
    path.write_bytes(bytes(words))
    try:
        capture = read_capture(path)
    except InputError:
        return
    seen = roce_packets(capture)
    assert wrong_icrcs(capture, seen)[0] <= len(seen.packets)
    assert np.all(seen.packets.payload_bytes >= 0)
