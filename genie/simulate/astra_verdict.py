"""Did ASTRA-sim succeed? Exit code 0 does not say so; what happened otherwise, and what to do about it."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from genie.errors import GenieError, InputError, NotReadyError, RunError
from genie.simulate.astra_parse import Spoken
from genie.simulate.astra_process import Ended, Limits

_SHOWN_RANKS: Final = 8
_NO_LIBRARY: Final = 127
_AFTER_THE_END: Final = "supported for overlap extraction"
"""ASTRA-sim's statistics err on CPU operators and memory accesses when a rank has finished: harmless, unless its last
event was a message's or a shared memory's."""

_CHECK: Final = "genie trace check names sends without receives, collectives in different order, and cycles."


@dataclass(frozen=True, slots=True)
class _Known:
    """A line of ASTRA-sim's and what is behind it."""

    pattern: re.Pattern[str]
    what: str
    fix: str
    kind: type[GenieError]


def _known(pattern: str, what: str, fix: str, kind: type[GenieError] = InputError) -> _Known:
    return _Known(re.compile(pattern), what, fix, kind)


_KNOWN: Final = (
    _known("error while loading shared libraries", "a library that it needs is missing", "install it.", NotReadyError),
    _known("GLIBC|version `", "it was built for another system", "build ASTRA-sim on this machine.", NotReadyError),
    _known("bad_alloc", "it ran out of memory", "raise --max-memory, or use fewer ranks or chunks.", RunError),
    _known("workload file: .* does not exist", "a trace is missing", "give a trace for each rank of the network."),
    _known(
        "Failed to read global metadata|No dependancy free nodes|in data_dep graph",
        "it cannot read a trace, or the trace has a cycle or a dependency on an absent node",
        _CHECK,
    ),
    _known(
        r"curr_time|event_time|getTime\(\)|EventQueue",
        "something took no time at tick 0",
        "set endpoint-delay and latency above 0: ASTRA-sim cannot schedule an event at tick 0.",
    ),
    _known(r"connected\(id\)", "it cannot build a Ring of two ranks", "write FullyConnected for two ranks."),
    _known("get_operator_type", "a METADATA node", "genie trace check --fix takes such nodes out."),
    _known("Error parsing options", "it refuses an option", "this version of ASTRA-sim does not know it."),
    _known(
        r"\(network/analytical|dims_count",
        "it refuses the network file",
        "the front end 'aware' takes one dimension; lists, not scalars.",
    ),
    _known("Comm node should not be on CPU", "a collective or message is marked is_cpu_op", "clear is_cpu_op."),
    _known("remote.mem|NO_MEMORY_EXPANSION", "a remote memory access without remote memory", "pass --memory FILE."),
    _known(
        "Cannot find send_event|flow_finish",
        "htsim told the end of a flow twice",
        "update ASTRA-sim (its pull request 369).",
    ),
    _known("^Mismatch|tier", "htsim refuses the topology", "correct the file given as --htsim-topology."),
    _known("Simulation timed out", "htsim reached its own limit of 4 simulated seconds", "use a smaller workload."),
    _known("Fail to setup ns3|Could not open|cannot open|cant open", "ns-3 cannot open a file", "check --ns3-config."),
    _known(
        r"corrupted|free\(\): |double free|malloc\(\)",
        "it corrupted its own memory (a bug of its own)",
        "try other numbers of queues or chunks, or use the builtin simulator.",
        RunError,
    ),
    _known(
        _AFTER_THE_END,
        "its statistics err on CPU operators and memory accesses, which can stop other ranks (a bug of its own)",
        "use the builtin simulator for this workload.",
        RunError,
    ),
)

_SIGNALS: Final = {
    signal.SIGSEGV: (
        "it crashed",
        "avoid CPU operators and memory accesses, which crash its statistics, and doubleBinaryTree; else report it.",
    ),
    signal.SIGFPE: ("it divided by zero", "set preferred-dataset-splits to at least 1."),
    signal.SIGABRT: ("it aborted on an assertion or an error", "the lines above say which; genie trace check helps."),
    signal.SIGKILL: ("it was killed, most likely for lack of memory", "use fewer ranks or chunks, or more memory."),
}


