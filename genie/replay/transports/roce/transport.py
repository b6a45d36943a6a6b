"""Messages over reliable connected RoCEv2 queue pairs in user space: one socket to receive, one a port to send from."""

from __future__ import annotations

import os
import secrets
import select
import time
from collections.abc import Mapping
from typing import Any, Final

from genie.errors import InputError, NotReadyError, RunError
from genie.formats import roce
from genie.formats.icrc import Way, icrc, sealed
from genie.formats.roce import BTH_BYTES, ICRC_BYTES, PORT, Opcode, Packet
from genie.replay.clock import Clock, RealClock
from genie.replay.transports.base import Completion, Endpoint, Kind
from genie.replay.transports.framing import MAX_MESSAGE_BYTES
from genie.replay.transports.matching import Arrived, Key, KeyNumbers, Matcher, Posted, Tally
from genie.replay.transports.roce.inlet import SLOTS, Inlet
from genie.replay.transports.roce.layout import Outgoing
from genie.replay.transports.roce.meeting import RETRY_NS, Registry, Tie
from genie.replay.transports.roce.options import RoceOptions, qpn_of
from genie.replay.transports.roce.parts import Parts
from genie.replay.transports.roce.queue_pair import TURN_BYTES, End, News, QueuePair, qpn_in
from genie.replay.transports.roce.requester import NEVER
from genie.replay.transports.roce.responder import Message
from genie.replay.transports.roce.slots import Slot
from genie.replay.transports.roce.sockets import Marking, Outlet, address_of, open_socket, troubles
from genie.units import BITS_PER_BYTE, NS_PER_MS, NS_PER_S

TURN_READS: Final = 64
"""Reads before something is sent: a rank that sends faster than it reads would never hear how far it may go on."""

LEAST_CHARGE_BYTES: Final = TURN_BYTES // 32
"""A packet counts for so many bytes of a turn, at least."""

RECEIVE_BUFFER_BYTES: Final = 16 << 20
SIGN_OF_LIFE: Final = -1
QUIET_NS: Final = NS_PER_S
"""A peer that owes us messages and has been quiet for so long is asked for a sign of life."""

MODERATION_NS: Final = 2_000
"""Virtual time that a receiver lets packets gather in the middle of a long message: fewer wake-ups, as NICs do it.
Packets are dated by the kernel, so that no time is told wrong by it."""

FEW: Final = 3
"""Datagrams: whoever finds more when it wakes is late enough as it is."""

MAX_MODERATION_NS: Final = 2 * NS_PER_MS
CATCH_UP_NS: Final = 100 * NS_PER_MS


