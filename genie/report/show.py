"""Numbers for people: a unit that suits the size, few digits, thousands set apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from genie.units import GIB, bps_to_gigabits, ns_to_ms, ns_to_s, ns_to_us

NOTHING: Final = "\N{EN DASH}"


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit for a column or an axis of times: what it is called, and what makes it of ns."""

    name: str
    of_ns: Callable[[float], float]

    def __call__(self, time_ns: float | None, digits: int = 1) -> str:
        """A time as a bare number in this unit."""
        return number(None if time_ns is None else self.of_ns(time_ns), digits)


_UNITS: Final = (
    (1e4, TimeUnit("ns", float)),
    (1e8, TimeUnit("µs", ns_to_us)),
    (1e11, TimeUnit("ms", ns_to_ms)),
    (math.inf, TimeUnit("s", ns_to_s)),
)


def time_unit(times_ns: Iterable[float]) -> TimeUnit:
    """The unit in which the largest of these has at most five digits before the point."""
    largest = max((abs(float(t)) for t in times_ns if not math.isnan(t)), default=0.0)
    return next(unit for limit, unit in _UNITS if largest < limit or limit == math.inf)


def time(time_ns: float | None, digits: int = 1) -> str:
    """A time with its unit."""
    if time_ns is None or math.isnan(time_ns):
        return NOTHING
    unit = time_unit([time_ns])
    return f"{unit(time_ns, 0 if unit.name == 'ns' else digits)} {unit.name}"


def number(value: float | None, digits: int = 1) -> str:
    """A number with so many digits after the point; a dash where there is none."""
    if value is None or math.isnan(value):
        return NOTHING
    return f"{value:,.{digits}f}" if math.isfinite(value) else "\N{INFINITY}"


def count(value: float) -> str:
    """A count: whole unless it is a mean that is not."""
    return number(value, 0 if float(value).is_integer() else 1)


def share(value: float | None, digits: int = 1) -> str:
    """A share in per cent."""
    return NOTHING if value is None or math.isnan(value) else f"{value:.{digits}%}"


def change(value: float) -> str:
    """A signed relative difference in per cent."""
    return f"{value:+.2%}"


def size(size_bytes: float) -> str:
    """A size in bytes, KiB, MiB or GiB."""
    for factor, name in ((GIB, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= factor:
            return f"{size_bytes / factor:,.4g} {name}"
    return f"{size_bytes:,.0f} B"


def size_range(low_bytes: float, high_bytes: float) -> str:
    """A bin of sizes; `high_bytes` is still inside."""
    return size(low_bytes) if low_bytes == high_bytes else f"{size(low_bytes)} to {size(high_bytes + 1)}"


def rate(rate_bps: float) -> str:
    """A rate in Gb/s (decimal)."""
    return f"{bps_to_gigabits(rate_bps):,.4g} Gb/s"


def parameter(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """(value with unit, standard error, 95 % interval) of a fitted parameter."""
    unit, of = parameter_unit(row)
    value = f"{of(row['value']):,.2f} {unit}"
    if row["stderr"] is None:
        return value, NOTHING, "kept as given"
    return value, f"{of(row['stderr']):,.2f}", f"{of(row['low']):,.2f} to {of(row['high']):,.2f}"


def parameter_unit(row: Mapping[str, Any]) -> tuple[str, Callable[[float], float]]:
    """(unit in which a fitted parameter is shown, what makes it of the parameter's own unit)."""
    if row["unit"] == "bit/s":
        return "Gb/s", bps_to_gigabits
    if row["unit"] == "ns":
        unit = time_unit([row["value"], row["low"], row["high"]])
        return unit.name, unit.of_ns
    return str(row["unit"]), float
