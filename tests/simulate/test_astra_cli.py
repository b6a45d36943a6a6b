"""genie simulate and genie loop with ASTRA-sim in place of the builtin simulator."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from astra_fake import fake, working

from genie.cli import main
from genie.formats.astra import read_network
from genie.formats.runfile import open_run

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = ROOT / "astra_configs/system/ring.json"

EXPERIMENT = """
name: small
workload: {{ traces: w }}
system: {system}
network: {{ model: aware, file: net.yml }}
testbed: testbed.yml
simulator: astra-sim
astra_sim: {{ program: fake-astra-sim, timeout_s: 60, memory: 4 GiB }}
replay: {{ warmup: 0, repeats: 1, stall_timeout_s: 4 }}
loop: {{ rounds: 2, tolerance: 0.001, gain: 0.0 }}
"""

TESTBED = """
name: four
kind: emulated
topology: { kind: single-switch, hosts: 4 }
links: { host: { rate: 100 Gb/s, delay: 1 us } }
dilation: 500
mtu: 9000
"""


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def genie(tmp_path, monkeypatch, capsys):
    """Runs a command line in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GENIE_ASTRA_SIM", raising=False)

    def run(*arguments, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return Done(ended.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def folder(tmp_path, genie):
    genie("trace", "generate", "data_parallel", "w", "--ranks", 4, "--size", "2 MiB")
    (tmp_path / "net.yml").write_text("topology: [Ring]\nnpus_count: [4]\nbandwidth: [5.8]\nlatency: [200]\n")
    (tmp_path / "testbed.yml").write_text(TESTBED)
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT.format(system=SYSTEM))
    return tmp_path


FILES = ("--workload", "w", "--system", SYSTEM, "--network", "net.yml")


def test_simulate_with_files(genie, folder):
    program = working(folder)
    builtin = genie("simulate", *FILES, "--json")
    done = genie("simulate", *FILES, "--simulator", "astra-sim", "--astra-sim", program, "--json")
    assert done.returncode == 0, done.stderr
    ours, theirs = json.loads(builtin.stdout), json.loads(done.stdout)
    assert ours["ranks"] == theirs["ranks"]
    run = open_run(folder / theirs["run"])
    assert (run.meta["simulator"], run.meta["astra_sim"]["front_end"]) == ("astra-sim", "unaware")
    assert (run.path / "astra-sim" / "workload" / "w.3.et").is_file()


def test_without_a_model_it_is_the_programs(genie, folder):
    program = working(folder, "aware")
    done = genie("simulate", *FILES, "--simulator", "astra-sim", "--astra-sim", program, "--json")
    assert done.returncode == 0, done.stderr
    assert open_run(folder / json.loads(done.stdout)["run"]).meta["astra_sim"]["front_end"] == "aware"
    builtin = genie("simulate", *FILES, "--model", "aware", "--json")
    assert json.loads(builtin.stdout)["ranks"] == json.loads(done.stdout)["ranks"]
    other = genie("simulate", *FILES, "--model", "unaware", "--simulator", "astra-sim", "--astra-sim", program)
    assert (other.returncode, "asks for unaware" in other.stderr) == (2, True)


def test_compare_prints_both_and_the_first_operator_where_they_part(genie, folder):
    program = working(folder)
    options = (*FILES, "--compare", "builtin", "astra-sim")
    done = genie("simulate", *options, "--json", GENIE_ASTRA_SIM=str(program))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["equal"], found["first_difference"]) == (True, None)
    text = program.read_text().replace("simulate(schedule, model)", "simulate(schedule, slower(model))")
    slower = (
        "def slower(model):\n"
        "    from dataclasses import replace\n"
        "    from genie.core.netmodel import Estimate\n"
        "    return replace(model, dimensions=tuple("
        "replace(d, latency_ns=Estimate(900.0)) for d in model.dimensions))\n"
    )
    program.write_text(text.replace("given = dict", slower + "given = dict"))
    done = genie("simulate", *options, "--json", GENIE_ASTRA_SIM=str(program))
    found = json.loads(done.stdout)
    assert found["equal"] is False
    assert found["iteration_ns"][0] < found["iteration_ns"][1]
    first = found["first_difference"]
    assert (first["event"], first["kind"], first["rank"]) == ("done", "COLLECTIVE", 0)
    shown = genie("simulate", *options, GENIE_ASTRA_SIM=str(program))
    assert f"rank 0, node {first['node_id']} ({first['name']}, COLLECTIVE)" in shown.stdout


