"""Our own golden set: workloads made by our generator, cycles as text, so that parity is held without ../shared.

The cycles are those of ASTRA-sim itself (commit 518bd51), of patterns and of random jobs, systems and networks. To
write the files again, with GENIE_ASTRA_SIM naming the folder of its programs: python tests/simulate/test_golden_own.py
"""

import json
import tempfile
from itertools import product
from pathlib import Path

import pytest
from astra_random import case

from genie.core.netmodel import Dimension, DimensionModel, Estimate, Topology
from genie.core.system import System
from genie.core.workload import CollectiveKind
from genie.errors import GenieError
from genie.lower import lower
from genie.patterns import collective, generate
from genie.simulate import astra
from genie.simulate.astra import AstraSim
from genie.simulate.builtin import simulate
from genie.units import astra_gbps_to_bps

FOLDER = Path(__file__).resolve().parents[1] / "golden"
GOLDEN, RANDOM = FOLDER / "cycles.txt", FOLDER / "random.jsonl"
MOST_MESSAGES = 2000
PATTERNS = ("data_parallel", "pipeline", "tensor_parallel", "mixture_of_experts")
MEMORY = 1.6e12


def network(topology, ranks, aware):
    return DimensionModel((Dimension(topology, ranks, Estimate(astra_gbps_to_bps(50.0)), Estimate(500.0)),), aware)


def system(algorithm, splits, active):
    names = dict.fromkeys(CollectiveKind, (algorithm,))
    return System(splits=splits, active_chunks=active, algorithms=names, local_mem_bytes_per_s=MEMORY)


def lines(run):
    for topology, algorithm, (splits, active), aware, pattern in product(
        Topology, ("ring", "direct", "direct2"), ((1, 1), (4, 1), (4, 3)), (False, True), PATTERNS
    ):
        schedule = lower(generate(pattern, 4, 1 << 20), system(algorithm, splits, active))
        finish = run(schedule, network(topology, 4, aware)).ranks.finish_ns.tolist()
        yield f"{topology.value} {algorithm} {splits}/{active} {'aware' if aware else 'unaware'} {pattern}: {finish}"


def test_cycles_are_as_recorded():
    assert list(lines(simulate)) == GOLDEN.read_text().splitlines()


def random_case(seed):
    made = case(seed)
    return lower(made.workload, made.system, tuple(d.size for d in made.network.dimensions)), made.network


def ticks(timeline):
    """Finish and exposed time by rank, and rank, node, issue and completion of every operator."""
    ranks, operators = timeline.ranks, timeline.operators
    columns = (operators.rank, operators.node_id, operators.issue_ns, operators.done_ns)
    return {
        "finish": ranks.finish_ns.tolist(),
        "exposed": ranks.exposed_ns.tolist(),
        "operators": sorted(map(list, zip(*(column.tolist() for column in columns), strict=True))),
    }


@pytest.mark.parametrize("line", RANDOM.read_text().splitlines() if RANDOM.is_file() else [], ids=lambda x: x[:12])
def test_random_jobs_take_as_long_as_in_astra_sim(line):
    recorded = json.loads(line)
    assert ticks(simulate(*random_case(recorded.pop("seed")))) == recorded


def message_ns(size, hops=1):
    return int(hops * 500.0 + size / (50.0 * 2**30 / 1e9))


def reduction_ns(size):
    return 3 * int(size / MEMORY * 1e9)


@pytest.mark.parametrize("ranks", [3, 4, 8])
@pytest.mark.parametrize("size", [1 << 20, 999_999])
def test_closed_forms(ranks, size):
    share, e = size // ranks, 10
    ring, reduced = message_ns(share) + e, reduction_ns(share)
    want = {
        ("ring", CollectiveKind.ALL_REDUCE): e + 2 * (ranks - 1) * ring + (ranks - 1) * reduced,
        ("ring", CollectiveKind.REDUCE_SCATTER): e + (ranks - 1) * (ring + reduced),
        ("ring", CollectiveKind.ALL_GATHER): e + (ranks - 1) * (message_ns(size) + e),
        ("ring", CollectiveKind.ALL_TO_ALL): e + ranks * (ranks - 1) // 2 * ring,
        ("direct", CollectiveKind.ALL_REDUCE): 3 * e + 2 * message_ns(share) + reduced,
        ("direct", CollectiveKind.REDUCE_SCATTER): 2 * e + message_ns(share) + reduced,
        ("direct", CollectiveKind.ALL_GATHER): 2 * e + message_ns(size),
        ("direct", CollectiveKind.ALL_TO_ALL): 2 * e + message_ns(share),
    }
    for (algorithm, kind), finish in want.items():
        topology = Topology.RING if algorithm == "ring" else Topology.FULLY_CONNECTED
        schedule = lower(collective(kind, ranks, size), system(algorithm, 1, 1))
        got = simulate(schedule, network(topology, ranks, aware=False))
        assert set(got.ranks.finish_ns.tolist()) == {finish}, (algorithm, kind)


def astra_sim(schedule, model):
    with tempfile.TemporaryDirectory() as folder:
        return astra.simulate(schedule, model, Path(folder) / "run", AstraSim()).timeline


def record(count=200):
    """Random cases that ASTRA-sim can do and that take little time here."""
    seed, written = 0, []
    while len(written) < count:
        seed += 1
        try:
            schedule, model = random_case(seed)
            if len(simulate(schedule, model).messages) < MOST_MESSAGES:
                written.append(json.dumps({"seed": seed} | ticks(astra_sim(schedule, model)), separators=(",", ":")))
        except GenieError:
            continue
    return written


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(lines(astra_sim)) + "\n")
    RANDOM.write_text("\n".join(record()) + "\n")
