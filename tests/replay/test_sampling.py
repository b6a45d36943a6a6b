"""Samples of counters, and what a live run tells about them."""

import socket
import urllib.request
from threading import Thread

import pytest

from genie.core.testbed import LinkSpec, Testbed, single_switch
from genie.errors import NotReadyError
from genie.replay.machine import COUNTERS, machine_counters
from genie.replay.prometheus import Exporter, text_of
from genie.replay.sampling import Sampler

Testbed.__test__ = False
S = 1_000_000_000


class World:
    """A clock and counters that the test moves on."""

    def __init__(self):
        self.now_ns, self.sent, self.cpu = 0, 0, 0
        nodes, cables = single_switch(2, LinkSpec(200 * S, 0, 1 << 20), 1)
        self.testbed = Testbed("t", nodes, cables, ("h0", "h1"), dilation=1000)
        self.sampler = Sampler(self.testbed, self.links, lambda: self.now_ns, self.machine, period_ns=S // 2)

    def links(self):
        return {
            name: {"bytes": self.sent, "packets": self.sent // 1000, "drops": 3, "backlog_bytes": 7}
            for name in self.testbed.links()
        }

    def machine(self):
        return dict.fromkeys(COUNTERS, self.cpu)

    def go(self, until_ns, sent=0):
        self.now_ns, self.sent, self.cpu = until_ns, self.sent + sent, self.cpu + 5


def test_rates_and_utilisation_are_those_of_the_time_between_samples():
    world = World()
    full = world.testbed.wire_bps(world.testbed.cables[0]) // 8
    world.sampler.begin(-1, 0, [])
    world.go(S // 4, sent=1)
    world.sampler.end(world.now_ns)
    world.go(S)
    world.sampler.begin(0, S, [])
    assert world.sampler.due_ns() == S + S // 2
    world.go(S + S // 2, sent=full // 4)
    world.sampler.act(world.now_ns)
    world.go(2 * S)
    world.sampler.end(world.now_ns)
    assert world.sampler.due_ns() is None
    world.sampler.end(world.now_ns)
    rows = [row for row in world.sampler.link_rows() if row["link"] == "h0>switch0"]
    assert [row["iteration"] for row in rows] == [-1, 0, 0]
    assert rows[1]["utilisation"] == pytest.approx(0.5, rel=1e-6)
    assert rows[1]["rate_bps"] == pytest.approx(full // 4 * 8 * 2 * 1000)
    assert (rows[1]["begin_ns"], rows[1]["end_ns"]) == (0, 500_000)
    assert (rows[2]["sent_bytes"], rows[2]["dropped_packets"], rows[2]["backlog_bytes"]) == (0, 0, 7)
    assert [row["cpu_softirq_ns"] for row in world.sampler.machine_rows()] == [5, 5, 5]
    assert set(world.sampler.tables()) == {"link_samples", "machine_samples"}


def test_a_long_iteration_is_sampled_ever_more_rarely():
    world = World()
    world.sampler.begin(0, 0, [])
    for _ in range(2_200):
        world.now_ns = world.sampler.due_ns()
        world.sampler.act(world.now_ns)
    assert world.sampler.due_ns() - world.now_ns == 5 * S


def test_this_machine_counts():
    counts = machine_counters()
    assert set(counts) == set(COUNTERS)
    assert counts["cpu_user_ns"] > 0
    assert counts["softirq_net_rx"] >= 0


def test_a_kernel_that_tells_nothing_is_no_error(tmp_path):
    assert set(machine_counters(tmp_path).values()) == {-1}


def ask(world, exporter, path="/metrics"):
    """What a client gets, and the turns that the exporter needs meanwhile."""
    found = []

    def fetch():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}{path}", timeout=20) as answer:
                found.append((answer.status, answer.read().decode()))
        except urllib.error.HTTPError as error:
            found.append((error.code, error.read().decode()))
            error.close()

    client = Thread(target=fetch)
    client.start()
    while client.is_alive():
        exporter.act(world.now_ns)
        client.join(0.01)
    return found[0]


@pytest.fixture
def serving():
    world = World()
    exporter = Exporter(world.sampler, 0, "127.0.0.1", lambda: world.now_ns)
    for part in (world.sampler, exporter):
        part.begin(2, 0, [])
    world.go(S, sent=5000)
    world.sampler.act(S)
    yield world, exporter
    exporter.close()


def test_a_live_run_tells_its_counters(serving):
    status, text = ask(*serving)
    assert status == 200
    assert "genie_iteration 2\n" in text
    assert 'genie_link_sent_bytes_total{link="h0>switch0"} 5000\n' in text
    assert 'genie_link_rate_bps{link="h0>switch0"} 4e+07\n' in text
    assert "# TYPE genie_machine_cpu_softirq_ns_total counter\n" in text
    assert text == text_of(serving[0].sampler, 2)
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))


def test_anything_else_is_refused(serving):
    assert ask(*serving, path="/etc/passwd")[0] == 404


def test_who_does_not_ask_is_hung_up_on(serving):
    world, exporter = serving
    with socket.create_connection(("127.0.0.1", exporter.port)) as client:
        client.sendall(b"GET /metr")
        exporter.act(world.now_ns)
        exporter.act(world.now_ns + 3 * S)
        client.settimeout(5)
        assert client.recv(100) == b""


def test_a_port_that_is_taken_is_said(serving):
    world, exporter = serving
    with pytest.raises(NotReadyError, match="cannot be had"):
        Exporter(world.sampler, exporter.port, "127.0.0.1", lambda: 0)
