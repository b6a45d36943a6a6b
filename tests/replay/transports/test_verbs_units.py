"""Coded numbers in physical units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.errors import InputError
from genie.replay.transports.verbs_units import (
    MAX_FLOW_LABEL,
    MAX_RETRIES,
    Retry,
    ack_timeout_ns,
    flow_label_of,
    retry_of,
    rnr_code,
    source_port_of,
)


def test_the_specifications_own_examples():
    assert ack_timeout_ns(14) == 67_108_864
    assert Retry(14, 6).give_up_ns == 7 * 67_108_864
    assert [rnr_code(ns) for ns in (1, 10_000, 10_001, 640_000, 491_520_000, 655_360_000, 10**12)] == [
        1, 1, 2, 12, 31, 0, 0,
    ]  # fmt: skip


@given(st.integers(1, 10**12), st.integers(1, 100))
def test_a_retry_waits_at_least_as_long_as_asked(ack_ns, times):
    retry = retry_of(ack_ns, ack_ns * times)
    assert retry.ack_ns >= ack_ns
    assert 1 <= retry.again <= MAX_RETRIES
    assert retry.give_up_ns >= min(ack_ns * times, 7 * ack_ns)
    assert retry.timeout == 1 or ack_timeout_ns(retry.timeout - 1) < ack_ns


@pytest.mark.parametrize(("ack_ns", "give_up_ns"), [(0, 1), (-5, 1), (1 << 62, 1 << 63), (1_000_000, 999)])
def test_impossible_retries_are_told(ack_ns, give_up_ns):
    with pytest.raises(InputError, match=r"cannot be had|before the time-out"):
        retry_of(ack_ns, give_up_ns)


@given(st.integers(0xC000, 0xFFFF))
def test_a_source_port_is_had_by_a_label_that_is_not_0(port):
    label = flow_label_of(port)
    assert 0 < label <= MAX_FLOW_LABEL
    assert source_port_of(label) == port


@given(st.integers(1, MAX_FLOW_LABEL))
def test_every_label_gives_a_roce_port(label):
    assert 0xC000 <= source_port_of(label) <= 0xFFFF


@pytest.mark.parametrize("port", [0, 4791, 0xBFFF, 0x10000])
def test_other_ports_cannot_be_had(port):
    with pytest.raises(InputError, match="cannot be had"):
        flow_label_of(port)
