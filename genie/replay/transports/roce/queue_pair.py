"""One reliable connected queue pair: both halves, its packets, and the sockets that it sends from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from genie.errors import InputError, RunError
from genie.formats import roce
from genie.formats.icrc import Way
from genie.formats.roce import ENDS, PORT, REQUESTS, STARTS, Aeth, Opcode, Packet
from genie.replay.transports.payload import first_difference
from genie.replay.transports.roce.control import CONTROLS, ControlSettings, DcqcnParameters
from genie.replay.transports.roce.layout import LEAD_BYTES, Outgoing
from genie.replay.transports.roce.middles import Middles, MiddleSender
from genie.replay.transports.roce.mmsg import pack_address
from genie.replay.transports.roce.options import RoceOptions
from genie.replay.transports.roce.packets import Buffers, Builder, Checker
from genie.replay.transports.roce.requester import ASKS_PER_WINDOW, Requester, Run
from genie.replay.transports.roce.responder import Fate, Message, Piece, Responder
from genie.replay.transports.roce.slots import Slot
from genie.replay.transports.roce.sockets import Address, Outlet, address_of

MAX_CHECKERS: Final = 256
"""Source ports of one peer that are remembered: more are somebody's forgery."""

TURN_BYTES: Final = 512 << 10
"""What a queue pair sends before the others get their turn."""

CNP_INTERVAL_NS: Final = DcqcnParameters().cut_interval_ns


class End(NamedTuple):
    """One end of a queue pair as the other must know it: address, QP number, first PSN, key of its memory."""

    address: str
    qpn: int
    psn: int
    rkey: int


@dataclass(slots=True)
class Batch:
    """Packets that leave together: buffers, bytes of each packet but the last, and the outlet that takes them."""

    buffers: Buffers
    segment: int
    outlet: Outlet
    packets: int
    wire_bytes: int

    def leave(self, to: Address) -> bool:
        """Hand them to the kernel; False if it has no room."""
        return not self.outlet.blocked and self.outlet.send(self.buffers, self.segment if self.packets > 1 else 0, to)


class _Way(NamedTuple):
    """What makes the packets that leave through one outlet."""

    builder: Builder
    middles: MiddleSender


@dataclass(slots=True)
class Damage:
    """Packets that were not taken: wrong ICRC, or no packet that makes sense."""

    icrc: int = 0
    malformed: int = 0


@dataclass(slots=True)
class News:
    """What a datagram brought: messages received, messages acknowledged."""

    arrived: list[Message] = field(default_factory=list)
    acknowledged: list[Outgoing] = field(default_factory=list)


