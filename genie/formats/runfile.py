"""Run directories: everything that a run was given, did and found, from which each table and plot can be made again.

::

    runs/20261201T120000Z-loop-quickstart/
      run.json                 format, kind, status, versions, environment, inputs with hashes, results, checks
      inputs/ROLE/...          copies of the files that the run was given, under their own names
      timeline.json, ranks.parquet, operators.parquet, messages.parquet    the timeline
      <name>.parquet           other tables: counters, links, routes, rounds
      rounds/1-simulate/ ...   runs within this run

A directory appears with its run.json, a file only when it is whole; a run whose writer was killed opens as "partial".
docs/run-directory.md describes every key and column.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import numpy as np
from numpy.typing import NDArray

from genie import __version__
from genie.core.columns import Columns
from genie.core.timeline import Status, Timeline
from genie.errors import InputError, NotReadyError
from genie.formats.tables import (
    has_timeline,
    load_timeline,
    read_table,
    save_timeline,
    write_table,
    write_text,
    write_whole,
)

__all__ = ["FORMAT", "Run", "RunWriter", "load_timeline", "open_run", "save_timeline"]

FORMAT: Final = (1, 0)
"""(major, minor) of what is written. A reader takes every minor of a major that it knows; a new minor only adds."""

META: Final = "run.json"
_READ_WHOLE_BYTES: Final = 1 << 22
"""Inputs up to this size are read whole to see whether their bytes were copied already."""

RUNNING: Final = "running"
Kind = Literal["simulate", "replay", "loop", "fit", "validate"]

_KEYS: Final[dict[str, type]] = {
    "genie": str,
    "kind": str,
    "name": str,
    "status": str,
    "created": str,
    "command": list,
    "directory": str,
    "environment": dict,
    "inputs": list,
    "results": dict,
    "checks": list,
    "notes": list,
}
"""Keys that every run.json has, and their types."""

_PACKAGES: Final = (
    "numpy",
    "scipy",
    "pandas",
    "pyarrow",
    "matplotlib",
    "protobuf",
    "pydantic",
    "PyYAML",
    "pyroute2",
    "click",
    "rich",
)


def _environment() -> dict[str, Any]:
    return {
        "host": platform.node(),
        "python": sys.version.split()[0],
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _processor() -> str:
    """The processor's name, "" where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class RunWriter:
    """Writes a run directory; `run.json` says "running" until `finish` is called.

    Raises:
        InputError: the directory exists.
        NotReadyError: it cannot be made.
    """

    def __init__(self, path: Path, kind: Kind, name: str) -> None:
        self.path = path
        self._meta: dict[str, Any] = {
            "format": ".".join(map(str, FORMAT)),
            "genie": __version__,
            "kind": kind,
            "name": name,
            "status": RUNNING,
            "created": _now(),
            "command": ["genie", *sys.argv[1:]],
            "directory": str(Path.cwd()),
            "environment": _environment(),
            "inputs": [],
            "results": {},
            "checks": [],
            "notes": [],
        }
        self._copies: dict[str, Path] = {}
        self._folders: dict[str, Path] = {}
        self._appear()

    def _appear(self) -> None:
        """Make the directory under another name first, so that nobody ever sees it without its run.json."""
        exists = InputError("the run directory exists already.", where=str(self.path))
        if self.path.exists():
            raise exists
        hidden = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        try:
            hidden.mkdir(parents=True)
            self._save_meta(hidden)
            hidden.rename(self.path)
        except OSError as error:
            shutil.rmtree(hidden, ignore_errors=True)
            if self.path.exists():
                raise exists from error
            raise NotReadyError(
                f"the run directory cannot be made: {error.strerror}.",
                where=str(self.path),
                fix="choose another --out.",
            ) from error

    @classmethod
    def create(cls, root: Path | str, kind: Kind, name: str) -> RunWriter:
        """A new directory under `root`, named by time, kind and name; never one that exists."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        base, number = f"{stamp}-{kind}-{_safe(name)}", 0
        while True:
            path = Path(root) / (base if number == 0 else f"{base}-{number}")
            try:
                return cls(path, kind, name)
            except InputError:
                number += 1

    def child(self, name: str, kind: Kind) -> RunWriter:
        """A run within this run."""
        return RunWriter(inside(self.path, f"rounds/{name}"), kind, name)

    def add_inputs(self, files: Iterable[tuple[Path | str, str]]) -> None:
        """Copy the (file, role) pairs that the run depends on, and note their hashes.

        Files of equal content share their storage: the traces of many ranks often are alike.

        Raises:
            InputError: a file cannot be read.
        """
        for source, role in files:
            copy = self._place_for(Path(source).name, role)
            digest = self._copy(Path(source), copy)
            relative = copy.relative_to(self.path)
            self._meta["inputs"].append({"role": role, "given": str(source), "copy": str(relative), "sha256": digest})
        self._save_meta(self.path)

    def add_input(self, path: Path | str, role: str) -> None:
        """One of `add_inputs`."""
        self.add_inputs([(path, role)])

    def _place_for(self, name: str, role: str) -> Path:
        """inputs/ROLE/NAME; a second file of that name and role goes to inputs/ROLE-2/NAME."""
        number, folder = 1, _safe(role)
        while True:
            copy = self._input_folder(folder) / _safe(name)
            if not copy.exists():
                return copy
            number += 1
            folder = f"{_safe(role)}-{number}"

    def _input_folder(self, name: str) -> Path:
        folder = self._folders.get(name)
        if folder is None:
            folder = self._folders[name] = inside(self.path, f"inputs/{name}")
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _linked(self, source: Path, copy: Path) -> str | None:
        """Link `copy` to an earlier copy of the same bytes, and tell their hash; None if there is none, or no links."""
        if not self._copies or not source.is_file() or source.stat().st_size > _READ_WHOLE_BYTES:
            return None
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        same = self._copies.get(digest)
        if same is None:
            return None
        try:
            copy.hardlink_to(same)
        except OSError:
            return None
        return digest

    def _copy(self, source: Path, copy: Path) -> str:
        try:
            digest = self._linked(source, copy)
            if digest is not None:
                return digest
            with source.open("rb") as file:
                write_whole(copy, lambda partial: _pour(file, partial))
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}.", where=str(source)) from error
        with copy.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        same = self._copies.setdefault(digest, copy)
        if same != copy:
            with contextlib.suppress(NotReadyError):  # where there are no links, the copy stays
                write_whole(copy, lambda partial: partial.hardlink_to(same))
        return digest

    def save_timeline(self, timeline: Timeline) -> None:
        """The three tables of a timeline, and what else it says."""
        save_timeline(self.path, timeline)

    def save_table(self, name: str, table: Columns | Mapping[str, Any]) -> None:
        """A table, as NAME.parquet."""
        write_table(inside(self.path, f"{_safe(name)}.parquet"), table)

    def save_rounds(self, rounds: Sequence[Mapping[str, Any]]) -> None:
        """A loop's rounds as a table: one row a round and fitted parameter (see `rounds_columns`)."""
        self.save_table("rounds", rounds_columns(rounds))

    def save_text(self, name: str, text: str) -> Path:
        """A text file of the run's."""
        target = inside(self.path, name)
        write_text(target, text)
        return target

    def note(self, *texts: str) -> None:
        """Remarks for whoever reads the run."""
        self._meta["notes"] += texts
        self._save_meta(self.path)

    def add_environment(self, **more: Any) -> None:
        """What else the run ran on (`sysctls`, `fabric`, ...)."""
        self._meta["environment"] |= more
        self._save_meta(self.path)

    def describe(self, **more: Any) -> None:
        """Further keys of run.json (`testbed`, `replay`, ...)."""
        self._meta.update(more)
        self._save_meta(self.path)

    def finish(self, status: str, results: Mapping[str, Any], checks: list[dict[str, Any]] | None = None) -> None:
        """Say how it ended ("running": it goes on, these are the results so far)."""
        self._meta |= {"status": status, "finished": _now(), "results": dict(results), "checks": checks or []}
        self._save_meta(self.path)

    def _save_meta(self, folder: Path) -> None:
        write_text(folder / META, _as_text(self._meta) + "\n")


