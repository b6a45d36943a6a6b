"""Metrics with one definition each; docs/metrics.md says them in words.

Functions take the frames of `genie.report.frames`, so that a notebook may filter them first. What spans several
iterations is computed for each and the median given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from genie.core.workload import CollectiveKind, NodeKind
from genie.units import bps_to_gigabytes, bytes_per_ns_to_bps, transfer_ns

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999, "max": 1.0}
MAX_SIZES: Final = 12
"""Up to so many different sizes are told one by one, more in bins of a power of two."""

Frame = pd.DataFrame
_INTERVAL: Final = ["run", "iteration", "rank", "kind", "name", "issue_ns", "done_ns"]


def bus_factor(kind: CollectiveKind, members: int) -> float:
    """Busbw / algbw: the share of the bytes that has to cross a rank's link (n = members of the group).

    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (members - 1) / members
    if kind in {CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL}:
        return (members - 1) / members
    return 1.0


def total_bytes(kind: CollectiveKind, comm_size_bytes: int, members: int) -> int:
    """nccl-tests' size: the whole array; an all-gather's comm_size is what one rank contributes."""
    return comm_size_bytes * members if kind is CollectiveKind.ALL_GATHER else comm_size_bytes


def bandwidths_bps(kind: CollectiveKind, comm_size_bytes: int, members: int, time_ns: float) -> tuple[float, float]:
    """(algbw, busbw) in bit/s: total bytes / time, and that times the bus factor; infinite for no time."""
    size_bytes = float(total_bytes(kind, comm_size_bytes, members))
    algbw_bps = bytes_per_ns_to_bps(size_bytes / time_ns) if time_ns != 0 else np.inf
    return algbw_bps, algbw_bps * bus_factor(kind, members)


def size_bins(size_bytes: pd.Series[Any]) -> pd.DataFrame:
    """Per value its bin: size_from_bytes and size_to_bytes, both inclusive.

    The sizes themselves when they are at most MAX_SIZES different ones, else (2^k, 2^(k+1) - 1).
    """
    sizes = size_bytes.to_numpy(np.int64)
    if len(np.unique(sizes)) <= MAX_SIZES:
        low, high = sizes, sizes
    else:
        low = np.where(sizes > 0, 1 << np.floor(np.log2(np.maximum(sizes, 1))).astype(np.int64), 0)
        high = np.where(sizes > 0, 2 * low - 1, 0)
    return pd.DataFrame({"size_from_bytes": low, "size_to_bytes": high}, index=size_bytes.index)


def fct(flows: Frame, by: str | Sequence[str] = "size") -> Frame:
    """FCT percentiles of the messages that were delivered, per group of `by`.

    Args:
        flows: from `frames.flows`.
        by: columns of `flows`; "size" stands for the size's bin.

    Returns:
        The columns of `by`, messages, mean_size_bytes, fct_{p50,p90,p99,p99_9,max}_ns, goodput_gb_per_s (bytes of all
        messages / sum of their FCTs, decimal), and slowdown_{p50,p99} where ideals are known.
    """
    keys = [by] if isinstance(by, str) else list(by)
    good = flows[flows["fct_ns"].notna()] if "fct_ns" in flows else flows
    columns = [name for key in keys for name in (("size_from_bytes", "size_to_bytes") if key == "size" else (key,))]
    if good.empty:
        return pd.DataFrame(columns=[*columns, "messages", *(f"fct_{name}_ns" for name in QUANTILES)])
    grouped = pd.concat([good, size_bins(good["size_bytes"])], axis=1).groupby(columns, dropna=False)
    found = pd.DataFrame({"messages": grouped.size(), "mean_size_bytes": grouped["size_bytes"].mean()})
    for name, quantile in QUANTILES.items():
        found[f"fct_{name}_ns"] = grouped["fct_ns"].quantile(quantile)
    rate_bps = bytes_per_ns_to_bps(grouped["size_bytes"].sum() / grouped["fct_ns"].sum())
    found["goodput_gb_per_s"] = rate_bps.map(bps_to_gigabytes)
    if "slowdown" in good:
        for name in ("p50", "p99"):
            found[f"slowdown_{name}"] = grouped["slowdown"].quantile(QUANTILES[name])
    return found.reset_index()


