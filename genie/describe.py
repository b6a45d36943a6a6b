"""Plain facts about workloads, schedules and testbeds, for tables and JSON."""

from __future__ import annotations

from collections import Counter
from typing import Any

from genie.core.schedule import Schedule
from genie.core.testbed import Testbed
from genie.core.workload import CollectiveKind, NodeKind, Workload
from genie.units import bps_to_gigabits


def describe_workload(workload: Workload) -> dict[str, Any]:
    """Ranks, nodes by kind, collectives by kind, bytes asked for, groups."""
    kinds: Counter[str] = Counter()
    collectives: Counter[str] = Counter()
    size_bytes = duration_ns = 0
    for trace in workload.traces:
        kinds.update(NodeKind(k).name for k in trace.nodes.kind.tolist())
        collectives.update(CollectiveKind(c).name for c in trace.nodes.comm_type.tolist() if c >= 0)
        size_bytes += int(trace.nodes.size_bytes[trace.nodes.size_bytes > 0].sum())
        duration_ns = max(duration_ns, int(trace.nodes.duration_ns.sum()))
    return {
        "name": workload.name,
        "ranks": workload.ranks,
        "nodes": sum(kinds.values()),
        "nodes_by_kind": dict(kinds),
        "collectives": dict(collectives),
        "comm_size_bytes": size_bytes,
        "longest_compute_ns": duration_ns,
        "groups": {group.name: list(group.ranks) for group in workload.groups},
    }


def describe_schedule(schedule: Schedule) -> dict[str, Any]:
    """Messages and bytes in all and per ordered pair of ranks, for one iteration."""
    expected = schedule.expected()
    return {
        "workload": schedule.workload.name,
        "ranks": len(schedule.ranks),
        "dimensions": list(schedule.dimensions),
        "profile": schedule.system.profile.value,
        "messages": sum(count.messages for count in expected.values()),
        "bytes": sum(count.size_bytes for count in expected.values()),
        "bytes_by_group": schedule.bytes_by_group(),
        "pairs": [
            {"src": src, "dst": dst, "messages": count.messages, "bytes": count.size_bytes}
            for (src, dst), count in sorted(expected.items())
        ],
    }


def describe_testbed(testbed: Testbed) -> dict[str, Any]:
    """Nodes and links, rates in virtual and real units."""
    return {
        "name": testbed.name,
        "hosts": len(testbed.hosts),
        "switches": len(testbed.nodes) - len(testbed.hosts),
        "dilation": testbed.dilation,
        "mtu_bytes": testbed.mtu,
        "ecmp": testbed.spread.value,
        "placement": [str(end) for end in testbed.endpoints],
        "links": [
            {
                "a": cable.a,
                "b": cable.b,
                "class": cable.klass,
                "rate_gbps": bps_to_gigabits(cable.rate_bps),
                "real_wire_bps": testbed.wire_bps(cable),
                "delay_ns": cable.delay_ns,
                "buffer_bytes": cable.buffer_bytes,
                "ecn_bytes": cable.ecn_bytes,
                "loss_ppm": cable.loss_ppm,
            }
            for cable in testbed.cables
        ],
    }
