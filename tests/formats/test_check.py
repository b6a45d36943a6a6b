from collections import Counter

import pytest
from handmade import AR, compute, node, raws, receive, reduce_all, send, write
from hypothesis import given, settings
from strategies import dags, patterns

from genie.core.workload import CollectiveKind, Group, NodeKind
from genie.errors import InputError
from genie.formats.chakra import read_raw
from genie.formats.check import check, check_files
from genie.formats.findings import MAX_EACH
from genie.formats.workload import load_workload, save_workload
from genie.patterns import generate

PAIRS = (Group("1", (0, 1)), Group("2", (2, 3)))


def rules(findings, severity="error"):
    return {finding.rule for finding in findings if finding.severity == severity}


def one(findings, rule):
    (found,) = [finding for finding in findings if finding.rule == rule]
    return found


@settings(max_examples=15, deadline=None)
@given(patterns())
def test_sound_workloads_have_no_errors(tmp_path_factory, workload):
    prefix = tmp_path_factory.mktemp("c") / "w"
    save_workload(prefix, workload)
    assert rules(check_files(prefix)) == set()


@settings(max_examples=15, deadline=None)
@given(dags(equal=True))
def test_equal_ranks_never_wait_for_ever(tmp_path_factory, workload):
    prefix = tmp_path_factory.mktemp("c") / "w"
    save_workload(prefix, workload)
    assert rules(check_files(prefix)) == set()


NODES = [
    ("duplicate-id", [compute(1), compute(1)], "the id 1 occurs before"),
    ("self-dependency", [compute(1, ctrl=[1])], "a ctrl dependency on itself"),
    ("self-dependency", [compute(1, data=[1])], "a data dependency on itself"),
    ("dangling-dependency", [compute(1, data=[9])], "a data dependency on node 9, which is not in the file"),
    ("dangling-dependency", [compute(1, ctrl=[9])], "a ctrl dependency on node 9, which is not in the file"),
    ("metadata-node", [node(1, NodeKind.METADATA)], "METADATA"),
    ("cpu-wrapper", [node(1, NodeKind.COLLECTIVE, is_cpu_op=True)], "CPU side"),
    ("no-comm-type", [node(1, NodeKind.COLLECTIVE, comm_size=8)], "without comm_type"),
    ("no-size", [node(1, NodeKind.COLLECTIVE, comm_type=AR)], "comm_size is missing"),
    ("no-size", [reduce_all(1, size=0)], "comm_size is 0"),
    ("no-size", [send(1, 1, size=0)], "comm_size is 0"),
    ("no-size", [node(1, NodeKind.MEM_LOAD)], "without tensor_size"),
    ("unsupported", [reduce_all(1, comm_type=int(CollectiveKind.GATHER))], "GATHER cannot be run"),
    ("no-peer", [node(1, NodeKind.SEND, comm_size=8)], "a SEND without comm_dst"),
    ("no-peer", [node(1, NodeKind.RECV, comm_size=8)], "a RECV without comm_src"),
    ("self-message", [send(1, 0)], "comm_dst is the rank's own"),
    ("peer-out-of-range", [send(1, 2)], "comm_dst is rank 2, the job has ranks 0 to 1"),
    ("unknown-group", [reduce_all(1, group="99")], "'99' is in no comm-group file"),
    ("not-a-member", [reduce_all(1, group="2")], "issues a collective of group 2, whose ranks are 2, 3"),
]


@pytest.mark.parametrize(("rule", "nodes", "what"), NODES, ids=[f"{rule}-{k}" for k, (rule, _, _) in enumerate(NODES)])
def test_what_is_wrong_with_a_node(tmp_path, rule, nodes, what):
    found = one([f for f in check(raws(tmp_path, nodes, [compute(1)]), PAIRS) if f.node_id is not None], rule)
    assert found.severity == "error"
    assert what in found.what
    assert (found.file, found.node_id, found.name) == (str(tmp_path / "w.0.et"), nodes[-1].id, nodes[-1].name)
    assert found.fix.endswith(".")


WARNINGS = [
    ("invalid-node", node(1, NodeKind.INVALID)),
    ("not-in-astra-sim", reduce_all(1, comm_type=int(CollectiveKind.BROADCAST))),
    ("group-of-one", reduce_all(1, group="3")),
    ("indivisible", reduce_all(1, size=1025)),
    ("other-rank", send(1, 1, comm_src=1)),
    ("large-tag", send(1, 1, tag=500_000_000)),
]


@pytest.mark.parametrize(("rule", "made"), WARNINGS, ids=[rule for rule, _ in WARNINGS])
def test_what_deserves_a_look(tmp_path, rule, made):
    findings = check(raws(tmp_path, [made], [compute(1)]), [*PAIRS, Group("3", (0,))])
    assert one(findings, rule).severity == "warning"


def test_an_all_gather_need_not_divide(tmp_path):
    nodes = [reduce_all(1, size=1025, comm_type=int(CollectiveKind.ALL_GATHER))]
    assert check(raws(tmp_path, nodes, nodes)) == []


