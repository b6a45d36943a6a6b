"""Ctrl-C and SIGTERM as something to look at between two steps, not something that strikes in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from genie.errors import RunError


class InterruptedRunError(RunError):
    """A person or the system asked for an end; what had been measured is kept."""


class Interrupts:
    """While entered, the first SIGINT or SIGTERM is only noted; a second one acts as it used to.

    In a thread that is not the main one, signals stay with whoever has them.
    """

    def __init__(self) -> None:
        self._noted = ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._noted = signal.Signals(number).name
        self._restore()

    def check(self) -> None:
        """Act on what was noted.

        Raises:
            InterruptedRunError: there was something.
        """
        if self._noted:
            raise InterruptedRunError(f"interrupted ({self._noted}); what had been measured is kept.")
