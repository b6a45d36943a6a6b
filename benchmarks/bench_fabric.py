"""Any fabric: how fast it is up and down, what a kill -9 leaves, rates, marks, looked-up paths, and routing by FRR."""

from __future__ import annotations

import contextlib
import math
import os
import random
import select
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from report import Row, at_most, write

from genie.core.testbed import Testbed
from genie.testbed import netlink
from genie.testbed.emulated import EmulatedFabric
from genie.testbed.files import parse_testbed
from genie.testbed.frr import hindrance
from genie.testbed.namespaces import create, inside
from genie.testbed.netlink import Conversation, End
from genie.testbed.probe import Flow, probe
from genie.units import transfer_ns

REPEATS = 5
KILLS = 100
LARGE = {"kind": "leaf-spine", "hosts": 128, "leaves": 8, "spines": 4}
RATES = ("25 Gb/s", "100 Gb/s", "1000 Gb/s", "5000 Gb/s")
"""At dilation 1000: 25 Mb/s to 5 Gb/s."""

MTU = 9000
FLOWS = 400
DATAGRAM_BYTES, DATAGRAMS = 4000, 5000
IP_TOS, IP_RECVTOS, IP_MTU_DISCOVER, PROBE = 1, 13, 10, 3
SO_RCVBUFFORCE = 33


def declared(topology: dict[str, Any], **more: Any) -> Testbed:
    """A testbed with that topology, 200 Gb/s everywhere unless told otherwise."""
    links = {"host": {"rate": "200 Gb/s"}}
    if "leaves" in topology:
        links["fabric"] = {"rate": "200 Gb/s"}
    return parse_testbed({"name": "bench", "kind": "emulated", "topology": topology, "links": links} | more, "bench")


def up_and_down() -> list[Row]:
    """128 hosts: seconds until every port carries traffic, and until the kernel has taken the last namespace apart."""
    took, gone = [], []
    for _ in range(REPEATS):
        fabric, begun = EmulatedFabric(declared(LARGE)), time.monotonic()
        fabric.up()
        took.append(time.monotonic() - begun)
        gone.append(_down_after(fabric))
    return [
        at_most("128 hosts on 8 leaves and 4 spines: up after", median(took), 2, "s"),
        at_most("the same: down after", median(gone), 1, "s"),
    ]


def _down_after(fabric: EmulatedFabric) -> float:
    """A cable from a namespace of our own to the fabric's last goes with it: that tells when the kernel is done."""
    watch = create()
    with inside(watch):
        conversation = Conversation()
    with conversation:
        there = End("watch", 5000, b"\2\0\0\0\0\1", fabric.namespace_fd(fabric.testbed.nodes[-1].name))
        conversation.say([netlink.veth(End("watch", 5, b"\2\0\0\0\0\2"), there, 1500, 1)])
        begun = time.monotonic()
        fabric.close()
        while any(index == 5 for index in _indices(conversation)):
            time.sleep(0.002)
        took = time.monotonic() - begun
    os.close(watch)
    return took


def _indices(conversation: Conversation) -> list[int]:
    bodies = conversation.dump(netlink.GET_LINK, netlink.INTERFACE.pack(0, 0, 0, 0, 0))
    return [netlink.INTERFACE.unpack_from(body)[2] for body in bodies]


def kills() -> list[Row]:
    """A process that brings a fabric up is killed at a random moment: what is left of it afterwards."""
    beds = [declared({"kind": "leaf-spine", "hosts": 8, "leaves": 2, "spines": 2})] * 9
    with_frr = not hindrance()
    if with_frr:
        beds.append(declared({"kind": "leaf-spine", "hosts": 4, "leaves": 2, "spines": 2}, stack="frr"))
    draw, unfinished, gone = random.Random(1), 0, list[float]()
    for at in range(KILLS):
        bed = beds[at % len(beds)]
        owned, up = _killed(bed, draw.uniform(0, 5.0 if bed.stack == "frr" else 0.3))
        unfinished += not up
        gone.append(_gone_after(owned))
    words = ", every tenth with FRR" if with_frr else ""
    return [
        at_most(
            f"{KILLS} fabrics killed -9 at random moments{words}: left something", gone.count(math.inf), 0, "fabrics"
        ),
        Row("the same: longest until all of it was gone", round(max(gone), 3), "s"),
        Row("of these, killed before they were up", unfinished, "fabrics"),
    ]


