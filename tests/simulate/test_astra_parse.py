import gzip

import pytest
from astra_fake import OUTPUTS

from genie.core.timeline import UNKNOWN
from genie.errors import RunError
from genie.simulate.astra_parse import (
    Finish,
    Flow,
    read_htsim_flows,
    read_ns3_flows,
    read_spoken,
    read_ticks,
)


def spoken(case):
    return read_spoken(OUTPUTS / case / "stdout.txt", OUTPUTS / case / "stderr.txt")


def test_finished_ranks_and_statistics():
    said = spoken("data_parallel_unaware")
    assert sorted(said.finished) == [0, 1, 2, 3]
    assert len({finish.finish_ns for finish in said.finished.values()}) == 1
    about = said.statistics[2]
    assert about["Wall time"] == said.finished[2].finish_ns
    assert about["Wall time"] - about["GPU time"] == said.finished[2].exposed_ns
    assert {"Comm time", "Total compute-communication overlap"} <= set(about)
    assert not said.complaints
    assert not said.unreleased


def test_ticks_of_every_node():
    ticks = read_ticks(OUTPUTS / "incast_aware" / "ticks.log")
    assert ticks.issued.keys() == ticks.done.keys()
    assert all(ticks.done[key] > ticks.issued[key] for key in ticks.issued)
    said = spoken("incast_aware")
    for rank, finish in said.finished.items():
        assert finish.finish_ns == max(done for (at, _), done in ticks.done.items() if at == rank)


def test_who_waits_and_in_what():
    said = spoken("missing_participant")
    assert sorted(said.finished) == [3]
    assert said.unreleased == {0: [0], 1: [0], 2: [0]}


def test_swallowed_errors_are_heard():
    said = spoken("swallowed")
    assert len(said.swallowed) == 4
    assert not said.finished


def test_complaints_lose_their_time_stamps():
    assert spoken("missing_trace").complaints == ["workload file: workload/w.4.et does not exist"]
    assert "Assertion" in spoken("ring_of_two_aware").complaints[0]


def test_versions_that_print_less_and_lines_cut_short(tmp_path):
    path = tmp_path / "old.txt"
    path.write_text(
        "ASTRA-sim + NS3\nsys[0] finished, 1082962336 cycles\n"
        "callback,sys->id=1,tick=1082450000,node->id=428,node->name=COMP\nsys[1] fini"
    )
    assert read_spoken(path).finished == {0: Finish(1082962336, UNKNOWN)}
    assert read_ticks(path, tmp_path / "absent").done == {(1, 428): 1082450000}


def test_exposed_time_below_zero_wraps_round(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("sys[0] finished, 1000 cycles, exposed communication 18446744073709551116 cycles.\n")
    assert read_spoken(path).finished == {0: Finish(1000, -500)}


def test_ns3_flows_and_a_last_line_cut_short(tmp_path):
    path = tmp_path / "fct.txt"
    path.write_text("0b000001 0b000101 10000 100 1048576 2000 83773 21368\n0b010001 0b0000")
    assert read_ns3_flows(path) == [Flow(0, 1, 10000, 1 << 20, 2000, 85773)]
    path.write_text("0b010001 0b00ff01 10001 100 64 0 10 5 0\n")
    assert read_ns3_flows(path)[0].src == 256
    assert read_ns3_flows(tmp_path / "absent") == []
    path.write_text("who knows\n")
    with pytest.raises(RunError, match="line 1"):
        read_ns3_flows(path)


@pytest.mark.shared
def test_flows_of_a_real_ns3_run(shared, tmp_path):
    packed = next(shared.glob("traces/simai/**/*_fct.txt.gz"))
    text = gzip.decompress(packed.read_bytes())
    (tmp_path / "fct.txt").write_bytes(text)
    flows = read_ns3_flows(tmp_path / "fct.txt")
    assert len(flows) == text.count(b"\n") == 11667
    assert all(flow.end_ns > flow.start_ns and flow.size_bytes > 0 for flow in flows)


def test_flows_of_a_real_htsim_run():
    flows = read_htsim_flows(OUTPUTS / "all_reduce_htsim" / "stdout.txt")
    assert len(flows) == 4 * 6
    assert {(flow.src + 1) % 4 for flow in flows} == {0, 1, 2, 3}
    assert all(flow.dst == (flow.src + 1) % 4 and flow.size_bytes == 1 << 18 for flow in flows)
    finish = {finish.finish_ns for finish in spoken("all_reduce_htsim").finished.values()}
    assert finish == {49513}
    assert 0 < max(flow.end_ns for flow in flows) <= 49513


def test_htsim_tells_ends_only(tmp_path):
    path = tmp_path / "stdout.txt"
    path.write_text(
        "Send flow 1 from 0 to 1 with size 131072\nSend flow 2 from 1 to 2 with size 131072\n"
        "Flow tcp_src finished at 0.0123456\nFinish sending flow 2 from 1 to 2\n"
        "Flow tcp_src finished at 0.0125\nFinish sending flow 1 from 0 to 1\nFinish sending flow 9 from 0 to 1\n"
    )
    assert read_htsim_flows(path) == [
        Flow(1, 2, 2, 131072, UNKNOWN, 12346),
        Flow(0, 1, 1, 131072, UNKNOWN, 12500),
    ]
