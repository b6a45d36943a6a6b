"""The main job on a small scale: fabric, processes, sockets, fit, report."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from genie.formats.runfile import open_run

ROOT = Path(__file__).resolve().parents[2]

EXPERIMENT = """
name: small
workload: {{ traces: {traces} }}
system: {root}/astra_configs/system/{algorithm}.json
network: {{ model: {model}{file} }}
testbed: {testbed}
replay: {{ warmup: 1, repeats: 2, stall_timeout_s: 4 }}
loop: {{ rounds: 2, tolerance: 0.001, gain: 0.0 }}
"""

TESTBED = """
name: two-leaves
kind: emulated
topology: { kind: leaf-spine, hosts: 4, leaves: 2, spines: 2 }
links: { host: { rate: 100 Gb/s, delay: 1 us }, fabric: { rate: 100 Gb/s, delay: 1 us } }
dilation: 2000
mtu: 9000
"""


def run(*arguments, cwd, **environment):
    command = [sys.executable, "-m", "genie", *map(str, arguments)]
    env = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120, check=False, env=env)


def prepare(folder, pattern="data_parallel", size="2 MiB", algorithm="ring", model="aware"):
    run("trace", "generate", pattern, folder / "w", "--ranks", 4, "--size", size, cwd=folder)
    (folder / "net.yml").write_text("topology: [Ring]\nnpus_count: [4]\nbandwidth: [5.8]\nlatency: [200]\n")
    (folder / "testbed.yml").write_text(TESTBED)
    file = f", file: {folder}/net.yml" if model != "fabric" else ""
    text = EXPERIMENT.format(
        traces=folder / "w", root=ROOT, algorithm=algorithm, model=model, file=file, testbed=folder / "testbed.yml"
    )
    (folder / "experiment.yaml").write_text(text)
    return folder / "experiment.yaml"


@pytest.mark.netns
def test_the_loop_closes(tmp_path):
    done = run("loop", prepare(tmp_path, "all_reduce", "4 MiB"), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert abs(found["rounds"][0]["error"]) > 0.3, "the first prediction is deliberately wrong"
    assert abs(found["rounds"][1]["error"]) < 0.3, "noise of a busy machine aside, the second is right"
    assert found["stopped"]
    fitted = {row["name"]: row for row in found["rounds"][1]["fitted"]}
    assert fitted["dimension 0 bandwidth"]["value"] == pytest.approx(100e9, rel=0.3)
    assert Path(tmp_path, found["network_file"]).read_text().count("topology") == 1
    assert "Calibrated model" in Path(tmp_path, found["report"]).read_text()
    replayed = open_run(tmp_path / found["rounds"][1]["run"])
    assert all(check["ok"] for check in replayed.meta["checks"] if check["hard"])
    assert len(replayed.timeline().messages) == 2 * 4 * 6


@pytest.mark.netns
def test_the_fabric_model_knows_shared_links(tmp_path):
    done = run("loop", prepare(tmp_path, "shift", "4 MiB", model="fabric"), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = [row["name"] for row in json.loads(done.stdout)["rounds"][-1]["fitted"]]
    assert names == ["fabric link capacity", "host link capacity", "overhead a message"]


def test_loopback_with_pacing_where_no_namespace_is_allowed(tmp_path):
    """Forced here through the library, as a privileged process cannot forget its privileges."""
    script = (
        "import sys; from pathlib import Path; import genie.testbed.namespaces as n, genie.cli as c;"
        "n.capability = lambda: ('none', 'forced');"
        f"c.main(['replay', {str(prepare(tmp_path))!r}, '--json'])"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "loopback with user-space pacing" in done.stderr
    found = json.loads(done.stdout)
    assert len(found["ranks"]) == 4
    assert all(check["ok"] for check in found["checks"] if check["hard"])


@pytest.mark.netns
def test_a_receive_without_a_send_is_told_and_nothing_is_left(tmp_path):
    experiment = prepare(tmp_path, "incast", "1 MiB")
    run("trace", "generate", "shift", tmp_path / "other", "--ranks", 4, "--size", "1 MiB", cwd=tmp_path)
    (tmp_path / "w.3.et").write_bytes((tmp_path / "other.3.et").read_bytes())
    done = run("replay", experiment, cwd=tmp_path)
    assert done.returncode == 4
    assert "nothing has moved" in done.stderr
    assert "rank 0" in done.stderr
    assert "Traceback" not in done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert open_run(folder).status == "failed"


def children(pid):
    out = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(stat[1]) == pid and stat[0] != "Z":
                out.append(int(entry.name))
    return out


def started(tmp_path, experiment):
    command = [sys.executable, "-m", "genie", "replay", str(experiment)]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while len(children(process.pid)) < 4:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr.read()
    return process, children(process.pid)


@pytest.mark.netns
@pytest.mark.parametrize("victim", ["rank", "launcher"])
def test_kill_9_leaves_no_process(tmp_path, victim):
    process, ranks = started(tmp_path, prepare(tmp_path, "all_reduce", "64 MiB"))
    os.kill(ranks[1] if victim == "rank" else process.pid, signal.SIGKILL)
    _, error = process.communicate(timeout=60)
    if victim == "rank":
        assert process.returncode == 4
        assert "rank 1" in error
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < deadline, "ranks outlived their launcher"


@pytest.mark.netns
def test_ctrl_c_ends_in_order(tmp_path):
    process, _ = started(tmp_path, prepare(tmp_path, "all_reduce", "64 MiB"))
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode in {4, 130}
    assert "interrupted" in error
    assert "Traceback" not in error