def slowdown(flows: Frame, rate_bps: float, base_ns: float) -> pd.Series[Any]:
    """FCT / (size / line rate + unloaded base time) of every message, for one rate and base time for all."""
    ideal: pd.Series[Any] = flows["size_bytes"] * transfer_ns(1, rate_bps) + base_ns
    return flows["fct_ns"] / ideal


def collective_times(operators: Frame) -> Frame:
    """Every collective of every iteration.

    Returns:
        run, group, instance, iteration, collective, name, size_bytes (comm_size), members (n), time_ns (first member
        that issues it to last member that is done), skew_ns (first to last member that issues it), straggler_gap_ns
        (first to last member that is done).
    """
    own = operators[operators["collective"] != ""] if len(operators) else operators
    keys = ["run", "group", "instance", "iteration"]
    if own.empty:
        return pd.DataFrame(columns=[*keys, "collective", "members", "size_bytes", "time_ns"])
    each = own.groupby(keys, sort=False)
    first, last = each["issue_ns"].min(), each["issue_ns"].max()
    done_first, done = each["done_ns"].min(), each["done_ns"].max(skipna=False)
    found = each[["collective", "name", "size_bytes"]].first()
    found["members"] = each["rank"].nunique()
    found = found.assign(time_ns=done - first, skew_ns=last - first, straggler_gap_ns=done - done_first)
    return found.reset_index()


def collectives(operators: Frame) -> Frame:
    """Every collective, once: medians over its iterations.

    Returns:
        The columns of `collective_times` without iteration, total_bytes, algbw_gb_per_s, busbw_gb_per_s (decimal).
    """
    keys = ["run", "group", "instance"]
    each = collective_times(operators)
    if each.empty:
        return pd.DataFrame(columns=[*keys, "collective", "members", "size_bytes", "total_bytes", "time_ns"])
    grouped = each.groupby(keys, sort=False)
    found = grouped[["collective", "name", "size_bytes"]].first()
    found = found.join(grouped[["members", "time_ns", "skew_ns", "straggler_gap_ns"]].median()).reset_index()
    found["members"] = found["members"].astype(np.int64)
    return with_bandwidths(found)


def with_bandwidths(found: Frame) -> Frame:
    """Collectives with total_bytes, algbw_gb_per_s and busbw_gb_per_s of their times."""
    rows = zip(found["collective"], found["size_bytes"], found["members"], found["time_ns"], strict=True)
    kinds = [(CollectiveKind[name], int(size), int(members), time_ns) for name, size, members, time_ns in rows]
    rates = [bandwidths_bps(*row) for row in kinds]
    found["total_bytes"] = [total_bytes(*row[:3]) for row in kinds]
    found["algbw_gb_per_s"] = [bps_to_gigabytes(algbw_bps) for algbw_bps, _ in rates]
    found["busbw_gb_per_s"] = [bps_to_gigabytes(busbw_bps) for _, busbw_bps in rates]
    return found


def collective_summary(operators: Frame) -> Frame:
    """Collectives of equal kind, members and size in one row, as nccl-tests tells them.

    Returns:
        run, collective, members, size_bytes, total_bytes, count, time_ns, skew_ns, straggler_gap_ns (medians),
        algbw_gb_per_s and busbw_gb_per_s (of the median time).
    """
    each = collectives(operators)
    if each.empty:
        return each
    keys = ["run", "collective", "members", "size_bytes"]
    grouped = each.groupby(keys)
    found = pd.DataFrame({"count": grouped.size()})
    found = found.join(grouped[["time_ns", "skew_ns", "straggler_gap_ns"]].median()).reset_index()
    return with_bandwidths(found)


def iteration(ranks: Frame) -> Frame:
    """Iteration time (JCT of one iteration): finish of its last rank; NaN if one never finished.

    Returns:
        One row a run: run, measured, iterations, iteration_ns (median), min_ns, max_ns, spread ((max - min) / median),
        cv (standard deviation with n - 1, / mean; NaN for one iteration).
    """
    keys = ["run", "measured"]
    each = ranks.groupby([*keys, "iteration"], sort=False)["finish_ns"].max(skipna=False).groupby(keys, sort=False)
    found = pd.DataFrame(
        {
            "iterations": each.size(),
            "iteration_ns": each.median(),
            "min_ns": each.min(),
            "max_ns": each.max(),
            "spread": (each.max() - each.min()) / each.median(),
            "cv": each.std() / each.mean(),
        }
    )
    return found.reset_index()


