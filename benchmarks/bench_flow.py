"""Is the emulated fabric true? A flow alone on its path, a cross-leaf shift of 16 ranks, and an incast of 7 to 1."""

from __future__ import annotations

import numpy as np
from report import ROOT, Row, at_most, write

from genie.core.system import System
from genie.core.timeline import Timeline
from genie.core.workload import Workload
from genie.hosts import Lab
from genie.lower import lower
from genie.patterns import incast, shift
from genie.replay.launcher import LaunchOptions
from genie.replay.local import ReplayOptions, replay
from genie.testbed.files import load_testbed
from genie.units import transfer_ns

REPEATS = 5


def measure(testbed_file: str, workload: Workload) -> tuple[Timeline, np.ndarray]:
    """What was measured, and the modelled delay of every message's path."""
    testbed = load_testbed(ROOT / "testbed" / testbed_file)
    with Lab(testbed) as lab:
        hosting = lab.hosting(workload.ranks)
        options = ReplayOptions(dilation=testbed.dilation, launch=LaunchOptions(1, REPEATS))
        result = replay(lower(workload, System()), hosting.places, options)
    if result.error:
        raise result.error
    messages = result.timeline.messages
    ends = zip(messages.src, messages.dst, strict=True)
    return result.timeline, np.array([hosting.places[dst].delays_ns[src] for src, dst in ends])


def errors(timeline: Timeline, rate_bps: float, share: int = 1, delays_ns: np.ndarray | int = 0) -> np.ndarray:
    """Per message: completion time / (size / rate + delays) - 1; without delays, these count as part of the time."""
    messages = timeline.messages
    ideal = messages.size_bytes * transfer_ns(1, rate_bps) * share + delays_ns
    return (messages.delivered_ns - messages.posted_ns) / ideal - 1


def by_message(values: np.ndarray, timeline: Timeline) -> np.ndarray:
    """Median over the repeats of every message's error."""
    pairs = timeline.messages.src.astype(int)
    return np.array([np.median(values[pairs == src]) for src in sorted(set(pairs.tolist()))])


def per_cent(value: float) -> float:
    return float(value) * 100


def main() -> None:
    rows = []
    lone, delays_ns = measure("single-switch-8.yml", shift(2, 25_000_000, 1))
    one = by_message(errors(lone, 200e9), lone)
    name = "a flow alone on its path, 25 MB at 200 Gb/s: |FCT / (size / rate) - 1|"
    rows.append(at_most(name, per_cent(abs(one[0])), 1, "%"))
    one = by_message(errors(lone, 200e9, 1, delays_ns), lone)
    rows.append(Row("the same against size / rate + the modelled delays of the path", per_cent(one[0]), "%"))
    crossing, delays_ns = measure("leaf-spine-16-nonblocking.yml", shift(16, 8_000_000))
    each = by_message(errors(crossing, 125e9), crossing)
    name = "cross-leaf shift of 16 ranks at 125 Gb/s: worst of 16"
    rows.append(at_most(name, per_cent(np.abs(each).max()), 3, "%"))
    each = by_message(errors(crossing, 125e9, 1, delays_ns), crossing)
    rows.append(Row("the same with the delays: worst of 16", per_cent(np.abs(each).max()), "%"))
    rows.append(Row("the same with the delays: median of 16", per_cent(np.median(each)), "%"))
    many, delays_ns = measure("single-switch-8.yml", incast(8, 2_000_000))
    spread = errors(many, 200e9, 7, delays_ns)
    last = [spread[many.messages.iteration == k].max() for k in range(REPEATS)]
    name = "incast of 7 to 1, 2 MB each: last FCT / (7 size / rate + delays) - 1"
    rows.append(Row(name, per_cent(np.median(last)), "%"))
    write("flow", rows)


if __name__ == "__main__":
    main()
