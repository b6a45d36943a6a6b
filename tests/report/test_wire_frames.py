"""What is told about flows and messages of a capture: made packet by packet, and one of a real transfer."""

import numpy as np
import pandas as pd
import pytest

from genie.core.timeline import Messages
from genie.formats.icrc import Way, sealed
from genie.formats.pcap import Frame, read_capture, write_pcap
from genie.formats.roce import Aeth, Kind, Opcode, Packet, Reth, write_opcode
from genie.formats.roce_capture import roce_packets
from genie.report.wire import analyse, compare, rows_of

ADDRESSES = ("10.0.0.1", "10.0.0.5")
MTU = 256


def frame(time_ns, source, packet, marked=False, sport=None):
    ends = ADDRESSES[source], ADDRESSES[1 - source]
    sport = sport or 50_000 + source
    data = sealed(Way.between(*ends, sport), packet.body())
    raw = [bytes(map(int, end.split("."))) for end in ends]
    udp = sport.to_bytes(2, "big") + (4791).to_bytes(2, "big") + (8 + len(data)).to_bytes(2, "big") + bytes(2) + data
    head = bytes((0x45, 3 if marked else 2)) + (20 + len(udp)).to_bytes(2, "big") + b"\0\0\x40\0\x40\x11\0\0"
    whole = bytes(12) + b"\x08\0" + head + raw[0] + raw[1] + udp
    return Frame(time_ns, whole, len(whole))


def message(psn, packets, tag, start_ns, step_ns=1_000):
    """A WRITE's packets: (time, packet)."""
    rows = []
    for at in range(packets):
        first, last = at == 0, at == packets - 1
        rows.append(
            (
                start_ns + at * step_ns,
                Packet(
                    write_opcode(first=first, last=last, immediate=last),
                    17,
                    psn + at & 0xFF_FFFF,
                    ack_request=last,
                    reth=Reth(tag, 1, packets * MTU) if first else None,
                    immediate=0 if last else None,
                    payload=bytes(MTU),
                ),
            )
        )
    return rows


def ack(psn, kind=Kind.ACK, value=31):
    return Packet(Opcode.ACKNOWLEDGE, 33, psn & 0xFF_FFFF, aeth=Aeth(kind, value, 0))


def analysed(tmp_path, frames):
    path = tmp_path / "x.pcap"
    write_pcap(path, frames)
    return analyse(roce_packets(read_capture(path)))


def test_flows_and_messages_of_a_clean_capture(tmp_path):
    sent = message(0xFF_FFFD, 5, 7, 1_000_000) + message(2, 3, 8, 1_010_000)
    frames = [frame(at, 0, packet) for at, packet in sent]
    frames += [frame(1_006_000, 1, ack(1)), frame(1_013_000, 1, ack(4))]
    wire = analysed(tmp_path, sorted(frames))
    (flow,) = rows_of(wire.flows)
    assert (flow["src"], flow["dst"], flow["qpn"], flow["sport"]) == (*ADDRESSES, 17, 50_000)
    assert (flow["packets"], flow["payload_bytes"]) == (8, 8 * MTU)
    assert flow["goodput_bps"] == pytest.approx(8 * MTU * 8 / 12e-6)
    assert (flow["retransmitted"], flow["out_of_order"], flow["marked"], flow["acks"]) == (0, 0, 0, 2)
    assert wire.messages.tag.tolist() == [7, 8]
    assert wire.messages.size_bytes.tolist() == [5 * MTU, 3 * MTU]
    assert wire.messages.fct_ns.tolist() == [4_000, 2_000]
    assert wire.messages.acknowledged_ns.tolist() == [1_006_000, 1_013_000]


def test_losses_order_marks_and_refusals(tmp_path):
    sent = message(10, 6, 7, 0)
    rows = [frame(at, 0, packet, marked=at == 3_000) for at, packet in sent]
    again = [frame(at + 20_000, 0, packet) for at, packet in sent[2:]]
    late = rows[1]._replace(time_ns=4_500)  # behind those that left after it
    answers = [
        frame(5_000, 1, ack(12, Kind.NAK, 0)),
        frame(6_000, 1, Packet(Opcode.CNP, 33, 0, becn=True)),
        frame(7_000, 1, ack(12, Kind.RNR_NAK, 5)),
        frame(30_000, 1, ack(15)),
    ]
    wire = analysed(tmp_path, sorted([rows[0], late, *rows[2:], *again, *answers]))
    (flow,) = rows_of(wire.flows)
    assert (flow["retransmitted"], flow["out_of_order"], flow["marked"]) == (4, 1, 1)
    assert (flow["acks"], flow["nak_sequence"], flow["rnr_naks"], flow["cnps"]) == (1, 1, 1, 1)
    assert wire.messages.fct_ns.tolist() == [5_000]


def test_a_message_with_a_packet_that_was_not_seen_is_not_told(tmp_path):
    sent = message(10, 5, 7, 0) + message(15, 2, 8, 50_000)
    frames = [frame(at, 0, packet) for number, (at, packet) in enumerate(sent) if number != 2]
    assert analysed(tmp_path, frames).messages.tag.tolist() == [8]


def test_queue_pairs_between_the_same_hosts_are_told_apart(tmp_path):
    one, two = message(100, 3, 1, 0), message(5_000, 3, 2, 500)
    frames = [frame(at, 0, packet) for at, packet in one]
    frames += [frame(at, 0, Packet(**fields(packet) | {"qpn": 18}), sport=50_010) for at, packet in two]
    frames += [frame(9_000, 1, ack(102)), frame(9_500, 1, Packet(**fields(ack(5_002)) | {"qpn": 34}))]
    wire = analysed(tmp_path, sorted(frames))
    assert dict(zip(wire.flows.qpn, wire.messages.acknowledged_ns, strict=True)) == {17: 9_000, 18: 9_500}


def fields(packet):
    return {name: getattr(packet, name) for name in Packet.__slots__}


def test_nothing_is_nothing(tmp_path):
    wire = analysed(tmp_path, [])
    assert (len(wire.flows), len(wire.messages), wire.others) == (0, 0, 0)


def run_messages(rows):
    table = pd.DataFrame(rows)
    zeros = np.zeros(len(table), np.int64)
    return Messages(
        **{
            name: table[name].to_numpy() if name in table else zeros.astype(kind)
            for name, kind in Messages.SCHEMA.items()
        }
    )


def test_a_runs_messages_are_joined_and_warm_up_is_left_out(tmp_path):
    frames = []
    for number in range(3):  # the first is warm-up
        start_ns = 100_000 * number
        sent = message(10 + 4 * number, 4, 7, start_ns)
        frames += [frame(at, 0, packet) for at, packet in sent]
        frames.append(frame(start_ns + 10_000, 1, ack(13 + 4 * number)))
    wire = analysed(tmp_path, frames)
    rows = [
        {"src": 2, "dst": 5, "tag": 7, "size_bytes": 4 * MTU, "iteration": at, "index": 0, "posted_ns": 50}
        | {"acknowledged_ns": 50 + 33 + fct}
        for at, fct in enumerate((101, 99))
    ]
    joined = compare(wire, run_messages(rows), {50_000: (2, 5)}, {(5, 2): 33}, 100)
    assert joined.iteration.tolist() == [0, 1]
    assert joined.wire_fct_ns.tolist() == [100.0, 100.0]
    assert joined.run_fct_ns.tolist() == [101, 99]
    assert joined.difference.tolist() == pytest.approx([0.01, -0.01])
    assert len(compare(wire, run_messages(rows), {}, {}, 100)) == 0
