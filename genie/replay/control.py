"""The control channel between the launcher and a rank: JSON messages, each with an optional block of bytes.

Nothing is ever unpickled, sizes are bounded before memory is taken, and any stream socket will do: a socket pair on one
machine, a TCP connection that has shown its run's secret between machines.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from typing import Any, Final

from genie.errors import RunError

_HEAD: Final = struct.Struct("!IQ")
MAX_JSON_BYTES: Final = 64 << 20
MAX_BLOCK_BYTES: Final = 4 << 30
_PIECE_BYTES: Final = 1 << 20

Message = dict[str, Any]
"""A JSON object; "op" says what it is about."""


class Channel:
    """One end of a stream socket that carries messages.

    Args:
        sock: connected; the channel owns it.
        patience_s: how long the other end may pause in the middle of a message; None: for ever.
    """

    def __init__(self, sock: socket.socket, patience_s: float | None = None) -> None:
        self._sock = sock
        sock.settimeout(patience_s)

    def fileno(self) -> int:
        """For select."""
        return self._sock.fileno()

    def send(self, message: Message, block: bytes = b"") -> None:
        """Send a message.

        Raises:
            RunError: the other end is gone, or takes nothing any more.
        """
        try:
            # in one piece: an end that hangs up right after reading must not turn a later part into an error
            self._sock.sendall(encoded(message, block))
        except OSError as error:
            raise RunError("the other end of the control channel is gone.") from error

    def receive(self) -> tuple[Message, bytes]:
        """Wait for the next message.

        Raises:
            RunError: the other end is gone, stops in the middle, or sends what is no message.
        """
        text_bytes, block_bytes = _HEAD.unpack(self._exactly(_HEAD.size))
        if text_bytes > MAX_JSON_BYTES or block_bytes > MAX_BLOCK_BYTES:
            raise RunError(f"a control message of {text_bytes} + {block_bytes} bytes is beyond all bounds.")
        message = _parse(self._exactly(text_bytes))
        return message, self._exactly(block_bytes)

    def ready(self) -> bool:
        """Whether there is something to receive (or the end)."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def _exactly(self, size: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < size:
            try:
                piece = self._sock.recv(min(size - len(pieces), _PIECE_BYTES))
            except OSError as error:
                raise RunError("the other end of the control channel stopped in the middle of a message.") from error
            if not piece:
                raise RunError("the other end of the control channel is gone.")
            pieces += piece
        return bytes(pieces)

    def close(self) -> None:
        """Close this end."""
        self._sock.close()


def encoded(message: Message, block: bytes = b"") -> bytes:
    """A message as it travels."""
    text = json.dumps(message).encode()
    return _HEAD.pack(len(text), len(block)) + text + block


def _parse(text: bytes) -> Message:
    try:
        message = json.loads(text)
    except ValueError as error:
        raise RunError("a control message is no JSON.") from error
    if not isinstance(message, dict) or not isinstance(message.get("op"), str):
        raise RunError("a control message does not say what it is about.")
    return message
