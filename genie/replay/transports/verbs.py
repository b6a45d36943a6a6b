"""Messages over RDMA verbs: reliable connected queue pairs, RDMA WRITE with immediate or SEND; InfiniBand and RoCE.

A TCP connection each way between two ranks carries what they must know to begin, and tells at once when one is gone:
a queue pair with nothing under way would not notice.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

from genie.errors import NotReadyError, RunError
from genie.replay.clock import Clock, RealClock
from genie.replay.transports.base import Completion, Endpoint, Kind
from genie.replay.transports.framing import MAX_MESSAGE_BYTES
from genie.replay.transports.matching import Arrived, Key, KeyNumbers, Matcher, Posted, Tally
from genie.replay.transports.tcp_handshake import Handshake
from genie.replay.transports.verbs_connection import Arrival, Connection, Outbound
from genie.replay.transports.verbs_device import ACTIVE, Choice, choose
from genie.replay.transports.verbs_errors import SUCCESS, sentence
from genie.replay.transports.verbs_library import Device, Done, survey
from genie.replay.transports.verbs_meeting import Meeting
from genie.replay.transports.verbs_options import VerbsOptions
from genie.replay.transports.verbs_setup import join, make_connections, require_agreement
from genie.replay.transports.waiting import wait
from genie.units import NS_PER_MS, NS_PER_S

BACKLOG: Final = 4096
BATCH: Final = 32
"""Completions taken at once."""

FLUSH_NS: Final = 500 * NS_PER_MS
"""What was sent gets so long to reach peers when a rank closes."""

_SPIN_LOOKS: Final = 64


class VerbsTransport:
    """See base.Transport."""

    def __init__(self, rank: int, options: VerbsOptions, clock: Clock | None = None) -> None:
        self._rank, self._options, self._clock = rank, options, clock or RealClock()
        self._listener: socket.socket | None = None
        self._choice: Choice | None = None
        self._device: Device | None = None
        self._epoll = select.epoll()
        self._peers: dict[int, list[Connection]] = {}
        self._by_number: dict[int, Connection] = {}
        self._sockets: dict[int, int] = {}
        self._watched: dict[int, socket.socket] = {}
        self._kept: list[socket.socket] = []
        self._turn: dict[int, int] = {}
        self._matcher, self._tally = Matcher(), Tally()
        self._outgoing, self._incoming = KeyNumbers(), KeyNumbers()
        self._ready: list[Completion] = []
        self._armed = False
        self._starved: set[int] = set()
        self._looks = 0

    # ---- beginning

    def open(self) -> Endpoint:
        """See base.Transport."""
        self._choice = choose(*survey(), self._options.wish())
        self._device = Device(self._choice.port.device)
        self._listener = self._listen()
        port = self._listener.getsockname()[1]
        return {"address": self._options.address, "port": port, "verbs": self._choice.describe()}

    def _listen(self) -> socket.socket:
        address = self._options.address
        listener = self._new_socket()
        try:
            listener.bind((address, self._options.port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise NotReadyError(
                f"cannot listen on {address} port {self._options.port}: {error.strerror}.",
                where=f"rank {self._rank}",
                fix="is the address one of this host's, and no other run going on here?",
            ) from error
        return listener

    def _new_socket(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._options.address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return sock

    def _dial(self, _peer: int, _flow: int) -> socket.socket:
        sock = self._new_socket()
        sock.setblocking(False)  # noqa: FBT003 - socket knows no keyword
        try:
            sock.bind((self._options.address, 0))
        except OSError:
            sock.close()
            raise
        return sock

    def connect(self, peers: Mapping[int, Endpoint], deadline_ns: int) -> None:
        """See base.Transport."""
        device = self._opened()
        if self._listener is None:
            raise RunError("connect() before open().", where=f"rank {self._rank}")
        choice = self._choice = self._look_again()
        require_agreement(self._rank, choice, peers, self._options.path_mtu_bytes)
        handshake = Handshake(self._rank, peers, 1, self._options.secret, self._listener, self._dial, self._clock)
        links = handshake.run(deadline_ns)
        self._listener.close()
        self._kept = [*links.outgoing.values(), *links.incoming.values()]
        outgoing = {peer: sock for (peer, _), sock in links.outgoing.items()}
        incoming = {peer: sock for (peer, _), sock in links.incoming.items()}
        meeting = Meeting(self._rank, outgoing, incoming, self._clock)
        if peers:
            self._peers = make_connections(device, choice, sorted(peers), self._options, self._clock.now_ns)
            self._by_number = {c.pair.number: c for many in self._peers.values() for c in many}
            if device.event_fd >= 0:
                self._epoll.register(device.event_fd, select.EPOLLIN)
            join(self._rank, self._peers, peers, meeting, deadline_ns)
        for peer, sock in incoming.items():
            self._watched[peer], self._sockets[sock.fileno()] = sock, peer
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _opened(self) -> Device:
        if self._device is None:
            raise RunError("connect() before open().", where=f"rank {self._rank}")
        return self._device

    def _look_again(self) -> Choice:
        """The port may have flapped since `open`: then its GID may have another index, or be gone."""
        before, device = self._choice, self._opened()
        now = choose(device.ports(), device.gids(), self._options.wish())
        if before is not None and now.gid.gid != before.gid.gid:
            raise NotReadyError(
                f"{before} became {now} while ranks were starting.",
                where=f"rank {self._rank}",
                fix="is the link flapping, or somebody changing addresses?",
            )
        return now

    # ---- messages

    def post_send(self, handle: int, peer: int, tag: int, size_bytes: int) -> None:
        """See base.Transport."""
        if not 0 <= size_bytes <= MAX_MESSAGE_BYTES:
            raise RunError(f"a message of {size_bytes} bytes is beyond the limit.", where=f"rank {self._rank}")
        connection = self._next_flow(peer)
        number = self._outgoing.take((peer, tag, size_bytes)) if self._options.flows > 1 else 0
        connection.waiting.append(Outbound(handle, tag, size_bytes, self._clock.now_ns(), number))
        if len(connection.waiting) == 1:
            self._push(connection)

    def _next_flow(self, peer: int) -> Connection:
        connections = self._peers.get(peer)
        if not connections:
            raise RunError(f"rank {peer} is not connected.", where=f"rank {self._rank}")
        turn = self._turn[peer] = (self._turn.get(peer, -1) + 1) % len(connections)
        if connections[turn].ended:
            raise self._lost(peer, connections[turn].ended)
        return connections[turn]

    def _push(self, connection: Connection) -> None:
        with _at(f"rank {self._rank}, connection with rank {connection.peer}"):
            connection.push()
        self._note_starved(connection)

    def _note_starved(self, connection: Connection) -> None:
        """Who waits for the device itself must be woken by it, too: an arming that would not do so counts no more."""
        number = connection.pair.number
        if not connection.starved:
            self._starved.discard(number)
        elif number not in self._starved:
            self._starved.add(number)
            self._armed = False

    def post_recv(self, handle: int, peer: int, tag: int, size_bytes: int) -> None:
        """See base.Transport."""
        posted = Posted(handle, self._clock.now_ns())
        arrived = self._matcher.post((peer, tag, size_bytes), posted)
        if arrived is not None:
            self._complete_recv(posted, arrived, peer)
        elif peer in self._peers and self._peers[peer][0].ended:
            raise self._lost(peer, self._peers[peer][0].ended)

    def _complete_recv(self, posted: Posted, arrived: Arrived, peer: int) -> None:
        self._ready.append(Completion(posted.handle, Kind.RECV, peer, posted.posted_ns, *arrived))

    def poll(self, timeout_ns: int) -> list[Completion]:
        """See base.Transport."""
        deadline_ns = self._clock.now_ns() + timeout_ns
        while True:
            self._drain()
            left_ns = 0 if self._ready else max(0, deadline_ns - self._clock.now_ns())
            self._wait(left_ns)
            if self._ready or not left_ns:
                break
        ready, self._ready = self._ready, []
        return ready

    def _drain(self) -> bool:
        """Take all completions there are, answer them and send on; whether there were any."""
        if self._device is None or not self._by_number:
            return False
        touched: dict[int, Connection] = {}
        while completions := self._device.poll(BATCH):
            for done in completions:
                connection = self._by_number[done.queue_pair]
                touched[done.queue_pair] = connection
                self._take(connection, done)
        for connection in touched.values():
            if not connection.ended:
                with _at(f"rank {self._rank}, connection with rank {connection.peer}"):
                    connection.tell()
                    connection.push()
                self._note_starved(connection)
        return bool(touched)

    def _take(self, connection: Connection, done: Done) -> None:
        if done.status != SUCCESS:
            self._failed(connection, done)
            return
        with _at(f"rank {self._rank}, connection with rank {connection.peer}"):
            acknowledged, arrival = connection.take(done)
        if acknowledged:
            self._acknowledged(connection, acknowledged)
        if arrival is not None:
            self._arrived(connection, arrival)

    def _acknowledged(self, connection: Connection, messages: list[Outbound]) -> None:
        now_ns, peer = self._clock.now_ns(), connection.peer
        for message in messages:
            self._tally.sent(peer, message.size_bytes)
            times = (message.posted_ns, message.first_byte_ns, now_ns)
            self._ready.append(Completion(message.handle, Kind.SEND, peer, *times, connection.flow))

    def _arrived(self, connection: Connection, arrival: Arrival) -> None:
        self._tally.received(connection.peer, arrival.size_bytes)
        key = (connection.peer, arrival.tag, arrival.size_bytes)
        arrived = Arrived(arrival.first_byte_ns, arrival.done_ns, connection.flow)
        if self._options.flows == 1:
            self._match(key, arrived)
            return
        for due in self._incoming.in_order(key, arrival.number, arrived):
            self._match(key, due)

    def _match(self, key: Key, arrived: Arrived) -> None:
        posted = self._matcher.arrive(key, arrived)
        if posted is not None:
            self._complete_recv(posted, arrived, key[0])

    # ---- waiting

    def _wait(self, timeout_ns: int) -> None:
        """Sleep until something may have completed, a peer hung up, or the time is over.

        Woken are we by what a peer sends; by what the device did with our own requests only if somebody waits for that.
        """
        if timeout_ns and not self._options.events:
            os.sched_yield()  # what the device does in software needs a processor, too
            self._looks += 1
            if self._looks % _SPIN_LOOKS:
                return
            timeout_ns = 0
        if timeout_ns and self._device is not None and self._by_number and not self._armed:
            self._device.arm(every=bool(self._starved))
            self._armed = True
            if self._drain():  # what completed before the arming wakes nobody
                return
        for fd, _ in wait(self._epoll, timeout_ns):
            if fd in self._sockets:
                self._hang_up(self._sockets[fd])
            elif self._device is not None:
                self._device.take_event()
                self._armed = False

    def _hang_up(self, peer: int) -> None:
        """A peer closed its connection; if nothing was outstanding it is merely done."""
        sock = self._watched.pop(peer, None)
        if sock is None:
            return
        how = _how_ended(sock)
        if not how:
            self._watched[peer] = sock
            return
        self._epoll.unregister(sock.fileno())
        self._drain()  # what it sent before is here
        connections = self._peers[peer]
        for connection in connections:
            connection.ended = how
        busy = any(connection.outstanding or connection.unfinished for connection in connections)
        if busy or self._matcher.expected_from(peer):
            raise self._lost(peer, how)

    def _failed(self, connection: Connection, done: Done) -> None:
        """A work request failed: the peer is gone, or the sentence for it; errors that follow say nothing."""
        peer = connection.peer
        if connection.ended or peer not in self._watched:  # it has hung up
            return
        if _how_ended(self._watched[peer]):
            self._hang_up(peer)
            return
        what, fix = sentence(done.status, peer, str(self._choice), done.vendor)
        raise RunError(f"{what}{self._port_now()}{self._told_so_far(peer)}", where=f"rank {self._rank}", fix=fix)

    def _port_now(self) -> str:
        """What has become of our port, if it explains an error."""
        if self._choice is None or self._device is None:
            return ""
        port = self._choice.port
        try:
            state = self._device.port(port.port).state
        except NotReadyError as error:
            return f" Now {error.what}"
        return "" if state == ACTIVE else f" Port {port.port} of {port.device} is {state} now."

    def _told_so_far(self, peer: int) -> str:
        connections = self._peers[peer]
        sends, receives = sum(c.outstanding for c in connections), self._matcher.expected_from(peer)
        return (
            f" {sends} sends to it and {receives} receives from it were outstanding; "
            f"{sum(c.pushed_bytes for c in connections)} bytes had gone to it and "
            f"{sum(c.received_bytes for c in connections)} come from it."
        )

    def _lost(self, peer: int, how: str) -> RunError:
        """The story of a peer that went too early."""
        parts = "".join(f" It broke off in {c.unfinished}." for c in self._peers[peer] if c.unfinished)
        return RunError(
            f"rank {peer} is gone ({how});{self._told_so_far(peer)}{parts}",
            where=f"rank {self._rank}",
            fix=f"look at what ended rank {peer}.",
        )

    # ---- the rest

    def cancel(self, handle: int) -> bool:
        """See base.Transport."""
        for connection in self._by_number.values():
            message = connection.not_started(handle)
            if message is not None:
                return self._cancel_send(connection, message)
        return self._matcher.cancel(handle)

    def _cancel_send(self, connection: Connection, message: Outbound) -> bool:
        """Too late if later messages of its key have been numbered."""
        key = (connection.peer, message.tag, message.size_bytes)
        if self._options.flows > 1 and not self._outgoing.give_back(key, message.number):
            return False
        connection.waiting.remove(message)
        return True

    def moved(self) -> Mapping[str, Any]:
        """See base.Transport."""
        return self._tally.totals()

    def progress_bytes(self) -> int:
        """See base.Transport."""
        return sum(c.pushed_bytes + c.received_bytes for c in self._by_number.values())

    def close(self) -> None:
        """See base.Transport."""
        if self._device is not None:
            self._flush(self._device)
            self._device.close()
            self._device = None
        for sock in self._kept:
            sock.close()
        if self._listener is not None:
            self._listener.close()
        self._epoll.close()
        self._by_number.clear()

    def _flush(self, device: Device) -> None:
        """Let what the device was given reach the peers, since a queue pair that is destroyed drops it."""
        deadline_ns = self._clock.now_ns() + FLUSH_NS
        self._armed = False
        try:
            for connection in self._by_number.values():
                connection.mark()
            while any(not c.ended and not c.queue.idle for c in self._by_number.values()):
                left_ns = deadline_ns - self._clock.now_ns()
                if left_ns <= 0:
                    return
                if not self._note_done(device):
                    self._sleep(device, left_ns)
        except RunError:  # the queue pair has failed, which has been told
            return

    def _note_done(self, device: Device) -> bool:
        """Take completions, but only note what is done; whether there were any."""
        completions = device.poll(BATCH)
        for done in completions:
            connection = self._by_number[done.queue_pair]
            if done.status != SUCCESS:
                connection.ended = "it does not answer"
            elif not done.received:
                connection.queue.done(done.number)
        return bool(completions)

    def _sleep(self, device: Device, timeout_ns: int) -> None:
        """Until something completes."""
        if not self._options.events:
            os.sched_yield()
        elif not self._armed:
            device.arm(every=True)
            self._armed = True  # the caller looks once more before it sleeps
        elif select.select([device.event_fd], [], [], timeout_ns / NS_PER_S)[0]:
            device.take_event()
            self._armed = False


def _how_ended(sock: socket.socket) -> str:
    """Why nothing will come from a socket any more; "" if something may."""
    try:
        return "" if sock.recv(1) else "it closed the connection"
    except BlockingIOError:
        return ""
    except OSError as error:
        return str(error.strerror)


class _at:  # noqa: N801 - used like a function
    """Says where a RunError happened."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, RunError):
            raise RunError(error.what, where=self._place, fix=error.fix) from error


__all__ = ["VerbsOptions", "VerbsTransport"]
