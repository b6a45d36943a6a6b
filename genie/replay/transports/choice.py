"""Which transport a replay uses: by name, with what the run tells every transport and what only that one understands.

A transport's module is imported when it is made, so that naming it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from genie.core.shaping import UNSHAPED, Shaping
from genie.core.testbed import TCP_IP_BYTES
from genie.errors import InputError
from genie.formats.roce import MTUS
from genie.formats.roce import PORT as ROCE_PORT
from genie.replay.transports.base import Transport
from genie.replay.transports.framing import FRAME_BYTES

FIRST_SOURCE_PORT: Final = 20_000
LISTEN_PORT: Final = 18_515
MAX_FLOWS: Final = 16
TCP, UDP = 6, 17

Options = Mapping[str, Any]
"""What an experiment says to one transport alone (`replay.options`): plain values by name."""


def source_port(ranks: int, source: int, destination: int, flow: int) -> int:
    """The local port that a connection is made from: fixed, so that ECMP takes the same path in every run."""
    return FIRST_SOURCE_PORT + (source * ranks + destination) * MAX_FLOWS % 40_000 + flow


@dataclass(frozen=True, slots=True)
class Wiring:
    """What a run tells the transport of one rank.

    Attributes:
        rank, ranks: which of how many.
        address: ours, IPv4 or IPv6.
        secret: 32 bytes that all ranks of the run share.
        flows: connections (queue pairs) per ordered pair of ranks.
        rate_bps: real rate to pace all sending at; 0 leaves it to the fabric.
        line_bps: real rate of our link to the fabric.
        dilation: real time per virtual time.
        window_bytes: payload that one connection should have in flight.
        mtu_bytes: largest IP packet that the way carries.
        slot: which of several ranks of one address.
        super_packet_segments: most packets that may leave as one super-packet.
        verify: check every payload byte.
        options: the transport's own.
    """

    rank: int
    ranks: int
    address: str
    secret: bytes
    flows: int = 1
    rate_bps: int = 0
    line_bps: int = 10_000_000_000
    dilation: int = 1
    window_bytes: int = 128 << 10
    mtu_bytes: int = 65_535
    slot: int = 0
    super_packet_segments: int = 15
    verify: bool = False
    options: Options = field(default_factory=dict)


def _fixed_port(ranks: int, source: int, destination: int, flow: int, _: Options) -> int:
    return source_port(ranks, source, destination, flow)


@dataclass(frozen=True, slots=True)
class Choice:
    """A transport that can be chosen.

    Attributes:
        make: one rank's end; raises InputError for options that it does not know.
        check: raises InputError where `make` would, before anything is brought up.
        protocol, port: IP protocol and destination port of its packets: with the source port, what ECMP hashes.
        source_port: (ranks, source, destination, flow, options) -> the port that a flow leaves from.
        rdma: whether hosts need RDMA devices.
        shaping: (largest IP packet, packets of a super-packet, credit) -> what an emulated fabric does to messages.
    """

    make: Callable[[Wiring], Transport]
    check: Callable[[Options], None]
    protocol: int
    port: int
    source_port: Callable[[int, int, int, int, Options], int] = _fixed_port
    rdma: bool = False
    shaping: Callable[[int, int, int], Shaping] = lambda _mtu_bytes, _segments, _credit_ns: UNSHAPED


def _tcp_shaping(mtu_bytes: int, segments: int, credit_ns: int) -> Shaping:
    return Shaping(segments * (mtu_bytes - TCP_IP_BYTES), FRAME_BYTES, credit_ns)


def _make_tcp(wiring: Wiring) -> Transport:
    from genie.replay.transports.tcp import TcpOptions, TcpTransport  # noqa: PLC0415

    options = TcpOptions(
        address=wiring.address,
        port=LISTEN_PORT + wiring.slot,
        secret=wiring.secret,
        flows=wiring.flows,
        source_port=lambda peer, flow: source_port(wiring.ranks, wiring.rank, peer, flow),
        rate_bps=wiring.rate_bps,
        receive_buffer_bytes=2 * wiring.window_bytes,  # the kernel counts its own book-keeping, about as much again
        verify=wiring.verify,
    )
    return TcpTransport(wiring.rank, options)


def _make_roce(wiring: Wiring) -> Transport:
    from genie.replay.transports.roce.options import RoceOptions  # noqa: PLC0415
    from genie.replay.transports.roce.transport import RoceTransport  # noqa: PLC0415

    return RoceTransport(wiring.rank, RoceOptions.of(wiring))


def _check_roce(options: Options) -> None:
    """Looks at the options, and makes the tables that all ranks share before they are forked."""
    from genie.replay.transports.roce.middles import payload_registers  # noqa: PLC0415
    from genie.replay.transports.roce.options import words_of  # noqa: PLC0415

    words = words_of(options)
    payload_registers(words.mtu or MTUS[-1])


def _roce_port(ranks: int, source: int, destination: int, flow: int, options: Options) -> int:
    from genie.replay.transports.roce.options import port_of  # noqa: PLC0415

    return port_of(ranks, source, destination, flow, options)


def _no_options(options: Options) -> None:
    if options:
        raise InputError(f"tcp takes no options, but got {', '.join(options)}.", where="replay.options")


def _make_verbs(wiring: Wiring) -> Transport:
    from genie.replay.transports.verbs import VerbsTransport  # noqa: PLC0415
    from genie.replay.transports.verbs_options import VerbsOptions, flow_label, read_settings  # noqa: PLC0415

    options = VerbsOptions(
        address=wiring.address,
        port=LISTEN_PORT,
        secret=wiring.secret,
        flows=wiring.flows,
        flow_label=lambda peer, flow: flow_label(wiring.ranks, wiring.rank, peer, flow, wiring.options),
        verify=wiring.verify,
        **read_settings(wiring.options),
    )
    return VerbsTransport(wiring.rank, options)


def _check_verbs(options: Options) -> None:
    from genie.replay.transports.verbs_options import check_settings  # noqa: PLC0415

    check_settings(options)


def _verbs_port(ranks: int, source: int, destination: int, flow: int, options: Options) -> int:
    from genie.replay.transports.verbs_options import roce_port  # noqa: PLC0415

    return roce_port(ranks, source, destination, flow, options)


CHOICES: Final[dict[str, Choice]] = {
    "tcp": Choice(_make_tcp, _no_options, TCP, LISTEN_PORT, shaping=_tcp_shaping),
    "verbs": Choice(_make_verbs, _check_verbs, UDP, ROCE_PORT, _verbs_port, rdma=True),
    "roce": Choice(_make_roce, _check_roce, UDP, ROCE_PORT, _roce_port),
}
"""Name -> transport."""


def choice(name: str) -> Choice:
    """The transport of that name.

    Raises:
        InputError: there is none; lists those that there are.
    """
    if name not in CHOICES:
        raise InputError(f"no transport is called {name!r}.", where="replay.transport", fix=f"use {_names()}.")
    return CHOICES[name]


def _names() -> str:
    return ", ".join(CHOICES)
