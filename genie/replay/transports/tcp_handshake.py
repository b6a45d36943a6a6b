"""How the ranks of a run find each other: everybody calls everybody, nobody waits for one in particular."""

from __future__ import annotations

import errno
import os
import selectors
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from genie.errors import RunError
from genie.replay.clock import Clock
from genie.replay.transports.base import Endpoint
from genie.replay.transports.framing import (
    ANSWER_BYTES,
    HELLO_BYTES,
    REASONS,
    Link,
    Verdict,
    pack_answer,
    pack_hello,
    parse_answer,
    parse_hello,
)
from genie.units import NS_PER_MS, NS_PER_S

RETRY_NS: Final = 20 * NS_PER_MS
MAX_STRANGERS: Final = 64
"""Callers that have not yet said who they are, beyond those expected."""


class Connections(NamedTuple):
    """Connected sockets by (peer, flow): those that we send on, and those that we receive on."""

    outgoing: dict[tuple[int, int], socket.socket]
    incoming: dict[tuple[int, int], socket.socket]


@dataclass(slots=True, eq=False)
class _Call:
    """One of our calls; `trouble` is why the last attempt came to nothing."""

    link: Link
    address: tuple[str, int]
    trouble: str = "no answer"
    retry_ns: int = 0
    sock: socket.socket | None = None
    answer: bytearray = field(default_factory=bytearray)


