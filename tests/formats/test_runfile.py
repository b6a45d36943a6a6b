import json
import os
import signal

import pytest
from strategies import fixed_network

from genie.core.system import System
from genie.core.workload import CollectiveKind
from genie.errors import InputError
from genie.formats.runfile import RunWriter, inside, open_run
from genie.lower import lower
from genie.patterns import generate
from genie.simulate.builtin import simulate


def timeline():
    system = System(splits=1, algorithms=dict.fromkeys(CollectiveKind, ("ring",)))
    return simulate(lower(generate("data_parallel", 4, 1 << 20), system), fixed_network(4))


def test_a_timeline_comes_back_as_it_was(tmp_path):
    before = timeline()
    run = RunWriter.create(tmp_path, "simulate", "x")
    run.save_timeline(before)
    run.finish("ok", {"iteration_ns": before.iteration_ns})
    after = open_run(run.path).timeline()
    for part in ("ranks", "operators", "messages"):
        for name, column in getattr(before, part).columns().items():
            assert column.tolist() == getattr(getattr(after, part), name).tolist(), name
    assert after.executor == "builtin"
    assert not after.measured


def test_directories_are_never_overwritten(tmp_path):
    paths = {RunWriter.create(tmp_path, "simulate", "x").path for _ in range(3)}
    assert len(paths) == 3


def test_inputs_are_copied_and_hashed(tmp_path):
    (tmp_path / "in.yml").write_text("x")
    run = RunWriter.create(tmp_path, "loop", "x")
    run.add_input(tmp_path / "in.yml", "network")
    run.finish("ok", {})
    (entry,) = open_run(run.path).meta["inputs"]
    assert (run.path / entry["copy"]).read_text() == "x"
    assert entry["sha256"].startswith("2d711642b726b044")


def test_paths_stay_inside(tmp_path):
    with pytest.raises(InputError, match="leads out"):
        inside(tmp_path, "../elsewhere")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "x"}', '{"format": 99}'])
def test_what_is_no_run_is_told(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError):
        open_run(tmp_path)


def test_a_damaged_table_is_told(tmp_path):
    run = RunWriter.create(tmp_path, "simulate", "x")
    run.save_timeline(timeline())
    run.finish("ok", {})
    path = run.path / "messages.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"messages\.parquet"):
        open_run(run.path).timeline()


def test_a_killed_writer_leaves_a_partial_run(tmp_path):
    pid = os.fork()
    if pid == 0:
        RunWriter(tmp_path / "run", "replay", "x").describe(more=1)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    run = open_run(tmp_path / "run")
    assert run.status == "partial"
    assert json.loads((tmp_path / "run" / "run.json").read_text())["more"] == 1
