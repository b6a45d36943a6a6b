"""Ring, direct and halving-doubling as token programs.

Source of every message count, size and marking rule: ASTRA-sim's implementations; formulas in docs/simulator.md.
"""

from __future__ import annotations

from genie.core.schedule import Reduce, TokenProgram
from genie.core.workload import CollectiveKind
from genie.errors import InputError

_MARKED = {
    CollectiveKind.ALL_REDUCE: Reduce.ODD_RUNS,
    CollectiveKind.REDUCE_SCATTER: Reduce.LATER_RUNS,
    CollectiveKind.ALL_GATHER: Reduce.NEVER,
    CollectiveKind.ALL_TO_ALL: Reduce.NEVER,
}


def _share(kind: CollectiveKind, data_bytes: int, members: int) -> int:
    """Bytes of one message of a ring or direct exchange."""
    return data_bytes if kind is CollectiveKind.ALL_GATHER else data_bytes // members


def ring(kind: CollectiveKind, data_bytes: int, members: int) -> TokenProgram:
    """Neighbour exchange; an all-to-all passes every block around, n(n-1)/2 messages a rank."""
    steps = {
        CollectiveKind.ALL_REDUCE: 2 * (members - 1),
        CollectiveKind.ALL_TO_ALL: members * (members - 1) // 2,
    }.get(kind, members - 1)
    return TokenProgram(
        xor=False,
        offsets=(1,),
        sizes_bytes=(_share(kind, data_bytes, members),),
        counts=(steps,),
        start_tokens=1,
        marked_run=members - 1,
        reduce=_MARKED[kind],
    )


def direct(kind: CollectiveKind, data_bytes: int, members: int, window: int | None, *, in_group: bool) -> TokenProgram:
    """Everyone to everyone, at most `window` at a time (None: all); in a small group every second run is longer."""
    tokens = members - 1 if window is None else min(window, members - 1)
    halves = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    peers = tuple(range(1, members)) * halves
    return TokenProgram(
        xor=False,
        offsets=peers,
        sizes_bytes=(_share(kind, data_bytes, members),) * len(peers),
        counts=(1,) * len(peers),
        start_tokens=tokens,
        marked_run=(members - 1) * tokens if in_group else tokens,
        reduce=_MARKED[kind],
        gate_step=members - 1 if kind is CollectiveKind.ALL_REDUCE else -1,
    )


def halving_doubling(kind: CollectiveKind, data_bytes: int, members: int) -> TokenProgram:
    """Recursive halving (reduce-scatter) and doubling (all-gather) with partners 1, 2, 4, ... apart.

    Raises:
        InputError: members are no power of two, an all-to-all, or messages would be empty.
    """
    if members & (members - 1):
        raise InputError(
            f"halvingDoubling needs a power of two of members, not {members} (ASTRA-sim errs or hangs).",
            fix="use ring or direct for this dimension.",
        )
    if kind is CollectiveKind.ALL_TO_ALL:
        raise InputError("halvingDoubling cannot do an all-to-all.", fix="use ring or direct for all-to-all.")
    levels = members.bit_length() - 1
    offsets, sizes = _halving_steps(kind, data_bytes, levels)
    if min(sizes) == 0:
        raise InputError(
            f"a chunk of {data_bytes} bytes is too small for halvingDoubling over {members} members.",
            fix="send more bytes, or split them into fewer chunks (preferred-dataset-splits).",
        )
    return TokenProgram(
        xor=True,
        offsets=offsets,
        sizes_bytes=sizes,
        counts=(1,) * len(offsets),
        start_tokens=1,
        marked_run=levels - 1,
        reduce=_MARKED[kind],
    )


def _halving_steps(kind: CollectiveKind, data_bytes: int, levels: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    apart = tuple(1 << level for level in range(levels))
    halves = [data_bytes >> (level + 1) for level in range(levels)]
    if kind is CollectiveKind.ALL_GATHER:
        return apart[::-1], tuple(data_bytes << level for level in range(levels))
    if kind is CollectiveKind.REDUCE_SCATTER:
        return apart, tuple(halves)
    # ASTRA-sim halves once more before it turns round and doubles: an odd byte is lost on the way back.
    doubled = [data_bytes >> (levels + 1) << (level + 1) for level in range(levels)]
    return apart + apart[::-1], tuple(halves + doubled)


def dissemination(members: int) -> TokenProgram:
    """A barrier: after round k everybody has heard, directly or not, from 2**(k+1) - 1 others. One byte a message.

    Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", 1988.
    """
    rounds = (members - 1).bit_length()
    return TokenProgram(
        xor=False,
        offsets=tuple(1 << k for k in range(rounds)),
        sizes_bytes=(1,) * rounds,
        counts=(1,) * rounds,
        start_tokens=1,
        marked_run=1,
        reduce=Reduce.NEVER,
    )
