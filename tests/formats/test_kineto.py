"""Kineto traces made by hand, in the profiler's words."""

import gzip
import json

import pytest

import genie
from genie.core.workload import CollectiveKind, NodeKind
from genie.errors import InputError
from genie.formats.kineto import read_kineto


def kernel(name, ts, dur, **args):
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 7, "args": args}


def nccl(called, ts, dur, nelems, dtype="BFloat16", group="0", size=2):
    args = {"Collective name": called, "In msg nelems": nelems, "dtype": dtype, "Group size": size}
    return kernel("ncclDevKernel_x(int)", ts, dur, **args, **{"Process Group Name": group})


def step(number, ts, dur):
    return {"ph": "X", "cat": "gpu_user_annotation", "name": f"ProfilerStep#{number}", "ts": ts, "dur": dur}


def write(path, events, rank=None):
    content = {"traceEvents": events} | ({} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}})
    text = json.dumps(content)
    if path.suffix == ".gz":
        with gzip.open(path, "wt") as file:
            file.write(text)
    else:
        path.write_text(text)
    return path


def test_kernels_become_operators_from_the_first_on(tmp_path):
    events = [
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 900.0, "dur": 50.0},
        nccl("allreduce", 1040.5, 30, 1000),
        kernel("gemm", 1000.0, 50.25),
    ]
    found = read_kineto([write(tmp_path / "a.json", events, rank=1)])
    gemm, reduce = found.operators.columns()["name"].tolist()
    assert (gemm, reduce) == ("gemm", "ncclDevKernel_x(int)")
    assert found.operators.issue_ns.tolist() == [0, 40_500]
    assert found.operators.done_ns.tolist() == [50_250, 70_500]
    assert found.operators.kind.tolist() == [NodeKind.COMP, NodeKind.COLLECTIVE]
    assert found.operators.size_bytes.tolist() == [0, 2000]
    assert found.ranks.finish_ns.tolist() == [70_500]
    assert found.ranks.exposed_ns.tolist() == [70_500 - 50_250]
    assert found.ranks.rank.tolist() == [1]


def test_overlapping_kernels_count_once_as_compute(tmp_path):
    events = [kernel("a", 0, 10), kernel("b", 5, 10), kernel("c", 6, 2), nccl("allreduce", 15, 5, 1)]
    found = read_kineto([write(tmp_path / "a.json", events)])
    assert found.ranks.exposed_ns.tolist() == [5_000]


@pytest.mark.parametrize(
    ("called", "kind"),
    [
        ("allreduce", CollectiveKind.ALL_REDUCE),
        ("_allgather_base", CollectiveKind.ALL_GATHER),
        ("_reduce_scatter_base", CollectiveKind.REDUCE_SCATTER),
        ("reduce_scatter", CollectiveKind.REDUCE_SCATTER),
        ("all_to_allv", CollectiveKind.ALL_TO_ALL),
        ("broadcast", CollectiveKind.BROADCAST),
    ],
)
def test_collectives_by_the_profilers_names(tmp_path, called, kind):
    found = read_kineto([write(tmp_path / "a.json", [nccl(called, 0, 1, 8, "Float")])])
    assert found.operators.comm_type.tolist() == [kind]
    assert found.operators.size_bytes.tolist() == [32]


def test_collectives_by_the_kernels_name_where_there_are_no_arguments(tmp_path):
    events = [kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*)", 0, 5), kernel("ncclKernel_X", 6, 1)]
    found = read_kineto([write(tmp_path / "a.json", events)])
    assert found.operators.comm_type.tolist() == [CollectiveKind.REDUCE_SCATTER, -1]
    assert found.operators.kind.tolist() == [NodeKind.COLLECTIVE, NodeKind.SEND]


def test_sends_and_receives(tmp_path):
    found = read_kineto([write(tmp_path / "a.json", [nccl("send", 0, 1, 8), nccl("recv", 2, 1, 8)])])
    assert found.operators.kind.tolist() == [NodeKind.SEND, NodeKind.RECV]


def test_steps_are_iterations(tmp_path):
    events = [step(3, 0, 100), step(4, 100, 100), kernel("a", 10, 20), kernel("b", 130, 40), kernel("late", 500, 1)]
    found = read_kineto([write(tmp_path / "a.json.gz", events)])
    assert found.operators.iteration.tolist() == [0, 1]
    assert found.iteration_times_ns().tolist() == [20_000, 40_000]


def test_ranks_are_opened_as_one_run(tmp_path):
    """Both reduce in 30 and 50 us; what a trace does not tell has no figure."""
    files = [
        write(tmp_path / f"{rank}.json", [kernel("a", 7, 3), nccl("allreduce", 10, 30 + 20 * rank, 1000)], rank=rank)
        for rank in (0, 1)
    ]
    run = genie.open_kineto(*files)
    (row,) = run.collectives.to_dict("records")
    assert (row["collective"], row["members"], row["total_bytes"], row["time_ns"]) == ("ALL_REDUCE", 2, 2000, 50_000)
    assert set(run.metrics()["metric"]) >= {"iteration_ns", "exposed_ns", "busbw_gb_per_s"}
    assert "GPU run" in run._repr_html_()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no json", "no JSON"),
        ("[]", "no traceEvents"),
        ('{"traceEvents": []}', "no GPU kernel"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a", "ts": 1}]}', "kernel without 'dur'"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a", "ts": "x", "dur": 1}]}', "no Kineto trace"),
    ],
)
def test_other_files_are_refused(tmp_path, text, says):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match=says):
        read_kineto([tmp_path / "a.json"])


def test_two_files_of_one_rank_and_none_at_all(tmp_path):
    files = [write(tmp_path / f"{name}.json", [kernel("a", 0, 1)], rank=0) for name in "ab"]
    with pytest.raises(InputError, match="is of rank 0"):
        read_kineto(files)
    with pytest.raises(InputError, match="cannot be read"):
        read_kineto([tmp_path / "none.json"])
    (tmp_path / "cut.json.gz").write_bytes(b"\x1f\x8b\x08")
    with pytest.raises(InputError):
        read_kineto([tmp_path / "cut.json.gz"])
