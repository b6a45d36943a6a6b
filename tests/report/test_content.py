import re

import pytest
from made import check, operator, saved, saved_loop, small, timeline

from genie.core.workload import NodeKind
from genie.formats.runfile import RunWriter, open_run
from genie.report.content import document_of
from genie.report.document import Cell, Folded, Level, Table
from genie.report.markdown import summary
from genie.report.sections import MAX_FOLDED, MAX_ROWS, long_table

WARNING = check("the tool's own share", ok=False, hard=False, value="4 %", limit="2 %")


def verdict(run):
    return document_of(run).verdict


def facts(run):
    return {fact.label: fact for fact in document_of(run).facts}


@pytest.mark.parametrize(
    ("make", "level", "headline"),
    [
        (lambda d: saved(d, small(), checks=[check()]), Level.GOOD, "Measured, and every self-check holds: one iter"),
        (lambda d: saved(d, small()), Level.WARN, "Measured, but nobody checked the run"),
        (lambda d: saved(d, small(), checks=[check(), WARNING]), Level.WARN, "Measured, with 1 warning: one iteration"),
        (
            lambda d: saved(d, small(), checks=[check(ok=False)]),
            Level.BAD,
            "Do not use these numbers: the run fails its own",
        ),
        (
            lambda d: saved(d, small(), checks=[check()], status="failed"),
            Level.BAD,
            "Do not use these numbers: the run failed",
        ),
        (lambda d: saved(d, small(), status="partial"), Level.BAD, "Incomplete"),
        (lambda d: open_run(RunWriter.create(d, "replay", "x").path), Level.BAD, "Incomplete"),
        (
            lambda d: saved(d, small(measured=False), "simulate"),
            Level.PLAIN,
            "Predicted, not measured: one iteration takes",
        ),
        (lambda d: saved(d, None, "fit", results={}), Level.PLAIN, "This run holds no iteration time"),
        (saved_loop, Level.GOOD, "Prediction and measurement agree: -1.00% after 2 rounds (asked for 2.0%)"),
        (
            lambda d: saved_loop(d, tolerance=0.001),
            Level.WARN,
            "Prediction is still -1.00% off measurement after 2 rounds",
        ),
        (lambda d: saved_loop(d, tolerance=None), Level.PLAIN, "Prediction is -1.00% off measurement after 2 rounds"),
        (lambda d: saved_loop(d, ((99, 100),)), Level.GOOD, "Prediction and measurement agree: -1.00% after 1 round ("),
        (
            lambda d: saved_loop(d, lose=(2,), tolerance=0.2),
            Level.WARN,
            "Prediction and measurement agree: -10.00% after 1 round",
        ),
        (lambda d: saved_loop(d, lose=(1, 2), status="failed"), Level.BAD, "Do not use these numbers: the run failed"),
    ],
)
def test_verdicts(tmp_path, make, level, headline):
    found = verdict(make(tmp_path))
    assert found.level is level
    assert found.headline.startswith(headline)


def test_a_lost_round_is_told_but_does_not_lose_the_others(tmp_path):
    reasons = verdict(saved_loop(tmp_path, lose=(2,), tolerance=0.2)).reasons
    assert "round 2: rank 1: killed" in reasons
    assert "rounds/2-replay: bytes equal the schedule's. Found: 12 of 12; expected: equal" in reasons


def test_the_facts_of_a_replay(tmp_path):
    found = facts(saved(tmp_path, small(), checks=[check(), WARNING]))
    assert found["iteration time, measured"].value == "110 ns"
    assert found["iteration time, measured"].detail == "median of 2, spread 18.2%"
    assert found["exposed communication"].value == "63.3%"
    assert found["message completion, p99"].detail == "median 60 ns, 8 messages"
    assert (found["self-checks that hold"].value, found["self-checks that hold"].level) == ("1 of 2", Level.WARN)


def test_the_facts_of_a_loop(tmp_path):
    found = facts(saved_loop(tmp_path))
    assert found["error of the prediction"].value == "-1.00%"
    assert found["error of the prediction"].detail == "predicted 99 ns; first round -10.00%"
    assert (found["bandwidth"].value, found["bandwidth"].detail) == ("200.00 Gb/s", "95 %: 198.00 to 202.00")
    assert found["latency"].detail == "kept as given"


def test_no_times_of_a_rank_that_never_finished(tmp_path):
    run = saved(
        tmp_path, timeline(ranks=[(0, 0, -1, -1)], operators=[operator(0, 1, NodeKind.COMP, 0, 9)]), status="failed"
    )
    assert "iteration time, measured" not in facts(run)
    assert "Where the time goes" not in [section.title for section in document_of(run).sections]


def test_sections_come_in_the_order_of_questions(tmp_path):
    assert [section.title for section in document_of(saved_loop(tmp_path)).sections] == [
        "Rounds",
        "Calibrated model",
        "Can this run be trusted?",
        "Where the time goes",
        "Who is to blame",
        "Messages",
        "Collectives",
        "Timeline",
        "Links",
        "How to do it again",
        "Environment",
    ]


def test_the_rows_that_do_not_fit_are_folded_and_counted():
    (table,) = long_table(("n",), [[str(n)] for n in range(MAX_ROWS)], "numbers")
    assert len(table.rows) == MAX_ROWS
    shown, folded = long_table(("n",), [[str(n)] for n in range(MAX_ROWS + MAX_FOLDED + 3)], "numbers")
    assert isinstance(shown, Table)
    assert isinstance(folded, Folded)
    assert folded.summary == f"{MAX_FOLDED + 3} more numbers"
    assert folded.blocks[1].text == "and 3 more; the run's tables hold them all."


def test_loads_of_links_come_busiest_first(tmp_path):
    (section,) = (s for s in document_of(saved(tmp_path, small())).sections if s.title == "Links")
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    loads = [row[-1] for row in table.rows]
    assert all(isinstance(cell, Cell) for cell in loads)
    assert [row[0] for row in table.rows] == ["s>b", "a>s"], "the slower of two links with equal payload"


def test_markdown_says_what_the_page_says(tmp_path):
    text = summary(saved_loop(tmp_path, tolerance=0.001))
    assert text.startswith("## a loop: loop of simulation and replay\n")
    assert "**Prediction is still -1.00% off measurement after 2 rounds (asked for 0.1%).**" in text
    assert "| 2 | 99.0 | 100.0 | -1.00% | 200.00 Gb/s | 500.00 ns | rounds/2-replay |" in text
    assert "| bandwidth | 200.00 Gb/s | 1.00 | 198.00 to 202.00 | 9 |" in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")


def test_markdown_is_not_written_by_names(tmp_path):
    evil = "a|b `c` <script> *d* [e](f) ```"
    run = saved(tmp_path, small(), name=evil, checks=[check(evil, value="x\ny")])
    text = summary(run)
    assert "<script>" not in text
    assert not re.search(r"(?<!\\)[|]b", text)
    assert "x y" in text
