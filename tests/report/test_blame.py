"""Who is to blame: by hand on tiny cases, and on made runs with a planted fault."""

import pandas as pd
import pytest
from made import COMP, check, message, operator, timeline

import genie
from genie.errors import InputError
from genie.formats.runfile import RunWriter, open_run
from genie.report import fluid
from genie.report.blame import blame
from genie.report.content import document_of
from genie.report.critical import critical_path
from genie.report.subject import View

RATE = 8_000_000_000  # 1 byte/ns
RANKS = 8


def network(*, spines=2, lost=(), sides=None):
    """8 hosts on 2 leaves; ranks r and r + 4 talk over spine r % spines, or sides[r]."""
    links = [f"h{r}>l{r // 4}" for r in range(RANKS)] + [f"l{r // 4}>h{r}" for r in range(RANKS)]
    inner = [(f"l{leaf}", f"s{spine}") for leaf in (0, 1) for spine in range(spines)]
    links += [f"{a}>{b}" for a, b in inner] + [f"{b}>{a}" for a, b in inner]
    routes = []
    for src in range(RANKS):
        for dst in range(RANKS):
            if src // 4 != dst // 4:
                spine = sides[src] if sides is not None else (src + dst) % spines
                spine = spine if f"l{src // 4}>s{spine}" not in lost else 1 - spine
                way = [f"h{src}>l{src // 4}", f"l{src // 4}>s{spine}", f"s{spine}>l{dst // 4}", f"l{dst // 4}>h{dst}"]
            else:
                way = [f"h{src}>l{src // 4}", f"l{dst // 4}>h{dst}"]
            if src != dst:
                routes += [(src, dst, hop, link, 20_000 + src * 8 + dst, 18_515) for hop, link in enumerate(way)]
    count = len(links)
    table = {
        "link": links,
        "class": ["host"] * 16 + ["fabric"] * (count - 16),
        "rate_bps": [RATE] * count,
        "delay_ns": [100] * count,
        "buffer_bytes": [1 << 20] * count,
    }
    names = ("src", "dst", "hop", "link", "sport", "dport")
    return {"links": table, "routes": dict(zip(names, map(list, zip(*routes, strict=True)), strict=True))}


def fabric(tables):
    return fluid.fabric_of(*(pd.DataFrame(tables[name]) for name in ("links", "routes")))


def across(size=100_000, start=0):
    """Every rank to the one across, and back to back to the next one across."""
    return [
        (src, (src + 4 + shift) % 8, size, start)
        for src in range(RANKS)
        for shift in (0, 1)
        if (src + 4 + shift) % 8 // 4 != src // 4
    ]


def run_of(tmp_path, tables, real, *, sends=None, computes=None, counters=None):
    """A run whose messages took what `real` makes of them, in two equal iterations."""
    sends = across() if sends is None else sends
    frame = pd.DataFrame(sends, columns=["src", "dst", "size_bytes", "posted_ns"])
    took = fluid.expected_ns(frame, real).tolist()
    messages, ranks, operators = [], [], []
    for k in range(2):
        for at, ((src, dst, size, start), fct) in enumerate(zip(sends, took, strict=True)):
            messages.append(message(src, dst, size, start, start + int(fct), iteration=k, index=at))
        work = computes or [1000] * RANKS
        operators += [operator(r, 1, COMP, 0, work[r], iteration=k) for r in range(RANKS)]
        came = [(dst, start + int(fct)) for (_, dst, _, start), fct in zip(sends, took, strict=True)]
        ranks += [(k, r, max([work[r], *(end for dst, end in came if dst == r)]), 0) for r in range(RANKS)]
    run = RunWriter.create(tmp_path, "replay", "job")
    run.save_timeline(timeline(ranks=ranks, operators=operators, messages=messages))
    for name, columns in tables.items():
        run.save_table(name, columns)
    run.save_table("counters", counters or counted(tables, sends))
    run.finish("ok", {"iteration_ns": 1}, [check()])
    return open_run(run.path)


