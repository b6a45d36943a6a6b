"""The engine and the event loop of plain.py, compiled: no object a message, rows of integers instead.

All of it lives in one array of integers, `m`: first registers, then tables one after another. Register AT_TABLE says
where a table begins, CAP_TABLE how many rows there is room for; a row's field is found at
``m[m[AT_TABLE] + row * TABLE_WIDTH + TABLE_FIELD]``. (One array, since a compiled function that is handed forty takes
minutes to compile and ten times as long to run.) `f` holds latency in ns and bytes per ns of each dimension.

Static tables are made by compiled.py from a schedule. Pools (timers, streams, letters under way) hand their rows out
and take them back. `advance` runs until all is done or a pool runs low; its caller then enlarges the pools and calls
it again. The rules, in the same order, are those of genie.engine and genie.network; docstrings say which function of
theirs a function here stands for.

Only this module imports numba. It is one file since numba's cache on disk is made anew when this file changes, but
not when one that it imports does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numba
import numpy as np

# fmt: off
TABLES: Final = {
    "op": ("kind", "slot", "duration_ns", "peer", "tag", "size", "collective", "first_child", "last_child"),
    "collective": ("chunks", "first_phase", "phases", "group", "fixed_queue"),
    "phase": (
        "dimension", "lane", "delay_ns", "turn", "size", "stride", "ranks", "variants", "first_variant", "positions"
    ),
    "token": ("graph", "xor", "steps", "start", "marked_run", "reduce", "gate", "single", "first_step"),
    "step": ("offset", "size", "reduce_ns"),
    "graph": ("awaits", "steps", "first_step"),
    "graph_step": ("kind", "deps", "peer", "size", "duration_ns", "tag", "reduce_ns", "first_child", "last_child"),
    "rank": (
        "op", "rows", "row", "heap_none", "heap_cpu", "heap_compute", "heap_comm", "len_none", "len_cpu",
        "len_compute", "len_comm", "busy", "released", "ongoing", "ready", "finish_ns", "compute_ns", "lists",
        "streams"
    ),
    "queue": ("running", "first", "last"),
    "link": ("busy", "first", "last"),
    "item": ("next", "kind", "a", "b"),
    "timers": ("next", "rank", "tick", "first", "last"),
    "stream": (
        "rank", "instance", "chunk", "id", "at", "next", "queue", "position", "line", "clockwise", "program",
        "made", "usable", "sent", "delivered", "left"
    ),
    "instance": ("rank", "row", "left", "collective"),
    "letter": ("src", "dst", "tag", "size", "kind", "a", "b", "next", "device", "log"),
    "wait": ("pair", "tag", "size", "arrived", "first", "last"),
    "event": ("tick", "number", "what"),
    "log": ("src", "dst", "tag", "size", "row", "chunk", "phase", "step", "posted_ns", "delivered_ns"),
}
"""Fields of the tables whose rows have several, in order."""

PLAIN: Final = (
    "child", "graph_child", "member", "missing", "issue_ns", "done_ns", "heap_row", "released_row", "turn",
    "variant", "group_stream", "plan_queue", "plan_turn", "step_missing", "size", "topology"
)
"""Tables of one number a row."""

(OP_KIND, OP_SLOT, OP_DURATION_NS, OP_PEER, OP_TAG, OP_SIZE, OP_COLLECTIVE, OP_FIRST_CHILD, OP_LAST_CHILD) = range(9)
(COLLECTIVE_CHUNKS, COLLECTIVE_FIRST_PHASE, COLLECTIVE_PHASES, COLLECTIVE_GROUP, COLLECTIVE_FIXED_QUEUE) = range(5)
(
    PHASE_DIMENSION, PHASE_LANE, PHASE_DELAY_NS, PHASE_TURN, PHASE_SIZE, PHASE_STRIDE, PHASE_RANKS, PHASE_VARIANTS,
    PHASE_FIRST_VARIANT, PHASE_POSITIONS
) = range(10)
(
    TOKEN_GRAPH, TOKEN_XOR, TOKEN_STEPS, TOKEN_START, TOKEN_MARKED_RUN, TOKEN_REDUCE, TOKEN_GATE, TOKEN_SINGLE,
    TOKEN_FIRST_STEP
) = range(9)
(STEP_OFFSET, STEP_SIZE, STEP_REDUCE_NS) = range(3)
(GRAPH_AWAITS, GRAPH_STEPS, GRAPH_FIRST_STEP) = range(3)
(
    GRAPH_STEP_KIND, GRAPH_STEP_DEPS, GRAPH_STEP_PEER, GRAPH_STEP_SIZE, GRAPH_STEP_DURATION_NS, GRAPH_STEP_TAG,
    GRAPH_STEP_REDUCE_NS, GRAPH_STEP_FIRST_CHILD, GRAPH_STEP_LAST_CHILD
) = range(9)
(
    RANK_OP, RANK_ROWS, RANK_ROW, RANK_HEAP_NONE, RANK_HEAP_CPU, RANK_HEAP_COMPUTE, RANK_HEAP_COMM, RANK_LEN_NONE,
    RANK_LEN_CPU, RANK_LEN_COMPUTE, RANK_LEN_COMM, RANK_BUSY, RANK_RELEASED, RANK_ONGOING, RANK_READY,
    RANK_FINISH_NS, RANK_COMPUTE_NS, RANK_LISTS, RANK_STREAMS
) = range(19)
(QUEUE_RUNNING, QUEUE_FIRST, QUEUE_LAST) = range(3)
(LINK_BUSY, LINK_FIRST, LINK_LAST) = range(3)
(ITEM_NEXT, ITEM_KIND, ITEM_A, ITEM_B) = range(4)
(TIMERS_NEXT, TIMERS_RANK, TIMERS_TICK, TIMERS_FIRST, TIMERS_LAST) = range(5)
(
    STREAM_RANK, STREAM_INSTANCE, STREAM_CHUNK, STREAM_ID, STREAM_AT, STREAM_NEXT, STREAM_QUEUE, STREAM_POSITION,
    STREAM_LINE, STREAM_CLOCKWISE, STREAM_PROGRAM, STREAM_MADE, STREAM_USABLE, STREAM_SENT, STREAM_DELIVERED,
    STREAM_LEFT
) = range(16)
(INSTANCE_RANK, INSTANCE_ROW, INSTANCE_LEFT, INSTANCE_COLLECTIVE) = range(4)
(
    LETTER_SRC, LETTER_DST, LETTER_TAG, LETTER_SIZE, LETTER_KIND, LETTER_A, LETTER_B, LETTER_NEXT, LETTER_DEVICE,
    LETTER_LOG
) = range(10)
(WAIT_PAIR, WAIT_TAG, WAIT_SIZE, WAIT_ARRIVED, WAIT_FIRST, WAIT_LAST) = range(6)
(EVENT_TICK, EVENT_NUMBER, EVENT_WHAT) = range(3)
(LOG_SRC, LOG_DST, LOG_TAG, LOG_SIZE, LOG_ROW, LOG_CHUNK, LOG_PHASE, LOG_STEP, LOG_POSTED_NS, LOG_DELIVERED_NS) = range(
    10
)

(
    OP_WIDTH, COLLECTIVE_WIDTH, PHASE_WIDTH, TOKEN_WIDTH, STEP_WIDTH, GRAPH_WIDTH, GRAPH_STEP_WIDTH, RANK_WIDTH,
    QUEUE_WIDTH, LINK_WIDTH, ITEM_WIDTH, TIMERS_WIDTH, STREAM_WIDTH, INSTANCE_WIDTH, LETTER_WIDTH, WAIT_WIDTH,
    EVENT_WIDTH, LOG_WIDTH
) = (9, 5, 10, 9, 3, 3, 9, 19, 3, 3, 4, 5, 16, 4, 10, 6, 3, 10)

POOLS: Final = ("item", "timers", "stream", "instance", "letter")
ITEM, LIST, STREAM, INSTANCE, LETTER = range(5)

(
    NOW, NUMBER, EVENTS, WAITS, LOGGED, RUNNING_LIST, SPARE, STRICT, AWARE, TOPOLOGY, QUEUES, LIMIT, GROUPS, TURNS,
    DIMENSIONS, RANKS, PHASES, STEPS, KEEP, FAILED
) = range(20)
SPARE_OF: Final = 20
"""Free rows of each pool,"""

AT_SPARES: Final = 25
"""and where their numbers are."""

(
    AT_OP, AT_COLLECTIVE, AT_PHASE, AT_TOKEN, AT_STEP, AT_GRAPH, AT_GRAPH_STEP, AT_RANK, AT_QUEUE, AT_LINK, AT_ITEM,
    AT_TIMERS, AT_STREAM, AT_INSTANCE, AT_LETTER, AT_WAIT, AT_EVENT, AT_LOG, AT_CHILD, AT_GRAPH_CHILD, AT_MEMBER,
    AT_MISSING, AT_ISSUE_NS, AT_DONE_NS, AT_HEAP_ROW, AT_RELEASED_ROW, AT_TURN, AT_VARIANT, AT_GROUP_STREAM,
    AT_PLAN_QUEUE, AT_PLAN_TURN, AT_STEP_MISSING, AT_SIZE, AT_TOPOLOGY
) = range(30, 64)
CAP_EVENT, CAP_WAIT, CAP_LOG = range(64, 67)
REGISTERS: Final = 67
# fmt: on

DONE, LOW, ZERO_DELAY, REFUSED = range(4)
"""What `advance` returns: all done, a pool is low, something at tick 0, a message that cannot be sent."""

(NOTHING, ROW_DONE, USABLE, REDUCE, RECEIVED, STEP_DONE, STEP_REDUCE) = range(7)
"""Continuations."""

RUN_LIST, DELIVER, HOP, FREE, ANSWER = range(5)
"""Events."""

WHAT: Final = 8

COMPUTE, COLLECTIVE, SEND, RECV, MEMORY, SKIP, WAIT = range(7)
SLOT_NONE, SLOT_CPU, SLOT_COMPUTE, SLOT_COMM = -1, 0, 1, 2
G_SEND, G_RECV, G_DELAY, G_REDUCE, G_COMPUTE = range(5)
ANY, LOWER, UPPER = range(3)
RING, FULL, SWITCH = range(3)
NEVER, LATER_RUNS, ODD_RUNS = range(3)
COLLECTIVE_TAGS: Final = 500_000_000


_OPTIONS: Final[dict[str, Any]] = {"error_model": "numpy"}
_jit = numba.njit(**(_OPTIONS | {"no_cpython_wrapper": True}))


def _entry(function: Callable[..., Any]) -> Any:
    """Compile what Python calls; kept on disk where there is a place for it."""
    try:
        return numba.njit(**_OPTIONS, cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return numba.njit(**_OPTIONS)(function)


def is_cached() -> bool:
    """Whether an earlier run compiled this very file."""
    folder = Path(getattr(getattr(advance, "_cache", None), "cache_path", None) or ".")
    made = [path.stat().st_mtime for path in folder.glob("kernel.advance-*.nbi")]
    return max(made, default=0.0) > Path(__file__).stat().st_mtime


@_jit
def _take(m, f, pool):
    m[SPARE_OF + pool] -= 1
    return m[m[AT_SPARES + pool] + m[SPARE_OF + pool]]


@_jit
def _give(m, f, pool, row):
    m[m[AT_SPARES + pool] + m[SPARE_OF + pool]] = row
    m[SPARE_OF + pool] += 1


@_jit
def _schedule(m, f, tick, what):
    """EventQueue.at: a heap by tick and running number keeps the order within a tick."""
    number = m[NUMBER]
    m[NUMBER] = number + 1
    at = m[EVENTS]
    m[EVENTS] = at + 1
    while at > 0:
        up = at - 1 >> 1
        if m[m[AT_EVENT] + up * EVENT_WIDTH + EVENT_TICK] <= tick:
            break
        (
            m[m[AT_EVENT] + at * EVENT_WIDTH + EVENT_TICK],
            m[m[AT_EVENT] + at * EVENT_WIDTH + EVENT_NUMBER],
            m[m[AT_EVENT] + at * EVENT_WIDTH + EVENT_WHAT],
        ) = (
            m[m[AT_EVENT] + up * EVENT_WIDTH + EVENT_TICK],
            m[m[AT_EVENT] + up * EVENT_WIDTH + EVENT_NUMBER],
            m[m[AT_EVENT] + up * EVENT_WIDTH + EVENT_WHAT],
        )
        at = up
    (
        m[m[AT_EVENT] + at * EVENT_WIDTH + EVENT_TICK],
        m[m[AT_EVENT] + at * EVENT_WIDTH + EVENT_NUMBER],
        m[m[AT_EVENT] + at * EVENT_WIDTH + EVENT_WHAT],
    ) = (tick, number, what)


@_jit
def _next_event(m, f):
    """Take the first event off the heap; its tick is the present."""
    what = m[m[AT_EVENT] + EVENT_WHAT]
    m[NOW] = m[m[AT_EVENT] + EVENT_TICK]
    last = m[EVENTS] - 1
    m[EVENTS] = last
    tick, number, moved = (
        m[m[AT_EVENT] + last * EVENT_WIDTH + EVENT_TICK],
        m[m[AT_EVENT] + last * EVENT_WIDTH + EVENT_NUMBER],
        m[m[AT_EVENT] + last * EVENT_WIDTH + EVENT_WHAT],
    )
    at = 0
    while True:
        down = 2 * at + 1
        if down >= last:
            break
        if down + 1 < last:
            a = m[AT_EVENT] + down * EVENT_WIDTH
            b = m[AT_EVENT] + (down + 1) * EVENT_WIDTH
            if m[b + EVENT_TICK] < m[a + EVENT_TICK] or (
                m[b + EVENT_TICK] == m[a + EVENT_TICK] and m[b + EVENT_NUMBER] < m[a + EVENT_NUMBER]
            ):
                down += 1
        d = m[AT_EVENT] + down * EVENT_WIDTH
        if m[d + EVENT_TICK] > tick or (m[d + EVENT_TICK] == tick and m[d + EVENT_NUMBER] > number):
            break
        (
            m[m[AT_EVENT] + at * EVENT_WIDTH + EVENT_TICK],
            m[m[AT_EVENT] + at * EVENT_WIDTH + EVENT_NUMBER],
            m[m[AT_EVENT] + at * EVENT_WIDTH + EVENT_WHAT],
        ) = (m[d + EVENT_TICK], m[d + EVENT_NUMBER], m[d + EVENT_WHAT])
        at = down
    (
        m[m[AT_EVENT] + at * EVENT_WIDTH + EVENT_TICK],
        m[m[AT_EVENT] + at * EVENT_WIDTH + EVENT_NUMBER],
        m[m[AT_EVENT] + at * EVENT_WIDTH + EVENT_WHAT],
    ) = (tick, number, moved)
    return what


@_jit
def _timer(m, f, rank, delay_ns, kind, a, b):
    """_Rank.set_timer: the first timer of a tick schedules the rank's list, later ones join it."""
    item = _take(m, f, ITEM)
    row = m[AT_ITEM] + item * ITEM_WIDTH
    m[row + ITEM_NEXT], m[row + ITEM_KIND], m[row + ITEM_A], m[row + ITEM_B] = (-1, kind, a, b)
    tick = m[NOW] + delay_ns
    at = m[m[AT_RANK] + rank * RANK_WIDTH + RANK_LISTS]
    while at >= 0 and m[m[AT_TIMERS] + at * TIMERS_WIDTH + TIMERS_TICK] != tick:
        at = m[m[AT_TIMERS] + at * TIMERS_WIDTH + TIMERS_NEXT]
    if at >= 0:
        if m[m[AT_TIMERS] + at * TIMERS_WIDTH + TIMERS_LAST] < 0:
            m[m[AT_TIMERS] + at * TIMERS_WIDTH + TIMERS_FIRST] = item
        else:
            m[m[AT_ITEM] + m[m[AT_TIMERS] + at * TIMERS_WIDTH + TIMERS_LAST] * ITEM_WIDTH + ITEM_NEXT] = item
        m[m[AT_TIMERS] + at * TIMERS_WIDTH + TIMERS_LAST] = item
        return
    at = _take(m, f, LIST)
    new = m[AT_TIMERS] + at * TIMERS_WIDTH
    m[new + TIMERS_RANK], m[new + TIMERS_TICK], m[new + TIMERS_FIRST], m[new + TIMERS_LAST], m[new + TIMERS_NEXT] = (
        rank,
        tick,
        item,
        item,
        m[m[AT_RANK] + rank * RANK_WIDTH + RANK_LISTS],
    )
    m[m[AT_RANK] + rank * RANK_WIDTH + RANK_LISTS] = at
    _schedule(m, f, tick, at * WHAT + RUN_LIST)


