import inspect
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from strategies import patterns

from genie.core.netmodel import Dimension, DimensionModel, Estimate, Topology
from genie.core.schedule import COLLECTIVE_TAGS
from genie.core.system import Profile, System
from genie.core.workload import CollectiveKind, NodeKind
from genie.errors import InputError
from genie.formats.chakra import RawTrace
from genie.formats.check import check
from genie.formats.workload import load_workload, save_workload
from genie.lower import lower
from genie.patterns import PATTERNS, generate
from genie.simulate.builtin import simulate


@st.composite
def varied(draw, least_bytes=1):
    """Any pattern with any of its parameters changed."""
    name = draw(st.sampled_from(sorted(PATTERNS)))
    others = {}
    for parameter in PATTERNS[name].parameters:
        if parameter.default is None or not draw(st.booleans()):
            continue
        if parameter.name in {"tensor", "replicas"}:
            others[parameter.name] = draw(st.sampled_from([1, 2, 4]))
        elif parameter.type is float:
            others[parameter.name] = draw(st.floats(0, 1))
        else:
            others[parameter.name] = draw(st.integers(int(parameter.least), 7))
    return generate(name, 16, draw(st.integers(least_bytes, 1 << 20)), **others)


def raw(trace):
    ids = trace.nodes.node_id[trace.deps]
    none = np.zeros(len(trace.nodes) + 1, np.int64)
    return RawTrace(trace.source, "", trace.nodes, trace.dep_offsets, ids, none, np.empty(0, np.uint64))


def messages(workload, kind):
    """(source, destination, tag, size) of every send, or of every receive."""
    found = Counter()
    for trace in workload.traces:
        nodes = trace.nodes
        for row in np.flatnonzero(nodes.kind == kind).tolist():
            ends = (trace.rank, int(nodes.peer[row]))
            found[
                (*(ends if kind == NodeKind.SEND else ends[::-1]), int(nodes.tag[row]), int(nodes.size_bytes[row]))
            ] += 1
    return found


@given(patterns(4))
def test_every_pattern_is_free_of_errors(workload):
    findings = check({trace.rank: raw(trace) for trace in workload.traces}, workload.groups)
    assert [f for f in findings if f.severity == "error"] == []


@given(varied())
def test_every_send_has_its_receive_and_no_two_share_a_key(workload):
    sends = messages(workload, NodeKind.SEND)
    assert sends == messages(workload, NodeKind.RECV)
    assert max(sends.values(), default=1) == 1
    assert all(source != destination and 0 <= tag < COLLECTIVE_TAGS for source, destination, tag, _ in sends)


@given(varied())
def test_ids_ascend_and_dependencies_point_back(workload):
    for trace in workload.traces:
        assert trace.nodes.node_id.tolist() == list(range(len(trace.nodes)))
        rows = np.repeat(np.arange(len(trace.nodes)), np.diff(trace.dep_offsets))
        assert bool((trace.deps < rows).all()), "a graph whose edges all point back has no cycle"


@given(varied())
def test_members_of_a_group_issue_the_same_collectives(workload):
    members = {"": range(workload.ranks)} | {group.name: group.ranks for group in workload.groups}
    issued = {}
    for trace in workload.traces:
        nodes = trace.nodes
        for row in np.flatnonzero(nodes.kind == NodeKind.COLLECTIVE).tolist():
            what = (int(nodes.comm_type[row]), int(nodes.size_bytes[row]))
            issued.setdefault(nodes.group[row], {}).setdefault(trace.rank, []).append(what)
    for name, by_rank in issued.items():
        assert sorted(by_rank) == sorted(members[name])
        assert len({tuple(sequence) for sequence in by_rank.values()}) == 1
    assert "0" not in members, "ASTRA-sim reads group 0 as all ranks"


@given(varied())
def test_what_a_trace_can_hold(workload):
    for trace in workload.traces:
        nodes = trace.nodes
        assert not (nodes.duration_ns % 1000).any()
        assert bool((nodes.duration_ns[nodes.kind == NodeKind.COMP] > 0).all())
        assert bool((nodes.size_bytes[nodes.kind != NodeKind.COMP] > 0).all())
        assert all(nodes.name.tolist())


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_files_hold_the_whole_pattern(tmp_path, name):
    made = generate(name, 8, 4096)
    save_workload(tmp_path / "w", made)
    read = load_workload(tmp_path / "w")
    assert read.groups == made.groups
    for ours, theirs in zip(made.traces, read.traces, strict=True):
        assert ours.deps.tolist() == theirs.deps.tolist()
        for column, values in ours.nodes.columns().items():
            assert values.tolist() == theirs.nodes.columns()[column].tolist(), column


@settings(max_examples=25)
@given(varied(least_bytes=4096), st.sampled_from(list(Profile)))
def test_nothing_waits_for_ever(workload, profile):
    network = DimensionModel((Dimension(Topology.SWITCH, 16, Estimate(4e11), Estimate(500.0)),))
    rings = dict.fromkeys(CollectiveKind, ("ring",))
    system = System(splits=1, algorithms=rings, extended=True, profile=profile)
    timeline = simulate(lower(workload, system), network)
    assert bool((timeline.ranks.finish_ns > 0).all())


