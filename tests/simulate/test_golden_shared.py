"""Cycle parity with ASTRA-sim's own results, where the shared collection is beside the checkout."""

import gzip
import json
from pathlib import Path

import pytest

from genie.errors import InputError
from genie.formats.astra import read_custom_collectives, read_memory, read_network, read_system
from genie.formats.workload import load_workload
from genie.lower import lower
from genie.simulate.builtin import Way, simulate

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden"
pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not GOLDEN.is_dir(), reason="needs ../shared/golden beside the checkout"),
]


def cases():
    lines = (GOLDEN / "results.jsonl").read_text().splitlines() if GOLDEN.is_dir() else []
    return [json.loads(line) for line in lines]


def option(case, name, default):
    found = [x.split("=")[1] for x in case["extra"] if x.startswith(f"--{name}=")]
    return found[0] if found else default


def run(case):
    system = read_system(
        case["system"],
        queues_per_dim=int(option(case, "num-queues-per-dim", "1")),
        injection_scale=float(option(case, "injection-scale", "1")),
        rendezvous=option(case, "rendezvous-protocol", "false") == "true",
        memory=read_memory(case["memory"]),
    )
    network = read_network(case["network"], aware=case["backend"] == "aware")
    workload = load_workload(case["workload"], comm_groups=case["comm_group"], ranks=network.ranks)
    sizes = tuple(d.size for d in network.dimensions)
    return lower(workload, system, sizes, read_custom_collectives(system)), network


def ways(schedule, network):
    """The timeline of every path that can be taken."""
    yield simulate(schedule, network)
    for way in (Way.SYMMETRIC, Way.COMPILED):
        try:
            yield simulate(schedule, network, way=way)
        except InputError as error:
            assert "path cannot be taken" in str(error)  # noqa: PT017 - only that one is expected


def spread(value, count):
    return value if isinstance(value, list) else [value] * count


def recorded_nodes(timeline):
    nodes: dict[str, dict[str, list[int | None]]] = {}
    op = timeline.operators
    for at in range(len(op)):
        done = int(op.done_ns[at])
        nodes.setdefault(str(op.rank[at]), {})[str(op.node_id[at])] = [
            int(op.issue_ns[at]),
            None if done < 0 else done,
        ]
    return nodes


def messages(timeline):
    m = timeline.messages
    return sorted(
        zip(
            m.posted_ns.tolist(),
            m.delivered_ns.tolist(),
            m.src.tolist(),
            m.dst.tolist(),
            m.size_bytes.tolist(),
            m.tag.tolist(),
            strict=True,
        )
    )


def recorded_messages(path):
    sent, arrived = {}, {}
    for line in gzip.decompress(path.read_bytes()).decode().split()[1:]:
        event, tick, *key = line.split(",")
        if event == "send":
            sent[tuple(key)] = int(tick)
        elif event == "arrive":
            arrived[tuple(key)] = int(tick)
    return sorted((sent[k], arrived[k], *map(int, k[:4])) for k in sent)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_same_cycles(case, monkeypatch):
    monkeypatch.chdir(GOLDEN)
    finished = spread(case["finished"], case["n"])
    if None in finished:
        with pytest.raises(InputError):
            simulate(*run(case))
        return
    for timeline in ways(*run(case)):
        check(case, timeline, finished)


def check(case, timeline, finished):
    assert timeline.ranks.finish_ns.tolist() == finished
    assert timeline.ranks.exposed_ns.tolist() == spread(case["exposed"], case["n"])
    if case.get("nodes"):
        got = recorded_nodes(timeline)
        for rank, nodes in case["nodes"].items():
            assert {k: got[rank].get(k) for k in nodes} == nodes
    record = GOLDEN / "messages" / f"{case['id'].replace('/', '__')}.csv.gz"
    if record.is_file():
        assert messages(timeline) == recorded_messages(record)
