"""How a rank's process gets its share of the processors, and how it dies with its launcher.

There are usually more ranks than processors. Ranks are therefore not pinned: most of them sleep most of the time, and
a waking rank should run wherever there is room. Nor do they spin then, since a spinner would take the processor from
the rank it waits for. What helps is weight. Linux shares processors first among sessions (autogroups), and only inside
a session by nice value; so each rank gets a session of its own, raised as far as the system lets it.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_AUTOGROUP: Final = Path("/proc/self/autogroup")
_HIGHEST: Final = "-19"


def own_session() -> bool:
    """Give this process a session of its own, out of the terminal's reach; whether its weight could be raised."""
    os.setsid()
    try:
        _AUTOGROUP.write_text(_HIGHEST, encoding="ascii")
    except OSError:
        return False  # not root, or a kernel without autogroups: fair shares then
    return True


def die_with(parent: int) -> bool:
    """Be killed when `parent` ends; False if it has ended already.

    To be called again after entering a user namespace: a change of credentials cancels it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent
