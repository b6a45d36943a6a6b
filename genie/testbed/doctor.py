"""What this machine can do, and how to get what it lacks. Looks only; changes nothing and never raises."""

from __future__ import annotations

import gzip
import importlib.util
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from genie.core.testbed import LinkSpec, Testbed, single_switch
from genie.errors import GenieError
from genie.formats.programs import programs_below
from genie.testbed.namespaces import USERNS_MARK, capability, enter_user_namespace, remedy
from genie.units import NS_PER_S, NS_PER_US, gigabits_to_bps, ns_to_ms, ns_to_us

GIB: Final = 1 << 30
WANTED_FREE_BYTES: Final = 2 * GIB
LATE_NS: Final = 1_000_000
_SLEEP_NS: Final = 100 * NS_PER_US
_SLEEPS: Final = 21
_COMMAND_TIMEOUT_S: Final = 3
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
        ("emulated fabric", _fabric),
        ("name clash", _name_clash),
        ("RDMA devices", _rdma),
        ("pyverbs", _pyverbs),
        ("rdma-lab", _rdma_lab),
        ("ASTRA-sim", _astra_sim),
        ("MPI", _mpi),
        ("clock", _clock),
        ("timers", _timers),
        ("TCP congestion control", _congestion_control),
        ("tc", _tc),
        ("nft", _nft),
        ("cores", _cores),
        ("locked memory", _locked_memory),
        ("free space", _free_space),
    )
    return [_guarded(name, look) for name, look in looks]


def examine_host() -> list[Check]:
    """Of these, what every host of a testbed needs: cores, locked memory, free space."""
    looks = (("cores", _cores), ("locked memory", _locked_memory), ("free space", _free_space))
    return [_guarded(name, look) for name, look in looks]


def _guarded(name: str, look: Callable[[], Check]) -> Check:
    try:
        return look()
    except Exception as error:  # noqa: BLE001 - whatever a strange machine makes a look raise, the others still count
        return Check(name, "lack", f"could not be looked at: {type(error).__name__}: {error}")


def _python() -> Check:
    return Check("python", "ok", f"{sys.version.split()[0]} at {sys.executable}, Linux {platform.release()}")


def _namespaces() -> Check:
    kind, why = capability()
    if kind == "none":
        found = f"none: {why} Replays fall back to loopback with user-space pacing"
        return Check("namespaces", "bad", found, remedy())
    return Check("namespaces", "ok", f"{kind}: {why}")


def _fabric() -> Check:
    """Two hosts and a switch, brought up for real in a process of their own."""
    kind, _ = capability()
    if kind == "none":
        return Check("emulated fabric", "bad", "not without namespaces", remedy())
    words = _in_child(lambda: _bring_up(kind))
    if words.startswith("up "):
        return Check("emulated fabric", "ok", words)
    fix = "sudo modprobe -a veth sch_htb cls_u32; the kernel needs them, and Linux 5.12 for ECMP by chosen fields"
    return Check("emulated fabric", "bad", words or "the trial ended without a word", fix)


def _bring_up(kind: str) -> str:
    from genie.testbed.emulated import EmulatedFabric  # noqa: PLC0415 - pyroute2 is slow to import

    if kind == "userns" and not os.environ.get(USERNS_MARK):
        enter_user_namespace()
    rate = LinkSpec(round(gigabits_to_bps(100)), 0, 1 << 20)
    nodes, cables = single_switch(2, rate, seed=1)
    begun_ns = time.monotonic_ns()
    with EmulatedFabric(Testbed("trial", nodes, cables, ("h0", "h1"))) as fabric:
        took_ms = ns_to_ms(time.monotonic_ns() - begun_ns)
        return " ".join((f"up in {took_ms:.0f} ms (two hosts, one switch).", *fabric.notes))


def _in_child(work: Callable[[], str]) -> str:
    """What `work` says when a forked process does it."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write_end, work().encode())
        except (GenieError, OSError) as error:
            os.write(write_end, str(error).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, encoding="utf-8") as stream:
        words = stream.read()
    os.waitpid(pid, 0)
    return words


def _name_clash() -> Check:
    """Cisco's pyATS has a distribution called genie with an importable package of the same name."""
    others = [name for name in ("genie", "pyats") if _installed(name)]
    if others:
        found = f"pyATS's package(s) {', '.join(others)} share our import name here"
        return Check("name clash", "bad", found, "python3 -m venv ~/genie && ~/genie/bin/pip install genie-testbed")
    command = shutil.which("genie")
    beside = Path(sys.executable).parent / "genie"
    if command and beside.exists() and not Path(command).samefile(beside):
        return Check("name clash", "lack", f"the command `genie` is {command}, another program", f"type {beside}")
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
    fix = "RDMA hardware and its driver, or Soft-RoCE: sudo rdma link add rxe0 type rxe netdev DEV"
    return Check("RDMA devices", "lack", "none; only the verbs transport needs one", fix)


def _pyverbs() -> Check:
    system = Path("/usr/lib/python3/dist-packages/pyverbs")
    if importlib.util.find_spec("pyverbs") or system.is_dir():
        return Check("pyverbs", "ok", "found")
    return Check("pyverbs", "lack", "not found; only the verbs transport needs it", "sudo apt install python3-pyverbs")


