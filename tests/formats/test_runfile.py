import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from genie.core.timeline import Messages, Operators, Ranks, Status, Timeline
from genie.errors import InputError, NotReadyError
from genie.formats.runfile import FORMAT, RunWriter, load_timeline, open_run, rounds_columns, save_timeline

LONG = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(max_size=8).filter(lambda text: not re.search("[\ud800-\udfff]", text))


def column(dtype):
    kind = np.dtype(dtype)
    if kind.kind == "O":
        return TEXT
    info = np.iinfo(kind)
    return st.integers(int(info.min), int(info.max))


def tables(kind):
    rows = st.lists(st.tuples(*(column(dtype) for dtype in kind.SCHEMA.values())), max_size=4)
    return rows.map(kind.from_rows)


TIMELINES = st.builds(
    Timeline,
    executor=TEXT,
    measured=st.booleans(),
    ranks=tables(Ranks),
    operators=tables(Operators),
    messages=tables(Messages),
    status=st.sampled_from(list(Status)),
    notes=st.lists(TEXT, max_size=2).map(tuple),
)


def same(a, b):
    assert (a.executor, a.measured, a.status, a.notes) == (b.executor, b.measured, b.status, b.notes)
    for ours, theirs in ((a.ranks, b.ranks), (a.operators, b.operators), (a.messages, b.messages)):
        for name, values in ours.columns().items():
            assert values.dtype == theirs.columns()[name].dtype, name
            assert values.tolist() == theirs.columns()[name].tolist(), name


def timeline():
    return Timeline(
        executor="builtin",
        measured=False,
        ranks=Ranks.from_rows([(0, 0, 1000, 400), (0, 1, 1100, 500)]),
        operators=Operators.from_rows([(0, 0, 7, 7, 0, "", "all-reduce", 64, 600, 1000, 3)]),
        messages=Messages.from_rows([(0, 0, 1, 5, 64, 0, 0, 7, 0, 0, 0, 600, 603, -1, 900, -1, 0)]),
    )


def written(folder, **finish):
    run = RunWriter.create(folder, "simulate", "a job")
    run.save_timeline(timeline())
    run.finish(**({"status": "ok", "results": {"iteration_ns": np.int64(1100)}} | finish))
    return run.path


@settings(max_examples=50)
@given(TIMELINES)
def test_a_timeline_comes_back_as_it_was(tmp_path_factory, made):
    folder = tmp_path_factory.mktemp("t")
    save_timeline(folder, made)
    same(made, load_timeline(folder))
    shutil.rmtree(folder)


def test_a_run_comes_back_as_it_was(tmp_path):
    run = RunWriter.create(tmp_path / "runs", "replay", "job / 1")
    run.save_timeline(timeline())
    run.save_table("counters", {"link": ["a>b"], "sent_bytes": np.array([12])})
    run.save_text("network.yml", "topology: [ Ring ]\n")
    run.add_environment(sysctls={"net.core.rmem_max": 212992})
    run.describe(testbed={"name": "lab", "dilation": 10})
    run.note("slow day")
    run.finish("ok", {"iteration_ns": 1100}, [{"name": "bytes", "ok": True, "value": "1", "limit": "1", "hard": True}])
    back = open_run(run.path)
    assert re.fullmatch(r"\d{8}T\d{6}Z-replay-job___1", run.path.name)
    assert (back.kind, back.name, back.status) == ("replay", "job / 1", "ok")
    assert back.results["iteration_ns"] == 1100
    assert back.meta["format"] == f"{FORMAT[0]}.{FORMAT[1]}"
    assert back.meta["environment"]["sysctls"] == {"net.core.rmem_max": 212992}
    assert back.meta["environment"]["packages"]["numpy"] == np.__version__
    assert back.meta["notes"] == ["slow day"]
    assert back.meta["testbed"]["dilation"] == 10
    assert back.meta["created"] <= back.meta["finished"]
    assert back.tables() == ["counters", "messages", "operators", "ranks"]
    assert back.table("counters")["sent_bytes"].tolist() == [12]
    same(timeline(), back.timeline())


def test_runs_are_never_overwritten(tmp_path):
    paths = {RunWriter.create(tmp_path, "fit", "x").path for _ in range(5)}
    assert len(paths) == 5
    with pytest.raises(InputError, match="exists already"):
        RunWriter(paths.pop(), "fit", "x")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotReadyError, match="cannot be made"):
        RunWriter.create(tmp_path / "file", "fit", "x")


