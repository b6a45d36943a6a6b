"""Suites on a small fabric: checks, files, exit codes; two testbeds in turn."""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

TESTBED = """
name: {name}
kind: emulated
topology: {{ kind: leaf-spine, hosts: 4, leaves: 2, spines: {spines} }}
links: {{ host: {{ rate: 100 Gb/s, delay: 1 us }}, fabric: {{ rate: 100 Gb/s, delay: 1 us }} }}
dilation: 2000
mtu: 9000
"""

SUITE = """
name: own
cases:
  - name: alone
    pattern: shift
    ranks: [ 2, 64 ]
    set: { by: 1 }
    size: 1 MiB
    repeats: 2
    thresholds: [ { metric: slowdown_p99, at_most: 100 } ]
  - name: two jobs
    pattern: all_reduce
    size: 64 KiB
    jobs: 2
    idle: true
    repeats: 1
  - name: impossible
    pattern: shift
    size: 256 KiB
    repeats: 2
    attempts: 2
    without: [ leaf0-spine1 ]
    thresholds:
      - { metric: iteration_ns, at_most: 1 }
      - { metric: goodput_gb_per_s, at_least: 99, severity: warning }
"""


def run(*arguments, cwd):
    command = [sys.executable, "-m", "genie", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=180, check=False, env=os.environ)


def prepare(folder, text=SUITE):
    for spines in (1, 2):
        (folder / f"{spines}.yml").write_text(TESTBED.format(name=f"spines-{spines}", spines=spines))
    (folder / "suite.yml").write_text(text)


@pytest.mark.netns
def test_a_suite_with_a_failure(tmp_path):
    prepare(tmp_path)
    done = run("validate", "suite.yml", "--testbed", "2.yml", "--junit", "junit.xml", "--json", cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    found = json.loads(done.stdout)
    assert [case["failed"] for case in found["cases"]] == [False, False, True]
    assert found["failed"] == 1
    assert found["warnings"] >= 1
    assert found["left_out"] == ["alone (64 ranks): 64 ranks in 1 jobs, the testbed has 4 places"]
    assert found["cases"][2]["failed_attempts"] == found["cases"][2]["attempts"] == 2
    assert "[FAIL] impossible: iteration_ns is at most 1. Found:" in done.stderr
    assert ", finish_ns" in done.stderr, "the offending rows are shown"
    assert done.stderr.splitlines()[-1].startswith("genie: own: 1 checks failed.")
    root = ET.fromstring((tmp_path / "junit.xml").read_text())
    assert root.get("failures") == "1"
    folder = Path(tmp_path, found["run"])
    assert (folder / "junit.xml").read_text() == (tmp_path / "junit.xml").read_text()
    assert json.loads((folder / "results.json").read_text())["failed"] == 1
    assert "1 of " in (folder / "report.html").read_text()


AB = """
name: cross
cases:
  - { name: cross, pattern: shift, size: 512 KiB, repeats: 2 }
"""


@pytest.mark.netns
def test_two_testbeds_in_turn(tmp_path):
    prepare(tmp_path, AB)
    done = run("validate", "suite.yml", "--ab", "2.yml", "1.yml", "--pairs", "3", "--json", cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    found = json.loads(done.stdout)["comparisons"]["cross"]
    assert found["verdict"] == "worse"
    runs = sorted(path.name for path in Path(tmp_path, json.loads(done.stdout)["run"], "rounds").iterdir())
    assert runs == [f"1-{turn}{side}-cross" for turn in (1, 2, 3) for side in "AB"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["suite.yml"], "--ab A B"),
        (["nonsense", "--testbed", "1.yml"], "no suite 'nonsense'"),
        (["suite.yml", "--testbed", "none.yml"], "cannot be read"),
    ],
)
def test_what_is_missing_is_said(tmp_path, arguments, says):
    prepare(tmp_path)
    done = run("validate", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr


def test_a_figure_that_does_not_exist(tmp_path):
    prepare(tmp_path, AB.replace("repeats: 2", "thresholds: [ { metric: speed, at_most: 1 } ]"))
    done = run("validate", "suite.yml", "--testbed", "2.yml", cwd=tmp_path)
    assert done.returncode == 2
    assert "no figure 'speed'" in done.stderr
