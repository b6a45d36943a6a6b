"""How a rank talks verbs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from genie.errors import InputError
from genie.replay.transports.framing import SECRET_BYTES
from genie.replay.transports.payload import PIECE_BYTES
from genie.replay.transports.verbs_device import Choice, Wish, mtu_code
from genie.replay.transports.verbs_library import QueuePairPlan
from genie.replay.transports.verbs_units import MAX_FLOW_LABEL, Retry, retry_of, rnr_code
from genie.units import NS_PER_MS

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
    signal_every: int = 4
    events: bool = True
    slots: int = 8
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