def counted(tables, sends, *, lost=None, share=0.01):
    """What ports would count, 2 % framing included; bytes lost on link `lost` are sent again."""
    ways = fabric(tables).routes
    total = dict.fromkeys(tables["links"]["link"], 0.0)
    for src, dst, size, _ in sends:
        way = ways[src, dst]
        for hop, link in enumerate(way):
            total[link] += 1.02 * size * (1 + (share if lost in way[hop:] else 0))
    names = list(total)
    sent = [round(total[name]) for name in names]
    packets = [value // 1000 for value in sent]
    return {"link": names, "sent_bytes": sent, "sent_packets": packets, "dropped_packets": [0] * len(names)}


def said(run):
    return blame(View(run, run.timeline()))


def test_the_critical_path_by_hand():
    """Rank 0 computes 100, sends until 300; rank 1 waits 10, computes 90, ends at 400."""
    made = View(
        None,
        timeline(
            ranks=[(0, 0, 100, 0), (0, 1, 400, 0)],
            operators=[operator(0, 1, COMP, 0, 100), operator(1, 1, COMP, 0, 50), operator(1, 2, COMP, 310, 400)],
            messages=[message(0, 1, 8, 100, 300)],
        ),
    )
    steps = critical_path(made.operators, made.flows, made.ranks)
    told = [(step.kind, step.rank, step.begin_ns, step.end_ns) for step in steps]
    assert told == [
        ("compute", 0, 0, 100),
        ("message", 1, 100, 300),
        ("waiting", 1, 300, 310),
        ("compute", 1, 310, 400),
    ]
    assert sum(step.length_ns for step in steps) == 400


def test_a_rank_that_waits_for_its_own_sends():
    made = View(None, timeline(ranks=[(0, 0, 100, 0)], messages=[message(0, 1, 8, 10, 80, acknowledged=100)]))
    told = [(step.kind, step.begin_ns, step.end_ns) for step in critical_path(made.operators, made.flows, made.ranks)]
    assert told == [("waiting", 0, 10), ("message", 10, 100)]


def test_a_path_ends_where_nothing_leads_on():
    made = View(None, timeline(ranks=[(0, 0, 50, 0)], operators=[operator(0, 1, COMP, 50, 50)]))
    assert [s.kind for s in critical_path(made.operators, made.flows, made.ranks)] == ["waiting"]
    nobody = View(None, timeline(ranks=[(0, 0, -1, -1)]))
    assert critical_path(nobody.operators, nobody.flows, nobody.ranks) == []


def test_messages_that_share_a_link_take_turns():
    """Two of 1,000 bytes to one host at 1 byte/ns: both 2,000 ns and two delays of 100."""
    flows = pd.DataFrame([(0, 2, 1000, 0), (1, 2, 1000, 0)], columns=["src", "dst", "size_bytes", "posted_ns"])
    assert fluid.expected_ns(flows, fabric(network())).tolist() == [2200, 2200]
    lone = flows.head(1)
    assert fluid.expected_ns(lone, fabric(network()).slower(["l0>h2"], 0.5)).tolist() == [2200]


def test_messages_whose_way_is_not_known_have_no_expectation():
    flows = pd.DataFrame([(0, 9, 1000, 0)], columns=["src", "dst", "size_bytes", "posted_ns"])
    assert pd.isna(fluid.expected_ns(flows, fabric(network()))).all()


def test_balanced_routes_part_what_met():
    tables = network(sides=[0] * 8)
    flows = pd.DataFrame([(0, 4, 1000), (1, 5, 1000)], columns=["src", "dst", "size_bytes"])
    routes = fluid.balanced(flows, fabric(tables))
    assert {routes[pair][1] for pair in ((0, 4), (1, 5))} == {"l0>s0", "l0>s1"}


@pytest.mark.parametrize(
    ("cable", "named"), [("l0-s1", "l0-s1 or l1-s1"), ("l1-s0", "l0-s0 or l1-s0"), ("h3-l0", "h3-l0")]
)
def test_a_slow_cable_is_named_with_its_rate(tmp_path, cable, named):
    """Between two leaves all that crosses one cable of a spine crosses its other one: both are named."""
    tables = network()
    ends = cable.split("-")
    slow = fabric(tables).slower([f"{ends[0]}>{ends[1]}", f"{ends[1]}>{ends[0]}"], 0.25)
    found = said(run_of(tmp_path, tables, slow))
    assert (found.suspects[0].kind, found.suspects[0].name) == ("slow link", named)
    assert found.suspects[0].fault
    assert "instead of 8 Gb/s" in found.paragraph()
    rate = float(found.suspects[0].evidence.split("had ")[1].split(" Gb/s")[0])
    assert rate == pytest.approx(2, rel=0.25)


def test_a_sound_fabric_is_not_blamed(tmp_path):
    tables = network()
    found = said(run_of(tmp_path, tables, fabric(tables)))
    assert not [one for one in found.suspects if one.fault]


def test_a_missing_path_is_named(tmp_path):
    tables = network(lost={"l0>s1", "l1>s1"})
    found = said(run_of(tmp_path, tables, fabric(tables)))
    assert found.suspects[0].kind == "missing path"
    assert found.suspects[0].name in {"l0-s1", "l1-s1"}
    assert "all 16 flows of its switch take the other way" in found.suspects[0].evidence


def test_a_path_that_few_flows_avoid_by_chance_is_not_missing(tmp_path):
    tables = network(sides=[0] * 8)
    keep = [
        at
        for at, (src, dst) in enumerate(zip(tables["routes"]["src"], tables["routes"]["dst"], strict=True))
        if {src, dst} <= {0, 1, 4, 5}
    ]
    tables["routes"] = {name: [column[at] for at in keep] for name, column in tables["routes"].items()}
    found = said(run_of(tmp_path, tables, fabric(tables), sends=[(0, 4, 100_000, 0), (1, 5, 100_000, 0)]))
    assert [one.kind for one in found.suspects] == ["ECMP collision"] * 1


def test_a_collision_is_named_with_its_ports(tmp_path):
    tables = network(sides=[0, 0, 0, 1, 0, 1, 0, 1])
    sends = [(src, src + 4, 100_000, 0) for src in range(4)]
    found = said(run_of(tmp_path, tables, fabric(tables), sends=sends))
    first = found.suspects[0]
    assert (first.kind, first.name, first.fault) == ("ECMP collision", "l0>s0", False)
    assert "3 flows share it (rank 0 to 4, port 20004 to 18515;" in first.evidence
    assert first.cost_ns == pytest.approx(100_000, rel=0.01), "3 share instead of 2"


def test_a_link_that_loses_is_found_by_the_bytes_around_it(tmp_path):
    tables = network()
    sends = across()
    for lost in ("l0>s1", "s0>l0", "l1>h6"):
        counters = counted(tables, sends, lost=lost)
        found = said(run_of(tmp_path, tables, fabric(tables), sends=sends, counters=counters))
        assert (found.suspects[0].kind, found.suspects[0].name) == ("lossy link", lost)
        assert "loses 1.0" in found.suspects[0].evidence


def test_a_link_that_counts_its_drops(tmp_path):
    tables = network()
    counters = counted(tables, across())
    counters["dropped_packets"][5] = counters["sent_packets"][5] // 50
    found = said(run_of(tmp_path, tables, fabric(tables), counters=counters))
    assert found.suspects[0].name == tables["links"]["link"][5]
    assert "its own counter says" in found.suspects[0].evidence


def test_a_slow_rank_is_named_by_its_computes(tmp_path):
    tables = network()
    work = [100_000] * RANKS
    work[3] = 160_000
    sends = [(src, (src + 4) % 8, 10_000, work[src]) for src in range(RANKS)]
    found = said(run_of(tmp_path, tables, fabric(tables), sends=sends, computes=work))
    assert (found.suspects[0].kind, found.suspects[0].name) == ("slow rank", "rank 3")
    assert found.suspects[0].cost_ns == pytest.approx(60_000)


def test_parts_of_the_path_add_up(tmp_path):
    tables = network()
    found = said(run_of(tmp_path, tables, fabric(tables)))
    assert sum(found.parts.values()) == pytest.approx(found.iteration_ns)
    assert found.parts["latency_ns"] == 400
    assert found.parts["serialisation_ns"] == pytest.approx(100_000)
    assert found.parts["queueing_ns"] > 0


def test_without_links_only_ranks_can_be_blamed():
    made = timeline(
        ranks=[(0, r, 150 + 100 * (r == 2), 0) for r in range(3)],
        operators=[operator(r, 1, COMP, 0, 150 + 100 * (r == 2)) for r in range(3)],
    )
    found = blame(View(None, made))
    assert [(one.kind, one.name, one.cost_ns) for one in found.suspects] == [("slow rank", "rank 2", 100)]
    assert "compute 100%" in found.paragraph()


def test_a_run_that_never_ended_blames_nobody():
    with pytest.raises(InputError, match="no end"):
        blame(View(None, timeline(ranks=[(0, 0, -1, -1)])))


def test_the_report_and_the_notebook_say_it(tmp_path):
    tables = network()
    run = run_of(tmp_path, tables, fabric(tables).slower(["l0>s1", "s1>l0"], 0.25))
    (section,) = [one for one in document_of(run).sections if one.title == "Who is to blame"]
    assert section.blocks[0].text.startswith("To blame first: the slow link l0-s1 or l1-s1.")
    found = genie.open_run(run.path).blame()
    assert found.table()["kind"].tolist()[0] == "slow link"
    assert "To blame first" in found._repr_html_()
