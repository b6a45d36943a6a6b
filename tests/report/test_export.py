import csv
import gzip
import json
from itertools import pairwise

import pytest
from made import SEND, all_reduce, message, operator, saved, saved_loop, small, timeline

from genie.cli import cli
from genie.core.workload import CollectiveKind, NodeKind
from genie.errors import InputError, NotReadyError
from genie.report import export


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_every_table_as_csv(tmp_path):
    run = saved_loop(tmp_path)
    written = {path.stem: rows(path) for path in export.csv(run, tmp_path / "csv")}
    assert set(written) == {"flows", "operators", "ranks", "collectives", "rounds", "links", "routes"}
    assert len(written["flows"]) == 4 * len(small().messages)
    assert {row["run"] for row in written["flows"]} == {
        f"rounds/{n}-{k}" for n in (1, 2) for k in ("replay", "simulate")
    }
    assert written["rounds"][0]["parameter"] == "bandwidth"
    assert float(written["flows"][0]["fct_ns"]) == 40


def trace(run, tmp_path, name="t.json"):
    path = export.chrome_trace(run, tmp_path / name)
    text = gzip.decompress(path.read_bytes()).decode() if name.endswith(".gz") else path.read_text()
    return json.loads(text)["traceEvents"]


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_trace_holds_every_operator_and_message(tmp_path, name):
    events = trace(saved_loop(tmp_path), tmp_path, name)
    slices = [event for event in events if event["ph"] == "X"]
    views = 2
    operators, messages = len(small().operators), len(small().messages)
    assert len(slices) == views * (operators + 2 * messages)
    assert len([event for event in events if event["ph"] == "s"]) == views * messages
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"rank 0, measured", "rank 1, measured", "rank 0, predicted", "rank 1, predicted"}


def test_a_trace_keeps_the_rules_of_its_format(tmp_path):
    """Times are not negative, slices of a thread never overlap, every arrow has both ends on a slice's start."""
    overlapping = [message(0, 1, 8, 0, 30), message(0, 1, 8, 10, 20, index=1), message(0, 1, 8, 20, 40, index=2)]
    events = trace(saved(tmp_path, timeline(messages=overlapping)), tmp_path)
    threads = {}
    for event in events:
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in threads.values():
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert len(threads) == 4, "two at once need two threads, at either end"
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert set(threads) <= named
    starts = {(event["pid"], event["tid"], event["ts"]) for event in events if event["ph"] == "X"}
    ends = {}
    for event in events:
        if event["ph"] in "sf":
            assert (event["pid"], event["tid"], event["ts"]) in starts
            ends.setdefault(event["id"], []).append(event["ph"])
    assert sorted("".join(sorted(pair)) for pair in ends.values()) == ["fs"] * 3


def test_iterations_follow_one_another_in_a_trace(tmp_path):
    events = trace(saved(tmp_path, small()), tmp_path)
    forward = sorted(e["ts"] for e in events if e["ph"] == "X" and e["name"] == "forward" and e["pid"] == 0)
    assert forward == [0, 0.1], "the second starts when the first ends, after 100 ns"


def test_nccl_counts(tmp_path):
    kinds = {
        CollectiveKind.ALL_REDUCE: (1000, 1000),
        CollectiveKind.ALL_GATHER: (2000, 1000),
        CollectiveKind.REDUCE_SCATTER: (1000, 500),
        CollectiveKind.ALL_TO_ALL: (1000, 500),
        CollectiveKind.BROADCAST: (1000, 1000),
    }
    operators = [
        operator(rank, node, NodeKind.COLLECTIVE, 0, 1000, comm=kind, size=1000)
        for node, kind in enumerate(kinds)
        for rank in (0, 1)
    ]
    found = {
        r["experiment_name"].split("_perf")[0]: r
        for r in export.nccl_results(saved(tmp_path, timeline(operators=operators)))
    }
    for kind, (size, count) in kinds.items():
        row = found[{"ALL_TO_ALL": "alltoall"}.get(kind.name, kind.name.lower())]
        assert (row["size"], row["count"]) == (size, count), kind
    assert found["all_gather"]["out_of_place"] == {"time": 1.0, "alg_bw": 2.0, "bus_bw": 1.0, "nwrong": None}
    assert found["all_reduce"]["redop"] == "sum"
    assert found["broadcast"]["redop"] == "none"


