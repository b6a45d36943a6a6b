"""The verbs transport on real verbs: runs inside the rdma-lab's guest (tests/testbed/test_rdma_lab.py starts it)."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
from conformance import MIB, PATIENCE_S, NetworkConformance, Party, connect_all, now_ns

from genie.core.testbed import LinkSpec, leaf_spine
from genie.core.testbed import Testbed as Declared
from genie.errors import NotReadyError, RunError
from genie.replay.transports.verbs import VerbsOptions, VerbsTransport
from genie.replay.transports.verbs_connection import Target
from genie.replay.transports.verbs_units import flow_label_of
from genie.testbed.namespaces import inside
from genie.testbed.rdma_fabric import RdmaFabric

SECRET = bytes(range(32))
FAST = LinkSpec(10_000_000_000, 0, 8 << 20)
ROCE_PORT = 4791
UDP = 17


@pytest.fixture(scope="session")
def fabric():
    nodes, cables = leaf_spine(8, 2, 2, FAST, FAST, seed=3)
    hosts = tuple(f"h{number}" for number in range(8))
    with RdmaFabric(Declared("conformance", nodes, cables, hosts, 1, mtu=4200)) as up:
        yield up


@pytest.fixture(autouse=True)
def addresses(fabric, request):
    found = [fabric.address(host) for host in fabric.testbed.hosts]
    if request.instance is not None:
        request.instance.addresses = found
    return found


def ends(addresses, **kwargs):
    options = {"verify": True} | kwargs
    return [VerbsTransport(rank, VerbsOptions(address, SECRET, **options)) for rank, address in enumerate(addresses)]


class TestWrite(NetworkConformance):
    extra: ClassVar = {}

    def make(self, ranks):
        return ends(self.addresses[:ranks], flows=self.flows, **self.extra)

    def make_slow(self, ranks):
        return self.make(ranks)

    def test_poll_waits_as_long_as_told(self):
        """Never shorter; how much longer is up to the guest's timers, which are coarse."""
        with self.party() as party:
            for timeout_ns in (300_000, 3_300_000):
                before_ns = now_ns()
                assert party.poll(0, timeout_ns) == []
                assert now_ns() - before_ns >= timeout_ns


class TestSendOnSeveralQueuePairs(TestWrite):
    flows = 3
    extra: ClassVar = {"operation": "send", "slots": 4, "slot_bytes": 256 << 10, "signal_every": 1}


@pytest.mark.parametrize("kwargs", [{"events": False}, {"inline_bytes": 0}, {"slots": 2, "slot_bytes": 4096}])
def test_other_settings_carry_the_same(addresses, kwargs):
    with Party(ends(addresses[:2], **kwargs)) as party:
        for size_bytes in (0, 1, 5_000, 300_000):
            party.exchange(0, 1, 1, size_bytes)
            party.exchange(1, 0, 1, size_bytes)
        party.settle()


def test_more_bytes_than_memory_go_through_the_same_slots(addresses):
    with Party(ends(addresses[:2], landing_bytes=MIB, slots=4)) as party:
        assert party.ends[1]._peers[0][0].landing.slot_bytes == MIB // 4
        for tag in range(8):
            party.exchange(0, 1, tag, 4 * MIB)
        party.settle()
        assert party.ends[1].moved()["received"] == {0: [8, 32 * MIB]}


def test_ends_that_sleep_are_woken_whatever_they_wait_for(addresses):
    """A poll that times out would mean that nobody woke it: for the peer's pieces and words, or for its own device."""
    both = ends(addresses[:2], slots=8, slot_bytes=4096, signal_every=16)
    with Party(both) as party, ThreadPoolExecutor(1) as pool:
        handles = party.recv(1, 0, 1, 4 * MIB), party.send(0, 1, 1, 4 * MIB)
        receiver = pool.submit(party.poll, 1, PATIENCE_S * 10**9)
        assert [done.handle for done in party.poll(0, PATIENCE_S * 10**9)] == [handles[1]]
        assert [done.handle for done in receiver.result(PATIENCE_S)] == [handles[0]]


# ---- paths


@pytest.fixture
def capture(tmp_path, fabric):
    """What RoCE packets cross the spines: a function that ends it and tells their sources."""
    running = []
    for spine in ("spine0", "spine1"):
        with inside(fabric.namespace_fd(spine)):
            words = ["tcpdump", "-i", "any", "-n", "-U", "--immediate-mode", "-w", str(tmp_path / spine)]
            process = subprocess.Popen([*words, "udp", "port", str(ROCE_PORT)], stderr=subprocess.PIPE, text=True)
        assert "listening" in "".join(next(process.stderr) for _ in range(2))
        running.append((spine, process))

    def stop():
        seen = {}
        for spine, process in running:
            process.terminate()
            process.wait(10)
            words = ["tcpdump", "-n", "-r", str(tmp_path / spine), "udp", "dst", "port", str(ROCE_PORT)]
            lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
            seen[spine] = {line.split(" > ")[0].split(" IP ")[1] for line in lines}
        return seen

    yield stop
    for _, process in running:
        process.kill()
        process.wait()
        process.stderr.close()


