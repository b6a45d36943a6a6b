"""Traces read together are what each is when it is read alone, errors included."""

import tempfile
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from strategies import rank_traces

from genie.core.system import System
from genie.core.workload import CollectiveKind
from genie.errors import InputError
from genie.formats import chakra_many
from genie.formats.chakra import read_trace
from genie.formats.chakra_many import read_traces
from genie.formats.chakra_writer import write_trace
from genie.formats.workload import load_workload, save_workload
from genie.lower import lower
from genie.patterns import collective


def assert_equal(one, other):
    assert (one.rank, one.source) == (other.rank, other.source)
    for name, column in one.nodes.columns().items():
        assert column.tolist() == getattr(other.nodes, name).tolist(), name
    assert np.array_equal(one.dep_offsets, other.dep_offsets)
    assert np.array_equal(one.deps, other.deps)


@settings(max_examples=40, deadline=None)
@given(st.lists(rank_traces(), min_size=1, max_size=5), st.sampled_from([1, 300, 1 << 24]))
def test_together_as_alone(traces, batch_bytes):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(chakra_many, "BATCH_BYTES", batch_bytes)
        files = {rank: Path(folder) / f"t.{rank}.et" for rank in range(len(traces) + 1)}
        for rank, path in files.items():
            write_trace(path, replace(traces[rank % len(traces)], rank=rank))
        for rank, trace in enumerate(read_traces(files)):
            assert_equal(trace, read_trace(files[rank], rank))


@pytest.mark.parametrize("damage", [b"", b"\x05abc", b"\x00\x02\xff\xff", None])
def test_the_error_is_the_lone_file_s(tmp_path, damage):
    workload = collective(CollectiveKind.ALL_REDUCE, 4, 4096)
    save_workload(tmp_path / "t", workload)
    files = {rank: tmp_path / f"t.{rank}.et" for rank in range(4)}
    if damage is None:
        files[2].unlink()
    else:
        files[2].write_bytes(damage)
    files[3].write_bytes(b"\x01")
    with pytest.raises(InputError) as alone:
        read_trace(files[2], 2)
    with pytest.raises(InputError) as together:
        read_traces(files)
    assert str(together.value) == str(alone.value)


def test_equal_files_share_columns_and_operators(tmp_path):
    save_workload(tmp_path / "t", collective(CollectiveKind.ALL_REDUCE, 4, 4096))
    for factor in (1.0, 2.0):
        workload = load_workload(tmp_path / "t", scale_bytes=factor)
        assert {int(trace.nodes.size_bytes[0]) for trace in workload.traces} == {4096 * factor}
        schedule = lower(workload, System(splits=1, algorithms={CollectiveKind.ALL_REDUCE: ("ring",)}))
        assert len({id(part.operators) for part in schedule.ranks}) == 1
        assert [part.rank for part in schedule.ranks] == [0, 1, 2, 3]
