"""A live run's counters in Prometheus' text format, over HTTP, without a thread of its own.

The launcher gives it a turn ten times a second; whoever asks meanwhile waits that long. Anything but a GET of /metrics
is refused, nobody may take longer than two seconds to ask, and only a few may ask at once.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from genie.errors import NotReadyError
from genie.replay.during import During, Quiet
from genie.replay.ranks import Rank
from genie.replay.sampling import Sampler

LOOPBACK: Final = "127.0.0.1"
TURN_NS: Final = 100_000_000
_PATIENCE_NS: Final = 2_000_000_000
_MAX_CLIENTS: Final = 8
_MAX_REQUEST_BYTES: Final = 4096
_SEND_S: Final = 0.2

_LINKS: Final = (
    ("bytes", "genie_link_sent_bytes_total", "counter", "Bytes of frames that left through a directed link."),
    ("packets", "genie_link_sent_packets_total", "counter", "Packets that left through a directed link."),
    ("drops", "genie_link_dropped_packets_total", "counter", "Packets that a directed link's queue dropped."),
    ("backlog_bytes", "genie_link_backlog_bytes", "gauge", "Bytes queued at a directed link."),
)


def text_of(sampler: Sampler, iteration: int) -> str:
    """The latest sample, and rates between it and the one before."""
    return "\n".join([*_run_lines(iteration), *_link_lines(sampler), *_machine_lines(sampler)]) + "\n"


def _head(name: str, kind: str, words: str) -> Iterator[str]:
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} {kind}"


def _run_lines(iteration: int) -> Iterator[str]:
    yield from _head("genie_iteration", "gauge", "Iteration under way; negative while warming up.")
    yield f"genie_iteration {iteration}"


def _link_lines(sampler: Sampler) -> Iterator[str]:
    if not sampler.samples:
        return
    latest = sampler.samples[-1]
    for key, name, kind, words in _LINKS if latest.links else ():
        yield from _head(name, kind, words)
        yield from (f'{name}{{link="{link}"}} {counts[key]}' for link, counts in latest.links.items())
    rates = sampler.latest_rates()
    for key, words in (
        ("rate_bps", "Virtual rate of a directed link between the last two samples."),
        ("utilisation", "Share of a directed link's rate that was used between the last two samples."),
    ):
        if rates:
            yield from _head(f"genie_link_{key}", "gauge", words)
            yield from (f'genie_link_{key}{{link="{row["link"]}"}} {row[key]:.6g}' for row in rates)


def _machine_lines(sampler: Sampler) -> Iterator[str]:
    if sampler.samples:
        for name, value in sampler.samples[-1].machine.items():
            if value >= 0:
                yield from _head(f"genie_machine_{name}_total", "counter", "Of this machine since it was started.")
                yield f"genie_machine_{name}_total {value}"


class Exporter(Quiet):
    """See During; answers GET /metrics.

    Args:
        sampler: whose samples are told.
        port: 0: any that is free; `port` then tells which.
        address: where to listen.
        now_ns: real time.

    Raises:
        NotReadyError: that port cannot be had.
    """

    def __init__(self, sampler: Sampler, port: int, address: str, now_ns: Callable[[], int]) -> None:
        self._sampler, self._now_ns = sampler, now_ns
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            self._listener = socket.create_server((address, port), family=family, backlog=_MAX_CLIENTS)
        except OSError as error:
            why = error.strerror or str(error)
            raise NotReadyError(
                f"port {port} cannot be had: {why}.", where=f"--metrics-port on {address}", fix="choose another."
            ) from error
        self._listener.settimeout(0)
        self.port = int(self._listener.getsockname()[1])
        self._clients: dict[socket.socket, tuple[int, bytes]] = {}
        self._iteration = 0
        self._due_ns: int | None = None

    def begin(self, iteration: int, start_ns: int, ranks: Sequence[Rank]) -> None:
        """See During."""
        del ranks
        self._iteration, self._due_ns = iteration, start_ns

    def due_ns(self) -> int | None:
        """See During."""
        return self._due_ns

    def act(self, now_ns: int) -> None:
        """See During."""
        self._due_ns = now_ns + TURN_NS
        self._accept(now_ns)
        for client in list(self._clients):
            self._serve(client, now_ns)

    def end(self, now_ns: int) -> None:
        """See During: a last turn for who asked just now."""
        self.act(now_ns)
        self._due_ns = None

    def close(self) -> None:
        """Stop listening."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        self._listener.close()

    def _accept(self, now_ns: int) -> None:
        with contextlib.suppress(OSError):
            while len(self._clients) < _MAX_CLIENTS:
                client, _ = self._listener.accept()
                client.settimeout(0)
                self._clients[client] = (now_ns, b"")

    def _serve(self, client: socket.socket, now_ns: int) -> None:
        since_ns, asked = self._clients[client]
        try:
            piece = client.recv(_MAX_REQUEST_BYTES)
        except BlockingIOError:
            piece = None
        except OSError:
            piece = b""
        asked += piece or b""
        if b"\r\n\r\n" in asked:
            self._answer(client, asked)
        elif piece != b"" and len(asked) < _MAX_REQUEST_BYTES and now_ns - since_ns < _PATIENCE_NS:
            self._clients[client] = (since_ns, asked)
            return
        del self._clients[client]
        client.close()

    def _answer(self, client: socket.socket, asked: bytes) -> None:
        good = asked.split(maxsplit=2)[:2] == [b"GET", b"/metrics"]
        text = text_of(self._sampler, self._iteration).encode() if good else b"GET /metrics\n"
        status = "200 OK" if good else "404 Not Found"
        head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        head += f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        client.settimeout(_SEND_S)
        with contextlib.suppress(OSError):
            client.sendall(head.encode() + text)


@dataclass(frozen=True, slots=True)
class Metrics:
    """Where a live run tells its counters; `say` is told the address."""

    port: int
    address: str = LOOPBACK
    say: Callable[[str], None] = lambda _: None

    @contextlib.contextmanager
    def exporting(self, sampler: Sampler) -> Iterator[During]:
        """As long as the context lasts."""
        with contextlib.closing(Exporter(sampler, self.port, self.address, time.monotonic_ns)) as exporter:
            self.say(f"metrics: http://{self.address}:{exporter.port}/metrics")
            yield exporter
