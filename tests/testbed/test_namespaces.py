import os
import subprocess
import sys
from pathlib import Path

import pytest

from genie.testbed import namespaces
from genie.testbed.namespaces import USERNS_MARK, capability, remedy

ROOT = Path(__file__).resolve().parents[2]

AS_NOBODY = """
import ctypes, os
from genie.testbed.emulated import EmulatedFabric
from genie.testbed.files import load_testbed
from genie.testbed.namespaces import capability, enter_user_namespace
testbed = load_testbed("testbed/leaf-spine-8.yml")
with EmulatedFabric(testbed):
    pass  # what is imported late is imported now: the ordinary user may not read the interpreter's folder
os.setgroups([]); os.setgid(65534); os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
print(capability()[0])
enter_user_namespace()
print(capability()[0])
with EmulatedFabric(testbed) as fabric:
    print(len(fabric.route("h0", "h7", 1, 2)), len(fabric.counters()))
"""


@pytest.mark.netns
def test_an_ordinary_user_builds_the_same_fabric_in_a_user_namespace():
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    if "userns" not in done.stdout:
        pytest.skip("needs an ordinary user that may make user namespaces")
    assert done.stdout.split() == ["userns", "userns", "4", "24"], done.stderr


@pytest.mark.netns
def test_a_trial_changes_nothing_here():
    before = Path("/proc/self/ns/net").readlink()
    assert capability()[0] == "root"
    assert Path("/proc/self/ns/net").readlink() == before
    assert USERNS_MARK not in os.environ


def test_what_is_refused_is_told(monkeypatch):
    monkeypatch.setattr(namespaces, "_attempt", lambda _: "setting up failed: Operation not permitted.")
    kind, why = capability()
    assert kind == "none"
    assert "Operation not permitted" in why


@pytest.mark.parametrize(("value", "told"), [("0", "kernel.unprivileged_userns_clone=1"), ("1", "root")])
def test_the_remedy_names_the_switch_that_is_off(monkeypatch, tmp_path, value, told):
    switch = tmp_path / "switch"
    switch.write_text(value + "\n")
    monkeypatch.setattr(namespaces, "_HINDRANCES", ((str(switch), "0", "kernel.unprivileged_userns_clone=1"),))
    assert told in remedy()