class RoceTransport:
    """See base.Transport."""

    def __init__(self, rank: int, options: RoceOptions, clock: Clock | None = None) -> None:
        self._rank, self._options, self._clock = rank, options, clock or RealClock()
        self._now = self._clock.now_ns
        self._epoll = select.epoll()
        self._inlet: Inlet | None = None
        self._outlets: dict[int, Outlet] = {}
        self._by_fd: dict[int, Outlet] = {}
        self._pairs: dict[int, QueuePair] = {}
        self._by_peer: dict[int, list[QueuePair]] = {}
        self._answering: dict[int, QueuePair] = {}
        self._active: dict[int, QueuePair] = {}
        self._turn: dict[int, int] = {}
        self._marking = Marking(options.words.dscp, options.words.ecn)
        self._registry = Registry(rank, options.secret, options.mtu, options.settings, self._post_meeting)
        self._matcher, self._tally = Matcher(), Tally()
        self._numbers = Parts(options.flows) if options.words.split and options.flows > 1 else None
        self._outgoing, self._incoming = KeyNumbers(), KeyNumbers()
        self._ready: list[Completion] = []
        self._sent_bytes = 0
        self._free_ns = 0
        self._strays = self._look_ns = 0
        self._gather_ns = min(MAX_MODERATION_NS, MODERATION_NS * options.dilation) if options.dilation > 1 else 0
        self._far_bytes = 4 * self._gather_ns * options.line_bps // (BITS_PER_BYTE * NS_PER_S)
        self._far_from_end = self._few = False
        self._connected = False

    # ---- life

    def open(self) -> Endpoint:
        """See base.Transport."""
        options = self._options
        try:
            sock = open_socket(options.address, PORT, self._marking, self._send_bytes)
        except NotReadyError as error:
            raise NotReadyError(error.what, where=f"rank {self._rank}", fix=error.fix) from error
        self._inlet = Inlet(sock, RECEIVE_BUFFER_BYTES, options.layout, self._now)
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        self._by_fd[sock.fileno()] = self._outlets[PORT] = Outlet(sock)
        return {"address": options.address, "port": PORT}

    @property
    def _send_bytes(self) -> int:
        """Of a socket's send buffer: what the NIC's queue holds of one queue pair (the kernel counts about double)."""
        return 4 * self._options.window * self._options.mtu

    def _outlet(self, port: int) -> Outlet:
        if port not in self._outlets:
            outlet = Outlet(open_socket(self._options.address, port, self._marking, self._send_bytes))
            self._outlets[port] = self._by_fd[outlet.sock.fileno()] = outlet
            self._epoll.register(outlet.sock.fileno(), 0)
        return self._outlets[port]

    def connect(self, peers: Mapping[int, Endpoint], deadline_ns: int) -> None:
        """See base.Transport."""
        if self._inlet is None:
            raise RunError("connect() before open().", where=f"rank {self._rank}")
        self._registry.expect(peers, self._options.flows, self._near)
        for peer, flow in self._registry.ties:
            for port in self._options.ports(self._rank, peer, flow):
                self._outlet(port)
        while True:
            self._registry.prompt(self._now())
            self._receive(self._inlet)
            self._flush_answers(self._now())
            if self._registry.complete:
                self._connected = True
                return
            now_ns = self._now()
            if now_ns >= deadline_ns:
                raise self._registry.missing()
            self._wait(min(deadline_ns - now_ns, RETRY_NS))

    def _near(self, peer: int, flow: int) -> End:
        return End(self._options.address, qpn_of(peer, flow), secrets.randbits(24), secrets.randbits(32))

    def _post_meeting(self, address: str, peer: int, flow: int, packet: Packet) -> None:
        """From the queue pair's own source port, so that it cannot overtake its data."""
        ports = self._options.ports(self._rank, peer, flow) if peer >= 0 else [PORT]
        outlet = self._outlets.get(ports[0]) or self._outlets[PORT]
        way = Way.between(self._options.address, address, outlet.sport)
        outlet.send([sealed(way, packet.body())], 0, address_of(address))

    def _set_up(self, tie: Tie) -> None:
        """A link is known from both ends: make its queue pair."""
        if tie.far is None or tie.near.qpn in self._pairs:
            return
        outlets = [self._outlet(port) for port in self._options.ports(self._rank, tie.peer, tie.flow)]
        pair = QueuePair(tie.peer, tie.flow, tie.near, tie.far, self._options, outlets, self._now)
        self._pairs[tie.near.qpn] = pair
        self._by_peer.setdefault(tie.peer, []).append(pair)
        self._by_peer[tie.peer].sort(key=lambda other: other.flow)

    def close(self) -> None:
        """See base.Transport."""
        if self._outlets:
            self._registry.goodbye()
        for outlet in self._outlets.values():
            outlet.sock.close()
        self._outlets, self._by_fd, self._inlet = {}, {}, None
        self._epoll.close()

    # ---- posts

    def post_send(self, handle: int, peer: int, tag: int, size_bytes: int) -> None:
        """See base.Transport."""
        if not 0 <= size_bytes <= MAX_MESSAGE_BYTES:
            raise RunError(f"a message of {size_bytes} bytes is beyond the limit.", where=f"rank {self._rank}")
        pairs = self._by_peer.get(peer)
        if not pairs:
            raise RunError(f"rank {peer} is not connected.", where=f"rank {self._rank}")
        if any(pair.gone for pair in pairs):
            raise self._lost(peer)
        now_ns = self._now()
        if self._numbers is not None:
            for pair, message in zip(pairs, self._numbers.split(handle, peer, tag, size_bytes, now_ns), strict=True):
                self._start(pair, message)
            return
        turn = self._turn[peer] = (self._turn.get(peer, -1) + 1) % len(pairs)
        number = self._outgoing.take((peer, tag, size_bytes)) if len(pairs) > 1 else 0
        self._start(pairs[turn], Outgoing(handle, tag, size_bytes, now_ns, number))

    def _start(self, pair: QueuePair, message: Outgoing) -> None:
        pair.requester.post(message)
        self._active[pair.near.qpn] = pair

    def post_recv(self, handle: int, peer: int, tag: int, size_bytes: int) -> None:
        """See base.Transport."""
        posted = Posted(handle, self._now())
        arrived = self._matcher.post((peer, tag, size_bytes), posted)
        if arrived is not None:
            self._complete_recv(posted, arrived, peer)
        elif any(pair.gone for pair in self._by_peer.get(peer, ())):
            raise self._lost(peer)

    def _complete_recv(self, posted: Posted, arrived: Arrived, peer: int) -> None:
        for pair in self._by_peer[peer]:
            pair.responder.waiting = max(0, pair.responder.waiting - (pair.flow == arrived.flow))
        self._ready.append(Completion(posted.handle, Kind.RECV, peer, posted.posted_ns, *arrived))

    def cancel(self, handle: int) -> bool:
        """See base.Transport."""
        for pairs in self._by_peer.values():
            for pair in pairs:
                for message in pair.requester.waiting:
                    if message.handle == handle:
                        return self._cancel_send(pair, message)
        return self._matcher.cancel(handle)

    def _cancel_send(self, pair: QueuePair, message: Outgoing) -> bool:
        """Too late if later messages of its key have been numbered, or parts of it are on several queue pairs."""
        if self._numbers is not None:
            return False
        key = (pair.peer, message.tag, message.size_bytes)
        if self._options.flows > 1 and not self._outgoing.give_back(key, message.number):
            return False
        pair.requester.waiting.remove(message)
        return True

    # ---- poll

    def poll(self, timeout_ns: int) -> list[Completion]:
        """See base.Transport."""
        inlet = self._inlet
        if inlet is None:
            raise RunError("poll() of a closed transport.", where=f"rank {self._rank}")
        now_ns = self._now()
        deadline_ns = now_ns + timeout_ns
        while True:
            more = self._receive(inlet)
            now_ns = self._now()
            self._flush_answers(now_ns)
            self._look_at_clocks(now_ns)
            more |= self._push(now_ns)
            now_ns = self._now()
            if self._ready or now_ns >= deadline_ns:
                break
            if not more:
                self._wait(min(deadline_ns, self._wake_ns(now_ns)) - now_ns)
        ready, self._ready = self._ready, []
        return ready

    def _receive(self, inlet: Inlet) -> bool:
        """Read what there is, up to a turn's worth, far more than we send in one; whether there may be more."""
        read = 0
        for _ in range(TURN_READS):
            count = inlet.read()
            for slot in inlet.slots[:count]:
                self._take(slot)
            read += count
            if count < SLOTS:
                self._few = read <= FEW
                return False
            self._flush_answers(self._now())
        return True

    def _take(self, slot: Slot) -> None:
        if slot.size < BTH_BYTES + ICRC_BYTES:
            self._strays += 1
            return
        pair = self._pairs.get(slot.qpn)
        if pair is not None and pair.far.address == slot.source and pair.take_middles(slot):
            self._answering[pair.near.qpn] = pair
            self._far_from_end = bool(self._gather_ns) and pair.responder.piece_left_bytes > self._far_bytes
            return
        self._far_from_end = False
        for packet in slot.packets():
            if len(packet) >= BTH_BYTES + ICRC_BYTES:
                self._take_one(packet, slot)

    def _take_one(self, packet: memoryview, slot: Slot) -> None:
        if packet[0] == Opcode.UD_SEND_ONLY:
            self._on_meeting(packet, slot)
            return
        pair = self._pairs.get(qpn_in(packet))
        if pair is None or pair.far.address != slot.source:
            self._strays += 1
            return
        if not self._connected:
            self._registry.on_data(pair.peer, pair.flow)
        news = News()
        try:
            pair.take(packet, slot, self._now(), news)
        except RunError as error:
            place = f"rank {self._rank}, queue pair {pair.near.qpn:#x} with rank {pair.peer}"
            raise RunError(error.what, where=place, fix=error.fix) from error
        self._answering[pair.near.qpn] = pair
        self._tell(pair, news, slot.stamp_ns)

    def _on_meeting(self, packet: memoryview, slot: Slot) -> None:
        way = Way.between(slot.source, self._options.address, slot.sport)
        try:
            parsed = roce.parse(packet)
        except InputError:
            self._strays += 1
            return
        if parsed.icrc != icrc(way.masked(len(packet)), packet[:-ICRC_BYTES]):
            self._strays += 1
            return
        self._registry.hear(parsed, slot.source)
        for tie in self._registry.ties.values():
            if tie.far is not None:
                self._set_up(tie)
        while self._registry.left:
            self._on_left(self._registry.left.pop())

    def _on_left(self, tie: Tie) -> None:
        pair = self._pairs[tie.near.qpn]
        pair.gone = "it closed the connection"
        self._end(pair)

    def _end(self, pair: QueuePair) -> None:
        """A peer that goes with nothing outstanding is merely done."""
        self._active.pop(pair.near.qpn, None)
        if pair.requester.outstanding or self._matcher.expected_from(pair.peer):
            raise self._lost(pair.peer)

    def _tell(self, pair: QueuePair, news: News, stamp_ns: int) -> None:
        for message in news.arrived:
            self._on_arrival(pair, message)
        for sent in news.acknowledged:
            if sent.handle >= 0:
                self._on_acknowledged(pair, sent, stamp_ns)
        if news.acknowledged or pair.requester.failed:
            self._active[pair.near.qpn] = pair

    def _on_acknowledged(self, pair: QueuePair, message: Outgoing, stamp_ns: int) -> None:
        handle, size_bytes = message.handle, message.size_bytes
        posted_ns, first_ns = message.posted_ns, message.first_byte_ns
        if self._numbers is not None:
            whole = self._numbers.acknowledged(message)
            if whole is None:
                return
            size_bytes, first_ns = whole
        self._tally.sent(pair.peer, size_bytes)
        done_ns = max(first_ns, stamp_ns)
        self._ready.append(Completion(handle, Kind.SEND, pair.peer, posted_ns, first_ns, done_ns, pair.flow))

    def _on_arrival(self, pair: QueuePair, message: Message) -> None:
        peer, flow = pair.peer, pair.flow
        if self._numbers is not None:
            for key, arrived in self._numbers.arrived(peer, flow, message):
                self._arrive(pair, key, arrived)
            return
        key = (peer, message.tag, message.size_bytes)
        arrived = Arrived(message.first_byte_ns, message.done_ns, flow)
        if self._options.flows == 1:
            self._arrive(pair, key, arrived)
            return
        for due in self._incoming.in_order(key, message.number, arrived):
            self._arrive(pair, key, due)

    def _arrive(self, pair: QueuePair, key: Key, arrived: Arrived) -> None:
        self._tally.received(key[0], key[2])
        posted = self._matcher.arrive(key, arrived)
        if posted is not None:
            self._ready.append(Completion(posted.handle, Kind.RECV, key[0], posted.posted_ns, *arrived))
        else:
            pair.responder.waiting += 1

    def _flush_answers(self, now_ns: int) -> None:
        if not self._answering:
            return
        for pair in self._answering.values():
            for answer in pair.answers(now_ns):
                pair.outlet.send([answer], 0, pair.to)
        for qpn, pair in self._answering.items():
            if not pair.requester.idle:
                self._active[qpn] = pair
        self._answering = {}

    def _push(self, now_ns: int) -> bool:
        """A turn for everybody who may send; whether somebody may send more."""
        more = False
        for qpn, pair in list(self._active.items()):
            if pair.requester.idle and pair.pending is None:
                del self._active[qpn]
            else:
                more |= self._push_pair(pair, now_ns)
        return more

    def _push_pair(self, pair: QueuePair, now_ns: int) -> bool:
        """Super-packets of one queue pair, up to a turn's worth; whether there may be more."""
        left_bytes, paced = TURN_BYTES, bool(self._options.rate_bps)
        while left_bytes > 0:
            if paced and now_ns < self._free_ns:
                return False
            wire_bytes = pair.push(now_ns)
            for outlet in pair.stuck:
                if not outlet.watched:
                    self._watch(outlet)
            if not wire_bytes:
                return False
            self._sent_bytes += wire_bytes
            self._charge(wire_bytes, now_ns)
            left_bytes -= max(wire_bytes, LEAST_CHARGE_BYTES)
        return True

    def _charge(self, wire_bytes: int, now_ns: int) -> None:
        """User-space pacing: the link is busy with what left; a process that wakes late makes up for it."""
        if self._options.rate_bps:
            busy_ns = wire_bytes * BITS_PER_BYTE * NS_PER_S // self._options.rate_bps
            self._free_ns = max(self._free_ns, now_ns - min(CATCH_UP_NS, busy_ns)) + busy_ns

    def _watch(self, outlet: Outlet) -> None:
        """Wait for room in a socket."""
        fd, outlet.watched = outlet.sock.fileno(), outlet.blocked
        reading = select.EPOLLIN if outlet.sport == PORT else 0
        self._epoll.modify(fd, reading | (select.EPOLLOUT if outlet.blocked else 0))

    # ---- time

    def _wake_ns(self, now_ns: int) -> int:
        """When something is due by the clock."""
        wakes = [pair.requester.wake_ns() for pair in self._active.values() if pair.pending is None]
        wake_ns = min(wakes, default=NEVER)
        if self._options.rate_bps and self._active and self._free_ns > now_ns:
            wake_ns = min(wake_ns, self._free_ns)
        return min(wake_ns, now_ns + QUIET_NS)

    def _look_at_clocks(self, now_ns: int) -> None:
        for pair in list(self._active.values()):
            requester = pair.requester
            if requester.wake_ns() <= now_ns:
                requester.on_time(now_ns)
            if requester.failed and not pair.gone:
                pair.gone = requester.failed
                self._end(pair)
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + QUIET_NS // 8
            self._look_for_silence(now_ns)

    def _look_for_silence(self, now_ns: int) -> None:
        for peer, pairs in self._by_peer.items():
            pair = pairs[0]
            if now_ns - pair.heard_ns > QUIET_NS and not pair.gone and self._matcher.expected_from(peer):
                pair.heard_ns = now_ns
                if pair.requester.idle:
                    self._start(pair, Outgoing(SIGN_OF_LIFE, 0, 0, now_ns))

    def _wait(self, timeout_ns: int) -> None:
        """Until something can be read, a blocked socket has room, or the time is over."""
        if timeout_ns > 0:
            woken = select.select([self._epoll.fileno()], [], [], timeout_ns / NS_PER_S)[0]
            if woken and self._far_from_end and self._few and timeout_ns > 2 * self._gather_ns:
                time.sleep(self._gather_ns / NS_PER_S)
        for fd, events in self._epoll.poll(0):
            outlet = self._by_fd[fd]
            if events & select.EPOLLERR:
                self._on_trouble(outlet)
            if events & select.EPOLLOUT and outlet.blocked:
                outlet.blocked = False
                self._watch(outlet)

    def _on_trouble(self, outlet: Outlet) -> None:
        """A host says that nobody is at its port any more: the peer's process has ended."""
        for address, number in troubles(outlet.sock):
            words = os.strerror(number)
            self._registry.on_trouble(address, words)
            for pair in self._pairs.values():
                if pair.far.address == address and not pair.gone and outlet.sport != PORT:
                    pair.gone = words
                    self._end(pair)

    def _lost(self, peer: int) -> RunError:
        """The story of a peer that went too early."""
        pairs = self._by_peer[peer]
        how = next(pair.gone for pair in pairs if pair.gone)
        sends = sum(pair.requester.outstanding for pair in pairs)
        receives = self._matcher.expected_from(peer)
        taken = sum(pair.responder.received_bytes for pair in pairs)
        gone = sum(pair.requester.una for pair in pairs) * self._options.mtu
        parts = "".join(f" It broke off in {pair.responder.unfinished}." for pair in pairs if pair.responder.unfinished)
        return RunError(
            f"rank {peer} is gone ({how}); {sends} sends to it and {receives} receives from it were outstanding; "
            f"up to {gone} bytes had gone to it and {taken} come from it.{parts}",
            where=f"rank {self._rank}",
            fix=f"look at what ended rank {peer}; if nothing did, at losses and at firewalls for UDP port {PORT}.",
        )

    # ---- figures

    def moved(self) -> Mapping[str, Any]:
        """See base.Transport."""
        return self._tally.totals()

    def progress_bytes(self) -> int:
        """See base.Transport."""
        return self._sent_bytes + sum(pair.responder.received_bytes for pair in self._pairs.values())

    def statistics(self) -> dict[str, int]:
        """What all queue pairs counted together, and packets that were for none of them."""
        total: dict[str, int] = {"strays": self._strays}
        for pair in self._pairs.values():
            for name, count in pair.statistics().items():
                total[name] = total.get(name, 0) + count
        return total
