"""Tables as frozen sets of equally long numpy columns: what makes a million rows ordinary."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from genie.errors import InternalError


class Columns:
    """Base of frozen dataclasses whose fields are one-dimensional arrays of one length.

    A subclass lists its dtypes in ``SCHEMA``, in field order; construction converts and checks, and makes every
    column read-only.
    """

    SCHEMA: ClassVar[dict[str, Any]] = {}

    def __post_init__(self) -> None:
        lengths = set()
        for name, dtype in self.SCHEMA.items():
            column = np.array(getattr(self, name), dtype=dtype, copy=None)
            column.flags.writeable = False
            object.__setattr__(self, name, column)
            lengths.add(len(column))
        if len(lengths) > 1:
            raise InternalError(f"columns of {type(self).__name__} differ in length: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(getattr(self, next(iter(self.SCHEMA))))

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns by name, in schema order."""
        return {name: getattr(self, name) for name in self.SCHEMA}

    def take(self, rows: NDArray[Any]) -> Self:
        """The chosen rows (indices or a boolean mask)."""
        return type(self)(**{name: column[rows] for name, column in self.columns().items()})

    @classmethod
    def empty(cls) -> Self:
        """A table with no rows."""
        return cls(**{name: np.empty(0, dtype) for name, dtype in cls.SCHEMA.items()})

    @classmethod
    def concat(cls, tables: list[Self]) -> Self:
        """All rows of `tables`, one after the other."""
        if not tables:
            return cls.empty()
        return cls(**{name: np.concatenate([getattr(t, name) for t in tables]) for name in cls.SCHEMA})

    @classmethod
    def from_rows(cls, rows: list[tuple[Any, ...]]) -> Self:
        """A table from tuples in schema order."""
        if not rows:
            return cls.empty()
        return cls(**dict(zip(cls.SCHEMA, zip(*rows, strict=True), strict=True)))


def csr_from_lists(lists: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Compressed sparse rows: offsets (n + 1) and values."""
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(row) for row in lists], out=offsets[1:])
    return offsets, np.fromiter((v for row in lists for v in row), np.int64, int(offsets[-1]))


def csr_transpose(
    offsets: NDArray[np.int64], values: NDArray[np.int64], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Turn "row -> what it depends on" into "row -> what depends on it" (values ascending)."""
    rows = np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
    order = np.argsort(values, kind="stable")
    counts = np.bincount(values, minlength=size)
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64), rows[order]
