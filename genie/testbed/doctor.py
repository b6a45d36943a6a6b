"""What this machine can do, and how to get what it lacks. Looks only; changes nothing and never raises."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from genie.testbed.namespaces import capability

GIB: Final = 1 << 30
WANTED_FREE_BYTES: Final = 2 * GIB
ASTRA_SIM_NAMES: Final = (
    "AstraSim_Analytical_Congestion_Unaware",
    "AstraSim_Analytical_Congestion_Aware",
    "AstraSimNetwork",
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: status "ok", "lack" (something optional is missing) or "bad"."""

    name: str
    status: str
    found: str
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"name": self.name, "status": self.status, "found": self.found, "fix": self.fix}


def examine() -> list[Check]:
    """Everything, one check a row."""
    looks: tuple[tuple[str, Callable[[], Check]], ...] = (
        ("python", _python),
        ("namespaces", _namespaces),
        ("name clash", _name_clash),
        ("RDMA devices", _rdma),
        ("pyverbs", _pyverbs),
        ("ASTRA-sim", _astra_sim),
        ("MPI", _mpi),
        ("clock", _clock),
        ("TCP congestion control", _congestion_control),
        ("cores", _cores),
        ("locked memory", _locked_memory),
        ("free space", _free_space),
    )
    return [_guarded(name, look) for name, look in looks]


def _guarded(name: str, look: Callable[[], Check]) -> Check:
    try:
        return look()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Check(name, "lack", f"could not be looked at: {error}")


def _python() -> Check:
    return Check("python", "ok", f"{sys.version.split()[0]} at {sys.executable}")


def _namespaces() -> Check:
    kind, why = capability()
    if kind == "none":
        fix = "run as root, or: sysctl -w kernel.unprivileged_userns_clone=1 (and no AppArmor restriction of them)"
        return Check("namespaces", "bad", f"none: {why}; replays fall back to loopback with user-space pacing", fix)
    return Check("namespaces", "ok", f"{kind}: {why}")


def _name_clash() -> Check:
    """Cisco's pyATS has a distribution called genie with an importable package of the same name."""
    spec = importlib.util.find_spec("genie")
    ours = Path(__file__).resolve().parents[1]
    where = Path(spec.origin).parent.resolve() if spec and spec.origin else ours
    others = [name for name in ("genie", "pyats") if _installed(name)]
    command = shutil.which("genie")
    beside = Path(sys.executable).parent / "genie"
    if where != ours or others:
        found = f"pyATS's package(s) {', '.join(others) or 'genie'} share our import name here"
        return Check("name clash", "bad", found, "install genie-testbed in a virtual environment of its own.")
    if command and beside.exists() and not Path(command).samefile(beside):
        return Check(
            "name clash", "lack", f"the command `genie` is {command}, another program", f"type {beside} instead."
        )
    return Check("name clash", "ok", "no other genie")


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _rdma() -> Check:
    folder = Path("/sys/class/infiniband")
    devices = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if devices:
        return Check("RDMA devices", "ok", ", ".join(devices))
    return Check(
        "RDMA devices",
        "lack",
        "none",
        "RDMA hardware and its driver, or Soft-RoCE: rdma link add rxe0 type rxe netdev DEV",
    )


def _pyverbs() -> Check:
    system = Path("/usr/lib/python3/dist-packages/pyverbs")
    if importlib.util.find_spec("pyverbs") or system.is_dir():
        return Check("pyverbs", "ok", "found")
    return Check("pyverbs", "lack", "not found", "apt install python3-pyverbs")


def _astra_sim() -> Check:
    named = os.environ.get("GENIE_ASTRA_SIM")
    if named:
        usable = os.access(named, os.X_OK)
        fix = "" if usable else "set GENIE_ASTRA_SIM to an executable."
        return Check("ASTRA-sim", "ok" if usable else "bad", f"GENIE_ASTRA_SIM={named}", fix)
    found = [path for name in ASTRA_SIM_NAMES if (path := shutil.which(name))]
    if found:
        return Check("ASTRA-sim", "ok", ", ".join(found))
    return Check(
        "ASTRA-sim", "lack", "not found; the builtin simulator needs none", "build it, then set GENIE_ASTRA_SIM."
    )


def _mpi() -> Check:
    command = shutil.which("mpirun")
    return (
        Check("MPI", "ok", command)
        if command
        else Check("MPI", "lack", "not found; replays on one machine need none", "apt install openmpi-bin")
    )


def _clock() -> Check:
    for command in ("chronyc", "ptp4l", "timedatectl"):
        if shutil.which(command):
            return Check("clock", "ok", f"{command} is installed; on one machine all ranks share one clock")
    return Check("clock", "lack", "no clock synchronisation; on one machine none is needed", "apt install chrony")


def _congestion_control() -> Check:
    path = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
    return Check("TCP congestion control", "ok", path.read_text(encoding="ascii").strip())


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0))
    fix = "" if cores > 1 else "use a machine with at least two cores, or a larger dilation."
    return Check("cores", "ok" if cores > 1 else "lack", str(cores), fix)


def _locked_memory() -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or soft >= GIB:
        return Check("locked memory", "ok", "unlimited" if soft == resource.RLIM_INFINITY else f"{soft >> 20} MiB")
    return Check("locked memory", "lack", f"{soft >> 10} KiB; only RDMA needs more", "ulimit -l unlimited")


def _free_space() -> Check:
    free = shutil.disk_usage(".").free
    fix = "" if free >= WANTED_FREE_BYTES else "free some space, or choose another folder with --out."
    return Check("free space", "ok" if free >= WANTED_FREE_BYTES else "bad", f"{free / GIB:.1f} GiB here", fix)
