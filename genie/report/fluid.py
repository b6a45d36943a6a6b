"""What messages should have taken: the measured posts pushed through a fabric of given rates and routes.

The same max-min model that predictions use (`genie.network.fabric`), so that a difference is the fabric's, not the
model's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from genie.core.netmodel import Estimate, FabricModel, Link
from genie.network.models import build
from genie.network.queue import EventQueue

MOST: Final = 2_000
"""So many messages of an iteration are pushed through the model, the first posted: it is done some twenty times."""

Floats = NDArray[np.float64]
Route = tuple[str, ...]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Fabric:
    """Links by name, and which ones lie between two ranks."""

    rates_bps: Mapping[str, float]
    delays_ns: Mapping[str, float]
    routes: Mapping[Pair, Route]

    def slower(self, links: Sequence[str], share: float) -> Fabric:
        """With some links at a share of their rate."""
        return replace(self, rates_bps={**self.rates_bps, **{link: self.rates_bps[link] * share for link in links}})

    def routed(self, routes: Mapping[Pair, Route]) -> Fabric:
        """With other routes."""
        return replace(self, routes=routes)

    def alternatives(self, route: Route) -> list[Route]:
        """The routes of equal length between the same ends, over other switches in the middle (of up to five hops)."""
        if not 3 <= len(route) <= 5:  # noqa: PLR2004 - a Clos of two tiers has four hops; more would take long
            return [route]
        inner = [link.partition(">") for link in route[1:-1]]
        ways = self._ways(inner[0][0], inner[-1][2], len(inner))
        return [(route[0], *way, route[-1]) for way in ways]

    def _ways(self, start: str, end: str, length: int) -> list[Route]:
        """All ways of that many links from one switch to another; remembered."""
        known = self._known.get((start, end, length))
        if known is None:
            ways: list[tuple[str, Route]] = [(start, ())]
            for _ in range(length):
                ways = [(to, (*way, f"{at}>{to}")) for at, way in ways for to in self._near[at]]
            known = self._known[start, end, length] = [way for at, way in ways if at == end]
        return known

    @cached_property
    def _near(self) -> dict[str, list[str]]:
        """Switch -> switches that it has a link to (and hosts, which have no link on)."""
        found: dict[str, list[str]] = defaultdict(list)
        for link in self.rates_bps:
            source, _, target = link.partition(">")
            found[source].append(target)
        for way in self.routes.values():
            found.pop(way[0].partition(">")[0], None)
        return found

    @cached_property
    def _known(self) -> dict[tuple[str, str, int], list[Route]]:
        return {}


def fabric_of(links: pd.DataFrame, routes: pd.DataFrame) -> Fabric:
    """A fabric from the run's tables."""
    ways: dict[Pair, list[str]] = defaultdict(list)
    for src, dst, link in routes.sort_values(["src", "dst", "hop"])[["src", "dst", "link"]].itertuples(index=False):
        ways[int(src), int(dst)].append(str(link))
    names = links["link"].astype(str).tolist()
    rates, delays = (links[name].astype(float).tolist() for name in ("rate_bps", "delay_ns"))
    return Fabric(
        dict(zip(names, rates, strict=True)),
        dict(zip(names, delays, strict=True)),
        {pair: tuple(way) for pair, way in ways.items()},
    )


def expected_ns(flows: pd.DataFrame, fabric: Fabric) -> Floats:
    """Per message, post to delivery as the fabric would do it; NaN for one whose route is not known."""
    names = list(fabric.rates_bps)
    at = {name: number for number, name in enumerate(names)}
    links = tuple(Link(name, Estimate(fabric.rates_bps[name]), fabric.delays_ns[name], name) for name in names)
    routes = {
        pair: tuple(at[link] for link in way)
        for pair, way in fabric.routes.items()
        if way and all(link in at for link in way)
    }
    ranks = int(flows[["src", "dst"]].to_numpy().max()) + 1 if len(flows) else 1
    ranks = max([ranks, *(1 + max(pair) for pair in routes)])
    queue = EventQueue()
    network = build(FabricModel(ranks, links, routes), queue)
    found = np.full(len(flows), np.nan)
    posts = flows["posted_ns"].to_numpy(np.int64)

    def delivered(row: int) -> None:
        found[row] = queue.now_ns - posts[row]

    columns: Any = zip(*(flows[name].tolist() for name in ("src", "dst", "size_bytes")), strict=True)
    for row, (src, dst, size) in enumerate(columns):
        if (src, dst) in routes and size > 0:
            queue.at(int(posts[row]), network.send, src, dst, size, delivered, row)
    queue.run()
    return found


def balanced(flows: pd.DataFrame, fabric: Fabric) -> dict[Pair, Route]:
    """Routes under which parallel links carry alike.

    Pair by pair, largest first, takes the way whose fullest link is emptiest.
    """
    load: dict[str, float] = defaultdict(float)
    sent = flows.groupby(["src", "dst"])["size_bytes"].sum().sort_values(ascending=False, kind="stable")
    chosen = dict(fabric.routes)
    for (src, dst), size in zip(sent.index.tolist(), sent.tolist(), strict=True):
        if (src, dst) in fabric.routes:
            ways = fabric.alternatives(fabric.routes[src, dst])

            def fullest(way: Route, size: float = size) -> tuple[float, float]:
                full = [(load[link] + size) / fabric.rates_bps[link] for link in way]
                return max(full), sum(full)

            chosen[src, dst] = min(ways, key=fullest)
            for link in chosen[src, dst]:
                load[link] += size
    return chosen