@_jit
def _drop_list(m, f, at):
    rank = m[m[AT_TIMERS] + at * TIMERS_WIDTH + TIMERS_RANK]
    if m[m[AT_RANK] + rank * RANK_WIDTH + RANK_LISTS] == at:
        m[m[AT_RANK] + rank * RANK_WIDTH + RANK_LISTS] = m[m[AT_TIMERS] + at * TIMERS_WIDTH + TIMERS_NEXT]
    else:
        before = m[m[AT_RANK] + rank * RANK_WIDTH + RANK_LISTS]
        while m[m[AT_TIMERS] + before * TIMERS_WIDTH + TIMERS_NEXT] != at:
            before = m[m[AT_TIMERS] + before * TIMERS_WIDTH + TIMERS_NEXT]
        m[m[AT_TIMERS] + before * TIMERS_WIDTH + TIMERS_NEXT] = m[m[AT_TIMERS] + at * TIMERS_WIDTH + TIMERS_NEXT]
    _give(m, f, LIST, at)


@_jit
def _find(m, f, pair, tag, size):
    """Where a key is in the table of waits, or the free place for it (open addressing)."""
    mask = m[CAP_WAIT] - 1
    mixed = pair * 2654435761 + tag * 2246822507 + size * 3266489909 & 576460752303423487
    at = (mixed ^ mixed >> 17 ^ mixed >> 33) & mask
    while m[m[AT_WAIT] + at * WAIT_WIDTH + WAIT_PAIR] >= 0:
        if (
            m[m[AT_WAIT] + at * WAIT_WIDTH + WAIT_PAIR] == pair
            and m[m[AT_WAIT] + at * WAIT_WIDTH + WAIT_TAG] == tag
            and (m[m[AT_WAIT] + at * WAIT_WIDTH + WAIT_SIZE] == size)
        ):
            break
        at = at + 1 & mask
    return at


