"""What a capture says about RoCEv2 flows and messages, and how that compares with what a run measured.

A flow is a queue pair's direction: packets from one address to a queue pair of another. PSNs are counted without wrap;
a packet seen before is a retransmission, one that is first seen behind a later one is out of order.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from genie.core.timeline import Messages
from genie.formats.roce import ENDS, STARTS, WITH_IMM, Kind, Nak, Opcode
from genie.formats.roce_capture import IS_REQUEST, UNKNOWN, RocePackets, Seen
from genie.units import BITS_PER_BYTE, NS_PER_S

Numbers = npt.NDArray[np.int64]

_NAKS: Final = {
    Nak.SEQUENCE: "nak_sequence",
    Nak.INVALID_REQUEST: "nak_invalid_request",
    Nak.REMOTE_ACCESS: "nak_remote_access",
    Nak.REMOTE_OPERATION: "nak_remote_operation",
}
_HALF: Final = 1 << 23
_PIECE_BYTES: Final = 1 << 30
"""A WRITE of this length without an immediate goes on in the next: Genie's messages beyond a piece."""


@dataclass(frozen=True, slots=True)
class Wire:
    """What was on the wire.

    Attributes:
        flows: one row a flow: src, dst, qpn, sport, packets, payload_bytes, retransmitted, out_of_order, marked, the
            answers that came back (acks, naks by kind, rnr_naks, cnps), begin_ns, end_ns, goodput_bps.
        messages: one row a message: flow, tag, size_bytes, begin_ns and end_ns (first and last packet, each when
            first seen), acknowledged_ns (UNKNOWN if that was not seen), fct_ns.
        others, cut_short, meetings: packets that are no RoCE, that ended before their BTH, of connection management.
    """

    flows: pd.DataFrame
    messages: pd.DataFrame
    others: int
    cut_short: int
    meetings: int


def analyse(seen: Seen) -> Wire:
    """Flows and messages of a capture."""
    packets = seen.packets
    names = [_printed(address) for address in seen.addresses]
    is_data = IS_REQUEST[packets.opcode]
    answers = _Answers(packets)
    flows, messages = [], []
    for rows in _groups(packets, np.flatnonzero(is_data)):
        flow = packets.take(rows)
        numbers = _unwrapped(flow.psn)
        came_back = answers.of(flow, numbers)
        flows.append(_flow_row(flow, numbers, names) | came_back.counts)
        found = _messages(flow, numbers, came_back)
        found.insert(0, "flow", len(flows) - 1)
        messages.append(found)
    others = seen.others
    meetings = int((packets.opcode == Opcode.UD_SEND_ONLY).sum())
    return Wire(pd.DataFrame(flows), _joined(messages), others, seen.cut_short, meetings)


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(_MESSAGE_COLUMNS))


_MESSAGE_COLUMNS: Final = ("flow", "tag", "size_bytes", "begin_ns", "end_ns", "acknowledged_ns", "fct_ns")


def _printed(address: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)  # noqa: PLR2004


def _groups(packets: RocePackets, rows: Numbers) -> list[Numbers]:
    """Rows of each (source, destination, queue pair), in the capture's order, the first flow seen first."""
    if not len(rows):
        return []
    key = (packets.source[rows] << 44) | (packets.destination[rows] << 24) | packets.qpn[rows]
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    groups = np.split(rows[order], starts[1:])
    return sorted(groups, key=lambda group: int(group[0]))


def _unwrapped(psn: Numbers) -> Numbers:
    """PSNs without wrap, the first one as it is."""
    steps = (np.diff(psn) + _HALF & 0xFF_FFFF) - _HALF
    return np.concatenate([psn[:1], psn[0] + np.cumsum(steps)]) if len(psn) else psn


def _flow_row(flow: RocePackets, numbers: Numbers, names: list[str]) -> dict[str, Any]:
    _, first = np.unique(numbers, return_index=True)
    fresh = np.zeros(len(numbers), bool)
    fresh[first] = True
    behind = numbers < np.maximum.accumulate(numbers)
    payload = int(flow.payload_bytes[fresh].sum())
    begin, end = int(flow.time_ns.min()), int(flow.time_ns.max())
    return {
        "src": names[flow.source[0]],
        "dst": names[flow.destination[0]],
        "qpn": int(flow.qpn[0]),
        "sport": int(flow.sport[0]),
        "packets": len(flow),
        "payload_bytes": payload,
        "retransmitted": int((~fresh).sum()),
        "out_of_order": int((fresh & behind).sum()),
        "marked": int(flow.marked.sum()),
        "marked_share": float(flow.marked.mean()),
        "begin_ns": begin,
        "end_ns": end,
        "goodput_bps": payload * BITS_PER_BYTE * NS_PER_S / (end - begin) if end > begin else float("nan"),
    }


