"""RoCE: goodput against a bare UDP_SEGMENT loop, packets built a second, 16 ranks across leaves, two flows on one link.

Ratios come from runs that take turns on the same way (two hosts in namespaces with a router between them, and
loopback), each a sender and a receiver process. `--hostile N` throws N random packets at a receiver instead (`make
bench-roce` does 10^6), `--only NAME` runs one part.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import secrets
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from report import ROOT, Row, at_most, write
from routed import HOMES as ROUTED_HOMES
from routed import Routed

from genie.core.system import System
from genie.core.testbed import Testbed
from genie.core.timeline import Messages
from genie.formats.icrc import Way, sealed
from genie.formats.pcap import Frame, read_capture, write_pcap
from genie.formats.roce import PORT, Opcode, Packet, Reth
from genie.formats.roce_capture import roce_packets, wrong_icrcs
from genie.hosts import Hosting, Lab
from genie.lower import lower
from genie.patterns import generate
from genie.replay.launcher import LaunchOptions
from genie.replay.local import ReplayOptions
from genie.replay.local import replay as replay_schedule
from genie.replay.transports.choice import Wiring
from genie.replay.transports.roce.layout import Layout
from genie.replay.transports.roce.middles import Middles, MiddleSender, payload_registers
from genie.replay.transports.roce.mmsg import pack_address
from genie.replay.transports.roce.options import RoceOptions, port_of
from genie.replay.transports.roce.transport import RoceTransport
from genie.report.wire import analyse, compare
from genie.testbed.files import load_testbed
from genie.testbed.namespaces import inside, set_namespace

sys.path.insert(0, str(ROOT / "tests/replay/transports/roce"))
from shared_link import SharedLink, jain  # the simulated link of the tests

MIB = 1 << 20
ROUNDS = 9
STREAM_BYTES = 1024 * MIB
SEGMENT, SEGMENTS, PAYLOAD = 4_112, 15, 4_096
WINDOW_BYTES = MIB
UDP_SEGMENT, UDP_GRO, SO_RCVBUFFORCE = 103, 104, 33
SECRET = secrets.token_bytes(32)
HOMES = ("127.0.7.1", "127.0.7.2")
S = 10**9
HOSTS: list[int] = []
"""Descriptors of the namespaces that the two halves run in; none: this one."""

CPU_S: list[float] = []
"""Processor time of each run, both processes together."""


def at_least(name: str, value: float, limit: float, unit: str) -> Row:
    return Row(name, round(value, 4), unit, f">= {limit:g}", bool(value >= limit))


@contextlib.contextmanager
def routed() -> Iterator[None]:
    """Be on a way through a router: the child's half at one host, the parent's at the other."""
    global HOMES
    before = HOMES
    with Routed() as way:
        HOMES, HOSTS[:] = ROUTED_HOMES, way.hosts
        try:
            yield
        finally:
            HOMES, HOSTS[:] = before, []


def forked(child: Callable[[Connection], None], parent: Callable[[Connection], float]) -> float:
    """Run two halves in two processes; what the parent's half gives."""
    near, far = Pipe()
    pid = os.fork()
    if pid == 0:
        if HOSTS:
            set_namespace(HOSTS[0])
        child(far)
        os._exit(0)
    before = time.process_time()
    try:
        with inside(HOSTS[1]) if HOSTS else contextlib.nullcontext():
            return parent(near)
    finally:
        usage = os.wait4(pid, 0)[2]
        CPU_S.append(usage.ru_utime + usage.ru_stime + time.process_time() - before)


# ---- goodput


def raw_gbps() -> float:
    """A bare loop: super-packets of 15 x 4112 bytes out, read whole; payload that arrived, per time."""

    def send(line: Connection) -> None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, SEGMENT)
        sock.connect((HOMES[1], PORT))
        data = bytes(SEGMENT * SEGMENTS)
        line.recv()
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            sock.send(data)

    def receive(line: Connection) -> float:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 * MIB)
        sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        sock.bind((HOMES[1], PORT))
        sock.settimeout(0.3)
        line.send(0)
        buffer, got, begin, last = bytearray(1 << 16), 0, 0, 1
        while True:
            try:
                size = sock.recv_into(buffer)
            except TimeoutError:
                return got / SEGMENT * PAYLOAD * 8 / (last - begin)
            last = time.monotonic_ns()
            begin = begin or last
            got += size

    return forked(send, receive)


