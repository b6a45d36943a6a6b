"""How busy this machine was meanwhile, as its kernel tells (pressure stall information)."""

from __future__ import annotations

import time
from pathlib import Path

from genie.units import us_to_s


class CpuPressure:
    """How much of the time since this object was made some process of the machine waited for a processor (PSI)."""

    def __init__(self) -> None:
        self._begun, self._waited = time.monotonic(), _waited_s()

    def share(self) -> float | None:
        """None where the kernel does not tell."""
        now = _waited_s()
        if now is None or self._waited is None:
            return None
        return (now - self._waited) / max(time.monotonic() - self._begun, 1e-9)


def _waited_s() -> float | None:
    try:
        line = Path("/proc/pressure/cpu").read_text(encoding="ascii").splitlines()[0]
        return us_to_s(int(line.rpartition("total=")[2]))
    except (OSError, ValueError, IndexError):
        return None
