"""The adapter as a whole: with a program that replays recorded runs, and with ASTRA-sim itself where there is one."""

import os
from dataclasses import replace

import numpy as np
import pytest
from astra_fake import OUTPUTS, fake, replaying, working
from astra_random import case, compare

from genie.core.netmodel import Dimension, DimensionModel, Estimate, FabricModel, Link, Topology
from genie.core.system import Profile, System
from genie.core.timeline import UNKNOWN
from genie.core.workload import CollectiveKind, NodeKind
from genie.errors import InputError, NotReadyError, RunError
from genie.formats.astra import read_network, read_system
from genie.formats.workload import load_workload
from genie.lower import lower
from genie.patterns import collective, generate
from genie.simulate import astra
from genie.simulate.astra import AstraSim
from genie.simulate.astra_binary import FrontEnd
from genie.simulate.astra_process import Limits
from genie.simulate.builtin import simulate as builtin
from genie.simulate.compare import first_parting
from genie.units import astra_gbps_to_bps

needs_astra = pytest.mark.skipif(
    not os.environ.get("GENIE_ASTRA_SIM"), reason="needs ASTRA-sim: GENIE_ASTRA_SIM names its folder"
)


def network(topology=Topology.RING, ranks=4, aware=False):
    return DimensionModel((Dimension(topology, ranks, Estimate(astra_gbps_to_bps(50.0)), Estimate(500.0)),), aware)


def system(algorithm="ring", **more):
    names = dict.fromkeys(list(CollectiveKind), (algorithm,))
    return System(**({"splits": 1, "algorithms": names, "local_mem_bytes_per_s": 1.6e12} | more))


def schedule(pattern, ranks=4, size=1 << 20, rules=None, **more):
    return lower(generate(pattern, ranks, size), rules or system(**more))


def run(tmp_path, code, **using):
    program = AstraSim(fake(tmp_path, code), **using)
    return astra.simulate(schedule("data_parallel"), network(), tmp_path / "a", program)


def test_a_recorded_run_becomes_the_same_timeline_as_the_builtin_simulators(tmp_path):
    work = schedule("data_parallel")
    found = astra.simulate(work, network(), tmp_path / "a", AstraSim(replaying(tmp_path, "data_parallel_unaware")))
    ours, theirs = builtin(work, network()), found.timeline
    assert theirs.executor == "astra-sim"
    for table, names in ((("ranks"), ours.ranks.SCHEMA), ("operators", ours.operators.SCHEMA)):
        for name in names:
            assert getattr(getattr(ours, table), name).tolist() == getattr(getattr(theirs, table), name).tolist()
    assert len(theirs.messages) == 0
    assert found.about["front_end"] == "unaware"
    assert found.about["statistics"]["0"]["Wall time"] == theirs.ranks.finish_ns[0]


def test_a_traces_own_sends_become_messages(tmp_path):
    work = schedule("incast")
    network_ = network(Topology.SWITCH, aware=False)
    found = astra.simulate(work, network_, tmp_path / "a", AstraSim(replaying(tmp_path, "incast_aware")))
    ours = builtin(work, network(Topology.SWITCH, aware=True)).messages
    theirs = found.timeline.messages
    columns = ("src", "dst", "tag", "size_bytes", "index", "node_id", "posted_ns", "delivered_ns")
    rows = [sorted(zip(*(getattr(table, c).tolist() for c in columns), strict=True)) for table in (ours, theirs)]
    assert rows[0] == rows[1]


def test_the_files_say_what_the_schedule_says(tmp_path):
    dims = (Dimension(Topology.RING, 4, Estimate(123456789012.0), Estimate(0.5)),)
    rules = system("direct2", splits=3, active_chunks=2, queues_per_dim=2, endpoint_delay_ns=7, peak_flops=0.3e12)
    work = lower(generate("tensor_parallel", 4, 1 << 20), rules)
    with pytest.raises(InputError, match="ranks finished"):
        astra.simulate(work, DimensionModel(dims), tmp_path / "a", AstraSim(fake(tmp_path, "")))
    assert read_network(tmp_path / "a" / "network.yml") == DimensionModel(dims)
    again = read_system(tmp_path / "a" / "system.json", queues_per_dim=2)
    known = {kind: names for kind, names in rules.algorithms.items() if kind in again.algorithms}
    assert again == replace(rules, algorithms=known)
    groups = tmp_path / "a" / "comm_groups.json"
    written = load_workload(tmp_path / "a" / "workload", comm_groups=groups if groups.is_file() else None)
    for mine, theirs in zip(work.workload.traces, written.traces, strict=True):
        for name, column in mine.nodes.columns().items():
            assert column.tolist() == theirs.nodes.columns()[name].tolist()
        assert mine.deps.tolist() == theirs.deps.tolist()


