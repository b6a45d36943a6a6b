import pytest

from genie.core.workload import CollectiveKind, NodeKind
from genie.patterns import generate
from genie.suite.jobs import interleaved


def sends(workload):
    found = []
    for trace in workload.traces:
        rows = trace.nodes.kind == NodeKind.SEND
        found += [(trace.rank, peer) for peer in trace.nodes.peer[rows].tolist()]
    return found


def test_copies_lie_side_by_side():
    """A shift by one of three ranks, twice: 0 2 4 among themselves, 1 3 5 among themselves."""
    found = interleaved(generate("shift", 3, 100, by=1), 2)
    assert found.ranks == 6
    assert sends(found) == [(0, 2), (1, 3), (2, 4), (3, 5), (4, 0), (5, 1)]


def test_idle_copies_do_nothing():
    found = interleaved(generate("shift", 3, 100, by=1), 2, idle=True)
    assert sends(found) == [(0, 2), (2, 4), (4, 0)]
    assert [len(trace.nodes) for trace in found.traces] == [2, 0, 2, 0, 2, 0]


def test_collectives_of_all_ranks_become_those_of_their_job():
    found = interleaved(generate("all_reduce", 4, 100), 2)
    for trace in found.traces:
        (name,) = {str(name) for name in trace.nodes.group[trace.nodes.comm_type == CollectiveKind.ALL_REDUCE]}
        group = found.group_named(name)
        assert trace.rank in group.ranks
        assert group.ranks == tuple(range(trace.rank % 2, 8, 2))


def test_groups_of_a_job_stay_apart():
    job = generate("hybrid", 8, 1 << 20, tensor=2, replicas=2)
    found = interleaved(job, 2)
    assert len(found.groups) == 2 * len(job.groups) + 2
    used = {str(name) for trace in found.traces for name in trace.nodes.group if name}
    assert used <= {group.name for group in found.groups}
    for trace in found.traces:
        members = [found.group_named(str(name)).ranks for name in trace.nodes.group if name]
        assert all(trace.rank in ranks for ranks in members)


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_bytes_are_those_of_so_many_jobs(jobs):
    job = generate("data_parallel", 4, 1 << 20)
    sizes = sum(int(trace.nodes.size_bytes.clip(0).sum()) for trace in interleaved(job, jobs).traces)
    assert sizes == jobs * sum(int(trace.nodes.size_bytes.clip(0).sum()) for trace in job.traces)
