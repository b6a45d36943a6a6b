"""What ASTRA-sim wrote: finished ranks, statistics, ticks of nodes, complaints, and flows of ns-3 and htsim."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from genie.core.timeline import UNKNOWN
from genie.errors import RunError

_FINISHED: Final = re.compile(r"sys\[(\d+)\] finished, (\d+) cycles(?:, exposed communication (-?\d+) cycles)?")
_STATISTIC: Final = re.compile(r"sys\[(\d+)\],? ([A-Z][\w -]*): (\d+(?:\.\d+)?)%?\s*$")
_TICK: Final = re.compile(r"(issue|callback),sys->id=(\d+), ?tick=(\d+), ?node->id=(\d+)")
_UNRELEASED: Final = re.compile(r"Hardware Resource sys\.id=(\d+) has unreleased nodes")
_HELD: Final = re.compile(r"\[HardwareResource\] \[critical\] .*node id: (\d+)")
_SWALLOWED: Final = re.compile(r"a callable is removed before call(?: (.*))?$")
_COMPLAINT: Final = re.compile(
    r"\[(?:critical|error|C|E)\]|^\[Error\]|[Aa]ssert|terminate called|what\(\):|Segmentation|^Unable to|^Warning:"
    r"|^Mismatch|corrupted|free\(\): |double free|malloc\(\)|Cannot find|error while loading|: version `"
)
_STAMP: Final = re.compile(r"^(?:\[[^\]]*\] ?)*(?:<[^>]*>: ?)?")
_MOST_COMPLAINTS: Final = 20
_HTSIM_SENT: Final = re.compile(r"^Send flow (\d+) from (\d+) to (\d+) with size (\d+)")
_HTSIM_ENDED: Final = re.compile(r"^Flow \S+ finished at (\S+)")
_HTSIM_TOLD: Final = re.compile(r"^Finish sending flow (\d+) from (\d+) to (\d+)")
_NS3_FIELDS: Final = 8
_MS: Final = 1e6


@dataclass(frozen=True, slots=True)
class Finish:
    """A rank's last words. `exposed_ns` is UNKNOWN where an old version does not print it."""

    finish_ns: int
    exposed_ns: int


@dataclass(frozen=True, slots=True)
class Spoken:
    """What stands in standard output and standard error.

    Attributes:
        finished: rank -> its finish.
        statistics: rank -> name -> value, as printed (ns, or per cent).
        unreleased: rank -> ids of its nodes that never ended, as far as told.
        swallowed: errors that ASTRA-sim caught inside its event loop and went on from.
        complaints: lines that say that something is wrong, without their time stamps.
    """

    finished: dict[int, Finish] = field(default_factory=dict)
    statistics: dict[int, dict[str, float]] = field(default_factory=dict)
    unreleased: dict[int, list[int]] = field(default_factory=dict)
    swallowed: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ticks:
    """When nodes began and ended: (rank, node id) -> ns."""

    issued: dict[tuple[int, int], int] = field(default_factory=dict)
    done: dict[tuple[int, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow that a packet simulator saw end. `start_ns` is UNKNOWN where it does not tell (htsim)."""

    src: int
    dst: int
    port: int
    size_bytes: int
    start_ns: int
    end_ns: int


def read_spoken(*paths: Path) -> Spoken:
    """Everything of interest in output files; a file that is absent counts as empty."""
    spoken = Spoken()
    for path in paths:
        for line in _lines(path):
            _hear(spoken, line)
    return spoken


def _lines(path: Path) -> Iterator[str]:
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                yield line.rstrip("\r\n")


def _hear(spoken: Spoken, line: str) -> None:
    if found := _FINISHED.search(line):
        exposed = UNKNOWN if found[3] is None else _signed(int(found[3]))
        spoken.finished[int(found[1])] = Finish(int(found[2]), exposed)
    elif found := _STATISTIC.search(line):
        spoken.statistics.setdefault(int(found[1]), {})[found[2]] = float(found[3])
    elif found := _UNRELEASED.search(line):
        spoken.unreleased[int(found[1])] = []
    elif spoken.unreleased and (found := _HELD.search(line)):
        next(reversed(spoken.unreleased.values())).append(int(found[1]))
    elif found := _SWALLOWED.search(line):
        spoken.swallowed.append(found[1] or "")
    elif _COMPLAINT.search(line) and len(spoken.complaints) < _MOST_COMPLAINTS:
        spoken.complaints.append(_STAMP.sub("", line).strip() or line.strip())


def _signed(number: int) -> int:
    """ASTRA-sim subtracts without a sign: what is below zero comes out near 2**64."""
    return number - (1 << 64) if number >= 1 << 63 else number


def read_ticks(*paths: Path) -> Ticks:
    """Issue and completion of every node (``trace-enabled``); a line cut short at the end is passed over."""
    ticks = Ticks()
    for path in paths:
        for line in _lines(path):
            if found := _TICK.search(line):
                table = ticks.issued if found[1] == "issue" else ticks.done
                table[int(found[2]), int(found[4])] = int(found[3])
    return ticks


def read_ns3_flows(path: Path) -> list[Flow]:
    """The ns-3 front end's flow completions: sip dip (hex) sport dport bytes start_ns fct_ns standalone_fct_ns.

    Raises:
        RunError: a line that is none of these; a last line without its end is passed over.
    """
    flows = []
    text = path.read_text(encoding="ascii", errors="replace") if path.is_file() else ""
    whole = text[: text.rfind("\n") + 1]
    for number, line in enumerate(whole.splitlines(), 1):
        parts = line.split()
        try:
            if len(parts) < _NS3_FIELDS:
                raise ValueError(line)  # noqa: TRY301 - told together with what int() refuses
            source, destination = (_ns3_rank(part) for part in parts[:2])
            port, _, size, start, fct = (int(part) for part in parts[2:7])
        except ValueError as error:
            raise RunError("is no line of flow completions.", where=f"{path}, line {number}") from error
        flows.append(Flow(source, destination, port, size, start, start + fct))
    return flows


def _ns3_rank(address: str) -> int:
    """Node n has the address 11.(n / 256).(n mod 256).1."""
    return int(address, 16) >> 8 & 0xFFFF


def read_htsim_flows(path: Path) -> list[Flow]:
    """Flows that htsim says to have ended, from standard output: it tells the end (ms), not the start.

    "Flow NAME finished at MS" comes right before "Finish sending flow NUMBER from SRC to DST". The end has as many
    digits as htsim prints (six), so it can be off by a millionth of itself.
    """
    sizes: dict[int, int] = {}
    flows, end_ns = [], UNKNOWN
    for line in _lines(path):
        if found := _HTSIM_SENT.match(line):
            sizes[int(found[1])] = int(found[4])
        elif found := _HTSIM_ENDED.match(line):
            end_ns = _ms(found[1])
        elif (found := _HTSIM_TOLD.match(line)) and int(found[1]) in sizes and end_ns != UNKNOWN:
            number = int(found[1])
            flows.append(Flow(int(found[2]), int(found[3]), number, sizes.pop(number), UNKNOWN, end_ns))
    return flows


def _ms(text: str) -> int:
    try:
        return round(float(text) * _MS)
    except (ValueError, OverflowError):
        return UNKNOWN