def exposed_share(ranks: Frame) -> float:
    """Median over ranks and iterations of exposed communication / finish time; NaN if no rank finished."""
    done = ranks[ranks["finish_ns"] > 0]
    return float((done["exposed_ns"] / done["finish_ns"]).median())


def activity(operators: Frame, flows: Frame) -> Frame:
    """What keeps each rank busy, as intervals: its computes, collectives and sends, and the messages that come to it.

    A receive counts from the post of its message, not from its own issue: waiting for a peer that has not sent yet is
    no communication.

    Returns:
        run, iteration, rank, kind, name, issue_ns, done_ns.
    """
    busy = (NodeKind.COMP.name, NodeKind.COLLECTIVE.name, NodeKind.SEND.name)
    own = operators.loc[operators["kind"].isin(busy), _INTERVAL]
    plain = flows[flows["chunk"] == PLAIN].assign(kind=NodeKind.RECV.name)
    names = {"dst": "rank", "operator": "name", "posted_ns": "issue_ns", "delivered_ns": "done_ns"}
    came = plain.rename(columns=names)[_INTERVAL]
    found = pd.concat([part for part in (own, came) if len(part)] or [own], ignore_index=True)
    return found[found["done_ns"].notna() & found["issue_ns"].notna()]


PLAIN: Final = -1
"""Chunk of a message that belongs to no collective."""


def breakdown(activity: Frame) -> Frame:
    """Where a rank's time goes, medians over iterations of `breakdown_times`, with shares of those."""
    found = breakdown_times(activity).drop(columns="iteration").groupby(["run", "rank"]).median().reset_index()
    found["exposed_ns"] = found["communication_ns"] - found["overlapped_ns"]
    found["overlap"] = _hidden(found)
    return found


def breakdown_times(activity: Frame) -> Frame:
    """Where a rank's time goes in each iteration.

    Args:
        activity: from `activity`.

    Returns:
        One row a run, rank and iteration: compute_ns and communication_ns (time in which at least one such interval
        goes on), overlapped_ns (both), exposed_ns (communication without compute), idle_ns (neither, before the rank's
        last interval ends), overlap (overlapped / the smaller of compute and communication; NaN without both).
    """
    keys = ["run", "rank", "iteration"]
    rows = []
    for key, own in activity.groupby(keys, sort=False):
        computes = own["kind"] == NodeKind.COMP.name
        compute_ns, talk_ns, busy_ns = (
            union_ns(part["issue_ns"], part["done_ns"]) for part in (own[computes], own[~computes], own)
        )
        both_ns = compute_ns + talk_ns - busy_ns
        rows.append((*key, compute_ns, talk_ns, both_ns, talk_ns - both_ns, own["done_ns"].max() - busy_ns))
    names = ["compute_ns", "communication_ns", "overlapped_ns", "exposed_ns", "idle_ns"]
    found = pd.DataFrame(rows, columns=[*keys, *names])
    return found.assign(overlap=_hidden(found))


def _hidden(found: Frame) -> pd.Series[Any]:
    lesser = found[["compute_ns", "communication_ns"]].min(axis=1)
    shares: pd.Series[Any] = (found["overlapped_ns"] / lesser).where(lesser > 0)
    return shares


def union_ns(begin_ns: ArrayLike, end_ns: ArrayLike) -> float:
    """Length of the union of intervals."""
    begin, end = np.asarray(begin_ns, np.float64), np.asarray(end_ns, np.float64)
    if not len(begin):
        return 0.0
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    covered_until = np.concatenate(([begin[0]], reach[:-1]))
    return float(np.clip(reach - np.maximum(begin, covered_until), 0, None).sum())


