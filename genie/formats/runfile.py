"""Run directories: everything that a run was given, did and found, from which each table and plot can be made again.

::

    runs/20261201T120000Z-loop-quickstart/
      run.json                 format, kind, status, versions, environment, inputs with hashes, results, checks
      inputs/                  copies of the files that the run was given
      ranks.parquet operators.parquet messages.parquet    the timeline
      <name>.parquet           other tables
      rounds/0-simulate/ ...   runs within this run

Files appear under their names only when they are whole. docs/run-directory.md describes every key.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np

from genie import __version__
from genie.core.columns import Columns
from genie.core.timeline import Messages, Operators, Ranks, Status, Timeline
from genie.errors import InputError, NotReadyError

FORMAT: Final = 1
META: Final = "run.json"
_TABLES: Final = {"ranks": Ranks, "operators": Operators, "messages": Messages}
_PACKAGES: Final = ("numpy", "scipy", "pandas", "pyarrow", "protobuf", "pydantic", "pyroute2", "click")


def _environment() -> dict[str, Any]:
    return {
        "python": sys.version.split()[0],
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class RunWriter:
    """Writes a run directory; `run.json` says "running" until `finish` is called."""

    def __init__(self, path: Path, kind: str, name: str) -> None:
        try:
            path.mkdir(parents=True)
        except FileExistsError as error:
            raise InputError("the run directory exists already.", where=str(path)) from error
        except OSError as error:
            raise NotReadyError(
                f"the run directory cannot be made: {error.strerror}.", where=str(path), fix="choose another --out."
            ) from error
        self.path = path
        self._meta: dict[str, Any] = {
            "format": FORMAT,
            "genie": __version__,
            "kind": kind,
            "name": name,
            "status": "running",
            "created": _now(),
            "command": ["genie", *sys.argv[1:]],
            "environment": _environment(),
            "inputs": [],
            "results": {},
            "checks": [],
            "notes": [],
        }
        self._save_meta()

    @classmethod
    def create(cls, root: Path | str, kind: str, name: str) -> RunWriter:
        """A new directory under `root`, named by time, kind and name; never one that exists."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        base, number = f"{stamp}-{kind}-{_safe(name)}", 0
        while True:
            path = Path(root) / (base if number == 0 else f"{base}-{number}")
            if not path.exists():
                return cls(path, kind, name)
            number += 1

    def child(self, name: str, kind: str) -> RunWriter:
        """A run within this run."""
        return RunWriter(inside(self.path, f"rounds/{name}"), kind, name)

    def add_input(self, path: Path | str, role: str) -> None:
        """Copy a file that the run depends on, and note its hash."""
        source = Path(path)
        data = source.read_bytes()
        number = len(self._meta["inputs"])
        copy = inside(self.path, f"inputs/{number:03d}-{_safe(source.name)}")
        copy.parent.mkdir(exist_ok=True)
        _write_whole(copy, data)
        self._meta["inputs"].append(
            {
                "role": role,
                "given": str(path),
                "copy": str(copy.relative_to(self.path)),
                "sha256": hashlib.sha256(data).hexdigest(),
            }
        )

    def save_timeline(self, timeline: Timeline) -> None:
        """The three tables of a timeline, and what else it says."""
        for name in _TABLES:
            self.save_table(name, getattr(timeline, name))
        self._meta["timeline"] = {
            "executor": timeline.executor,
            "measured": timeline.measured,
            "status": timeline.status.value,
            "notes": list(timeline.notes),
        }
        self._save_meta()

    def save_table(self, name: str, table: Columns | Mapping[str, Any]) -> None:
        """A table as Parquet."""
        import pyarrow as pa  # noqa: PLC0415 - heavy, needed only when tables are written
        import pyarrow.parquet as pq  # noqa: PLC0415

        columns = table.columns() if isinstance(table, Columns) else table
        arrays = {key: _arrow(pa, column) for key, column in columns.items()}
        target = inside(self.path, f"{_safe(name)}.parquet")
        partial = target.with_suffix(".partial")
        pq.write_table(pa.table(arrays), partial, compression="zstd")
        partial.rename(target)

    def save_text(self, name: str, text: str) -> Path:
        """A text file of the run's."""
        target = inside(self.path, name)
        _write_whole(target, text.encode())
        return target

    def note(self, text: str) -> None:
        """A remark for whoever reads the run."""
        self._meta["notes"].append(text)

    def describe(self, **more: Any) -> None:
        """Further keys of run.json (`testbed`, `replay`, ...)."""
        self._meta.update(more)
        self._save_meta()

    def finish(self, status: str, results: Mapping[str, Any], checks: list[dict[str, Any]] | None = None) -> None:
        """Say how it ended."""
        self._meta |= {"status": status, "finished": _now(), "results": dict(results), "checks": checks or []}
        self._save_meta()

    def _save_meta(self) -> None:
        _write_whole(self.path / META, json.dumps(self._meta, indent=1, default=_plain).encode())


