"""What a chunk does in one phase of its collective: tokens passed on, or a graph of steps."""

from genie.simulate.kernel.events import (
    timer,
)
from genie.simulate.kernel.jit import (
    jit,
)
from genie.simulate.kernel.layout import (
    AT_COLLECTIVE,
    AT_GRAPH,
    AT_GRAPH_STEP,
    AT_INSTANCE,
    AT_MEMBER,
    AT_PHASE,
    AT_STEP,
    AT_STEP_MISSING,
    AT_STREAM,
    AT_TOKEN,
    COLLECTIVE_FIRST_PHASE,
    COLLECTIVE_TAGS,
    COLLECTIVE_WIDTH,
    G_COMPUTE,
    G_RECV,
    G_REDUCE,
    G_SEND,
    GRAPH_AWAITS,
    GRAPH_FIRST_STEP,
    GRAPH_STEP_DEPS,
    GRAPH_STEP_DURATION_NS,
    GRAPH_STEP_KIND,
    GRAPH_STEP_PEER,
    GRAPH_STEP_SIZE,
    GRAPH_STEP_TAG,
    GRAPH_STEP_WIDTH,
    GRAPH_STEPS,
    GRAPH_WIDTH,
    INSTANCE_COLLECTIVE,
    INSTANCE_ROW,
    INSTANCE_WIDTH,
    LATER_RUNS,
    NOTHING,
    ODD_RUNS,
    PHASE_DELAY_NS,
    PHASE_RANKS,
    PHASE_SIZE,
    PHASE_STRIDE,
    PHASE_WIDTH,
    RECEIVED,
    REDUCE,
    STEP_DONE,
    STEP_OFFSET,
    STEP_REDUCE,
    STEP_REDUCE_NS,
    STEP_SIZE,
    STEP_WIDTH,
    STEPS,
    STREAM_AT,
    STREAM_CHUNK,
    STREAM_CLOCKWISE,
    STREAM_ID,
    STREAM_INSTANCE,
    STREAM_LEFT,
    STREAM_LINE,
    STREAM_MADE,
    STREAM_POSITION,
    STREAM_PROGRAM,
    STREAM_RANK,
    STREAM_SENT,
    STREAM_USABLE,
    STREAM_WIDTH,
    TOKEN_FIRST_STEP,
    TOKEN_MARKED_RUN,
    TOKEN_REDUCE,
    TOKEN_SINGLE,
    TOKEN_START,
    TOKEN_STEPS,
    TOKEN_WIDTH,
    TOKEN_XOR,
    USABLE,
)
from genie.simulate.kernel.matching import (
    expect,
)
from genie.simulate.kernel.network import (
    send,
)


@jit
def phase_at(m, f, at):
    """The row of the phase in which the chunk is."""
    stream = m[AT_STREAM] + at * STREAM_WIDTH
    return (
        m[
            m[AT_COLLECTIVE]
            + m[m[AT_INSTANCE] + m[stream + STREAM_INSTANCE] * INSTANCE_WIDTH + INSTANCE_COLLECTIVE] * COLLECTIVE_WIDTH
            + COLLECTIVE_FIRST_PHASE
        ]
        + m[stream + STREAM_AT]
    )


@jit
def _member(m, f, at, position):
    """Members.of at a position."""
    phase = m[AT_PHASE] + phase_at(m, f, at) * PHASE_WIDTH
    if m[phase + PHASE_RANKS] >= 0:
        return m[m[AT_MEMBER] + (m[phase + PHASE_RANKS] + position)]
    return m[m[AT_STREAM] + at * STREAM_WIDTH + STREAM_LINE] + position * m[phase + PHASE_STRIDE]


@jit
def make_token(m, f, at):
    """TokenRun: a token is usable after the endpoint's delay, and the reduction where one is due."""
    stream = m[AT_STREAM] + at * STREAM_WIDTH
    token = m[AT_TOKEN] + m[stream + STREAM_PROGRAM] * TOKEN_WIDTH
    number = m[stream + STREAM_MADE]
    m[stream + STREAM_MADE] = number + 1
    delay_ns = m[m[AT_PHASE] + phase_at(m, f, at) * PHASE_WIDTH + PHASE_DELAY_NS]
    length = m[token + TOKEN_START] + m[token + TOKEN_MARKED_RUN]
    marked = number % length >= m[token + TOKEN_START] and (
        m[token + TOKEN_REDUCE] == LATER_RUNS or (m[token + TOKEN_REDUCE] == ODD_RUNS and number // length % 2 == 0)
    )
    if marked:
        step = m[token + TOKEN_FIRST_STEP] + (0 if m[token + TOKEN_SINGLE] else min(number, m[token + TOKEN_STEPS] - 1))
        timer(m, f, m[stream + STREAM_RANK], delay_ns, REDUCE, at, m[m[AT_STEP] + step * STEP_WIDTH + STEP_REDUCE_NS])
    else:
        timer(m, f, m[stream + STREAM_RANK], delay_ns, USABLE, at, 0)


@jit
def exchange(m, f, at):
    """TokenRun: use up a token to send the next step and to expect the same from the other side."""
    stream = m[AT_STREAM] + at * STREAM_WIDTH
    token = m[AT_TOKEN] + m[stream + STREAM_PROGRAM] * TOKEN_WIDTH
    if m[stream + STREAM_SENT] == m[token + TOKEN_STEPS] or m[stream + STREAM_USABLE] == 0:
        return
    phase = m[AT_PHASE] + phase_at(m, f, at) * PHASE_WIDTH
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
    send(
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
    expect(m, f, source, rank, tag, m[step + STEP_SIZE], RECEIVED, at, 0)


@jit
def graph_step_at(m, f, at, step):
    """The row of a step of the chunk's graph."""
    return m[m[AT_GRAPH] + m[m[AT_STREAM] + at * STREAM_WIDTH + STREAM_PROGRAM] * GRAPH_WIDTH + GRAPH_FIRST_STEP] + step


@jit
def start_graph(m, f, at):
    """GraphRun: carry out the steps that await nothing."""
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
            carry_out(m, f, at, step)
            if m[
                m[AT_GRAPH_STEP] + (m[graph + GRAPH_FIRST_STEP] + step) * GRAPH_STEP_WIDTH + GRAPH_STEP_KIND
            ] == G_SEND and (not m[graph + GRAPH_AWAITS]):
                m[stream + STREAM_LEFT] -= 1


@jit
def carry_out(m, f, at, number):
    """GraphRun: begin a step."""
    stream = m[AT_STREAM] + at * STREAM_WIDTH
    step = m[AT_GRAPH_STEP] + graph_step_at(m, f, at, number) * GRAPH_STEP_WIDTH
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
        send(
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
        expect(
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
        timer(m, f, rank, m[step + GRAPH_STEP_DURATION_NS], STEP_DONE, at, number)
    elif m[step + GRAPH_STEP_KIND] == G_REDUCE:
        timer(m, f, rank, m[m[AT_PHASE] + phase_at(m, f, at) * PHASE_WIDTH + PHASE_DELAY_NS], STEP_REDUCE, at, number)
    else:
        timer(m, f, rank, m[m[AT_PHASE] + phase_at(m, f, at) * PHASE_WIDTH + PHASE_DELAY_NS], STEP_DONE, at, number)
