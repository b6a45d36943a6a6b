"""A link flaps in the middle of a replay: with another way the run ends well, without it fails and says why."""

from pathlib import Path

import pytest

from genie.errors import InputError
from genie.formats.experiment import load_experiment
from genie.formats.runfile import RunWriter, open_run
from genie.hosts import Lab
from genie.loading import load
from genie.stages import run_replay

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.netns

EXPERIMENT = """
name: flapping
workload: {{ traces: {root}/traces/quickstart/step }}
system: {root}/astra_configs/system/ring.json
testbed: {root}/testbed/leaf-spine-8.yml
replay: {{ warmup: 0, repeats: 1, stall_timeout_s: 1.5 }}
faults:
  - {fault}
"""


def experiment(tmp_path, fault):
    path = tmp_path / "experiment.yaml"
    path.write_text(EXPERIMENT.format(root=ROOT, fault=fault))
    return load_experiment(path)


def replayed(tmp_path, fault):
    loaded = load(experiment(tmp_path, fault))
    run = RunWriter(tmp_path / "run", "replay", "flapping")
    with Lab(loaded.testbed, "root") as lab:
        hosting = lab.hosting(len(loaded.schedule.ranks), loaded.experiment.replay)
        result = run_replay(loaded.schedule, loaded.testbed, hosting, loaded.experiment.replay, run)
    return result, open_run(run.path)


def test_a_flapping_link_between_switches_moves_the_routes_and_the_run_ends_well(tmp_path):
    result, run = replayed(
        tmp_path, "{ kind: flap, target: leaf0-spine0, start: 200 us, end: 700 us, period: 250 us, reroute: 20 us }"
    )
    assert result.error is None
    table = run.table("faults")
    assert table["action"].tolist() == ["begin", "reroute", "end", "reroute"] * 2
    assert all(late >= 0 for late in (table["happened_ns"] - table["planned_ns"]).tolist())
    assert run.status == "ok"


def test_a_flapping_link_without_another_way_fails_the_run_with_the_reason(tmp_path):
    result, run = replayed(
        tmp_path, "{ kind: flap, target: h0-leaf0, start: 200 us, end: 500 ms, period: 499 ms, reroute: never }"
    )
    assert "nothing has moved" in str(result.error)
    assert "Faults of the experiment were on: flap of h0-leaf0 since 200000 ns." in str(result.error)
    assert run.status == "failed"
    assert run.table("faults")["action"].tolist()[:2] == ["begin", "undone"]
    assert len(run.timeline().messages) > 0


def test_a_wrong_target_is_found_before_anything_runs(tmp_path):
    with pytest.raises(InputError, match="strikes nothing"):
        load(experiment(tmp_path, "{ kind: flap, target: h0-leaf7, end: 500 us, period: 10 us }"))


def test_faults_are_part_of_the_replay_rule(tmp_path):
    made = experiment(tmp_path, "{ kind: kill, target: rank 3, start: 1 us }")
    assert made.replay.faults[0].target == "rank 3"


def test_counters_are_sampled_during_a_replay(tmp_path):
    _, run = replayed(tmp_path, "{ kind: rate, target: h0>leaf0, start: 0 us, end: 1 us, rate: 190 Gb/s }")
    samples, machine = run.table("link_samples"), run.table("machine_samples")
    assert set(samples["link"].tolist()) == set(run.table("links")["link"].tolist())
    assert (samples["utilisation"] >= 0).all()
    counted, totals = run.table("counters"), samples["sent_bytes"].sum()
    assert 0 < totals <= counted["sent_bytes"].sum()
    assert (machine["end_ns"] > machine["begin_ns"]).all()
    assert machine["softirq_net_rx"].sum() > 0
