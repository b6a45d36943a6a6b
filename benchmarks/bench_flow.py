"""Is the emulated fabric true? A flow alone on its path, a cross-leaf shift of 16 ranks, and an incast of 7 to 1."""

from __future__ import annotations

import numpy as np
from report import ROOT, Row, at_most, write

from genie.core.system import System
from genie.core.timeline import Timeline
from genie.core.workload import Workload
from genie.lower import lower
from genie.patterns import incast, shift
from genie.replay.launcher import LaunchOptions
from genie.replay.local import ReplayOptions, replay
from genie.stages import Lab
from genie.testbed.files import load_testbed
from genie.units import transfer_ns

REPEATS = 5


def measure(testbed_file: str, workload: Workload) -> tuple[Timeline, Lab]:
    testbed = load_testbed(ROOT / "testbed" / testbed_file)
    with Lab(testbed) as lab:
        hosting = lab.hosting(workload.ranks)
        options = ReplayOptions(dilation=testbed.dilation, launch=LaunchOptions(1, REPEATS))
        result = replay(lower(workload, System()), hosting.places, options)
    if result.error:
        raise result.error
    return result.timeline, lab


def errors(timeline: Timeline, rate_bps: float, share: int = 1) -> np.ndarray:
    """Per message: completion time / (size / rate) - 1; the modelled delays of the path are part of the time."""
    messages = timeline.messages
    ideal = messages.size_bytes * transfer_ns(1, rate_bps) * share
    return (messages.delivered_ns - messages.posted_ns) / ideal - 1


def by_message(values: np.ndarray, timeline: Timeline) -> np.ndarray:
    """Median over the repeats of every message's error."""
    pairs = timeline.messages.src.astype(int)
    return np.array([np.median(values[pairs == src]) for src in sorted(set(pairs.tolist()))])


def main() -> None:
    rows = []
    lone, _ = measure("single-switch-8.yml", shift(2, 25_000_000, 1))
    one = by_message(errors(lone, 200e9), lone)
    rows.append(
        at_most("a flow alone on its path, 25 MB at 200 Gb/s: |FCT / (size / rate) - 1|", abs(one[0]) * 100, 1, "%")
    )
    crossing, _ = measure("leaf-spine-16-nonblocking.yml", shift(16, 8_000_000))
    each = by_message(errors(crossing, 125e9), crossing)
    rows.append(
        at_most("cross-leaf shift of 16 ranks at 125 Gb/s: worst of 16", float(np.abs(each).max()) * 100, 3, "%")
    )
    rows.append(Row("the same: median of 16", float(np.median(each)) * 100, "%"))
    many, _ = measure("single-switch-8.yml", incast(8, 2_000_000))
    spread = errors(many, 200e9, 7)
    last = [spread[many.messages.iteration == k].max() for k in range(REPEATS)]
    rows.append(Row("incast of 7 to 1, 2 MB each: last FCT / (7 size / rate) - 1", float(np.median(last)) * 100, "%"))
    write("flow", rows)


if __name__ == "__main__":
    main()
