"""The verbs transport on devices of this process alone; tests/testbed/test_rdma_lab.py has it on real verbs."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import ClassVar

import pytest
from conformance import MIB, PATIENCE_S, NetworkConformance, Party, in_ns
from fake_verbs import Rack

from genie.errors import InputError, NotReadyError, RunError
from genie.replay.transports import verbs, verbs_library
from genie.replay.transports.verbs import VerbsTransport
from genie.replay.transports.verbs_connection import Target
from genie.replay.transports.verbs_device import GidKind
from genie.replay.transports.verbs_options import VerbsOptions

SECRET = bytes(32)
ADDRESSES = [f"127.0.9.{rank + 1}" for rank in range(8)]


@pytest.fixture
def rack(monkeypatch):
    """Eight devices, one a rank."""
    made = Rack(ADDRESSES)
    monkeypatch.setattr(verbs, "Device", made.device)
    monkeypatch.setattr(verbs, "survey", made.survey)
    return made


def ends(ranks, **kwargs):
    return [VerbsTransport(rank, VerbsOptions(ADDRESSES[rank], SECRET, **kwargs)) for rank in range(ranks)]


@pytest.mark.usefixtures("rack")
class TestVerbs(NetworkConformance):
    kwargs: ClassVar[dict[str, object]] = {"verify": True}

    def make(self, ranks):
        return ends(ranks, flows=self.flows, **self.kwargs)

    make_slow = make


class TestVerbsSendOnThreeQueuePairs(TestVerbs):
    kwargs: ClassVar[dict[str, object]] = {"operation": "send", "slots": 4, "slot_bytes": 4096, "signal_every": 1}
    flows = 3


def test_ends_that_sleep_are_woken_by_their_own_device_if_they_wait_for_it(rack):
    """The peer's words come before the device tells that it is done with what they are about."""
    rack.slow_s = 0.01
    with Party(ends(2, slots=2, slot_bytes=4096)) as party, ThreadPoolExecutor(1) as pool:
        handles = party.recv(1, 0, 1, 100_000), party.send(0, 1, 1, 100_000)
        receiver = pool.submit(party.poll, 1, PATIENCE_S * 10**9)
        assert [done.handle for done in party.poll(0, PATIENCE_S * 10**9)] == [handles[1]]
        assert [done.handle for done in receiver.result(PATIENCE_S)] == [handles[0]]


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"secret": b"short"}, "32 bytes"),
        ({"operation": "read"}, "write or send"),
        ({"flows": 0}, "flows must lie in 1 to 64"),
        ({"traffic_class": 256}, "traffic_class"),
        ({"slots": 1}, "slots"),
        ({"slot_bytes": 1 << 30}, "slot_bytes"),
        ({"ack_timeout_ns": 0}, "acknowledgement time-out"),
        ({"give_up_ns": 1}, "before the time-out"),
    ],
)
def test_options_are_checked(kwargs, told):
    with pytest.raises(InputError, match=told):
        VerbsOptions(**({"address": "10.0.0.1", "secret": SECRET} | kwargs))


def test_a_path_mtu_that_does_not_exist_is_refused():
    with pytest.raises(NotReadyError, match="does not exist"):
        VerbsOptions("10.0.0.1", SECRET, path_mtu_bytes=1500)


def test_without_a_device_it_says_so(monkeypatch):
    monkeypatch.setattr(verbs, "survey", lambda: ([], []))
    end = VerbsTransport(0, VerbsOptions("10.0.0.1", SECRET))
    with pytest.raises(NotReadyError, match="no RDMA device on this host") as caught:
        end.open()
    assert "rdma link add" in caught.value.fix
    with pytest.raises(RunError, match="before open"):
        end.connect({}, 0)
    end.close()
    end.close()


