"""The messages that a fit sees, and what a model says about them when they are posted as they were."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from genie.core.netmodel import DimensionModel, NetworkModel
from genie.core.timeline import UNKNOWN, Messages, Timeline
from genie.errors import InputError
from genie.network.models import build, charged_dimension
from genie.network.queue import EventQueue

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STALLED: Final = 0.01

NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Delivered messages of one or several timelines.

    Attributes:
        messages: rows sorted by batch and start.
        start_ns: int64, when a message's completion time begins: its post, less what the sending hosts' software took
            on average from when the schedule allowed it, so that this counts as part of every path alike. What it took
            in each case would not do: hosts that wake all at once are late for reasons that have to do with sizes.
        before_ns: int64, delivery of the message before it on the same connection; NEVER if there is none, or if it
            was delivered later, so that the two were not in line.
        batches: int64, rows of one batch happened together (one iteration of one timeline).
        lost: messages that were not delivered, or with an error; they are in no row.
    """

    messages: Messages
    start_ns: Ints
    before_ns: Ints
    batches: Ints
    lost: int

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def fct_ns(self) -> Floats:
        """Measured completion times."""
        return (self.messages.delivered_ns - self.start_ns).astype(np.float64)

    def ends(self) -> list[tuple[int, int]]:
        """(source, destination) of every row."""
        return list(zip(self.messages.src.tolist(), self.messages.dst.tolist(), strict=True))

    def head(self, count: int) -> Samples:
        """The first `count` rows: what happened first does not depend on what came after."""
        rows = np.arange(min(count, len(self)))
        return Samples(self.messages.take(rows), self.start_ns[rows], self.before_ns[rows], self.batches[rows], 0)


def collect(timelines: Sequence[Timeline]) -> Samples:
    """All delivered messages.

    Raises:
        InputError: there are none.
    """
    tables, batches, base, total = [], [], 0, 0
    for timeline in timelines:
        messages = timeline.messages
        good = messages.take(
            (messages.delivered_ns != UNKNOWN) & (messages.posted_ns != UNKNOWN) & (messages.status == 0)
        )
        tables.append(good)
        batches.append(good.iteration.astype(np.int64) + base)
        base += int(good.iteration.max()) + 1 if len(good) else 0
        total += len(messages)
    table = Messages.concat(tables)
    if len(table) == 0:
        raise InputError("there is no delivered message to fit to.", fix="replay a workload that communicates.")
    batch = np.concatenate(batches)
    start_ns = table.posted_ns - software_ns(table, batch)
    order = np.lexsort((table.posted_ns, start_ns, batch))
    table, batch = table.take(order), batch[order]
    return Samples(table, start_ns[order], _before(table, batch), batch, total - len(table))


def software_ns(messages: Messages, batches: Ints) -> int:
    """From when the schedule allowed a message to its post, on average; the slowest of a hundred are left out.

    Only messages that found their sender idle count: while others are under way, a late post costs nothing.
    """
    told = _finds_idle(messages, batches) & (messages.caused_ns != UNKNOWN)
    took_ns = np.sort((messages.posted_ns - messages.caused_ns)[told])
    kept = took_ns[: math.ceil(len(took_ns) * (1 - STALLED))]
    return round(float(np.mean(kept))) if len(kept) else 0


def _finds_idle(messages: Messages, batches: Ints) -> NDArray[np.bool_]:
    """Whether all earlier messages of the sender had been delivered when a message was allowed."""
    idle = np.ones(len(messages), np.bool_)
    order = np.lexsort((messages.posted_ns, messages.src, batches))
    edges = np.flatnonzero(np.diff(messages.src[order]) | np.diff(batches[order])) + 1
    for rows in np.split(order, edges):
        until_ns = np.maximum.accumulate(messages.delivered_ns[rows])
        idle[rows[1:]] = messages.caused_ns[rows[1:]] >= until_ns[:-1]
    return idle


def _before(messages: Messages, batches: Ints) -> Ints:
    """See Samples.before_ns."""
    before = np.full(len(messages), NEVER, np.int64)
    last: dict[tuple[int, int, int, int], int] = {}
    keys = zip(batches.tolist(), messages.src.tolist(), messages.dst.tolist(), messages.flow.tolist(), strict=True)
    for row, (key, delivered) in enumerate(zip(keys, messages.delivered_ns.tolist(), strict=True)):
        earlier = last.get(key, NEVER)
        if earlier < delivered:
            before[row] = earlier
        last[key] = max(earlier, delivered)
    return before


def predict(model: NetworkModel, samples: Samples) -> Floats:
    """Completion time of every message (ns) under a model: each batch is replayed through the network alone."""
    predicted = np.zeros(len(samples))
    posts = posts_ns(model, samples)
    first_ns = min(0, int(posts.min(initial=0)))  # the virtual clock begins at 0; a start may lie a little before
    posts = posts - first_ns
    edges = [0, *(np.flatnonzero(np.diff(samples.batches)) + 1).tolist(), len(samples)]
    messages = list(zip(*(column.tolist() for column in _what(samples.messages)), strict=True))
    for first, end in itertools.pairwise(edges):
        _predict_batch(model, posts[first:end].tolist(), messages[first:end], predicted[first:end])
    return predicted + first_ns - samples.start_ns


def _what(messages: Messages) -> tuple[NDArray[np.int32], NDArray[np.int32], Ints]:
    return messages.src, messages.dst, messages.size_bytes


def posts_ns(model: NetworkModel, samples: Samples) -> Ints:
    """When each message enters the network.

    The unaware network knows no queue, but the messages of one connection do stand in line: one that starts while
    the one before is under way enters when that has left the sender, one latency before it was delivered.
    """
    if not isinstance(model, DimensionModel) or model.aware:
        return samples.start_ns
    latencies = {}
    for ends in set(samples.ends()):
        at, hops = charged_dimension(model, *ends)
        latencies[ends] = int(hops * model.dimensions[at].latency_ns.value)
    latency_ns = np.array([latencies[ends] for ends in samples.ends()], np.int64)
    left_ns = np.where(samples.before_ns == NEVER, NEVER, samples.before_ns - latency_ns)
    return np.maximum(samples.start_ns, left_ns)


def _predict_batch(
    model: NetworkModel, posts: list[int], messages: list[tuple[int, int, int]], delivered_ns: Floats
) -> None:
    queue = EventQueue()
    network = build(model, queue)
    ticks = [0] * len(posts)

    def deliver(row: int) -> None:
        ticks[row] = queue.now_ns

    for row, (post_ns, (src, dst, size_bytes)) in enumerate(zip(posts, messages, strict=True)):
        queue.at(post_ns, network.send, src, dst, size_bytes, deliver, row)
    queue.run()
    delivered_ns[:] = ticks