def test_a_pipeline_overlaps_forward_and_backward():
    workload = generate("pipeline", 4, 1000)
    kinds = [trace.nodes.kind.tolist() for trace in workload.traces]
    assert kinds[0].count(NodeKind.SEND) == 4
    assert kinds[1].count(NodeKind.SEND) == 8
    assert kinds[3].count(NodeKind.RECV) == 4
    computes = [n for n, k in zip(workload.traces[1].nodes.name, kinds[1], strict=True) if k == NodeKind.COMP]
    assert computes == ["F0", "F1", "F2", "B0", "F3", "B1", "B2", "B3"]


def test_replicas_of_a_pipeline_reduce_their_gradients():
    workload = generate("pipeline", 8, 1000, replicas=2)
    assert {group.ranks for group in workload.groups} == {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert all(trace.nodes.kind.tolist().count(NodeKind.COLLECTIVE) == 1 for trace in workload.traces)


def test_hybrid_on_eight_ranks_is_two_by_two_by_two():
    workload = generate("hybrid", 8, 1 << 20)
    tensor = [group.ranks for group in workload.groups[:4]]
    data = [group.ranks for group in workload.groups[4:]]
    assert tensor == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert data == [(0, 2), (1, 3), (4, 6), (5, 7)]
    nodes = workload.traces[0].nodes
    assert set(nodes.peer[nodes.kind == NodeKind.SEND].tolist()) == {4}
    reduced = nodes.size_bytes[nodes.kind == NodeKind.COLLECTIVE].tolist()
    assert reduced == [1 << 18] * 4 + [1 << 20], "two microbatches there and back, then the gradients"


def test_gradients_share_an_all_reduce_until_their_bucket_is_full():
    nodes = generate("data_parallel", 2, 1000, layers=4, bucket_bytes=1500).traces[0].nodes
    reduced = [
        (name, size)
        for name, size, kind in zip(nodes.name, nodes.size_bytes.tolist(), nodes.comm_type.tolist(), strict=True)
        if kind == CollectiveKind.ALL_REDUCE
    ]
    assert reduced == [("all-reduce gradients 3+2", 1750), ("all-reduce gradients 1+0", 750)]


def test_the_backward_pass_does_not_wait_for_all_reduces():
    trace = generate("data_parallel", 2, 1000).traces[0]
    reduces = set(np.flatnonzero(trace.nodes.comm_type == CollectiveKind.ALL_REDUCE).tolist())
    waiting = {
        row
        for row in range(len(trace.nodes))
        if reduces & set(trace.deps[trace.dep_offsets[row] :][: np.diff(trace.dep_offsets)[row]].tolist())
    }
    assert [trace.nodes.name[row] for row in waiting] == ["optimizer"]


def test_experts_are_unequal_by_the_seed():
    def durations(**others):
        return [t.nodes.duration_ns.tolist() for t in generate("mixture_of_experts", 4, 1000, **others).traces]

    assert durations() == durations(seed=1) != durations(seed=2)
    assert len({tuple(row) for row in durations()}) > 1
    assert len({tuple(row) for row in durations(imbalance=0)}) == 1


def test_incast_spares_its_target():
    workload = generate("incast", 4, 10, target=2)
    assert workload.traces[2].nodes.kind.tolist() == [NodeKind.RECV] * 3
    assert all(t.nodes.kind.tolist() == [NodeKind.SEND] for t in workload.traces if t.rank != 2)


@pytest.mark.parametrize(
    ("name", "ranks", "size", "others", "reason"),
    [
        ("nonsense", 4, 1, {}, "no pattern 'nonsense'"),
        ("all_reduce", 1, 1, {}, "ranks must be at least 2"),
        ("all_reduce", 4, 0, {}, "size_bytes must be at least 1"),
        ("data_parallel", 4, 1, {"layers": 0}, "layers must be at least 1"),
        ("data_parallel", 4, 1, {"layers": "many"}, "layers must be a number, not 'many'"),
        ("data_parallel", 4, 1, {"depth": 3}, "no parameter 'depth'"),
        ("all_reduce", 4, 1, {"kind": 3}, "no parameter 'kind'"),
        ("hybrid", 6, 1, {}, "6 ranks cannot be cut"),
        ("incast", 4, 1, {"target": 4}, "target 4"),
        ("shift", 4, 1, {"by": 4}, "a message of its own"),
    ],
)
def test_impossible_patterns_are_refused(name, ranks, size, others, reason):
    with pytest.raises(InputError, match=reason):
        generate(name, ranks, size, **others)


def test_the_registry_tells_every_parameter():
    for name, pattern in PATTERNS.items():
        assert generate(name, 4, 4096).ranks == 4
        names = [parameter.name for parameter in pattern.parameters]
        assert names == list(inspect.signature(pattern.make).parameters)
        assert names[:2] == ["ranks", "size_bytes"]
        assert all(parameter.about for parameter in pattern.parameters)


def test_numbers_may_come_as_text():
    assert len(generate("tensor_parallel", 2, 64, layers="3").traces[0].nodes) == 12
