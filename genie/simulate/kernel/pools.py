"""Rows of pools (timers, streams, letters under way): handed out and taken back."""

from genie.simulate.kernel.jit import (
    jit,
)
from genie.simulate.kernel.layout import (
    AT_SPARES,
    SPARE_OF,
)


@jit
def take(m, f, pool):
    """A free row of the pool."""
    m[SPARE_OF + pool] -= 1
    return m[m[AT_SPARES + pool] + m[SPARE_OF + pool]]


@jit
def give(m, f, pool, row):
    """The row is free again."""
    m[m[AT_SPARES + pool] + m[SPARE_OF + pool]] = row
    m[SPARE_OF + pool] += 1