def test_without_pyverbs_it_says_how_to_get_it(monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(verbs_library.importlib, "import_module", missing)
    monkeypatch.setattr(verbs_library, "SYSTEM_PACKAGES", verbs_library.Path("/nowhere"))
    assert "pyverbs is not installed" in verbs_library.find_pyverbs()
    with pytest.raises(NotReadyError) as caught:
        verbs_library.survey()
    assert caught.value.fix == "sudo apt install python3-pyverbs"


def test_pyverbs_of_another_python_is_told(monkeypatch, tmp_path):
    def wrong(name):
        raise ImportError(f"cannot import name {name!r}")

    (tmp_path / "pyverbs").mkdir()
    monkeypatch.setattr(verbs_library.importlib, "import_module", wrong)
    monkeypatch.setattr(verbs_library, "SYSTEM_PACKAGES", tmp_path)
    monkeypatch.setattr(verbs_library.sys, "path", list(verbs_library.sys.path))
    assert "pyverbs is not for Python 3" in verbs_library.find_pyverbs()


# ---- what is wrong is told, in a sentence and with its exit code


def absent(rack):
    del rack.ports["fake1"], rack.gids["fake1"]


def down(rack):
    rack.ports["fake1"] = replace(rack.ports["fake1"], state="down")


def of_roce_v1(rack):
    rack.gids["fake1"] = [replace(rack.gids["fake1"][0], kind=GidKind.ROCE_V1)]


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (absent, r"no RDMA device here has the address 127\.0\.9\.2"),
        (down, "port 1 of fake1 is down, not active"),
        (of_roce_v1, "has only a RoCE v1 GID"),
    ],
)
def test_a_device_that_cannot_be_used_is_told_before_anything_else(rack, broken, told):
    broken(rack)
    end = ends(2)[1]
    with pytest.raises(NotReadyError, match=told) as caught:
        end.open()
    end.close()
    assert caught.value.exit_code == 3
    assert caught.value.fix


def test_ends_of_different_path_mtu_or_gid_kind_are_told(rack):
    rack.ports["fake1"] = replace(rack.ports["fake1"], mtu_bytes=1024)
    both = ends(2)
    endpoints = [end.open() for end in both]
    with pytest.raises(NotReadyError, match=r"cannot talk to rank 1: the path MTU is 4096 bytes .* and 1024 bytes"):
        both[0].connect({1: endpoints[1]}, in_ns(1))
    endpoints[1]["verbs"] |= {"kind": GidKind.ROCE_V1.value, "mtu_bytes": 4096}
    with pytest.raises(NotReadyError, match="differ in their GID kind: RoCE v2 here, RoCE v1 there") as caught:
        both[0].connect({1: endpoints[1]}, in_ns(1))
    assert (caught.value.where, caught.value.exit_code) == ("rank 0", 3)
    for end in both:
        end.close()


def test_a_port_that_changed_its_address_while_ranks_started_is_told(rack):
    both = ends(2)
    endpoints = [end.open() for end in both]
    rack.gids["fake0"] = [replace(rack.gids["fake0"][0], gid="::ffff:127.0.9.77")]
    with pytest.raises(NotReadyError) as caught:
        both[0].connect({1: endpoints[1]}, in_ns(1))
    assert caught.value.what == "no RDMA device here has the address 127.0.9.1."
    for end in both:
        end.close()


@pytest.mark.usefixtures("rack")
def test_a_wrong_peer_key_is_told():
    with Party(ends(2)) as party:
        connection = party.ends[0]._peers[1][0]
        connection.aim(Target(connection._target.address, connection._target.key + 1000))
        party.exchange(0, 1, 1, MIB)
        with pytest.raises(RunError, match=r"rank 1 through fake0/1\[0\] .*key or address was refused") as caught:
            party.settle()
    assert "REM_ACCESS_ERR" in caught.value.what
    assert (caught.value.where, caught.value.exit_code) == ("rank 0", 4)


def test_a_device_that_answers_no_more_is_told_with_what_became_of_our_port(rack):
    with Party(ends(2)) as party:
        rack.ports["fake0"] = replace(rack.ports["fake0"], state="down")
        party.ends[1]._device.pairs[0].open = False
        party.exchange(0, 1, 1, 1000)
        with pytest.raises(RunError, match=r"RETRY_EXC_ERR\)\. Port 1 of fake0 is down now\. 1 sends to it") as caught:
            party.settle(ranks=[0])
    assert "drops UDP 4791" in caught.value.fix