def test_inputs_are_kept_under_their_names_with_their_hashes(tmp_path):
    for rank, content in enumerate(("same", "same", "other")):
        (tmp_path / f"w.{rank}.et").write_text(content)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.0.et").write_text("another of that name")
    run = RunWriter.create(tmp_path / "runs", "simulate", "x")
    run.add_inputs([(tmp_path / f"w.{rank}.et", "trace") for rank in range(3)])
    run.add_input(tmp_path / "sub" / "w.0.et", "trace")
    run.finish("ok", {})
    copies = open_run(run.path).inputs("trace")
    assert [str(path.relative_to(run.path)) for path in copies] == [
        "inputs/trace/w.0.et",
        "inputs/trace/w.1.et",
        "inputs/trace/w.2.et",
        "inputs/trace-2/w.0.et",
    ]
    assert [path.read_text() for path in copies] == ["same", "same", "other", "another of that name"]
    assert copies[0].samefile(copies[1]), "equal files share their storage"
    assert not copies[0].samefile(tmp_path / "w.0.et"), "a later change of the original does not reach the copy"
    hashes = [entry["sha256"] for entry in open_run(run.path).meta["inputs"]]
    assert hashes[0] == hashes[1] == "0967115f2813a3541eaef77de9d9d5773f1c0c04314b0bbfe4ff3b3b1c55b5d5"


def test_an_input_that_is_gone(tmp_path):
    with pytest.raises(InputError, match=r"gone\.et: cannot be read: No such file"):
        RunWriter.create(tmp_path, "simulate", "x").add_input(tmp_path / "gone.et", "trace")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "inputs/../../secret"])
def test_paths_stay_inside(tmp_path, name):
    (tmp_path / "secret").write_text("{}")
    (tmp_path / "secret.parquet").write_text("")
    path = written(tmp_path / "runs")
    run = open_run(path)
    with pytest.raises(InputError, match="leads out of the run directory"):
        run.table(name)
    with pytest.raises(InputError, match="leads out of the run directory"):
        run.child(name)
    with pytest.raises(InputError, match="leads out of the run directory"):
        RunWriter(path / "more", "fit", "x").save_text(name, "")
    meta = json.loads((path / "run.json").read_text())
    meta["inputs"] = [{"role": "trace", "copy": name}]
    (path / "run.json").write_text(json.dumps(meta))
    with pytest.raises(InputError, match="leads out of the run directory"):
        open_run(path).inputs("trace")


def test_a_link_does_not_lead_out_either(tmp_path):
    (tmp_path / "outside.parquet").write_text("")
    path = written(tmp_path / "runs")
    (path / "extra.parquet").symlink_to(tmp_path / "outside.parquet")
    with pytest.raises(InputError, match="leads out of the run directory"):
        open_run(path).table("extra")


def test_names_become_harmless(tmp_path):
    run = RunWriter.create(tmp_path, "fit", "../../x; rm -rf")
    assert run.path.parent == tmp_path
    (tmp_path / "w.0.et").write_text("")
    run.add_input(tmp_path / "w.0.et", "../up")
    run.finish("ok", {})
    assert open_run(run.path).inputs("../up")[0].is_relative_to(run.path)


