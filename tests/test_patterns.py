import numpy as np
import pytest
from hypothesis import given
from strategies import patterns

from genie.core.workload import NodeKind
from genie.errors import InputError
from genie.formats.chakra import RawTrace
from genie.formats.check import check
from genie.patterns import PATTERNS, generate


def raw(trace):
    ids = trace.nodes.node_id[trace.deps]
    none = np.zeros(len(trace.nodes) + 1, np.int64)
    return RawTrace(trace.source, "", trace.nodes, trace.dep_offsets, ids, none, np.empty(0, np.uint64))


@given(patterns(4))
def test_every_pattern_is_free_of_errors(workload):
    findings = check({trace.rank: raw(trace) for trace in workload.traces}, workload.groups)
    assert [f for f in findings if f.severity == "error"] == []


def test_a_pipeline_overlaps_forward_and_backward():
    workload = generate("pipeline", 4, 1000)
    kinds = [trace.nodes.kind.tolist() for trace in workload.traces]
    assert kinds[0].count(NodeKind.SEND) == 4
    assert kinds[1].count(NodeKind.SEND) == 8
    assert kinds[3].count(NodeKind.RECV) == 4


@pytest.mark.parametrize(("name", "ranks", "size"), [("nonsense", 4, 1), ("all_reduce", 1, 1), ("all_reduce", 4, 0)])
def test_impossible_patterns_are_refused(name, ranks, size):
    with pytest.raises(InputError):
        generate(name, ranks, size)


def test_registry_makes_every_pattern():
    for name in PATTERNS:
        assert generate(name, 4, 4096).ranks == 4
