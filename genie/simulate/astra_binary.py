"""Which ASTRA-sim there is: where its program lies, which front end it is, and of which version."""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from genie.errors import InputError, NotReadyError
from genie.formats.programs import programs_below

VARIABLE: Final = "GENIE_ASTRA_SIM"
"""Environment variable that names the program, or a folder in which it lies."""


class FrontEnd(StrEnum):
    """ASTRA-sim's network front ends, each a program of its own."""

    UNAWARE = "unaware"
    AWARE = "aware"
    NS3 = "ns3"
    HTSIM = "htsim"


ANALYTICAL: Final = {FrontEnd.UNAWARE, FrontEnd.AWARE}

NAMES: Final = {
    FrontEnd.UNAWARE: ("AstraSim_Analytical_Congestion_Unaware", "AnalyticalAstra"),
    FrontEnd.AWARE: ("AstraSim_Analytical_Congestion_Aware", "AstraCongestion"),
    FrontEnd.NS3: ("ns3.42-AstraSimNetwork-default", "AstraSimNetwork"),
    FrontEnd.HTSIM: ("AstraSim_HTSim",),
}
"""What ASTRA-sim's own build scripts call the programs."""

_MARKS: Final = (
    (FrontEnd.HTSIM, (b"HTSimNetworkApi", b"htsim-proto")),
    (FrontEnd.NS3, (b"ASTRA-sim + NS3", b"NS3BackendCompletionTracker")),
    (FrontEnd.AWARE, (b"CongestionAwareNetworkApi",)),
    (FrontEnd.UNAWARE, (b"CongestionUnawareNetworkApi",)),
)
"""Texts and class names that only that front end's program holds; names of classes stay in a stripped program."""

_AGES: Final = (
    (b"logging-configuration", "2.1 or later (with a logging configuration)"),
    (b"comm-group-configuration", "2.0 (no logging configuration)"),
    (b"remote-memory-configuration", "2.0, early (no process groups)"),
)
_GIT_TIMEOUT_S: Final = 10
_BUILD: Final = "build ASTRA-sim, then name the program: --astra-sim PROGRAM, or GENIE_ASTRA_SIM."


@dataclass(frozen=True, slots=True)
class Binary:
    """A program of ASTRA-sim's.

    Attributes:
        path: resolved.
        front_end: which network model it has.
        version: what could be told of it: the checkout's commit, else the oldest version with its options.
        sha256: of the program.
    """

    path: Path
    front_end: FrontEnd
    version: str
    sha256: str

    def as_dict(self) -> dict[str, str]:
        """For run.json."""
        return {
            "path": str(self.path),
            "front_end": self.front_end.value,
            "version": self.version,
            "sha256": self.sha256,
        }


def find_binary(given: Path | str | None = None, front_end: FrontEnd | None = None) -> Binary:
    """The program that was given, else the environment's (GENIE_ASTRA_SIM), else the first in PATH.

    Where that has another front end than the one wanted, the program beside it is taken.

    Args:
        given: a program, or a folder that is searched for one (a checkout of ASTRA-sim, say).
        front_end: which one is wanted; None takes what there is.

    Raises:
        NotReadyError: there is none, or it cannot be run.
        InputError: the program is none of ASTRA-sim's, or has another front end than the one wanted.
    """
    place = given or os.environ.get(VARIABLE)
    path = _in_path(front_end) if not place else _at(Path(place), front_end)
    if not os.access(path, os.X_OK):
        raise NotReadyError("the program cannot be executed.", where=str(path), fix=f"chmod +x {path}")
    found = recognise(path)
    if front_end is not None and found.front_end is not front_end:
        if beside := _beside(path, front_end):
            return recognise(beside)
        raise InputError(
            f"this ASTRA-sim has the front end {found.front_end.value}, the model asks for {front_end.value}.",
            where=str(path),
            fix=f"name the program of that front end ({NAMES[front_end][0]}), or ask for another model.",
        )
    return found


def _beside(path: Path, front_end: FrontEnd) -> Path | None:
    """Another front end's program in the same folder, as ASTRA-sim's build leaves them."""
    programs = (path.with_name(name) for name in NAMES[front_end])
    return next((program for program in programs if program.is_file() and os.access(program, os.X_OK)), None)


def _in_path(front_end: FrontEnd | None) -> Path:
    wanted = [front_end] if front_end else list(FrontEnd)
    for name in (name for kind in wanted for name in NAMES[kind]):
        if found := shutil.which(name):
            return Path(found).resolve()
    names = ", ".join(NAMES[kind][0] for kind in wanted)
    raise NotReadyError(f"no ASTRA-sim was found: PATH has none of {names}.", fix=_BUILD)


def _at(place: Path, front_end: FrontEnd | None) -> Path:
    """The program itself, or the one below a folder."""
    if place.is_file():
        return place.resolve()
    if not place.is_dir():
        raise NotReadyError("there is no such program.", where=str(place), fix=_BUILD)
    wanted = [front_end] if front_end else list(FrontEnd)
    if found := programs_below(place, [name for kind in wanted for name in NAMES[kind]]):
        return found[0].resolve()
    names = ", ".join(NAMES[kind][0] for kind in wanted)
    raise NotReadyError(f"the folder holds no program called {names}.", where=str(place), fix=_BUILD)


def recognise(path: Path) -> Binary:
    """Front end and version of a program, from what it holds, else from its name (a wrapper script's).

    Raises:
        InputError: neither tells.
        NotReadyError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise NotReadyError(f"the program cannot be read: {error}.", where=str(path)) from error
    with content:
        front_end = _front_end(content, path)
        version = _checkout(path) or next((age for mark, age in _AGES if content.find(mark) >= 0), "unknown")
    return Binary(path, front_end, version, digest)


def _front_end(content: mmap.mmap, path: Path) -> FrontEnd:
    for front_end, marks in _MARKS:
        if any(content.find(mark) >= 0 for mark in marks):
            return front_end
    for front_end, names in NAMES.items():
        if any(name in path.name for name in names):
            return front_end
    raise InputError(
        "this program is none of ASTRA-sim's front ends that Genie knows.",
        where=str(path),
        fix=f"name one of {', '.join(n[0] for n in NAMES.values())}; a wrapper script needs that name in its own.",
    )


def _checkout(path: Path) -> str:
    """The commit of the git checkout that the program lies in, "" where that cannot be told."""
    git = shutil.which("git")
    if git is None or not any((folder / ".git").exists() for folder in path.parents):
        return ""
    command = [git, "-C", str(path.parent), "describe", "--always", "--tags", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(  # noqa: S603 - a list, no shell
            command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
