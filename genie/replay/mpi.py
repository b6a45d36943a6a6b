"""Ranks that mpirun starts on other hosts: the hostfile, the command line, the job, and a launcher's hold on its ranks.

mpirun reaches a host through an agent in place of ssh, so that a namespace can play a host as well.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

from genie.errors import GenieError, InputError, NotReadyError, RunError
from genie.replay.agent import AgentPlan
from genie.replay.control import Channel
from genie.replay.priority import die_with
from genie.replay.ranks import PATIENCE_S, Rank

START_TIMEOUT_S: Final = 60.0
END_TIMEOUT_S: Final = 5.0
_LOOK_S: Final = 0.5
_HELLO_BYTES: Final = 4
_TOLD_LINES: Final = 6
_DIED: Final = re.compile(
    r"process rank (\d+) with PID \d+ on node (\S+) exited on signal (\d+)"
    r"|Process name: \[\[\d+,\d+\],(\d+)\]\s+Exit code:\s+(\d+)"
)
_HOST: Final = re.compile(
    r"^(?P<host>[^\s#=:]+)(?::(?P<short>\d+))?(?:\s+(?:slots|max_slots)\s*=\s*(?P<slots>\d+))?\s*$"
)
INSTALL: Final = "sudo apt-get install -y openmpi-bin libopenmpi-dev && pip install 'genie-testbed[mpi]'"


def read_hostfile(path: Path) -> tuple[tuple[str, int], ...]:
    """(host, slots) of every line: Open MPI's `host slots=N`, or MPICH's `host:N`; one slot where none is said.

    Raises:
        InputError: no such file, or a line that is neither.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}.", where=str(path)) from error
    slots = Counter[str]()
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        found = _HOST.match(text)
        if text and found is None:
            raise InputError(f"{text!r} names no host.", where=f"{path}, line {number}", fix="write: host slots=2")
        if found is not None:
            slots[found["host"]] += int(found["short"] or found["slots"] or 1)
    if not slots or min(slots.values()) < 1:
        raise InputError("names no hosts, or one without slots.", where=str(path))
    return tuple(slots.items())


@dataclass(frozen=True, slots=True)
class Machines:
    """Where a job runs.

    Attributes:
        hosts: (address, ranks) in the order of the ranks; the first is where mpirun itself runs.
        agent: lines of a shell script that is given a host's address and a command, in place of ssh; "": ssh itself.
        prefix: command that runs mpirun on the first host.
        interface: that hosts reach each other by; "": mpirun chooses.
    """

    hosts: tuple[tuple[str, int], ...]
    agent: str = ""
    prefix: tuple[str, ...] = ()
    interface: str = ""


def namespace_agent(pid: int, descriptors: Sequence[tuple[str, int]]) -> str:
    """A script that enters the namespace behind a process's descriptor, by the host's address."""
    cases = "\n".join(f"{address}) fd={fd} ;;" for address, fd in descriptors)
    return (
        f'#!/bin/sh\nhost=$1\nshift\ncase $host in\n{cases}\n*) echo "no host $host" >&2; exit 1 ;;\nesac\n'
        # Open MPI's daemons of one machine would share a folder there, and stumble over each other
        'export TMPDIR="$(dirname "$0")/$fd"\nmkdir -p "$TMPDIR"\n'
        f'exec nsenter --net=/proc/{pid}/fd/$fd sh -c "$*"\n'
    )


class MpiRank:
    """See ranks.Rank."""

    def __init__(self, rank: int, channel: Channel, host: str, job: MpiJob) -> None:
        self.rank, self.channel, self._host, self._job = rank, channel, host, job

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self._host})"

    def ended(self) -> str:
        """See Rank."""
        return self._job.ended()

    def end(self, grace_ms: int) -> None:
        """See Rank: the job ends as a whole, later."""
        del grace_ms
        self.channel.close()