def test_a_cycle_is_named(tmp_path):
    nodes = [compute(5), compute(7, data=[9, 5]), compute(8, ctrl=[7]), compute(9, data=[8])]
    found = one(check(raws(tmp_path, nodes)), "cycle")
    assert found.what == "these nodes wait for each other for ever: 7 -> 9 -> 8 -> 7"
    assert (found.node_id, found.name) == (7, "n7")


def test_a_long_cycle_is_shortened(tmp_path):
    nodes = [compute(k, data=[(k + 1) % 100]) for k in range(100)]
    assert "11 -> 0 (and 88 more)" in one(check(raws(tmp_path, nodes)), "cycle").what


def test_messages_without_partner(tmp_path):
    findings = check(raws(tmp_path, [send(1, 1), send(2, 1), send(3, 1, tag=4)], [receive(1, 0), receive(2, 0, tag=5)]))
    sends = [f for f in findings if f.rule == "send-without-receive"]
    assert [(f.node_id, f.what) for f in sends] == [
        (2, "a message of 64 bytes from rank 0 to rank 1 with tag 0 is received by nobody"),
        (3, "a message of 64 bytes from rank 0 to rank 1 with tag 4 is received by nobody"),
    ]
    assert sends[1].fix == "its partner has tag 5 and 64 bytes; both must be equal."
    found = one(findings, "receive-without-send")
    assert found.file == str(tmp_path / "w.1.et")
    assert found.what == "a message of 64 bytes from rank 0 to rank 1 with tag 5 is sent by nobody"


def test_a_rank_within_a_group_is_told_from_a_global_one(tmp_path):
    idle = [compute(1)]
    findings = check(raws(tmp_path, idle, idle, [send(1, 1)], [receive(1, 2)]), PAIRS)
    assert one(findings, "send-without-receive").fix == "rank 1 looks like a rank within group 2; globally it is 3."
    group_ranks = Group("1", (0, 1))
    findings = check(raws(tmp_path, idle, idle, [reduce_all(1, group="1")], idle), [group_ranks])
    assert "it needs global ranks" in one(findings, "not-a-member").fix


def test_a_member_that_does_not_take_part(tmp_path):
    findings = check(raws(tmp_path, [reduce_all(1)], [reduce_all(1)], [compute(1)]))
    found = one(findings, "collective-mismatch")
    assert found.file == str(tmp_path / "w.2.et")
    assert found.what == (
        "rank 2 issues other collectives of all ranks than rank 0: "
        "number 0 is missing here, ALL_REDUCE of 1024 bytes there"
    )


def test_a_member_that_issues_one_more(tmp_path):
    group = [Group("1", (0, 2))]
    twice = [reduce_all(1, group="1"), reduce_all(2, group="1")]
    findings = check(raws(tmp_path, twice[:1], [compute(1)], twice), group)
    assert one(findings, "collective-mismatch").what.endswith(
        "number 1 is ALL_REDUCE of 1024 bytes here, missing there"
    )


def test_another_order_and_another_size(tmp_path):
    there = [reduce_all(1, size=64), reduce_all(2, size=32)]
    findings = check(raws(tmp_path, there, there, [reduce_all(1, size=32), reduce_all(2, size=64)]))
    found = one(findings, "collective-mismatch")
    assert "rank 2 issues the same collectives in another order of all ranks than rank 0" in found.what
    findings = check(raws(tmp_path, there, there, [there[0], reduce_all(2, size=96)]))
    assert (
        "number 1 is ALL_REDUCE of 96 bytes here, ALL_REDUCE of 32 bytes there"
        in one(findings, "collective-mismatch").what
    )


def test_the_order_is_that_of_issue_not_of_ids(tmp_path):
    by_id = [reduce_all(1, size=64), reduce_all(2, size=32, data=[1])]
    against_id = [reduce_all(1, size=32, data=[2]), reduce_all(2, size=64)]
    assert check(raws(tmp_path, by_id, against_id)) == []


def test_groups_in_opposite_orders_wait_in_a_circle(tmp_path):
    groups = [Group("1", (0, 1)), Group("2", (0, 1))]
    one_way = [reduce_all(1, group="1"), reduce_all(2, group="2", data=[1])]
    other_way = [reduce_all(1, group="2"), reduce_all(2, group="1", data=[1])]
    found = one(check(raws(tmp_path, one_way, other_way), groups), "deadlock")
    assert found.what == (
        "a circle of 2 waiting ranks: rank 0 is in node 1 (n1) and waits for rank 1; "
        "rank 1 is in node 1 (n1) and waits for rank 0"
    )


def test_computation_decides_who_is_first(tmp_path):
    groups = [Group("1", (0, 1)), Group("2", (0, 1))]
    first = [reduce_all(2, group="1"), reduce_all(3, group="2")]
    late = [compute(1, 500), reduce_all(2, group="1", data=[1]), reduce_all(3, group="2")]
    assert rules(check(raws(tmp_path, first, late), groups)) == {"deadlock"}
    early = [compute(1, 500), reduce_all(2, group="1"), reduce_all(3, group="2", data=[1])]
    assert rules(check(raws(tmp_path, first, early), groups)) == set()