def judge(ended: Ended, spoken: Spoken, ranks: int, limits: Limits, folder: Path) -> GenieError | None:
    """The error that a run amounts to; None when every rank finished and nothing was swallowed.

    Args:
        ended: how the process ended.
        spoken: what it said.
        ranks: how many were to finish.
        limits: what it was allowed.
        folder: where its files are, for the message.
    """
    missing = [rank for rank in range(ranks) if rank not in spoken.finished]
    swallowed = [text for text in spoken.swallowed if _AFTER_THE_END not in text]
    if not (missing or swallowed or spoken.unreleased or ended.code or ended.timed_out):
        return None
    counted = f"{ranks - len(missing)} of {ranks} ranks finished"
    where = str(folder)
    if ended.timed_out:
        return RunError(
            f"ASTRA-sim was stopped after {limits.timeout_s:g} s; {counted}.{_last(spoken)}",
            where=where,
            fix="raise --timeout, or make the workload smaller; the builtin simulator is faster.",
        )
    known = _explained(spoken)
    if known is not None:
        how = _how(ended)
        return known.kind(f"ASTRA-sim {how}: {known.what}; {counted}.{_last(spoken)}", where=where, fix=known.fix)
    if ended.code:
        return _crashed(ended, spoken, counted, where)
    return _stuck(spoken, swallowed, missing, counted, where)


def _how(ended: Ended) -> str:
    if ended.code == 0:
        return "exited as if all were well, but"
    return f"was ended by {_signal_name(-ended.code)}" if ended.code < 0 else f"exited with code {ended.code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _explained(spoken: Spoken) -> _Known | None:
    lines = [*spoken.complaints, *spoken.swallowed]
    return next((known for known in _KNOWN if any(known.pattern.search(line) for line in lines)), None)


def _crashed(ended: Ended, spoken: Spoken, counted: str, where: str) -> GenieError:
    code = 128 - ended.code if ended.code < 0 else ended.code  # a shell tells a signal as 128 + its number
    number = code - 128
    if code == _NO_LIBRARY:
        return NotReadyError(
            f"ASTRA-sim cannot be run: {_last(spoken).strip() or 'exit code 127'}.", where=where, fix="ldd PROGRAM."
        )
    what, fix = ("it failed", "see stdout.txt and stderr.txt there.")
    if number in set(signal.Signals):
        what, fix = _SIGNALS.get(signal.Signals(number), (what, fix))
    return RunError(f"ASTRA-sim {_how(ended)}: {what}; {counted}.{_last(spoken)}", where=where, fix=fix)


def _stuck(spoken: Spoken, swallowed: list[str], missing: list[int], counted: str, where: str) -> GenieError:
    if swallowed:
        reason = next((text for text in swallowed if text), "an error without a text")
        return InputError(
            f"ASTRA-sim caught an error and went on without that rank: {reason}; {counted}.",
            where=where,
            fix="an attribute or an algorithm is missing, most likely: genie trace check, and the system file.",
        )
    waiting = sorted(set(spoken.unreleased) | set(missing))
    shown = "; ".join(_waits(rank, spoken.unreleased.get(rank)) for rank in waiting[:_SHOWN_RANKS])
    more = f"; and {len(waiting) - _SHOWN_RANKS} more" if len(waiting) > _SHOWN_RANKS else ""
    return InputError(f"ASTRA-sim exited as if all were well, but {counted}: {shown}{more}.", where=where, fix=_CHECK)


def _waits(rank: int, nodes: list[int] | None) -> str:
    if not nodes:
        return f"rank {rank} waits for ever"
    return f"rank {rank} waits for ever in node {', '.join(map(str, nodes))}"


def _last(spoken: Spoken) -> str:
    return f" It said: {spoken.complaints[-1]}" if spoken.complaints else ""
