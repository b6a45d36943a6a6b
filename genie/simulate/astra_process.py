"""Running ASTRA-sim as a subprocess: limits of time and memory, progress, and what it said."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from genie.errors import NotReadyError

Say = Callable[[str], None]
"""Takes a line of progress."""

STDOUT: Final = "stdout.txt"
STDERR: Final = "stderr.txt"
_POLL_S: Final = 0.02
_LONGEST_POLL_S: Final = 0.5
_FIRST_WORD_S: Final = 5.0
_FINISHED: Final = b"] finished, "
_GRACE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may take.

    Attributes:
        timeout_s: real seconds.
        memory_bytes: address space; None for no limit.
    """

    timeout_s: float = 3600.0
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How the process ended.

    Attributes:
        code: exit code; minus the signal's number when a signal ended it.
        elapsed_s: real seconds.
        peak_bytes: most memory that it held; 0 when it was stopped.
        cpu_s: CPU seconds; 0 when it was stopped.
        timed_out: it was stopped at the time limit.
    """

    code: int
    elapsed_s: float
    peak_bytes: int = 0
    cpu_s: float = 0.0
    timed_out: bool = False


def run(command: Sequence[str], folder: Path, ranks: int, limits: Limits, say: Say = lambda _: None) -> Ended:
    """Run a command in a folder, its output in STDOUT and STDERR there.

    Args:
        command: program and arguments; no shell is involved.
        folder: working directory.
        ranks: how many are to finish, for the progress line.
        limits: the process and its children are killed at the time limit.
        say: is told from time to time how far it is.

    Raises:
        NotReadyError: the program cannot be started.
    """
    with (folder / STDOUT).open("wb") as out, (folder / STDERR).open("wb") as err:
        try:
            process = subprocess.Popen(  # noqa: S603 - a list, no shell
                list(command),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            raise NotReadyError(f"cannot be started: {error.strerror}.", where=command[0]) from error
    if limits.memory_bytes is not None:
        with contextlib.suppress(ProcessLookupError):  # it may be over already
            resource.prlimit(process.pid, resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    try:
        return _wait(process, folder, ranks, limits, say)
    finally:
        _kill(process)


def _wait(process: subprocess.Popen[bytes], folder: Path, ranks: int, limits: Limits, say: Say) -> Ended:
    begin, next_word_s, pause_s = time.monotonic(), _FIRST_WORD_S, _POLL_S
    counter = _Counter(folder / STDOUT)
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        elapsed_s = time.monotonic() - begin
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            peak_bytes = usage.ru_maxrss * 1024
            return Ended(process.returncode, elapsed_s, peak_bytes, usage.ru_utime + usage.ru_stime)
        if elapsed_s >= limits.timeout_s:
            return _stop(process, elapsed_s)
        if elapsed_s >= next_word_s:
            say(f"  astra-sim: {elapsed_s:.0f} s, {counter.finished()} of {ranks} ranks finished")
            next_word_s *= 2
        time.sleep(min(pause_s, max(0.0, limits.timeout_s - elapsed_s)))
        pause_s = min(_LONGEST_POLL_S, pause_s * 1.5)


def _stop(process: subprocess.Popen[bytes], elapsed_s: float) -> Ended:
    _signal(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    _kill(process)
    return Ended(process.returncode, elapsed_s, timed_out=True)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The process and whatever it started; a wrapper script's children share its group."""
    _signal(process, signal.SIGKILL)
    if process.returncode is None:
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


class _Counter:
    """Counts finished ranks in a growing file, reading each byte once."""

    def __init__(self, path: Path) -> None:
        self._path, self._at, self._count, self._rest = path, 0, 0, b""

    def finished(self) -> int:
        """So far."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            text = self._rest + file.read()
            self._at = file.tell()
        head, _, self._rest = text.rpartition(b"\n")
        self._count += head.count(_FINISHED)
        return self._count
