"""Congestion control: small strategies that say how much may be in flight and when the next packet may leave.

Times are real ns, rates real bit/s. `dilation` stretches a strategy's own time constants and shrinks its rate steps, so
that what is published for 50 us and 40 Mb/s means the same in a slowed-down emulation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from genie.units import BITS_PER_BYTE, NS_PER_S

MIN_RATE_BPS: Final = 1_000_000


class Control(Protocol):
    """What the sender of a queue pair asks and tells.

    Attributes:
        window: packets that may be in flight.
    """

    window: int

    def may_send_ns(self) -> int:
        """When the next packet may leave; 0: at once."""
        ...

    def on_sent(self, packets: int, size_bytes: int, now_ns: int) -> None:
        """Packets left."""
        ...

    def on_acknowledged(self, packets: int, marked: bool, now_ns: int) -> None:
        """Packets were acknowledged; `marked`: one of them met congestion."""
        ...

    def on_notification(self, now_ns: int) -> None:
        """A congestion notification packet came."""
        ...

    def on_loss(self, now_ns: int) -> None:
        """A packet was lost (at most once a round trip)."""
        ...


@dataclass(slots=True)
class Window:
    """No congestion control: a fixed window; the network's queues decide."""

    window: int

    def may_send_ns(self) -> int:
        """See Control."""
        return 0

    def on_sent(self, packets: int, size_bytes: int, now_ns: int) -> None:
        """See Control."""

    def on_acknowledged(self, packets: int, marked: bool, now_ns: int) -> None:
        """See Control."""

    def on_notification(self, now_ns: int) -> None:
        """See Control."""

    def on_loss(self, now_ns: int) -> None:
        """See Control."""


class Dctcp:
    """A window like DCTCP's (RFC 8257): cut once a round trip by half the smoothed share of marked packets."""

    GAIN: Final = 1 / 16

    def __init__(self, window: int) -> None:
        self._most = window
        self._size = float(window)
        self._alpha = 1.0
        self._marked = self._seen = self._round = 0
        self.window = window

    def may_send_ns(self) -> int:
        """See Control."""
        return 0

    def on_sent(self, packets: int, size_bytes: int, now_ns: int) -> None:
        """See Control."""

    def on_acknowledged(self, packets: int, marked: bool, now_ns: int) -> None:  # noqa: ARG002 - a Control
        """See Control; a window's worth of acknowledgements is a round trip."""
        self._seen += packets
        self._marked += packets if marked else 0
        self._round += packets
        if self._round < self.window:
            return
        share = self._marked / self._seen
        self._alpha += self.GAIN * (share - self._alpha)
        self._set(self._size * (1 - self._alpha / 2) if self._marked else self._size + 1)
        self._marked = self._seen = self._round = 0

    def on_notification(self, now_ns: int) -> None:
        """See Control; marks come with acknowledgements."""

    def on_loss(self, now_ns: int) -> None:  # noqa: ARG002 - a Control
        """See Control."""
        self._set(self._size / 2)
        self._marked = self._seen = self._round = 0

    def _set(self, size: float) -> None:
        self._size = min(float(self._most), max(2.0, size))
        self.window = int(self._size)


@dataclass(frozen=True, slots=True)
class DcqcnParameters:
    """As published (Zhu et al., SIGCOMM 2015, table 14), in virtual ns and bit/s.

    Attributes:
        gain: of the smoothed congestion estimate.
        alpha_timer_ns: without a notification for so long, the estimate decays.
        increase_timer_ns, increase_bytes: how often the rate grows.
        fast_recovery: steps back towards the rate before the cut, before it grows beyond it.
        additive_bps, hyper_bps: how much it then grows.
        cut_interval_ns: least time between two cuts; receivers notify at most once in it.
    """

    gain: float = 1 / 256
    alpha_timer_ns: int = 55_000
    increase_timer_ns: int = 55_000
    increase_bytes: int = 10_000_000
    fast_recovery: int = 5
    additive_bps: int = 40_000_000
    hyper_bps: int = 200_000_000
    cut_interval_ns: int = 50_000


