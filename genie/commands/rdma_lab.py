"""Running commands in the rdma-lab: this very command line goes on inside a guest."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from genie.core.testbed import Testbed
from genie.errors import NotReadyError
from genie.testbed.rdma_vm import GuestOptions, inside_guest, run_in_guest
from genie.units import parse_size_bytes, parse_time_ns


def go_on_in_guest(share: Path) -> int:
    """Run this command line again in a guest that may write to a folder; its exit code."""
    command = [sys.executable, "-m", "genie", *sys.argv[1:]]
    return run_in_guest(command, share, GuestOptions(timeout_s=None))


def run_on_fabric(testbed: Testbed, command: Sequence[str], share: Path, delay: str, loss: float, mark: str) -> int:
    """Bring a testbed with RDMA devices up in a guest, run a command there; its exit code.

    Args:
        testbed: what to bring up.
        command: program and arguments.
        share: the folder that it may write to.
        delay: of every switch port, real time, with its unit.
        loss: share of packets that every switch port loses.
        mark: queue from which on every switch port marks, with its unit.

    Raises:
        InputError: a delay, loss or size that cannot be.
        NotReadyError: the lab has no kernel, or the command does not start.
    """
    from genie.testbed.rdma_fabric import Impairment, RdmaFabric  # noqa: PLC0415 - pyroute2 is slow to import

    impairment = Impairment(parse_time_ns(delay), loss, parse_size_bytes(mark))
    if not command:
        raise click.UsageError("give a COMMAND to run on it: genie testbed up --kind rdma-vm FILE -- COMMAND")
    if not inside_guest():
        return go_on_in_guest(share)
    with RdmaFabric(testbed, impairment) as fabric:
        for line in fabric.usage():
            click.echo(line, err=True)
        try:
            return subprocess.run(list(command), check=False).returncode  # noqa: S603 - what the user typed
        except OSError as error:
            raise NotReadyError(f"{command[0]} does not start: {error.strerror}.") from error
