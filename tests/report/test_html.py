import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import check, message, operator, round_row, saved, saved_loop, small, timeline

from genie.core.workload import CollectiveKind, NodeKind
from genie.errors import NotReadyError
from genie.formats.runfile import RunWriter, open_run
from genie.report.html import render
from genie.report.markup import element, together

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Checks that elements close in order, and gathers text, links and ids."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.text, self.ids, self.tags = [], [], "", [], set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.links += [value for name, value in attrs if name in {"src", "href", "action", "xlink:href", "data"}]
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def written(run, tmp_path):
    return render(run, tmp_path / "report.html")


def page(run, tmp_path):
    return Page(written(run, tmp_path).read_text())


RUNS = {
    "replay": lambda folder: saved(folder, small(), checks=[check()]),
    "simulate": lambda folder: saved(folder, small(measured=False), "simulate", network=None),
    "loop": saved_loop,
    "lost round": lambda folder: saved_loop(folder, lose=(2,)),
    "no round": lambda folder: saved_loop(folder, lose=(1, 2), status="failed"),
    "fit": lambda folder: saved(folder, None, "fit", results={}, network=None),
    "nothing": lambda folder: saved(folder, timeline(ranks=()), results={}),
    "unfinished": lambda folder: saved(
        folder, timeline(ranks=[(0, 0, -1, -1)], operators=[operator(0, 1, NodeKind.SEND, 5, -1)]), status="failed"
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_one_well_formed_file_that_needs_no_other(tmp_path, name):
    path = written(RUNS[name](tmp_path), tmp_path)
    text = path.read_text()
    found = Page(text)
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in found.links)
    assert {link[1:] for link in found.links if link.startswith("#")} <= set(found.ids)
    assert len(found.ids) == len(set(found.ids)), "ids are unique"
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text)
    assert not found.tags & {"script", "iframe", "object", "embed", "link", "form", "img"}


def test_what_a_loop_shows(tmp_path):
    text = page(saved_loop(tmp_path), tmp_path).text
    for heading in (
        "Rounds",
        "Calibrated model",
        "Can this run be trusted?",
        "Messages",
        "Links",
        "How to do it again",
    ):
        assert heading in text
    assert "Prediction and measurement agree: -1.00% after 2 rounds (asked for 2.0%)." in text
    assert "200.00 Gb/s" in text
    assert "198.00 to 202.00" in text
    assert "kept as given" in text
    assert "stopped since enough" in text
    assert "2 of 2" in text


def test_the_verdict_comes_before_the_numbers(tmp_path):
    run = saved(tmp_path, small(), checks=[check(ok=False, value="3 of 12")], status="failed")
    text = page(run, tmp_path).text
    assert text.index("Do not use these numbers: the run failed.") < text.index("iteration time")
    assert "bytes equal the schedule's. Found: 3 of 12; expected: equal" in text


def test_whatever_the_run_says_stays_text(tmp_path):
    evil = "<script>alert(1)</script>\"'&"
    run = RunWriter.create(tmp_path, "replay", evil)
    run.save_timeline(
        timeline(
            operators=[operator(0, 1, NodeKind.COMP, 0, 9, name=evil, group=evil)], messages=[message(0, 1, 8, 0, 9)]
        )
    )
    run.save_table("links", {"link": [evil], "class": [evil], "rate_bps": [1], "delay_ns": [1], "buffer_bytes": [1]})
    run.save_table("routes", {"src": [0], "dst": [1], "hop": [0], "link": [evil]})
    run.save_table("counters", {"link": [evil], "sent_bytes": [1], "sent_packets": [1], "dropped_packets": [1]})
    run.note(evil)
    run.add_environment(cpu=evil)
    run.describe(testbed={evil: evil}, directory=evil, command=[evil])
    (tmp_path / "in.yml").write_text("")
    run.add_input(tmp_path / "in.yml", evil)
    row = {"round": 1, "predicted_ns": 1, "measured_ns": 1, "error": 0.0, "run": evil, "unidentified": [evil]}
    fitted = [{"name": evil, "value": 1.0, "unit": evil, "stderr": 1.0, "low": 0.0, "high": 2.0, "samples": 1}]
    checks = [check(evil, value=evil, limit=evil, detail=evil, ok=False, hard=False)]
    results = {"iteration_ns": 9, "stopped": evil, "rounds": [row | {"fitted": fitted}], "errors": [evil]}
    run.finish("ok", results, checks)
    found = page(open_run(run.path), tmp_path)
    assert "script" not in found.tags
    assert evil in found.text


