"""A whole replay over verbs, watched on the wire: runs inside the rdma-lab's guest (tests/e2e/test_verbs_replay.py)."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from genie.testbed.namespaces import inside

REPOSITORY = Path(__file__).resolve().parents[3]
PATIENCE_S = 60


def switches(pid):
    """Descriptors, opened here, of the network namespaces that a process holds besides its own."""
    own, found = str(Path("/proc/self/ns/net").readlink()), {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        name = str(entry.readlink())
        if name.startswith("net:[") and name != own:
            found.setdefault(name, entry)
    return [os.open(path, os.O_RDONLY) for path in found.values()]


def wait_for(find):
    until = time.monotonic() + PATIENCE_S
    while not (found := find()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


def command(*words):
    """`genie replay` of the traces and the testbed that the test outside has made."""
    given = ["--workload", os.environ["GENIE_TEST_TRACES"], "--testbed", os.environ["GENIE_TEST_BED"]]
    files = ["--system", "astra_configs/system/ring.json"]
    return [sys.executable, "-m", "genie", "replay", *given, *files, "--transport", "verbs", *words]


def test_a_replay_sends_roce_packets_across_every_tier_of_switches(tmp_path):
    with (tmp_path / "said").open("w") as said:
        genie = command("--repeats", "2", "--out", str(tmp_path))
        process = subprocess.Popen(genie, cwd=REPOSITORY, stdout=said, stderr=said)
        wait_for(lambda: len(list(Path("/sys/class/infiniband").glob("rxe*"))) == 4 or process.poll() is not None)
        captures = []
        for number, namespace in enumerate(switches(process.pid)):
            file = tmp_path / f"{number}.pcap"
            watch = ["tcpdump", "-i", "any", "-n", "-s", "80", "-c", "2000", "-w", str(file), "udp", "port", "4791"]
            with inside(namespace):
                captures.append((file, subprocess.Popen(watch, stderr=subprocess.DEVNULL)))
            os.close(namespace)
        code = process.wait(PATIENCE_S * 5)
    for _, capture in captures:
        capture.terminate()
        capture.wait(PATIENCE_S)
    assert code == 0, (tmp_path / "said").read_text()
    assert len(captures) == 4
    for file, _ in captures:
        read = subprocess.run(["tcpdump", "-n", "-r", str(file)], capture_output=True, text=True, check=True)
        assert len(re.findall(r"\.4791: UDP", read.stdout)) > 100


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("device=mlx5_9", "there is no mlx5_9 on this host."),
        ("gid_index=70", "GID index 70 names no GID."),
        ("path_mtu=3000", "a path MTU of 3000 bytes does not exist."),
    ],
)
def test_what_cannot_be_had_is_one_sentence_and_exit_code_3(tmp_path, option, told):
    words = command("--transport-option", option, "--out", str(tmp_path))
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 3, done.stderr
    assert told in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
