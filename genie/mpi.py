"""Replays whose ranks mpirun starts: on an emulated fabric's hosts, or on those of a lab."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from genie.core.experiment import ReplayRule
from genie.core.testbed import Endpoint, Testbed
from genie.errors import InputError, NotReadyError
from genie.formats.bundle import pack
from genie.hosts import LAB, Hosting, Lab
from genie.loading import Loaded
from genie.replay.elsewhere import told
from genie.replay.local import Elsewhere, new_secret
from genie.replay.mpi import Machines, MpiJob, namespace_agent, read_hostfile
from genie.stages import replay_options

LOCAL, MPI = "local", "mpi"


@dataclass(frozen=True, slots=True)
class Launcher:
    """Who starts the ranks: `name`; and how mpirun reaches other hosts: `rsh` in place of ssh, over `interface`."""

    name: str = LOCAL
    rsh: str = ""
    interface: str = ""


LOCALLY = Launcher()


@contextmanager
def launched(
    loaded: Loaded, lab: Lab, hosting: Hosting, rule: ReplayRule, launcher: Launcher
) -> Iterator[Elsewhere | None]:
    """The job whose processes will be the ranks, as long as the context lasts; None where this process forks them.

    Raises:
        NotReadyError: a lab without mpirun, no hosts to start them on, or a job that does not start.
        InputError: ranks of one host that are not numbered in a row.
    """
    if launcher.name == LOCAL:
        if hosting.kind == LAB:
            raise NotReadyError("this process cannot start ranks on a lab's hosts.", fix="add --launcher mpi")
        yield None
        return
    if hosting.kind == "none":
        raise NotReadyError("mpirun needs hosts, and there are no namespaces here.", fix="run as root.")
    options = replay_options(loaded.testbed, hosting, rule)
    ranks = len(loaded.schedule.ranks)
    bundle = pack(loaded.experiment, told(options, hosting.places[:ranks], new_secret()))
    machines = _lab_machines(loaded.testbed, ranks, launcher) if hosting.kind == LAB else _machines(lab, ranks)
    with MpiJob(bundle, machines) as job:
        yield job


def _in_a_row(placement: tuple[str, ...]) -> list[tuple[str, int]]:
    """(host, ranks) in order.

    Raises:
        InputError: a host has ranks with others' between them.
    """
    found = [(host, len(list(ranks))) for host, ranks in groupby(placement)]
    apart = [host for host, times in Counter(host for host, _ in found).items() if times > 1]
    if apart:
        raise InputError(
            f"the ranks of {apart[0]} are not numbered in a row, as mpirun starts them.",
            where="placement",
            fix="place ranks host by host.",
        )
    return found


def _machines(lab: Lab, ranks: int) -> Machines:
    """The hosts of a fabric that is up, each in a namespace of this process."""
    fabric, hosts = lab.fabric, _in_a_row(lab.testbed.placement[:ranks])
    address = {host: fabric.address(host) for host, _ in hosts}
    held = [(address[host], fabric.namespace_fd(host)) for host, _ in hosts]
    first = f"--net=/proc/{os.getpid()}/fd/{held[0][1]}"
    return Machines(
        tuple((address[host], count) for host, count in hosts),
        agent=namespace_agent(os.getpid(), held),
        prefix=("nsenter", first),
        interface=fabric.nics()[Endpoint(hosts[0][0])].name,
    )


def _lab_machines(testbed: Testbed, ranks: int, launcher: Launcher) -> Machines:
    management = {host.name: host.management for host in testbed.lab}
    hosts = tuple((management[host], count) for host, count in _in_a_row(testbed.placement[:ranks]))
    agent = f'#!/bin/sh\nexec {launcher.rsh} "$@"\n' if launcher.rsh else ""
    return Machines(hosts, agent=agent, interface=launcher.interface)


def placed(loaded: Loaded, hostfile: Path) -> Loaded:
    """The same with the ranks where a hostfile says, on hosts of the testbed.

    Raises:
        InputError: a host that is none of the testbed's: traffic goes nowhere else; or too few slots.
    """
    testbed = loaded.testbed
    known = {host: host for host in testbed.hosts}
    for real in testbed.lab:
        known |= dict.fromkeys((real.name, real.management, *real.addresses), real.name)
    placement: list[str] = []
    for name, slots in read_hostfile(hostfile):
        if name not in known:
            raise InputError(
                f"{name} is no host of the testbed.", where=str(hostfile), fix="traffic goes only to hosts of its file."
            )
        placement += [known[name]] * slots
    if len(placement) < len(loaded.schedule.ranks):
        raise InputError(f"{len(loaded.schedule.ranks)} ranks, but only {len(placement)} slots.", where=str(hostfile))
    return replace(loaded, testbed=replace(testbed, placement=tuple(placement)))
