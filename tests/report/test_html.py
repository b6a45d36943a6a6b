import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from strategies import fixed_network as network

from genie.core.system import System
from genie.core.workload import CollectiveKind
from genie.formats.runfile import RunWriter, open_run
from genie.lower import lower
from genie.patterns import generate
from genie.report.html import render
from genie.simulate.builtin import simulate

ROUND = {
    "round": 1,
    "predicted_ns": 1000,
    "measured_ns": 900,
    "error": 0.111,
    "run": "rounds/1-replay",
    "fitted": [
        {
            "name": "<b>bandwidth</b>",
            "value": 2e11,
            "unit": "bit/s",
            "stderr": 1e8,
            "low": 1e11,
            "high": 3e11,
            "samples": 9,
        }
    ],
}


class Parser(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.links, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        if tag not in {"meta", "br", "img", "link", "input"}:
            self.open.append(tag)
        self.links += [value for name, value in attrs if name in {"src", "href", "action"} and value[:1] != "#"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def timeline():
    system = System(splits=1, algorithms=dict.fromkeys(CollectiveKind, ("ring",)))
    return simulate(lower(generate("data_parallel", 4, 1 << 20), system), network(4))


def report(tmp_path, status="ok", checks=(), results=None):
    run = RunWriter(tmp_path / "run", "simulate", "a <script> name")
    run.save_timeline(timeline())
    run.save_table("counters", {"link": ["h0>s"], "bytes": [5], "packets": [1], "drops": [0]})
    run.finish(status, results or {"iteration_ns": 5000}, list(checks))
    return render(open_run(run.path), tmp_path / "report.html")


def parsed(path):
    parser = Parser()
    parser.feed(path.read_text())
    assert parser.open == []
    return parser


def test_one_file_that_needs_no_other(tmp_path):
    page = parsed(report(tmp_path))
    assert page.links == []
    assert "a <script> name" in page.text
    for heading in ("Messages", "Collectives", "Timeline, predicted", "Links", "How to do it again", "Environment"):
        assert heading in page.text


def test_a_failed_run_says_so_first(tmp_path):
    check = {"name": "bytes equal", "ok": False, "hard": True, "value": "no", "limit": "yes"}
    page = parsed(report(tmp_path, "failed", [check]))
    assert page.text.index("Do not use these numbers.") < page.text.index("Messages")


def test_rounds_and_fitted_parameters(tmp_path):
    page = parsed(report(tmp_path, results={"rounds": [ROUND], "stopped": "enough"}))
    assert "+11.10%" in page.text
    assert "<b>bandwidth</b>" in page.text
    assert "100.00 to 300.00" in page.text


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium, which is not installed")
def test_a_browser_shows_it_without_complaint(tmp_path):
    path, shot = report(tmp_path), tmp_path / "shot.png"
    flags = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--enable-logging=stderr",
    )
    command = ["chromium", *flags, f"--user-data-dir={tmp_path}/profile", f"--screenshot={shot}", f"file://{path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert shot.stat().st_size > 10_000
    assert "CONSOLE" not in done.stderr
