"""Verbs' coded numbers in physical units: time-outs in ns, flow labels as UDP ports. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from genie.errors import InputError

ACK_UNIT_NS: Final = 4_096
MAX_ACK_CODE: Final = 31
MAX_RETRIES: Final = 6
"""7 means for ever on some devices (Soft-RoCE among them), which would hide a dead peer."""

FIRST_PORT: Final = 0xC000
_PORT_BITS: Final = 14
_PORT_MASK: Final = (1 << _PORT_BITS) - 1
MAX_FLOW_LABEL: Final = (1 << 20) - 1

_RNR_HUNDREDTHS_MS: Final = (
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
    1_024, 1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
)  # fmt: skip
"""InfiniBand specification, table 46: RNR NAK timer field 0 to 31, in units of 0.01 ms."""

_NS_PER_HUNDREDTH_MS: Final = 10_000


class Retry(NamedTuple):
    """What a queue pair is given: the acknowledgement time-out's code, and how often to ask again."""

    timeout: int
    again: int

    @property
    def ack_ns(self) -> int:
        """The time-out: an unanswered packet is sent again after this (devices may take up to four times as long)."""
        return ack_timeout_ns(self.timeout)

    @property
    def give_up_ns(self) -> int:
        """Least time until a peer that never answers is an error."""
        return self.ack_ns * (1 + self.again)


def ack_timeout_ns(code: int) -> int:
    """4.096 us times two to the code (InfiniBand specification, 9.7.6.1.3)."""
    return ACK_UNIT_NS << code


def retry_of(ack_ns: int, give_up_ns: int) -> Retry:
    """The nearest that verbs can express: a time-out of at least `ack_ns`, asked again until `give_up_ns` is over.

    Raises:
        InputError: no time-out of verbs is as long, or giving up comes before the first time-out.
    """
    code = next((code for code in range(1, MAX_ACK_CODE + 1) if ack_timeout_ns(code) >= ack_ns), 0)
    if ack_ns <= 0 or not code:
        raise InputError(f"an acknowledgement time-out of {ack_ns} ns cannot be had.", fix="8.2 us to 2.4 h can.")
    if give_up_ns < ack_ns:
        raise InputError(f"giving up after {give_up_ns} ns is before the time-out of {ack_ns} ns.")
    count = min(MAX_RETRIES, max(1, -(-give_up_ns // ack_timeout_ns(code)) - 1))
    return Retry(code, count)


def rnr_code(wait_ns: int) -> int:
    """The code of the shortest wait of at least `wait_ns` that a receiver without a buffer can ask for."""
    waits = [(hundredths * _NS_PER_HUNDREDTH_MS, code) for code, hundredths in enumerate(_RNR_HUNDREDTHS_MS)]
    return min((wait, code) for wait, code in waits if wait >= min(wait_ns, max(waits)[0]))[1]


def source_port_of(flow_label: int) -> int:
    """The UDP source port that Linux derives from a flow label that is not 0 (rdma_flow_label_to_udp_sport)."""
    return FIRST_PORT | (flow_label & _PORT_MASK) ^ (flow_label >> _PORT_BITS)


def flow_label_of(source_port: int) -> int:
    """A flow label that gives this UDP source port.

    Raises:
        InputError: RoCE has only the ports from 0xC000 on.
    """
    if not FIRST_PORT <= source_port <= 0xFFFF:  # noqa: PLR2004 - the last port
        raise InputError(f"UDP source port {source_port} cannot be had with verbs.", fix="49152 to 65535 can.")
    low = source_port & _PORT_MASK
    return low or (1 << _PORT_BITS | 1)
