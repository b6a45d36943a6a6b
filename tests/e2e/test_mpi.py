"""Replays whose ranks mpirun starts, on namespaces that play hosts: of an emulated fabric, and of a lab."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from genie.core.testbed import Endpoint
from genie.formats.runfile import open_run
from genie.replay.mpi import namespace_agent
from genie.testbed.emulated import EmulatedFabric
from genie.testbed.files import load_testbed

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun: apt-get install openmpi-bin"),
]

ROOT = Path(__file__).resolve().parents[2]
PAIRS = """
name: pairs
kind: emulated
topology: { kind: single-switch, hosts: 2 }
links: { host: { rate: 100 Gb/s, delay: 1 us } }
ranks_per_host: 2
intra_host: { rate: 400 Gb/s, delay: 500 ns }
dilation: 2000
mtu: 9000
"""
SHIFT_S = 1000
RANK = "genie.commands.mpi_rank"


def genie(*arguments, cwd, prefix=()):
    command = [*prefix, sys.executable, "-m", "genie", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd)


def outcome(process):
    out, err = process.communicate(timeout=90)
    return process.returncode, out, err


@pytest.fixture
def experiment(tmp_path):
    """A data-parallel step of four ranks on two hosts."""
    made = genie("trace", "generate", "data_parallel", "w", "--ranks", 4, "--size", "2 MiB", cwd=tmp_path)
    assert outcome(made)[0] == 0
    (tmp_path / "testbed.yml").write_text(PAIRS)
    file = tmp_path / "experiment.yaml"
    file.write_text(
        f"name: small\nworkload: {{ traces: {tmp_path}/w }}\nsystem: {ROOT}/astra_configs/system/ring.json\n"
        f"testbed: testbed.yml\nreplay: {{ warmup: 0, repeats: 1 }}\n"
    )
    return file


def job_processes():
    """(process, its number in the job) of all Python processes that mpirun started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            place = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", (folder / "environ").read_bytes())
        except OSError:
            continue
        if RANK.encode() in command and place:
            found.append((int(folder.name), int(place[1])))
    return found


def test_ranks_that_mpirun_starts_do_what_forked_ones_do(experiment):
    code, out, err = outcome(genie("replay", experiment, "--launcher", "mpi", "--json", cwd=experiment.parent))
    assert code == 0, err
    by_mpi = json.loads(out)
    code, out, err = outcome(genie("replay", experiment, "--json", cwd=experiment.parent))
    assert code == 0, err
    forked = json.loads(out)
    assert all(check["ok"] or not check["hard"] for check in by_mpi["checks"])
    mine, theirs = (open_run(Path(experiment.parent, run["run"])).timeline().messages for run in (by_mpi, forked))
    for column in ("src", "dst", "tag", "size_bytes"):
        assert sorted(getattr(mine, column)) == sorted(getattr(theirs, column))
    assert not job_processes()


def test_a_killed_rank_ends_the_job_and_is_named(experiment):
    text = experiment.read_text().replace("repeats: 1", "repeats: 2000")
    experiment.write_text(text)
    process = genie("replay", experiment, "--launcher", "mpi", cwd=experiment.parent)
    assert any("iteration 2 of" in line for line in process.stderr), "it never got going"
    victim = next(pid for pid, number in job_processes() if number == 3)
    os.kill(victim, signal.SIGKILL)
    code, _, err = outcome(process)
    assert code == 4, err
    assert "rank 2" in err
    assert open_run(next((experiment.parent / "runs").iterdir())).status == "failed"
    assert not job_processes()


def lab_of(fabric, folder):
    """A lab file of the fabric's hosts, and an agent that mpirun reaches them by; the second has a clock of its own."""
    hosts = [(host, fabric.address(host)) for host in ("h0", "h1")]
    lines = [
        f"  - {{ name: {host}, management: {address}, ranks: 2, nics: [{{ address: {address}, rate: 1 Gb/s }}] }}"
        for host, address in hosts
    ]
    (folder / "lab.yml").write_text("name: two-hosts\nkind: lab\nhosts:\n" + "\n".join(lines) + "\n")
    held = [(address, fabric.namespace_fd(host)) for host, address in hosts]
    agent = folder / "agent"
    shifted = f"[ $host = {hosts[1][1]} ] && clock='unshare --time --monotonic {SHIFT_S}'\nexec $clock nsenter"
    agent.write_text(namespace_agent(os.getpid(), held).replace("exec nsenter", shifted))
    agent.chmod(0o700)
    return agent, ("nsenter", f"--net=/proc/{os.getpid()}/fd/{held[0][1]}")


def test_a_lab_s_hosts_have_clocks_of_their_own(experiment):
    folder = experiment.parent
    with EmulatedFabric(load_testbed(folder / "testbed.yml")) as fabric:
        agent, inside = lab_of(fabric, folder)
        interface = fabric.nics()[Endpoint("h0")].name
        options = ("--testbed", "lab.yml", "--launcher", "mpi", "--rsh", agent, "--interface", interface)
        code, out, err = outcome(genie("replay", experiment, *options, "--json", cwd=folder, prefix=inside))
    assert code == 0, err
    run = open_run(Path(folder, json.loads(out)["run"]))
    clocks = run.table("clocks")
    assert clocks["rank"].tolist() == [0, 1, 2, 3]
    for offset_ns, bound_ns, rank in zip(clocks["offset_ns"], clocks["bound_ns"], clocks["rank"], strict=True):
        assert abs(offset_ns - (SHIFT_S * 10**9 if rank >= 2 else 0)) <= bound_ns
    messages = run.timeline().messages
    assert (messages.delivered_ns >= messages.posted_ns).all()
    assert len(messages) > 0


def test_the_loop_closes_on_a_lab(experiment):
    """Namespaces play it: what its links do is not known, and is found."""
    folder = experiment.parent
    net = "topology: [Switch]\nnpus_count: [4]\nbandwidth: [5.8]\nlatency: [200]\n"
    (folder / "net.yml").write_text(net)
    experiment.write_text(experiment.read_text() + "network: { model: aware, file: net.yml }\nloop: { rounds: 2 }\n")
    with EmulatedFabric(load_testbed(folder / "testbed.yml")) as fabric:
        agent, inside = lab_of(fabric, folder)
        interface = fabric.nics()[Endpoint("h0")].name
        options = ("--testbed", "lab.yml", "--launcher", "mpi", "--rsh", agent, "--interface", interface)
        code, out, err = outcome(genie("loop", experiment, *options, "--json", cwd=folder, prefix=inside))
    assert code == 0, err
    rounds = json.loads(out)["rounds"]
    assert abs(rounds[-1]["error"]) < abs(rounds[0]["error"])


def test_a_lab_s_ranks_cannot_be_forked(experiment):
    (experiment.parent / "lab.yml").write_text(
        "name: far\nkind: lab\nhosts: [{ name: a, management: a, ranks: 4, nics: [{ address: 192.0.2.1 }] }]\n"
    )
    code, _, err = outcome(genie("replay", experiment, "--testbed", "lab.yml", cwd=experiment.parent))
    assert code == 3
    assert "--launcher mpi" in err


def test_traffic_goes_only_to_hosts_of_the_testbed(experiment):
    (experiment.parent / "hosts").write_text("h0 slots=2\n192.0.2.9 slots=2\n")
    options = ("--launcher", "mpi", "--hostfile", "hosts")
    code, _, err = outcome(genie("replay", experiment, *options, cwd=experiment.parent))
    assert code == 2
    assert "192.0.2.9" in err
