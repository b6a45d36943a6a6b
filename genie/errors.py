"""The tree of errors: who is responsible, and the exit code that the command line returns.

::

    GenieError
     +-- InputError         2   a file or an option of the user's is wrong
     +-- NotReadyError      3   this machine or lab is not ready (a tool, a permission, a device)
     +-- RunError           4   the run itself failed: a peer died, nothing moved, a self-check failed
     +-- ThresholdError     5   the run is good, a user's threshold was missed
     +-- InternalError     70   a bug of ours

Every error says what happened, where (file, node, host, flow), and what to do about it.
"""

from __future__ import annotations

from typing import ClassVar


class GenieError(Exception):
    """Root of all errors that Genie raises on purpose.

    Args:
        what: One sentence, what is wrong.
        where: The thing it is wrong with: file and frame, rank and node, host, flow.
        fix: What the user can do about it.
    """

    exit_code: ClassVar[int] = 70

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what, where, fix)
        self.what, self.where, self.fix = what, where, fix

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f" Fix: {self.fix}" if self.fix else ""
        return f"{place}{self.what}{remedy}"


class InputError(GenieError):
    """A file or an option is wrong; nothing has been run."""

    exit_code = 2


class NotReadyError(GenieError):
    """This machine or lab lacks something: a tool, a permission, a device, space."""

    exit_code = 3


class RunError(GenieError):
    """The run failed: a peer died, nothing moved, a self-check did not hold."""

    exit_code = 4


class ThresholdError(GenieError):
    """The run is good, but a threshold of the user's was missed."""

    exit_code = 5


class InternalError(GenieError):
    """A bug of ours: please report it."""

    exit_code = 70
