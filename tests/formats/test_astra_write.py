"""What Genie writes for ASTRA-sim, its readers take back; ns-3's and htsim's files say what the network file says."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.core.netmodel import Dimension, DimensionModel, Estimate, Topology
from genie.core.system import MemoryKind, Optimization, RemoteMemory, Scheduling, System
from genie.core.workload import CollectiveKind
from genie.errors import InputError
from genie.formats.astra import read_logical_topology, read_memory, read_system
from genie.formats.astra_write import (
    write_custom_by_node,
    write_htsim_topology,
    write_logical_topology,
    write_memory,
    write_ns3_config,
    write_ns3_topology,
    write_system,
)
from genie.units import GB, bytes_per_s_to_astra_memory_gbps, flops_to_astra_teraflops

FLOATS = st.floats(0, 1e6)


def switch(ranks=4, topology=Topology.SWITCH):
    return DimensionModel((Dimension(topology, ranks, Estimate(200e9), Estimate(750.0)),))


@given(FLOATS, FLOATS)
def test_memory_bandwidth_and_peak_come_back_as_the_same_double(gigabytes, teraflops):
    assert bytes_per_s_to_astra_memory_gbps(gigabytes * GB) * GB == gigabytes * GB
    assert flops_to_astra_teraflops(teraflops * 1e12) * 1e12 == teraflops * 1e12


@given(st.integers(0, 9), st.integers(1, 9), st.integers(0, 3000), FLOATS, st.booleans(), st.sampled_from(Scheduling))
def test_systems_come_back(tmp_path_factory, splits, active, delay, gigabytes, replay_only, scheduling):
    path = tmp_path_factory.mktemp("w") / "system.json"
    system = System(
        splits=splits,
        active_chunks=active,
        endpoint_delay_ns=delay,
        scheduling=scheduling,
        optimization=Optimization.LOCAL_BW_AWARE,
        algorithms={CollectiveKind.ALL_REDUCE: ("ring", "direct4"), CollectiveKind.ALL_TO_ALL: ("oneDirect",)},
        local_mem_bytes_per_s=gigabytes * GB,
        replay_only=replay_only,
    )
    write_system(path, system, {})
    assert read_system(path) == system
    assert json.loads(path.read_text())["trace-enabled"] == 1


def test_custom_collectives_are_named_anew(tmp_path):
    system = System(
        splits=1, custom={CollectiveKind.ALL_REDUCE: "/there/a"}, custom_by_node={7: "/there/b", 9: "/there/a"}
    )
    names = {"/there/a": "custom/0", "/there/b": "custom/1"}
    by_node = tmp_path / "nodes.yml"
    write_custom_by_node(by_node, system, names)
    write_system(tmp_path / "s.json", system, names, by_node=str(by_node))
    found = read_system(tmp_path / "s.json")
    assert found.custom == {CollectiveKind.ALL_REDUCE: "custom/0"}
    assert found.custom_by_node == {7: "custom/1", 9: "custom/0"}


@pytest.mark.parametrize("kind", MemoryKind)
def test_memories_come_back(tmp_path, kind):
    memory = RemoteMemory(kind, 70, 13, 3) if kind is MemoryKind.PER_NODE else RemoteMemory(kind, 70, 13)
    write_memory(tmp_path / "m.json", memory, 8)
    plain = RemoteMemory() if kind is MemoryKind.NONE else memory
    assert read_memory(tmp_path / "m.json") == plain
    if kind is MemoryKind.PER_NODE:
        assert json.loads((tmp_path / "m.json").read_text())["num-nodes"] == 3


def test_logical_dimensions_come_back(tmp_path):
    write_logical_topology(tmp_path / "l.json", (8, 4, 2))
    assert read_logical_topology(tmp_path / "l.json") == (8, 4, 2)


def test_ns3_gets_one_switch_with_its_rate_and_delay(tmp_path):
    write_ns3_topology(tmp_path / "topology.txt", switch())
    head, switches, *links = (tmp_path / "topology.txt").read_text().splitlines()
    assert (head, switches) == ("5 1 4", "4")
    assert links[2] == "4 2 200000000000bps 0.000750000ms 0"
    with pytest.raises(InputError, match=r"single Switch only.*Ring of 4"):
        write_ns3_topology(tmp_path / "t", switch(topology=Topology.RING))


def test_ns3_settings_of_ours_follow_the_rates(tmp_path):
    write_ns3_topology(tmp_path / "topology.txt", switch())
    write_ns3_config(tmp_path / "ns3.txt", None, tmp_path / "topology.txt")
    keys = dict(line.split(" ", 1) for line in (tmp_path / "ns3.txt").read_text().splitlines())
    assert keys["KMAX_MAP"] == "1 200000000000 3200"
    assert keys["FCT_OUTPUT_FILE"] == "fct.txt"
    assert all((tmp_path / keys[name]).is_file() for name in ("TOPOLOGY_FILE", "FLOW_FILE", "TRACE_FILE"))


def test_a_users_ns3_settings_are_kept_inputs_found_outputs_moved(tmp_path):
    home, run = tmp_path / "scratch" / "config", tmp_path / "run"
    for folder in (home, run, tmp_path / "build" / "scratch", tmp_path / "scratch" / "topology"):
        folder.mkdir(parents=True)
    physical = tmp_path / "scratch" / "topology" / "star.txt"
    physical.write_text("5 1 4\n")
    (home / "flow.txt").write_text("0\n")
    given = home / "config.txt"
    given.write_text(
        "CC_MODE 3\n\nTOPOLOGY_FILE ../../scratch/topology/star.txt\nFLOW_FILE flow.txt\n"
        "FCT_OUTPUT_FILE ../../scratch/output/fct.txt\nBUFFER_SIZE 32\n"
    )
    write_ns3_config(run / "ns3.txt", given, run / "topology.txt")
    lines = (run / "ns3.txt").read_text().splitlines()
    assert lines[:2] == ["CC_MODE 3", ""]
    assert f"TOPOLOGY_FILE {physical}" in lines
    assert f"FLOW_FILE {home / 'flow.txt'}" in lines
    assert "BUFFER_SIZE 32" in lines
    assert [line for line in lines if line.startswith("FCT")] == ["FCT_OUTPUT_FILE fct.txt"]
    physical.unlink()
    with pytest.raises(InputError, match="TOPOLOGY_FILE names"):
        write_ns3_config(run / "ns3.txt", given, run / "topology.txt")


def test_htsim_gets_a_tree_of_one_switch(tmp_path):
    write_htsim_topology(tmp_path / "t.topo", replace(switch(), dimensions=switch(8).dimensions))
    text = (tmp_path / "t.topo").read_text()
    assert text.startswith("Nodes 8\n")
    assert "Downlink_speed_Gbps 200\nDownlink_Latency_ns 750\nRadix_Down 8\nRadix_Up 1\nOversubscribed 8\n" in text
