"""How a rank talks RoCE: what the run says, and what the experiment's `replay.options` may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from genie.errors import InputError
from genie.formats.icrc import IPV4_BYTES, IPV6_BYTES, UDP_BYTES
from genie.formats.roce import BTH_BYTES, ICRC_BYTES, IMM_BYTES, MTUS, RETH_BYTES
from genie.replay.transports.choice import MAX_FLOWS, Wiring, source_port
from genie.replay.transports.framing import SECRET_BYTES
from genie.replay.transports.roce.control import CONTROLS
from genie.replay.transports.roce.layout import Layout
from genie.replay.transports.roce.requester import Patience
from genie.units import NS_PER_MS

OVERHEAD_BYTES: Final = UDP_BYTES + BTH_BYTES + RETH_BYTES + IMM_BYTES + ICRC_BYTES
FIRST_QPN: Final = 0x11
WINDOWS: Final = 4
"""So many of the windows that TCP gets: our acknowledgements wait for a processor, the kernel's do not."""

_FIRST_USER_PORT: Final = 1024
_FLOW_LABEL_MASK, _PORT_MASK, _PORT_BASE = 0xF_FFFF, 0x3FFF, 0xC000


class Words(BaseModel):
    """`replay.options` of this transport; docs/roce.md says more."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mtu: int = 0
    operation: str = Field("write", pattern="^(write|send)$")
    recovery: str = Field("go-back-n", pattern="^(go-back-n|selective)$")
    control: str = Field("none", pattern=f"^({'|'.join(CONTROLS)})$")
    window_bytes: int = Field(0, ge=0)
    segments: int = Field(0, ge=0, le=60)
    ports: str | list[int] = "qp"
    spray: str = Field("", pattern="^(|message|batch)$")
    split: bool = False
    dscp: int = Field(0, ge=0, le=63)
    ecn: bool = False
    icrc: bool = True
    timeout_ms: float = Field(40.0, gt=0)
    retries: int = Field(7, ge=0)
    rnr_retries: int = Field(7, ge=0, le=7)
    receive_depth: int = Field(0, ge=0)


DEFAULT_WORDS: Final = Words()


def words_of(options: Mapping[str, Any]) -> Words:
    """Check what an experiment says.

    Raises:
        InputError: names every wrong option.
    """
    try:
        words = Words.model_validate(dict(options))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InputError(f"{wrong}.", where="replay.options of roce", fix="docs/roce.md lists them.") from error
    if words.mtu not in {0, *MTUS}:
        raise InputError(f"a path MTU is one of {MTUS}, not {words.mtu}.", where="replay.options of roce")
    _check_ports(words)
    return words


def _check_ports(words: Words) -> None:
    ports = words.ports
    wrong = isinstance(ports, str) and ports not in {"qp", "hash"}
    wrong |= isinstance(ports, list) and (not ports or not all(_FIRST_USER_PORT <= port < 1 << 16 for port in ports))
    if wrong:
        raise InputError(
            "ports is qp, hash, or a list of UDP source ports from 1024 up.", where="replay.options of roce"
        )
    if words.spray and not isinstance(ports, list):
        raise InputError("spray needs a list of ports.", where="replay.options of roce")


@dataclass(frozen=True, slots=True)
class RoceOptions:
    """How a rank talks RoCE.

    Attributes:
        address, secret, verify: as for every transport.
        ranks, flows: how many ranks, and queue pairs per pair of them.
        mtu: path MTU.
        window: packets in flight per queue pair, at most.
        segments: most packets of a super-packet; 1 sends real single packets.
        rate_bps: real rate to pace all sending at, 0 for none.
        line_bps, dilation: real rate of our link, and real time per virtual time, for congestion control.
        words: the rest.
    """

    address: str
    secret: bytes
    ranks: int
    words: Words = DEFAULT_WORDS
    flows: int = 1
    mtu: int = 4096
    window: int = 32
    segments: int = 15
    rate_bps: int = 0
    line_bps: int = 10_000_000_000
    dilation: int = 1
    verify: bool = False

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise InputError(f"a run's secret has {SECRET_BYTES} bytes, not {len(self.secret)}.")

    @staticmethod
    def of(wiring: Wiring) -> RoceOptions:
        """What a run and its experiment say.

        Raises:
            InputError: the way's MTU is too small for any, or for the chosen, path MTU.
        """
        words = words_of(wiring.options)
        mtu = _path_mtu(wiring, words.mtu)
        window = max(2, (words.window_bytes or WINDOWS * wiring.window_bytes) // mtu)
        segments = min(words.segments or wiring.super_packet_segments, 65_000 // (mtu + OVERHEAD_BYTES))
        return RoceOptions(
            address=wiring.address,
            secret=wiring.secret,
            ranks=wiring.ranks,
            words=words,
            flows=wiring.flows,
            mtu=mtu,
            window=window,
            segments=segments,
            rate_bps=wiring.rate_bps,
            line_bps=wiring.line_bps,
            dilation=wiring.dilation,
            verify=wiring.verify,
        )

    @property
    def layout(self) -> Layout:
        """How messages are cut."""
        return Layout(self.mtu, self.words.operation == "send")

    @property
    def patience(self) -> Patience:
        """When to try again."""
        words = self.words
        selective = words.recovery == "selective"
        return Patience(round(words.timeout_ms * NS_PER_MS), words.retries, words.rnr_retries, selective)

    @property
    def settings(self) -> int:
        """What both ends must agree on, as bits."""
        words = self.words
        flags = (words.operation == "send", words.recovery == "selective", words.icrc, words.split)
        return sum(flag << at for at, flag in enumerate(flags)) | self.flows << 8

    def ports(self, rank: int, peer: int, flow: int) -> list[int]:
        """UDP source ports of a queue pair: one, or several that are sprayed over."""
        ports = self.words.ports
        if isinstance(ports, list):
            return list(ports) if self.words.spray else [ports[flow % len(ports)]]
        return [port_of(self.ranks, rank, peer, flow, {"ports": ports})]


def _path_mtu(wiring: Wiring, wanted: int) -> int:
    """The chosen one, or the largest that fits."""
    room = wiring.mtu_bytes - OVERHEAD_BYTES - (IPV6_BYTES if ":" in wiring.address else IPV4_BYTES)
    fitting = [mtu for mtu in MTUS if mtu <= room]
    if not fitting or wanted > fitting[-1]:
        raise InputError(
            f"packets with {wanted or MTUS[0]} bytes of payload do not fit an MTU of {wiring.mtu_bytes} bytes.",
            where="replay.options of roce",
            fix=f"choose a path MTU of at most {fitting[-1]}." if fitting else "raise the links' MTU.",
        )
    return wanted or fitting[-1]


def qpn_of(peer: int, flow: int) -> int:
    """The number of the queue pair towards a peer: the same in every run, so that ports hashed from it are, too."""
    return FIRST_QPN + peer * MAX_FLOWS + flow


def port_of(ranks: int, rank: int, peer: int, flow: int, options: Mapping[str, Any]) -> int:
    """The (first) UDP source port of a queue pair under a policy.

    `hash` is what verbs libraries do: a flow label from both QP numbers, and from it a port from 0xC000 up. (The queue
    pairs of one pair of ranks then have the same port both ways.)
    """
    ports = options.get("ports", "qp")
    if isinstance(ports, list):
        return int(ports[flow % len(ports)])
    if ports == "qp":
        return source_port(ranks, rank, peer, flow)
    value = qpn_of(peer, flow) * qpn_of(rank, flow)
    value ^= value >> 20
    value ^= value >> 40
    label = value & _FLOW_LABEL_MASK
    return (label & _PORT_MASK) ^ (label >> 14) | _PORT_BASE
