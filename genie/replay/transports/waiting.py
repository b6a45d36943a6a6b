"""Waiting for descriptors with a time-out finer than a millisecond."""

from __future__ import annotations

import select

from genie.units import NS_PER_MS, NS_PER_S


def wait(epoll: select.epoll, timeout_ns: int) -> list[tuple[int, int]]:
    """What happened on which descriptor, waiting at most `timeout_ns` (0: not at all).

    Epoll counts whole ms and rounds up, so it gets all of a long wait but the last ms; select counts us.
    """
    whole_ms = timeout_ns // NS_PER_MS - 1
    if whole_ms > 0:
        return epoll.poll((whole_ms - 0.5) / 1e3)
    if timeout_ns > 0:
        select.select([epoll.fileno()], [], [], timeout_ns / NS_PER_S)
    return epoll.poll(0)
