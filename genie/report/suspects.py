"""Who may be to blame for a slow iteration: each suspect with what speaks against it and what it costs.

Faults are things that are not as they should be: a link that loses packets, one that is slower than its rate, a path
that is not there, a rank that computes longer or posts later than the others. Contention is what a sound fabric does to
unlucky traffic: flows that hash onto one of several parallel links. What a suspect costs is what it adds to the
critical path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pandas as pd

from genie.core.workload import NodeKind
from genie.report import show
from genie.report.critical import Step, critical_path
from genie.report.fluid import MOST, Fabric, Floats, Pair, balanced, expected_ns, fabric_of
from genie.report.subject import View

SLOW: Final = 0.9
"""A link is called slow below this share of its rate."""

EXPLAINS: Final = 0.3
"""Share of what is unexplained that a slow link has to explain."""

LOSSY: Final = 0.002
"""Share of packets lost from which on a link is called lossy."""

LOSSY_BY_BYTES: Final = 0.008
"""The same where it is worked out from the bytes around the link: below it framing and acknowledgements blur them."""

UNLUCKY: Final = 0.01
"""A parallel link that no flow uses is called missing when chance would do that less often."""

NOTICEABLE: Final = 0.02
"""Share of the iteration below which a suspect is not named (loss always is)."""

LONGER: Final = 0.05
"""A rank is called slow when it computes so much longer than the median rank."""

_SHARES: Final = (0.15, 0.35, 0.6, 0.85)
_CABLES: Final = 4


@dataclass(frozen=True, slots=True)
class Suspect:
    """Something that may be to blame.

    Attributes:
        kind: lossy link, slow link, missing path, slow rank, late rank or ECMP collision.
        name: link, cable, rank or links.
        evidence: a sentence without its name, with numbers.
        cost_ns: what it adds to the critical path.
        fault: whether something is not as it should be; else it is contention.
    """

    kind: str
    name: str
    evidence: str
    cost_ns: float
    fault: bool


class Case:
    """One iteration of a run, with what the suspects are judged by."""

    def __init__(self, view: View) -> None:
        self.view = view
        times = view.ranks.groupby("iteration")["finish_ns"].max()
        nearest = int(np.argmin(np.abs(times.to_numpy() - np.median(times.to_numpy()))))
        self.iteration, self.iteration_ns = int(times.index.tolist()[nearest]), float(times.tolist()[nearest])
        self.operators, self.ranks = (_of(frame, self.iteration) for frame in (view.operators, view.ranks))
        flows = _of(view.flows, self.iteration)
        good = flows[flows["fct_ns"].notna()].sort_values("posted_ns", kind="stable")
        self.all_flows, self.flows = good, good.head(MOST)

    @cached_property
    def path(self) -> list[Step]:
        """The critical path; its rows are those of `all_flows`."""
        return critical_path(self.operators, self.all_flows, self.ranks)

    @cached_property
    def on_path(self) -> pd.Series[bool]:
        """Which messages are on it."""
        return pd.Series(self.flows.index.isin([s.row for s in self.path if s.kind == "message"]), self.flows.index)

    @cached_property
    def fabric(self) -> Fabric | None:
        """As the testbed's file says it is; None where the run does not tell."""
        if self.view.links.empty or self.view.routes.empty or self.flows.empty:
            return None
        return fabric_of(self.view.links, self.view.routes)

    def crossing(self, links: Sequence[str]) -> pd.Series[bool]:
        """Which messages cross one of these links."""
        routes = self.fabric.routes if self.fabric is not None else {}
        pairs = {pair for pair, way in routes.items() if set(way) & set(links)}
        ends = zip(self.flows["src"].tolist(), self.flows["dst"].tolist(), strict=True)
        return pd.Series([pair in pairs for pair in ends], self.flows.index)

    @cached_property
    def fct_ns(self) -> Floats:
        """As measured."""
        return self.flows["fct_ns"].to_numpy(np.float64)

    @cached_property
    def nominal_ns(self) -> Floats:
        """As the fabric should have done it, routes and all."""
        return expected_ns(self.flows, self.fabric) if self.fabric is not None else np.full(len(self.flows), np.nan)

    @cached_property
    def even_ns(self) -> Floats:
        """As the fabric would have done it with flows spread evenly over all paths that there should be."""
        if self.fabric is None:
            return np.full(len(self.flows), np.nan)
        return expected_ns(self.flows, self.fabric.routed(balanced(self.flows, self.fabric)))

    def on_path_ns(self, times_ns: Floats, chosen: pd.Series[bool]) -> float:
        """The sum over chosen messages of the critical path, what is below zero left out."""
        return float(np.nansum(np.clip(times_ns, 0, None)[(self.on_path & chosen).to_numpy()]))


def _of(frame: pd.DataFrame, iteration: int) -> pd.DataFrame:
    return frame[frame["iteration"] == iteration] if len(frame) else frame


def suspects(case: Case) -> list[Suspect]:
    """Everybody to blame, worst first: faults before contention."""
    makers: tuple[Callable[[Case], Iterator[Suspect]], ...] = (lossy, slow_links, missing, slow_ranks, collisions)
    found = [suspect for make in makers for suspect in make(case)]
    least = NOTICEABLE * case.iteration_ns
    named = [one for one in found if one.cost_ns >= least or one.kind == "lossy link"]
    return sorted(named, key=lambda one: (not one.fault, one.kind != "lossy link", -one.cost_ns))


# --- ranks -----------------------------------------------------------------------------------------------------------


def slow_ranks(case: Case) -> Iterator[Suspect]:
    """Ranks that compute longer than the median rank, or whose posts come late."""
    computes = case.operators[case.operators["kind"] == NodeKind.COMP.name]
    total = computes.groupby("rank")["duration_ns"].sum()
    middle = float(total.median()) if len(total) > 1 else 0.0
    for rank, own in total.items():
        if middle > 0 and own > (1 + LONGER) * middle:
            spent = sum(s.length_ns for s in case.path if s.kind == "compute" and s.rank == rank)
            evidence = f"computes for {show.time(float(own))}, the median rank for {show.time(middle)}"
            yield Suspect("slow rank", f"rank {rank}", evidence, spent * (1 - middle / float(own)), fault=True)
    late = case.flows.loc[case.on_path].groupby("src")["late_ns"].sum()
    usual = case.view.flows.groupby(["src", "iteration"])["late_ns"].sum().groupby("src").median()
    for rank, own in late.to_dict().items():
        evidence = f"posts {show.time(float(own))} late in all on the critical path"
        cost_ns = min(float(own), float(usual.to_dict()[rank]))  # what happened once is no property of the rank
        yield Suspect("late rank", f"rank {rank}", evidence, cost_ns, fault=True)


# --- links -----------------------------------------------------------------------------------------------------------


def cables(fabric: Fabric) -> dict[str, tuple[str, ...]]:
    """Cable -> its directions that there are."""
    found: dict[str, tuple[str, ...]] = {}
    for link in fabric.rates_bps:
        a, _, b = link.partition(">")
        found.setdefault("-".join(sorted((a, b))), ())
        found["-".join(sorted((a, b)))] += (link,)
    return found


def slow_links(case: Case) -> Iterator[Suspect]:
    """The cable that, slower than its rate, explains best why messages took longer than they should."""
    fabric = case.fabric
    if fabric is None:
        return
    excess = np.nan_to_num(case.fct_ns - case.nominal_ns)
    before = float(np.abs(excess).sum())
    if np.clip(excess, 0, None).sum() < NOTICEABLE * np.nansum(case.nominal_ns):
        return
    weight = {name: float(excess[case.crossing(links).to_numpy()].sum()) for name, links in cables(fabric).items()}
    best: tuple[float, str, float] = (before, "", 1.0)
    for name in sorted(weight, key=lambda name: -weight[name])[:_CABLES]:
        best = min(best, *(_tried(case, fabric, name, share) for share in _SHARES))
    off, name, share = best
    for finer in (share * factor for factor in (0.8, 0.9, 1.1, 1.2) if name):
        off, name, share = min((off, name, share), _tried(case, fabric, name, finer))
    if not name or share > SLOW or off > (1 - EXPLAINS) * before:
        return
    links = cables(fabric)[name]
    rate = fabric.rates_bps[links[0]]
    chosen = case.crossing(links)
    alike = [other for other, ends in cables(fabric).items() if case.crossing(ends).equals(chosen) and other != name]
    evidence = (
        f"moves messages as if it had {show.rate(rate * share)} instead of {show.rate(rate)}; that explains "
        f"{show.share(1 - off / before, 0)} of what messages took too long; {int(chosen.sum())} of "
        f"{len(case.flows)} messages cross it"
    )
    name = " or ".join(sorted([name, *alike]))  # messages that all cross several cables cannot tell which of them it is
    yield Suspect("slow link", name, evidence, case.on_path_ns(case.fct_ns - case.nominal_ns, chosen), fault=True)


def _tried(case: Case, fabric: Fabric, name: str, share: float) -> tuple[float, str, float]:
    """(sum of absolute errors, cable, share) if that cable had a share of its rate."""
    predicted = expected_ns(case.flows, fabric.slower(cables(fabric)[name], share))
    return float(np.nansum(np.abs(case.fct_ns - predicted))), name, share


def lossy(case: Case) -> Iterator[Suspect]:
    """Links that drop packets by their own count, or from which fewer come than the traffic before them says."""
    fabric, counters = case.fabric, case.view.counters
    if fabric is None or counters.empty:
        return
    dropped = counters.set_index("link")["dropped_packets"].astype(float)
    sent = counters.set_index("link")["sent_packets"].astype(float)
    shares = (dropped / (dropped + sent).clip(lower=1)).sort_values(ascending=False)
    found = {str(link): float(share) for link, share in shares.items() if share >= LOSSY}
    how = "its own counter says" if found else "the bytes on the links before and after it say"
    for link, share in (found or missing_bytes(case, fabric)).items():
        chosen = case.crossing([link])
        cost = case.on_path_ns(case.fct_ns - case.nominal_ns, chosen)
        evidence = f"loses {show.share(share, 2)} of what it should carry: {how} so"
        yield Suspect("lossy link", link, evidence, cost, fault=True)


def missing_bytes(case: Case, fabric: Fabric) -> dict[str, float]:
    """Link -> share lost on it, from the counters alone: the links before a loss carry the retransmissions too.

    A link K should have counted, for each pair of ranks that crosses it, its bytes x (1 + losses at or behind K).
    Solved for losses that are not negative, by least squares; framing and acknowledgements are in a common factor.
    """
    from scipy.optimize import nnls  # noqa: PLC0415 - a second to import, needed only here

    counted = case.view.counters.set_index("link")["sent_bytes"].astype(float)
    iterations = max(case.view.flows["iteration"].nunique(), 1)
    sent = case.view.flows.groupby(["src", "dst"])["size_bytes"].sum() / iterations
    names = [link for link in fabric.rates_bps if link in counted.index]
    at = {link: number for number, link in enumerate(names)}
    payload, losses = np.zeros(len(names)), np.zeros((len(names), len(names)))
    for pair, size in sent.items():
        way = [at[link] for link in fabric.routes.get(_pair(pair), ()) if link in at]
        for hop, number in enumerate(way):
            payload[number] += size
            losses[number, way[hop:]] += size
    used = payload > 0
    if used.sum() < 3:  # noqa: PLR2004 - too few links to tell them apart
        return {}
    ratio = counted[names].to_numpy()[used] / payload[used]
    base = float(np.quantile(ratio, 0.1))
    solution, _ = nnls((losses / payload.clip(min=1)[:, None])[used], ratio / base - 1)
    worst = int(np.argmax(solution))
    return {names[worst]: float(solution[worst])} if solution[worst] >= LOSSY_BY_BYTES else {}


def _pair(index: object) -> Pair:
    src, dst = index if isinstance(index, tuple) else (0, 0)
    return int(src), int(dst)


# --- paths -----------------------------------------------------------------------------------------------------------


def parallel(fabric: Fabric) -> dict[str, list[str]]:
    """Switch -> its links to other switches of which there are several that lead on to the same places."""
    hosts = {way[0].partition(">")[0] for way in fabric.routes.values() if way}
    hosts |= {way[-1].partition(">")[2] for way in fabric.routes.values() if way}
    switches = {end for link in fabric.rates_bps for end in link.split(">")} - hosts
    found: dict[str, list[str]] = {}
    for link in fabric.rates_bps:
        source, _, target = link.partition(">")
        if source in switches and target in switches:
            found.setdefault(source, []).append(link)
    edge = {way[0].partition(">")[2] for way in fabric.routes.values() if way}
    return {switch: links for switch, links in found.items() if len(links) > 1 and switch in edge}


def missing(case: Case) -> Iterator[Suspect]:
    """Links that nothing uses, though chance would let some flow use them, and that counted nothing."""
    fabric = case.fabric
    if fabric is None:
        return
    flows = pd.Series([link for way in fabric.routes.values() for link in set(way)]).value_counts()
    counted = (
        case.view.counters.set_index("link")["sent_packets"] if len(case.view.counters) else pd.Series(dtype=float)
    )
    gone: dict[str, tuple[int, int]] = {}
    for links in parallel(fabric).values():
        total = sum(int(flows.get(link, 0)) for link in links)
        for link in links:
            silent = float(counted.get(link, 0.0)) == 0 and len(counted) > 0
            if flows.get(link, 0) == 0 and silent and (1 - 1 / len(links)) ** total < UNLUCKY:
                gone["-".join(sorted(link.split(">")))] = (total, len(links))
    for cable, (total, ways) in gone.items():
        evidence = (
            f"carries nothing in either direction: all {total} flows of its switch take the other "
            f"{'way' if ways == 2 else f'{ways - 1} ways'}"  # noqa: PLR2004 - two ways, one other
        )
        yield Suspect("missing path", cable, evidence, _spreading(case, None), fault=True)


def _spreading(case: Case, links: Sequence[str] | None) -> float:
    """What the critical path would save with flows spread evenly over all paths; of messages across `links`, or all."""
    chosen = case.crossing(links) if links is not None else pd.Series(data=True, index=case.flows.index)
    return case.on_path_ns(case.nominal_ns - case.even_ns, chosen)


def collisions(case: Case) -> Iterator[Suspect]:
    """Parallel links on which flows meet while others are less used."""
    fabric = case.fabric
    if fabric is None:
        return
    sent = case.flows.groupby(["src", "dst"])["size_bytes"].sum()
    load: dict[str, float] = {}
    on: dict[str, list[Pair]] = {}
    for index, size in sent.items():
        pair = _pair(index)
        for link in fabric.routes.get(pair, ()):
            load[link] = load.get(link, 0.0) + float(size)
            on.setdefault(link, []).append(pair)
    for links in parallel(fabric).values():
        fullest = max(links, key=lambda link: load.get(link, 0.0) / fabric.rates_bps[link])
        mean = sum(load.get(link, 0.0) for link in links) / len(links)
        if len(on.get(fullest, [])) > 1 and load[fullest] > 1.2 * mean:
            who = _flows_in_words(case, on[fullest])
            evidence = (
                f"{len(on[fullest])} flows share it ({who}): {show.size(load[fullest])} an iteration, the mean of its "
                f"{len(links)} parallel links is {show.size(mean)}"
            )
            yield Suspect("ECMP collision", fullest, evidence, _spreading(case, [fullest]), fault=False)


_NAMED: Final = 4


def _flows_in_words(case: Case, pairs: Sequence[Pair]) -> str:
    """Flows with their ports, where the run knows them."""
    routes = case.view.routes
    ports: Mapping[Pair, tuple[int, int]] = {}
    if {"sport", "dport"} <= set(routes.columns):
        first = routes.drop_duplicates(["src", "dst"])
        columns = (first[name].tolist() for name in ("src", "dst", "sport", "dport"))
        ports = {(src, dst): (sport, dport) for src, dst, sport, dport in zip(*columns, strict=True)}
    words = [
        f"{s} to {d}" + (f", port {ports[s, d][0]} to {ports[s, d][1]}" if (s, d) in ports else "") for s, d in pairs
    ]
    rest = f"; and {len(pairs) - _NAMED} more" if len(pairs) > _NAMED else ""
    return "; ".join(f"rank {word}" for word in words[:_NAMED]) + rest
