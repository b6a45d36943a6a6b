"""What this machine counts about itself: processor time, soft interrupts, pressure. All grow from boot on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from genie.units import NS_PER_S, NS_PER_US

_TIMES: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_SOFTIRQS: Final = ("NET_RX", "NET_TX", "TIMER", "SCHED")
_PRESSURES: Final = ("cpu", "memory", "io")
COUNTERS: Final = (
    *(f"cpu_{name}_ns" for name in _TIMES),
    *(f"softirq_{name.lower()}" for name in _SOFTIRQS),
    *(f"pressure_{name}_ns" for name in _PRESSURES),
)
"""Of all processors together; `pressure_*`: time in which some process waited for it."""


def machine_counters(proc: Path = Path("/proc")) -> dict[str, int]:
    """Every one of `COUNTERS`; -1 for what this kernel does not tell."""
    found = dict.fromkeys(COUNTERS, -1)
    tick_ns = NS_PER_S // os.sysconf("SC_CLK_TCK")
    times = _lines(proc / "stat")[:1]
    for name, value in zip(_TIMES, times[0].split()[1:] if times else (), strict=False):
        found[f"cpu_{name}_ns"] = int(value) * tick_ns
    for line in _lines(proc / "softirqs")[1:]:
        name, _, values = line.strip().partition(":")
        if name in _SOFTIRQS:
            found[f"softirq_{name.lower()}"] = sum(map(int, values.split()))
    for name in _PRESSURES:
        for line in _lines(proc / "pressure" / name)[:1]:
            found[f"pressure_{name}_ns"] = int(line.rpartition("total=")[2]) * NS_PER_US
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
