"""Reading what can be read of a trace that holds bad nodes, and telling of every bad attribute."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from genie.core.workload import Nodes
from genie.errors import InputError
from genie.formats.chakra import NodeError, Part, RawTrace, decode_nodes, join_csr, version_of
from genie.formats.chakra_schema import Node
from genie.formats.frames import Frames, read_frames
from genie.formats.wire import PAD_BYTES

_BLOCK_NODES: Final = 1 << 17


def read_sound(path: Path | str, most: int) -> tuple[RawTrace | None, list[NodeError]]:
    """A trace without the nodes that cannot be read, and what is wrong with those: every bad attribute of each.

    Args:
        path: the file.
        most: bad nodes that are told of; when there are more, reading ends and the trace is None.

    Raises:
        InputError: as `read_raw`, for what concerns the file as a whole.
    """
    frames = read_frames(path)
    version, count = version_of(frames), len(frames) - 1
    if not count:
        raise InputError("the trace has no nodes.", where=str(path), fix="generate the trace again.")
    sound = _Sound(frames, most)
    for at in range(0, count, _BLOCK_NODES):
        sound.read(at, min(at + _BLOCK_NODES, count))
    problems = sorted(sound.problems, key=lambda problem: problem.frame)
    if not sound.parts or sound.bad > most:
        return None, problems
    parts = sorted(sound.parts, key=lambda part: part[0])
    numbers = np.concatenate([np.arange(begin, begin + len(part.nodes)) + 1 for begin, part in parts])
    return _joined(frames, version, [part for _, part in parts], numbers), problems


class _Sound:
    """Reads what can be read: a block that holds a bad node is read again in the two parts beside it."""

    def __init__(self, frames: Frames, most: int) -> None:
        self.frames, self.most, self.bad = frames, most, 0
        self.parts: list[tuple[int, Part]] = []
        self.problems: list[NodeError] = []

    def read(self, begin: int, end: int) -> None:
        """The nodes from `begin` to `end`, until too many were bad."""
        todo = [(begin, end)]
        while todo and self.bad <= self.most:
            begin, end = todo.pop()
            try:
                if begin < end:
                    self.parts.append((begin, decode_nodes(self.frames, begin, end)))
            except NodeError as error:
                self.bad += 1
                if self.bad <= self.most:
                    self.problems += _problems(self.frames, error)
                todo += [(error.frame, end), (begin, error.frame - 1)]


def _problems(frames: Frames, error: NodeError) -> list[NodeError]:
    """Each attribute of a bad node by itself; the error as it is where that does not tell more."""
    try:
        node = Node.FromString(frames.content(error.frame))
    except DecodeError:
        return [error]
    attributes = list(node.attr)
    del node.attr[:]
    if bare := _problem(frames, error.frame, node):
        return [bare]
    found = []
    for attribute in attributes:
        del node.attr[:]
        node.attr.append(attribute)
        if problem := _problem(frames, error.frame, node):
            found.append(problem)
    return found or [error]


def _problem(frames: Frames, frame: int, node: Any) -> NodeError | None:
    try:
        decode_nodes(_alone(frames, frame, node.SerializeToString()), 0, 1)
    except NodeError as problem:
        return NodeError(problem, frame, problem.node_id, problem.name)
    return None


def _alone(frames: Frames, frame: int, content: bytes) -> Frames:
    """A node as if its file held no other, with the place that it has."""
    offset = np.array([0, frames.offset[frame]])
    start, stop = np.zeros(2, np.int64), np.array([0, len(content)])
    return _OneFrame(frames.source, bytearray(content) + bytes(PAD_BYTES), offset, start, stop, frame)


@dataclass(frozen=True, slots=True, eq=False)
class _OneFrame(Frames):
    """Frames of which the only node is number `frame` of a file."""

    frame: int = 1

    def where(self, _: int) -> str:
        return f"{self.source}, frame {self.frame}, byte {self.offset[1]}"


def _joined(frames: Frames, version: str, parts: list[Part], numbers: NDArray[np.int64]) -> RawTrace:
    data, ctrl = (join_csr([getattr(part, name) for part in parts]) for name in ("data", "ctrl"))
    return RawTrace(
        source=str(frames.source),
        version=version,
        nodes=Nodes.concat([part.nodes for part in parts]),
        data_offsets=data[0],
        data_ids=data[1],
        ctrl_offsets=ctrl[0],
        ctrl_ids=ctrl[1],
        own_rank=np.concatenate([part.own_rank for part in parts]),
        frames=numbers,
        offsets=frames.offset[numbers],
    )
