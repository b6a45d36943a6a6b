"""iperf3 as something to compare with: one flow, its goodput as iperf3 itself reports it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

PORT = 5201
PATIENCE_S = 60
_LISTENS = "Server listening"


def program() -> str:
    """Its path; if it is missing, end with how to get it."""
    found = shutil.which("iperf3")
    if found is None:
        print("iperf3 is not installed. Type: sudo apt install iperf3", file=sys.stderr)
        sys.exit(3)
    return found


def goodput_gbps(
    size_bytes: int,
    buffer_bytes: int,
    piece_bytes: int,
    address: str,
    client: AbstractContextManager[None] | None = None,
    server: AbstractContextManager[None] | None = None,
) -> float:
    """One flow of so many bytes to `address`; Gb/s at the receiver.

    Args:
        size_bytes: what is sent.
        buffer_bytes: both ends' kernel buffers, bookkeeping included (iperf3 is told half, which the kernel doubles).
        piece_bytes: of one write and one read.
        address: the server's.
        client: where it starts (a network namespace); None: here.
        server: the same for the server.
    """
    window = ["-w", str(buffer_bytes // 2)]
    words = ["-c", address, "-n", str(size_bytes), "-l", str(piece_bytes), *window, "-J"]
    with _serving(address, server or nullcontext()), client or nullcontext():
        done = subprocess.run([program(), *words], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    told = json.loads(done.stdout)
    if "error" in told:
        raise SystemExit(f"iperf3: {told['error']}.")
    start = told["start"]
    if min(start["sndbuf_actual"], start["rcvbuf_actual"]) < buffer_bytes:
        raise SystemExit(f"iperf3 had less buffer than the {buffer_bytes} bytes compared with.")
    return float(told["end"]["sum_received"]["bits_per_second"]) / 1e9


@contextlib.contextmanager
def _serving(address: str, where: AbstractContextManager[None]) -> Iterator[None]:
    """A server for one client, listening."""
    with where:
        words = [program(), "-s", "-1", "-B", address, "-p", str(PORT), "--forceflush"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            if not any(_LISTENS in line for line in process.stdout or ()):
                raise SystemExit(f"iperf3 does not serve on {address} port {PORT}: is another one running?")
            yield
            process.wait(PATIENCE_S)
        finally:
            process.kill()
