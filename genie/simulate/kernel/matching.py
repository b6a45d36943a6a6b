"""Receives that wait for a message, and messages that came before their receive."""

from genie.simulate.kernel.events import (
    schedule,
)
from genie.simulate.kernel.jit import (
    jit,
)
from genie.simulate.kernel.layout import (
    ANSWER,
    AT_ITEM,
    AT_WAIT,
    CAP_WAIT,
    ITEM,
    ITEM_A,
    ITEM_B,
    ITEM_KIND,
    ITEM_NEXT,
    ITEM_WIDTH,
    NOW,
    RANKS,
    WAIT_ARRIVED,
    WAIT_FIRST,
    WAIT_LAST,
    WAIT_PAIR,
    WAIT_SIZE,
    WAIT_TAG,
    WAIT_WIDTH,
    WAITS,
    WHAT,
)
from genie.simulate.kernel.pools import (
    take,
)


@jit
def find(m, f, pair, tag, size):
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


@jit
def _home(pair, tag, size, mask):
    mixed = pair * 2654435761 + tag * 2246822507 + size * 3266489909 & 576460752303423487
    return (mixed ^ mixed >> 17 ^ mixed >> 33) & mask


@jit
def forget(m, f, at):
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


@jit
def new_wait(m, f, at, pair, tag, size):
    """Make the free place `at` that of a key."""
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


@jit
def expect(m, f, src, dst, tag, size, kind, a, b):
    """_Matching.expect."""
    pair = src * m[RANKS] + dst
    item = take(m, f, ITEM)
    new = m[AT_ITEM] + item * ITEM_WIDTH
    m[new + ITEM_NEXT], m[new + ITEM_KIND], m[new + ITEM_A], m[new + ITEM_B] = (-1, kind, a, b)
    at = find(m, f, pair, tag, size)
    row = m[AT_WAIT] + at * WAIT_WIDTH
    if m[row + WAIT_PAIR] < 0:
        new_wait(m, f, at, pair, tag, size)
    elif m[row + WAIT_ARRIVED] > 0:
        m[row + WAIT_ARRIVED] -= 1
        if m[row + WAIT_ARRIVED] == 0:
            forget(m, f, at)
        schedule(m, f, m[NOW], item * WHAT + ANSWER)
        return
    if m[row + WAIT_FIRST] < 0:
        m[row + WAIT_FIRST] = item
    else:
        m[m[AT_ITEM] + m[row + WAIT_LAST] * ITEM_WIDTH + ITEM_NEXT] = item
    m[row + WAIT_LAST] = item
