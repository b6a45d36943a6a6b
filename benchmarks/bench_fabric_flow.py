"""Is the emulated fabric itself true, and quickly up? Plain TCP sockets, nothing of the replay."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from report import ROOT, Row, at_most, write

from genie.core.testbed import Testbed
from genie.testbed.emulated import EmulatedFabric
from genie.testbed.files import load_testbed, parse_testbed
from genie.testbed.probe import Flow, Measured, probe
from genie.units import transfer_ns

REPEATS = 5
SIZES = ((8, 2, 2, 0.5), (128, 8, 4, 2.0))
"""Hosts, leaves, spines, and how many seconds they may take to come up."""

Runs = Sequence[Sequence[Measured]]


def alone(testbed: Testbed) -> list[Flow]:
    """One flow between two hosts."""
    return [Flow(*testbed.hosts[:2], 25_000_000)]


def shift(testbed: Testbed) -> list[Flow]:
    """Every host sends one flow to its counterpart half the hosts on, and so receives one."""
    hosts = testbed.hosts
    half = len(hosts) // 2
    return [Flow(host, hosts[(at + half) % len(hosts)], 8_000_000, 20_000 + at) for at, host in enumerate(hosts)]


def incast(senders: int) -> Callable[[Testbed], list[Flow]]:
    """So many hosts send to the first."""
    return lambda testbed: [Flow(host, testbed.hosts[0], 1_000_000) for host in testbed.hosts[1 : senders + 1]]


def measure(file: str, flows_of: Callable[[Testbed], list[Flow]]) -> tuple[Testbed, Runs]:
    """Repeats of the same flows on a fresh fabric."""
    testbed = load_testbed(ROOT / "testbed" / file)
    with EmulatedFabric(testbed) as fabric:
        flows = flows_of(testbed)
        return testbed, [probe(fabric, flows) for _ in range(REPEATS)]


def errors(testbed: Testbed, measured: Sequence[Measured]) -> list[float]:
    """Per flow: FCT / (size / rate) - 1 in percent."""
    rate_bps = testbed.cables[0].rate_bps
    return [(one.fct_ns / transfer_ns(one.flow.size_bytes, rate_bps) - 1) * 100 for one in measured]


def per_flow(testbed: Testbed, runs: Runs) -> list[float]:
    """Every flow's median error over the repeats."""
    return [median(values) for values in zip(*(errors(testbed, run) for run in runs), strict=True)]


def in_all(testbed: Testbed, measured: Sequence[Measured]) -> float:
    """From the first byte of any flow to the last of all, against the time that all bytes take one link; percent."""
    span_ns = max(one.done_ns for one in measured) - min(one.begun_ns for one in measured)
    return (span_ns / transfer_ns(sum(one.flow.size_bytes for one in measured), testbed.cables[0].rate_bps) - 1) * 100


def again(runs: Runs) -> int:
    """Packets that TCP sent twice, in all."""
    return sum(one.retransmissions for run in runs for one in run)


def bring_up(hosts: int, leaves: int, spines: int, limit_s: float) -> Row:
    """How long a leaf-spine takes until every port carries traffic."""
    content = {
        "name": "large",
        "kind": "emulated",
        "topology": {"kind": "leaf-spine", "hosts": hosts, "leaves": leaves, "spines": spines},
        "links": {"host": {"rate": "200 Gb/s"}, "fabric": {"rate": "200 Gb/s"}},
    }
    took = []
    for _ in range(REPEATS):
        begun = time.monotonic()
        with EmulatedFabric(parse_testbed(content, "bench")):
            took.append(time.monotonic() - begun)
    return at_most(f"{hosts} hosts on {leaves} leaves and {spines} spines: up after", median(took), limit_s, "s")


def main() -> None:
    rows = [bring_up(*size) for size in SIZES]
    testbed, runs = measure("single-switch-8.yml", alone)
    error = abs(per_flow(testbed, runs)[0])
    rows.append(at_most("a flow alone, 25 MB at 200 Gb/s: |FCT / (size / rate) - 1|", error, 1, "%"))
    testbed, runs = measure("leaf-spine-16-nonblocking.yml", shift)
    each = per_flow(testbed, runs)
    rows.append(at_most("cross-leaf shift of 16, 8 MB at 125 Gb/s: worst of 16", max(map(abs, each)), 3, "%"))
    rows.append(Row("the same: median of 16", median(each), "%"))
    rows.append(at_most("the same: retransmissions", again(runs), 0, "packets"))
    for senders in (2, 4, 7):
        testbed, runs = measure("single-switch-8.yml", incast(senders))
        last = median(in_all(testbed, run) for run in runs)
        rows.append(Row(f"incast of {senders} to 1, 1 MB each: last byte against all bytes / rate", last, "%"))
        rows.append(at_most("the same: retransmissions", again(runs), 0, "packets"))
    write("fabric-flow", rows)


if __name__ == "__main__":
    main()