def lateness(operators: Frame, flows: Frame) -> Frame:
    """How late things were begun: operators after they could be issued, messages after the schedule allowed them.

    Returns:
        One row each: what, count, late_p50_ns, late_p99_ns, late_max_ns.
    """
    return pd.DataFrame(
        [
            {"what": what, "count": len(late_ns)} | {f"late_{name}_ns": _quantile(late_ns, name) for name in _LATE}
            for what, late_ns in (("operators issued", operators["late_ns"]), ("messages posted", flows["late_ns"]))
        ]
    )


_LATE: Final = ("p50", "p99", "max")


def _quantile(values: pd.Series[Any], name: str) -> float:
    return float(values.quantile(QUANTILES[name]))


def traffic(flows: Frame) -> Frame:
    """One row an ordered pair of ranks: run, src, dst, messages and bytes of one iteration (means over iterations)."""
    iterations = flows.groupby("run")["iteration"].nunique()
    grouped = flows.groupby(["run", "src", "dst"])
    found = pd.DataFrame({"messages": grouped.size(), "sent_bytes": grouped["size_bytes"].sum()}).reset_index()
    count = found["run"].map(iterations)
    return found.assign(messages=found["messages"] / count, sent_bytes=found["sent_bytes"] / count)


def link_load(flows: Frame, routes: Frame, links: Frame, iteration_ns: float) -> Frame:
    """Payload that crosses each directed link in an iteration, and how long that keeps it busy at its rate.

    Args:
        flows: of one run.
        routes: from `frames.routes`.
        links: from `frames.links`.
        iteration_ns: what the load is a share of.

    Returns:
        The columns of `links`, payload_bytes (an iteration), load (payload / (rate x iteration time)).
    """
    pairs = traffic(flows).merge(routes, on=["src", "dst"])
    payload = links["link"].map(pairs.groupby("link")["sent_bytes"].sum()).fillna(0.0)
    load = bytes_per_ns_to_bps(payload / iteration_ns) / links["rate_bps"]
    return links.assign(payload_bytes=payload, load=load)


def own_shares(flows: Frame, ranks: Frame) -> pd.Series[Any]:
    """Per iteration, the share of a rank's time in which a message was allowed but not yet posted; median over ranks.

    Times that several posts of a rank waited side by side count once.
    """
    finish = ranks[ranks["finish_ns"] > 0].set_index(["iteration", "rank"])["finish_ns"]
    if flows.empty or finish.empty:
        return pd.Series(dtype=np.float64)
    late = flows[flows["late_ns"] > 0]
    waited = {key: union_ns(own["caused_ns"], own["posted_ns"]) for key, own in late.groupby(["iteration", "src"])}
    shares = pd.Series([waited.get(key, 0.0) for key in finish.index], index=finish.index) / finish
    return shares.groupby("iteration").median()


def meets_others(flows: Frame) -> pd.Series[Any]:
    """Whether a message was under way to its receiver together with a message of another sender."""
    group = flows.groupby(["iteration", "dst"], sort=False).ngroup().to_numpy(np.int64)
    own = flows.groupby(["iteration", "dst", "src"], sort=False).ngroup().to_numpy(np.int64)
    times = np.unique(flows[["posted_ns", "delivered_ns"]].to_numpy())
    begin, end = (np.searchsorted(times, flows[n].to_numpy()) for n in ("posted_ns", "delivered_ns"))
    others = np.subtract(_under_way(group, begin, end, len(times)), _under_way(own, begin, end, len(times)))
    return pd.Series(others > 0, index=flows.index)


def _under_way(group: NDArray[Any], begin: NDArray[Any], end: NDArray[Any], span: int) -> NDArray[np.int64]:
    """Per interval, how many of its group share more than an instant with it: begun before its end, not over before."""
    starts, ends = np.sort(group * span + begin), np.sort(group * span + end)
    begun = np.searchsorted(starts, group * span + end, "left")
    over = np.searchsorted(ends, group * span + begin, "right")
    return np.asarray(begun - over, np.int64)


def interference(contended: Frame, isolated: Frame) -> float:
    """Interference factor: iteration time beside other jobs / iteration time alone (medians; frames of ranks)."""
    (beside,), (alone,) = iteration(contended)["iteration_ns"], iteration(isolated)["iteration_ns"]
    return float(beside / alone)


