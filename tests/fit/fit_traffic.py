"""Measured timelines out of thin air: posts, the network's own code, noise and stragglers on top."""

import numpy as np

from genie.core.netmodel import Dimension, DimensionModel, Estimate, FabricModel, Topology
from genie.core.timeline import Messages, Operators, Ranks, Timeline
from genie.network.fabric import DirectedLink, fabric_model
from genie.network.models import build
from genie.network.queue import EventQueue

SIZES = (16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20)


def dimensions(*shapes, aware=False):
    """Each shape: (topology, size, bandwidth bit/s, latency ns)."""
    made = tuple(Dimension(Topology(t), n, Estimate(float(b)), Estimate(float(x))) for t, n, b, x in shapes)
    return DimensionModel(made, aware)


def leaf_spine(host_bps=200e9, core_bps=200e9, message_ns=1500.0, ranks=8, leaves=2, spines=2) -> FabricModel:
    """Pairs that cross take the spine of (src + dst) mod spines."""
    links, routes, leaf_of = [], {}, [rank * leaves // ranks for rank in range(ranks)]
    for rank, leaf in enumerate(leaf_of):
        links.append(DirectedLink(f"h{rank}>l{leaf}", f"h{rank}", f"l{leaf}", host_bps, 500.0, "host"))
        links.append(DirectedLink(f"l{leaf}>h{rank}", f"l{leaf}", f"h{rank}", host_bps, 500.0, "host"))
    for leaf in range(leaves):
        for spine in range(spines):
            links.append(DirectedLink(f"l{leaf}>s{spine}", f"l{leaf}", f"s{spine}", core_bps, 500.0, "core"))
            links.append(DirectedLink(f"s{spine}>l{leaf}", f"s{spine}", f"l{leaf}", core_bps, 500.0, "core"))
    for a in range(ranks):
        for b in range(ranks):
            up, down, spine = leaf_of[a], leaf_of[b], (a + b) % spines
            across = () if up == down else (f"l{up}>s{spine}", f"s{spine}>l{down}")
            if a != b:
                routes[a, b] = (f"h{a}>l{up}", *across, f"l{down}>h{b}")
    return fabric_model(ranks, links, routes, message_ns=message_ns)


def posts(ranks, count, every_ns, seed, sizes=SIZES, pairs=None):
    """(post ns, src, dst, bytes), at random, one in `every_ns` on average."""
    rng = np.random.default_rng(seed)
    when = np.cumsum(rng.integers(0, 2 * every_ns, count)).tolist()
    if pairs is None:
        pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    ends = [pairs[at] for at in rng.integers(0, len(pairs), count)]
    return [(t, *p, int(s)) for t, p, s in zip(when, ends, rng.choice(sizes, count), strict=True)]


def deliveries(model, messages):
    queue, ticks = EventQueue(), [0] * len(messages)
    network = build(model, queue)

    def delivered(row):
        ticks[row] = queue.now_ns

    for row, (when, src, dst, size) in enumerate(messages):
        queue.at(when, network.send, src, dst, size, delivered, row)
    queue.run()
    return np.array(ticks, np.int64)


def timeline(model, iterations, seed=0, *, noise=0.0, common=0.0, stragglers=0.0) -> Timeline:
    """A measured timeline of several iterations of posts.

    Args:
        noise: standard deviation of each completion time, relative; `common` that of all of a pair together.
        stragglers: share of messages that take half as long again.
    """
    rng = np.random.default_rng(seed)
    tables = []
    of_pair: dict[tuple[int, int], float] = {}
    for iteration, messages in enumerate(iterations):
        when, src, dst, size = (np.array(column, np.int64) for column in zip(*messages, strict=True))
        fct = deliveries(model, messages) - when
        factor = 1 + noise * rng.standard_normal(len(fct)) + 0.5 * (rng.random(len(fct)) < stragglers)
        factor += [of_pair.setdefault(m[1:3], common * rng.standard_normal()) for m in messages]
        tables.append(_messages(iteration, src, dst, size, when, when + np.rint(fct * factor).astype(np.int64)))
    return Timeline("synthetic", True, Ranks.empty(), Operators.empty(), Messages.concat(tables))  # noqa: FBT003


def _messages(iteration, src, dst, size, posted, delivered):
    zero, unknown = np.zeros(len(src), np.int64), np.full(len(src), -1, np.int64)
    return Messages(
        iteration=zero + iteration,
        src=src,
        dst=dst,
        tag=zero,
        size_bytes=size,
        index=np.arange(len(src)),
        flow=zero,
        node_id=zero,
        chunk=unknown,
        phase=unknown,
        step=unknown,
        caused_ns=posted,
        posted_ns=posted,
        first_byte_ns=unknown,
        delivered_ns=delivered,
        acknowledged_ns=unknown,
        status=zero,
    )


def parameter(result, name):
    (row,) = [row for row in result.parameters() if row["name"] == name]
    return row


def holds(row, truth):
    """Whether the 95 % interval of a parameter contains the truth."""
    return row["stderr"] is not None and row["low"] <= truth <= row["high"]
