"""What one rank saw in one iteration, as columns that travel to the launcher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from genie.core.columns import Columns
from genie.errors import RunError


@dataclass(frozen=True, slots=True, eq=False)
class OperatorRows(Columns):
    """Operators issued: row, virtual issue and end (-1: not yet), how late it was issued."""

    SCHEMA: ClassVar[dict[str, Any]] = dict.fromkeys(("row", "issue_ns", "done_ns", "late_ns"), np.int64)

    row: NDArray[np.int64]
    issue_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]
    late_ns: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SendRows(Columns):
    """Messages sent; times virtual, -1 where not (yet) known. `caused_ns`: when the engine could have posted it."""

    SCHEMA: ClassVar[dict[str, Any]] = dict.fromkeys(
        (
            "peer",
            "tag",
            "size_bytes",
            "index",
            "flow",
            "node_id",
            "chunk",
            "phase",
            "step",
            "caused_ns",
            "posted_ns",
            "acknowledged_ns",
        ),
        np.int64,
    )

    peer: NDArray[np.int64]
    tag: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    index: NDArray[np.int64]
    flow: NDArray[np.int64]
    node_id: NDArray[np.int64]
    chunk: NDArray[np.int64]
    phase: NDArray[np.int64]
    step: NDArray[np.int64]
    caused_ns: NDArray[np.int64]
    posted_ns: NDArray[np.int64]
    acknowledged_ns: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ReceiveRows(Columns):
    """Messages received; times virtual."""

    SCHEMA: ClassVar[dict[str, Any]] = dict.fromkeys(
        ("peer", "tag", "size_bytes", "index", "flow", "first_byte_ns", "delivered_ns"), np.int64
    )

    peer: NDArray[np.int64]
    tag: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    index: NDArray[np.int64]
    flow: NDArray[np.int64]
    first_byte_ns: NDArray[np.int64]
    delivered_ns: NDArray[np.int64]


_WIRE: Final = np.dtype("<i8")
_HEAD: Final = 5
"""finish_ns, compute_ns, then the rows of the three tables."""


@dataclass(frozen=True, slots=True, eq=False)
class RankRecord:
    """One rank, one iteration. `finish_ns` and `compute_ns` are -1 if it did not finish."""

    finish_ns: int
    compute_ns: int
    operators: OperatorRows
    sends: SendRows
    receives: ReceiveRows

    def to_bytes(self) -> bytes:
        """Little-endian int64 throughout: the head, then every column of every table in schema order."""
        tables = (self.operators, self.sends, self.receives)
        head = np.array([self.finish_ns, self.compute_ns, *map(len, tables)])
        columns = [column for table in tables for column in table.columns().values()]
        return np.concatenate([head, *columns]).astype(_WIRE, copy=False).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> RankRecord:
        """The inverse of `to_bytes`.

        Raises:
            RunError: the bytes are no record.
        """
        if len(data) % _WIRE.itemsize or len(data) < _HEAD * _WIRE.itemsize:
            raise RunError("a rank's record is cut short.")
        numbers = np.frombuffer(data, _WIRE).astype(np.int64)
        finish_ns, compute_ns, *rows = numbers[:_HEAD].tolist()
        widths = (len(OperatorRows.SCHEMA), len(SendRows.SCHEMA), len(ReceiveRows.SCHEMA))
        lengths = [count * width for count, width in zip(rows, widths, strict=True)]
        if min(rows) < 0 or _HEAD + sum(lengths) != len(numbers):
            raise RunError("a rank's record is not as long as it says.")
        operators, sends, receives, _ = np.split(numbers[_HEAD:], np.cumsum(lengths))
        return cls(
            finish_ns,
            compute_ns,
            _table(OperatorRows, operators, rows[0]),
            _table(SendRows, sends, rows[1]),
            _table(ReceiveRows, receives, rows[2]),
        )


def _table(kind: Any, numbers: NDArray[np.int64], rows: int) -> Any:
    return kind(**dict(zip(kind.SCHEMA, numbers.reshape(len(kind.SCHEMA), rows), strict=True)))
