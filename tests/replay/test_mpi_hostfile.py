"""Hostfiles, and the agent that makes a namespace a host."""

import subprocess

import pytest

from genie.errors import InputError
from genie.replay.mpi import namespace_agent, read_hostfile


def written(folder, text):
    path = folder / "hosts"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a slots=2\nb slots=1\n", (("a", 2), ("b", 1))),
        ("a\na\nb:4  # fast\n\n# c\n", (("a", 2), ("b", 4))),
        ("10.0.0.1 max_slots = 3", (("10.0.0.1", 3),)),
    ],
    ids=["open-mpi", "mpich", "spaces"],
)
def test_hosts_and_their_slots(tmp_path, text, hosts):
    assert read_hostfile(written(tmp_path, text)) == hosts


@pytest.mark.parametrize(("text", "what"), [("a; rm -rf b", "line 1"), ("", "no hosts"), ("a slots=0", "slots")])
def test_what_is_no_hostfile_is_refused(tmp_path, text, what):
    with pytest.raises(InputError, match=what):
        read_hostfile(written(tmp_path, text))


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_hostfile(tmp_path / "none")


def test_the_agent_reaches_no_other_hosts(tmp_path):
    agent = tmp_path / "agent"
    agent.write_text(namespace_agent(1, [("10.0.0.1", 7)]))
    done = subprocess.run(["sh", agent, "10.0.0.2", "true"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "no host 10.0.0.2\n")
