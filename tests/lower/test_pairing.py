import pytest

from genie.core.system import System
from genie.core.workload import CollectiveKind, Group
from genie.errors import InputError
from genie.lower import lower
from genie.lower.pairing import refuse_unpaired
from genie.patterns import PATTERNS, TraceBuilder, as_workload

SYSTEM = System(splits=2, algorithms=dict.fromkeys(CollectiveKind, ("ring",)), extended=True)
AR = CollectiveKind.ALL_REDUCE


def schedule(*ranks, groups=()):
    traces = [TraceBuilder(rank) for rank in range(len(ranks))]
    for trace, steps in zip(traces, ranks, strict=True):
        trace.compute("c", 1)
        for name, *arguments in steps:
            getattr(trace, name)("n", *arguments)
    return lower(as_workload("w", traces, groups), SYSTEM)


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_patterns_are_paired(pattern):
    refuse_unpaired(lower(PATTERNS[pattern].make(4, 1 << 16), SYSTEM))


def test_a_receive_without_its_send_is_named():
    with pytest.raises(InputError, match=r"2 receives .*rank 1 .* node . \(n\) for 64 bytes from rank 0 with tag 3"):
        refuse_unpaired(schedule([("send", 1, 64, 2)], [("receive", 0, 64, 3), ("receive", 0, 64, 3)]))
    with pytest.raises(InputError, match="1 receives"):
        refuse_unpaired(schedule([("send", 1, 64, 3)], [("receive", 0, 64, 3), ("receive", 0, 64, 3)]))


def test_a_send_without_its_receive_ends_all_the_same():
    refuse_unpaired(schedule([("send", 1, 64, 2)], []))


def test_a_member_that_stays_away_is_named():
    step = ("collective", AR, 1024)
    with pytest.raises(InputError, match="all ranks: rank 0 has 4 chunks of them, rank 2 has 2"):
        refuse_unpaired(schedule([step, step], [step, step], [step]))
    pair = ("collective", AR, 1024, (), "1")
    groups = (Group("1", (0, 2)),)
    refuse_unpaired(schedule([pair], [], [pair], groups=groups))
    with pytest.raises(InputError, match="group 1: rank 0 has 2 chunks of them, rank 2 has 0"):
        refuse_unpaired(schedule([pair], [], [], groups=groups))