@dataclass(frozen=True, slots=True)
class _CameBack:
    """Answers to one flow: counts, and for every ACK the packet that it is for, and when it was seen."""

    counts: dict[str, int]
    upto: Numbers
    time_ns: Numbers


class _Answers:
    """ACKs, NAKs and CNPs by the pair of addresses; which queue pair they are of is told by their PSNs."""

    def __init__(self, packets: RocePackets) -> None:
        is_answer = (packets.opcode == Opcode.ACKNOWLEDGE) | (packets.opcode == Opcode.CNP)
        self._groups: dict[tuple[int, int], list[RocePackets]] = {}
        for rows in _groups(packets, np.flatnonzero(is_answer)):
            group = packets.take(rows)
            self._groups.setdefault((int(group.source[0]), int(group.destination[0])), []).append(group)

    def of(self, flow: RocePackets, numbers: Numbers) -> _CameBack:
        """Those that answer a flow: of the queue pairs in question the one whose PSNs are most often the flow's."""
        candidates = self._groups.get((int(flow.destination[0]), int(flow.source[0])), [])
        low, high = int(numbers.min()) - 1, int(numbers.max()) + 1
        best, best_hits = None, 0
        for group in candidates:
            upto = self._numbers(group.psn, low)
            hits = int(((upto >= low) & (upto <= high) & (group.opcode == Opcode.ACKNOWLEDGE)).sum())
            if hits > best_hits:
                best, best_hits = group, hits
        if best is None:
            empty = np.zeros(0, np.int64)
            return _CameBack(_counts(flow.take(slice(0, 0))), empty, empty)
        acks = best.take((best.opcode == Opcode.ACKNOWLEDGE) & (best.syndrome >> 5 == Kind.ACK))
        return _CameBack(_counts(best), self._numbers(acks.psn, low), acks.time_ns)

    @staticmethod
    def _numbers(psn: Numbers, near: int) -> Numbers:
        return near + ((psn - near + _HALF & 0xFF_FFFF) - _HALF) if len(psn) else psn


def _counts(answers: RocePackets) -> dict[str, int]:
    is_ack = answers.opcode == Opcode.ACKNOWLEDGE
    kind, value = answers.syndrome >> 5, answers.syndrome & 31
    counts = {"acks": int((is_ack & (kind == Kind.ACK)).sum())}
    for nak, name in _NAKS.items():
        counts[name] = int((is_ack & (kind == Kind.NAK) & (value == nak)).sum())
    counts["rnr_naks"] = int((is_ack & (kind == Kind.RNR_NAK)).sum())
    counts["cnps"] = int((answers.opcode == Opcode.CNP).sum())
    return counts


def _messages(flow: RocePackets, numbers: Numbers, came_back: _CameBack) -> pd.DataFrame:
    """Messages that begin and end in the capture, with no packet missing in between."""
    order, first = np.unique(numbers, return_index=True)
    seen = flow.take(first)
    time_ns = seen.time_ns
    codes = seen.opcode
    starts, ends = (np.isin(codes, [int(code) for code in kinds]) for kinds in (STARTS, ENDS))
    pieces = ends & ~np.isin(codes, [int(code) for code in WITH_IMM]) & (_lengths(seen, starts) == _PIECE_BYTES)
    ends &= ~pieces
    starts &= ~np.concatenate([[False], pieces[:-1]])
    begin_at, end_at = np.flatnonzero(starts), np.flatnonzero(ends)
    after = np.searchsorted(end_at, begin_at)
    begin_at, after = begin_at[after < len(end_at)], after[after < len(end_at)]
    last_at = end_at[after]
    whole = order[last_at] - order[begin_at] == last_at - begin_at
    whole &= np.diff(last_at, append=len(order)) > 0
    begin_at, last_at = begin_at[whole], last_at[whole]
    upto_bytes = np.concatenate([[0], np.cumsum(seen.payload_bytes)])
    latest = np.array([time_ns[a : b + 1].max() for a, b in zip(begin_at.tolist(), last_at.tolist(), strict=True)])
    columns = {
        "tag": seen.address[begin_at],
        "size_bytes": upto_bytes[last_at + 1] - upto_bytes[begin_at],
        "begin_ns": time_ns[begin_at],
        "end_ns": latest.astype(np.int64),
        "acknowledged_ns": _acknowledged(order[last_at], came_back),
    }
    table = pd.DataFrame(columns)
    table["fct_ns"] = table.end_ns - table.begin_ns
    signs_of_life = (table.size_bytes == 0) & ~np.isin(codes[last_at], [int(code) for code in WITH_IMM])
    return table[~signs_of_life].reset_index(drop=True)


