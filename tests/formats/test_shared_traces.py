"""Real traces of every age, where the collection is beside the checkout."""

import tarfile
from pathlib import Path

import pytest

from genie.core.system import System
from genie.core.workload import CollectiveKind, Workload
from genie.errors import InputError
from genie.formats.astra import read_memory, read_network, read_system
from genie.formats.chakra import read_raw, read_trace
from genie.formats.chakra_schema import Node
from genie.formats.check import check_files, repair_files
from genie.formats.comm_groups import read_comm_groups
from genie.formats.frames import read_frames
from genie.formats.workload import TRACE_NAME, load_workload
from genie.lower import lower

SHARED = Path(__file__).resolve().parents[3] / "shared"
MALFORMED = SHARED / "traces" / "gen-malformed"
pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared, the trace collection, beside the checkout"),
]
GOOD = {"ok", "gzip", "forward_dep", "comm_size_uint64", "is_cpu_op_int32", "is_cpu_op_true"}
LATER = {"comm_size_missing", "comm_type_missing", "send_without_dst", "pg_name_unknown"}


def sound():
    return [p for p in SHARED.rglob("*.et") if MALFORMED not in p.parents]


def test_all_good_files_read():
    files = sound()
    assert len(files) > 500
    stuck = []
    for path in files:
        raw = read_raw(path)
        assert len(raw.nodes)
        try:
            read_trace(path, 0)
        except InputError as error:
            stuck.append((path.name, error.what))
    assert stuck == []


@pytest.mark.parametrize("path", sorted(MALFORMED.glob("*.et")), ids=lambda p: p.name)
def test_malformed_files(path):
    name = path.name.removesuffix(".0.et")
    if name in GOOD | LATER:
        read_trace(path, 0)
        return
    read = read_and_lower if name == "cycle" else read_trace
    with pytest.raises(InputError) as error:
        read(path, 0)
    assert path.name in str(error.value)


def read_and_lower(path, rank):
    """A cycle is found when the workload is lowered."""
    lower(
        Workload("one", (read_trace(path, rank),)), System(splits=1, algorithms={CollectiveKind.ALL_REDUCE: ("ring",)})
    )


def prefixes():
    folders = [SHARED / "traces" / name for name in ("astra-sim-examples", "gen-stg", "genie-branch", "gent-branch")]
    matches = [(path, TRACE_NAME.match(path.name)) for folder in folders for path in folder.rglob("*.et")]
    return sorted({path.parent / match["prefix"] for path, match in matches if match})


def test_attributes_are_those_that_protobuf_finds():
    """Every tenth file, by protobuf's own decoder."""
    for path in sorted(sound())[::10]:
        raw, frames = read_raw(path), read_frames(path)
        for row in range(len(raw.nodes)):
            node = Node.FromString(frames.content(row + 1))
            values = {a.name: getattr(a, a.WhichOneof("value")) for a in node.attr if a.WhichOneof("value")}
            assert raw.nodes.node_id[row] == node.id
            assert raw.nodes.size_bytes[row] == values.get("comm_size", -1)
            assert raw.nodes.tensor_bytes[row] == values.get("tensor_size", -1)
            assert raw.nodes.group[row] == values.get("pg_name", "")
            data = raw.data_ids[raw.data_offsets[row] : raw.data_offsets[row + 1]]
            assert data.tolist() == list(node.data_deps)


def test_good_sets_have_no_errors():
    chosen = prefixes()
    assert len(chosen) > 45
    errors = [(prefix.name, f.rule) for prefix in chosen for f in check_files(prefix) if f.severity == "error"]
    assert errors == []


def test_groups_of_stg_are_found_beside_its_traces():
    for folder in sorted((SHARED / "traces" / "gen-stg").iterdir()):
        if folder.is_dir():
            assert load_workload(folder).groups == read_comm_groups(folder / "workload.json")


def test_every_configuration_of_the_golden_corpus_reads(monkeypatch):
    golden = SHARED / "golden"
    monkeypatch.chdir(golden)  # paths in system files are relative to it
    networks = sorted((golden / "networks").iterdir())
    systems = sorted((golden / "systems").iterdir())
    for path in networks:
        assert read_network(path).ranks > 1
    for path in systems:
        assert read_system(path).active_chunks > 0
    for path in sorted((golden / "memory").iterdir()):
        read_memory(path)
    for path in sorted((golden / "comm_groups").iterdir()):
        assert read_comm_groups(path)
    assert len(networks) > 5
    assert len(systems) > 20


def test_the_resnet_trace_runs_after_repair(tmp_path):
    archive = SHARED / "traces/mlcommons-chakra/tests/data/feeder_tests_trace.tar.gz"
    with tarfile.open(archive) as tar:
        member = next(m for m in tar.getmembers() if m.name.endswith(".et"))
        (tmp_path / "resnet.0.et").write_bytes(tar.extractfile(member).read())
    rules = {f.rule for f in check_files(tmp_path / "resnet") if f.severity == "error"}
    assert rules == {"dangling-dependency", "self-dependency", "cpu-wrapper", "cycle"}
    changes = repair_files(tmp_path / "resnet", tmp_path / "fixed")
    assert [int(change.split("dropped ")[1].split()[0]) for change in changes[:3]] == [1277, 383, 554]
    assert "took out 14" in changes[3]
    assert [f for f in check_files(tmp_path / "fixed" / "resnet") if f.severity == "error"] == []
    assert len(load_workload(tmp_path / "fixed" / "resnet").traces[0].nodes) == 3664 - 14
