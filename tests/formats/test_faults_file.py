import pytest
from pydantic import ValidationError

from genie.core.faults import Fault, FaultKind
from genie.errors import InputError
from genie.formats.faults import FaultFile


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (
            {"kind": "link-down", "target": "a-b", "start": "1 ms", "end": "2 ms", "reroute": "50 us"},
            Fault(FaultKind.LINK_DOWN, "a-b", 1_000_000, 2_000_000, reroute_ns=50_000),
        ),
        (
            {"kind": "flap", "target": "a-b", "end": "2 ms", "period": "100 us", "reroute": "never"},
            Fault(FaultKind.FLAP, "a-b", 0, 2_000_000, period_ns=100_000, reroute_ns=None),
        ),
        ({"kind": "rate", "target": "*", "rate": "50 Gb/s"}, Fault(FaultKind.RATE, "*", 0, value=50_000_000_000)),
        ({"kind": "loss", "target": "*", "loss": "0.5 %"}, Fault(FaultKind.LOSS, "*", 0, value=5_000)),
        ({"kind": "delay", "target": "*", "delay": "3 us"}, Fault(FaultKind.DELAY, "*", 0, value=3_000)),
        ({"kind": "buffer", "target": "*", "buffer": "64 KiB"}, Fault(FaultKind.BUFFER, "*", 0, value=65_536)),
        ({"kind": "pause", "target": "h1", "iteration": 1}, Fault(FaultKind.PAUSE, "h1", 0, iteration=1)),
        ({"kind": "kill", "target": "rank 1", "start": "7 us"}, Fault(FaultKind.KILL, "rank 1", 7_000)),
    ],
)
def test_every_kind_is_read(content, fault):
    assert FaultFile.model_validate(content).fault() == fault


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"kind": "rate", "target": "*"}, "needs a rate"),
        ({"kind": "pause", "target": "*", "rate": "1 Gb/s"}, "takes no rate"),
        ({"kind": "kill", "target": "*", "start": "7"}, "no duration"),
        ({"kind": "kill", "target": "*", "end": "7 us"}, "no end"),
    ],
)
def test_what_does_not_fit_is_refused(content, words):
    with pytest.raises(InputError, match=words):
        FaultFile.model_validate(content).fault()


def test_unknown_kinds_and_keys_are_refused():
    for content in ({"kind": "earthquake", "target": "*"}, {"kind": "kill", "target": "*", "at": "1 ms"}):
        with pytest.raises(ValidationError):
            FaultFile.model_validate(content)
