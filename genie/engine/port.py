"""The engine's way out: collects actions, and remembers what to do when an answer comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from genie.core.schedule import GRANT_BYTES, GRANT_TAGS
from genie.engine.events import AccessMemory, Action, Origin, PostRecv, PostSend, SetTimer
from genie.errors import InputError, InternalError

Continuation = Callable[[], None]

_LOW_BITS: Final = (1 << 32) - 1
_HIGHEST: Final = (1 << 31) - 1


class Port:
    """Actions out, continuations kept by handle.

    With `rendezvous`, a message waits for an 8,192-byte grant from its receiver: the sender expects the grant before
    it sends, the receiver expects the message once its grant was delivered. ASTRA-sim keeps the size of a message that
    waits in 32 bits with a sign: with `narrow`, so do we, and refuse what it makes negative.
    """

    __slots__ = ("_handle", "_narrow", "_rendezvous", "_waiting", "actions")

    def __init__(self, *, rendezvous: bool, narrow: bool = False) -> None:
        self.actions: list[Action] = []
        self._waiting: dict[int, Continuation] = {}
        self._handle = 0
        self._rendezvous, self._narrow = rendezvous, narrow

    def take_actions(self) -> list[Action]:
        """What has been asked for since the last call."""
        actions, self.actions = self.actions, []
        return actions

    def answer(self, handle: int) -> None:
        """Go on where the handle was given out.

        Raises:
            InternalError: nothing waits for the handle.
        """
        continuation = self._waiting.pop(handle, None)
        if continuation is None:
            raise InternalError(f"nothing waits for handle {handle}.")
        continuation()

    def waiting(self, handle: int) -> Continuation | None:
        """What `answer` would call."""
        return self._waiting.get(handle)

    def _keep(self, continuation: Continuation) -> int:
        self._handle = handle = self._handle + 1
        self._waiting[handle] = continuation
        return handle

    def timer(self, delay_ns: int, continuation: Continuation) -> None:
        """Go on `delay_ns` from now."""
        self.actions.append(SetTimer(self._keep(continuation), delay_ns))

    def memory(self, size_bytes: int, continuation: Continuation) -> None:
        """Go on when the remote memory has served the bytes."""
        self.actions.append(AccessMemory(self._keep(continuation), size_bytes))

    def send(self, peer: int, tag: int, size_bytes: int, origin: Origin, done: Continuation | None = None) -> None:
        """Send; go on at delivery if asked to."""
        if self._rendezvous:
            size_bytes = _narrowed(size_bytes) if self._narrow else size_bytes
            self._expect(
                peer,
                tag + GRANT_TAGS,
                GRANT_BYTES,
                origin,
                lambda: self._post(peer, tag, size_bytes, origin, done),
            )
        else:
            self._post(peer, tag, size_bytes, origin, done)

    def receive(self, peer: int, tag: int, size_bytes: int, origin: Origin, done: Continuation) -> None:
        """Go on when the message is here."""
        if self._rendezvous:
            size_bytes = _narrowed(size_bytes) if self._narrow else size_bytes
            self._post(
                peer,
                tag + GRANT_TAGS,
                GRANT_BYTES,
                origin,
                lambda: self._expect(peer, tag, size_bytes, origin, done),
            )
        else:
            self._expect(peer, tag, size_bytes, origin, done)

    def _post(self, peer: int, tag: int, size_bytes: int, origin: Origin, done: Continuation | None) -> None:
        if done is None:
            self._handle = handle = self._handle + 1
        else:
            handle = self._keep(done)
        self.actions.append(PostSend(handle, peer, tag, size_bytes, origin, done is not None))

    def _expect(self, peer: int, tag: int, size_bytes: int, origin: Origin, done: Continuation) -> None:
        self.actions.append(PostRecv(self._keep(done), peer, tag, size_bytes, origin))


def _narrowed(size_bytes: int) -> int:
    """What is left of a size in 32 bits.

    Raises:
        InputError: it would be negative.
    """
    kept = size_bytes & _LOW_BITS
    if kept > _HIGHEST:
        raise InputError(
            f"ASTRA-sim keeps the size of a message that waits for its rendezvous in 32 bits; {size_bytes} bytes "
            "would be a negative number.",
            fix="leave the rendezvous protocol out, add --extended, or send in smaller pieces.",
        )
    return kept