def rounds_columns(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rounds as columns, one row a round and fitted parameter.

    Columns: round, predicted_ns, measured_ns, error (signed, relative), parameter, value, unit, stderr, low, high (of
    the 95 % interval), samples, run (path within the loop's directory). A round without parameters has one row.
    """
    lone: dict[str, Any] = {"name": None, "unit": None, "samples": 0}
    pairs = [(row, parameter) for row in rounds for parameter in row["fitted"] or [lone]]

    def numbers(key: str) -> NDArray[np.float64]:
        return np.array([np.nan if p.get(key) is None else p[key] for _, p in pairs], np.float64)

    def texts(values: list[str | None]) -> NDArray[np.object_]:
        return np.array(values, object)

    return {
        "round": np.array([row["round"] for row, _ in pairs], np.int64),
        "predicted_ns": np.array([row["predicted_ns"] for row, _ in pairs], np.int64),
        "measured_ns": np.array([row["measured_ns"] for row, _ in pairs], np.int64),
        "error": np.array([row["error"] for row, _ in pairs], np.float64),
        "parameter": texts([p["name"] for _, p in pairs]),
        "value": numbers("value"),
        "unit": texts([p["unit"] for _, p in pairs]),
        "stderr": numbers("stderr"),
        "low": numbers("low"),
        "high": numbers("high"),
        "samples": np.array([p["samples"] for _, p in pairs], np.int64),
        "run": texts([row["run"] for row, _ in pairs]),
    }


def _pour(source: BinaryIO, path: Path) -> None:
    with path.open("wb") as target:
        shutil.copyfileobj(source, target)


def _plain(value: Any) -> Any:
    """Numpy scalars in JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written to run.json")


_ENCODER: Final = json.JSONEncoder(default=_plain)


def _as_text(value: Any, depth: int = 0) -> str:
    """JSON for people: an entry a line, what is in a list on one line; quick for lists of thousands."""
    if not value or not isinstance(value, dict | list):
        return _ENCODER.encode(value)
    pad, end = " " * (depth + 1), " " * depth
    if isinstance(value, list):
        return "[\n" + ",\n".join(pad + _ENCODER.encode(item) for item in value) + f"\n{end}]"
    lines = [f"{pad}{_ENCODER.encode(str(key))}: {_as_text(item, depth + 1)}" for key, item in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{end}}}"


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name).lstrip(".") or "run"


