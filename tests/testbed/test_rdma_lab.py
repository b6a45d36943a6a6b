"""The rdma-lab: a guest with Soft-RoCE boots here, runs commands, and the verbs transport's own tests inside."""

import os
import re
import sys
import time
from pathlib import Path

import pytest

from genie.cli import main
from genie.errors import RunError
from genie.testbed import rdma_vm
from genie.testbed.rdma_vm import GuestOptions, inside_guest, run_in_guest

REPOSITORY = Path(__file__).resolve().parents[2]
GUEST_TESTS = REPOSITORY / "tests" / "replay" / "transports" / "verbs_in_guest.py"


pytestmark = pytest.mark.usefixtures("rdma_lab")


@pytest.fixture
def guest(tmp_path):
    """Run words in a guest: (exit code, what they printed)."""

    def run(*words, timeout_s=60.0, memory_bytes=512 << 20):
        with (tmp_path / "output").open("w+b") as output:
            code = run_in_guest(
                words, tmp_path / "share", GuestOptions(memory_bytes, timeout_s, folder=REPOSITORY), output
            )
            output.seek(0)
            return code, output.read().decode(errors="replace")

    return run


def test_a_command_runs_and_its_exit_code_comes_back(guest, tmp_path):
    code, said = guest("sh", "-c", "echo 'hello $there' && uname -r && exit 7")
    assert code == 7
    assert said.startswith("hello $there\n6.")
    assert not inside_guest()
    assert list((tmp_path / "share").iterdir()) == []


def test_only_the_shared_folder_is_written_to_for_real(guest, tmp_path):
    words = f"echo kept > {tmp_path}/share/file; echo lost > {tmp_path}/file; cat {tmp_path}/file"
    code, said = guest("sh", "-c", words)
    assert (code, said.splitlines()[0]) == (0, "lost")
    assert (tmp_path / "share" / "file").read_text() == "kept\n"
    assert not (tmp_path / "file").exists()


def test_a_guest_stays_on_one_processor_and_we_do_not(guest, monkeypatch):
    """Its processor is looked at from outside, while it runs."""
    before, seen = os.sched_getaffinity(0), []

    def look(process, *_):
        seen.append(os.sched_getaffinity(process.pid))
        process.wait(60)

    monkeypatch.setattr(rdma_vm, "_await", look)
    assert guest("true")[0] == 0
    assert [len(allowed) for allowed in seen] == [1]
    assert os.sched_getaffinity(0) == before


def test_a_guest_that_takes_too_long_is_ended(guest):
    before = time.monotonic()
    with pytest.raises(RunError, match=r"ended after 3 s.* Its last words: waiting"):
        guest("sh", "-c", "echo; echo waiting; sleep 1000", timeout_s=3)
    assert time.monotonic() - before < 30


def test_a_guest_that_dies_is_told(guest):
    with pytest.raises(RunError, match="the guest died before the command ended"):
        guest("busybox", "poweroff", "-f")


def test_the_verbs_transport_on_real_verbs(guest):
    """The conformance suite twice, paths, and what goes wrong; no test may be skipped there."""
    words = (sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", str(GUEST_TESTS))
    code, said = guest(*words, timeout_s=600, memory_bytes=2 << 30)
    print(said)  # noqa: T201 - for people who look why it failed
    assert code == 0, said
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None
    assert int(passed[1]) > 90
    assert "skipped" not in said


def test_a_fabric_that_delays_loses_and_marks(tmp_path, monkeypatch, capfd):
    bed = tmp_path / "bed.yml"
    bed.write_text(
        "name: three\nkind: emulated\ntopology: { kind: single-switch, hosts: 3 }\n"
        "links: { host: { rate: 200 Mb/s, delay: 0 us, buffer: 1 MiB } }\ndilation: 1\nmtu: 4200\n"
    )
    tests = GUEST_TESTS.with_name("impaired_in_guest.py")
    command = [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", str(tests)]
    kind = ["--kind", "rdma-vm", "--share", str(tmp_path / "share"), "--delay", "5 ms", "--loss", "0.01"]
    words = ["testbed", "up", *kind, "--mark", "20 kB", str(bed), "--", *command]
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(sys, "argv", ["genie", *words])
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capfd.readouterr()
    assert ended.value.code == 0, said
    assert "3 passed" in said.out
    assert "switch0: ip netns exec switch0 COMMAND" in said.err