class Handshake:
    """Calls every peer and answers every peer's call, all at once.

    Args:
        rank: ours.
        peers: their endpoints ("address", "port").
        flows: connections per ordered pair of ranks.
        secret: of the run.
        listener: where others call; it is left open.
        dial: (peer, flow) -> a bound, non-blocking socket.
        clock: against which the deadline is held.
    """

    def __init__(
        self,
        rank: int,
        peers: Mapping[int, Endpoint],
        flows: int,
        secret: bytes,
        listener: socket.socket,
        dial: Callable[[int, int], socket.socket],
        clock: Clock,
    ) -> None:
        self._rank, self._secret, self._listener, self._dial, self._clock = rank, secret, listener, dial, clock
        pairs = [(peer, flow) for peer in peers for flow in range(flows)]
        self._calls = {pair: _Call(Link(rank, *pair), _address(peers[pair[0]])) for pair in pairs}
        self._expected = frozenset(pairs)
        self._guests: set[socket.socket] = set()
        self._refused: list[str] = []
        self._selector = selectors.DefaultSelector()
        self._links = Connections({}, {})

    def run(self, deadline_ns: int) -> Connections:
        """Until every call is answered and everybody has called.

        Raises:
            RunError: a peer refuses us, or some are missing at the deadline: names them.
        """
        self._listener.setblocking(False)  # noqa: FBT003 - socket knows no keyword
        self._selector.register(self._listener, selectors.EVENT_READ, self._admit)
        try:
            self._meet(deadline_ns)
        except BaseException:
            for sock in (*self._links.outgoing.values(), *self._links.incoming.values()):
                sock.close()
            raise
        finally:
            self._selector.close()
            for leftover in (*self._guests, *(call.sock for call in self._calls.values() if call.sock)):
                leftover.close()
        return self._links

    def _meet(self, deadline_ns: int) -> None:
        while self._calls or len(self._links.incoming) < len(self._expected):
            now_ns = self._clock.now_ns()
            if now_ns >= deadline_ns:
                raise self._missing()
            waiting = [call for call in self._calls.values() if call.sock is None]
            for call in waiting:
                if call.retry_ns <= now_ns:
                    self._call(call, now_ns)
            patience_ns = min(deadline_ns - now_ns, RETRY_NS if waiting else deadline_ns)
            for key, _ in self._selector.select(patience_ns / NS_PER_S):
                key.data()

    def _missing(self) -> RunError:
        silent = {peer for peer, flow in self._expected if (peer, flow) not in self._links.incoming}
        troubles = {peer: call.trouble for (peer, _), call in self._calls.items()}
        named = [f"{peer} ({troubles.get(peer, 'it has not called us')})" for peer in sorted(silent | set(troubles))]
        strangers = f" Refused meanwhile: {'; '.join(self._refused)}." if self._refused else ""
        return RunError(
            f"no connection with ranks {', '.join(named)} in time.{strangers}",
            where=f"rank {self._rank}",
            fix="did those ranks start, and can packets pass between the hosts?",
        )

    def _call(self, call: _Call, now_ns: int) -> None:
        call.retry_ns = now_ns + RETRY_NS
        try:
            call.sock = self._dial(call.link.destination, call.link.flow)
            code = call.sock.connect_ex(call.address)
        except OSError as error:
            self._again(call, f"no local port: {error.strerror}")
            return
        if code in {0, errno.EINPROGRESS}:
            self._selector.register(call.sock, selectors.EVENT_WRITE, partial(self._greet, call, call.sock))
        else:
            self._again(call, os.strerror(code))

    def _again(self, call: _Call, trouble: str) -> None:
        """This attempt came to nothing."""
        call.trouble = f"{call.address[0]}:{call.address[1]}: {trouble}"
        call.answer.clear()
        if call.sock is not None:
            self._forget(call.sock)
            call.sock.close()
            call.sock = None

    def _forget(self, sock: socket.socket) -> None:
        if sock.fileno() in self._selector.get_map():
            self._selector.unregister(sock)

    def _greet(self, call: _Call, sock: socket.socket) -> None:
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._again(call, os.strerror(code))
            return
        try:
            if sock.getsockname() == sock.getpeername():  # nobody listens, and the kernel chose that very port for us
                self._again(call, os.strerror(errno.ECONNREFUSED))
                return
            sock.send(pack_hello(call.link, self._secret))  # a new connection has room for it
        except OSError as error:
            self._again(call, str(error.strerror))
            return
        self._selector.modify(sock, selectors.EVENT_READ, partial(self._hear, call, sock))

    def _hear(self, call: _Call, sock: socket.socket) -> None:
        """An answer to our call, or a part of it."""
        data, trouble = _receive(sock, ANSWER_BYTES - len(call.answer))
        if trouble:
            self._again(call, trouble)
            return
        call.answer += data
        if len(call.answer) < ANSWER_BYTES:
            return
        refusal = parse_answer(call.answer, call.link, self._secret)
        if refusal:
            raise RunError(
                f"cannot join rank {call.link.destination} at {call.address[0]}:{call.address[1]}: {refusal}.",
                where=f"rank {self._rank}",
                fix="end other runs on these hosts, and use one version of Genie on all of them.",
            )
        self._selector.unregister(sock)
        self._links.outgoing[call.link.destination, call.link.flow] = sock
        del self._calls[call.link.destination, call.link.flow]

    def _admit(self) -> None:
        """Take who calls, as many as may be of use."""
        try:
            sock, address = self._listener.accept()
        except OSError:  # it hung up again
            return
        if len(self._guests) >= len(self._expected) + MAX_STRANGERS:
            sock.close()
            return
        sock.setblocking(False)  # noqa: FBT003 - socket knows no keyword
        self._guests.add(sock)
        self._selector.register(sock, selectors.EVENT_READ, partial(self._listen, sock, str(address[0]), bytearray()))

    def _listen(self, sock: socket.socket, address: str, hello: bytearray) -> None:
        """A caller says who it is, or a part of it."""
        data, trouble = _receive(sock, HELLO_BYTES - len(hello))
        hello += data
        if not trouble and len(hello) < HELLO_BYTES:
            return
        self._selector.unregister(sock)
        self._guests.discard(sock)
        if trouble:
            sock.close()
            return
        link, verdict = parse_hello(hello, self._secret)
        if verdict is Verdict.WELCOME and not self._expects(link):
            verdict = Verdict.UNEXPECTED
        self._reply(sock, link, verdict)
        if verdict is not Verdict.WELCOME:
            self._refused.append(f"a caller from {address} ({REASONS[verdict]})")

    def _expects(self, link: Link) -> bool:
        return link.destination == self._rank and (link.source, link.flow) in self._expected

    def _reply(self, sock: socket.socket, link: Link, verdict: Verdict) -> None:
        try:
            sock.send(pack_answer(link, verdict, self._secret))
        except OSError:  # it hung up: it will call again, or be missing
            verdict = Verdict.UNEXPECTED
        if verdict is not Verdict.WELCOME:
            sock.close()
            return
        before = self._links.incoming.pop((link.source, link.flow), None)
        if before is not None:  # it did not hear our first answer
            before.close()
        self._links.incoming[link.source, link.flow] = sock


def _address(endpoint: Endpoint) -> tuple[str, int]:
    return str(endpoint["address"]), int(endpoint["port"])


def _receive(sock: socket.socket, size: int) -> tuple[bytes, str]:
    """Bytes if there are any, and what is wrong with the connection."""
    try:
        data = sock.recv(size)
    except BlockingIOError:
        return b"", ""
    except OSError as error:
        return b"", str(error.strerror)
    return data, "" if data else "it hung up"