@_jit
def _home(pair, tag, size, mask):
    mixed = pair * 2654435761 + tag * 2246822507 + size * 3266489909 & 576460752303423487
    return (mixed ^ mixed >> 17 ^ mixed >> 33) & mask


@_jit
def _forget(m, f, at):
    """Free a place; those that were pushed on past it move back."""
    mask = m[CAP_WAIT] - 1
    m[WAITS] -= 1
    hole = at
    while True:
        at = at + 1 & mask
        row = m[AT_WAIT] + at * WAIT_WIDTH
        if m[row + WAIT_PAIR] < 0:
            break
        home = _home(m[row + WAIT_PAIR], m[row + WAIT_TAG], m[row + WAIT_SIZE], mask)
        if at - home & mask >= at - hole & mask:
            into = m[AT_WAIT] + hole * WAIT_WIDTH
            m[into + WAIT_PAIR], m[into + WAIT_TAG], m[into + WAIT_SIZE] = (
                m[row + WAIT_PAIR],
                m[row + WAIT_TAG],
                m[row + WAIT_SIZE],
            )
            m[into + WAIT_ARRIVED], m[into + WAIT_FIRST], m[into + WAIT_LAST] = (
                m[row + WAIT_ARRIVED],
                m[row + WAIT_FIRST],
                m[row + WAIT_LAST],
            )
            hole = at
    m[m[AT_WAIT] + hole * WAIT_WIDTH + WAIT_PAIR] = -1


@_jit
def _new_wait(m, f, at, pair, tag, size):
    m[WAITS] += 1
    row = m[AT_WAIT] + at * WAIT_WIDTH
    (
        m[row + WAIT_PAIR],
        m[row + WAIT_TAG],
        m[row + WAIT_SIZE],
        m[row + WAIT_ARRIVED],
        m[row + WAIT_FIRST],
        m[row + WAIT_LAST],
    ) = (pair, tag, size, 0, -1, -1)


@_jit
def _expect(m, f, src, dst, tag, size, kind, a, b):
    """_Matching.expect."""
    pair = src * m[RANKS] + dst
    item = _take(m, f, ITEM)
    new = m[AT_ITEM] + item * ITEM_WIDTH
    m[new + ITEM_NEXT], m[new + ITEM_KIND], m[new + ITEM_A], m[new + ITEM_B] = (-1, kind, a, b)
    at = _find(m, f, pair, tag, size)
    row = m[AT_WAIT] + at * WAIT_WIDTH
    if m[row + WAIT_PAIR] < 0:
        _new_wait(m, f, at, pair, tag, size)
    elif m[row + WAIT_ARRIVED] > 0:
        m[row + WAIT_ARRIVED] -= 1
        if m[row + WAIT_ARRIVED] == 0:
            _forget(m, f, at)
        _schedule(m, f, m[NOW], item * WHAT + ANSWER)
        return
    if m[row + WAIT_FIRST] < 0:
        m[row + WAIT_FIRST] = item
    else:
        m[m[AT_ITEM] + m[row + WAIT_LAST] * ITEM_WIDTH + ITEM_NEXT] = item
    m[row + WAIT_LAST] = item


@_jit
def _arrive(m, f, src, dst, tag, size):
    """_Matching.arrive."""
    pair = src * m[RANKS] + dst
    at = _find(m, f, pair, tag, size)
    row = m[AT_WAIT] + at * WAIT_WIDTH
    if m[row + WAIT_PAIR] < 0:
        _new_wait(m, f, at, pair, tag, size)
    if m[row + WAIT_FIRST] < 0:
        m[row + WAIT_ARRIVED] += 1
        return
    item = m[row + WAIT_FIRST]
    m[row + WAIT_FIRST] = m[m[AT_ITEM] + item * ITEM_WIDTH + ITEM_NEXT]
    if m[row + WAIT_FIRST] < 0:
        _forget(m, f, at)
    _go_on_with(m, f, item)


