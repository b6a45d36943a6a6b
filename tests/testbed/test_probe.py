"""The emulation's truth, with plain TCP sockets. `make bench-fabric-flow` prints the figures with more repeats."""

import os
from pathlib import Path

import pytest

from genie.errors import RunError
from genie.testbed import probe as prober
from genie.testbed.emulated import EmulatedFabric
from genie.testbed.files import load_testbed
from genie.testbed.probe import Flow, probe
from genie.units import transfer_ns

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.netns


def assert_shaped(took_ns, ideal_ns):
    """Never faster than the shaper allows; how much slower a busy machine makes it is for the benchmark to say."""
    assert 0.97 * ideal_ns <= took_ns <= 2 * ideal_ns


def test_a_lone_flow_takes_its_size_over_its_rate():
    with EmulatedFabric(load_testbed(ROOT / "testbed/single-switch-8.yml")) as fabric:
        took = [probe(fabric, [Flow("h0", "h1", 12_500_000)])[0].fct_ns for _ in range(3)]
    assert_shaped(min(took), transfer_ns(12_500_000, 200e9))


def test_a_shift_and_an_incast_lose_nothing():
    with EmulatedFabric(load_testbed(ROOT / "testbed/single-switch-8.yml")) as fabric:
        found = probe(fabric, [Flow(f"h{at}", "h0", 1_000_000) for at in range(1, 8)])
        counters = fabric.counters()
    assert sum(one.retransmissions for one in found) == 0
    assert sum(port["drops"] for port in counters.values()) == 0
    span_ns = max(one.done_ns for one in found) - min(one.begun_ns for one in found)
    assert_shaped(span_ns, transfer_ns(7_000_000, 200e9))


def test_a_process_that_dies_is_told_and_none_lingers(monkeypatch):
    monkeypatch.setattr(prober, "_send", lambda *_: os._exit(1))
    with (
        EmulatedFabric(load_testbed(ROOT / "testbed/single-switch-8.yml")) as fabric,
        pytest.raises(RunError, match=r"flow h0 to h1.*without a report"),
    ):
        probe(fabric, [Flow("h0", "h1", 1_000_000)])
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
