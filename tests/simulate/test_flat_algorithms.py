"""Algorithms over all ranks (oneRing and the like) beside others: finish times recorded from ASTRA-sim (518bd51)."""

import pytest

from genie.core.netmodel import Dimension, DimensionModel, Estimate, Topology
from genie.core.system import Optimization, System
from genie.core.workload import CollectiveKind
from genie.lower import lower
from genie.patterns import generate
from genie.simulate.builtin import simulate
from genie.units import astra_gbps_to_bps

AWARE, BASELINE = Optimization.LOCAL_BW_AWARE, Optimization.BASELINE

RECORDED = [
    (("ring", "oneRing"), AWARE, 41_715),
    (("ring", "oneRing"), BASELINE, 68_585),
    (("oneRing", "ring"), AWARE, 50_140),
    (("oneRing", "ring"), BASELINE, 50_140),
    (("direct", "oneDirect"), AWARE, 14_330),
    (("direct", "oneDirect"), BASELINE, 18_900),
    (("ring", "oneHalvingDoubling"), AWARE, 37_477),
    (("ring", "oneHalvingDoubling"), BASELINE, 63_483),
    (("oneHalvingDoubling", "direct"), AWARE, 45_038),
]


def finish(algorithms, optimization):
    shape = ((Topology.RING, 4), (Topology.SWITCH, 2))
    dimensions = tuple(Dimension(t, n, Estimate(astra_gbps_to_bps(50.0)), Estimate(500.0)) for t, n in shape)
    names = dict.fromkeys(CollectiveKind, algorithms)
    system = System(splits=2, algorithms=names, optimization=optimization, local_mem_bytes_per_s=1.6e12)
    schedule = lower(generate("all_reduce", 8, 1 << 20), system, (4, 2))
    return simulate(schedule, DimensionModel(dimensions, aware=False)).iteration_ns


@pytest.mark.parametrize(("algorithms", "optimization", "finish_ns"), RECORDED)
def test_a_flat_algorithm_spans_all_ranks_and_ends_the_list(algorithms, optimization, finish_ns):
    assert finish(algorithms, optimization) == finish_ns