def test_what_astra_sim_cannot_do_is_refused_before_it_runs(tmp_path):
    using = AstraSim(fake(tmp_path, ""))
    cases = {
        "profile overlap": schedule("data_parallel", profile=Profile.OVERLAP),
        "cannot run BARRIER": lower(collective(CollectiveKind.BARRIER, 4, 1), system(extended=True)),
        "no model of BROADCAST": lower(collective(CollectiveKind.BROADCAST, 4, 64), system(extended=True)),
    }
    for number, (message, work) in enumerate(cases.items()):
        with pytest.raises(InputError, match=message):
            astra.simulate(work, network(), tmp_path / str(number), using)
        assert not (tmp_path / str(number)).exists()
    with pytest.raises(InputError, match="asks for aware"):
        astra.simulate(schedule("incast"), network(aware=True), tmp_path / "x", using)
    fabric = FabricModel(2, (Link("a", Estimate(1e9)),), {})
    with pytest.raises(InputError, match="not a fabric"):
        astra.simulate(schedule("all_reduce", 2), fabric, tmp_path / "y", using)


UNFINISHED = """
for rank in range(4):
    print(f"sys[{rank}] finished, 5 cycles, exposed communication 5 cycles.")
open("ticks.log", "w").write("issue,sys->id=0, tick=0, node->id=0, node->name=x, node->type=4")
"""


@pytest.mark.parametrize(
    ("code", "limits", "kind", "message"),
    [
        ("time.sleep(60)", Limits(0.5), RunError, "stopped after 0.5 s; 0 of 4"),
        ("os.abort()", Limits(), RunError, "SIGABRT"),
        ("print('sys[0] finished, 5 cycles, exposed communication 5 cycles.')", Limits(), InputError, "1 of 4"),
        ("print('sys[0] fini', end='')", Limits(), InputError, "0 of 4"),
        (
            "sys.stderr.write('x: error while loading shared libraries: y'); sys.exit(127)",
            Limits(),
            NotReadyError,
            "library",
        ),
        (UNFINISHED, Limits(), InputError, "node 0 .* never ended"),
    ],
)
def test_bad_days(tmp_path, code, limits, kind, message):
    with pytest.raises(kind, match=message):
        run(tmp_path, code, limits=limits)
    assert (tmp_path / "a" / "stdout.txt").is_file()


def test_without_ticks_there_are_ranks_but_no_operators_and_a_note(tmp_path):
    code = "[print(f'sys[{r}] finished, 5 cycles') for r in range(4)]"
    timeline = run(tmp_path, code).timeline
    assert timeline.ranks.finish_ns.tolist() == [5] * 4
    assert timeline.ranks.exposed_ns.tolist() == [UNKNOWN] * 4
    assert len(timeline.operators) == 0
    assert timeline.notes


def test_a_workload_that_finishes_without_its_cycle_is_noticed(tmp_path):
    work = schedule("data_parallel", 2)
    program = replaying(tmp_path, "cycle_beside_free_node")
    assert (OUTPUTS / "cycle_beside_free_node" / "exit_code").read_text() == "0\n"
    with pytest.raises(InputError, match="never ran"):
        astra.simulate(work, network(ranks=2), tmp_path / "a", AstraSim(program))


@needs_astra
@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.parametrize("pattern", ["data_parallel", "pipeline", "tensor_parallel", "mixture_of_experts", "incast"])
@pytest.mark.parametrize("rules", [{}, {"algorithm": "direct", "splits": 4, "active_chunks": 2}])
def test_astra_sim_itself_gives_the_builtin_simulators_cycles(tmp_path, pattern, aware, rules):
    work = schedule(pattern, **rules)
    model = network(Topology.SWITCH, aware=aware)
    ours, theirs = builtin(work, model), astra.simulate(work, model, tmp_path / "a", AstraSim()).timeline
    assert np.array_equal(ours.ranks.finish_ns, theirs.ranks.finish_ns)
    assert np.array_equal(ours.ranks.exposed_ns, theirs.ranks.exposed_ns)
    assert first_parting(ours, theirs) is None
    assert int((work.workload.traces[0].nodes.kind == NodeKind.COMP).sum()) <= len(theirs.operators)


