"""The queue of events, and the timers of ranks that run together in a tick."""

from genie.simulate.kernel.jit import (
    jit,
)
from genie.simulate.kernel.layout import (
    AT_EVENT,
    AT_ITEM,
    AT_RANK,
    AT_TIMERS,
    EVENT_NUMBER,
    EVENT_TICK,
    EVENT_WHAT,
    EVENT_WIDTH,
    EVENTS,
    ITEM,
    ITEM_A,
    ITEM_B,
    ITEM_KIND,
    ITEM_NEXT,
    ITEM_WIDTH,
    LIST,
    NOW,
    NUMBER,
    RANK_LISTS,
    RANK_WIDTH,
    RUN_LIST,
    TIMERS_FIRST,
    TIMERS_LAST,
    TIMERS_NEXT,
    TIMERS_RANK,
    TIMERS_TICK,
    TIMERS_WIDTH,
    WHAT,
)
from genie.simulate.kernel.pools import (
    give,
    take,
)


@jit
def schedule(m, f, tick, what):
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


@jit
def next_event(m, f):
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


@jit
def timer(m, f, rank, delay_ns, kind, a, b):
    """_Rank.set_timer: the first timer of a tick schedules the rank's list, later ones join it."""
    item = take(m, f, ITEM)
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
    at = take(m, f, LIST)
    new = m[AT_TIMERS] + at * TIMERS_WIDTH
    m[new + TIMERS_RANK], m[new + TIMERS_TICK], m[new + TIMERS_FIRST], m[new + TIMERS_LAST], m[new + TIMERS_NEXT] = (
        rank,
        tick,
        item,
        item,
        m[m[AT_RANK] + rank * RANK_WIDTH + RANK_LISTS],
    )
    m[m[AT_RANK] + rank * RANK_WIDTH + RANK_LISTS] = at
    schedule(m, f, tick, at * WHAT + RUN_LIST)


@jit
def drop_list(m, f, at):
    """A rank's timers of a tick have all run."""
    rank = m[m[AT_TIMERS] + at * TIMERS_WIDTH + TIMERS_RANK]
    if m[m[AT_RANK] + rank * RANK_WIDTH + RANK_LISTS] == at:
        m[m[AT_RANK] + rank * RANK_WIDTH + RANK_LISTS] = m[m[AT_TIMERS] + at * TIMERS_WIDTH + TIMERS_NEXT]
    else:
        before = m[m[AT_RANK] + rank * RANK_WIDTH + RANK_LISTS]
        while m[m[AT_TIMERS] + before * TIMERS_WIDTH + TIMERS_NEXT] != at:
            before = m[m[AT_TIMERS] + before * TIMERS_WIDTH + TIMERS_NEXT]
        m[m[AT_TIMERS] + before * TIMERS_WIDTH + TIMERS_NEXT] = m[m[AT_TIMERS] + at * TIMERS_WIDTH + TIMERS_NEXT]
    give(m, f, LIST, at)
