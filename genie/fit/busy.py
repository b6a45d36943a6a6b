"""Which messages end a busy period: those that the workload waits for.

Flows that share a link finish one after another where sharing is unfair, as TCP's is, and together where it is fair,
as in the model. When the *last* of them is through does not depend on how they shared (as long as the link is never
idle), and it is what releases the next step. So a fit should hear the last ones and listen less to the others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from genie.fit.samples import Samples


def ends_busy_period(samples: Samples) -> NDArray[np.bool_]:
    """Per row, whether no message of another sender to the same rank was under way when it was delivered."""
    messages = samples.messages
    order = np.lexsort((messages.delivered_ns, messages.dst, samples.batches))
    ends = np.zeros(len(samples), np.bool_)
    columns = (samples.batches, messages.dst, messages.src, samples.start_ns, messages.delivered_ns)
    key: tuple[int, int] | None = None
    least: dict[int, int] = {}
    for row, (batch, dst, src, start, delivered) in zip(
        order[::-1].tolist(), zip(*(column[order[::-1]].tolist() for column in columns), strict=True), strict=True
    ):
        if (batch, dst) != key:
            key, least = (batch, dst), {}
        ends[row] = all(other >= delivered for sender, other in least.items() if sender != src)
        least[src] = min(start, least.get(src, start))
    return ends
