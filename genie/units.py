"""Every unit conversion, each with its name; nowhere else multiplies by a power of ten.

Inside Genie: bytes, ns and bit/s. Traffic and time are integers; parameters of a network model are floats,
since they are estimates.

The traps that this module is for: ASTRA-sim's *network* bandwidth is GB/s with 1 GB = 2**30 bytes, its *memory*
bandwidth GB/s with 1 GB = 10**9; NICs and switches count Gb/s (decimal); Chakra durations are microseconds.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

from genie.errors import InputError

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
BITS_PER_BYTE: Final = 8
PPM_PER_PERCENT: Final = 10_000
GIB: Final = 1 << 30
GB: Final = 1_000_000_000


def us_to_ns(duration_us: Any) -> Any:
    """Chakra ``duration_micros`` to ns; a number or an integer array."""
    return duration_us * NS_PER_US


def ns_to_us(duration_ns: float) -> float:
    """Ns to microseconds."""
    return duration_ns / NS_PER_US


def ns_to_ms(duration_ns: float) -> float:
    """Ns to milliseconds."""
    return duration_ns / NS_PER_MS


def ns_to_s(duration_ns: float) -> float:
    """Ns to seconds."""
    return duration_ns / NS_PER_S


def us_to_s(duration_us: float) -> float:
    """Microseconds to seconds."""
    return duration_us * NS_PER_US / NS_PER_S


def s_to_ns(duration_s: float) -> int:
    """Seconds to ns, rounded."""
    return round(duration_s * NS_PER_S)


def astra_gbps_to_bps(bandwidth_gib_per_s: float) -> float:
    """ASTRA-sim network bandwidth (GB/s, 1 GB = 2**30 B) to bit/s; exact, since the factor is a power of two."""
    return bandwidth_gib_per_s * (GIB * BITS_PER_BYTE)


def bps_to_astra_gbps(bandwidth_bps: float) -> float:
    """Bit/s to ASTRA-sim network bandwidth (GB/s, 1 GB = 2**30 B)."""
    return bandwidth_bps / (GIB * BITS_PER_BYTE)


def exact_quotient(product: float, factor: float) -> float:
    """The number that gives `product` back when it is multiplied by `factor`, where there is one; else the nearest."""
    near = product / factor
    candidates = (near, math.nextafter(near, -math.inf), math.nextafter(near, math.inf))
    return next((number for number in candidates if number * factor == product), near)


def bytes_per_s_to_astra_memory_gbps(bandwidth_bytes_per_s: float) -> float:
    """Bytes per s to ASTRA-sim's ``local-mem-bw`` (GB/s, 1 GB = 10**9 B); reading it gives the same double."""
    return exact_quotient(bandwidth_bytes_per_s, GB)


def flops_to_astra_teraflops(rate_per_s: float) -> float:
    """Operations per s to ASTRA-sim's ``peak-perf`` (TFLOP/s); reading it gives the same double."""
    return exact_quotient(rate_per_s, 1e12)


def gigabits_to_bps(rate_gbps: float) -> float:
    """NIC and switch rates, Gb/s with 1 Gb = 10**9 bits, to bit/s."""
    return rate_gbps * 1e9


def bps_to_gigabits(rate_bps: float) -> float:
    """Bit/s to Gb/s (decimal)."""
    return rate_bps / 1e9


def bps_to_gigabytes(rate_bps: float) -> float:
    """Bit/s to GB/s (decimal), the unit of nccl-tests' algbw and busbw."""
    return rate_bps / BITS_PER_BYTE / GB


def bps_to_bytes_per_ns(bandwidth_bps: float) -> float:
    """Bit/s to bytes per ns; the same double as ASTRA-sim's own conversion gives."""
    return bandwidth_bps / BITS_PER_BYTE / 1_000_000_000


def bytes_per_ns_to_bps(bandwidth_bytes_per_ns: Any) -> Any:
    """Bytes per ns to bit/s; a number or an array."""
    return bandwidth_bytes_per_ns * (BITS_PER_BYTE * NS_PER_S)


def transfer_ns(size_bytes: float, rate_bps: float) -> float:
    """How long `size_bytes` take at `rate_bps`, in ns (a float: the caller says how to round)."""
    return size_bytes / bps_to_bytes_per_ns(rate_bps)


_RATE = re.compile(r"^\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)(?:bit|b)(?:/s|ps)\s*$", re.IGNORECASE)
_SIZE = re.compile(r"^\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)(i?)b\s*$", re.IGNORECASE)
_SHARE = re.compile(r"^\s*([0-9]*\.?[0-9]+)\s*(%|ppm)\s*$")
_TIME = re.compile(r"^\s*([0-9]*\.?[0-9]+)\s*(ns|us|ms|s)\s*$", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_TIME_NS = {"ns": 1, "us": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}


def parse_rate_bps(text: str) -> int:
    """``"200 Gb/s"``, ``"25Gbps"`` or ``"1.5 Mbit/s"`` to bit/s (decimal prefixes).

    Raises:
        InputError: if the text is no rate with its unit.
    """
    found = _RATE.match(text)
    if found is None:
        raise InputError(f"{text!r} is no rate.", fix='write a number and a unit, such as "200 Gb/s".')
    return round(float(found[1]) * float(1000 ** _POWER[found[2].lower()]))


MAX_SIZE_BYTES: Final = 1 << 62
"""Sizes are kept in 64 bits, with room for sums of two."""


def parse_size_bytes(text: str) -> int:
    """``"64 KiB"`` (binary) or ``"1 MB"`` (decimal) to bytes.

    Raises:
        InputError: if the text is no size with its unit, or a size beyond `MAX_SIZE_BYTES`.
    """
    found = _SIZE.match(text)
    if found is None:
        raise InputError(f"{text!r} is no size.", fix='write a number and a unit, such as "64 KiB" or "1 MB".')
    base = 1024 if found[3] else 1000
    size_bytes = round(float(found[1]) * float(base ** _POWER[found[2].lower()]))
    if size_bytes > MAX_SIZE_BYTES:
        raise InputError(f"{text!r} is larger than any size here can be (4 EiB).")
    return size_bytes


def parse_time_ns(text: str) -> int:
    """``"1.5 us"`` and the like to ns.

    Raises:
        InputError: if the text is no duration with its unit.
    """
    found = _TIME.match(text)
    if found is None:
        raise InputError(f"{text!r} is no duration.", fix='write a number and a unit, such as "500 ns".')
    return round(float(found[1]) * _TIME_NS[found[2].lower()])


def parse_share_ppm(text: str) -> int:
    """``"0.1 %"`` or ``"250 ppm"`` to parts of a million.

    Raises:
        InputError: if the text is no share with its unit, or one below a millionth that is not zero.
    """
    found = _SHARE.match(text)
    if found is None:
        raise InputError(f"{text!r} is no share.", fix='write a number and a unit, such as "0.1 %" or "250 ppm".')
    share = float(found[1]) * (PPM_PER_PERCENT if found[2] == "%" else 1)
    if 0 < share < 1:
        raise InputError(f"{text!r} is less than a millionth.")
    return round(share)
