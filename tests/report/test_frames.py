import numpy as np
import pytest
from made import COMP, all_reduce, message, operator, saved, timeline

from genie.errors import InputError
from genie.formats.runfile import RunWriter, open_run
from genie.report import frames


def made(**more):
    operators = [operator(0, 1, COMP, 0, 10), all_reduce(0, 10, 90, group="0"), all_reduce(1, 10, 95, group="0")]
    messages = [
        message(0, 1, 1000, 14, 2514, caused=10, acknowledged=2600),
        message(0, 1, 1000, 14, -1, index=1),
    ]
    return timeline(operators=operators, messages=messages, **more)


def test_flows_of_a_timeline():
    first, second = frames.flows(made()).to_dict("records")
    assert (first["fct_ns"], first["sender_fct_ns"], first["late_ns"]) == (2500, 2586, 4)
    assert (first["operator"], first["collective"], first["group"]) == ("node 7", "ALL_REDUCE", "")
    assert np.isnan([second["fct_ns"], second["sender_fct_ns"], second["delivered_ns"], second["first_byte_ns"]]).all()
    assert "slowdown" not in first, "a timeline does not know its network"


def test_a_run_knows_the_ideal(tmp_path):
    """1,000 bytes at the path's 0.5 byte/ns and 300 ns of delay: 2,300 ns."""
    found = frames.flows(saved(tmp_path, made()))
    assert found["ideal_fct_ns"].tolist() == [2300, 2300]
    assert found["slowdown"].tolist()[0] == 2500 / 2300
    assert np.isnan(found["slowdown"].tolist()[1])


def test_operators_by_name():
    compute, first, second = frames.operators(made()).to_dict("records")
    assert (compute["kind"], compute["collective"], compute["duration_ns"], compute["instance"]) == ("COMP", "", 10, -1)
    assert (first["kind"], first["collective"], first["group"], first["instance"]) == (
        "COLLECTIVE",
        "ALL_REDUCE",
        "",
        0,
    )
    assert second["instance"] == 0, "its number within the group, not its node id, joins a collective"


def test_every_column_with_a_unit_says_it():
    plain = {"run", "measured", "iteration", "rank", "src", "dst", "tag", "index", "flow", "node_id", "chunk", "phase"}
    plain |= {"step", "status", "operator", "collective", "group", "kind", "name", "instance", "slowdown"}
    for frame in (frames.flows(made()), frames.operators(made()), frames.ranks(made())):
        assert all(name in plain or name.endswith(("_ns", "_bytes", "_bps")) for name in frame.columns)


def test_a_loops_tables_hold_those_of_its_runs(tmp_path):
    loop = RunWriter.create(tmp_path, "loop", "job")
    saved(None, made(measured=False), "simulate", "1-simulate", network=None, parent=loop)
    saved(None, made(), "replay", "1-replay", parent=loop)
    loop.child("2-replay", "replay")
    loop.finish("ok", {})
    run = open_run(loop.path)
    for frame in (frames.flows(run), frames.operators(run), frames.ranks(run)):
        told = frame[["run", "measured"]].drop_duplicates().to_numpy().tolist()
        assert told == [["rounds/1-replay", True], ["rounds/1-simulate", False]]
    assert frames.links(run)["rate_bps"].tolist() == [8_000_000_000, 4_000_000_000]
    assert frames.routes(run)["hop"].tolist() == [0, 1]


def test_what_a_run_does_not_tell_is_empty(tmp_path):
    run = saved(tmp_path, None, network=None)
    for frame in (frames.flows(run), frames.operators(run), frames.ranks(run)):
        assert frame.empty
    assert frames.counters(run).columns.tolist() == ["link", "sent_bytes", "sent_packets", "dropped_packets"]
    assert frames.links(run).empty
    assert frames.rounds(run).empty


def test_rounds_come_one_row_a_parameter(tmp_path):
    fitted = {"name": "latency", "value": 5.0, "unit": "ns", "stderr": None, "low": 5.0, "high": 5.0, "samples": 3}
    row = {"round": 1, "predicted_ns": 9, "measured_ns": 10, "error": -0.1, "fitted": [fitted], "run": "rounds/1"}
    run = saved(tmp_path, None, "loop", results={"rounds": [row]})
    (found,) = frames.rounds(run).to_dict("records")
    assert (found["round"], found["parameter"], found["unit"], found["value"], found["error"]) == (
        1,
        "latency",
        "ns",
        5.0,
        -0.1,
    )
    assert np.isnan(found["stderr"])


def test_a_damaged_run_is_told(tmp_path):
    run = saved(tmp_path, made())
    (run.path / "messages.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"messages\.parquet: the table is damaged"):
        frames.flows(run)