def test_an_experiment_names_the_simulator_and_options_replace_it(genie, folder):
    working(folder, "aware")
    done = genie("simulate", "experiment.yaml", "--json")
    assert done.returncode == 0, done.stderr
    assert open_run(folder / json.loads(done.stdout)["run"]).timeline().executor == "astra-sim"
    other = genie("simulate", "experiment.yaml", "--simulator", "builtin", "--json")
    run = open_run(folder / json.loads(other.stdout)["run"])
    assert run.timeline().executor == "builtin"
    assert json.loads(other.stdout)["ranks"] == json.loads(done.stdout)["ranks"]
    wrong = genie("simulate", "experiment.yaml", "--model", "unaware")
    assert (wrong.returncode, "asks for unaware" in wrong.stderr) == (2, True)
    odd = genie("simulate", "experiment.yaml", "--rendezvous")
    assert (odd.returncode, "--rendezvous" in odd.stderr) == (2, True)


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        ("", 2, "0 of 4 ranks finished"),
        ("os.abort()", 4, "SIGABRT"),
        ("time.sleep(60)", 4, "stopped after 1 s"),
        ("sys.exit('error while loading shared libraries: libfmt.so')", 3, "library"),
    ],
)
def test_failures_are_a_sentence_and_an_exit_code_and_are_kept(genie, folder, code, exit_code, said):
    program = fake(folder, code)
    options = ("--simulator", "astra-sim", "--astra-sim", program, "--timeout", 1)
    done = genie("simulate", *FILES, *options)
    assert done.returncode == exit_code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    run = open_run(next((folder / "runs").iterdir()))
    assert (run.status, said in run.results["error"]) == ("failed", True)


@pytest.mark.usefixtures("folder")
def test_without_astra_sim_it_says_how_to_get_it(genie):
    done = genie("simulate", *FILES, "--simulator", "astra-sim", PATH="/nowhere", GENIE_ASTRA_SIM="")
    assert (done.returncode, "GENIE_ASTRA_SIM" in done.stderr) == (3, True)


def test_notes_of_the_system_file_are_shown(genie, folder):
    content = json.loads(SYSTEM.read_text()) | {"boost-mode": 1, "preferred-dataset-split": 3}
    (folder / "system.json").write_text(json.dumps(content))
    done = genie("simulate", "--workload", "w", "--system", "system.json", "--network", "net.yml")
    assert done.returncode == 0
    assert "boost-mode is not read by ASTRA-sim any more" in done.stderr
    assert "did you mean preferred-dataset-splits" in done.stderr


@pytest.mark.netns
def test_the_loop_closes_with_astra_sim_and_writes_its_network_file(genie, folder):
    working(folder, "aware")
    done = genie("loop", "experiment.yaml", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert abs(found["rounds"][1]["error"]) < abs(found["rounds"][0]["error"])
    calibrated = read_network(folder / found["network_file"], aware=True)
    assert calibrated.dimensions[0].bandwidth_bps.value > 5.8 * 8 * 2**30
    run = open_run(folder / found["run"])
    simulated = [child for child in run.children() if child.kind == "simulate"]
    assert [child.timeline().executor for child in simulated] == ["astra-sim"] * 2
    assert read_network(simulated[1].path / "astra-sim" / "network.yml", aware=True) != read_network(
        simulated[0].path / "astra-sim" / "network.yml", aware=True
    )