@pytest.mark.parametrize(
    "file", ["run.json", "timeline.json", "ranks.parquet", "operators.parquet", "messages.parquet"]
)
def test_a_file_cut_off_anywhere_is_told_in_one_sentence(tmp_path, file):
    path = written(tmp_path) / file
    whole = path.read_bytes()
    for length in {*range(0, len(whole) - 2, max(1, len(whole) // 97)), len(whole) - 2}:
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"damaged|is no run's"):
            open_run(path.parent).timeline()
    path.write_bytes(whole)
    open_run(path.parent).timeline()


@pytest.mark.parametrize("file", ["timeline.json", "ranks.parquet", "messages.parquet"])
def test_a_file_that_is_missing_is_told(tmp_path, file):
    path = written(tmp_path)
    (path / file).unlink()
    with pytest.raises(InputError, match=r"holds no timeline|no such table"):
        open_run(path).timeline()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": "2.0"}, r"format 2\.0, this Genie reads formats up to 1\.x\. Fix: update Genie"),
        ({"format": "one"}, "no run's"),
        ({"kind": 3}, "kind is missing or no str"),
        ({"inputs": None}, "inputs is missing or no list"),
    ],
)
def test_a_foreign_run_json_is_refused_with_a_sentence(tmp_path, change, reason):
    path = written(tmp_path)
    meta = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(meta | change))
    with pytest.raises(InputError, match=reason):
        open_run(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", "{", '{"format": []}', "\xff"])
def test_something_else_named_run_json(tmp_path, text):
    (tmp_path / "run.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"no run's|damaged"):
        open_run(tmp_path)


def test_a_folder_that_is_no_run(tmp_path):
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(InputError, match="is no run directory"):
            open_run(path)


def test_a_newer_minor_format_may_add(tmp_path):
    path = written(tmp_path)
    meta = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(meta | {"format": "1.7", "mood": "good"}))
    table = pq.read_table(path / "ranks.parquet")
    pq.write_table(table.append_column("energy_nj", [[1, 2]]), path / "ranks.parquet")
    same(timeline(), open_run(path).timeline())


@pytest.mark.parametrize("change", ["drop", "retype"])
def test_a_table_of_another_shape_is_told(tmp_path, change):
    path = written(tmp_path) / "ranks.parquet"
    table = pq.read_table(path).drop_columns(["finish_ns"])
    if change == "retype":
        table = table.append_column("finish_ns", pa.array(["soon", "later"]))
    pq.write_table(table, path)
    with pytest.raises(InputError, match=r"no column finish_ns|another type"):
        open_run(path.parent).timeline()


KILLED = """
import os, signal, sys
from pathlib import Path
import pyarrow.parquet as pq
sys.path.insert(0, {tests!r})
from test_runfile import timeline
from genie.formats.runfile import RunWriter

run = RunWriter(Path({path!r}), "replay", "x")
run.save_table("counters", {{"link": ["a>b"], "sent_bytes": [1]}})
run.finish("running", {{"iterations": 1}})
whole = pq.write_table

def half(table, path, **options):
    whole(table, path, **options)
    if "messages" in str(path):
        data = Path(path).read_bytes()
        Path(path).write_bytes(data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

pq.write_table = half
run.save_timeline(timeline())
"""


def test_a_killed_writer_leaves_a_run_that_opens_as_partial(tmp_path):
    script = KILLED.format(tests=str(Path(__file__).parent), path=str(tmp_path / "run"))
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert done.returncode == -9
    run = open_run(tmp_path / "run")
    assert run.status == "partial"
    assert run.results == {"iterations": 1}
    assert run.tables() == ["counters", "operators", "ranks"], "the table that was being written is not there"
    assert run.table("counters")["link"].tolist() == ["a>b"]
    with pytest.raises(InputError, match="holds no timeline"):
        run.timeline()


def test_runs_within_a_run(tmp_path):
    loop = RunWriter.create(tmp_path, "loop", "x")
    for number in (1, 2, 10):
        for kind in ("simulate", "replay"):
            loop.child(f"{number}-{kind}", kind).finish("ok", {})
    loop.finish("ok", {})
    children = open_run(loop.path).children()
    assert [child.path.name for child in children] == [
        "1-replay",
        "1-simulate",
        "2-replay",
        "2-simulate",
        "10-replay",
        "10-simulate",
    ]
    (children[0].path / "run.json").write_text("{")
    again = open_run(loop.path).children()
    assert [child.status for child in again] == ["damaged", *["ok"] * 5], "one lost run does not lose the others"
    assert "run.json is damaged" in again[0].meta["notes"][0]


def test_rounds_are_a_table_of_one_row_a_parameter(tmp_path):
    rate = {
        "name": "bandwidth",
        "value": 2e11,
        "unit": "bit/s",
        "stderr": 1e9,
        "low": 1.9e11,
        "high": 2.1e11,
        "samples": 9,
    }
    delay = {"name": "latency", "value": 500.0, "unit": "ns", "stderr": None, "low": 500.0, "high": 500.0, "samples": 0}
    rounds = [
        {"round": 1, "predicted_ns": 90, "measured_ns": 100, "error": -0.1, "fitted": [rate, delay], "run": "rounds/1"},
        {"round": 2, "predicted_ns": 99, "measured_ns": 100, "error": -0.01, "fitted": [], "run": "rounds/2"},
    ]
    run = RunWriter.create(tmp_path, "loop", "x")
    run.save_rounds(rounds)
    table = open_run(run.path).table("rounds")
    assert list(table) == list(rounds_columns([]))
    assert table["round"].tolist() == [1, 1, 2]
    assert table["parameter"].tolist() == ["bandwidth", "latency", None]
    assert table["value"][:2].tolist() == [2e11, 500.0]
    assert np.isnan(table["stderr"][1:]).all()
    assert table["error"].tolist() == [-0.1, -0.1, -0.01]
    assert table["run"].tolist() == ["rounds/1", "rounds/1", "rounds/2"]


def test_what_json_cannot_hold_is_a_bug_of_ours(tmp_path):
    with pytest.raises(TypeError, match="set cannot be written"):
        RunWriter.create(tmp_path, "fit", "x").describe(strange={1})