def _killed(testbed: Testbed, after_s: float) -> tuple[set[str], bool]:
    """(namespaces that the process and its children had, whether the fabric was up when it was killed)."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            EmulatedFabric(testbed).up()
            os.write(write_end, b".")
            signal.pause()
        finally:
            os._exit(1)
    os.close(write_end)
    time.sleep(after_s)
    os.kill(pid, signal.SIGSTOP)
    owned = set().union(*(_namespaces(Path(f"/proc/{each}")) for each in _family(pid))) - _namespaces(
        Path("/proc/self")
    )
    was_up = bool(select.select([read_end], [], [], 0)[0])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(read_end)
    return owned, was_up


def _family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{each}/task/{each}/children").read_text().split())
    return found


def _namespaces(process: Path) -> set[str]:
    """Network, PID and mount namespaces that a process is in or holds open."""
    found = set()
    with contextlib.suppress(OSError):
        for path in [*(process / "fd").iterdir(), *(process / "ns" / kind for kind in ("net", "pid", "mnt"))]:
            with contextlib.suppress(OSError):
                link = str(path.readlink())
                if link.startswith(("net:[", "pid:[", "mnt:[")):
                    found.add(link)
    return found


def _gone_after(owned: set[str]) -> float:
    """Seconds until no process is in one of these namespaces or holds it; infinite if one still is after 10 s."""
    begun = time.monotonic()
    while any(owned & _namespaces(process) and _lives(process) for process in Path("/proc").glob("[0-9]*")):
        if time.monotonic() - begun > 10:
            return math.inf
        time.sleep(0.02)
    return time.monotonic() - begun


def _lives(process: Path) -> bool:
    """A zombie that waits for init is dead: it holds nothing."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def rates() -> list[Row]:
    """A saturated link: bytes of payload that arrive in a span of whole packets, against the declared rate."""
    return [_rate(rate) for rate in RATES]


def _rate(rate: str) -> Row:
    testbed = declared(
        {"kind": "single-switch", "hosts": 2}, links={"host": {"rate": rate, "buffer": "64 MiB"}}, mtu=MTU
    )
    rate_bps = testbed.cables[0].rate_bps
    with EmulatedFabric(testbed) as fabric:
        errors = []
        for _ in range(REPEATS):
            begin, end = (sent_at(fabric, rate_bps, seconds) for seconds in (0.5, 1.5))
            errors.append(((end[1] - begin[1]) / transfer_ns(end[0] - begin[0], rate_bps) - 1) * 100)
    return at_most(f"rate of {rate} at dilation 1000: |difference|", abs(median(errors)), 0.5, "%")


def sent_at(fabric: EmulatedFabric, rate_bps: int, seconds: float) -> tuple[int, float]:
    """(bytes, FCT) of one flow that takes so many real seconds; two of them tell the rate without what is constant."""
    size_bytes = int(rate_bps / fabric.testbed.dilation * seconds / 8)
    (measured,) = probe(fabric, [Flow("h0", "h1", size_bytes)])
    return size_bytes, measured.fct_ns


def marks() -> list[Row]:
    """Datagrams paced at shares of a link's rate: how many come marked."""
    rows = []
    for share in (0.9, 1.1):
        found = [_marked(share) for _ in range(REPEATS)]
        marked, offered = (median(column) for column in zip(*found, strict=True))
        holds, target = (marked == 0, "0") if share < 1 else (marked > 95, "> 95")
        rows.append(Row(f"ECN at {share} of the rate: marked, second half of 5000 packets", marked, "%", target, holds))
        rows.append(Row("the same: really offered", round(100 * offered, 2), "% of the rate"))
    return rows


