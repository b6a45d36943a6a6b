"""One reliable connected queue pair: both halves, its packets, and the sockets that it sends from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from genie.errors import InputError, RunError
from genie.formats import roce
from genie.formats.icrc import Way
from genie.formats.roce import ENDS, REQUESTS, STARTS, Aeth, Opcode, Packet
from genie.replay.transports.payload import first_difference
from genie.replay.transports.roce.control import CONTROLS, ControlSettings, DcqcnParameters
from genie.replay.transports.roce.layout import LEAD_BYTES, Outgoing
from genie.replay.transports.roce.options import RoceOptions
from genie.replay.transports.roce.packets import CHUNK, Buffers, Builder, Checker, Inbox
from genie.replay.transports.roce.requester import Requester, Run
from genie.replay.transports.roce.responder import Fate, Message, Piece, Responder
from genie.replay.transports.roce.sockets import Address, Datagram, Outlet, address_of

MAX_CHECKERS: Final = 256
"""Source ports of one peer that are remembered: more are somebody's forgery."""

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
        self._builders = {
            outlet.sport: Builder(
                Way.between(near.address, far.address, outlet.sport),
                layout,
                far.qpn,
                far.rkey,
                options.segments,
                seal=words.icrc,
            )
            for outlet in outlets
        }
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
        self._turn = 0

    # ---- sending

    def batch(self, now_ns: int) -> Batch | None:
        """The packets that leave next, as one super-packet at most; None when nothing may."""
        if self.pending is not None:
            batch, self.pending = self.pending, None
            return batch
        requester = self.requester
        if self._paced and requester.control.may_send_ns() > now_ns:
            return None
        run = requester.next_run(self._options.segments, now_ns)
        if run is None:
            return None
        outlet = self._outlet(run)
        builder = self._builders[outlet.sport]
        if run.packets > 1:
            return self._middles(run, outlet, builder, now_ns)
        return self._singles(run, outlet, builder, now_ns)

    def _outlet(self, run: Run) -> Outlet:
        if len(self._outlets) == 1:
            return self._outlets[0]
        self._turn += 1
        turn = run.message.sequence if self._options.words.spray == "message" else self._turn
        return self._outlets[turn % len(self._outlets)]

    def _middles(self, run: Run, outlet: Outlet, builder: Builder, now_ns: int) -> Batch:
        requester, wire = self.requester, run.packets * self._middle_bytes
        asks = requester.wants_acknowledgement(run, now_ns)
        psn = requester.psn(run.start)
        buffers = builder.middles(run.message, run.at, psn, run.packets, ack_request=asks)
        requester.take(run, wire, now_ns)
        return Batch(buffers, self._middle_bytes, outlet, run.packets, wire)

    def _singles(self, run: Run | None, outlet: Outlet, builder: Builder, now_ns: int) -> Batch:
        """A packet, or several whole messages: equal lengths, a shorter one at the end (so a capture can be read)."""
        requester = self.requester
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
        builder = self._builders[self._outlets[0].sport]
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

    def take_middles(self, inbox: Inbox, datagram: Datagram) -> bool:
        """Take a datagram that is, wholly, the next middle packets of the message under way; False if it is not."""
        size, segment = datagram.size, self._middle_bytes
        count = size // segment
        if size % segment or count > CHUNK or (count > 1 and datagram.segment != segment):
            return False
        responder, mtu = self.responder, self._layout.mtu
        place = responder.place
        if place.left_bytes <= count * mtu or responder.behind:
            return False
        psn = roce.psn_add(self.far.psn, responder.expected)
        checker = self._checker(datagram.sport)
        if not checker.are_middles(inbox, count, psn, place.sequence, place.offset):
            return False
        responder.take_middles(count, count * mtu)
        if inbox.view[size - segment + 8] & 0x80:
            responder.ask()
        self._note(datagram, count)
        return True

    def _note(self, datagram: Datagram, packets: int) -> None:
        self.heard_ns = datagram.stamp_ns
        if datagram.marked:
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

    def take(self, packet: memoryview, datagram: Datagram, now_ns: int, news: News) -> None:
        """Take one packet of any kind.

        Raises:
            RunError: payload that differs from what was sent, or a refusal.
        """
        if not self._checker(datagram.sport).is_sealed(packet):
            self.damage.icrc += 1
            return
        try:
            parsed = roce.parse(packet)
        except InputError:
            self.damage.malformed += 1
            return
        self._note(datagram, 1)
        if parsed.opcode in REQUESTS:
            self._on_request(parsed, datagram, news)
        elif parsed.aeth is not None and parsed.opcode is Opcode.ACKNOWLEDGE:
            self._on_answer(parsed, parsed.aeth, now_ns, news)
        elif parsed.opcode is Opcode.CNP:
            self.requester.on_notification(now_ns)
        else:
            self.damage.malformed += 1

    def _on_request(self, packet: Packet, datagram: Datagram, news: News) -> None:
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
        fate, arrived = responder.on_piece(piece, datagram.stamp_ns)
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