def test_receives_that_wait_for_each_other(tmp_path):
    ranks = [[receive(1, 1), send(2, 1, data=[1])], [receive(1, 0), send(2, 0, data=[1])]]
    assert "rank 0 is in node 1 (n1) and waits for rank 1" in one(check(raws(tmp_path, *ranks)), "deadlock").what


def test_each_circle_is_told(tmp_path):
    groups = [Group("1", (0, 1)), Group("2", (0, 1)), Group("3", (2, 3)), Group("4", (2, 3))]

    def pair(a, b):
        return [[reduce_all(1, group=a), reduce_all(2, group=b)], [reduce_all(1, group=b), reduce_all(2, group=a)]]

    found = [f for f in check(raws(tmp_path, *pair("1", "2"), *pair("3", "4")), groups) if f.rule == "deadlock"]
    assert [f.file for f in found] == [str(tmp_path / "w.0.et"), str(tmp_path / "w.2.et")]


def test_missing_ranks_and_groups_out_of_range(tmp_path):
    files = raws(tmp_path, *[[reduce_all(1)]] * 4)
    findings = check(files, [Group("1", (0, 9))], ranks=6)
    assert one(findings, "missing-rank").what == "no readable trace for 2 of 6 ranks: 4, 5"
    assert "names rank 9, the job has ranks 0 to 5" in one(findings, "group-out-of-range").what


def test_more_traces_than_the_network_has_ranks(tmp_path):
    prefix = write(tmp_path, *[[reduce_all(1)]] * 4)
    findings = check_files(prefix, ranks=2)
    assert [(f.severity, f.rule) for f in findings] == [("warning", "extra-rank")]


def test_unreadable_files_are_findings_among_others(tmp_path):
    prefix = write(tmp_path, [reduce_all(1)], [reduce_all(1)], [reduce_all(1, size=0)])
    (tmp_path / "w.1.et").write_bytes(b"\xff")
    findings = check_files(prefix)
    found = one(findings, "unreadable")
    assert (found.file, found.what[:22]) == (str(tmp_path / "w.1.et"), "frame 0, byte 0: frame")
    assert {"missing-rank", "no-size"} < rules(findings)


def test_nothing_to_measure(tmp_path):
    findings = check(raws(tmp_path, [compute(1, 0), compute(2, 0, num_ops=9)]))
    assert rules(findings, "warning") == {"no-communication", "no-duration"}
    assert one(findings, "no-duration").what == "2 computations have no duration: each takes 1 ns"
    assert "roofline" in one(findings, "no-duration").fix


def test_remote_memory_needs_a_file(tmp_path):
    findings = check(raws(tmp_path, [node(1, NodeKind.MEM_LOAD, tensor_size=8), reduce_all(2)]))
    assert "remote-memory" in rules(findings, "warning")


def test_many_of_a_kind_are_counted(tmp_path):
    findings = check(raws(tmp_path, [compute(k, data=[1000]) for k in range(50)]))
    assert Counter(f.rule for f in findings)["dangling-dependency"] == MAX_EACH + 1
    assert findings[MAX_EACH].what == f"and {50 - MAX_EACH} more like these"


def test_errors_come_first(tmp_path):
    findings = check(raws(tmp_path, [reduce_all(1, size=1025), reduce_all(2, size=0)], [compute(1)]))
    severities = [finding.severity for finding in findings]
    assert severities == sorted(severities)
    assert set(severities) == {"error", "warning"}
    assert set(findings[0].as_dict()) == {"severity", "rule", "file", "node_id", "name", "what", "fix"}


def test_groups_beside_the_traces_are_found(tmp_path):
    save_workload(tmp_path / "w", generate("hybrid", 4, 4096))
    assert rules(check_files(tmp_path / "w")) == set()
    assert rules(check_files(tmp_path)) == set()
    (tmp_path / "w.json").rename(tmp_path / "groups.json")
    assert rules(check_files(tmp_path / "w")) == {"unknown-group"}
    assert rules(check_files(tmp_path / "w", comm_groups=tmp_path / "groups.json")) == set()


def test_a_trace_that_was_made_not_read(tmp_path):
    raw = read_raw(f"{write(tmp_path, [reduce_all(1)])}.0.et")
    assert rules(check({0: raw})) == set()


def test_absurd_numbers_of_ranks_cost_nothing(tmp_path):
    prefix = write(tmp_path, [reduce_all(0)], [reduce_all(0)])
    (finding,) = [f for f in check_files(prefix, ranks=10**30) if f.rule == "missing-rank"]
    assert "ranks: 2, 3, 4, 5, 6, 7, ..." in finding.what
    with pytest.raises(InputError, match=r"ranks 2, 3, .*, \.\.\. are missing"):
        load_workload(prefix, ranks=10**18)
