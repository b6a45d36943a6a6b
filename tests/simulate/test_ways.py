"""Every path of the simulator gives the same timeline, to the cycle and to the message."""

import os

import numpy as np
from hypothesis import HealthCheck, given, settings
from strategies import jobs

from genie.errors import InputError
from genie.lower import lower
from genie.simulate.builtin import Way, simulate

EXAMPLES = int(os.environ.get("GENIE_EXAMPLES", "150"))


def rows(table, *order):
    columns = table.columns()
    keys = np.lexsort([columns[name] for name in reversed(order)])
    return {name: column[keys].tolist() for name, column in columns.items()}


def assert_same(one, other):
    assert rows(one.ranks, "rank") == rows(other.ranks, "rank")
    assert rows(one.operators, "rank", "node_id") == rows(other.operators, "rank", "node_id")
    key = ("src", "dst", "tag", "size_bytes", "index")
    assert rows(one.messages, *key) == rows(other.messages, *key)


def outcome(schedule, network, way):
    """The timeline, or the sentence of the refusal."""
    try:
        return simulate(schedule, network, way=way)
    except InputError as error:
        return str(error)


def compare(job, way):
    """The path's timeline is the plain path's, and so is its refusal, unless the path cannot be taken."""
    workload, system, network = job
    try:
        schedule = lower(workload, system, tuple(d.size for d in network.dimensions))
    except InputError:
        return
    plain, other = outcome(schedule, network, Way.PLAIN), outcome(schedule, network, way)
    if isinstance(plain, str) or isinstance(other, str):
        assert other == plain or "path cannot be taken" in other
    else:
        assert_same(plain, other)


RANDOM = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@RANDOM
@given(jobs())
def test_symmetric_is_plain(job):
    compare(job, Way.SYMMETRIC)


@RANDOM
@given(jobs())
def test_compiled_is_plain(job):
    compare(job, Way.COMPILED)