def _arrow(pa: Any, column: Any) -> Any:
    column = np.asarray(column)
    if column.dtype == object:
        return pa.array([str(value) for value in column.tolist()], pa.string())
    return pa.array(column)


def _plain(value: Any) -> Any:
    """Numpy scalars in JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written to run.json")


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


def _write_whole(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.rename(path)


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory, opened. `meta` is the content of run.json."""

    path: Path
    meta: Mapping[str, Any]

    @property
    def status(self) -> str:
        """ok, failed, partial; a run that never finished counts as partial."""
        status = str(self.meta["status"])
        return Status.PARTIAL.value if status == "running" else status

    @property
    def results(self) -> Mapping[str, Any]:
        """What the run found."""
        results: Mapping[str, Any] = self.meta["results"]
        return results

    def table(self, name: str) -> dict[str, Any]:
        """A table's columns.

        Raises:
            InputError: not in this run, or damaged.
        """
        import pyarrow as pa  # noqa: PLC0415 - heavy, needed only when tables are read
        import pyarrow.parquet as pq  # noqa: PLC0415

        path = inside(self.path, f"{name}.parquet")
        if not path.is_file():
            raise InputError(f"the run has no table {name}.", where=str(self.path))
        try:
            table = pq.read_table(path)
        except (pa.ArrowException, OSError) as error:
            raise InputError("the table is damaged.", where=str(path)) from error
        return {key: table.column(key).to_numpy() for key in table.column_names}

    def timeline(self) -> Timeline:
        """The run's timeline.

        Raises:
            InputError: the run has none, or it is damaged.
        """
        about = self.meta.get("timeline")
        if about is None:
            raise InputError(f"a run of kind {self.meta['kind']} that holds no timeline.", where=str(self.path))
        tables: dict[str, Any] = {name: kind(**self.table(name)) for name, kind in _TABLES.items()}
        return Timeline(
            executor=about["executor"],
            measured=about["measured"],
            status=Status(about["status"]),
            notes=tuple(about["notes"]),
            **tables,
        )

    def children(self) -> list[Run]:
        """Runs within this run, by name."""
        folder = self.path / "rounds"
        return (
            [open_run(path) for path in sorted(folder.iterdir()) if (path / META).is_file()] if folder.is_dir() else []
        )


def open_run(path: Path | str) -> Run:
    """Open a run directory.

    Raises:
        InputError: not one, damaged, or written by a newer Genie.
    """
    path = Path(path)
    try:
        meta = json.loads((path / META).read_text(encoding="utf-8"))
    except (OSError, NotADirectoryError) as error:
        raise InputError("is no run directory: it has no run.json.", where=str(path)) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError("run.json is damaged.", where=str(path)) from error
    if not isinstance(meta, dict) or not isinstance(meta.get("format"), int):
        raise InputError("run.json is no run's.", where=str(path))
    if meta["format"] > FORMAT:
        raise InputError(
            f"the run has format {meta['format']}, this Genie reads up to {FORMAT}.",
            where=str(path),
            fix="update Genie.",
        )
    return Run(path, meta)
