"""Where everything is in the kernel's one array: registers, tables and their fields, and what numbers in them mean."""

from typing import Final

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
