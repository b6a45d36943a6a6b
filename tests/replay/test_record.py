import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.errors import RunError
from genie.replay.record import OperatorRows, RankRecord, ReceiveRows, SendRows

INT64 = st.integers(-(2**63), 2**63 - 1)


def rows(kind):
    return st.lists(st.tuples(*[INT64] * len(kind.SCHEMA)), max_size=4).map(kind.from_rows)


RECORDS = st.builds(RankRecord, INT64, INT64, rows(OperatorRows), rows(SendRows), rows(ReceiveRows))


def content(record):
    tables = (record.operators, record.sends, record.receives)
    return record.finish_ns, record.compute_ns, [[c.tolist() for c in t.columns().values()] for t in tables]


@given(RECORDS)
def test_a_record_survives_the_journey(record):
    assert content(RankRecord.from_bytes(record.to_bytes())) == content(record)


@given(RECORDS, st.data())
def test_a_record_that_lost_its_end_is_refused(record, data):
    whole = record.to_bytes()
    with pytest.raises(RunError):
        RankRecord.from_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])


@pytest.mark.parametrize("rows", [[-1, 0, 0], [0, 0, 1 << 40], [1, 0, 0]])
def test_a_record_that_lies_about_its_length_is_refused(rows):
    with pytest.raises(RunError, match="not as long as it says"):
        RankRecord.from_bytes(np.array([0, 0, *rows], "<i8").tobytes())