def inside(root: Path, name: str) -> Path:
    """A path below `root`.

    Raises:
        InputError: the name leads elsewhere.
    """
    path = root / name
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{name!r} leads out of the run directory.", where=str(root))
    return path


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory, opened. `meta` is the content of run.json."""

    path: Path
    meta: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """simulate, replay, loop, fit or validate."""
        return str(self.meta["kind"])

    @property
    def name(self) -> str:
        """What was run: the experiment's or workload's name."""
        return str(self.meta["name"])

    @property
    def status(self) -> str:
        """ok, failed, partial or damaged; a run that never finished counts as partial."""
        status = str(self.meta["status"])
        return Status.PARTIAL.value if status == RUNNING else status

    @property
    def results(self) -> Mapping[str, Any]:
        """What the run found."""
        results: Mapping[str, Any] = self.meta["results"]
        return results

    @property
    def has_timeline(self) -> bool:
        """Whether `timeline` will find one."""
        return has_timeline(self.path)

    def timeline(self) -> Timeline:
        """The run's timeline.

        Raises:
            InputError: the run has none, or it is damaged.
        """
        if not self.has_timeline:
            raise InputError(f"a run of kind {self.kind} that holds no timeline.", where=str(self.path))
        return load_timeline(self.path)

    def tables(self) -> list[str]:
        """Names of its tables."""
        return sorted(path.stem for path in self.path.glob("*.parquet"))

    def table(self, name: str) -> dict[str, NDArray[Any]]:
        """A table's columns.

        Raises:
            InputError: not in this run, or damaged.
        """
        return read_table(inside(self.path, f"{name}.parquet"))

    def inputs(self, role: str) -> list[Path]:
        """The run's own copies of the files that it was given in that role."""
        return [inside(self.path, entry["copy"]) for entry in self.meta["inputs"] if entry["role"] == role]

    def child(self, name: str) -> Run:
        """A run within this run, by its path from here.

        Raises:
            InputError: not one, or the path leads elsewhere.
        """
        return open_run(inside(self.path, name))

    def children(self) -> list[Run]:
        """Runs within this run, by round. One that cannot be opened has status "damaged" and says why in its notes."""
        folder = self.path / "rounds"
        if not folder.is_dir():
            return []
        found = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
        return [_child(path) for path in sorted(found, key=_natural)]


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts 2-replay before 10-replay."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", path.name)]


def _child(path: Path) -> Run:
    try:
        return open_run(path)
    except InputError as error:
        empty = {key: kind() for key, kind in _KEYS.items()}
        return Run(path, empty | {"name": path.name, "status": "damaged", "notes": [str(error)]})


def open_run(path: Path | str) -> Run:
    """Open a run directory.

    Raises:
        InputError: not one, damaged, or written by a newer Genie.
    """
    path = Path(path)
    where = str(path)
    try:
        meta = json.loads((path / META).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError("is no run directory: it has no run.json.", where=where) from error
    except ValueError as error:
        raise InputError("run.json is damaged.", where=where) from error
    if not isinstance(meta, dict) or "format" not in meta:
        raise InputError("run.json is no run's.", where=where)
    _check_format(str(meta["format"]), where)
    for key, kind in _KEYS.items():
        if not isinstance(meta.get(key), kind):
            raise InputError(f"run.json is damaged: {key} is missing or no {kind.__name__}.", where=where)
    return Run(path, meta)


def _check_format(text: str, where: str) -> None:
    major, _, minor = text.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        raise InputError(f"run.json is no run's: format {text!r}.", where=where)
    if int(major) > FORMAT[0]:
        raise InputError(
            f"the run has format {text}, this Genie reads formats up to {FORMAT[0]}.x.",
            where=where,
            fix="update Genie.",
        )
