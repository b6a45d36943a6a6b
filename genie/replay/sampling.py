"""Counters of links and of this machine, read at the start, at the end and now and then during every iteration."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from genie.core.testbed import Testbed
from genie.replay.during import Quiet
from genie.replay.machine import COUNTERS, machine_counters
from genie.replay.ranks import Rank
from genie.units import BITS_PER_BYTE, NS_PER_S

PERIOD_NS: Final = 250_000_000
"""Real time between two samples; one of a fabric of 16 hosts takes some milliseconds."""

MAX_SAMPLES: Final = 2_000
"""Of an iteration; of a longer one samples are taken ever more rarely."""

LinkCounts = Mapping[str, Mapping[str, int]]
"""Directed link -> bytes, packets, drops, backlog_bytes (see testbed.counters.Counted)."""


class Sample(NamedTuple):
    """One reading: iteration (negative: warm-up), real and virtual time, what links and machine had counted."""

    iteration: int
    real_ns: int
    at_ns: int
    links: LinkCounts
    machine: Mapping[str, int]


class Sampler(Quiet):
    """See During.

    Args:
        testbed: whose links are counted.
        read: the links' counters.
        now_ns: real time.
        machine: the machine's counters.
        period_ns: real time between samples.
    """

    def __init__(
        self,
        testbed: Testbed,
        read: Callable[[], LinkCounts],
        now_ns: Callable[[], int] = time.monotonic_ns,
        machine: Callable[[], Mapping[str, int]] = machine_counters,
        period_ns: int = PERIOD_NS,
    ) -> None:
        self._testbed, self._read, self._machine, self._now_ns = testbed, read, machine, now_ns
        self._first_period_ns = self._period_ns = period_ns
        self._iteration, self._start_ns = 0, 0
        self._due_ns: int | None = None
        self._taken = 0
        self.samples: list[Sample] = []
        links = testbed.links()
        self._wire_bps = {name: testbed.wire_bps(cable) for name, cable in links.items()}

    def begin(self, iteration: int, start_ns: int, ranks: Sequence[Rank]) -> None:
        """See During."""
        del ranks
        self._iteration, self._start_ns, self._taken = iteration, start_ns, 0
        self._period_ns = self._first_period_ns
        self._take()
        self._due_ns = start_ns + self._period_ns

    def due_ns(self) -> int | None:
        """See During."""
        return self._due_ns

    def act(self, now_ns: int) -> None:
        """See During."""
        self._take()
        if self._taken >= MAX_SAMPLES:
            self._taken, self._period_ns = 0, 10 * self._period_ns
        self._due_ns = now_ns + self._period_ns

    def end(self, now_ns: int) -> None:
        """See During."""
        del now_ns
        if self._due_ns is not None:
            self._take()
        self._due_ns = None

    def _take(self) -> None:
        self._taken += 1
        now_ns = self._now_ns()
        at_ns = (now_ns - self._start_ns) // self._testbed.dilation
        self.samples.append(Sample(self._iteration, now_ns, at_ns, self._read(), self._machine()))

    def link_rows(self) -> list[dict[str, Any]]:
        """Of every link, between each two samples of an iteration: see docs/run-directory.md, `link_samples`."""
        return [row for before, after in self._pairs() for row in self._between(before, after)]

    def latest_rates(self) -> list[dict[str, Any]]:
        """The same between the last two samples; empty at the beginning of an iteration."""
        return list(self._between(*pairs[-1])) if (pairs := self._pairs(self.samples[-2:])) else []

    def _between(self, before: Sample, after: Sample) -> Iterator[dict[str, Any]]:
        seconds = max(after.real_ns - before.real_ns, 1) / NS_PER_S
        for link, counts in after.links.items():
            grown = {name: counts[name] - before.links[link][name] for name in ("bytes", "packets", "drops")}
            real_bps = grown["bytes"] * BITS_PER_BYTE / seconds
            yield {
                "iteration": after.iteration,
                "link": link,
                "begin_ns": before.at_ns,
                "end_ns": after.at_ns,
                "sent_bytes": grown["bytes"],
                "sent_packets": grown["packets"],
                "dropped_packets": grown["drops"],
                "backlog_bytes": counts["backlog_bytes"],
                "rate_bps": real_bps * self._testbed.dilation,
                "utilisation": real_bps / self._wire_bps[link],
            }

    def machine_rows(self) -> list[dict[str, Any]]:
        """What the machine counted between each two samples."""
        rows = []
        for before, after in self._pairs():
            grown = {name: after.machine[name] - before.machine[name] for name in COUNTERS}
            rows.append(
                {"iteration": after.iteration, "begin_ns": before.at_ns, "end_ns": after.at_ns}
                | {"real_ns": after.real_ns - before.real_ns}
                | grown
            )
        return rows

    def _pairs(self, samples: Sequence[Sample] | None = None) -> list[tuple[Sample, Sample]]:
        found = self.samples if samples is None else samples
        return [(before, after) for before, after in itertools.pairwise(found) if before.iteration == after.iteration]

    def tables(self) -> dict[str, dict[str, list[Any]]]:
        """Name -> columns, of those that have rows."""
        rows = {"link_samples": self.link_rows(), "machine_samples": self.machine_rows()}
        return {
            name: {column: [row[column] for row in found] for column in found[0]}
            for name, found in rows.items()
            if found
        }