class Dcqcn:
    """DCQCN's reaction point: a rate that notifications cut and that timers and bytes bring back."""

    def __init__(
        self, window: int, line_bps: int, dilation: int = 1, parameters: DcqcnParameters | None = None
    ) -> None:
        self.window = window
        self._p = parameters or DcqcnParameters()
        self._dilation, self._line_bps = dilation, float(line_bps)
        self.rate_bps = self._target_bps = self._line_bps
        self.alpha = 1.0
        self._next_ns = 0.0
        self._alpha_ns = self._timer_ns = self._cut_ns = -1
        self._bytes = self._by_timer = self._by_bytes = 0

    def may_send_ns(self) -> int:
        """See Control."""
        return int(self._next_ns)

    def on_sent(self, packets: int, size_bytes: int, now_ns: int) -> None:  # noqa: ARG002 - a Control
        """See Control; a sender that woke late makes up for it, within a burst's time."""
        self._tick(now_ns)
        busy_ns = size_bytes * BITS_PER_BYTE * NS_PER_S / self.rate_bps
        self._next_ns = max(self._next_ns, now_ns - busy_ns) + busy_ns
        if self._cut_ns >= 0:
            self._bytes += size_bytes
            while self._bytes >= self._p.increase_bytes:
                self._bytes -= self._p.increase_bytes
                self._by_bytes += 1
                self._increase()

    def on_acknowledged(self, packets: int, marked: bool, now_ns: int) -> None:  # noqa: ARG002 - a Control
        """See Control."""
        self._tick(now_ns)

    def on_notification(self, now_ns: int) -> None:
        """Cut: the target is the rate before, the rate goes down by half the estimate."""
        self._tick(now_ns)
        if self._cut_ns >= 0 and now_ns - self._cut_ns < self._p.cut_interval_ns * self._dilation:
            return
        self._target_bps = self.rate_bps
        self.rate_bps = max(MIN_RATE_BPS, self.rate_bps * (1 - self.alpha / 2))
        self.alpha = (1 - self._p.gain) * self.alpha + self._p.gain
        self._cut_ns = self._alpha_ns = self._timer_ns = now_ns
        self._bytes = self._by_timer = self._by_bytes = 0

    def on_loss(self, now_ns: int) -> None:
        """As a notification: a network that loses is congested."""
        self.on_notification(now_ns)

    def _tick(self, now_ns: int) -> None:
        if self._cut_ns < 0:
            return
        alpha_every, timer_every = (t * self._dilation for t in (self._p.alpha_timer_ns, self._p.increase_timer_ns))
        while now_ns - self._alpha_ns >= alpha_every:
            self._alpha_ns += alpha_every
            self.alpha *= 1 - self._p.gain
        while now_ns - self._timer_ns >= timer_every and self._cut_ns >= 0:
            self._timer_ns += timer_every
            self._by_timer += 1
            self._increase()

    def _increase(self) -> None:
        """Fast recovery halves the distance; then the target grows, fast where timer and bytes agree."""
        least, most = sorted((self._by_timer, self._by_bytes))
        if least > self._p.fast_recovery:
            step_bps = self._p.hyper_bps * (least - self._p.fast_recovery)
        else:
            step_bps = self._p.additive_bps if most > self._p.fast_recovery else 0
        self._target_bps = min(self._line_bps, self._target_bps + step_bps / self._dilation)
        self.rate_bps = (self._target_bps + self.rate_bps) / 2
        if self.rate_bps >= 0.999 * self._line_bps:  # halving never gets all the way
            self.rate_bps, self._cut_ns = self._line_bps, -1


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """What a strategy is made from: most packets in flight, line rate (real bit/s), dilation."""

    window: int
    line_bps: int
    dilation: int = 1


CONTROLS: Final[dict[str, Callable[[ControlSettings], Control]]] = {
    "none": lambda settings: Window(settings.window),
    "dcqcn": lambda settings: Dcqcn(settings.window, settings.line_bps, settings.dilation),
    "dctcp": lambda settings: Dctcp(settings.window),
}
"""Name -> strategy."""