def check_messages(work, model, found):
    """The run was handed messages: operators are the trace's, messages those of the builtin simulator."""
    ours, theirs = builtin(work, model), found.timeline
    assert theirs.operators.node_id.tolist() == ours.operators.node_id.tolist()
    assert theirs.ranks.finish_ns.tolist() == ours.ranks.finish_ns.tolist()
    assert theirs.ranks.exposed_ns.tolist() == ours.ranks.exposed_ns.tolist()
    columns = ("src", "dst", "size_bytes", "node_id", "chunk", "phase", "step", "posted_ns", "delivered_ns")
    rows = [
        sorted(zip(*(getattr(table, c).tolist() for c in columns), strict=True))
        for table in (ours.messages, theirs.messages)
    ]
    assert rows[0] == rows[1]
    assert first_parting(ours, theirs) is None
    assert "the same iteration time" in theirs.notes[-1]


NS3 = """
# ASTRA-sim + NS3
given = dict(word[2:].split("=") for word in sys.argv[1:])
settings = dict(line.split(" ", 1) for line in open(given["network-configuration"]))
assert open(settings["TOPOLOGY_FILE"].strip()).readline() == "5 1 4\\n"
open(settings["FCT_OUTPUT_FILE"].strip(), "w").write(
    "0b000001 0b000101 10000 100 65536 1000 4000 3000\\n0b000101 0b000201 10000 100 65536 2000 4000 3000\\n"
    "0b000001 0b000101 10001 100 65536 3000 4000 3000\\n")
for rank in range(4):
    print(f"sys[{rank}] finished, 9000 cycles")
"""

HTSIM = """
# HTSimNetworkApi
assert sys.argv[-3:] == ["--htsim_opts", "-topo", "topology.topo"] and os.path.exists("topology.topo")
print("Send flow 1 from 0 to 1 with size 65536\\nFlow tcp finished at 0.005\\nFinish sending flow 1 from 0 to 1")
for rank in range(4):
    print(f"sys[{rank}] finished, 9000 cycles")
"""


@pytest.mark.parametrize(
    ("code", "rows"),
    [
        (NS3, [(0, 1, 0, 10000, 1000, 5000), (1, 2, 0, 10000, 2000, 6000), (0, 1, 1, 10001, 3000, 7000)]),
        (HTSIM, [(0, 1, 0, 1, UNKNOWN, 5000)]),
    ],
    ids=["ns3", "htsim"],
)
def test_flows_of_packet_simulators_become_messages(tmp_path, code, rows):
    program = fake(tmp_path, code)
    text = program.read_text().replace("CongestionUnawareNetworkApi ", "")
    program.write_text(text)
    kind = FrontEnd.NS3 if code == NS3 else FrontEnd.HTSIM
    using = AstraSim(program, kind)
    timeline = astra.simulate(schedule("all_reduce"), network(Topology.SWITCH), tmp_path / "a", using).timeline
    messages = timeline.messages
    names = ("src", "dst", "index", "flow", "posted_ns", "delivered_ns")
    assert list(zip(*(getattr(messages, name).tolist() for name in names), strict=True)) == rows
    with pytest.raises(InputError, match="single Switch"):
        astra.simulate(schedule("all_reduce"), network(Topology.RING), tmp_path / "b", using)


def test_messages_in_place_of_collectives_tell_when_each_was_sent(tmp_path):
    work, model = schedule("tensor_parallel"), network()
    found = astra.simulate(work, model, tmp_path / "a", AstraSim(working(tmp_path), point_to_point=True))
    check_messages(work, model, found)


@needs_astra
@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.parametrize("algorithm", ["ring", "halvingDoubling"])
@pytest.mark.parametrize("pattern", ["tensor_parallel", "all_reduce", "reduce_scatter"])
def test_messages_in_place_of_collectives_with_astra_sim_itself(tmp_path, pattern, algorithm, aware):
    work = schedule(pattern, algorithm=algorithm)
    model = network(Topology.RING if algorithm == "ring" else Topology.SWITCH, aware=aware)
    found = astra.simulate(work, model, tmp_path / "a", AstraSim(point_to_point=True))
    check_messages(work, model, found)


@needs_astra
@pytest.mark.parametrize("seed", range(1, 41))
def test_random_jobs_agree_with_astra_sim_itself(tmp_path, seed):
    outcome, details = compare(case(seed), tmp_path / "a")
    assert outcome in {"agree", "both fail", "ASTRA-sim's own bug"}, details