def test_roce_packets_cross_the_switch_on_the_paths_that_flow_labels_choose(fabric, addresses, capture):
    """The routing tables say which UDP source port goes over which spine; the packets must be seen there."""
    ports, wanted = range(0xC100, 0xC120), {}
    for port in ports:
        way = fabric.route("h0", "h4", port, ROCE_PORT, UDP)
        wanted.setdefault(way[1].partition(">")[2], port)
    assert set(wanted) == {"spine0", "spine1"}
    chosen = [wanted["spine0"], wanted["spine1"]]
    pair = ends([addresses[0], addresses[4]], flows=2, flow_label=lambda _, flow: flow_label_of(chosen[flow]))
    with Party(pair) as party:
        party.exchange(0, 1, 1, 100_000)
        party.exchange(0, 1, 2, 100_000)
        party.settle()
    seen = capture()
    for spine, other in (("spine0", "spine1"), ("spine1", "spine0")):
        assert f"{addresses[0]}.{wanted[spine]}" in seen[spine] - seen[other]


# ---- what is wrong is told


def opened(end):
    try:
        return end.open()
    finally:
        end.close()


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"device": "mlx5_9"}, "there is no mlx5_9 on this host"),
        ({"ib_port": 3}, "there is no port 3"),
        ({"gid_index": 77, "device": "rxe0"}, "GID index 77 names no GID"),
        ({"address": "192.0.2.1"}, r"no RDMA device here has the address 192\.0\.2\.1"),
    ],
)
def test_a_device_that_is_not_there_is_told(addresses, kwargs, told):
    with pytest.raises(NotReadyError, match=told):
        opened(VerbsTransport(0, VerbsOptions(**({"address": addresses[0], "secret": SECRET} | kwargs))))


def run(*words):
    subprocess.run(words, check=True, capture_output=True, text=True)


@pytest.fixture
def dead_port(fabric):
    name = fabric._ports["h7"][0]
    run("ip", "link", "set", name.name, "down")
    yield
    run("ip", "link", "set", name.name, "up")
    table = str(1000 + fabric.testbed.hosts.index("h7"))
    run("ip", "route", "replace", "default", "via", name.peer_address, "dev", name.name, "table", table)


@pytest.mark.usefixtures("dead_port")
def test_a_dead_port_is_told(addresses):
    with pytest.raises(NotReadyError, match="port 1 of rxe7 is down, not active"):
        opened(ends(addresses)[7])


def test_ends_of_different_path_mtu_are_told(fabric, addresses):
    name = fabric._ports["h6"][0].name
    run("ip", "link", "set", name, "mtu", "1500")
    try:
        pair = {0: ends(addresses)[0], 6: ends(addresses)[6]}
        endpoints = {rank: end.open() for rank, end in pair.items()}
        with pytest.raises(NotReadyError, match=r"cannot talk to rank 6: the path MTU is 4096 bytes .* and 1024 bytes"):
            pair[0].connect({6: endpoints[6]}, now_ns() + 10**9)
        for end in pair.values():
            end.close()
        agreed = [
            VerbsTransport(rank, VerbsOptions(addresses[place], SECRET, path_mtu_bytes=1024))
            for rank, place in enumerate((0, 6))
        ]
        with Party(agreed) as party:
            party.exchange(0, 1, 1, 10_000)
            party.settle()
    finally:
        run("ip", "link", "set", name, "mtu", "4200")


def test_a_path_that_loses_everything_is_told_with_its_usual_cause(fabric, addresses):
    """As a firewall on UDP 4791 would: the TCP connections live on."""
    port = fabric._ports["h5"][0]
    rule = ("ip", "rule", "{}", "pref", "5", "ipproto", "udp", "dport", str(ROCE_PORT), "to", port.address, "prohibit")
    pair = ends([addresses[1], addresses[5]], ack_timeout_ns=8_000_000, give_up_ns=40_000_000)
    with Party(pair) as party, inside(fabric.namespace_fd("leaf1")):
        run(*(word.format("add") for word in rule))
        try:
            party.exchange(0, 1, 1, 1_000)
            with pytest.raises(RunError, match=r"rank 1 through rxe1/1\[1\] .*RETRY_EXC_ERR") as caught:
                party.settle()
        finally:
            run(*(word.format("del") for word in rule))
    assert "1 sends to it" in caught.value.what
    assert "drops UDP 4791" in caught.value.fix


def test_a_wrong_peer_key_is_told(addresses):
    with Party(ends(addresses[:2])) as party:
        connection = party.ends[0]._peers[1][0]
        connection.aim(Target(connection._target.address, connection._target.key ^ 0xFF))
        party.exchange(0, 1, 1, 1_000)
        with pytest.raises(RunError, match=r"rank 1 through rxe0/1\[1\] .*key or address was refused") as caught:
            party.settle(ranks=[0])
    assert "REM_ACCESS_ERR" in caught.value.what


def test_another_runs_secret_is_refused(addresses):
    pair = {0: ends(addresses)[0], 1: VerbsTransport(1, VerbsOptions(addresses[1], bytes(32)))}
    raised = connect_all(pair, {rank: end.open() for rank, end in pair.items()}, 2)
    assert any("secret of another run" in error.what for error in raised.values())
    for end in pair.values():
        end.close()
