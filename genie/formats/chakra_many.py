"""Reading the traces of many ranks: equal files once, small ones together, since a job of thousands has either.

Decoding a file costs a millisecond however small it is, as it is done column by column. So small files are put one
after another and decoded as if they were one. If anything is wrong in any of them, they are read one by one, so that
the error names file, frame and byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from genie.core.workload import Nodes, RankTrace
from genie.errors import InputError
from genie.formats.chakra import RawTrace, decode_nodes, read_raw, read_trace, resolve, version_of
from genie.formats.frames import Frames, read_frames
from genie.formats.wire import PAD_BYTES

SMALL_BYTES: Final = 1 << 18
"""Files up to this size are decoded together,"""

BATCH_BYTES: Final = 1 << 24
"""up to this many bytes at a time."""


def read_traces(files: Mapping[int, Path]) -> tuple[RankTrace, ...]:
    """The traces of all ranks in the mapping, in its order; ranks whose files are equal share their columns.

    Raises:
        InputError: as `read_trace`, for the first file that is wrong.
    """
    same_as = _first_of_equals(files.values())
    distinct = list(dict.fromkeys(same_as.values()))
    read = dict(zip(distinct, _read(distinct), strict=True))
    return tuple(replace(read[same_as[path]], rank=rank, source=str(path)) for rank, path in files.items())


def _first_of_equals(paths: Iterable[Path]) -> dict[Path, Path]:
    """For every file the first one of equal bytes; a file that cannot be read is equal to none."""
    paths = list(paths)
    if len(paths) == 1:
        return {paths[0]: paths[0]}
    first: dict[bytes, Path] = {}
    return {path: first.setdefault(_digest(path), path) for path in paths}


def _digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").digest()
    except OSError:
        return str(path).encode()


def _read(paths: list[Path]) -> Iterator[RankTrace]:
    """The traces of distinct files, in order; the rank is for the caller to set."""
    if len(paths) == 1:
        yield read_trace(paths[0], 0)
        return
    for batch in _batches(paths):
        try:
            yield from [resolve(raw, 0) for raw in _decode_together(batch)] if len(batch) > 1 else _singly(batch)
        except InputError:
            yield from _singly(batch)


def _singly(paths: list[Path]) -> list[RankTrace]:
    return [resolve(read_raw(path), 0) for path in paths]


def _batches(paths: list[Path]) -> Iterator[list[Path]]:
    batch: list[Path] = []
    left = BATCH_BYTES
    for path in paths:
        size = path.stat().st_size if path.is_file() else BATCH_BYTES
        if batch and (size > SMALL_BYTES or size > left):
            yield batch
            batch, left = [], BATCH_BYTES
        batch.append(path)
        left = left - size if size <= SMALL_BYTES else 0
    yield batch


def _decode_together(paths: list[Path]) -> list[RawTrace]:
    """Raises InputError without saying where."""
    files = [read_frames(path) for path in paths]
    counts = np.array([len(file) - 1 for file in files])
    if not counts.all():
        raise InputError("one of the traces has no nodes.")
    together = _joined(files)
    part = decode_nodes(together, 0, int(counts.sum()))
    ends = np.cumsum(counts)
    raws = []
    for file, begin, end in zip(files, (ends - counts).tolist(), ends.tolist(), strict=True):
        rows = slice(begin, end)
        nodes = Nodes(**{name: column[rows] for name, column in part.nodes.columns().items()})
        (data_offsets, data_ids), (ctrl_offsets, ctrl_ids) = (
            (offsets[begin : end + 1] - offsets[begin], values[offsets[begin] : offsets[end]])
            for offsets, values in (part.data, part.ctrl)
        )
        raws.append(
            RawTrace(
                source=str(file.source),
                version=version_of(file),
                nodes=nodes,
                data_offsets=data_offsets,
                data_ids=data_ids,
                ctrl_offsets=ctrl_offsets,
                ctrl_ids=ctrl_ids,
                own_rank=part.own_rank[rows],
                frames=np.arange(1, end - begin + 1),
                offsets=file.offset[1:],
            )
        )
    return raws


def _joined(files: list[Frames]) -> Frames:
    """All nodes of the files as the frames of one, behind the metadata of the first."""
    data, shifts = bytearray(), []
    for file in files:
        shifts.append(len(data))
        data += memoryview(file.data)[:-PAD_BYTES]
    data += bytes(PAD_BYTES)
    columns = []
    for name in ("offset", "start", "stop"):
        parts = [getattr(file, name)[1:] + shift for file, shift in zip(files, shifts, strict=True)]
        columns.append(np.concatenate([getattr(files[0], name)[:1], *parts]))
    return Frames(files[0].source, data, *columns)
