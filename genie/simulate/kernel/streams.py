"""Chunks in the queues of the dimensions: which may run, and what a collective launches."""

from genie.simulate.kernel.jit import (
    jit,
)
from genie.simulate.kernel.layout import (
    ANY,
    AT_COLLECTIVE,
    AT_GROUP_STREAM,
    AT_INSTANCE,
    AT_MEMBER,
    AT_PHASE,
    AT_PLAN_QUEUE,
    AT_PLAN_TURN,
    AT_QUEUE,
    AT_RANK,
    AT_STREAM,
    AT_TOKEN,
    AT_TURN,
    AT_VARIANT,
    COLLECTIVE_CHUNKS,
    COLLECTIVE_FIRST_PHASE,
    COLLECTIVE_FIXED_QUEUE,
    COLLECTIVE_GROUP,
    COLLECTIVE_PHASES,
    COLLECTIVE_WIDTH,
    DIMENSIONS,
    GROUPS,
    INSTANCE,
    INSTANCE_COLLECTIVE,
    INSTANCE_LEFT,
    INSTANCE_RANK,
    INSTANCE_ROW,
    INSTANCE_WIDTH,
    LIMIT,
    LOWER,
    PHASE_DIMENSION,
    PHASE_FIRST_VARIANT,
    PHASE_LANE,
    PHASE_POSITIONS,
    PHASE_RANKS,
    PHASE_SIZE,
    PHASE_STRIDE,
    PHASE_TURN,
    PHASE_VARIANTS,
    PHASE_WIDTH,
    PHASES,
    QUEUE_FIRST,
    QUEUE_LAST,
    QUEUE_RUNNING,
    QUEUE_WIDTH,
    QUEUES,
    RANK_STREAMS,
    RANK_WIDTH,
    STREAM,
    STREAM_AT,
    STREAM_CHUNK,
    STREAM_CLOCKWISE,
    STREAM_DELIVERED,
    STREAM_ID,
    STREAM_INSTANCE,
    STREAM_LINE,
    STREAM_MADE,
    STREAM_NEXT,
    STREAM_POSITION,
    STREAM_PROGRAM,
    STREAM_QUEUE,
    STREAM_RANK,
    STREAM_SENT,
    STREAM_USABLE,
    STREAM_WIDTH,
    TOKEN_GRAPH,
    TOKEN_START,
    TOKEN_WIDTH,
    TURNS,
    UPPER,
)
from genie.simulate.kernel.pools import (
    take,
)
from genie.simulate.kernel.programs import (
    make_token,
    phase_at,
    start_graph,
)


@jit
def enter(m, f, at):
    """Streams: the chunk joins the queue of its phase, whose number is returned."""
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


@jit
def admit(m, f, at):
    """Streams: start chunks of a queue, as many as may run at once."""
    queue = m[AT_QUEUE] + at * QUEUE_WIDTH
    while m[queue + QUEUE_FIRST] >= 0 and m[queue + QUEUE_RUNNING] < m[LIMIT]:
        stream = m[queue + QUEUE_FIRST]
        m[queue + QUEUE_FIRST] = m[m[AT_STREAM] + stream * STREAM_WIDTH + STREAM_NEXT]
        m[queue + QUEUE_RUNNING] += 1
        _start_phase(m, f, stream)


@jit
def _start_phase(m, f, at):
    stream = m[AT_STREAM] + at * STREAM_WIDTH
    phase = m[AT_PHASE] + phase_at(m, f, at) * PHASE_WIDTH
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
        start_graph(m, f, at)
    else:
        for _ in range(m[m[AT_TOKEN] + program * TOKEN_WIDTH + TOKEN_START]):
            make_token(m, f, at)


@jit
def launch(m, f, rank, row, number):
    """RankEngine._launch and Streams.launch."""
    collective = m[AT_COLLECTIVE] + number * COLLECTIVE_WIDTH
    first = m[m[AT_RANK] + rank * RANK_WIDTH + RANK_STREAMS]
    if m[collective + COLLECTIVE_GROUP] >= 0:
        place = rank * m[GROUPS] + m[collective + COLLECTIVE_GROUP]
        first = m[m[AT_GROUP_STREAM] + place]
        m[m[AT_GROUP_STREAM] + place] = first + m[collective + COLLECTIVE_CHUNKS]
    m[m[AT_RANK] + rank * RANK_WIDTH + RANK_STREAMS] += m[collective + COLLECTIVE_CHUNKS]
    instance = take(m, f, INSTANCE)
    made = m[AT_INSTANCE] + instance * INSTANCE_WIDTH
    m[made + INSTANCE_RANK], m[made + INSTANCE_ROW], m[made + INSTANCE_LEFT], m[made + INSTANCE_COLLECTIVE] = (
        rank,
        row,
        m[collective + COLLECTIVE_CHUNKS],
        number,
    )
    for chunk in range(m[collective + COLLECTIVE_CHUNKS]):
        at = take(m, f, STREAM)
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
        admit(m, f, enter(m, f, at))


@jit
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
