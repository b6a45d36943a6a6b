"""From an open device and told endpoints to queue pairs: made here, described to the peers, joined to theirs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Final

from genie.errors import NotReadyError, RunError
from genie.replay.transports.base import Endpoint
from genie.replay.transports.payload import block
from genie.replay.transports.verbs_connection import HEADER_BYTES, Connection, Landing, Sources
from genie.replay.transports.verbs_device import Choice, disagreement
from genie.replay.transports.verbs_library import Device
from genie.replay.transports.verbs_meeting import Meeting, describe, parse_description
from genie.replay.transports.verbs_options import VerbsOptions
from genie.replay.transports.verbs_window import SendQueue, slot_bytes_for

_PACKET_NUMBERS: Final = 1 << 24


def require_agreement(rank: int, choice: Choice, peers: Mapping[int, Endpoint], path_mtu_bytes: int) -> None:
    """See that all peers' ports can talk to ours.

    Raises:
        NotReadyError: one cannot: link layer, GID kind, IP version or path MTU differ.
    """
    mine = choice.describe()
    for peer, endpoint in peers.items():
        what, fix = disagreement(mine, endpoint.get("verbs", {}), path_mtu_bytes)
        if what:
            raise NotReadyError(f"cannot talk to rank {peer}: {what}.", where=f"rank {rank}", fix=fix)


def make_connections(
    device: Device, choice: Choice, peers: list[int], options: VerbsOptions, now: Callable[[], int]
) -> dict[int, list[Connection]]:
    """Register memory, make all queue pairs and post their receives; peer -> its connections.

    Raises:
        NotReadyError: the device gives no more queue pairs, completions or memory.
    """
    count = len(peers) * options.flows
    device.prepare(count * (options.depth + 2 * options.slots), events=options.events)
    slot_bytes = slot_bytes_for(count, options.slots, options.landing_bytes, options.slot_bytes)
    size = Landing.size_of(options.slots * (1 if options.writes else 2), slot_bytes)
    landing = device.register_new(count * size)
    headers = device.register_new(count * options.slots * HEADER_BYTES, remote=False)
    payload = device.register_given(block())
    made: dict[int, list[Connection]] = {peer: [] for peer in peers}
    for place in range(count):
        peer, flow = peers[place // options.flows], place % options.flows
        connection = Connection(
            device.queue_pair(options.plan(choice, peer, flow)),
            peer,
            flow,
            Landing(landing, place * size, options.slots, slot_bytes),
            Sources(payload, headers, place * options.slots * HEADER_BYTES),
            SendQueue(options.depth, options.signal_every),
            now,
            write=options.writes,
            verify=options.verify,
        )
        connection.expect_all()
        made[peer].append(connection)
    return made


def join(
    rank: int,
    connections: Mapping[int, list[Connection]],
    peers: Mapping[int, Endpoint],
    meeting: Meeting,
    deadline_ns: int,
) -> None:
    """Tell the peers of our queue pairs, connect these to theirs, and wait until everybody has done so.

    Raises:
        NotReadyError: the device cannot reach a peer.
        RunError: a peer is silent, or says what makes no sense.
    """
    packets = {c.pair.number: secrets.randbelow(_PACKET_NUMBERS) for many in connections.values() for c in many}
    told = {
        peer: describe(
            [(c.pair.number, packets[c.pair.number]) for c in many], [c.landing.target() for c in many], many[0].shape
        )
        for peer, many in connections.items()
    }
    for peer, words in meeting.exchange(told, deadline_ns).items():
        about, many, place = peers[peer]["verbs"], connections[peer], f"rank {rank}, connection with rank {peer}"
        try:
            ends = parse_description(words, len(many), many[0].shape, str(about["gid"]), int(about["lid"]))
            for connection, (end, target) in zip(many, ends, strict=True):
                connection.aim(target)
                connection.pair.connect(packets[connection.pair.number], end)
        except (NotReadyError, RunError) as error:
            raise type(error)(error.what, where=place, fix=error.fix) from error
    meeting.exchange(dict.fromkeys(connections, "ready"), deadline_ns)
