"""Letters on their way: the congestion-unaware and the congestion-aware network."""

import numpy as np

from genie.simulate.kernel.events import (
    schedule,
)
from genie.simulate.kernel.jit import (
    jit,
)
from genie.simulate.kernel.layout import (
    AT_LETTER,
    AT_LINK,
    AT_LOG,
    AT_SIZE,
    AT_TOPOLOGY,
    AWARE,
    DELIVER,
    FAILED,
    FREE,
    FULL,
    HOP,
    KEEP,
    LETTER,
    LETTER_A,
    LETTER_B,
    LETTER_DEVICE,
    LETTER_DST,
    LETTER_KIND,
    LETTER_LOG,
    LETTER_NEXT,
    LETTER_SIZE,
    LETTER_SRC,
    LETTER_TAG,
    LETTER_WIDTH,
    LINK_BUSY,
    LINK_FIRST,
    LINK_LAST,
    LINK_WIDTH,
    LOG_CHUNK,
    LOG_DST,
    LOG_PHASE,
    LOG_POSTED_NS,
    LOG_ROW,
    LOG_SIZE,
    LOG_SRC,
    LOG_STEP,
    LOG_TAG,
    LOG_WIDTH,
    LOGGED,
    NOW,
    RANKS,
    REFUSED,
    RING,
    SWITCH,
    TOPOLOGY,
    WHAT,
)
from genie.simulate.kernel.pools import (
    take,
)


@jit
def send(m, f, src, dst, tag, size, kind, a, b, row, chunk, phase, step):
    """_Matching.post and Network.send."""
    ranks = m[RANKS]
    if src == dst or dst < 0 or dst >= ranks or (size <= 0):
        m[FAILED] = REFUSED
        return
    at = take(m, f, LETTER)
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
        enter_link(m, f, at)
    else:
        schedule(m, f, m[NOW] + _unaware_ns(m, f, src, dst, size), at * WHAT + DELIVER)


@jit
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


@jit
def enter_link(m, f, at):
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


@jit
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
    schedule(m, f, now + np.int64(f[0] + serialisation_ns), at * WHAT + HOP)
    schedule(m, f, now + np.int64(serialisation_ns), link * WHAT + FREE)


@jit
def free(m, f, link):
    """_Link: it is free for the next in line."""
    way = m[AT_LINK] + link * LINK_WIDTH
    m[way + LINK_BUSY] = 0
    at = m[way + LINK_FIRST]
    if at >= 0:
        m[way + LINK_FIRST] = m[m[AT_LETTER] + at * LETTER_WIDTH + LETTER_NEXT]
        m[m[AT_LETTER] + at * LETTER_WIDTH + LETTER_NEXT] = -1
        _start(m, f, link, at)
