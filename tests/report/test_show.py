import math

import pytest

from genie.report import show


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "0 ns"),
        (9999, "9,999 ns"),
        (10_000, "10.0 µs"),
        (6_901_288, "6,901.3 µs"),
        (123_456_789, "123.5 ms"),
        (2.5e11, "250.0 s"),
        (-12_345, "-12.3 µs"),
        (math.nan, show.NOTHING),
        (None, show.NOTHING),
    ],
)
def test_times(time_ns, text):
    assert show.time(time_ns) == text


def test_a_column_has_one_unit():
    unit = show.time_unit([5, 20_000_000, math.nan])
    assert unit.name == "µs"
    assert [unit(value) for value in (5, 20_000_000, math.nan)] == ["0.0", "20,000.0", show.NOTHING]
    assert show.time_unit([]).name == "ns"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (3 << 20, "3 MiB"), (5 << 30, "5 GiB")],
)
def test_sizes(size_bytes, text):
    assert show.size(size_bytes) == text


def test_ranges_of_sizes():
    assert show.size_range(1024, 1024) == "1 KiB"
    assert show.size_range(1024, 2047) == "1 KiB to 2 KiB"


def test_numbers_shares_and_changes():
    assert show.number(1234.567, 2) == "1,234.57"
    assert show.number(math.inf) == "∞"
    assert (show.count(3.0), show.count(2.5)) == ("3", "2.5")
    assert (show.share(0.123), show.share(math.nan), show.share(None)) == ("12.3%", show.NOTHING, show.NOTHING)
    assert (show.change(0.0123), show.change(-0.5)) == ("+1.23%", "-50.00%")
    assert show.rate(2e11) == "200 Gb/s"


def parameter(unit, value, stderr):
    low, high = (value, value) if stderr is None else (value - 2 * stderr, value + 2 * stderr)
    return {"unit": unit, "value": value, "stderr": stderr, "low": low, "high": high}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (parameter("bit/s", 2e11, 1e9), ("200.00 Gb/s", "1.00", "198.00 to 202.00")),
        (parameter("ns", 500.0, 25.0), ("500.00 ns", "25.00", "450.00 to 550.00")),
        (parameter("ns", 500.0, 25_000.0), ("0.50 µs", "25.00", "-49.50 to 50.50")),
        (parameter("ns", 2000.0, None), ("2,000.00 ns", show.NOTHING, "kept as given")),
        (parameter("share", 0.25, 0.05), ("0.25 share", "0.05", "0.15 to 0.35")),
    ],
)
def test_fitted_parameters(row, told):
    assert show.parameter(row) == told