@_jit
def _send(m, f, src, dst, tag, size, kind, a, b, row, chunk, phase, step):
    """_Matching.post and Network.send."""
    ranks = m[RANKS]
    if src == dst or dst < 0 or dst >= ranks or (size <= 0):
        m[FAILED] = REFUSED
        return
    at = _take(m, f, LETTER)
    letter = m[AT_LETTER] + at * LETTER_WIDTH
    m[letter + LETTER_SRC], m[letter + LETTER_DST], m[letter + LETTER_TAG], m[letter + LETTER_SIZE] = (
        src,
        dst,
        tag,
        size,
    )
    (
        m[letter + LETTER_KIND],
        m[letter + LETTER_A],
        m[letter + LETTER_B],
        m[letter + LETTER_NEXT],
        m[letter + LETTER_DEVICE],
    ) = (kind, a, b, -1, src)
    if m[KEEP]:
        logged = m[LOGGED]
        m[LOGGED] = logged + 1
        m[letter + LETTER_LOG] = logged
        line = m[AT_LOG] + logged * LOG_WIDTH
        m[line + LOG_SRC], m[line + LOG_DST], m[line + LOG_TAG], m[line + LOG_SIZE] = (src, dst, tag, size)
        m[line + LOG_ROW], m[line + LOG_CHUNK], m[line + LOG_PHASE], m[line + LOG_STEP], m[line + LOG_POSTED_NS] = (
            row,
            chunk,
            phase,
            step,
            m[NOW],
        )
    if m[AWARE]:
        _enter_link(m, f, at)
    else:
        _schedule(m, f, m[NOW] + _unaware_ns(m, f, src, dst, size), at * WHAT + DELIVER)


@_jit
def _unaware_ns(m, f, src, dst, size):
    """UnawareNetwork: the lowest dimension in which the ranks differ is charged."""
    at = 0
    while src % m[m[AT_SIZE] + at] == dst % m[m[AT_SIZE] + at]:
        src //= m[m[AT_SIZE] + at]
        dst //= m[m[AT_SIZE] + at]
        at += 1
    n = m[m[AT_SIZE] + at]
    hops = 1 if m[m[AT_TOPOLOGY] + at] == FULL else 2
    if m[m[AT_TOPOLOGY] + at] == RING:
        clockwise = (dst - src) % n
        hops = min(clockwise, n - clockwise)
    return np.int64(hops * f[2 * at] + size / f[2 * at + 1])


@_jit
def _enter_link(m, f, at):
    """AwareNetwork._hop: a letter at `device`, which is not its last, goes on. A switch is device `size`.

    It does not deliver: a cycle of calls (a delivery may send) would take numba long, and break its cache.
    """
    letter = m[AT_LETTER] + at * LETTER_WIDTH
    n = m[RANKS]
    here, dst = (m[letter + LETTER_DEVICE], m[letter + LETTER_DST])
    topology = m[TOPOLOGY]
    if topology == FULL:
        link = here * n + dst
    elif topology == SWITCH:
        link = n + dst if here == n else here
    else:
        clockwise = (dst - m[letter + LETTER_SRC]) % n
        link = 2 * here + (1 if n - clockwise < clockwise else 0)
    way = m[AT_LINK] + link * LINK_WIDTH
    if m[way + LINK_BUSY]:
        if m[way + LINK_FIRST] < 0:
            m[way + LINK_FIRST] = at
        else:
            m[m[AT_LETTER] + m[way + LINK_LAST] * LETTER_WIDTH + LETTER_NEXT] = at
        m[way + LINK_LAST] = at
    else:
        _start(m, f, link, at)


@_jit
def _start(m, f, link, at):
    """_Link._start: arrival first, then the link is free."""
    letter = m[AT_LETTER] + at * LETTER_WIDTH
    n = m[RANKS]
    topology = m[TOPOLOGY]
    m[m[AT_LINK] + link * LINK_WIDTH + LINK_BUSY] = 1
    if topology == FULL:
        m[letter + LETTER_DEVICE] = m[letter + LETTER_DST]
    elif topology == SWITCH:
        m[letter + LETTER_DEVICE] = m[letter + LETTER_DST] if m[letter + LETTER_DEVICE] == n else n
    else:
        m[letter + LETTER_DEVICE] = (m[letter + LETTER_DEVICE] + (n - 1 if link & 1 else 1)) % n
    serialisation_ns = m[letter + LETTER_SIZE] / f[0 + 1]
    now = m[NOW]
    _schedule(m, f, now + np.int64(f[0] + serialisation_ns), at * WHAT + HOP)
    _schedule(m, f, now + np.int64(serialisation_ns), link * WHAT + FREE)


@_jit
def _free(m, f, link):
    way = m[AT_LINK] + link * LINK_WIDTH
    m[way + LINK_BUSY] = 0
    at = m[way + LINK_FIRST]
    if at >= 0:
        m[way + LINK_FIRST] = m[m[AT_LETTER] + at * LETTER_WIDTH + LETTER_NEXT]
        m[m[AT_LETTER] + at * LETTER_WIDTH + LETTER_NEXT] = -1
        _start(m, f, link, at)


@_jit
def _deliver(m, f, at):
    """_Simulation._delivered: the sender hears of it first, then the receiver."""
    letter = m[AT_LETTER] + at * LETTER_WIDTH
    src, dst, tag, size = (
        m[letter + LETTER_SRC],
        m[letter + LETTER_DST],
        m[letter + LETTER_TAG],
        m[letter + LETTER_SIZE],
    )
    kind, a, b = (m[letter + LETTER_KIND], m[letter + LETTER_A], m[letter + LETTER_B])
    if m[KEEP]:
        m[m[AT_LOG] + m[letter + LETTER_LOG] * LOG_WIDTH + LOG_DELIVERED_NS] = m[NOW]
    _give(m, f, LETTER, at)
    if kind != NOTHING:
        _go_on(m, f, kind, a, b)
    _arrive(m, f, src, dst, tag, size)


@_jit
def _go_on_with(m, f, item):
    row = m[AT_ITEM] + item * ITEM_WIDTH
    kind, a, b = (m[row + ITEM_KIND], m[row + ITEM_A], m[row + ITEM_B])
    _give(m, f, ITEM, item)
    _go_on(m, f, kind, a, b)


@_jit
def _go_on(m, f, kind, a, b):
    if kind == USABLE:
        _usable(m, f, a)
    elif kind == RECEIVED:
        m[m[AT_STREAM] + a * STREAM_WIDTH + STREAM_DELIVERED] += 1
        _make_token(m, f, a)
    elif kind == REDUCE:
        _timer(m, f, m[m[AT_STREAM] + a * STREAM_WIDTH + STREAM_RANK], b, USABLE, a, 0)
    elif kind == ROW_DONE:
        _row_done(m, f, a, b)
    elif kind == STEP_DONE:
        _step_done(m, f, a, b)
    elif kind == STEP_REDUCE:
        step = _graph_step_at(m, f, a, b)
        _timer(
            m,
            f,
            m[m[AT_STREAM] + a * STREAM_WIDTH + STREAM_RANK],
            m[m[AT_GRAPH_STEP] + step * GRAPH_STEP_WIDTH + GRAPH_STEP_REDUCE_NS],
            STEP_DONE,
            a,
            b,
        )


