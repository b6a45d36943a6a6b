"""The messages that a fit sees, and what a model says about them when they are posted as they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from genie.core.netmodel import NetworkModel
from genie.core.timeline import UNKNOWN, Messages, Timeline
from genie.errors import InputError
from genie.network.models import build
from genie.network.queue import EventQueue

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Delivered messages of one or several timelines.

    Attributes:
        messages: rows sorted by batch and post; `posted_ns` holds the time at which the schedule allowed the post, so
            that what the sending host's software takes counts as part of the path.
        batches: int64, rows of one batch happened together (one iteration of one timeline).
    """

    messages: Messages
    batches: NDArray[np.int64]

    @property
    def fct_ns(self) -> Floats:
        """Measured completion times."""
        return (self.messages.delivered_ns - self.messages.caused_ns).astype(np.float64)


def collect(timelines: Sequence[Timeline]) -> Samples:
    """All delivered messages.

    Raises:
        InputError: there are none.
    """
    tables, batches, base = [], [], 0
    for timeline in timelines:
        messages = timeline.messages
        good = messages.take((messages.delivered_ns != UNKNOWN) & (messages.status == 0))
        tables.append(good)
        batches.append(good.iteration.astype(np.int64) + base)
        base += int(good.iteration.max()) + 1 if len(good) else 0
    table = Messages.concat(tables)
    if len(table) == 0:
        raise InputError("there is no delivered message to fit to.", fix="replay a workload that communicates.")
    batch = np.concatenate(batches)
    order = np.lexsort((table.caused_ns, batch))
    return Samples(table.take(order), batch[order])


def predict(model: NetworkModel, samples: Samples) -> Floats:
    """Completion time of every message (ns) under a model: each batch is replayed through the network alone."""
    predicted = np.zeros(len(samples.messages))
    for batch in np.unique(samples.batches):
        rows = np.flatnonzero(samples.batches == batch)
        _predict_batch(model, samples.messages, rows.tolist(), predicted)
    return predicted


def _predict_batch(model: NetworkModel, messages: Messages, rows: list[int], predicted: Floats) -> None:
    queue = EventQueue()
    network = build(model, queue)
    posts = messages.caused_ns.tolist()
    ends = zip(messages.src.tolist(), messages.dst.tolist(), messages.size_bytes.tolist(), strict=True)
    message = list(ends)

    def deliver(row: int) -> None:
        predicted[row] = queue.now_ns - posts[row]

    for row in rows:
        queue.at(posts[row], network.send, *message[row], deliver, row)
    queue.run()