def _marked(share: float) -> tuple[float, float]:
    """(percent marked in the second half, when the queue has grown if it does; share of the rate that was offered).

    The sender's own shaper sets the pace, so that a busy machine offers what was meant.
    """
    rate = f"{100 * share:g} Gb/s"
    cables = {"switch0-h1": {"rate": "100 Gb/s", "ecn": "256 KiB", "buffer": "16 MiB"}}
    testbed = declared({"kind": "single-switch", "hosts": 2}, links={"host": {"rate": rate}}, cables=cables, mtu=MTU)
    with EmulatedFabric(testbed) as fabric:
        sender, receiver = _datagram_sockets(fabric)
        seen = []
        for at in range(DATAGRAMS):
            sender.sendto(bytes(DATAGRAM_BYTES), (fabric.address("h1"), 4791))
            if at in {DATAGRAMS // 2, DATAGRAMS - 1}:
                seen.append((fabric.counters()["h0>switch0"]["bytes"], time.monotonic_ns()))
        tos = list(_received(receiver))
        sender.close()
        receiver.close()
        link_bps = testbed.wire_bps(testbed.links()["switch0>h1"])
    half, (before, after) = tos[len(tos) // 2 :], seen
    offered = transfer_ns(after[0] - before[0], link_bps) / (after[1] - before[1])
    return 100 * sum(value & 3 == 3 for value in half) / len(half), offered


def _datagram_sockets(fabric: EmulatedFabric) -> tuple[socket.socket, socket.socket]:
    made = []
    for host in ("h0", "h1"):
        with inside(fabric.namespace_fd(host)):
            made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made[-1].bind((fabric.address(host), 4791))
        made[-1].setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PROBE)
    made[0].setsockopt(socket.IPPROTO_IP, IP_TOS, 2)
    made[1].setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
    made[1].setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    made[1].settimeout(1)
    return made[0], made[1]


def _received(receiver: socket.socket) -> Iterator[int]:
    """TOS bytes of what has come, until nothing comes for a second."""
    with contextlib.suppress(TimeoutError):
        while True:
            _, ancillary, _, _ = receiver.recvmsg(64, 64)
            yield next(value[0] for level, kind, value in ancillary if kind == IP_TOS)


def paths() -> Row:
    """Datagrams of many flows on a fat tree: how many left by exactly the looked-up links."""
    links = {name: {"rate": "100 Gb/s"} for name in ("host", "fabric", "core")}
    testbed = declared({"kind": "fat-tree", "k": 4}, links=links)
    draw, right = random.Random(1), 0
    with EmulatedFabric(testbed) as fabric:
        for _ in range(FLOWS):
            source, destination = draw.sample(testbed.hosts, 2)
            right += _as_looked_up(fabric, source, destination, draw.randrange(10_000, 60_000))
    return Row(f"{FLOWS} flows on a fat tree of 16 hosts: took the looked-up path", 100 * right / FLOWS, "%", ">= 99.5",
               100 * right / FLOWS >= 99.5)  # fmt: skip


def _as_looked_up(fabric: EmulatedFabric, source: str, destination: str, sport: int) -> bool:
    way = fabric.route(source, destination, sport, 4791, socket.IPPROTO_UDP)
    with contextlib.ExitStack() as stack:
        ends = []
        for host, port in ((source, sport), (destination, 4791)):
            with inside(fabric.namespace_fd(host)):
                ends.append(stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
            ends[-1].bind((fabric.address(host), port))
            ends[-1].settimeout(2)
        before = packets(fabric)
        ends[0].sendto(bytes(300), (fabric.address(destination), 4791))
        ends[1].recv(300)
        after = packets(fabric)
    return {link for link in after if after[link] != before[link]} == set(way)


def packets(fabric: EmulatedFabric) -> dict[str, int]:
    """Per directed link."""
    return {link: row["packets"] for link, row in fabric.counters().items()}


def routing() -> list[Row]:
    """FRR on 4 leaves and 2 spines against static routes: FCTs of flows with disjoint ways, A B A B."""
    if why := hindrance():
        return [Row(f"FRR: {why}", float("nan"), "", "", None)]
    shape, times = {"kind": "leaf-spine", "hosts": 8, "leaves": 4, "spines": 2}, []
    ratios = []
    for _ in range(REPEATS):
        fcts = {}
        for stack in ("static", "frr"):
            begun = time.monotonic()
            with EmulatedFabric(declared(shape, mtu=MTU, stack=stack)) as fabric:
                if stack == "frr":
                    times.append(time.monotonic() - begun)
                fcts[stack] = _fcts(fabric)
        ratios.append(max(abs(a / b - 1) for a, b in zip(fcts["frr"], fcts["static"], strict=True)) * 100)
    return [
        Row("FRR on 4 leaves and 2 spines: all ways found after", round(median(times), 3), "s"),
        at_most("the same, FCT of 4 cross-leaf flows against static routes: worst difference", median(ratios), 2, "%"),
    ]


def _fcts(fabric: EmulatedFabric) -> list[float]:
    """One flow out of and one into every leaf, by source ports whose looked-up ways share no link."""
    flows, used = [], set[str]()
    for at, (source, destination) in enumerate((("h0", "h2"), ("h2", "h4"), ("h4", "h6"), ("h6", "h0"))):
        for sport in range(20_000, 20_200):
            way = set(fabric.route(source, destination, sport, 30_000 + at))
            if not way & used:
                used |= way
                flows.append(Flow(source, destination, 10_000_000, sport))
                break
    return [one.fct_ns for one in probe(fabric, flows)]


def main() -> None:
    parts: Sequence[Any] = (up_and_down, kills, rates, marks, lambda: [paths()], routing)
    write("fabric", [row for part in parts for row in part()])


if __name__ == "__main__":
    main()
