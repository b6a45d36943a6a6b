"""The key `faults` of an experiment file: a list of faults, each value with its unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from genie.core.faults import Fault, FaultKind
from genie.errors import InputError
from genie.units import parse_rate_bps, parse_share_ppm, parse_size_bytes, parse_time_ns

_VALUES: Final[dict[FaultKind, tuple[str, Callable[[str], int]]]] = {
    FaultKind.RATE: ("rate", parse_rate_bps),
    FaultKind.LOSS: ("loss", parse_share_ppm),
    FaultKind.DELAY: ("delay", parse_time_ns),
    FaultKind.BUFFER: ("buffer", parse_size_bytes),
    FaultKind.FLAP: ("period", parse_time_ns),
}
"""Kind -> the one key that it needs besides its times, and how that is read."""

NEVER: Final = "never"


class FaultFile(BaseModel):
    """One fault; times are virtual, from the start of its iteration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: FaultKind
    target: str = Field(min_length=1)
    start: str = "0 ns"
    end: str | None = None
    iteration: int = Field(0, ge=0)
    rate: str | None = None
    loss: str | None = None
    delay: str | None = None
    buffer: str | None = None
    period: str | None = None
    reroute: str = "0 ns"

    def fault(self) -> Fault:
        """What it says.

        Raises:
            InputError: a value without its unit, out of range, missing, or one that this kind does not take.
        """
        key, value_of = _VALUES.get(self.kind, ("", None))
        for name, _ in _VALUES.values():
            if (getattr(self, name) is not None) != (name == key):
                what = f"needs a {key}" if name == key else f"takes no {name}"
                raise InputError(f"fault {self.kind} of {self.target} {what}.")
        value = value_of(getattr(self, key)) if value_of is not None else 0
        flap = self.kind is FaultKind.FLAP
        return Fault(
            self.kind,
            self.target,
            parse_time_ns(self.start),
            None if self.end is None else parse_time_ns(self.end),
            self.iteration,
            0 if flap else value,
            value if flap else 0,
            None if self.reroute == NEVER else parse_time_ns(self.reroute),
        )
