"""How a rank's process gets its share of the processors, and how it dies with its launcher.

There are usually more ranks than processors. Ranks are therefore not pinned: most of them sleep most of the time, and
a waking rank should run wherever there is room. Nor do they spin then, since a spinner would take the processor from
the rank that it waits for. What helps is precedence over everything else on the machine: real-time scheduling at the
lowest such priority where that is allowed. Where it is not, weight: Linux shares processors first among sessions
(autogroups), and only inside a session by nice value, so each rank gets a session of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_AUTOGROUP: Final = Path("/proc/self/autogroup")
_HIGHEST: Final = "-19"
_LOWEST_REAL_TIME: Final = 1


def take_precedence(*, real_time: bool = True) -> str:
    """Put this process into a session of its own, and before others as far as the system lets it; how far it did.

    Not with real-time priority where ordinary kernel threads do a rank's work (Soft-RoCE): it would starve them.

    Ranks take turns among each other (round robin), and the kernel keeps a share for ordinary processes, so that a
    rank gone wild does not take the machine with it.
    """
    with contextlib.suppress(PermissionError):  # who leads a group already was given one
        os.setsid()
    if not real_time:
        return "ordinary"
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_LOWEST_REAL_TIME))
    except OSError:
        return _raise_session()
    return "real-time"


def _raise_session() -> str:
    try:
        _AUTOGROUP.write_text(_HIGHEST, encoding="ascii")
    except OSError:
        return "ordinary"
    return "raised"


def die_with(parent: int) -> bool:
    """Be killed when `parent` ends; False if it has ended already.

    To be called again after entering a user namespace: a change of credentials cancels it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent
