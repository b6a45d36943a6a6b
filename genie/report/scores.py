"""The figures of `genie.report.catalogue`, of every iteration of a run, and what they amount to.

`samples` is what comparisons and thresholds rest on: one row a figure, scope and iteration. `scores` sums it up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pandas as pd

from genie.report import metrics, show
from genie.report.catalogue import METRICS
from genie.report.statistics import interval, variation
from genie.report.subject import View
from genie.units import bps_to_gigabytes, bytes_per_ns_to_bps, transfer_ns

Frame = pd.DataFrame
WHOLE: Final = -1
"""Iteration of what is counted over the whole replay, warm-up included."""

Row = tuple[str, str, int, float]


def samples(view: View) -> Frame:
    """Every figure of a timeline: metric, scope ("" for all of it), iteration (WHOLE: of the replay), value.

    A figure that the run does not tell, or that is not defined for it, has no row.
    """
    makers = (_times, _shares, _messages, _incast, _collectives, _links, _counted, _fidelity)
    rows = [row for make in makers for row in make(view)]
    found = pd.DataFrame(rows, columns=["metric", "scope", "iteration", "value"])
    return found[found["value"].notna()].reset_index(drop=True)


def scores(found: Frame) -> Frame:
    """Figures summed up over their iterations.

    Args:
        found: from `samples`.

    Returns:
        metric, scope, value (median), unit, low and high (of the 95 % interval of the trimmed mean; NaN without
        repeats), cv, samples, better, about; in the catalogue's order.
    """
    order = {name: at for at, name in enumerate(METRICS)}
    rows = []
    for (name, scope), own in found.groupby(["metric", "scope"], sort=False):
        metric, values = METRICS[str(name)], own["value"].to_numpy()
        about = interval(values)
        body = (float(np.median(values)), metric.unit, about.low, about.high, variation(values), len(values))
        rows.append((name, scope, *body, str(metric.better), metric.about))
    names = ["metric", "scope", "value", "unit", "low", "high", "cv", "samples", "better", "about"]
    table = pd.DataFrame(rows, columns=names)
    return table.sort_values("metric", key=lambda names: names.map(order), kind="stable").reset_index(drop=True)


def _each(metric: str, values: pd.Series[Any], scope: str = "") -> Iterator[Row]:
    """Rows of values that are indexed by iteration."""
    for iteration, value in values.items():
        yield metric, scope, int(str(iteration)), float(value)


def _times(view: View) -> Iterator[Row]:
    if not len(view.ranks):
        return
    times = view.ranks.groupby("iteration")["finish_ns"].max(skipna=False)
    yield from _each("iteration_ns", times)
    done = view.ranks[view.ranks["finish_ns"] > 0]
    yield from _each("exposed_share", (done["exposed_ns"] / done["finish_ns"]).groupby(done["iteration"]).median())
    roofline_ns = roofline(view)
    if roofline_ns > 0:
        yield from _each("jct_ratio", times / roofline_ns)


def roofline(view: View) -> float:
    """What an iteration takes at least if compute and communication do not overlap; NaN if the links are not known.

    Of the slowest rank: its compute time + the larger of what it sends and receives / its link's rate, in ns. The IETF
    draft on AI fabric benchmarking has the same for one collective: C + S x factor / NIC rate.
    """
    if view.links.empty or view.routes.empty or not len(view.flows):
        return float("nan")
    pairs = metrics.traffic(view.flows)
    rate = view.links.set_index("link")["rate_bps"]
    ways = view.routes.sort_values("hop").groupby(["src", "dst"])["link"]
    sending, receiving = ways.first().groupby("src").first(), ways.last().groupby("dst").first()
    wire_ns = pd.Series(0.0, index=sorted(view.ranks["rank"].unique()))
    for end, link in (("src", sending), ("dst", receiving)):
        sent = pairs.groupby(end)["sent_bytes"].sum()
        time_ns = sent * link.map(rate).map(lambda bps: transfer_ns(1, bps)).reindex(sent.index)
        wire_ns = wire_ns.combine(time_ns.reindex(wire_ns.index).fillna(0.0), max)
    compute_ns = metrics.breakdown(view.activity).set_index("rank")["compute_ns"]
    return float((wire_ns + compute_ns.reindex(wire_ns.index).fillna(0.0)).max())


def _shares(view: View) -> Iterator[Row]:
    if not len(view.activity):
        return
    each = metrics.breakdown_times(view.activity).groupby("iteration")
    yield from _each("exposed_ns", each["exposed_ns"].median())
    yield from _each("overlap", each["overlap"].median())
    middle = each["compute_ns"].median()
    yield from _each("compute_spread", ((each["compute_ns"].max() - middle) / middle)[middle > 0])


def _messages(view: View) -> Iterator[Row]:
    good = view.flows[view.flows["fct_ns"].notna()] if len(view.flows) else view.flows
    if good.empty:
        return
    yield from _of_messages(good, "")
    bins = metrics.size_bins(good["size_bytes"])
    grouped = good.groupby(bins["size_from_bytes"])
    if grouped.ngroups > 1:
        for _, part in grouped:
            low, high = bins.loc[part.index[0]].tolist()
            yield from _of_messages(part, f"size {show.size_range(low, high)}")
    by_size = good.groupby(["iteration", "size_bytes"])["fct_ns"]
    yield from _each("fct_gap_ns", (by_size.max() - by_size.min()).groupby("iteration").max())


def _of_messages(part: Frame, scope: str) -> Iterator[Row]:
    each = part.groupby("iteration")
    for name in ("p50", "p99", "max"):
        yield from _each(f"fct_{name}_ns", each["fct_ns"].quantile(metrics.QUANTILES[name]), scope)
    rate = bytes_per_ns_to_bps(each["size_bytes"].sum() / each["fct_ns"].sum())
    yield from _each("goodput_gb_per_s", rate.map(bps_to_gigabytes), scope)
    if "slowdown" in part:
        for name in ("p50", "p99"):
            yield from _each(f"slowdown_{name}", each["slowdown"].quantile(metrics.QUANTILES[name]), scope)


def _incast(view: View) -> Iterator[Row]:
    good = view.flows[view.flows["fct_ns"].notna()] if len(view.flows) else view.flows
    shared = good[metrics.meets_others(good)] if len(good) else good
    if len(shared):
        each = shared.groupby("iteration")["fct_ns"]
        yield from _each("incast_tail", each.quantile(0.99) / each.quantile(0.5))


def _collectives(view: View) -> Iterator[Row]:
    each = metrics.collective_times(view.operators)
    if each.empty:
        return
    each = metrics.with_bandwidths(each[each["time_ns"].notna()].reset_index(drop=True))
    columns = {"collective_ns": "time_ns", "skew_ns": "skew_ns", "straggler_gap_ns": "straggler_gap_ns"}
    columns |= {name: name for name in ("algbw_gb_per_s", "busbw_gb_per_s")}
    for (kind, members, size), part in each.groupby(["collective", "members", "total_bytes"]):
        scope = f"{str(kind).lower().replace('_', '-')}, {members} ranks, {show.size(int(str(size)))}"
        for metric, column in columns.items():
            yield from _each(metric, part.groupby("iteration")[column].median(), scope)


def _links(view: View) -> Iterator[Row]:
    if view.links.empty or not view.finished or not len(view.flows):
        return
    times = view.ranks.groupby("iteration")["finish_ns"].max()
    for iteration, flows in view.flows.groupby("iteration"):
        number = int(str(iteration))
        load = metrics.link_load(flows, view.routes, view.links, float(times[number]))
        used = load[load["payload_bytes"] > 0]
        if len(used):
            yield "link_load_max", "", number, float(used["load"].max())
            yield "link_load_mean", "", number, float(used["load"].mean())
        parallel = [one for one in parallel_payloads(load, view.routes) if sum(one) > 0]
        if parallel:
            yield "path_mmr", "", number, max(map(metrics.max_mean_ratio, parallel))
            yield "path_jain", "", number, min(map(metrics.jain_index, parallel))


def parallel_payloads(load: Frame, routes: Frame) -> Iterable[list[float]]:
    """Payload of each set of parallel links: those of one class that lead from one switch to other switches."""
    hosts = set(routes.sort_values("hop").groupby(["src", "dst"])["link"].last().str.partition(">")[2])
    ends = load["link"].str.partition(">")
    inner = load[~ends[2].isin(hosts) & ~ends[0].isin(hosts)]
    for _, part in inner.groupby([ends[0], "class"]):
        if len(part) > 1:
            yield part["payload_bytes"].tolist()


_SHARES: Final = (
    ("ecn_share", "ecn_marked_packets"),
    ("retransmit_share", "retransmitted_packets"),
)


def _counted(view: View) -> Iterator[Row]:
    counters = view.counters
    if counters.empty:
        return
    totals = counters.select_dtypes("number").sum()
    sent, dropped = (float(totals.get(name, np.nan)) for name in ("sent_packets", "dropped_packets"))
    yield "dropped_packets", "", WHOLE, dropped
    if sent > 0:
        yield "drop_share", "", WHOLE, dropped / (sent + dropped)
        for metric, column in _SHARES:
            yield metric, "", WHOLE, float(totals.get(column, np.nan)) / sent
    yield "pause_ns", "", WHOLE, float(totals.get("pause_ns", np.nan))


def _fidelity(view: View) -> Iterator[Row]:
    if not view.timeline.measured:
        return
    late = (("operator", view.operators), ("message", view.flows))
    for what, frame in ((what, frame) for what, frame in late if len(frame)):
        each = frame.groupby("iteration")["late_ns"]
        for name in ("p50", "p99"):
            yield from _each(f"{what}_late_{name}_ns", each.quantile(metrics.QUANTILES[name]))
    yield from _each("own_share", metrics.own_shares(view.flows, view.ranks))
    if view.meta.get("checks"):
        yield "failed_checks", "", WHOLE, float(sum(not check["ok"] for check in view.meta["checks"]))
    environment = view.meta.get("environment", {})
    for metric in ("cpu_pressure", "clock_bound_ns"):
        if environment.get(metric) is not None:
            yield metric, "", WHOLE, float(environment[metric])