def link_profile(flows: Frame, routes: Frame, links: Frame, bins: int = 100) -> Frame:
    """How busy each directed link is over time, if every message moves evenly from its post to its delivery.

    Args:
        flows: of one iteration.
        routes: from `frames.routes`.
        links: from `frames.links`.
        bins: equal spans of time from 0 to the last delivery.

    Returns:
        One row a link that carries anything, columns = begin of the span in ns, values = payload / what the link could
        carry in that span.
    """
    good = flows.loc[flows["fct_ns"] > 0, ["src", "dst", "size_bytes", "posted_ns", "delivered_ns", "fct_ns"]]
    edges = np.linspace(0.0, float(good["delivered_ns"].max()) if len(good) else 1.0, bins + 1)
    pairs, at = {}, good.groupby(["src", "dst"])
    for pair, own in at:
        pairs[pair] = _moved(own, edges)
    found: dict[str, NDArray[np.float64]] = {}
    for src, dst, link in routes[["src", "dst", "link"]].itertuples(index=False):
        if (src, dst) in pairs:
            found[link] = found.get(link, 0.0) + pairs[src, dst]
    room = links.set_index("link")["rate_bps"].map(lambda bps: (edges[1] - edges[0]) / transfer_ns(1, bps))
    shares = {link: np.diff(moved) / room[link] for link, moved in found.items() if link in room.index}
    return pd.DataFrame.from_dict(shares, orient="index", columns=edges[:-1])


def _moved(flows: Frame, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bytes moved until each edge: sum of rate x (max(t - begin, 0) - max(t - end, 0))."""
    rate = (flows["size_bytes"] / flows["fct_ns"]).to_numpy()
    total = np.zeros(len(edges))
    for sign, name in ((1.0, "posted_ns"), (-1.0, "delivered_ns")):
        times = flows[name].to_numpy(np.float64)
        order = np.argsort(times)
        rates = np.concatenate(([0.0], np.cumsum(rate[order])))
        moments = np.concatenate(([0.0], np.cumsum(rate[order] * times[order])))
        before = np.searchsorted(times[order], edges)
        total += sign * (edges * rates[before] - moments[before])
    return total


def max_mean_ratio(values: ArrayLike) -> float:
    """MMR = max / mean: 1 when parallel links carry alike; NaN when they carry nothing."""
    array = np.asarray(values, np.float64)
    return float(array.max() / array.mean()) if len(array) and array.mean() > 0 else np.nan


def jain_index(values: ArrayLike) -> float:
    """Jain's index = (sum x)^2 / (n sum x^2): 1 when all are alike, 1/n when one has everything; NaN for nothing."""
    array = np.asarray(values, np.float64)
    square = float((array**2).sum())
    return float(array.sum() ** 2 / (len(array) * square)) if square > 0 else np.nan


_MESSAGE: Final = ["src", "dst", "tag", "size_bytes", "index"]


def matched(predicted: Frame, measured: Frame) -> Frame:
    """Every measured message beside its prediction (of the prediction's first iteration).

    Returns:
        iteration, src, dst, tag, size_bytes, index, operator, posted_ns (measured), predicted_fct_ns, measured_fct_ns,
        error ((predicted - measured) / measured, as for rounds).
    """
    first = predicted[predicted["iteration"] == predicted["iteration"].min()]
    theirs = first[[*_MESSAGE, "fct_ns"]].rename(columns={"fct_ns": "predicted_fct_ns"})
    ours = measured[["iteration", *_MESSAGE, "operator", "posted_ns", "fct_ns"]]
    found: Frame = ours.rename(columns={"fct_ns": "measured_fct_ns"}).merge(theirs, on=_MESSAGE)
    found = found[(found["measured_fct_ns"] > 0) & found["predicted_fct_ns"].notna()].reset_index(drop=True)
    found["error"] = (found["predicted_fct_ns"] - found["measured_fct_ns"]) / found["measured_fct_ns"]
    return found


def cdf(values: ArrayLike, points: int = 2000) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(value, share of values that are at most so large), ascending; of many values so many evenly spaced ranks."""
    array = np.sort(np.asarray(values, np.float64))
    array = array[~np.isnan(array)]
    at = np.unique(np.linspace(0, len(array) - 1, min(points, len(array))).astype(np.int64))
    return array[at], (at + 1) / max(len(array), 1)
