"""A GPU run's Kineto traces (PyTorch profiler, JSON or JSON.gz, one file a rank) as a measured Timeline.

Every GPU kernel becomes an operator: NCCL's collectives by kind, size and group as their arguments say, all others
computes. Iterations are the profiler's steps where the GPU's annotations mark them (`ProfilerStep#N`), else there is
one. Each rank's times start at its own first kernel of the step, since a trace knows only its host's clock. There are
no messages: NCCL does not tell them.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from genie.core.timeline import Messages, Operators, Ranks, Timeline
from genie.core.workload import NONE, CollectiveKind, NodeKind
from genie.errors import InputError
from genie.units import us_to_ns

MAX_BYTES: Final = 4 << 30
_STEP: Final = re.compile(r"ProfilerStep#(\d+)")
_KINDS: Final = {
    "allreduce": CollectiveKind.ALL_REDUCE,
    "allgather": CollectiveKind.ALL_GATHER,
    "allgatherbase": CollectiveKind.ALL_GATHER,
    "reducescatter": CollectiveKind.REDUCE_SCATTER,
    "reducescatterbase": CollectiveKind.REDUCE_SCATTER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "alltoallv": CollectiveKind.ALL_TO_ALL,
    "alltoallbase": CollectiveKind.ALL_TO_ALL,
    "broadcast": CollectiveKind.BROADCAST,
    "reduce": CollectiveKind.REDUCE,
    "barrier": CollectiveKind.BARRIER,
}
_POINTS: Final = {"send": NodeKind.SEND, "recv": NodeKind.RECV}
_BYTES: Final = {
    "double": 8,
    "long": 8,
    "float": 4,
    "int": 4,
    "half": 2,
    "bfloat16": 2,
    "short": 2,
    "byte": 1,
    "char": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""PyTorch's names of element types -> bytes an element."""


@dataclass(frozen=True, slots=True)
class _Kernel:
    name: str
    begin_ns: int
    end_ns: int
    kind: NodeKind
    comm: int
    group: str
    size_bytes: int


def read_kineto(paths: Sequence[Path | str]) -> Timeline:
    """The traces of a GPU run's ranks.

    Raises:
        InputError: a file cannot be read, is no Kineto trace, holds no GPU kernel, or two are of the same rank.
    """
    operators: list[tuple[Any, ...]] = []
    ranks: list[tuple[Any, ...]] = []
    seen: dict[int, str] = {}
    for number, path in enumerate(paths):
        content = _content(Path(path))
        rank = _rank(content, number)
        if rank in seen:
            raise InputError(f"is of rank {rank}, as is {seen[rank]}.", where=str(path))
        seen[rank] = str(path)
        for iteration, kernels in enumerate(_steps(content["traceEvents"], str(path))):
            start_ns = min(kernel.begin_ns for kernel in kernels)
            finish_ns = max(kernel.end_ns for kernel in kernels) - start_ns
            ranks.append((iteration, rank, finish_ns, finish_ns - _computing_ns(kernels)))
            operators += [_row(iteration, rank, at, kernel, start_ns) for at, kernel in enumerate(kernels)]
    return Timeline(
        executor="kineto",
        measured=True,
        ranks=Ranks.from_rows(ranks),
        operators=Operators.from_rows(operators),
        messages=Messages.empty(),
        notes=("times of different ranks are not comparable: each starts at its own first kernel of a step",),
    )


def _content(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"is larger than {MAX_BYTES} bytes.", where=str(path))
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}.", where=str(path)) from error
    except (ValueError, EOFError) as error:
        raise InputError("is no JSON.", where=str(path)) from error
    if not isinstance(content, dict) or not isinstance(content.get("traceEvents"), list):
        raise InputError("is no Kineto trace: it has no traceEvents.", where=str(path))
    return content


def _rank(content: Mapping[str, Any], number: int) -> int:
    about = content.get("distributedInfo")
    return int(about["rank"]) if isinstance(about, dict) and "rank" in about else number


def _steps(events: Iterable[Any], where: str) -> list[list[_Kernel]]:
    """Kernels by step, in order of their begin."""
    slices = [event for event in events if isinstance(event, dict) and event.get("ph") == "X"]
    try:
        kernels = sorted(
            (_kernel(event) for event in slices if event.get("cat") == "kernel"), key=lambda one: one.begin_ns
        )
        marks = sorted(_span(event) for event in slices if _is_step(event))
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"is no Kineto trace: a kernel without {error}.", where=where) from error
    if not kernels:
        raise InputError("holds no GPU kernel.", where=where, fix="profile with ProfilerActivity.CUDA.")
    steps = [[one for one in kernels if begin <= one.begin_ns < end] for begin, end in marks]
    return [step for step in steps if step] or [kernels]


def _is_step(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "gpu_user_annotation" and _STEP.fullmatch(str(event.get("name"))) is not None


def _span(event: Mapping[str, Any]) -> tuple[int, int]:
    begin_ns = round(us_to_ns(float(event["ts"])))
    return begin_ns, begin_ns + round(us_to_ns(float(event["dur"])))


def _kernel(event: Mapping[str, Any]) -> _Kernel:
    begin_ns, end_ns = _span(event)
    args, name = event.get("args", {}), str(event["name"])
    called = re.sub(r"[^a-z]", "", str(args.get("Collective name", "")).lower())
    if not name.lower().startswith("nccl") and not called:
        return _Kernel(name, begin_ns, end_ns, NodeKind.COMP, NONE, "", 0)
    if called in _POINTS:
        return _Kernel(name, begin_ns, end_ns, _POINTS[called], NONE, _group(args), _size(args))
    comm = _KINDS.get(called, _by_kernel(name))
    if comm is None:
        return _Kernel(name, begin_ns, end_ns, NodeKind.SEND, NONE, _group(args), _size(args))
    return _Kernel(name, begin_ns, end_ns, NodeKind.COLLECTIVE, comm, _group(args), _size(args))


def _by_kernel(name: str) -> CollectiveKind | None:
    """NCCL's kernels are called ncclDevKernel_AllReduce_Sum_bf16_RING_LL and the like."""
    words = [word.lower() for word in name.split("_")]
    return next((_KINDS[word] for word in words if word in _KINDS), None)


def _group(args: Mapping[str, Any]) -> str:
    return str(args.get("Process Group Name", ""))


def _size(args: Mapping[str, Any]) -> int:
    """What the rank puts in, as Chakra's comm_size counts."""
    return int(args.get("In msg nelems", 0)) * _BYTES.get(str(args.get("dtype", "")).lower(), 0)


def _computing_ns(kernels: Iterable[_Kernel]) -> int:
    """Time in which at least one compute kernel runs (streams overlap)."""
    total, reached = 0, 0
    for kernel in kernels:
        if kernel.kind is NodeKind.COMP:
            total += max(kernel.end_ns - max(kernel.begin_ns, reached), 0)
            reached = max(reached, kernel.end_ns)
    return total


def _row(iteration: int, rank: int, at: int, kernel: _Kernel, start_ns: int) -> tuple[Any, ...]:
    times = (kernel.begin_ns - start_ns, kernel.end_ns - start_ns, 0)
    return (iteration, rank, at, kernel.kind, kernel.comm, kernel.group, kernel.name, kernel.size_bytes, *times)
