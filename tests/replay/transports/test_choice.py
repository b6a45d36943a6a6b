"""Naming a transport: from a file, from options, and what is told about a wrong one."""

import pytest

from genie.core.experiment import ReplayRule
from genie.errors import InputError
from genie.formats.experiment import experiment_of
from genie.replay.transports.choice import CHOICES, MAX_FLOWS, Wiring, choice, source_port
from genie.replay.transports.tcp import TcpTransport

FILE = """
name: x
workload: {traces: t}
system: s.json
network: {model: fabric}
testbed: t.yaml
replay: {transport: other, options: {mtu: 1024, retry: 3}}
"""


def test_an_unknown_name_is_told_with_those_that_there_are():
    with pytest.raises(InputError, match="'pigeons'") as caught:
        choice("pigeons")
    assert all(name in caught.value.fix for name in CHOICES)


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_makes_a_transport_and_refuses_options_that_it_does_not_know(name):
    wiring = Wiring(rank=0, ranks=2, address="127.0.0.1", secret=bytes(32))
    choice(name).check({})
    choice(name).make(wiring).close()
    with pytest.raises(InputError, match="pigeons"):
        choice(name).check({"pigeons": 7})


def test_tcp_gets_what_the_run_says():
    end = choice("tcp").make(Wiring(rank=3, ranks=8, address="::1", secret=bytes(32), flows=2, window_bytes=1_000))
    assert isinstance(end, TcpTransport)
    assert (end._options.address, end._options.flows, end._options.receive_buffer_bytes) == ("::1", 2, 2_000)
    assert end._options.source_port(5, 1) == source_port(8, 3, 5, 1) < source_port(8, 3, 5, 0) + MAX_FLOWS
    end.close()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


def rule(file, **given) -> ReplayRule:
    return experiment_of(file, given).replay


def test_options_replace_what_the_file_says_about_the_transport(file):
    assert (rule(file).transport, rule(file).options) == ("other", {"mtu": 1024, "retry": 3})
    same = rule(file, transport="other", transport_options=("retry=7", "ports=[1, 2]"))
    assert same.options == {"mtu": 1024, "retry": 7, "ports": [1, 2]}
    another = rule(file, transport="tcp", transport_options=("a=b",))
    assert (another.transport, another.options) == ("tcp", {"a": "b"})


@pytest.mark.parametrize("word", ["mtu", "=3", "mtu=[1", ""])
def test_an_option_that_is_no_pair_is_refused(file, word):
    with pytest.raises(InputError, match="KEY=VALUE"):
        rule(file, transport_options=(word,))