@_jit
def _make_token(m, f, at):
    stream = m[AT_STREAM] + at * STREAM_WIDTH
    token = m[AT_TOKEN] + m[stream + STREAM_PROGRAM] * TOKEN_WIDTH
    number = m[stream + STREAM_MADE]
    m[stream + STREAM_MADE] = number + 1
    delay_ns = m[m[AT_PHASE] + _phase_at(m, f, at) * PHASE_WIDTH + PHASE_DELAY_NS]
    length = m[token + TOKEN_START] + m[token + TOKEN_MARKED_RUN]
    marked = number % length >= m[token + TOKEN_START] and (
        m[token + TOKEN_REDUCE] == LATER_RUNS or (m[token + TOKEN_REDUCE] == ODD_RUNS and number // length % 2 == 0)
    )
    if marked:
        step = m[token + TOKEN_FIRST_STEP] + (0 if m[token + TOKEN_SINGLE] else min(number, m[token + TOKEN_STEPS] - 1))
        _timer(m, f, m[stream + STREAM_RANK], delay_ns, REDUCE, at, m[m[AT_STEP] + step * STEP_WIDTH + STEP_REDUCE_NS])
    else:
        _timer(m, f, m[stream + STREAM_RANK], delay_ns, USABLE, at, 0)


@_jit
def _usable(m, f, at):
    stream = m[AT_STREAM] + at * STREAM_WIDTH
    token = m[AT_TOKEN] + m[stream + STREAM_PROGRAM] * TOKEN_WIDTH
    m[stream + STREAM_USABLE] += 1
    if 0 <= m[token + TOKEN_GATE] <= m[stream + STREAM_SENT]:
        if m[stream + STREAM_DELIVERED] < m[token + TOKEN_GATE]:
            return
        for _ in range(m[token + TOKEN_START]):
            _exchange(m, f, at)
    else:
        _exchange(m, f, at)
    if m[stream + STREAM_SENT] == m[token + TOKEN_STEPS] and m[stream + STREAM_USABLE] == m[token + TOKEN_START]:
        _proceed(m, f, at)


@_jit
def _exchange(m, f, at):
    stream = m[AT_STREAM] + at * STREAM_WIDTH
    token = m[AT_TOKEN] + m[stream + STREAM_PROGRAM] * TOKEN_WIDTH
    if m[stream + STREAM_SENT] == m[token + TOKEN_STEPS] or m[stream + STREAM_USABLE] == 0:
        return
    phase = m[AT_PHASE] + _phase_at(m, f, at) * PHASE_WIDTH
    number = m[stream + STREAM_SENT]
    step = m[AT_STEP] + (m[token + TOKEN_FIRST_STEP] + (0 if m[token + TOKEN_SINGLE] else number)) * STEP_WIDTH
    offset, position = (m[step + STEP_OFFSET], m[stream + STREAM_POSITION])
    if m[token + TOKEN_XOR]:
        to = source = position ^ offset
    elif m[stream + STREAM_CLOCKWISE]:
        to, source = ((position + offset) % m[phase + PHASE_SIZE], (position - offset) % m[phase + PHASE_SIZE])
    else:
        to, source = ((position - offset) % m[phase + PHASE_SIZE], (position + offset) % m[phase + PHASE_SIZE])
    m[stream + STREAM_SENT] = number + 1
    m[stream + STREAM_USABLE] -= 1
    tag = COLLECTIVE_TAGS + m[stream + STREAM_ID] % COLLECTIVE_TAGS
    rank, row = (
        m[stream + STREAM_RANK],
        m[m[AT_INSTANCE] + m[stream + STREAM_INSTANCE] * INSTANCE_WIDTH + INSTANCE_ROW],
    )
    to, source = (_member(m, f, at, to), _member(m, f, at, source))
    _send(
        m,
        f,
        rank,
        to,
        tag,
        m[step + STEP_SIZE],
        NOTHING,
        0,
        0,
        row,
        m[stream + STREAM_CHUNK],
        m[stream + STREAM_AT],
        number,
    )
    _expect(m, f, source, rank, tag, m[step + STEP_SIZE], RECEIVED, at, 0)


@_jit
def _phase_at(m, f, at):
    stream = m[AT_STREAM] + at * STREAM_WIDTH
    return (
        m[
            m[AT_COLLECTIVE]
            + m[m[AT_INSTANCE] + m[stream + STREAM_INSTANCE] * INSTANCE_WIDTH + INSTANCE_COLLECTIVE] * COLLECTIVE_WIDTH
            + COLLECTIVE_FIRST_PHASE
        ]
        + m[stream + STREAM_AT]
    )


@_jit
def _member(m, f, at, position):
    """Members.of at a position."""
    phase = m[AT_PHASE] + _phase_at(m, f, at) * PHASE_WIDTH
    if m[phase + PHASE_RANKS] >= 0:
        return m[m[AT_MEMBER] + (m[phase + PHASE_RANKS] + position)]
    return m[m[AT_STREAM] + at * STREAM_WIDTH + STREAM_LINE] + position * m[phase + PHASE_STRIDE]


@_jit
def _graph_step_at(m, f, at, step):
    return m[m[AT_GRAPH] + m[m[AT_STREAM] + at * STREAM_WIDTH + STREAM_PROGRAM] * GRAPH_WIDTH + GRAPH_FIRST_STEP] + step


@_jit
def _start_graph(m, f, at):
    stream = m[AT_STREAM] + at * STREAM_WIDTH
    graph = m[AT_GRAPH] + m[stream + STREAM_PROGRAM] * GRAPH_WIDTH
    base = at * m[STEPS]
    m[stream + STREAM_LEFT] = m[graph + GRAPH_STEPS]
    for step in range(m[graph + GRAPH_STEPS]):
        m[m[AT_STEP_MISSING] + (base + step)] = m[
            m[AT_GRAPH_STEP] + (m[graph + GRAPH_FIRST_STEP] + step) * GRAPH_STEP_WIDTH + GRAPH_STEP_DEPS
        ]
    for step in range(m[graph + GRAPH_STEPS]):
        if m[m[AT_GRAPH_STEP] + (m[graph + GRAPH_FIRST_STEP] + step) * GRAPH_STEP_WIDTH + GRAPH_STEP_DEPS] == 0:
            _carry_out(m, f, at, step)
            if m[
                m[AT_GRAPH_STEP] + (m[graph + GRAPH_FIRST_STEP] + step) * GRAPH_STEP_WIDTH + GRAPH_STEP_KIND
            ] == G_SEND and (not m[graph + GRAPH_AWAITS]):
                m[stream + STREAM_LEFT] -= 1


@_jit
def _carry_out(m, f, at, number):
    stream = m[AT_STREAM] + at * STREAM_WIDTH
    step = m[AT_GRAPH_STEP] + _graph_step_at(m, f, at, number) * GRAPH_STEP_WIDTH
    tag = (
        m[step + GRAPH_STEP_TAG]
        if m[step + GRAPH_STEP_TAG] >= 0
        else COLLECTIVE_TAGS + m[stream + STREAM_ID] % COLLECTIVE_TAGS
    )
    rank, row = (
        m[stream + STREAM_RANK],
        m[m[AT_INSTANCE] + m[stream + STREAM_INSTANCE] * INSTANCE_WIDTH + INSTANCE_ROW],
    )
    if m[step + GRAPH_STEP_KIND] == G_SEND:
        kind = STEP_DONE if m[m[AT_GRAPH] + m[stream + STREAM_PROGRAM] * GRAPH_WIDTH + GRAPH_AWAITS] else NOTHING
        peer = _member(m, f, at, m[step + GRAPH_STEP_PEER])
        _send(
            m,
            f,
            rank,
            peer,
            tag,
            m[step + GRAPH_STEP_SIZE],
            kind,
            at,
            number,
            row,
            m[stream + STREAM_CHUNK],
            m[stream + STREAM_AT],
            number,
        )
    elif m[step + GRAPH_STEP_KIND] == G_RECV:
        _expect(
            m,
            f,
            _member(m, f, at, m[step + GRAPH_STEP_PEER]),
            rank,
            tag,
            m[step + GRAPH_STEP_SIZE],
            STEP_DONE,
            at,
            number,
        )
    elif m[step + GRAPH_STEP_KIND] == G_COMPUTE:
        _timer(m, f, rank, m[step + GRAPH_STEP_DURATION_NS], STEP_DONE, at, number)
    elif m[step + GRAPH_STEP_KIND] == G_REDUCE:
        _timer(m, f, rank, m[m[AT_PHASE] + _phase_at(m, f, at) * PHASE_WIDTH + PHASE_DELAY_NS], STEP_REDUCE, at, number)
    else:
        _timer(m, f, rank, m[m[AT_PHASE] + _phase_at(m, f, at) * PHASE_WIDTH + PHASE_DELAY_NS], STEP_DONE, at, number)


@_jit
def _step_done(m, f, at, number):
    stream = m[AT_STREAM] + at * STREAM_WIDTH
    graph = m[AT_GRAPH] + m[stream + STREAM_PROGRAM] * GRAPH_WIDTH
    m[stream + STREAM_LEFT] -= 1
    if m[stream + STREAM_LEFT] == 0:
        _proceed(m, f, at)
        return
    step = m[AT_GRAPH_STEP] + (m[graph + GRAPH_FIRST_STEP] + number) * GRAPH_STEP_WIDTH
    base = at * m[STEPS]
    ended = 0
    for place in range(m[step + GRAPH_STEP_FIRST_CHILD], m[step + GRAPH_STEP_LAST_CHILD]):
        child = m[m[AT_GRAPH_CHILD] + place]
        m[m[AT_STEP_MISSING] + (base + child)] -= 1
        if m[m[AT_STEP_MISSING] + (base + child)] == 0:
            _carry_out(m, f, at, child)
            if m[
                m[AT_GRAPH_STEP] + (m[graph + GRAPH_FIRST_STEP] + child) * GRAPH_STEP_WIDTH + GRAPH_STEP_KIND
            ] == G_SEND and (not m[graph + GRAPH_AWAITS]):
                ended += 1
    m[stream + STREAM_LEFT] -= ended
    if ended and m[stream + STREAM_LEFT] == 0:
        _proceed(m, f, at)


@_jit
def _proceed(m, f, at):
    """Leave the queue of the phase that ended, enter the next one's; the old queue admits first."""
    stream = m[AT_STREAM] + at * STREAM_WIDTH
    left = m[stream + STREAM_QUEUE]
    collective = (
        m[AT_COLLECTIVE]
        + m[m[AT_INSTANCE] + m[stream + STREAM_INSTANCE] * INSTANCE_WIDTH + INSTANCE_COLLECTIVE] * COLLECTIVE_WIDTH
    )
    if m[stream + STREAM_AT] + 1 == m[collective + COLLECTIVE_PHASES]:
        _finish(m, f, at, left)
        return
    m[stream + STREAM_AT] += 1
    entered = _enter(m, f, at)
    m[m[AT_QUEUE] + left * QUEUE_WIDTH + QUEUE_RUNNING] -= 1
    _admit(m, f, left)
    _admit(m, f, entered)


@_jit
def _enter(m, f, at):
    stream = m[AT_STREAM] + at * STREAM_WIDTH
    entered = m[m[AT_PLAN_QUEUE] + (at * m[PHASES] + m[stream + STREAM_AT])] >> 1
    m[stream + STREAM_QUEUE] = entered
    m[stream + STREAM_NEXT] = -1
    queue = m[AT_QUEUE] + entered * QUEUE_WIDTH
    if m[queue + QUEUE_FIRST] < 0:
        m[queue + QUEUE_FIRST] = at
    else:
        m[m[AT_STREAM] + m[queue + QUEUE_LAST] * STREAM_WIDTH + STREAM_NEXT] = at
    m[queue + QUEUE_LAST] = at
    return entered


@_jit
def _finish(m, f, at, left):
    """The collective's completion runs before the chunk leaves its queue, as it may launch the next."""
    instance = m[m[AT_STREAM] + at * STREAM_WIDTH + STREAM_INSTANCE]
    m[m[AT_INSTANCE] + instance * INSTANCE_WIDTH + INSTANCE_LEFT] -= 1
    if m[m[AT_INSTANCE] + instance * INSTANCE_WIDTH + INSTANCE_LEFT] == 0:
        rank, row = (
            m[m[AT_INSTANCE] + instance * INSTANCE_WIDTH + INSTANCE_RANK],
            m[m[AT_INSTANCE] + instance * INSTANCE_WIDTH + INSTANCE_ROW],
        )
        _give(m, f, INSTANCE, instance)
        _row_done(m, f, rank, row)
    _give(m, f, STREAM, at)
    m[m[AT_QUEUE] + left * QUEUE_WIDTH + QUEUE_RUNNING] -= 1
    _admit(m, f, left)


@_jit
def _admit(m, f, at):
    queue = m[AT_QUEUE] + at * QUEUE_WIDTH
    while m[queue + QUEUE_FIRST] >= 0 and m[queue + QUEUE_RUNNING] < m[LIMIT]:
        stream = m[queue + QUEUE_FIRST]
        m[queue + QUEUE_FIRST] = m[m[AT_STREAM] + stream * STREAM_WIDTH + STREAM_NEXT]
        m[queue + QUEUE_RUNNING] += 1
        _start_phase(m, f, stream)


@_jit
def _start_phase(m, f, at):
    stream = m[AT_STREAM] + at * STREAM_WIDTH
    phase = m[AT_PHASE] + _phase_at(m, f, at) * PHASE_WIDTH
    plan = at * m[PHASES] + m[stream + STREAM_AT]
    m[stream + STREAM_CLOCKWISE] = m[m[AT_PLAN_QUEUE] + plan] & 1
    if m[phase + PHASE_RANKS] < 0:
        m[stream + STREAM_POSITION] = m[stream + STREAM_RANK] // m[phase + PHASE_STRIDE] % m[phase + PHASE_SIZE]
        m[stream + STREAM_LINE] = m[stream + STREAM_RANK] - m[stream + STREAM_POSITION] * m[phase + PHASE_STRIDE]
    else:
        m[stream + STREAM_POSITION] = 0
        while m[m[AT_MEMBER] + (m[phase + PHASE_RANKS] + m[stream + STREAM_POSITION])] != m[stream + STREAM_RANK]:
            m[stream + STREAM_POSITION] += 1
    variant = (
        m[phase + PHASE_FIRST_VARIANT]
        + m[m[AT_PLAN_TURN] + plan] % m[phase + PHASE_VARIANTS] * m[phase + PHASE_POSITIONS]
    )
    program = variant + (m[stream + STREAM_POSITION] if m[phase + PHASE_POSITIONS] > 1 else 0)
    m[stream + STREAM_PROGRAM] = program
    m[stream + STREAM_MADE] = m[stream + STREAM_USABLE] = m[stream + STREAM_SENT] = m[stream + STREAM_DELIVERED] = 0
    if m[m[AT_TOKEN] + program * TOKEN_WIDTH + TOKEN_GRAPH] >= 0:
        m[stream + STREAM_PROGRAM] = m[m[AT_TOKEN] + program * TOKEN_WIDTH + TOKEN_GRAPH]
        _start_graph(m, f, at)
    else:
        for _ in range(m[m[AT_TOKEN] + program * TOKEN_WIDTH + TOKEN_START]):
            _make_token(m, f, at)


@_jit
def _launch(m, f, rank, row, number):
    """RankEngine._launch and Streams.launch."""
    collective = m[AT_COLLECTIVE] + number * COLLECTIVE_WIDTH
    first = m[m[AT_RANK] + rank * RANK_WIDTH + RANK_STREAMS]
    if m[collective + COLLECTIVE_GROUP] >= 0:
        place = rank * m[GROUPS] + m[collective + COLLECTIVE_GROUP]
        first = m[m[AT_GROUP_STREAM] + place]
        m[m[AT_GROUP_STREAM] + place] = first + m[collective + COLLECTIVE_CHUNKS]
    m[m[AT_RANK] + rank * RANK_WIDTH + RANK_STREAMS] += m[collective + COLLECTIVE_CHUNKS]
    instance = _take(m, f, INSTANCE)
    made = m[AT_INSTANCE] + instance * INSTANCE_WIDTH
    m[made + INSTANCE_RANK], m[made + INSTANCE_ROW], m[made + INSTANCE_LEFT], m[made + INSTANCE_COLLECTIVE] = (
        rank,
        row,
        m[collective + COLLECTIVE_CHUNKS],
        number,
    )
    for chunk in range(m[collective + COLLECTIVE_CHUNKS]):
        at = _take(m, f, STREAM)
        stream = m[AT_STREAM] + at * STREAM_WIDTH
        (
            m[stream + STREAM_RANK],
            m[stream + STREAM_INSTANCE],
            m[stream + STREAM_CHUNK],
            m[stream + STREAM_ID],
            m[stream + STREAM_AT],
        ) = (rank, instance, chunk, first + chunk, 0)
        for phase in range(m[collective + COLLECTIVE_PHASES]):
            _plan(
                m,
                f,
                at,
                phase,
                m[collective + COLLECTIVE_FIRST_PHASE] + phase,
                rank,
                m[collective + COLLECTIVE_FIXED_QUEUE],
            )
        _admit(m, f, _enter(m, f, at))


@_jit
def _plan(m, f, at, place, number, rank, fixed_queue):
    """Turns.queue and Turns.variant: queue * 2 + clockwise, and which variant."""
    phase = m[AT_PHASE] + number * PHASE_WIDTH
    queues = m[QUEUES]
    plan = at * m[PHASES] + place
    first_queue = (rank * m[DIMENSIONS] + m[phase + PHASE_DIMENSION]) * queues
    if fixed_queue:
        m[m[AT_PLAN_QUEUE] + plan] = first_queue * 2 + 1
    else:
        half = queues // 2
        turn = (rank * m[DIMENSIONS] + m[phase + PHASE_DIMENSION]) * 3 + m[phase + PHASE_LANE]
        mine = m[m[AT_TURN] + turn]
        following = mine + 1
        clockwise = True
        if m[phase + PHASE_LANE] == LOWER:
            m[m[AT_TURN] + turn] = 0 if following >= half else following
        else:
            if following >= queues:
                following = half if m[phase + PHASE_LANE] == UPPER else 0
            m[m[AT_TURN] + turn] = following
            clockwise = m[phase + PHASE_LANE] == ANY and (queues == 1 or mine < half)
        m[m[AT_PLAN_QUEUE] + plan] = (first_queue + mine) * 2 + (1 if clockwise else 0)
    m[m[AT_PLAN_TURN] + plan] = 0
    if m[phase + PHASE_TURN] >= 0:
        variant = rank * m[TURNS] + m[phase + PHASE_TURN]
        m[m[AT_PLAN_TURN] + plan] = m[m[AT_VARIANT] + variant]
        m[m[AT_VARIANT] + variant] += 1


@_jit
def _row_done(m, f, rank, row):
    _close(m, f, rank, row)
    _issue_ready(m, f, rank)
    _finish_if_idle(m, f, rank)


@_jit
def _close(m, f, rank, row):
    me = m[AT_RANK] + rank * RANK_WIDTH
    op = m[AT_OP] + (m[me + RANK_OP] + row) * OP_WIDTH
    m[m[AT_DONE_NS] + (m[me + RANK_ROW] + row)] = m[NOW]
    if m[op + OP_SLOT] != SLOT_NONE:
        m[me + RANK_BUSY] &= ~(1 << m[op + OP_SLOT])
    m[me + RANK_ONGOING] -= 1
    for place in range(m[op + OP_FIRST_CHILD], m[op + OP_LAST_CHILD]):
        child = m[m[AT_CHILD] + place]
        m[m[AT_MISSING] + (m[me + RANK_ROW] + child)] -= 1
        if m[m[AT_MISSING] + (m[me + RANK_ROW] + child)] == 0:
            m[m[AT_RELEASED_ROW] + (m[me + RANK_ROW] + m[me + RANK_RELEASED])] = child
            m[me + RANK_RELEASED] += 1
            m[me + RANK_READY] += 1


@_jit
def _finish_if_idle(m, f, rank):
    me = m[AT_RANK] + rank * RANK_WIDTH
    if m[me + RANK_READY] == 0 and m[me + RANK_ONGOING] == 0 and (m[me + RANK_FINISH_NS] < 0):
        m[me + RANK_FINISH_NS] = m[NOW]


@_jit
def _push_row(m, f, base, length, row):
    at = length
    while at > 0:
        up = at - 1 >> 1
        if m[m[AT_HEAP_ROW] + (base + up)] <= row:
            break
        m[m[AT_HEAP_ROW] + (base + at)] = m[m[AT_HEAP_ROW] + (base + up)]
        at = up
    m[m[AT_HEAP_ROW] + (base + at)] = row


@_jit
def _pop_row(m, f, base, length):
    """Drop the lowest row of a heap of that length."""
    last = length - 1
    moved = m[m[AT_HEAP_ROW] + (base + last)]
    at = 0
    while True:
        down = 2 * at + 1
        if down >= last:
            break
        if down + 1 < last and m[m[AT_HEAP_ROW] + (base + down + 1)] < m[m[AT_HEAP_ROW] + (base + down)]:
            down += 1
        if m[m[AT_HEAP_ROW] + (base + down)] >= moved:
            break
        m[m[AT_HEAP_ROW] + (base + at)] = m[m[AT_HEAP_ROW] + (base + down)]
        at = down
    m[m[AT_HEAP_ROW] + (base + at)] = moved


@_jit
def _admit_released(m, f, rank):
    me = m[AT_RANK] + rank * RANK_WIDTH
    for place in range(m[me + RANK_RELEASED]):
        row = m[m[AT_RELEASED_ROW] + (m[me + RANK_ROW] + place)]
        slot = m[m[AT_OP] + (m[me + RANK_OP] + row) * OP_WIDTH + OP_SLOT]
        if slot == SLOT_NONE:
            _push_row(m, f, m[me + RANK_HEAP_NONE], m[me + RANK_LEN_NONE], row)
            m[me + RANK_LEN_NONE] += 1
        elif slot == SLOT_CPU:
            _push_row(m, f, m[me + RANK_HEAP_CPU], m[me + RANK_LEN_CPU], row)
            m[me + RANK_LEN_CPU] += 1
        elif slot == SLOT_COMPUTE:
            _push_row(m, f, m[me + RANK_HEAP_COMPUTE], m[me + RANK_LEN_COMPUTE], row)
            m[me + RANK_LEN_COMPUTE] += 1
        else:
            _push_row(m, f, m[me + RANK_HEAP_COMM], m[me + RANK_LEN_COMM], row)
            m[me + RANK_LEN_COMM] += 1
    m[me + RANK_RELEASED] = 0


@_jit
def _lowest(m, f, rank):
    """Readiness._lowest: take the lowest ready row whose slot is free; -1 if there is none."""
    me = m[AT_RANK] + rank * RANK_WIDTH
    best, slot = (np.int64(-1), SLOT_NONE)
    if m[me + RANK_LEN_NONE]:
        best = m[m[AT_HEAP_ROW] + m[me + RANK_HEAP_NONE]]
    if m[me + RANK_LEN_CPU] and (not m[me + RANK_BUSY] & 1):
        row = m[m[AT_HEAP_ROW] + m[me + RANK_HEAP_CPU]]
        if best < 0 or row < best:
            best, slot = (row, SLOT_CPU)
    if m[me + RANK_LEN_COMPUTE] and (not m[me + RANK_BUSY] & 2):
        row = m[m[AT_HEAP_ROW] + m[me + RANK_HEAP_COMPUTE]]
        if best < 0 or row < best:
            best, slot = (row, SLOT_COMPUTE)
    if m[me + RANK_LEN_COMM] and (not m[me + RANK_BUSY] & 4):
        row = m[m[AT_HEAP_ROW] + m[me + RANK_HEAP_COMM]]
        if best < 0 or row < best:
            best, slot = (row, SLOT_COMM)
    if best < 0:
        return best
    if slot == SLOT_NONE:
        _pop_row(m, f, m[me + RANK_HEAP_NONE], m[me + RANK_LEN_NONE])
        m[me + RANK_LEN_NONE] -= 1
    elif slot == SLOT_CPU:
        _pop_row(m, f, m[me + RANK_HEAP_CPU], m[me + RANK_LEN_CPU])
        m[me + RANK_LEN_CPU] -= 1
    elif slot == SLOT_COMPUTE:
        _pop_row(m, f, m[me + RANK_HEAP_COMPUTE], m[me + RANK_LEN_COMPUTE])
        m[me + RANK_LEN_COMPUTE] -= 1
    else:
        _pop_row(m, f, m[me + RANK_HEAP_COMM], m[me + RANK_LEN_COMM])
        m[me + RANK_LEN_COMM] -= 1
    if slot != SLOT_NONE:
        m[me + RANK_BUSY] |= 1 << slot
    m[me + RANK_READY] -= 1
    m[me + RANK_ONGOING] += 1
    return best


@_jit
def _issue_ready(m, f, rank):
    _admit_released(m, f, rank)
    row = _lowest(m, f, rank)
    while row >= 0:
        _issue(m, f, rank, row)
        row = _lowest(m, f, rank)


@_jit
def _issue(m, f, rank, row):
    me = m[AT_RANK] + rank * RANK_WIDTH
    op = m[AT_OP] + (m[me + RANK_OP] + row) * OP_WIDTH
    kind = m[op + OP_KIND]
    m[m[AT_ISSUE_NS] + (m[me + RANK_ROW] + row)] = m[NOW]
    if kind == COLLECTIVE:
        _launch(m, f, rank, row, m[op + OP_COLLECTIVE])
    elif kind == SEND:
        _send(m, f, rank, m[op + OP_PEER], m[op + OP_TAG], m[op + OP_SIZE], ROW_DONE, rank, row, row, -1, -1, -1)
    elif kind == RECV:
        _expect(m, f, m[op + OP_PEER], rank, m[op + OP_TAG], m[op + OP_SIZE], ROW_DONE, rank, row)
    elif kind == SKIP:
        _close(m, f, rank, row)
    else:
        if kind == COMPUTE and m[op + OP_SLOT] != SLOT_CPU:
            m[me + RANK_COMPUTE_NS] += m[op + OP_DURATION_NS]
        _timer(m, f, rank, m[op + OP_DURATION_NS], ROW_DONE, rank, row)


@_jit
def begin_rank(m, f, rank):
    """Start a rank."""
    me = m[AT_RANK] + rank * RANK_WIDTH
    for row in range(m[me + RANK_ROWS]):
        if m[m[AT_MISSING] + (m[me + RANK_ROW] + row)] == 0:
            m[m[AT_RELEASED_ROW] + (m[me + RANK_ROW] + m[me + RANK_RELEASED])] = row
            m[me + RANK_RELEASED] += 1
            m[me + RANK_READY] += 1
    _issue_ready(m, f, rank)
    _finish_if_idle(m, f, rank)


@_jit
def _low(m, f):
    need = m[SPARE]
    for pool in range(len(POOLS)):
        if m[SPARE_OF + pool] < need:
            return True
    if m[EVENTS] + 2 * need > m[CAP_EVENT] or 2 * (m[WAITS] + need) > m[CAP_WAIT]:
        return True
    return m[KEEP] and m[LOGGED] + need > m[CAP_LOG]


@_jit
def _run_list(m, f, at):
    """Run a rank's timers of this tick, those included that join while it runs; False if a pool is low."""
    while m[m[AT_TIMERS] + at * TIMERS_WIDTH + TIMERS_FIRST] >= 0:
        if _low(m, f):
            m[RUNNING_LIST] = at
            return False
        item = m[m[AT_TIMERS] + at * TIMERS_WIDTH + TIMERS_FIRST]
        m[m[AT_TIMERS] + at * TIMERS_WIDTH + TIMERS_FIRST] = m[m[AT_ITEM] + item * ITEM_WIDTH + ITEM_NEXT]
        if m[m[AT_TIMERS] + at * TIMERS_WIDTH + TIMERS_FIRST] < 0:
            m[m[AT_TIMERS] + at * TIMERS_WIDTH + TIMERS_LAST] = -1
        _go_on_with(m, f, item)
    m[RUNNING_LIST] = -1
    _drop_list(m, f, at)
    return True


@_entry
def rehash(m, f, old):
    """Put the keys of a smaller table of waits, row by row in `old`, into the present one."""
    for place in range(len(old) // WAIT_WIDTH):
        row = place * WAIT_WIDTH
        if old[row + WAIT_PAIR] >= 0:
            into = (
                m[AT_WAIT] + _find(m, f, old[row + WAIT_PAIR], old[row + WAIT_TAG], old[row + WAIT_SIZE]) * WAIT_WIDTH
            )
            m[into : into + WAIT_WIDTH] = old[row : row + WAIT_WIDTH]


@_entry
def advance(m, f, started):
    """Start the ranks from `started` on, then run; (what stopped it, ranks started)."""
    while started < m[RANKS]:
        if _low(m, f):
            return (LOW, started)
        begin_rank(m, f, started)
        started += 1
    if m[RUNNING_LIST] >= 0 and (not _run_list(m, f, m[RUNNING_LIST])):
        return (LOW, started)
    while m[EVENTS] and (not m[FAILED]):
        if _low(m, f):
            return (LOW, started)
        if m[m[AT_EVENT] + EVENT_TICK] == 0 and m[STRICT]:
            return (ZERO_DELAY, started)
        what = _next_event(m, f)
        kind, at = (what % WHAT, what // WHAT)
        if kind == RUN_LIST:
            if not _run_list(m, f, at):
                return (LOW, started)
        elif kind == DELIVER:
            _deliver(m, f, at)
        elif kind == HOP:
            letter = m[AT_LETTER] + at * LETTER_WIDTH
            if m[letter + LETTER_DEVICE] == m[letter + LETTER_DST]:
                _deliver(m, f, at)
            else:
                _enter_link(m, f, at)
        elif kind == FREE:
            _free(m, f, at)
        else:
            _go_on_with(m, f, at)
    return (m[FAILED], started)
