"""The half of bench_verbs that runs inside the rdma-lab's guest: goodput of the transport against a bare pyverbs loop.

Two processes, two hosts on one switch. Runs of what is compared take turns, since the machine's own speed changes by
the minute. The bare loop keeps as many writes of one slot's size in flight as the transport has slots, sleeps for
completions as the transport does, and does nothing else.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import sys
import time
from pathlib import Path

from genie.core.testbed import LinkSpec, Testbed, single_switch
from genie.replay.transports.framing import SECRET_BYTES
from genie.replay.transports.verbs import VerbsTransport
from genie.replay.transports.verbs_device import choose
from genie.replay.transports.verbs_library import Device, Memory, PeerEnd, QueuePair, survey
from genie.replay.transports.verbs_options import VerbsOptions
from genie.testbed.rdma_fabric import RdmaFabric

ROUNDS = 25
STREAM_BYTES = 32 << 20
PINGS = 10
SMALL_BYTES = 64
PATIENCE_NS = 60_000_000_000


def tell(sock: socket.socket, words: object) -> object:
    """Swap some JSON with the other process."""
    sock.sendall(json.dumps(words).encode())
    return json.loads(sock.recv(65_536))


BareEnd = tuple[Device, QueuePair, Memory, list[int]]


def bare_end(sock: socket.socket, options: VerbsOptions) -> BareEnd:
    """A connected queue pair and registered memory: the same set-up as the transport's."""
    device = Device(choose(*survey(), options.wish()).port.device)
    choice = choose(device.ports(), device.gids(), options.wish())
    device.prepare(4 * options.slots, events=True)
    memory = device.register_new(options.slots * options.slot_bytes)
    queue_pair = device.queue_pair(options.plan(choice, 0, 0))
    for number in range(options.slots):
        queue_pair.expect(number)
    theirs = tell(sock, [queue_pair.number, choice.gid.gid, memory.address, memory.remote_key])
    queue_pair.connect(0, PeerEnd(theirs[0], 0, theirs[1], 0))
    tell(sock, "ready")
    return device, queue_pair, memory, theirs[2:]


def bare_write(end: BareEnd, options: VerbsOptions) -> float:
    """Write the stream; bit/s until the last write is acknowledged by the peer's device."""
    device, queue_pair, memory, (address, key) = end
    requests = [_request(queue_pair, memory, slot, options.slot_bytes, address, key) for slot in range(options.slots)]
    writes = STREAM_BYTES // options.slot_bytes
    posted = done = 0
    begun = time.perf_counter()
    while done < writes:
        while posted < writes and posted - done < options.slots:
            queue_pair._pair.post_send(requests[posted % options.slots])  # noqa: SLF001 - below the transport
            posted += 1
        done += _completions(device)
    return STREAM_BYTES * 8 / (time.perf_counter() - begun)


def _request(queue_pair: QueuePair, memory: Memory, slot: int, size: int, address: int, key: int) -> object:
    library = queue_pair._library  # noqa: SLF001 - below the transport
    request = library.wr.SendWR(
        opcode=library.enums.IBV_WR_RDMA_WRITE,
        num_sge=1,
        sg=[library.wr.SGE(memory.address + slot * size, size, memory.key)],
        send_flags=library.enums.IBV_SEND_SIGNALED,
    )
    request.set_wr_rdma(key, address + slot * size)
    return request


def _completions(device: Device) -> int:
    """Wait for completions in the one order that loses none: look, arm, look, sleep."""
    queue = device._queue  # noqa: SLF001 - below the transport
    count, _ = queue.poll(32)
    if count:
        return count
    queue.req_notify()
    count, _ = queue.poll(32)
    if not count:
        select.select([device.event_fd], [], [])
        device.take_event()
        count, _ = queue.poll(32)
    return count


def transport_end(sock: socket.socket, rank: int, options: VerbsOptions) -> VerbsTransport:
    """One end, connected."""
    end = VerbsTransport(rank, options)
    theirs = tell(sock, dict(end.open()))
    end.connect({1 - rank: theirs}, time.monotonic_ns() + PATIENCE_NS)
    tell(sock, "ready")
    return end


def send(end: VerbsTransport, size: int) -> float:
    """One message; seconds from its post to its acknowledgement."""
    begun = time.perf_counter()
    end.post_send(0, 1, 0, size)
    while not end.poll(PATIENCE_NS):
        pass
    return time.perf_counter() - begun


def receive(end: VerbsTransport, size: int) -> None:
    """The other end of that."""
    end.post_recv(0, 0, 0, size)
    while not end.poll(PATIENCE_NS):
        pass


def play(sock: socket.socket, rank: int, addresses: list[str], secret: bytes) -> dict[str, list[float]]:
    """One of the two processes; figures of every round from the first."""
    bare_options = VerbsOptions(addresses[rank], secret)
    bare = bare_end(sock, bare_options)
    ends = {
        name: transport_end(sock, rank, VerbsOptions(addresses[rank], secret, operation=name))
        for name in ("write", "send")
    }
    figures: dict[str, list[float]] = {"bare": [], "write": [], "send": [], "small": []}
    for _ in range(ROUNDS):
        if rank == 0:
            figures["bare"].append(bare_write(bare, bare_options))
        tell(sock, "next")  # the other end of a write does nothing at all
        for name, end in ends.items():
            if rank == 0:
                figures[name].append(STREAM_BYTES * 8 / send(end, STREAM_BYTES))
            else:
                receive(end, STREAM_BYTES)
            tell(sock, "next")
        for _ in range(PINGS):
            if rank == 0:
                figures["small"].append(send(ends["write"], SMALL_BYTES) * 1e6)
            else:
                receive(ends["write"], SMALL_BYTES)
        tell(sock, "next")
    for end in ends.values():
        end.close()
    bare[0].close()
    return figures


def main(file: Path) -> None:
    """Measure; the figures of every round go into the file."""
    rate = LinkSpec(10_000_000_000, 0, 8 << 20)
    nodes, cables = single_switch(2, rate, seed=1)
    with RdmaFabric(Testbed("bench", nodes, cables, ("h0", "h1"), 1, mtu=4200)) as fabric:
        addresses, secret = [fabric.address(host) for host in ("h0", "h1")], secrets.token_bytes(SECRET_BYTES)
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child = os.fork()
        if child == 0:
            play(there, 1, addresses, secret)
            os._exit(0)
        file.write_text(json.dumps(play(here, 0, addresses, secret)))
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
