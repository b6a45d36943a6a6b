"""The event loop: what goes on when something has happened. `advance` is all that Python calls, and `rehash`."""

from genie.simulate.kernel.events import (
    drop_list,
    next_event,
    timer,
)
from genie.simulate.kernel.jit import (
    entry,
    is_kept,
    jit,
)
from genie.simulate.kernel.layout import (
    AT_COLLECTIVE,
    AT_EVENT,
    AT_GRAPH,
    AT_GRAPH_CHILD,
    AT_GRAPH_STEP,
    AT_INSTANCE,
    AT_ITEM,
    AT_LETTER,
    AT_LOG,
    AT_QUEUE,
    AT_STEP_MISSING,
    AT_STREAM,
    AT_TIMERS,
    AT_TOKEN,
    AT_WAIT,
    CAP_EVENT,
    CAP_LOG,
    CAP_WAIT,
    COLLECTIVE_PHASES,
    COLLECTIVE_WIDTH,
    DELIVER,
    EVENT_TICK,
    EVENTS,
    FAILED,
    FREE,
    G_SEND,
    GRAPH_AWAITS,
    GRAPH_FIRST_STEP,
    GRAPH_STEP_FIRST_CHILD,
    GRAPH_STEP_KIND,
    GRAPH_STEP_LAST_CHILD,
    GRAPH_STEP_REDUCE_NS,
    GRAPH_STEP_WIDTH,
    GRAPH_WIDTH,
    HOP,
    INSTANCE,
    INSTANCE_COLLECTIVE,
    INSTANCE_LEFT,
    INSTANCE_RANK,
    INSTANCE_ROW,
    INSTANCE_WIDTH,
    ITEM,
    ITEM_A,
    ITEM_B,
    ITEM_KIND,
    ITEM_NEXT,
    ITEM_WIDTH,
    KEEP,
    LETTER,
    LETTER_A,
    LETTER_B,
    LETTER_DEVICE,
    LETTER_DST,
    LETTER_KIND,
    LETTER_LOG,
    LETTER_SIZE,
    LETTER_SRC,
    LETTER_TAG,
    LETTER_WIDTH,
    LOG_DELIVERED_NS,
    LOG_WIDTH,
    LOGGED,
    LOW,
    NOTHING,
    NOW,
    POOLS,
    QUEUE_RUNNING,
    QUEUE_WIDTH,
    RANKS,
    RECEIVED,
    REDUCE,
    ROW_DONE,
    RUN_LIST,
    RUNNING_LIST,
    SPARE,
    SPARE_OF,
    STEP_DONE,
    STEP_REDUCE,
    STEPS,
    STREAM,
    STREAM_AT,
    STREAM_DELIVERED,
    STREAM_INSTANCE,
    STREAM_LEFT,
    STREAM_PROGRAM,
    STREAM_QUEUE,
    STREAM_RANK,
    STREAM_SENT,
    STREAM_USABLE,
    STREAM_WIDTH,
    STRICT,
    TIMERS_FIRST,
    TIMERS_LAST,
    TIMERS_WIDTH,
    TOKEN_GATE,
    TOKEN_START,
    TOKEN_STEPS,
    TOKEN_WIDTH,
    USABLE,
    WAIT_ARRIVED,
    WAIT_FIRST,
    WAIT_PAIR,
    WAIT_SIZE,
    WAIT_TAG,
    WAIT_WIDTH,
    WAITS,
    WHAT,
    ZERO_DELAY,
)
from genie.simulate.kernel.matching import (
    find,
    forget,
    new_wait,
)
from genie.simulate.kernel.network import (
    enter_link,
    free,
)
from genie.simulate.kernel.pools import (
    give,
)
from genie.simulate.kernel.programs import (
    carry_out,
    exchange,
    graph_step_at,
    make_token,
)
from genie.simulate.kernel.ranks import (
    begin_rank,
    row_done,
)
from genie.simulate.kernel.streams import (
    admit,
    enter,
)


@jit
def _low(m, f):
    need = m[SPARE]
    for pool in range(len(POOLS)):
        if m[SPARE_OF + pool] < need:
            return True
    if m[EVENTS] + 2 * need > m[CAP_EVENT] or 2 * (m[WAITS] + need) > m[CAP_WAIT]:
        return True
    return m[KEEP] and m[LOGGED] + need > m[CAP_LOG]


@jit
def _usable(m, f, at):
    stream = m[AT_STREAM] + at * STREAM_WIDTH
    token = m[AT_TOKEN] + m[stream + STREAM_PROGRAM] * TOKEN_WIDTH
    m[stream + STREAM_USABLE] += 1
    if 0 <= m[token + TOKEN_GATE] <= m[stream + STREAM_SENT]:
        if m[stream + STREAM_DELIVERED] < m[token + TOKEN_GATE]:
            return
        for _ in range(m[token + TOKEN_START]):
            exchange(m, f, at)
    else:
        exchange(m, f, at)
    if m[stream + STREAM_SENT] == m[token + TOKEN_STEPS] and m[stream + STREAM_USABLE] == m[token + TOKEN_START]:
        _proceed(m, f, at)