def _lengths(seen: RocePackets, starts: npt.NDArray[np.bool_]) -> Numbers:
    """The DMA length of the WRITE that each packet belongs to."""
    at = np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))
    found: Numbers = seen.dma_bytes[at]
    return found


def _acknowledged(last: Numbers, came_back: _CameBack) -> Numbers:
    """When the first ACK for a packet, or a later one, was seen."""
    if not len(came_back.upto):
        return np.full(len(last), UNKNOWN, np.int64)
    reached = np.maximum.accumulate(came_back.upto)
    at = np.searchsorted(reached, last)
    return np.where(at < len(reached), came_back.time_ns[np.minimum(at, len(reached) - 1)], UNKNOWN)


def compare(
    wire: Wire,
    messages: Messages,
    ports: Mapping[int, tuple[int, int]],
    delays_ns: Mapping[tuple[int, int], int],
    dilation: int,
) -> pd.DataFrame:
    """A run's messages beside the capture's, one row each.

    Both are from the first packet to the acknowledgement: what the host's own queue adds before the first packet leaves
    is in the run's figure only.

    Args:
        wire: of a capture of that run.
        messages: as the run recorded them; of what a capture has more, the last are those that were recorded.
        ports: UDP source port -> (source rank, destination rank).
        delays_ns: (source rank, destination rank) -> virtual delay of the path, which the run's endpoints add.
        dilation: real ns per virtual ns.

    Returns:
        src, dst, tag, size_bytes, iteration, index, run_fct_ns, wire_fct_ns and difference (relative); virtual ns.
    """
    key = ["src", "dst", "tag", "size_bytes"]
    found = _with_ranks(wire, ports)
    found["nth"] = found.groupby(key).cumcount()
    ours = pd.DataFrame({name: getattr(messages, name) for name in (*key, "iteration", "index")})
    back_ns = [delays_ns.get((dst, src), 0) for src, dst in zip(ours.src, ours.dst, strict=True)]
    ours["run_fct_ns"] = messages.acknowledged_ns - messages.posted_ns - np.array(back_ns, np.int64)
    ours = ours[messages.acknowledged_ns != UNKNOWN].sort_values(["iteration", "index"], kind="stable")
    ours["nth"] = ours.groupby(key).cumcount()
    found = found.merge(ours.groupby(key).size().rename("recorded").reset_index(), on=key)
    found["nth"] -= found.groupby(key)["nth"].transform("max") + 1 - found["recorded"]
    both = ours.merge(found, on=[*key, "nth"])
    both["wire_fct_ns"] = (both.acknowledged_ns - both.begin_ns) / dilation
    both["difference"] = both.run_fct_ns / both.wire_fct_ns - 1
    told: pd.DataFrame = both[[*key, "iteration", "index", "run_fct_ns", "wire_fct_ns", "difference"]]
    return told


def _with_ranks(wire: Wire, ports: Mapping[int, tuple[int, int]]) -> pd.DataFrame:
    """Acknowledged messages in the order of their beginnings, with the ranks that their flows' source ports tell."""
    found = wire.messages[wire.messages.acknowledged_ns != UNKNOWN].sort_values("begin_ns", kind="stable").copy()
    sports = wire.flows.sport.tolist() if len(wire.flows) else []
    ends = np.array([ports.get(sport, (UNKNOWN, UNKNOWN)) for sport in sports], np.int64).reshape(-1, 2)
    flow = found.flow.to_numpy(np.int64)
    found["src"], found["dst"] = ends[flow, 0], ends[flow, 1]
    known: pd.DataFrame = found[found.src != UNKNOWN]
    return known


def rows_of(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows as plain values."""
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]