class QueuePair:
    """See the module.

    Args:
        peer, flow: whose, and which of several.
        near, far: both ends.
        options: of the run.
        outlets: to send from; several are sprayed over.
        now: the clock.

    Attributes:
        to: where packets go.
        gone: why nothing will come from the peer any more; "" as long as something may.
        heard_ns: when something came last.
        pending: what the kernel did not take yet.
    """

    def __init__(
        self,
        peer: int,
        flow: int,
        near: End,
        far: End,
        options: RoceOptions,
        outlets: list[Outlet],
        now: Callable[[], int],
    ) -> None:
        self.peer, self.flow, self.near, self.far, self._options, self._outlets = (
            peer,
            flow,
            near,
            far,
            options,
            outlets,
        )
        words, layout = options.words, options.layout
        line_bps = options.rate_bps or options.line_bps
        control = CONTROLS[words.control](ControlSettings(options.window, line_bps, options.dilation))
        self.requester = Requester(layout, near.psn, control, options.patience, options.segments)
        selective = options.patience.selective
        self.responder = Responder(layout, far.psn, near.rkey, selective=selective, depth=words.receive_depth)
        self._ways = {outlet.sport: self._way(outlet) for outlet in outlets}
        self._checkers: dict[int, Checker] = {}
        self._layout = layout
        self._middle_bytes = layout.middle_bytes
        self.to: Address = address_of(far.address)
        self.gone = ""
        self.heard_ns = now()
        self.pending: Batch | None = None
        self.damage = Damage()
        self._cnp_ns = 0
        self._cnp_interval_ns = CNP_INTERVAL_NS * options.dilation
        self._notifies = self._paced = words.control == "dcqcn"
        self._marked = self._notify = False
        one_by_one = self._paced or options.rate_bps or words.spray == "batch"
        at_once = min(TURN_BYTES // self._middle_bytes, options.window // ASKS_PER_WINDOW)
        self._most = options.segments if one_by_one else max(options.segments, at_once)
        self._turn = 0

    # ---- sending

    def _way(self, outlet: Outlet) -> _Way:
        near, far, layout, segments = self.near, self.far, self._options.layout, self._options.segments
        way = Way.between(near.address, far.address, outlet.sport)
        seal = self._options.words.icrc
        middles = Middles(way, layout, far.qpn, segments, seal=seal)
        sender = MiddleSender(middles, layout, segments, pack_address(far.address, PORT))
        return _Way(Builder(way, layout, far.qpn, far.rkey, seal=seal), sender)

    def push(self, now_ns: int) -> int:
        """Let leave what may, at once and as one run; its bytes. 0: nothing may, or the kernel has no room."""
        if self.pending is not None:
            return self._leave(self.pending)
        requester = self.requester
        if self._paced and requester.control.may_send_ns() > now_ns:
            return 0
        run = requester.next_run(self._most, now_ns)
        if run is None:
            return 0
        outlet = self._outlet(run)
        if run.packets > 1:
            return 0 if outlet.blocked else self._push_middles(run, outlet, now_ns)
        return self._leave(self._singles(run, outlet, now_ns))

    def _leave(self, batch: Batch) -> int:
        if batch.leave(self.to):
            self.pending = None
            return batch.wire_bytes
        self.pending = batch
        return 0

    @property
    def stuck(self) -> list[Outlet]:
        """Outlets that have no room."""
        return [outlet for outlet in self._outlets if outlet.blocked]

    def _outlet(self, run: Run) -> Outlet:
        if len(self._outlets) == 1:
            return self._outlets[0]
        self._turn += 1
        turn = run.message.sequence if self._options.words.spray == "message" else self._turn
        return self._outlets[turn % len(self._outlets)]

    def _push_middles(self, run: Run, outlet: Outlet, now_ns: int) -> int:
        """Whole super-packets, or a part of one."""
        requester, segments = self.requester, self._options.segments
        message, at, packets, again = run
        middles = self._ways[outlet.sport].middles
        row, ready = middles.prepare(message.sequence, at, requester.psn(run.start))
        packets = min(packets, ready)
        if packets > segments:
            packets -= packets % segments
        run = Run(message, at, packets, again)
        asks = requester.asks(run)
        left = outlet.send_middles(middles, row, packets, self.to, ack_request=asks)
        if not left:
            return 0
        if left < packets:
            run, asks = Run(message, at, left, again), False
        wire = left * self._middle_bytes
        requester.asked(run, now_ns, asks=asks)
        requester.take(run, wire, now_ns)
        return wire

    def _singles(self, run: Run | None, outlet: Outlet, now_ns: int) -> Batch:
        """A packet, or several whole messages: equal lengths, a shorter one at the end (so a capture can be read)."""
        requester, builder = self.requester, self._ways[outlet.sport].builder
        batch = Batch([], 0, outlet, 0, 0)
        while run is not None and run.packets == 1:
            part = self._layout.part(run.message, run.at)
            size = part.wire_bytes
            if batch.packets and (size > batch.segment or part.opcode not in ENDS):
                break
            psn, asks = requester.psn(run.start), requester.wants_acknowledgement(run, now_ns)
            single = builder.single(run.message, part, psn, ack_request=asks, position=batch.packets)
            batch.buffers += single.buffers
            batch.segment = batch.segment or size
            batch.packets += 1
            batch.wire_bytes += size
            requester.take(run, size, now_ns)
            alone = part.opcode not in STARTS or part.opcode not in ENDS
            if alone or size < batch.segment or batch.packets == self._options.segments:
                break
            if self._options.words.spray == "message" and len(self._outlets) > 1:
                break
            run = requester.next_run(1, now_ns)
        return batch

    def answers(self, now_ns: int) -> list[bytes]:
        """Acknowledgements and notifications that are due."""
        found = []
        builder = self._ways[self._outlets[0].sport].builder
        if self._notify and now_ns - self._cnp_ns >= self._cnp_interval_ns:
            self._cnp_ns = now_ns
            found.append(builder.control(Opcode.CNP, 0, bytes(16), becn=True))
        self._notify = False
        for answer in self.responder.answers():
            aeth = answer.aeth
            extension = ((aeth.kind << 5 | aeth.value) << 24 | aeth.msn).to_bytes(4, "big")
            found.append(builder.control(Opcode.ACKNOWLEDGE, answer.psn, extension, becn=self._marked))
            self._marked = False
        return found

    @property
    def outlet(self) -> Outlet:
        """Where answers leave."""
        return self._outlets[0]

    # ---- receiving

    def take_middles(self, slot: Slot) -> bool:
        """Take a datagram that is, wholly, the next middle packets of the message under way; False if it is not."""
        count, rest = divmod(slot.size, self._middle_bytes)
        if rest or not 0 < count <= slot.most or slot.segment != self._middle_bytes:
            return False
        responder, size = self.responder, count * self._layout.mtu
        if responder.piece_left_bytes <= size or responder.behind:
            return False
        psn = roce.psn_add(self.far.psn, responder.expected)
        asks = slot.asks(count)
        checker = self._checker(slot.sport)
        if not checker.are_middles(slot, count, psn, responder.sequence, responder.offset):
            return False
        responder.take_middles(count, size)
        if asks:
            responder.ask()
        self._note(slot, count)
        return True

    def _note(self, slot: Slot, packets: int) -> None:
        self.heard_ns = slot.stamp_ns
        if slot.marked:
            self._marked = True
            self._notify = self._notifies
            self.responder.heard.marked += packets

    def _checker(self, sport: int) -> Checker:
        checker = self._checkers.get(sport)
        if checker is None:
            if len(self._checkers) >= MAX_CHECKERS:
                self._checkers.clear()
            way = Way.between(self.far.address, self.near.address, sport)
            sealed, content = self._options.words.icrc, self._options.verify
            checker = Checker(way, self._layout, self.near.qpn, self._options.segments, sealed=sealed, content=content)
            self._checkers[sport] = checker
        return checker

    def take(self, packet: memoryview, slot: Slot, now_ns: int, news: News) -> None:
        """Take one packet of any kind.

        Raises:
            RunError: payload that differs from what was sent, or a refusal.
        """
        if not self._checker(slot.sport).is_sealed(packet):
            self.damage.icrc += 1
            return
        try:
            parsed = roce.parse(packet)
        except InputError:
            self.damage.malformed += 1
            return
        self._note(slot, 1)
        if parsed.opcode in REQUESTS:
            self._on_request(parsed, slot, news)
        elif parsed.aeth is not None and parsed.opcode is Opcode.ACKNOWLEDGE:
            self._on_answer(parsed, parsed.aeth, now_ns, news)
        elif parsed.opcode is Opcode.CNP:
            self.requester.on_notification(now_ns)
        else:
            self.damage.malformed += 1

    def _on_request(self, packet: Packet, slot: Slot, news: News) -> None:
        responder, reth, payload = self.responder, packet.reth, packet.payload
        address = reth.address if reth else 0
        if self._layout.send and packet.opcode in STARTS:
            address = int.from_bytes(payload[:LEAD_BYTES], "big")
        piece = Piece(
            responder.number(packet.psn),
            packet.opcode,
            len(payload),
            address,
            reth.rkey if reth else 0,
            reth.length if reth else 0,
            packet.immediate or 0,
            packet.ack_request,
        )
        place = responder.place
        fate, arrived = responder.on_piece(piece, slot.stamp_ns)
        news.arrived += arrived
        if fate is Fate.TAKEN and self._options.verify:
            lead = self._layout.lead if place.offset == 0 and packet.opcode in STARTS and not place.begun else 0
            self._verify(memoryview(payload)[lead:], place.sequence, place.offset)

    def _verify(self, payload: memoryview, sequence: int, offset: int) -> None:
        wrong = first_difference(payload, sequence, offset)
        if wrong >= 0:
            raise RunError(
                f"byte {wrong} of message {sequence} is not what was sent.",
                fix="the packet's CRC was right: look for a faulty NIC, driver or memory.",
            )

    def _on_answer(self, packet: Packet, aeth: Aeth, now_ns: int, news: News) -> None:
        news.acknowledged += self.requester.on_acknowledge(packet.psn, aeth, now_ns, marked=packet.becn)

    # ---- for people

    def statistics(self) -> dict[str, int]:
        """What this queue pair counted, in packets."""
        sent, heard, damage = self.requester.counts, self.responder.heard, self.damage
        return {
            "sent": sent.sent,
            "sent_again": sent.again,
            "timeouts": sent.timeouts,
            "naks": sent.naks,
            "rnr_naks": sent.rnr_naks,
            "notifications": sent.notifications,
            "taken": heard.taken,
            "duplicates": heard.duplicates,
            "early": heard.early,
            "refused": heard.refused,
            "marked": heard.marked,
            "icrc_errors": damage.icrc,
            "malformed": damage.malformed,
        }


def qpn_in(view: memoryview) -> int:
    """The destination queue pair of a packet (at least a BTH long)."""
    return view[5] << 16 | view[6] << 8 | view[7]
