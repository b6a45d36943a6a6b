"""The operators of a rank: which are ready, what they do when issued, what follows when one is done."""

import numpy as np

from genie.simulate.kernel.events import (
    timer,
)
from genie.simulate.kernel.jit import (
    jit,
)
from genie.simulate.kernel.layout import (
    AT_CHILD,
    AT_DONE_NS,
    AT_HEAP_ROW,
    AT_ISSUE_NS,
    AT_MISSING,
    AT_OP,
    AT_RANK,
    AT_RELEASED_ROW,
    COLLECTIVE,
    COMPUTE,
    NOW,
    OP_COLLECTIVE,
    OP_DURATION_NS,
    OP_FIRST_CHILD,
    OP_KIND,
    OP_LAST_CHILD,
    OP_PEER,
    OP_SIZE,
    OP_SLOT,
    OP_TAG,
    OP_WIDTH,
    RANK_BUSY,
    RANK_COMPUTE_NS,
    RANK_FINISH_NS,
    RANK_HEAP_COMM,
    RANK_HEAP_COMPUTE,
    RANK_HEAP_CPU,
    RANK_HEAP_NONE,
    RANK_LEN_COMM,
    RANK_LEN_COMPUTE,
    RANK_LEN_CPU,
    RANK_LEN_NONE,
    RANK_ONGOING,
    RANK_OP,
    RANK_READY,
    RANK_RELEASED,
    RANK_ROW,
    RANK_ROWS,
    RANK_WIDTH,
    RECV,
    ROW_DONE,
    SEND,
    SKIP,
    SLOT_COMM,
    SLOT_COMPUTE,
    SLOT_CPU,
    SLOT_NONE,
)
from genie.simulate.kernel.matching import (
    expect,
)
from genie.simulate.kernel.network import (
    send,
)
from genie.simulate.kernel.streams import (
    launch,
)


@jit
def row_done(m, f, rank, row):
    """RankEngine: an operator is done; issue what became ready."""
    _close(m, f, rank, row)
    _issue_ready(m, f, rank)
    _finish_if_idle(m, f, rank)


@jit
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


@jit
def _finish_if_idle(m, f, rank):
    me = m[AT_RANK] + rank * RANK_WIDTH
    if m[me + RANK_READY] == 0 and m[me + RANK_ONGOING] == 0 and (m[me + RANK_FINISH_NS] < 0):
        m[me + RANK_FINISH_NS] = m[NOW]


@jit
def _push_row(m, f, base, length, row):
    at = length
    while at > 0:
        up = at - 1 >> 1
        if m[m[AT_HEAP_ROW] + (base + up)] <= row:
            break
        m[m[AT_HEAP_ROW] + (base + at)] = m[m[AT_HEAP_ROW] + (base + up)]
        at = up
    m[m[AT_HEAP_ROW] + (base + at)] = row


@jit
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


@jit
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


@jit
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


@jit
def _issue_ready(m, f, rank):
    _admit_released(m, f, rank)
    row = _lowest(m, f, rank)
    while row >= 0:
        _issue(m, f, rank, row)
        row = _lowest(m, f, rank)


@jit
def _issue(m, f, rank, row):
    me = m[AT_RANK] + rank * RANK_WIDTH
    op = m[AT_OP] + (m[me + RANK_OP] + row) * OP_WIDTH
    kind = m[op + OP_KIND]
    m[m[AT_ISSUE_NS] + (m[me + RANK_ROW] + row)] = m[NOW]
    if kind == COLLECTIVE:
        launch(m, f, rank, row, m[op + OP_COLLECTIVE])
    elif kind == SEND:
        send(m, f, rank, m[op + OP_PEER], m[op + OP_TAG], m[op + OP_SIZE], ROW_DONE, rank, row, row, -1, -1, -1)
    elif kind == RECV:
        expect(m, f, m[op + OP_PEER], rank, m[op + OP_TAG], m[op + OP_SIZE], ROW_DONE, rank, row)
    elif kind == SKIP:
        _close(m, f, rank, row)
    else:
        if kind == COMPUTE and m[op + OP_SLOT] != SLOT_CPU:
            m[me + RANK_COMPUTE_NS] += m[op + OP_DURATION_NS]
        timer(m, f, rank, m[op + OP_DURATION_NS], ROW_DONE, rank, row)


@jit
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
