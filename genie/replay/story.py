"""Who waits for whom, when nothing moves any more."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

Outstanding = Mapping[str, list[Any]]
"""What one rank waits for: "receives" and "sends", each [peer, tag, size_bytes], and "operators", as text."""

MAX_NAMED: Final = 6
"""Ranks told in detail; of more, only the first few."""


def wait_cycle(waits: Mapping[int, Collection[int]]) -> list[int]:
    """Ranks that wait for each other in a ring, each for the next; empty if there is none."""
    try:
        TopologicalSorter({rank: sorted(peers) for rank, peers in waits.items()}).prepare()
    except CycleError as error:
        ring = list(error.args[1])[:0:-1]  # given as each awaited by its next, first and last alike
        start = ring.index(min(ring))
        return ring[start:] + ring[:start]
    return []


def tell(outstanding: Mapping[int, Outstanding], finished: Collection[int] = (), silent: Collection[int] = ()) -> str:
    """One sentence: the ring of ranks if there is one, else the ranks at which all waiting ends; then the details.

    Args:
        outstanding: of every rank that answered.
        finished: ranks that are done.
        silent: ranks that do not answer.

    Returns:
        The sentence; "" if nobody waits for anything.
    """
    details = [_detail(rank, rows) for rank, rows in sorted(outstanding.items()) if any(rows.values())]
    if not details:
        return ""
    more = f"; and {len(details) - MAX_NAMED} ranks more" if len(details) > MAX_NAMED else ""
    blame = _blame(outstanding, finished, silent)
    return f"{blame} ({'; '.join(details[:MAX_NAMED])}{more})."


def _blame(outstanding: Mapping[int, Outstanding], finished: Collection[int], silent: Collection[int]) -> str:
    waits = {rank: {row[0] for row in rows["receives"]} for rank, rows in outstanding.items()}
    cycle = wait_cycle(waits)
    if cycle:
        return f"ranks wait for each other, {' -> '.join(map(str, [*cycle, cycle[0]]))}"
    roots = {peer for peers in waits.values() for peer in peers if not waits.get(peer)}
    roots |= {row[0] for rows in outstanding.values() for row in rows["sends"] if row[0] in silent}
    if roots:
        names = ", ".join(_root(rank, outstanding, finished, silent) for rank in sorted(roots)[:MAX_NAMED])
        return f"all wait in the end for {names}"
    if any(rows["sends"] for rows in outstanding.values()):
        return "messages were sent and never acknowledged: the path between these ranks carries nothing"
    return "no rank waits for a message"


def _root(rank: int, outstanding: Mapping[int, Outstanding], finished: Collection[int], silent: Collection[int]) -> str:
    if rank in silent:
        return f"rank {rank}, which does not answer"
    if rank in finished:
        return f"rank {rank}, which has finished and sends nothing more"
    if outstanding.get(rank, {}).get("sends"):
        return f"rank {rank}, whose messages are not acknowledged"
    return f"rank {rank}"


def _detail(rank: int, rows: Outstanding) -> str:
    parts = [f"{size} bytes from rank {peer} (tag {tag})" for peer, tag, size in rows["receives"][:2]]
    parts += [f"the acknowledgement of {size} bytes by rank {peer}" for peer, _, size in rows["sends"][:2]]
    left = len(rows["receives"]) + len(rows["sends"]) - len(parts)
    if left > 0:
        parts.append(f"{left} messages more")
    inside = f" in {rows['operators'][0]}" if rows["operators"] else ""
    return f"rank {rank} waits{inside} for {' and '.join(parts) or 'no message'}"
