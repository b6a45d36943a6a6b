"""What the ports of one node have sent, dropped and still hold, as their shapers count it."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from genie.testbed.netlink import GET_QDISC, QUEUE, Conversation, attributes

_AT_ROOT: Final = 0xFFFF_FFFF
_TCA_STATS2, _BASIC, _QUEUE = 7, 1, 3
_SENT: Final = struct.Struct("=QI")
_WAITING: Final = struct.Struct("=IIII")


class Counted(NamedTuple):
    """Of one port: frames sent (Ethernet header included, as the shaper charges them), drops, and what is queued."""

    bytes: int
    packets: int
    drops: int
    backlog_bytes: int


def count(conversation: Conversation) -> dict[int, Counted]:
    """Interface number -> counts, of every shaped interface in the conversation's namespace."""
    found = {}
    for body in conversation.dump(GET_QDISC, QUEUE.pack(0, 0, 0, 0, 0)):
        _, index, _, parent, _ = QUEUE.unpack_from(body)
        if parent != _AT_ROOT:
            continue
        stats = dict(attributes(dict(attributes(body, QUEUE.size)).get(_TCA_STATS2, b"")))
        if {_BASIC, _QUEUE} <= stats.keys():
            sent_bytes, packets = _SENT.unpack_from(stats[_BASIC])
            _, backlog, drops, _ = _WAITING.unpack_from(stats[_QUEUE])
            found[index] = Counted(sent_bytes, packets, drops, backlog)
    return found
