"""How a rank talks verbs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from genie.errors import InputError
from genie.replay.transports.framing import SECRET_BYTES
from genie.replay.transports.payload import PIECE_BYTES
from genie.replay.transports.verbs_device import Choice, Wish, mtu_code
from genie.replay.transports.verbs_library import QueuePairPlan
from genie.replay.transports.verbs_units import (
    FIRST_PORT,
    MAX_FLOW_LABEL,
    Retry,
    flow_label_of,
    retry_of,
    rnr_code,
)
from genie.units import NS_PER_MS, parse_size_bytes, parse_time_ns

MAX_FLOWS: Final = 64
_MAX_TRAFFIC_CLASS: Final = 255


@dataclass(frozen=True, slots=True)
class VerbsOptions:
    """How a rank talks verbs. Times are real.

    Attributes:
        address: ours on the fabric: the RDMA port is the one that has it, and TCP listens on it.
        secret: 32 bytes that all ranks of a run share.
        port: TCP port to listen on; 0 lets the kernel choose.
        device, ib_port, gid_index: which, instead of by rule (see verbs_device.choose); "" and 0 and -1 leave it.
        flows: queue pairs per pair of ranks; messages take them in turn.
        flow_label: (peer, queue pair) -> IPv6-style flow label; RoCE derives its UDP source port from it (see
            verbs_units.flow_label_of), and switches the path from that. None: the device chooses.
        traffic_class: of every packet (DSCP and ECN bits).
        operation: "write" (RDMA WRITE with immediate) or "send".
        path_mtu_bytes: 0 takes the port's, which must then be the same at both ends.
        ack_timeout_ns: how long until an unanswered packet is sent again, at least.
        give_up_ns: how long until a peer that never answers is an error, at least; at most 7 times the time-out.
        rnr_ns: how long a sender waits whose peer has no receive posted (which this transport never lets happen).
        inline_bytes: up to this size bytes travel in the work request.
        signal_every: one in so many work requests tells when it is done.
        events: sleep until a completion comes; False: spin (faster, takes a core a rank).
        slots, slot_bytes: landing slots a queue pair and direction, and the most that one takes.
        landing_bytes: most memory for all landing slots of the rank: slots get smaller with many peers.
        verify: check every payload byte.
    """

    address: str
    secret: bytes
    port: int = 0
    device: str = ""
    ib_port: int = 0
    gid_index: int = -1
    flows: int = 1
    flow_label: Callable[[int, int], int] | None = None
    traffic_class: int = 0
    operation: str = "write"
    path_mtu_bytes: int = 0
    ack_timeout_ns: int = 134 * NS_PER_MS
    give_up_ns: int = 900 * NS_PER_MS
    rnr_ns: int = NS_PER_MS
    inline_bytes: int = 64
    signal_every: int = 8
    events: bool = True
    slots: int = 16
    slot_bytes: int = PIECE_BYTES
    landing_bytes: int = 64 << 20
    verify: bool = False

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise InputError(f"a run's secret has {SECRET_BYTES} bytes, not {len(self.secret)}.")
        if self.operation not in {"write", "send"}:
            raise InputError(f"operation must be write or send, not {self.operation!r}.")
        limits = {
            "flows": (1, MAX_FLOWS),
            "traffic_class": (0, _MAX_TRAFFIC_CLASS),
            "slots": (2, 1024),
            "slot_bytes": (4096, PIECE_BYTES),
            "signal_every": (1, 1024),
            "inline_bytes": (0, 1024),
        }
        for name, (least, most) in limits.items():
            if not least <= getattr(self, name) <= most:
                raise InputError(f"{name} must lie in {least} to {most}, not {getattr(self, name)}.")
        if self.path_mtu_bytes:
            mtu_code(self.path_mtu_bytes)
        self.retry()

    def retry(self) -> Retry:
        """Time-out and retries as verbs code them."""
        return retry_of(self.ack_timeout_ns, self.give_up_ns)

    def wish(self) -> Wish:
        """What device, port and GID were asked for."""
        return Wish(self.device, self.ib_port, self.gid_index, self.address)

    @property
    def writes(self) -> bool:
        """Whether messages are written into the peer's memory (else sent to posted receives)."""
        return self.operation == "write"

    @property
    def depth(self) -> int:
        """Work requests that a queue pair's device may hold: pieces, words that go back, and some not yet told done."""
        return 4 * self.slots

    def plan(self, choice: Choice, peer: int, flow: int) -> QueuePairPlan:
        """How a queue pair to a peer is made."""
        label = self.flow_label(peer, flow) if self.flow_label else 0
        if not 0 <= label <= MAX_FLOW_LABEL:
            raise InputError(f"flow label {label} has more than 20 bits.")
        return QueuePairPlan(
            port=choice.port.port,
            gid_index=choice.gid.index,
            layer=choice.port.layer,
            mtu_bytes=self.path_mtu_bytes or choice.port.mtu_bytes,
            retry=self.retry(),
            rnr=rnr_code(self.rnr_ns),
            traffic_class=self.traffic_class,
            flow_label=label,
            sends=self.depth,
            receives=2 * self.slots,
            inline_bytes=self.inline_bytes,
        )


