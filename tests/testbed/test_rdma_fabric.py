"""What switch ports are told to do; the fabric itself is tried in the guest (test_rdma_lab.py)."""

import pytest

from genie.core.testbed import LinkSpec, single_switch
from genie.core.testbed import Testbed as Declared
from genie.errors import InputError, NotReadyError
from genie.testbed.addressing import ports
from genie.testbed.rdma_fabric import Impairment, RdmaFabric, queue_commands


def declared():
    nodes, cables = single_switch(2, LinkSpec(10**9, 0, 1 << 20), seed=1)
    return Declared("two", nodes, cables, ("h0", "h1"), 1)


def words(**kwargs):
    return [" ".join(row) for row in queue_commands(Impairment(**kwargs), ports(declared())[0], 10**9)]


def test_a_port_without_impairment_is_left_alone():
    assert words() == []


def test_delay_and_loss_are_netems():
    assert words(delay_ns=1_500_000, loss=0.0125) == [
        "parent 1:1 handle 40: netem limit 4096 delay 1500us loss 1.2500%"
    ]
    assert words(loss=0.5) == ["parent 1:1 handle 40: netem limit 4096 loss 50.0000%"]


def test_marks_are_reds_behind_netem_where_there_is_one():
    (alone,) = words(mark_bytes=30_000)
    assert alone.startswith("parent 1:1 handle 50: red limit 1048576 min 30000 max 90000 avpkt 1000 burst 51 ")
    assert alone.endswith("bandwidth 1000000000bit probability 1 ecn")
    assert words(delay_ns=1000, mark_bytes=30_000)[1].startswith("parent 40:1 ")


@pytest.mark.parametrize("kwargs", [{"delay_ns": -1}, {"loss": 1.0}, {"loss": -0.1}, {"mark_bytes": -1}])
def test_impossible_impairments_are_refused(kwargs):
    with pytest.raises(InputError, match="must"):
        Impairment(**kwargs)


def test_outside_a_guest_it_is_refused(monkeypatch):
    monkeypatch.delenv("GENIE_IN_RDMA_LAB", raising=False)
    with pytest.raises(NotReadyError, match="in the rdma-lab only"):
        RdmaFabric(declared())
