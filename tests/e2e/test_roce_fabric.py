"""RoCE from end to end on the emulated fabric: a replay, its capture, and what is read from that."""

from pathlib import Path

import pytest

from genie.core.experiment import ReplayRule
from genie.core.system import System
from genie.core.workload import CollectiveKind
from genie.formats.pcap import read_capture
from genie.formats.roce_capture import roce_packets, wrong_icrcs
from genie.formats.runfile import RunWriter, open_run
from genie.hosts import Lab
from genie.lower import lower
from genie.patterns import generate
from genie.report.wire import analyse, compare
from genie.stages import run_replay
from genie.testbed.files import load_testbed

ROOT = Path(__file__).resolve().parents[2]
SIZE_BYTES = 1 << 20
RANKS = 4

pytestmark = pytest.mark.netns


def ring():
    names = dict.fromkeys(CollectiveKind, ("ring",))
    system = System(splits=1, algorithms=names, local_mem_bytes_per_s=1.6e12, extended=True)
    return lower(generate("all_reduce", RANKS, SIZE_BYTES), system)


@pytest.mark.parametrize("options", [{}, {"recovery": "selective", "operation": "send", "ports": "hash", "mtu": 1024}])
def test_a_replay_over_roce_is_seen_on_the_wire_as_it_was_recorded(tmp_path, options):
    testbed = load_testbed(ROOT / "testbed/leaf-spine-8.yml")
    rule = ReplayRule(warmup=1, repeats=2, transport="roce", verify=True, options=options)
    run = RunWriter.create(tmp_path, "replay", "ring")
    with Lab(testbed) as lab:
        hosting = lab.hosting(RANKS, rule)
        with lab.recording("h0", tmp_path / "captures") as recorder:
            result = run_replay(ring(), testbed, hosting, rule, run)
    assert result.error is None, result.error
    assert recorder.notes == []
    assert sum(counts["icrc_errors"] + counts["malformed"] for counts in result.statistics.values()) == 0
    table = open_run(run.path).table("transport")
    assert (table["taken"] > 0).all()
    capture = read_capture(recorder.files[0])
    seen = roce_packets(capture)
    assert wrong_icrcs(capture, seen)[0] == 0
    wire = analyse(seen)
    sent, received = (
        wire.messages[wire.flows.src.iloc[wire.messages.flow].to_numpy() == end] for end in (ADDRESS, LEFT)
    )
    messages = result.timeline.messages
    per_iteration = int((messages.src == 0).sum()) // 2
    assert len(sent) == len(received) == 3 * per_iteration
    if options.get("operation") == "send":
        return
    ports = {int(port): (0, 1) for port in wire.flows.sport[wire.flows.src == ADDRESS]}
    joined = compare(wire, messages, ports, {(1, 0): hosting.places[0].delays_ns[1]}, testbed.dilation)
    assert len(joined) == 2 * per_iteration
    assert (joined.wire_fct_ns > 0).all()
    assert (joined.run_fct_ns > 0).all()


ADDRESS = "10.0.0.1"
LEFT = "10.0.0.13"
