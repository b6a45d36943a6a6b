"""Where received datagrams are put: headers in one place and payload in another, as if they were middle packets.

The kernel scatters a datagram: twelve bytes of head, a path MTU of payload, sixteen bytes of row (ICRC and BTH),
payload, and so on. Of a super-packet of middle packets the rows then are next to each other, as is the payload, and
each is compared with what it must be at one go. Anything that fits head and first payload is in one piece; the rest is
joined.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np

from genie.formats.roce import BTH_BYTES, ICRC_BYTES, PSN_MASK
from genie.replay.transports.roce import mmsg
from genie.replay.transports.roce.layout import Layout
from genie.replay.transports.roce.middles import ROW_BYTES

MOST_BYTES: Final = 1 << 16
MOST_PACKETS: Final = 64
_ASKS_AT, _ASK = 8, 0x80
_WORD: Final = struct.Struct("!I")
_LITTLE: Final = struct.Struct("<I")


class Slot:
    """Room for one datagram of any size.

    Attributes:
        size, segment: bytes of the datagram that is here, and of each packet in it but the last.
        marked: whether congestion was marked.
        stamp_ns: when it came.
        source, sport: from where.
        head, rows, payload: its first packet's BTH; ICRCs and further BTHs; payload; all as if of middle packets.
        most: packets that are scattered like that.
    """

    def __init__(self, layout: Layout) -> None:
        most = self.most = min(MOST_PACKETS, MOST_BYTES // layout.middle_bytes)
        rest_bytes = max(0, MOST_BYTES - most * layout.middle_bytes)
        rows_bytes, payload_bytes = most * ROW_BYTES, most * layout.mtu
        view = memoryview(bytearray(rows_bytes + BTH_BYTES + payload_bytes + rest_bytes))
        self.rows, first = view[:rows_bytes], view[rows_bytes:]
        self.head, self.payload = first[:BTH_BYTES], first[BTH_BYTES : BTH_BYTES + payload_bytes]
        self._first = first[: BTH_BYTES + layout.mtu]
        self._pieces = [self.head]
        for at in range(most):
            self._pieces.append(self.payload[at * layout.mtu : (at + 1) * layout.mtu])
            self._pieces.append(self.rows[at * ROW_BYTES : (at + 1) * ROW_BYTES])
        self._pieces.append(first[BTH_BYTES + payload_bytes :])
        self.size = self.segment = self.sport = 0
        self.stamp_ns = 0
        self.marked, self.source = False, ""

    def vectors(self) -> mmsg.Table:
        """(pieces, 2): where the pieces are, and their lengths."""
        pieces = [np.frombuffer(piece, np.uint8) for piece in self._pieces if len(piece)]
        return np.array([(mmsg.address_of(piece), len(piece)) for piece in pieces], np.uint64)

    @property
    def qpn(self) -> int:
        """The queue pair that the first packet is for (if it is as long as a BTH)."""
        found: int = _WORD.unpack_from(self.head, 4)[0] & PSN_MASK
        return found

    def whole(self) -> memoryview:
        """The datagram in one piece."""
        if self.size <= len(self._first):
            return self._first[: self.size]
        packets = self.size // (len(self._first) + ICRC_BYTES)
        return memoryview(b"".join(self._pieces[: 2 * packets + 4]))[: self.size]

    def packets(self) -> Iterator[memoryview]:
        """Its packets, one by one."""
        whole = self.whole()
        for at in range(0, self.size, self.segment):
            yield whole[at : at + self.segment]

    def asks(self, count: int) -> bool:
        """Whether the last of `count` middle packets asks for an acknowledgement."""
        at = (count - 2) * ROW_BYTES + ICRC_BYTES + _ASKS_AT
        return bool((self.head[_ASKS_AT] if count == 1 else self.rows[at]) & _ASK)

    def toggle(self, count: int, change: int) -> bool:
        """Take that request back, or set it, where it stands and in the ICRC."""
        if count == 1:
            self.head[_ASKS_AT] ^= _ASK
        else:
            self.rows[(count - 2) * ROW_BYTES + ICRC_BYTES + _ASKS_AT] ^= _ASK
        at = (count - 1) * ROW_BYTES
        _LITTLE.pack_into(self.rows, at, _LITTLE.unpack_from(self.rows, at)[0] ^ change)
        return True
