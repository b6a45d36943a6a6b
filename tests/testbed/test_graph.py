import re
from pathlib import Path

import pytest

from genie.testbed.files import load_testbed, parse_testbed
from genie.testbed.graph import FORMATS, draw

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("form", FORMATS)
def test_every_node_rank_and_cable_is_drawn(form):
    testbed = load_testbed(ROOT / "testbed/rail-optimised-8.yml")
    text = draw(testbed, form)
    nodes = re.findall(r'^ +(?:"[^"]+"|n\d+) ?[\[(]', text, re.MULTILINE)
    assert len(nodes) == len(testbed.nodes)
    assert len(re.findall(r"--[- ]", text)) == len(testbed.cables)
    assert "ranks 2, 3" in text
    assert "200 Gb/s, 2 us" in text


def test_marking_and_losses_are_written_on_their_cable():
    content = {
        "name": "x",
        "kind": "emulated",
        "topology": {"kind": "dumbbell", "left": 1, "right": 1},
        "links": {"host": {"rate": "100 Gb/s"}, "bottleneck": {"rate": "25 Gb/s", "ecn": "64 KiB", "loss": "0.5 %"}},
    }
    (line,) = [line for line in draw(parse_testbed(content, "x"), "dot").splitlines() if '"left" -- ' in line]
    assert line == '  "left" -- "right" [label="25 Gb/s, 0 us, ECN 64 KiB, loss 0.5 %"];'
