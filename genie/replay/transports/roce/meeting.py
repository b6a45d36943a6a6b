"""How queue pairs find each other: the lower rank of a pair asks, the higher replies, and hears that it was heard.

Connection management messages (genie.formats.roce_cm) go over the same port as everything else. Their private data
prove that both ends belong to one run (see framing), and tell the key of the memory and the settings that must agree.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from genie.errors import InputError, RunError
from genie.formats import roce_cm
from genie.formats.roce import Packet
from genie.formats.roce_cm import Kind, Meeting, Reason
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
from genie.replay.transports.roce.queue_pair import End
from genie.units import NS_PER_MS

RETRY_NS: Final = 20 * NS_PER_MS
MAX_REFUSED: Final = 16
_EXTRA: Final = struct.Struct("!II")
_SETTINGS: Final = ("operation (write or send)", "recovery", "icrc", "split")

Post = Callable[[str, int, int, Packet], None]
"""(address, peer, flow, packet): send a message from the socket of that queue pair."""


class State(Enum):
    """How far a link is."""

    CALLING = "calling"
    REPLYING = "replying"
    AWAITED = "awaited"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class Tie:
    """One queue pair in the making, or made.

    Attributes:
        near, far: both ends; `far` is None until it is known.
        local, remote: both ends' numbers of it.
        calls: whether it is ours to ask.
    """

    peer: int
    flow: int
    address: str
    near: End
    calls: bool
    local: int
    state: State
    remote: int = 0
    far: End | None = None
    trouble: str = "no answer on UDP port 4791"
    retry_ns: int = 0


class Registry:
    """All links of a rank, and what is to be said about them.

    Args:
        rank: ours.
        secret: of the run.
        mtu, settings: what both ends must agree on.
        post: how a message leaves.
    """

    def __init__(self, rank: int, secret: bytes, mtu: int, settings: int, post: Post) -> None:
        self._rank, self._secret, self._mtu, self._settings, self._post = rank, secret, mtu, settings, post
        self.ties: dict[tuple[int, int], Tie] = {}
        self.opened: list[Tie] = []
        self.left: list[Tie] = []
        self._refused: list[str] = []
        self._psn = 0

    def expect(self, peers: Mapping[int, Endpoint], flows: int, near: Callable[[int, int], End]) -> None:
        """These are to be met."""
        for peer, endpoint in peers.items():
            for flow in range(flows):
                calls = self._rank < peer
                state = State.CALLING if calls else State.AWAITED
                tie = Tie(peer, flow, str(endpoint["address"]), near(peer, flow), calls, secrets.randbits(32), state)
                if not calls:
                    tie.trouble = "it has not called us on UDP port 4791"
                self.ties[peer, flow] = tie

    @property
    def complete(self) -> bool:
        """Whether all links are open."""
        return all(tie.state in {State.OPEN, State.CLOSED} for tie in self.ties.values())

    def prompt(self, now_ns: int) -> None:
        """Say again what has not been answered."""
        for tie in self.ties.values():
            if tie.state in {State.CALLING, State.REPLYING} and tie.retry_ns <= now_ns:
                tie.retry_ns = now_ns + RETRY_NS
                self._say(tie, self._request(tie) if tie.calls else self._reply(tie))

    def missing(self) -> RunError:
        """The sentence at the deadline."""
        troubles: dict[int, str] = {}
        for tie in self.ties.values():
            if tie.state not in {State.OPEN, State.CLOSED}:
                troubles.setdefault(tie.peer, tie.trouble)
        named = ", ".join(f"{peer} ({trouble})" for peer, trouble in sorted(troubles.items()))
        strangers = f" Refused meanwhile: {'; '.join(self._refused)}." if self._refused else ""
        return RunError(
            f"no connection with ranks {named} in time.{strangers}",
            where=f"rank {self._rank}",
            fix="did those ranks start, and does no firewall stop UDP port 4791 between the hosts?",
        )

    def on_trouble(self, address: str, words: str) -> None:
        """The way to an address has a problem: it is told if the link does not come up."""
        for tie in self.ties.values():
            if tie.address == address:
                tie.trouble = f"{address}, UDP port 4791: {words}"

    def goodbye(self) -> None:
        """Tell everybody that we leave."""
        for tie in self.ties.values():
            if tie.state is State.OPEN and tie.far is not None:
                tie.state = State.CLOSED
                self._say(tie, Meeting(Kind.DISCONNECT, tie.local, tie.remote, qpn=tie.far.qpn))

    def _say(self, tie: Tie, meeting: Meeting) -> None:
        self._psn += 1
        self._post(tie.address, tie.peer, tie.flow, meeting.packet(self._psn))

    def _link(self, tie: Tie) -> Link:
        lower, higher = sorted((self._rank, tie.peer))
        return Link(lower, higher, tie.flow)

    def _extra(self, tie: Tie) -> bytes:
        return _EXTRA.pack(tie.near.rkey, self._settings)

    def _request(self, tie: Tie) -> Meeting:
        private = pack_hello(self._link(tie), self._secret) + self._extra(tie)
        return Meeting(Kind.REQUEST, tie.local, qpn=tie.near.qpn, psn=tie.near.psn, mtu=self._mtu, private=private)

    def _reply(self, tie: Tie) -> Meeting:
        private = pack_answer(self._link(tie), Verdict.WELCOME, self._secret) + self._extra(tie)
        return Meeting(Kind.REPLY, tie.local, tie.remote, qpn=tie.near.qpn, psn=tie.near.psn, private=private)

    # ---- what comes

    def hear(self, packet: Packet, source: str) -> None:
        """Take a message; anything that is none, or not for us, is ignored.

        Raises:
            RunError: a peer refuses us.
        """
        try:
            meeting = roce_cm.parse(packet)
        except InputError:
            return
        if meeting.kind is Kind.REQUEST:
            self._on_request(meeting, source)
            return
        tie = next((tie for tie in self.ties.values() if tie.local == meeting.remote and tie.address == source), None)
        if tie is None:
            return
        if meeting.kind is Kind.REPLY:
            self._on_reply(tie, meeting)
        elif meeting.kind is Kind.REJECT:
            self._on_reject(tie, meeting)
        elif meeting.kind is Kind.READY and tie.state is State.REPLYING and tie.remote == meeting.local:
            self._open(tie)
        elif meeting.kind is Kind.DISCONNECT and tie.state is State.OPEN and tie.remote == meeting.local:
            tie.state = State.CLOSED
            self.left.append(tie)

    def on_data(self, peer: int, flow: int) -> None:
        """Whoever sends data has heard our reply, even if we did not hear that it had."""
        tie = self.ties[peer, flow]
        if tie.state is State.REPLYING:
            self._open(tie)

    def _open(self, tie: Tie) -> None:
        tie.state = State.OPEN
        self.opened.append(tie)

    def _on_request(self, meeting: Meeting, source: str) -> None:
        link, verdict = parse_hello(meeting.private[:HELLO_BYTES], self._secret)
        tie = self.ties.get((link.source, link.flow))
        rkey, settings = _EXTRA.unpack_from(meeting.private, HELLO_BYTES)
        if verdict is Verdict.WELCOME and not self._expects(link, tie, source):
            verdict = Verdict.UNEXPECTED
        if verdict is not Verdict.WELCOME or tie is None:
            self._refuse(meeting, source, link, verdict)
            return
        if (meeting.mtu, settings) != (self._mtu, self._settings):
            self._refuse(meeting, source, link, Verdict.WELCOME)
            tie.trouble = self._difference(meeting.mtu, settings)
            return
        far = End(source, meeting.qpn, meeting.psn, rkey)
        if tie.state is State.AWAITED:
            tie.far, tie.remote, tie.state = far, meeting.local, State.REPLYING
        if tie.remote == meeting.local and tie.state in {State.REPLYING, State.OPEN}:
            self._say(tie, self._reply(tie))

    def _expects(self, link: Link, tie: Tie | None, source: str) -> bool:
        return tie is not None and not tie.calls and link.destination == self._rank and tie.address == source

    def _refuse(self, meeting: Meeting, source: str, link: Link, verdict: Verdict) -> None:
        """`WELCOME` here: it would be, but its settings differ from ours; the answer's private data tells ours."""
        reason = Reason.INVALID_MTU if verdict is Verdict.WELCOME else Reason.CONSUMER
        private = pack_answer(link, verdict, self._secret) + _EXTRA.pack(self._mtu, self._settings)
        rejected = Meeting(Kind.REJECT, 0, meeting.local, reason=reason, private=private)
        self._psn += 1
        self._post(source, -1, 0, rejected.packet(self._psn))
        if verdict is not Verdict.WELCOME:
            told = f"a caller from {source} ({REASONS[verdict]})"
            if told not in self._refused and len(self._refused) < MAX_REFUSED:
                self._refused.append(told)

    def _difference(self, mtu: int, settings: int) -> str:
        if mtu != self._mtu:
            return f"its path MTU is {mtu}, ours {self._mtu}"
        other = settings ^ self._settings
        names = [name for at, name in enumerate(_SETTINGS) if other >> at & 1]
        return f"its settings differ: {', '.join(names) or 'flows'}"

    def _on_reply(self, tie: Tie, meeting: Meeting) -> None:
        if not tie.calls or tie.state not in {State.CALLING, State.OPEN}:
            return
        if tie.state is State.CALLING:
            refusal = parse_answer(meeting.private[:ANSWER_BYTES], self._link(tie), self._secret)
            if refusal:
                tie.trouble = refusal
                return
            rkey, _ = _EXTRA.unpack_from(meeting.private, ANSWER_BYTES)
            tie.far, tie.remote = End(tie.address, meeting.qpn, meeting.psn, rkey), meeting.local
            self._open(tie)
        if tie.remote == meeting.local:
            for _ in range(2):  # nobody asks again once we stop looking, so one may get lost
                self._say(tie, Meeting(Kind.READY, tie.local, tie.remote))

    def _on_reject(self, tie: Tie, meeting: Meeting) -> None:
        if not tie.calls or tie.state is not State.CALLING:
            return
        if meeting.reason == Reason.INVALID_MTU:
            mtu, settings = _EXTRA.unpack_from(meeting.private, ANSWER_BYTES)
            why = self._difference(mtu, settings)
        else:
            why = parse_answer(meeting.private[:ANSWER_BYTES], self._link(tie), self._secret)
        raise RunError(
            f"cannot join rank {tie.peer} at {tie.address}: {why or 'it gives no reason'}.",
            where=f"rank {self._rank}",
            fix="end other runs on these hosts, and use one version of Genie and one experiment on all of them.",
        )