@jit
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
            carry_out(m, f, at, child)
            if m[
                m[AT_GRAPH_STEP] + (m[graph + GRAPH_FIRST_STEP] + child) * GRAPH_STEP_WIDTH + GRAPH_STEP_KIND
            ] == G_SEND and (not m[graph + GRAPH_AWAITS]):
                ended += 1
    m[stream + STREAM_LEFT] -= ended
    if ended and m[stream + STREAM_LEFT] == 0:
        _proceed(m, f, at)


@jit
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
    entered = enter(m, f, at)
    m[m[AT_QUEUE] + left * QUEUE_WIDTH + QUEUE_RUNNING] -= 1
    admit(m, f, left)
    admit(m, f, entered)


@jit
def _finish(m, f, at, left):
    """The collective's completion runs before the chunk leaves its queue, as it may launch the next."""
    instance = m[m[AT_STREAM] + at * STREAM_WIDTH + STREAM_INSTANCE]
    m[m[AT_INSTANCE] + instance * INSTANCE_WIDTH + INSTANCE_LEFT] -= 1
    if m[m[AT_INSTANCE] + instance * INSTANCE_WIDTH + INSTANCE_LEFT] == 0:
        rank, row = (
            m[m[AT_INSTANCE] + instance * INSTANCE_WIDTH + INSTANCE_RANK],
            m[m[AT_INSTANCE] + instance * INSTANCE_WIDTH + INSTANCE_ROW],
        )
        give(m, f, INSTANCE, instance)
        row_done(m, f, rank, row)
    give(m, f, STREAM, at)
    m[m[AT_QUEUE] + left * QUEUE_WIDTH + QUEUE_RUNNING] -= 1
    admit(m, f, left)


@jit
def _go_on(m, f, kind, a, b):
    if kind == USABLE:
        _usable(m, f, a)
    elif kind == RECEIVED:
        m[m[AT_STREAM] + a * STREAM_WIDTH + STREAM_DELIVERED] += 1
        make_token(m, f, a)
    elif kind == REDUCE:
        timer(m, f, m[m[AT_STREAM] + a * STREAM_WIDTH + STREAM_RANK], b, USABLE, a, 0)
    elif kind == ROW_DONE:
        row_done(m, f, a, b)
    elif kind == STEP_DONE:
        _step_done(m, f, a, b)
    elif kind == STEP_REDUCE:
        step = graph_step_at(m, f, a, b)
        timer(
            m,
            f,
            m[m[AT_STREAM] + a * STREAM_WIDTH + STREAM_RANK],
            m[m[AT_GRAPH_STEP] + step * GRAPH_STEP_WIDTH + GRAPH_STEP_REDUCE_NS],
            STEP_DONE,
            a,
            b,
        )


@jit
def _go_on_with(m, f, item):
    row = m[AT_ITEM] + item * ITEM_WIDTH
    kind, a, b = (m[row + ITEM_KIND], m[row + ITEM_A], m[row + ITEM_B])
    give(m, f, ITEM, item)
    _go_on(m, f, kind, a, b)


@jit
def _arrive(m, f, src, dst, tag, size):
    """_Matching.arrive."""
    pair = src * m[RANKS] + dst
    at = find(m, f, pair, tag, size)
    row = m[AT_WAIT] + at * WAIT_WIDTH
    if m[row + WAIT_PAIR] < 0:
        new_wait(m, f, at, pair, tag, size)
    if m[row + WAIT_FIRST] < 0:
        m[row + WAIT_ARRIVED] += 1
        return
    item = m[row + WAIT_FIRST]
    m[row + WAIT_FIRST] = m[m[AT_ITEM] + item * ITEM_WIDTH + ITEM_NEXT]
    if m[row + WAIT_FIRST] < 0:
        forget(m, f, at)
    _go_on_with(m, f, item)


@jit
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
    give(m, f, LETTER, at)
    if kind != NOTHING:
        _go_on(m, f, kind, a, b)
    _arrive(m, f, src, dst, tag, size)


@jit
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
    drop_list(m, f, at)
    return True


@entry
def rehash(m, f, old):
    """Put the keys of a smaller table of waits, row by row in `old`, into the present one."""
    for place in range(len(old) // WAIT_WIDTH):
        row = place * WAIT_WIDTH
        if old[row + WAIT_PAIR] >= 0:
            into = m[AT_WAIT] + find(m, f, old[row + WAIT_PAIR], old[row + WAIT_TAG], old[row + WAIT_SIZE]) * WAIT_WIDTH
            m[into : into + WAIT_WIDTH] = old[row : row + WAIT_WIDTH]


@entry
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
        what = next_event(m, f)
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
                enter_link(m, f, at)
        elif kind == FREE:
            free(m, f, at)
        else:
            _go_on_with(m, f, at)
    return (m[FAILED], started)


def is_cached() -> bool:
    """Whether an earlier run compiled this very kernel."""
    return is_kept(advance)
