"""The engine's vocabulary: events go in, actions come out, in the order in which they must be carried out.

Handles are integers that the engine chose; the executor hands them back, unread, in the event that answers.
"""

from __future__ import annotations

from typing import NamedTuple


class Origin(NamedTuple):
    """What a message belongs to: trace node, and chunk, phase and step of a collective (-1: a plain send)."""

    node_id: int
    chunk: int = -1
    phase: int = -1
    step: int = -1


class Start(NamedTuple):
    """The rank may begin."""

    now_ns: int


class TimerFired(NamedTuple):
    """A timer or a remote memory access is over."""

    now_ns: int
    handle: int


class SendDone(NamedTuple):
    """The message posted under this handle was delivered (acknowledged, on a wire)."""

    now_ns: int
    handle: int


class RecvDone(NamedTuple):
    """The message expected under this handle has arrived."""

    now_ns: int
    handle: int


Event = Start | TimerFired | SendDone | RecvDone


class SetTimer(NamedTuple):
    """Answer with TimerFired `delay_ns` after the event that caused this."""

    handle: int
    delay_ns: int


class AccessMemory(NamedTuple):
    """Answer with TimerFired when the remote memory has served `size_bytes`."""

    handle: int
    size_bytes: int


class PostSend(NamedTuple):
    """Send `size_bytes` to `peer` under `tag`; answer with SendDone if `notify`."""

    handle: int
    peer: int
    tag: int
    size_bytes: int
    origin: Origin
    notify: bool


class PostRecv(NamedTuple):
    """Expect `size_bytes` from `peer` under `tag`; answer with RecvDone.

    Messages match receives by (source, tag, size), first with first.
    """

    handle: int
    peer: int
    tag: int
    size_bytes: int
    origin: Origin


class OperatorIssued(NamedTuple):
    """Row `row` of the rank's operators was issued (a record, nothing to do)."""

    row: int


class OperatorDone(NamedTuple):
    """Row `row` of the rank's operators is done (a record, nothing to do)."""

    row: int


class RankFinished(NamedTuple):
    """Nothing is left to do on this rank. `compute_ns` is the sum of its GPU compute durations."""

    compute_ns: int


Action = SetTimer | AccessMemory | PostSend | PostRecv | OperatorIssued | OperatorDone | RankFinished
