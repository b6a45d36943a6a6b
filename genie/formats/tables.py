"""Tables and timelines as Parquet files. A file appears under its name only when it is whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from genie.core.columns import Columns
from genie.core.timeline import Messages, Operators, Ranks, Status, Timeline
from genie.errors import InputError, NotReadyError

MAX_ROWS: Final = 1_000_000_000
"""A file that claims more is damaged, or not ours: no memory is taken for it."""

TIMELINE: Final = "timeline.json"

_Table = TypeVar("_Table", bound=Columns)


def write_whole(path: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write a file beside `path`, then rename it: whoever looks sees nothing, the old file or all of it.

    Raises:
        NotReadyError: it cannot be written (no space, no permission).
    """
    partial = path.with_name(path.name + ".partial")
    try:
        fill(partial)
        partial.rename(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        why = error.strerror or str(error)
        raise NotReadyError(
            f"cannot be written: {why}.", where=str(path), fix="make room, or write elsewhere."
        ) from error


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    write_whole(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def write_table(path: Path, table: Columns | Mapping[str, Any]) -> None:
    """A table as Parquet; object columns are strings (None: absent)."""
    import pyarrow as pa  # noqa: PLC0415 - heavy, needed only when tables are written
    import pyarrow.parquet as pq  # noqa: PLC0415

    columns = table.columns() if isinstance(table, Columns) else table
    arrays = {name: _arrow(pa, column) for name, column in columns.items()}
    write_whole(path, lambda partial: pq.write_table(pa.table(arrays), partial, compression="zstd"))


def _arrow(pa: Any, column: Any) -> Any:
    """Arrays are handed over as they lie in memory: `pyarrow.array` would import pandas for them, half a second."""
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "iufO":
        return pa.array(column)
    if column.dtype.kind == "O":
        return _strings(pa, column.tolist())
    data = pa.py_buffer(np.ascontiguousarray(column))
    return pa.Array.from_buffers(pa.from_numpy_dtype(column.dtype), len(column), [None, data])


def _strings(pa: Any, texts: list[str | None]) -> Any:
    """A column of strings, None where there is none."""
    pieces = [b"" if text is None else text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    wide = ends[-1] > np.iinfo(np.int32).max
    missing = np.array([text is None for text in texts], bool)
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
    places = pa.py_buffer(ends if wide else ends.astype(np.int32))
    kind = pa.large_string() if wide else pa.string()
    return pa.Array.from_buffers(kind, len(texts), [valid, places, pa.py_buffer(b"".join(pieces))])


def read_table(path: Path) -> dict[str, NDArray[Any]]:
    """A table's columns.

    Raises:
        InputError: no such file, or it is damaged.
    """
    import pyarrow as pa  # noqa: PLC0415 - heavy, needed only when tables are read
    import pyarrow.parquet as pq  # noqa: PLC0415

    if not path.is_file():
        raise InputError("there is no such table.", where=str(path))
    try:
        rows = pq.read_metadata(path).num_rows
        if rows > MAX_ROWS:
            raise InputError(f"the table claims {rows:,} rows; {MAX_ROWS:,} are the limit.", where=str(path))
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path) from error
    return {name: table.column(name).to_numpy() for name in table.column_names}


def _damaged(path: Path, why: str = "it is cut off, or no Parquet file") -> InputError:
    return InputError(f"the table is damaged: {why}.", where=str(path), fix="make the run again.")


def read_columns(path: Path, kind: type[_Table]) -> _Table:
    """A table of known columns; others that a later Genie may have added are left out.

    Raises:
        InputError: no such file, damaged, or a column is missing or of another type.
    """
    found = read_table(path)
    missing = [name for name in kind.SCHEMA if name not in found]
    if missing:
        raise _damaged(path, f"it has no column {', '.join(missing)}")
    try:
        return kind(**{name: found[name] for name in kind.SCHEMA})
    except (TypeError, ValueError, OverflowError) as error:
        raise _damaged(path, f"a column is of another type ({error})") from error


def save_timeline(folder: Path, timeline: Timeline) -> None:
    """Write ranks, operators and messages as Parquet into an existing folder, timeline.json last."""
    for name, table in (("ranks", timeline.ranks), ("operators", timeline.operators), ("messages", timeline.messages)):
        write_table(folder / f"{name}.parquet", table)
    about = {
        "executor": timeline.executor,
        "measured": timeline.measured,
        "status": timeline.status.value,
        "notes": list(timeline.notes),
    }
    write_text(folder / TIMELINE, json.dumps(about, indent=1) + "\n")


def has_timeline(folder: Path) -> bool:
    """Whether `load_timeline` will find one."""
    return (folder / TIMELINE).is_file()


def load_timeline(folder: Path) -> Timeline:
    """The timeline that `save_timeline` wrote.

    Raises:
        InputError: there is none, or it is damaged.
    """
    path = folder / TIMELINE
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return Timeline(
            executor=about["executor"],
            measured=bool(about["measured"]),
            ranks=read_columns(folder / "ranks.parquet", Ranks),
            operators=read_columns(folder / "operators.parquet", Operators),
            messages=read_columns(folder / "messages.parquet", Messages),
            status=Status(about["status"]),
            notes=tuple(about["notes"]),
        )
    except FileNotFoundError as error:
        raise InputError("there is no timeline here.", where=str(folder)) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError("timeline.json is damaged.", where=str(path)) from error
