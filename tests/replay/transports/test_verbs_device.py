"""Which device, port and GID, by rule; and whether two ends can talk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.errors import NotReadyError
from genie.replay.transports.verbs_device import (
    MTU_BYTES,
    Choice,
    GidInfo,
    GidKind,
    LinkLayer,
    PortInfo,
    Wish,
    choose,
    disagreement,
    mtu_code,
    mtu_of,
    table,
)

V1, V2, IB = GidKind.ROCE_V1, GidKind.ROCE_V2, GidKind.INFINIBAND


def port(device="mlx5_0", state="active", layer=LinkLayer.ETHERNET, mtu_bytes=4096, lid=0):
    return PortInfo(device, 1, state, layer, mtu_bytes, lid)


def gids(device="mlx5_0", last=1, *rows):
    """The table of a RoCE port with an IPv4 address as ConnectX shows it, and more rows (gid, kind)."""
    table = [
        ("fe80::1", V1),
        ("fe80::1", V2),
        (f"::ffff:10.0.0.{last}", V1),
        (f"::ffff:10.0.0.{last}", V2),
        ("2001:db8::1", V2),
        *rows,
    ]
    return [GidInfo(device, 1, index, gid, kind) for index, (gid, kind) in enumerate(table)]


def test_the_rule_takes_the_routable_roce_v2_entry_and_ipv4_first():
    assert choose([port()], gids(), Wish()).gid.index == 3


def test_an_address_names_its_device():
    ports, table = [port("a"), port("b")], gids("a", 1) + gids("b", 2)
    assert choose(ports, table, Wish(address="10.0.0.2")).port.device == "b"
    assert str(choose(ports, table, Wish(address="10.0.0.2"))) == "b/1[3] 10.0.0.2 RoCE v2"
    assert choose([port("a")], gids("a"), Wish(address="2001:db8:0::1")).gid.index == 4


def test_several_ports_without_a_name_are_told_with_the_table():
    with pytest.raises(NotReadyError, match="several RDMA ports") as caught:
        choose([port("a"), port("b")], gids("a") + gids("b", 2), Wish())
    assert "a/1[3] 10.0.0.1 RoCE v2; " in caught.value.fix
    assert choose([port("a"), port("b")], gids("a") + gids("b", 2), Wish(device="b")).port.device == "b"


def test_a_down_port_is_no_rival_but_is_told_when_it_is_the_only_one():
    ports = [port("a", "down"), port("b")]
    assert choose(ports, gids("a") + gids("b", 2), Wish()).port.device == "b"
    with pytest.raises(NotReadyError, match="port 1 of a is down, not active") as caught:
        choose(ports[:1], gids("a"), Wish())
    assert "ip link set" in caught.value.fix
    with pytest.raises(NotReadyError, match="is init, not active") as caught:
        choose([port("i", "init", LinkLayer.INFINIBAND, lid=3)], [GidInfo("i", 1, 0, "fe80::5", IB)], Wish())
    assert "subnet manager" in caught.value.fix


@pytest.mark.parametrize(
    ("ports", "entries", "wish", "told"),
    [
        ([], [], Wish(), "there is no RDMA device on this host"),
        ([port()], gids(), Wish(device="mlx5_9"), "there is no mlx5_9 on this host"),
        ([port()], gids(), Wish(port=2), "there is no port 2 of any device"),
        ([port()], gids(), Wish(gid_index=44), "GID index 44 names no GID"),
        ([port()], gids(), Wish(gid_index=2), "10.0.0.1 RoCE v1 is of a kind that no router forwards"),
        ([port()], gids(), Wish(address="10.0.0.9"), "no RDMA device here has the address 10.0.0.9"),
        ([port()], gids()[:3], Wish(address="10.0.0.1"), "has only a RoCE v1 GID"),
        ([port()], gids()[:2], Wish(), "no port has a RoCE v2 GID that routers forward"),
    ],
)
def test_what_cannot_be_used_is_told(ports, entries, wish, told):
    with pytest.raises(NotReadyError) as caught:
        choose(ports, entries, wish)
    assert told in caught.value.what
    assert caught.value.fix
    assert caught.value.exit_code == 3


def test_infiniband_uses_entry_0_whatever_the_address():
    ib = port("ib", layer=LinkLayer.INFINIBAND, lid=7)
    entries = [GidInfo("ib", 1, 0, "fe80::2:c903", IB)]
    for wish in (Wish(), Wish(address="192.0.2.1"), Wish(gid_index=0)):
        assert choose([ib], entries, wish).describe()["lid"] == 7


def test_a_long_table_is_cut():
    assert table([]) == "empty"
    assert table(gids() * 5).endswith("; and 13 more")


# ---- both ends


def end(mtu_bytes=4096, gid="::ffff:10.0.0.1", kind=V2, layer=LinkLayer.ETHERNET):
    return Choice(port(mtu_bytes=mtu_bytes, layer=layer), GidInfo("mlx5_0", 1, 3, gid, kind)).describe()


def test_equal_ends_agree():
    assert disagreement(end(), end(gid="::ffff:10.0.0.2")) == ("", "")
    assert disagreement(end(1024), end(4096), 1024) == ("", "")


@pytest.mark.parametrize(
    ("theirs", "path_mtu_bytes", "told"),
    [
        (end(1024), 0, "the path MTU is 4096 bytes at mlx5_0/1[3] 10.0.0.1 RoCE v2 and 1024 bytes"),
        (end(1024), 2048, "is more than the ports allow (4096 here, 1024 there)"),
        (end(kind=V1), 0, "differ in their GID kind: RoCE v2 here, RoCE v1 there"),
        (end(gid="2001:db8::2"), 0, "two IP versions"),
        (end(layer=LinkLayer.INFINIBAND), 0, "differ in their link layer"),
        ({}, 0, "version None"),
        (end() | {"version": 99}, 0, "version 99"),
        (end() | {"gid": "nonsense"}, 0, "two IP versions"),
        (end() | {"mtu_bytes": None}, 0, "0 bytes"),
    ],
)
def test_ends_that_cannot_talk_are_told_why(theirs, path_mtu_bytes, told):
    what, fix = disagreement(end(), theirs, path_mtu_bytes)
    assert told in what
    assert fix


@given(st.sampled_from(MTU_BYTES))
def test_mtu_codes(mtu_bytes):
    assert mtu_of(mtu_code(mtu_bytes)) == mtu_bytes


def test_other_mtus_do_not_exist():
    assert mtu_of(0) == mtu_of(6) == 0
    with pytest.raises(NotReadyError, match="1500 bytes does not exist"):
        mtu_code(1500)
