import json
import os
import select
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from genie.errors import InputError
from genie.testbed import keeper
from genie.testbed.files import parse_testbed
from genie.testbed.keeper import keep_up, kept, nodes_of, take_down

pytestmark = pytest.mark.netns


@pytest.fixture
def testbed(monkeypatch, tmp_path):
    """A testbed of a name of its own, with a state folder of its own."""
    monkeypatch.setattr(keeper, "state_folder", lambda: tmp_path)
    content = {
        "name": "small",
        "kind": "emulated",
        "topology": {"kind": "single-switch", "hosts": 2},
        "links": {"host": {"rate": "100 Gb/s"}},
    }
    yield parse_testbed(content, "test")
    take_down(None)


def test_up_shown_entered_down(testbed, tmp_path):
    keep_up(testbed)
    (row,) = kept()
    assert (row["name"], row["hosts"]) == ("small", 2)
    nodes = {node["node"]: node for node in nodes_of("small")}
    assert set(nodes) == {"h0", "h1", "switch0"}
    command = [*nodes["h1"]["enter"].split(), "cat", "/proc/net/dev"]
    seen = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "eth0" in seen
    take_down("small")
    assert kept() == []
    assert not list(tmp_path.glob("*.json"))


def test_the_same_name_twice_is_refused(testbed):
    keep_up(testbed)
    with pytest.raises(InputError, match="up already"):
        keep_up(testbed)


def test_two_at_once_bring_one_up(testbed):
    outcomes = []

    def attempt():
        pid = os.fork()
        if pid == 0:
            try:
                keep_up(testbed)
                os._exit(0)
            except InputError:
                os._exit(2)
            finally:
                os._exit(70)
        outcomes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    attempt_one, attempt_two = (threading.Thread(target=attempt) for _ in range(2))
    attempt_one.start()
    attempt_two.start()
    attempt_one.join()
    attempt_two.join()
    assert sorted(outcomes) == [0, 2]
    assert len(kept()) == 1


def test_the_holder_is_not_our_child(testbed):
    keep_up(testbed)
    parent = int(Path(f"/proc/{kept()[0]['pid']}/stat").read_text().rpartition(")")[2].split()[1])
    assert parent != os.getpid()


def test_kill_9_of_the_holder_leaves_a_file_that_the_next_look_removes(testbed, tmp_path):
    keep_up(testbed)
    (row,) = kept()
    holder = os.pidfd_open(row["pid"])
    os.kill(row["pid"], signal.SIGKILL)
    assert select.select([holder], [], [], 10)[0]
    os.close(holder)
    assert (tmp_path / "small.json").exists()
    assert kept() == []
    assert not (tmp_path / "small.json").exists()


@pytest.mark.usefixtures("testbed")
@pytest.mark.parametrize("words", ["", "{", "[]", '{"pid": 1}', '{"pid": 1, "started": "nonsense", "nodes": {}}'])
def test_words_that_are_none_of_ours_are_removed(tmp_path, words):
    (tmp_path / "other.json").write_text(words)
    assert kept() == []
    assert not (tmp_path / "other.json").exists()


@pytest.mark.usefixtures("testbed")
def test_a_process_that_took_the_number_over_is_left_alone(tmp_path):
    state = {"name": "small", "pid": os.getpid(), "kind": "root", "started": "1", "nodes": {}}
    (tmp_path / "small.json").write_text(json.dumps(state))
    assert take_down(None) == ["no testbed was up"]


def test_none_of_that_name():
    with pytest.raises(InputError, match="no testbed nowhere"):
        take_down("nowhere")
