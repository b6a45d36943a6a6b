import pytest

from genie import units
from genie.errors import InputError


def test_astra_bandwidth_is_binary_and_exact():
    assert units.astra_gbps_to_bps(50.0) == 50 * 2**30 * 8
    assert units.bps_to_astra_gbps(units.astra_gbps_to_bps(12.34)) == 12.34
    assert units.bps_to_bytes_per_ns(units.astra_gbps_to_bps(50.0)) == 50 * 2**30 / 1e9


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_rate_bps, "200 Gb/s", 200_000_000_000),
        (units.parse_rate_bps, "25Gbps", 25_000_000_000),
        (units.parse_rate_bps, "1.5 Mbit/s", 1_500_000),
        (units.parse_size_bytes, "64 KiB", 65_536),
        (units.parse_size_bytes, "1 MB", 1_000_000),
        (units.parse_share_ppm, "0.1 %", 1000),
        (units.parse_share_ppm, "250ppm", 250),
        (units.parse_time_ns, "1.5 us", 1500),
    ],
)
def test_text_with_units(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize("text", ["200", "fast", "-1 Gb/s", "1 GB/x", ""])
def test_text_without_unit_is_refused(text):
    for parse in (units.parse_rate_bps, units.parse_size_bytes, units.parse_time_ns, units.parse_share_ppm):
        with pytest.raises(InputError, match="write a number and a unit"):
            parse(text)
