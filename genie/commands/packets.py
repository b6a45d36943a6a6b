"""genie pcap: what a capture says about RoCEv2 flows and messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from genie.commands.common import PATH, as_json, console_of, print_json

if TYPE_CHECKING:
    from genie.formats.runfile import Run
    from genie.report.wire import Wire


@click.command()
@click.argument("file", type=PATH)
@click.option("--run", type=PATH, help="A replay of which this is a capture: join its messages.")
@click.option("--messages", is_flag=True, help="List messages, too.")
@click.option("--icrc/--no-icrc", default=True, show_default=True, help="Check the ICRC of every whole packet.")
@as_json
def pcap(file: Path, run: Path | None, messages: bool, icrc: bool, to_json: bool) -> None:
    """Flows and messages of RoCEv2 in a capture FILE (pcap or pcapng).

    From the wire: completion times, goodput, retransmissions, congestion marks, refusals, ICRC errors.
    """
    from genie.formats.pcap import read_capture  # noqa: PLC0415
    from genie.formats.roce_capture import roce_packets, wrong_icrcs  # noqa: PLC0415
    from genie.report.wire import analyse, rows_of  # noqa: PLC0415

    capture = read_capture(file)
    seen = roce_packets(capture)
    wire = analyse(seen)
    about: dict[str, Any] = {
        "packets": len(capture),
        "roce_packets": len(seen.packets),
        "others": wire.others,
        "cut_short": wire.cut_short,
        "connection_management": wire.meetings,
        "messages": len(wire.messages),
    }
    if icrc:
        about["icrc_errors"], about["icrc_checked"] = wrong_icrcs(capture, seen)
    joined = _joined(wire, run) if run is not None else None
    if joined is not None:
        about["joined_messages"] = len(joined)
        if len(joined):
            about["difference_median"] = float(joined.difference.median())
            about["difference_p99"] = float(joined.difference.abs().quantile(0.99))
    if to_json:
        tables = {"flows": rows_of(wire.flows), "messages": rows_of(wire.messages)}
        print_json(about | tables | ({"joined": rows_of(joined)} if joined is not None else {}))
        return
    console = console_of()
    console.mapping(about)
    console.rows(_short(wire), "no RoCEv2 requests")
    if messages:
        console.rows(rows_of(wire.messages), "no whole message")
        if joined is not None:
            console.rows(rows_of(joined), "no message of the run is in the capture")


def _short(wire: Wire) -> list[dict[str, Any]]:
    """A flow's row as people want it."""
    from genie.report.wire import rows_of  # noqa: PLC0415

    if not len(wire.flows):
        return []
    table = wire.flows.copy()
    table["goodput_mbps"] = (table.goodput_bps / 1e6).round(1)
    table["marked_share"] = table.marked_share.round(4)
    median = wire.messages.groupby("flow").fct_ns.median()
    table["fct_us"] = [round(float(median.get(flow, float("nan"))) / 1e3, 1) for flow in table.index]
    table["naks"] = table[[name for name in table.columns if name.startswith("nak_")]].sum(axis=1)
    names = ["src", "dst", "qpn", "sport", "packets", "goodput_mbps", "fct_us", "retransmitted", "out_of_order"]
    names += ["marked_share", "acks", "naks", "rnr_naks", "cnps"]
    return rows_of(table[names])


def _joined(wire: Wire, path: Path) -> Any:
    """The run's messages beside the capture's.

    Raises:
        InputError: it is no replay, or an old one that does not tell the ports of its flows.
    """
    from genie.errors import InputError  # noqa: PLC0415
    from genie.formats.runfile import open_run  # noqa: PLC0415
    from genie.report.wire import compare  # noqa: PLC0415

    run = open_run(path)
    testbed = run.meta.get("testbed")
    if not isinstance(testbed, dict) or "routes" not in run.tables():
        raise InputError("it is no replay on a testbed.", where=str(path))
    return compare(wire, run.timeline().messages, _ports(run), _delays_ns(run), int(testbed["dilation"]))


def _ports(run: Run) -> dict[int, tuple[int, int]]:
    """UDP source port -> ranks."""
    routes = run.table("routes")
    rows = zip(routes["sport"].tolist(), routes["src"].tolist(), routes["dst"].tolist(), strict=True)
    return {sport: (src, dst) for sport, src, dst in rows}


def _delays_ns(run: Run) -> dict[tuple[int, int], int]:
    """Virtual delay of every pair's path."""
    routes, links = run.table("routes"), run.table("links")
    delay_ns = dict(zip(links["link"].tolist(), links["delay_ns"].tolist(), strict=True))
    found: dict[tuple[int, int], int] = {}
    for src, dst, link in zip(routes["src"].tolist(), routes["dst"].tolist(), routes["link"].tolist(), strict=True):
        found[src, dst] = found.get((src, dst), 0) + delay_ns[link]
    return found
