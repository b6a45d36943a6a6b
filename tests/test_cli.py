import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SYSTEM, QUICK = ROOT / "astra_configs/system/ring.json", ROOT / "examples/quickstart"


def genie(*arguments, cwd=ROOT):
    command = [sys.executable, "-m", "genie", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120, check=False)


def test_simulate_with_astra_sims_own_files(tmp_path):
    genie("trace", "generate", "all_reduce", tmp_path / "w", "--ranks", 8, "--size", "1 MiB")
    done = genie(
        *("simulate", "--workload", tmp_path / "w", "--system", SYSTEM, "--network", QUICK / "network-wrong.yml"),
        *("--out", tmp_path / "runs", "--json"),
    )
    found = json.loads(done.stdout)
    assert len(found["ranks"]) == 8
    assert set(found["ranks"][0]) == {"rank", "finish_ns", "exposed_ns"}
    assert found["iteration_ns"] == max(row["finish_ns"] for row in found["ranks"])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["simulate"], 2, "--workload"),
        (["simulate", "nowhere.yaml"], 2, "nowhere.yaml"),
        (["trace", "info", "nowhere/at/all"], 2, "no such folder"),
        (["nonsense"], 2, "No such command"),
        (["report", "tests"], 2, "no run directory"),
        (["testbed", "down", "nobody"], 2, "no testbed nobody"),
        (["trace", "generate", "magic", "x"], 2, "no pattern"),
        (["trace", "generate", "incast", "x", "--size", "64"], 2, "is no size"),
        (["trace", "generate", "incast", "x", "--size", "99999999999 GiB"], 2, "larger than any size"),
        (["trace", "generate", "incast", "x", "--ranks", "100000000"], 2, "more than a pattern is made for"),
        (["trace", "generate", "incast", "/proc/no/folder"], 3, "/proc/no: No such file"),
    ],
)
def test_bad_input_is_one_sentence_and_an_exit_code(arguments, code, message):
    done = genie(*arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_trace_check_exit_code_and_repair(tmp_path):
    genie("trace", "generate", "incast", tmp_path / "w", "--ranks", 3, "--size", "1 KiB")
    assert genie("trace", "check", tmp_path / "w").returncode == 0
    (tmp_path / "w.1.et").write_bytes((tmp_path / "w.2.et").read_bytes())
    done = genie("trace", "check", tmp_path / "w", "--json")
    assert done.returncode == 2
    rules = {finding["rule"] for finding in json.loads(done.stdout)["findings"]}
    assert {"send-without-receive", "receive-without-send"} <= rules


def test_plan_sends_nothing_and_counts_everything():
    about = json.loads(genie("plan", QUICK / "experiment.yaml", "--json").stdout)
    assert about["messages"] == sum(pair["messages"] for pair in about["pairs"])
    assert about["ranks"] == 8


def test_options_replace_an_experiment_file():
    options = ("--workload", ROOT / "traces/quickstart/step", "--system", SYSTEM)
    about = json.loads(
        genie("plan", *options, "--testbed", ROOT / "testbed/leaf-spine-8.yml", "--scale-bytes", 0.5, "--json").stdout
    )
    whole = json.loads(genie("plan", QUICK / "experiment.yaml", "--json").stdout)
    assert about["bytes"] * 2 == whole["bytes"]
    done = genie("plan", *options)
    assert (done.returncode, "--testbed" in done.stderr) == (2, True)


def test_every_command_has_help():
    for command in ("trace", "plan", "simulate", "replay", "fit", "loop", "testbed", "report", "doctor"):
        done = genie(command, "--help")
        assert done.returncode == 0
        assert command in done.stdout


def test_trace_check_against_network_and_testbed(tmp_path):
    genie("trace", "generate", "all_reduce", tmp_path / "w", "--ranks", 16, "--size", "1 KiB")

    def rules(*options):
        done = genie("trace", "check", tmp_path / "w", *options, "--json")
        return done.returncode, {finding["rule"] for finding in json.loads(done.stdout)["findings"]}

    assert rules("--ranks", 32) == (2, {"missing-rank"})
    assert rules("--network", QUICK / "network-wrong.yml") == (0, {"extra-rank"})
    assert rules("--testbed", ROOT / "testbed/leaf-spine-8.yml") == (2, {"testbed-too-small"})
    done = genie("trace", "check", tmp_path / "w", "--network", QUICK / "network-wrong.yml", "--ranks", 4)
    assert (done.returncode, "--ranks says 4" in done.stderr) == (2, True)
