import os
import time
from pathlib import Path

import pytest
from astra_fake import fake

from genie.errors import NotReadyError
from genie.simulate import astra_process
from genie.simulate.astra_process import Limits, run

MEBI = 1 << 20


def test_output_code_and_what_it_took(tmp_path):
    program = fake(tmp_path, "print('out'); print('err', file=sys.stderr); sum(range(10**6)); sys.exit(7)")
    ended = run([str(program)], tmp_path, 1, Limits())
    assert (ended.code, ended.timed_out) == (7, False)
    assert ended.peak_bytes > MEBI
    assert ended.cpu_s > 0
    assert (tmp_path / "stdout.txt").read_text() == "out\n"
    assert (tmp_path / "stderr.txt").read_text() == "err\n"


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("stubborn", [False, True])
def test_the_time_limit_ends_it_and_its_children(tmp_path, monkeypatch, stubborn):
    monkeypatch.setattr(astra_process, "_GRACE_S", 0.2)
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if stubborn else ""
    code += "child = subprocess.Popen(['sleep', '600']); print(child.pid, flush=True); time.sleep(600)"
    ended = run([str(fake(tmp_path, code))], tmp_path, 1, Limits(timeout_s=1.5))
    assert ended.timed_out
    child = int((tmp_path / "stdout.txt").read_text())
    while alive(child):  # a signal takes its time; without it this would never end
        time.sleep(0.01)


def test_the_memory_limit_holds(tmp_path):
    code = "time.sleep(0.3)\nblock = bytearray(3 << 30)\nprint('got it')"
    ended = run([str(fake(tmp_path, code))], tmp_path, 1, Limits(memory_bytes=1 << 30))
    assert ended.code != 0
    assert "MemoryError" in (tmp_path / "stderr.txt").read_text()


def test_progress_counts_finished_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(astra_process, "_FIRST_WORD_S", 0.05)
    code = (
        "print('sys[0] finished, 5 cycles', flush=True)\n"
        "while not os.path.exists('heard'): time.sleep(0.01)\n"
        "print('sys[1] finished, 5 cycles')"
    )
    heard = []

    def say(text):
        heard.append(text)
        if "1 of 2 ranks finished" in text:
            (tmp_path / "heard").touch()

    assert run([str(fake(tmp_path, code))], tmp_path, 2, Limits(30), say).code == 0
    assert any("1 of 2 ranks finished" in line for line in heard)


def test_what_cannot_be_started(tmp_path):
    bad = tmp_path / "bad"
    bad.write_text("#!/no/such/interpreter\n")
    bad.chmod(0o755)
    with pytest.raises(NotReadyError, match="cannot be started"):
        run([str(bad)], tmp_path, 1, Limits())