def parse(table):
    """What a scraper of nccl-tests does."""
    return [line.split() for line in table.splitlines() if line and not line.startswith("#")]


def test_the_table_is_nccl_tests(tmp_path):
    run = saved(
        tmp_path, timeline(operators=[all_reduce(0, 0, 100_000, size=1 << 20), all_reduce(1, 0, 100_000, size=1 << 20)])
    )
    table = export.nccl_table(run)
    assert parse(table) == [["1048576", "1048576", "uint8", "sum", "-1", *2 * ["100.00", "10.49", "10.49", "N/A"]]]
    head = table.splitlines()[4].split()
    assert head[1:] == ["size", "count", "type", "redop", "root", *2 * ["time", "algbw", "busbw", "#wrong"]]
    assert "# Avg bus bandwidth    : 10.4858 " in table
    assert "# Out of bounds values : 0 OK" in table
    ends = [len(line.rstrip()) for line in (table.splitlines()[4], parse_line(table))]
    assert ends[0] == ends[1], "columns stand below their names"


def parse_line(table):
    return next(line for line in table.splitlines() if line and not line.startswith("#"))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123, "0.12"), (9999.994, "9999.99"), (12345.6, "12345.6"), (1234567.4, "1234567"), (1e9, "1.0e+09")],
)
def test_numbers_fit_their_column(value, text):
    assert export._fitting(value, 7) == text


def test_nccl_json_has_its_keys(tmp_path):
    found = export.nccl_json(saved(tmp_path, small()))
    assert {"version", "start_time", "end_time", "args", "results", "out_of_bounds", "average_bus_bandwidth"} <= set(
        found
    )
    (row,) = found["results"]
    keys = {
        "size",
        "count",
        "type",
        "redop",
        "root",
        "out_of_place",
        "in_place",
        "actual_iterations",
        "experiment_name",
    }
    assert set(row) == keys
    assert row["actual_iterations"] == 2
    assert found["average_bus_bandwidth"]["bandwidth"] == row["out_of_place"]["bus_bw"]


def test_a_run_without_collectives(tmp_path):
    run = saved(tmp_path, timeline(operators=[operator(0, 1, SEND, 0, 9)]))
    assert export.nccl_table(run) == "# no collective was measured\n"
    assert export.nccl_json(run)["average_bus_bandwidth"]["bandwidth"] == 0


def test_flows_as_ns3_writes_them(tmp_path):
    """Ideal: 1,000 bytes at 0.5 byte/ns and 300 ns; the second iteration starts when the first has ended, at 5,000."""
    ranks = [(0, 0, 5000, 0), (1, 0, 4000, 0)]
    messages = [
        message(0, 1, 1000, 10, 2510),
        message(0, 1, 1000, 10, 4610, iteration=1),
        message(0, 1, 1000, 7, -1, index=1),
    ]
    assert list(export.fct_lines(saved(tmp_path, timeline(ranks=ranks, messages=messages)))) == [
        "0b000001 0b000101 10000 100 1000 10 2500 2300",
        "0b000001 0b000101 10000 100 1000 5010 4600 2300",
    ]


def test_addresses_of_many_ranks():
    assert [f"{export._address(rank):08x}" for rank in (0, 1, 255, 256, 515)] == [
        "0b000001",
        "0b000101",
        "0b00ff01",
        "0b010001",
        "0b020301",
    ]


def test_what_cannot_be_exported_is_told(tmp_path):
    nothing = saved(tmp_path, None, "fit", results={}, network=None)
    for write in (export.nccl_table, export.nccl_json, lambda run: export.chrome_trace(run, tmp_path / "t.json")):
        with pytest.raises(InputError, match="holds no timeline"):
            write(nothing)
    with pytest.raises(InputError, match="knows its links"):
        list(export.fct_lines(saved(tmp_path, small(), network=None)))
    with pytest.raises(NotReadyError, match="cannot be written"):
        export.chrome_trace(saved(tmp_path, small()), tmp_path / "no" / "t.json")


def test_the_command_offers_every_format():
    (option,) = (one for one in cli.commands["export"].params if one.name == "form")
    assert set(option.type.choices) == set(export.FORMATS)


@pytest.mark.parametrize("name", export.FORMATS)
def test_every_format_is_written(tmp_path, name):
    run = saved_loop(tmp_path)
    made = export.FORMATS[name]
    files = made.write(run, tmp_path / made.file)
    assert files
    assert all(path.stat().st_size > 0 for path in files)
