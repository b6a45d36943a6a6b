"""A replay of four ranks over real verbs, as a user types it: the command boots the guest by itself."""

import json
import sys
from pathlib import Path

import pytest

from genie.cli import main
from genie.formats.runfile import open_run
from genie.testbed.rdma_vm import GuestOptions, run_in_guest

REPOSITORY = Path(__file__).resolve().parents[2]
GUEST_TESTS = REPOSITORY / "tests" / "replay" / "transports" / "replay_in_guest.py"
BED = """
name: leaf-spine-4
kind: emulated
topology: { kind: leaf-spine, hosts: 4, leaves: 2, spines: 2 }
links:
  host: { rate: 200 Gb/s, delay: 2 us, buffer: 4 MiB }
  fabric: { rate: 200 Gb/s, delay: 2 us, buffer: 4 MiB }
dilation: 400
mtu: 4200
ecmp_seed: 7
"""

pytestmark = pytest.mark.usefixtures("rdma_lab")


@pytest.fixture
def inputs(tmp_path):
    """Four ranks' traces and a testbed with a place for each."""
    with pytest.raises(SystemExit) as ended:
        main(["trace", "generate", "data_parallel", str(tmp_path / "step"), "--ranks", "4", "--size", "64 KiB"])
    assert ended.value.code == 0
    (tmp_path / "bed.yml").write_text(BED)
    return tmp_path


def test_a_replay_over_verbs_of_four_ranks(inputs, monkeypatch, capfd):
    files = ["--system", "astra_configs/system/ring.json", "--testbed", str(inputs / "bed.yml")]
    words = ["replay", "--workload", str(inputs / "step"), *files, "--transport", "verbs", "--repeats", "1"]
    command = [*words, "--transport-option", "ack_timeout=200 ms", "--out", str(inputs / "runs"), "--json"]
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(sys, "argv", ["genie", *command])
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(command)
    said = capfd.readouterr()
    assert ended.value.code == 0, said.err
    results = json.loads(said.out)
    assert all(check["ok"] for check in results["checks"] if check["hard"])
    run = open_run(results["run"])
    assert len(run.timeline().ranks.rank) == 4
    assert [path.name for path in (inputs / "runs").iterdir()] == [Path(results["run"]).name]


def test_its_roce_packets_cross_every_tier_of_switches(inputs):
    words = (sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", str(GUEST_TESTS))
    told = {"GENIE_TEST_TRACES": str(inputs / "step"), "GENIE_TEST_BED": str(inputs / "bed.yml")}
    with (inputs / "output").open("w+b") as output:
        options = GuestOptions(1 << 30, 300, folder=REPOSITORY, environment=told)
        code = run_in_guest(words, inputs / "share", options, output)
    said = (inputs / "output").read_text()
    assert code == 0, said
    assert "4 passed" in said