class MpiJob:
    """A job of one relay and some ranks, as long as the context lasts.

    Args:
        bundle: what every rank needs (formats.bundle).
        machines: where.

    Raises:
        NotReadyError: no mpirun, no mpi4py, or the job does not start: says what mpirun said.
    """

    def __init__(self, bundle: bytes, machines: Machines) -> None:
        self._machines, self._bundle = machines, bundle
        self._places = [host for host, ranks in machines.hosts for _ in range(ranks)]
        self._stack = contextlib.ExitStack()
        self._channels: dict[int, Channel] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: socket.socket | None = None
        self._folder = Path()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="genie-mpi-")))
            (self._folder / "bundle").write_bytes(self._bundle)
            self._listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            self._listener.bind(str(self._folder / "socket"))
            self._listener.listen(len(self._places))
            self._listener.settimeout(_LOOK_S)
            said = stack.enter_context((self._folder / "said").open("wb"))
            try:
                command = self._command()
                self._process = subprocess.Popen(  # noqa: S603 - mpirun, found in PATH
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                    env=os.environ | {"TMPDIR": str(self._folder)},
                    preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 - no threads yet, and the job must not outlive us
                )
            except OSError as error:
                raise NotReadyError(f"mpirun cannot be started: {error.strerror}.", fix=INSTALL) from error
            stack.callback(self._finish)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _command(self) -> list[str]:
        mpirun = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
        if mpirun is None:
            raise NotReadyError("there is no mpirun.", fix=INSTALL)
        hosts, machines = self._machines.hosts, self._machines
        slots = ",".join(f"{host}:{ranks + (at == 0)}" for at, (host, ranks) in enumerate(hosts))
        options = ["--host", slots, "-np", str(len(self._places) + 1), "--map-by", "slot", "--bind-to", "none"]
        mca = {"btl": "tcp,self", "plm_rsh_no_tree_spawn": "1", "orte_keep_fqdn_hostnames": "1"}
        if machines.interface:
            mca |= {"oob_tcp_if_include": machines.interface, "btl_tcp_if_include": machines.interface}
        if machines.agent:
            script = self._folder / "agent"
            script.write_text(machines.agent, encoding="utf-8")
            script.chmod(0o700)
            mca |= {"plm": "rsh", "plm_rsh_agent": str(script)}
        for name, value in mca.items():
            options += ["--mca", name, value]
        if os.geteuid() == 0:
            options.append("--allow-run-as-root")
        program = [sys.executable, "-m", "genie.commands.mpi_rank"]
        files = [str(self._folder / "bundle"), str(self._folder / "socket")]
        return [*machines.prefix, mpirun, *options, *program, *files]

    def spawn(self, plan: AgentPlan, others: Sequence[Rank]) -> Rank:
        """See ranks.Spawn: mpirun started it; wait until it is connected."""
        del others
        waited_s = 0.0
        while plan.rank not in self._channels:
            if not self._accept():
                waited_s += _LOOK_S
                if self.ended() or waited_s > START_TIMEOUT_S:
                    raise NotReadyError(
                        f"the ranks do not start: {self._said() or 'mpirun says nothing.'}", fix=INSTALL
                    )
        return MpiRank(plan.rank, self._channels[plan.rank], self._places[plan.rank], self)

    def _accept(self) -> bool:
        if self._listener is None:
            return False
        try:
            sock, _ = self._listener.accept()
        except TimeoutError:
            return False
        sock.settimeout(PATIENCE_S)
        rank = int.from_bytes(sock.recv(_HELLO_BYTES, socket.MSG_WAITALL), "big")
        self._channels[rank] = Channel(sock, PATIENCE_S)
        return True

    def ended(self) -> str:
        """How mpirun ended; "" while it runs."""
        code = None if self._process is None else self._process.poll()
        return "" if code is None else f"ended with its job (mpirun's exit code {code})"

    def post_mortem(self) -> GenieError | None:
        """Which rank's end ended the job, as mpirun tells; None if it is no rank's death."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_TIMEOUT_S)
        found = _DIED.search(self._said(lines=1000))
        if found is None or found[3] is None:
            return None
        rank = int(found[1]) - 1
        if rank < 0:
            return RunError(f"mpirun's own helper was killed by signal {found[3]}.", where="world rank 0")
        host = self._places[rank]
        return RunError(
            f"rank {rank} (host {host}) was killed by signal {found[3]}.",
            where=f"rank {rank}",
            fix="look at what killed it.",
        )

    def _said(self, lines: int = _TOLD_LINES) -> str:
        """The last that mpirun and the ranks said, on one line."""
        try:
            text = (self._folder / "said").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        told = [line.strip() for line in text.splitlines() if line.strip(" -*")]
        return " ".join(" ".join(told[-lines:]).split())

    def _finish(self) -> None:
        """Hang up, which ends the relay and so the job; at last, end mpirun, which ends everything that it started."""
        for channel in self._channels.values():
            channel.close()
        if self._process is None:
            return
        process = self._process
        for signal_number in (None, signal.SIGTERM, signal.SIGKILL):
            if signal_number is not None:
                process.send_signal(signal_number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_TIMEOUT_S)
                return