def _size(value: Any) -> int:
    return value if isinstance(value, int) else parse_size_bytes(str(value))


def _time(value: Any) -> int:
    return parse_time_ns(str(value))


SETTINGS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "device": ("device", str),
    "port": ("ib_port", int),
    "gid_index": ("gid_index", int),
    "operation": ("operation", str),
    "path_mtu": ("path_mtu_bytes", _size),
    "traffic_class": ("traffic_class", int),
    "ack_timeout": ("ack_timeout_ns", _time),
    "give_up": ("give_up_ns", _time),
    "inline": ("inline_bytes", _size),
    "signal_every": ("signal_every", int),
    "slots": ("slots", int),
    "slot": ("slot_bytes", _size),
    "landing": ("landing_bytes", _size),
}
"""What an experiment may set: name -> (field of VerbsOptions, how its value is read)."""

PATHS: Final = "paths"
_COMPLETIONS: Final = "completions"
_FIXED, _DEVICE = "fixed", "device"
_WORDS: Final = {PATHS: (_FIXED, _DEVICE), _COMPLETIONS: ("events", "spin")}
_PORTS: Final = 0x1_0000 - FIRST_PORT


def read_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of VerbsOptions from an experiment's `replay.options`.

    Raises:
        InputError: a name that is unknown, or a value that cannot be read.
    """
    unknown = [name for name in settings if name not in SETTINGS and name not in _WORDS]
    if unknown:
        names = ", ".join(sorted((*SETTINGS, *_WORDS)))
        raise InputError(f"verbs has no option {', '.join(unknown)}.", where="replay.options", fix=f"use {names}.")
    for name, words in _WORDS.items():
        if settings.get(name, words[0]) not in words:
            raise InputError(f"{name} must be {' or '.join(words)}, not {settings[name]!r}.", where="replay.options")
    fields = {}
    for name, (field, read) in SETTINGS.items():
        if name in settings:
            try:
                fields[field] = read(settings[name])
            except ValueError as error:
                raise InputError(f"{name} cannot be {settings[name]!r}.", where="replay.options") from error
    return fields | {"events": settings.get(_COMPLETIONS) != "spin"}


def check_settings(settings: Mapping[str, Any]) -> None:
    """See that transports can be made with them.

    Raises:
        InputError: they cannot.
    """
    VerbsOptions("0.0.0.0", bytes(SECRET_BYTES), **read_settings(settings))  # noqa: S104 - of nobody


def roce_port(ranks: int, source: int, destination: int, flow: int, settings: Mapping[str, Any]) -> int:
    """UDP source port of a queue pair's packets, fixed so that ECMP takes the same path in every run.

    0 if the device is to choose (`paths: device`).
    """
    if settings.get(PATHS, _FIXED) == _DEVICE:
        return 0
    return FIRST_PORT + ((source * ranks + destination) * MAX_FLOWS + flow) % _PORTS


def flow_label(ranks: int, source: int, destination: int, flow: int, settings: Mapping[str, Any]) -> int:
    """The flow label that gives that port; 0 leaves it to the device."""
    port = roce_port(ranks, source, destination, flow, settings)
    return flow_label_of(port) if port else 0
