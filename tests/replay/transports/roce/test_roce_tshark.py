"""What a well-known dissector makes of our packets."""

import json
import shutil
import subprocess

import pytest

from genie.formats.icrc import Way
from genie.formats.pcap import Frame, write_pcap
from genie.formats.roce import Opcode
from genie.formats.roce_cm import Kind, Meeting
from genie.replay.transports.roce.layout import Layout, Outgoing
from genie.replay.transports.roce.packets import Builder

WAY = Way.between("10.0.0.1", "10.0.0.5", 50_000)
FIELDS = ("_ws.col.Protocol", "infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn")


def framed(data):
    udp = b"\xc3\x50\x12\xb7" + (8 + len(data)).to_bytes(2, "big") + b"\0\0" + data
    head = b"\x45\0" + (20 + len(udp)).to_bytes(2, "big") + b"\0\0\x40\0\x40\x11\0\0" + WAY.source + WAY.destination
    whole = b"\2\0\0\0\0\1\2\0\0\0\0\2\x08\0" + head + udp
    return Frame(0, whole, len(whole))


def packets(layout):
    message = Outgoing(1, 5, 4 * 256 + 9, 0, 7, 3, 0)
    message.packets = layout.packets(message.size_bytes)
    builder = Builder(WAY, layout, 17, 99)
    for at in range(message.packets):
        yield b"".join(builder.single(message, layout.part(message, at), 10 + at, ack_request=False).buffers)
    short = Outgoing(1, 5, 10, 0, 7, 4, 0)
    yield b"".join(builder.single(short, layout.part(short, 0), 20, ack_request=True).buffers)
    yield builder.control(Opcode.ACKNOWLEDGE, 20, b"\x1f\0\0\1")
    yield builder.control(Opcode.ACKNOWLEDGE, 21, b"\x60\0\0\1", becn=True)
    yield builder.control(Opcode.CNP, 0, bytes(16), becn=True)


@pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark (make test installs it as root)")
def test_tshark_calls_every_packet_rroce_and_reads_the_same_headers(tmp_path):
    rows = [data for send in (False, True) for data in packets(Layout(256, send))]
    meetings = [Meeting(kind, 1, 2, 17, 5, private=b"x") for kind in Kind]
    builder_way = [meeting.packet(1).body() for meeting in meetings]
    path = tmp_path / "x.pcap"
    write_pcap(path, [framed(data) for data in rows] + [framed(body + bytes(4)) for body in builder_way])
    words = ["tshark", "-r", str(path), "-T", "json", *(word for field in FIELDS for word in ("-e", field))]
    told = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    seen = [frame["_source"]["layers"] for frame in told]
    data_rows = seen[: len(rows)]
    assert {row["_ws.col.Protocol"][0] for row in data_rows} == {"RRoCE"}
    for row, data in zip(data_rows, rows, strict=True):
        assert int(row["infiniband.bth.opcode"][0]) == data[0]
        assert int(row["infiniband.bth.destqp"][0], 0) == 17
        assert int(row["infiniband.bth.psn"][0]) == int.from_bytes(data[9:12], "big")
    assert all(row["infiniband.bth.opcode"] == ["100"] for row in seen[len(rows) :])
    assert len(seen) == len(rows) + len(meetings)
