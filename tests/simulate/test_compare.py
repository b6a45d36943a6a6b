from dataclasses import replace

import numpy as np
import pytest

from genie.core.netmodel import Dimension, DimensionModel, Estimate, Topology
from genie.core.system import System
from genie.core.timeline import UNKNOWN, Operators
from genie.core.workload import CollectiveKind
from genie.lower import lower
from genie.patterns import generate
from genie.simulate.builtin import simulate
from genie.simulate.compare import first_parting, ranks_side_by_side


@pytest.fixture(scope="module")
def timeline():
    system = System(splits=1, algorithms=dict.fromkeys(CollectiveKind, ("ring",)))
    network = DimensionModel((Dimension(Topology.RING, 4, Estimate(1e11), Estimate(500.0)),))
    return simulate(lower(generate("data_parallel", 4, 1 << 20), system), network)


def changed(timeline, column, row, value):
    values = getattr(timeline.operators, column).copy()
    values[row] = value
    return replace(timeline, operators=Operators(**{**timeline.operators.columns(), column: values}))


def test_equal_timelines_part_nowhere(timeline):
    assert first_parting(timeline, timeline) is None
    assert {row["difference_ns"] for row in ranks_side_by_side(timeline, timeline)} == {0}


def test_the_earliest_difference_is_named(timeline):
    operators = timeline.operators
    late = int(np.argmax(operators.done_ns))
    early = int(np.argsort(operators.done_ns, kind="stable")[2])
    other = changed(changed(timeline, "done_ns", late, 10**9), "done_ns", early, int(operators.done_ns[early]) + 5)
    found = first_parting(timeline, other)
    assert (found.rank, found.node_id, found.event) == (operators.rank[early], operators.node_id[early], "done")
    assert (found.name, found.second_ns - found.first_ns) == (operators.name[early], 5)
    before = int((operators.done_ns < found.first_ns).sum() + (operators.issue_ns < found.first_ns).sum())
    assert found.equal_before >= before


def test_what_only_one_knows_is_no_difference(timeline):
    assert first_parting(timeline, changed(timeline, "done_ns", 0, UNKNOWN)) is None


def test_ranks_that_differ(timeline):
    finish = timeline.ranks.finish_ns.copy()
    finish[1] += finish[1]
    other = replace(timeline, ranks=replace(timeline.ranks, finish_ns=finish), executor="astra-sim")
    row = ranks_side_by_side(timeline, other)[1]
    assert row["difference_ns"] == timeline.ranks.finish_ns[1]
    assert row["relative"] == 1.0
    assert row["astra-sim_ns"] == 2 * row["builtin_ns"]