def _rdma_lab() -> Check:
    """Real verbs without a device: the guest's kernel and the programs that it needs."""
    from genie.testbed.rdma_kernel import RUN_PACKAGES, find_kernel, hindrance, missing_packages  # noqa: PLC0415

    why = hindrance()
    if why:
        return Check("rdma-lab", "lack", f"not on this machine: {why}", "use a machine with RDMA devices for verbs")
    missing = missing_packages(RUN_PACKAGES)
    if missing:
        return Check("rdma-lab", "lack", f"without {', '.join(missing)}", f"sudo apt install {' '.join(missing)}")
    try:
        return Check("rdma-lab", "ok", f"kernel {find_kernel()}")
    except GenieError as error:
        return Check("rdma-lab", "lack", error.what, error.fix)


def _astra_sim() -> Check:
    named = os.environ.get("GENIE_ASTRA_SIM")
    if named:
        place = Path(named)
        usable = os.access(place, os.X_OK) and (place.is_file() or bool(programs_below(place, ASTRA_SIM_NAMES)))
        fix = "" if usable else "export GENIE_ASTRA_SIM=/path/to/AstraSim_Analytical_Congestion_Aware"
        return Check("ASTRA-sim", "ok" if usable else "bad", f"GENIE_ASTRA_SIM={named}", fix)
    found = [path for name in ASTRA_SIM_NAMES if (path := shutil.which(name))]
    if found:
        return Check("ASTRA-sim", "ok", ", ".join(found))
    fix = "build it, then: export GENIE_ASTRA_SIM=/path/to/AstraSim_Analytical_Congestion_Aware"
    return Check("ASTRA-sim", "lack", "not found; the builtin simulator needs none", fix)


def _mpi() -> Check:
    command = shutil.which("mpirun")
    module = importlib.util.find_spec("mpi4py") is not None
    if command and module:
        return Check("MPI", "ok", command)
    lack = "mpi4py is not installed" if command else "mpirun not found"
    fix = "pip install 'genie-testbed[mpi]'" if command else "sudo apt install openmpi-bin"
    return Check("MPI", "lack", f"{lack}; replays on one machine need none", fix)


def _clock() -> Check:
    """Chrony, PTP or systemd, whichever says that it keeps the clock right."""
    if (state := _output("chronyc", "-c", "tracking")) and not state.startswith("7F7F0101"):
        return Check("clock", "ok", f"chrony follows {state.split(',')[1]}")
    if _runs("ptp4l"):
        return Check("clock", "ok", "ptp4l runs")
    if _output("timedatectl", "show", "--property=NTPSynchronized", "--value") == "yes":
        return Check("clock", "ok", "synchronised, says timedatectl")
    return Check("clock", "lack", "not synchronised; on one machine all share one clock", "sudo apt install chrony")


def _output(*command: str) -> str:
    """What a command prints, nothing if it is not there or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False)  # noqa: S603
    return done.stdout.strip() if done.returncode == 0 else ""


def _runs(name: str) -> bool:
    """Whether a process of that name runs."""
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text(encoding="utf-8").strip() == name:
                return True
        except OSError:
            continue
    return False


def _timers() -> Check:
    """How late a short sleep ends: what a rank adds to compute that it waits out without spinning."""
    late_ns = statistics.median(_late_ns() for _ in range(_SLEEPS))
    slack = _read("/proc/self/timerslack_ns")
    found = f"a sleep ends {ns_to_us(late_ns):.0f} us late (timer slack {slack or '?'} ns, HZ {_hz()})"
    fix = "" if late_ns < LATE_NS else "use a larger dilation, or a less busy machine."
    return Check("timers", "lack" if fix else "ok", found, fix)


def _late_ns() -> int:
    begun_ns = time.monotonic_ns()
    time.sleep(_SLEEP_NS / NS_PER_S)
    return time.monotonic_ns() - begun_ns - _SLEEP_NS


def _hz() -> str:
    config = _read(f"/boot/config-{platform.release()}") or _read_packed("/proc/config.gz")
    found = re.search(r"^CONFIG_HZ=(\d+)$", config, re.MULTILINE)
    return found[1] if found else "unknown"


def _read(path: str) -> str:
    """A file's text, nothing if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _read_packed(path: str) -> str:
    try:
        return gzip.decompress(Path(path).read_bytes()).decode(errors="replace")
    except OSError:
        return ""


def _congestion_control() -> Check:
    names = _read("/proc/sys/net/ipv4/tcp_available_congestion_control").split()
    if "cubic" in names:
        return Check("TCP congestion control", "ok", " ".join(names))
    fix = "sudo modprobe tcp_cubic, or write congestion_control: reno into the testbed file"
    return Check("TCP congestion control", "lack", " ".join(names) or "unknown", fix)


def _tc() -> Check:
    command = shutil.which("tc", path=_with_sbin())
    if command:
        return Check("tc", "ok", command)
    return Check("tc", "lack", "not found; only looking at queues by hand needs it", "sudo apt install iproute2")


def _nft() -> Check:
    command = shutil.which("nft", path=_with_sbin())
    if command:
        return Check("nft", "ok", command)
    return Check("nft", "lack", "not found; replays need none", "sudo apt install nftables")


def _with_sbin() -> str:
    """Ordinary users often lack the folders of these two in their PATH."""
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


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
