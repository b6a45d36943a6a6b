"""Real traces of every age, where the collection is beside the checkout."""

from pathlib import Path

import pytest

from genie.core.system import System
from genie.core.workload import CollectiveKind, Workload
from genie.errors import InputError
from genie.formats.chakra import read_raw, read_trace
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