@given(st.text(), st.text())
def test_markup_escapes_all_that_is_no_markup(child, attribute):
    text = element("p", child, None, element("br"), title=attribute)
    parsed = HTMLParser(convert_charrefs=True)
    seen = {}
    parsed.handle_starttag = lambda tag, attrs: seen.setdefault(tag, dict(attrs))
    parsed.feed(text)
    parsed.close()
    assert set(seen) == {"p", "br"}
    assert together("<", element("b"), None) == "&lt;<b></b>"


def test_names_of_attributes():
    assert element("td", class_="x", aria_hidden="true", id=None) == '<td class="x" aria-hidden="true"></td>'


def test_a_page_is_the_same_every_time(tmp_path):
    run = saved_loop(tmp_path)
    assert written(run, tmp_path).read_bytes() == written(run, tmp_path).read_bytes()


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(NotReadyError, match="cannot be written: No such file"):
        render(saved(tmp_path, small()), tmp_path / "no" / "report.html")


def test_a_damaged_timeline_is_told_on_the_page(tmp_path):
    run = saved_loop(tmp_path)
    (run.path / "rounds" / "2-replay" / "messages.parquet").write_bytes(b"PAR1")
    (run.path / "rounds" / "1-replay" / "run.json").write_text("{")
    text = page(run, tmp_path).text
    assert "messages.parquet: the table is damaged" in text
    assert "run.json is damaged" in text or "run.json is no run's" in text
    assert "Timeline" in text, "the prediction is still shown"


def screenshot(page, shot, width):
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--enable-logging=stderr",
        f"--user-data-dir={shot.parent}/profile",
        f"--window-size={width},1200",
        f"--screenshot={shot}",
        f"file://{page}",
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium, which is not installed")
@pytest.mark.parametrize("width", [500, 1200])
def test_a_browser_shows_it_without_complaint(tmp_path, width):
    done = screenshot(written(saved_loop(tmp_path), tmp_path), tmp_path / "shot.png", width)
    assert (tmp_path / "shot.png").stat().st_size > 20_000, done.stderr
    assert "CONSOLE" not in done.stderr


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium, which is not installed")
def test_a_browser_would_tell_an_error(tmp_path):
    """The check above can fail: the same command reports what a broken page does."""
    (tmp_path / "bad.html").write_text("<script>nothing()</script>")
    assert "CONSOLE" in screenshot(tmp_path / "bad.html", tmp_path / "shot.png", 500).stderr


@pytest.mark.parametrize(
    ("late", "time", "error"), [(0, 0, 0.0), (1, 1, -1.0), (2**62, 2**62, 1e9), (-(2**62), 5, -1e-9), (7, 10**18, 0.5)]
)
def test_odd_figures_do_not_stop_a_report(tmp_path, late, time, error):
    made = timeline(
        ranks=[(0, 0, time, -1)],
        operators=[operator(0, 1, NodeKind.COLLECTIVE, 0, time, late=late, comm=CollectiveKind.BROADCAST)],
        messages=[message(0, 1, 0, time, time)],
    )
    row = round_row(1, time, time, []) if time else {"predicted_ns": 0, "measured_ns": 0, "round": 1, "fitted": []}
    row |= {"error": error, "run": "x", "unidentified": []}
    page(saved(tmp_path, made, results={"rounds": [row], "iteration_ns": time}), tmp_path)