def roce_gbps(*, icrc: bool) -> float:
    """Messages of 64 MiB, two at once, over one queue pair."""
    messages = STREAM_BYTES // (64 * MIB)

    def end(rank: int) -> RoceTransport:
        wiring = Wiring(rank, 2, HOMES[rank], SECRET, window_bytes=WINDOW_BYTES, options={"icrc": icrc})
        return RoceTransport(rank, RoceOptions.of(wiring))

    def connect(mine: RoceTransport, line: Connection) -> None:
        line.send(mine.open())
        peer = line.recv()
        mine.connect({0 if mine._rank else 1: peer}, time.monotonic_ns() + 10 * S)  # noqa: SLF001

    def send(line: Connection) -> None:
        mine = end(0)
        connect(mine, line)
        for number in range(messages):
            mine.post_send(number, 1, number, 64 * MIB)
        done = 0
        while done < messages:
            done += len(mine.poll(S))
        line.recv()
        mine.close()

    def receive(line: Connection) -> float:
        mine = end(1)
        connect(mine, line)
        for number in range(messages):
            mine.post_recv(number, 0, number, 64 * MIB)
        found = []
        while len(found) < messages:
            found += mine.poll(S)
        line.send(0)
        mine.poll(S // 10)
        mine.close()
        return STREAM_BYTES * 8 / (found[-1].done_ns - found[0].first_byte_ns)

    return forked(send, receive)


def goodput() -> list[Row]:
    payload_registers(PAYLOAD)  # once for all processes, as in a replay
    with routed():
        rows = goodput_on("veth and a router", (0.75, 0.55))
    return rows + goodput_on("loopback", None)


def goodput_on(way: str, targets: tuple[float, float] | None) -> list[Row]:
    raw_gbps(), roce_gbps(icrc=True)  # a first run each warms up
    CPU_S.clear()
    rates = {"raw": [], "plain": [], "icrc": []}
    for _ in range(ROUNDS):
        rates["raw"].append(raw_gbps())
        rates["plain"].append(roce_gbps(icrc=False))
        rates["icrc"].append(roce_gbps(icrc=True))
        print(way, *(f"{name} {values[-1]:.2f}" for name, values in rates.items()), file=sys.stderr, flush=True)
    median = {name: statistics.median(values) for name, values in rates.items()}
    cpu = [statistics.median(CPU_S[at::3]) for at in range(3)]
    gigabits = STREAM_BYTES * 8 / 1e9
    rows = [Row(f"bare UDP_SEGMENT loop, 15 x 4112 bytes, {way}", median["raw"], "Gb/s")]
    for at, (name, words) in enumerate((("plain", "roce without ICRC"), ("icrc", "roce with ICRC, checked"))):
        ratio = statistics.median(a / b for a, b in zip(rates[name], rates["raw"], strict=True))
        rows.append(Row(words, median[name], "Gb/s"))
        rows.append(Row("  processor time, both ends", cpu[at + 1] / gigabits * 1e3, "ms/Gbit"))
        compared = f"  {words} / bare loop"
        rows.append(at_least(compared, ratio, targets[at], "") if targets else Row(compared, ratio, ""))
    return rows


# ---- packets


def packets() -> list[Row]:
    layout, way = Layout(4096), Way.between("10.0.0.1", "10.0.0.2", 50_000)
    middles = MiddleSender(Middles(way, layout, 17, SEGMENTS), layout, SEGMENTS, pack_address("10.0.0.2", PORT))
    best = 0.0
    for _ in range(ROUNDS):
        before, index = time.process_time(), 1
        while index < 1_500_000:
            index += middles.prepare(0, index, index & 0xFF_FFFF)[1]
        best = max(best, index / (time.process_time() - before))
    from scapy.contrib.roce import BTH  # noqa: PLC0415
    from scapy.layers.inet import IP, UDP  # noqa: PLC0415

    content, before = bytes(4096), time.process_time()
    for psn in range(500):
        bytes(
            IP(src="10.0.0.1", dst="10.0.0.2", flags="DF")
            / UDP(sport=50_000)
            / BTH(opcode=7, dqpn=17, psn=psn)
            / content
        )
    scapy = 500 / (time.process_time() - before)
    return [
        at_least("packets built with right ICRC", best, 1e6, "per s of CPU"),
        Row("the same with scapy", scapy, "per s of CPU"),
    ]


def captures() -> list[Row]:
    """A capture of 400,000 packets of 4 KB: headers only, and whole with its ICRCs checked."""
    way, rows = Way.between("10.0.0.1", "10.0.0.2", 50_000), []
    head = bytes(12) + b"\x08\0\x45\0\x10\x2c\0\0\x40\0\x40\x11\0\0\x0a\0\0\x01\x0a\0\0\x02"
    for psn in range(2_000):
        packet = Packet(Opcode.WRITE_MIDDLE, 17, psn, payload=bytes(4096))
        data = sealed(way, packet.body())
        udp = struct.pack("!HHHH", 50_000, PORT, 8 + len(data), 0)
        rows.append(Frame(psn * 1000, head + udp + data, 14 + 28 + len(data)))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.pcap"
        write_pcap(path, [row._replace(data=row.data[:128]) for row in rows] * 200)
        before = time.process_time()
        seen = roce_packets(read_capture(path))
        analyse(seen)
        found.append(
            at_least(
                "genie pcap: packets read", len(seen.packets) / (time.process_time() - before), 5e5, "per s of CPU"
            )
        )
        write_pcap(path, rows * 10)
        before = time.process_time()
        capture = read_capture(path)
        wrong, checked = wrong_icrcs(capture, roce_packets(capture))
        found.append(
            Row(
                "genie pcap: whole packets, ICRC of every byte",
                checked / (time.process_time() - before),
                "per s of CPU",
            )
        )
        assert wrong == 0  # noqa: S101
    return found


# ---- the fabric


def shift() -> list[Row]:
    """Every one of 16 ranks to the one half a job away, across leaves, half a second each at 125 and 250 Mb/s."""
    testbed = load_testbed(ROOT / "testbed/leaf-spine-16-nonblocking.yml")
    return [row for slower in (1, 2) for row in shift_at(replace(testbed, dilation=testbed.dilation // slower))]


def shift_at(testbed: Testbed) -> list[Row]:
    rate_bps = 125_000_000_000 // testbed.dilation
    size_bytes = rate_bps // 8 // 2
    schedule = lower(generate("shift", 16, size_bytes), System(extended=True, local_mem_bytes_per_s=1.6e12))
    rows = []
    with Lab(testbed) as lab:
        for transport in ("tcp", "roce"):
            hosting = lab.hosting(16)
            options = ReplayOptions(
                dilation=testbed.dilation,
                launch=LaunchOptions(1, 3),
                window_bytes=testbed.window_bytes,
                transport=transport,
                mtu_bytes=hosting.mtu_bytes,
                super_packet_segments=hosting.super_packet_segments,
                line_bps=rate_bps,
            )
            with tempfile.TemporaryDirectory() as folder:
                ports = "h0" if transport == "roce" else None
                with lab.recording(ports, Path(folder)) as recorder:
                    result = replay_schedule(schedule, hosting.places, options)
                if recorder is not None and not result.error:
                    rows.append(against_capture(recorder.files[0], result.timeline.messages, hosting, testbed))
            if result.error:
                raise result.error
            messages = result.timeline.messages
            delay = np.array([hosting.places[d].delays_ns[s] for s, d in zip(messages.src, messages.dst, strict=True)])
            fct = (messages.delivered_ns - messages.posted_ns - delay) * testbed.dilation / S
            errors = np.abs(fct / (messages.size_bytes * 8 / rate_bps) - 1)
            again = sum(counts.get("sent_again", 0) for counts in result.statistics.values())
            print(transport, f"median {np.median(errors):.2%} worst {errors.max():.2%} again {again}", file=sys.stderr)
            name = f"16-rank shift at {rate_bps // 10**6} Mb/s, {transport}: median error of the FCT"
            rows.append(at_most(name, float(np.median(errors)) * 100, 3, "%"))
            rows.append(Row("  worst message", float(errors.max()) * 100, "%"))
    return rows


def against_capture(path: Path, messages: Messages, hosting: Hosting, testbed: Testbed) -> Row:
    """How far the completion times of rank 0's messages are from those that a capture at its host tells."""
    wire = analyse(roce_packets(read_capture(path)))
    ports = {port_of(16, 0, peer, 0, {}): (0, peer) for peer in range(1, 16)}
    delays = {(peer, 0): delay for peer, delay in hosting.places[0].delays_ns.items()}
    joined = compare(wire, messages, ports, delays, testbed.dilation)
    name = f"  FCT by genie and by capture, {len(joined)} messages: median difference"
    return at_most(name, float(joined.difference.abs().median()) * 100, 1, "%")


def sharing() -> list[Row]:
    link = SharedLink(2, "dcqcn", S, red=(5_000, 200_000, 0.1), starts_ns=(0, 3_000_000), dilation=40)
    link.run(800_000_000)
    told = link.run(1_600_000_000)
    return [
        at_least("two DCQCN flows on a simulated 1 Gb/s link: Jain's index", jain(told.taken_bytes), 0.98, ""),
        at_most("  packets lost after 0.8 s", told.dropped, 0, ""),
        Row("  of the link's rate as payload", sum(told.taken_bytes) * 8 / 0.8 / S, ""),
    ]


def sharing_for_real() -> list[Row]:
    """Two flows of 375 MB into one host's link of 1 Gb/s on the fabric, whose switch marks from 100 KB on."""
    testbed, rate_bps = load_testbed(ROOT / "testbed/single-switch-8.yml"), S
    cables = tuple(
        replace(cable, rate_bps=40 * rate_bps, ecn_bytes=100_000, buffer_bytes=MIB) for cable in testbed.cables
    )
    testbed = replace(testbed, dilation=40, cables=cables)
    schedule = lower(generate("incast", 3, 3 * rate_bps // 8), System(extended=True, local_mem_bytes_per_s=1.6e12))
    with Lab(testbed) as lab:
        hosting = lab.hosting(3)
        before = hosting.counters()
        options = ReplayOptions(
            dilation=testbed.dilation,
            launch=LaunchOptions(0, 1),
            window_bytes=testbed.window_bytes,
            transport="roce",
            mtu_bytes=hosting.mtu_bytes,
            super_packet_segments=hosting.super_packet_segments,
            line_bps=rate_bps,
            options={"control": "dcqcn", "ecn": True},
        )
        result = replay_schedule(schedule, hosting.places, options)
        after = hosting.counters()
    if result.error:
        raise result.error
    messages = result.timeline.messages
    took_s = (messages.delivered_ns - messages.posted_ns) * testbed.dilation / S
    lost = sum(after[link]["drops"] - before[link]["drops"] for link in after)
    return [
        at_least("two DCQCN flows on the fabric, 1 Gb/s: Jain's index", jain([1 / each for each in took_s]), 0.98, ""),
        at_most("  packets lost", lost, 0, ""),
        Row("  of the link's rate as payload", 6 / max(took_s), ""),
    ]


# ---- hostile packets


def hostile(number: int) -> list[Row]:
    """Random packets, half of them with a right ICRC, from a stranger and from the peer's address."""
    choose = random.Random(1)
    ends = [RoceTransport(rank, RoceOptions.of(Wiring(rank, 2, HOMES[rank], SECRET))) for rank in (0, 1)]
    endpoints = {rank: end.open() for rank, end in enumerate(ends)}
    import threading  # noqa: PLC0415

    other = threading.Thread(target=ends[0].connect, args=({1: endpoints[1]}, time.monotonic_ns() + 10 * S))
    other.start()
    ends[1].connect({0: endpoints[0]}, time.monotonic_ns() + 10 * S)
    other.join()
    pair = next(iter(ends[1]._pairs.values()))  # noqa: SLF001
    near, psn = pair.near, pair.far.psn
    socks = []
    for address in ("127.0.7.3", HOMES[0]):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((address, 0))
        socks.append((sock, Way.between(address, HOMES[1], sock.getsockname()[1])))
    completions = 0
    for at in range(number):
        sock, way = choose.choice(socks)
        if at % 4 == 0:
            data = choose.randbytes(choose.randrange(64))
        else:
            qpn = near.qpn if at % 8 else choose.randrange(1 << 24)
            body = Packet(
                choose.choice(list(Opcode)),
                qpn,
                (psn + choose.randrange(-2, 4)) & 0xFF_FFFF,
                ack_request=True,
                reth=Reth(0, choose.randrange(1 << 32), choose.randrange(64)),
                payload=choose.randbytes(choose.randrange(40)),
            ).body()
            data = sealed(way, body) if at % 3 else body + choose.randbytes(4)
        sock.sendto(data, (HOMES[1], PORT))
        if at % 50 == 0:
            completions += len(ends[1].poll(0))
    delivered = sum(messages for messages, _ in ends[1].moved()["received"].values())
    statistics_ = ends[1].statistics()
    for end in ends:
        end.close()
    return [
        Row("hostile packets sent", number, ""),
        at_most("  delivered", delivered + completions, 0, ""),
        Row("  with a wrong ICRC", statistics_["icrc_errors"], ""),
        Row("  for no queue pair, or no packets at all", statistics_["strays"] + statistics_["malformed"], ""),
    ]


PARTS: dict[str, Callable[[int], list[Row]]] = {
    "goodput": lambda _: goodput(),
    "packets": lambda _: packets(),
    "captures": lambda _: captures(),
    "shift": lambda _: shift(),
    "sharing": lambda _: sharing() + sharing_for_real(),
    "hostile": hostile,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--hostile", type=int, default=1_000_000)
    given = parser.parse_args()
    rows = [row for name in given.only or PARTS for row in PARTS[name](given.hostile)]
    write("roce", rows)


if __name__ == "__main__":
    main()
