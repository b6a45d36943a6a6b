"""Debian's FRR on the switches of an emulated fabric: zebra and bgpd in each switch's namespace, and what they tell.

All daemons are children of a supervisor that is the first process of a PID namespace, with a file system of its own
for their sockets. So they end with this process, however it ends, and leave nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from genie.core.testbed import Testbed
from genie.errors import NotReadyError
from genie.testbed.addressing import PREFIX, Port
from genie.testbed.namespaces import die_with_parent, set_namespace, unshare

DAEMONS: Final = ("zebra", "bgpd")
FOLDERS: Final = "/usr/lib/frr:/usr/libexec/frr:/usr/sbin:/usr/local/sbin"
FIRST_AS: Final = 4_200_000_000
"""The first of the four-byte numbers for private use (RFC 6996)."""

MULTIPATH: Final = 64
START_TIMEOUT_S: Final = 10.0
_RUN: Final = "/run"
_HOME: Final = f"{_RUN}/genie-frr"
_USER: Final = "frr"
_CLONE_NEWNS, _CLONE_NEWPID = 0x20000, 0x2000_0000
_MS_PRIVATE_ALL: Final = 0x4000 | 0x40000
_READY: Final = b"."


def hindrance() -> str:
    """Why FRR cannot be used here; nothing if it can."""
    lacking = [name for name in (*DAEMONS, "vtysh") if _find(name) is None]
    if lacking:
        return f"FRR is not installed ({', '.join(lacking)} not found)"
    if os.geteuid() != 0:
        return "FRR's daemons need root"
    try:
        pwd.getpwnam(_USER)
    except KeyError:
        return f"FRR's user {_USER} does not exist"
    return ""


def _find(name: str) -> str | None:
    return shutil.which(name, path=f"{FOLDERS}:{os.environ.get('PATH', '')}")


def _program(name: str) -> str:
    found = _find(name)
    if found is None:
        raise NotReadyError(f"{name} is not installed.", fix="sudo apt install frr")
    return found


def configuration(testbed: Testbed, switch: str, ports: list[Port]) -> str:
    """A frr.conf for a switch: eBGP unnumbered to every other switch, all equal ways, the networks of its hosts.

    RFC 7938 (BGP in large data centres) with RFC 5549 next hops, as `neighbor IF interface` makes them.
    """
    hosts, switches = set(testbed.hosts), [node.name for node in testbed.nodes]
    number = FIRST_AS + switches.index(switch)
    upward = [port.name for port in ports if port.peer not in hosts]
    lines = ["frr defaults datacenter", f"hostname {switch}"]
    for name in upward:  # neighbours find each other by router advertisements: one a second, not one in ten
        lines += [f"interface {name}", " no ipv6 nd suppress-ra", " ipv6 nd ra-interval 1", "exit"]
    lines += [f"router bgp {number}", f" bgp router-id {ports[0].address}", " no bgp ebgp-requires-policy"]
    lines += [" bgp bestpath as-path multipath-relax", " timers bgp 1 3"]
    lines += [f" neighbor {name} interface remote-as external" for name in upward]
    lines += [f" neighbor {name} timers connect 1" for name in upward]
    lines += [" address-family ipv4 unicast", "  redistribute kernel"]
    lines += [f"  network {network(port)}" for port in ports if port.peer in hosts]
    lines += [f"  maximum-paths {MULTIPATH}", " exit-address-family", "exit"]
    return "\n".join(lines) + "\n"


def network(port: Port) -> str:
    """The network of a port's cable."""
    base = int.from_bytes(socket.inet_aton(port.address), "big") >> 32 - PREFIX << 32 - PREFIX
    return f"{socket.inet_ntoa(base.to_bytes(4, 'big'))}/{PREFIX}"


class Frr:
    """FRR on some switches.

    Args:
        namespaces: switch -> descriptor of its namespace.

    Raises:
        NotReadyError: FRR is absent, or its daemons do not start.
    """

    def __init__(self, namespaces: Mapping[str, int]) -> None:
        why = hindrance()
        if why:
            raise NotReadyError(
                f"stack frr: {why}.", fix="sudo apt install frr, and run as root; or write stack: static"
            )
        self._line, self._pid = _supervise(namespaces)
        self.root = ""
        try:
            self.root = f"/proc/{self._hear()}/root{_HOME}"
            self._wait(namespaces)
        except BaseException:
            self.close()
            raise

    def _hear(self) -> int:
        self._line.settimeout(START_TIMEOUT_S)
        words = self._line.recv(16)
        if not words:
            raise NotReadyError("FRR's supervisor ended at once.", fix="it needs root, PID and mount namespaces.")
        return int(words)

    def _wait(self, switches: Mapping[str, int]) -> None:
        """Until every daemon answers on its socket."""
        deadline, left = time.monotonic() + START_TIMEOUT_S, [(s, d) for s in switches for d in DAEMONS]
        while left := [(s, d) for s, d in left if not _answers(f"{self.root}/{s}/{d}.vty")]:
            if time.monotonic() > deadline:
                switch, daemon = left[0]
                log = Path(f"{self.root}/{switch}/{daemon}.log")
                words = log.read_text(encoding="utf-8", errors="replace").strip() if log.exists() else ""
                raise NotReadyError(f"{daemon} does not start: {words[-300:]}.", where=switch)
            time.sleep(0.02)

    def close(self) -> None:
        """End all daemons; may be called twice."""
        if self._pid:
            self._line.close()
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def configure(self, switch: str, text: str) -> None:
        """Give a switch its frr.conf.

        Raises:
            NotReadyError: FRR does not understand a line of it.
        """
        path = Path(f"{self.root}/{switch}/genie.conf")
        path.write_text(text, encoding="utf-8")
        done = self._vtysh(switch, "-f", str(path))
        told = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        wrong = [line for line in told if line.lstrip().startswith("%") or line.startswith("line ")]
        if done.returncode or wrong:
            words = "; ".join(wrong or told) or f"exit code {done.returncode}"
            raise NotReadyError(f"FRR refuses its configuration: {words}.", where=switch, fix="mend its frr.conf.")

    def tell(self, switch: str, command: str) -> str:
        """What a switch prints for a `show` command."""
        return self._vtysh(switch, "-c", command).stdout

    def tell_json(self, switch: str, command: str) -> Any:
        """The same, where the command ends in `json`; {} if that was none."""
        try:
            return json.loads(self.tell(switch, command))
        except ValueError:
            return {}

    def _vtysh(self, switch: str, *words: str) -> subprocess.CompletedProcess[str]:
        return run_vtysh(f"{self.root}/{switch}", *words)

    def neighbours(self, switch: str) -> dict[str, str]:
        """Interface -> state of the session, of the BGP neighbours that a switch's configuration names."""
        summary = self.tell_json(switch, "show bgp summary json")
        peers = summary.get("ipv4Unicast", {}).get("peers", {})
        return {name: told.get("state", "?") for name, told in peers.items()}


def run_vtysh(folder: str, *words: str) -> subprocess.CompletedProcess[str]:
    """FRR's shell, talking to the daemons whose sockets are in a folder."""
    return subprocess.run(  # noqa: S603 - our own words
        [_program("vtysh"), "--vty_socket", folder, "--config_dir", folder, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=START_TIMEOUT_S,
    )


def _answers(path: str) -> bool:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
        try:
            sock.connect(path)
        except OSError:
            return False
    return True


def _supervise(namespaces: Mapping[str, int]) -> tuple[socket.socket, int]:
    """(line to the supervisor, its parent's number): two forks, since a PID namespace begins with a child."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            die_with_parent()
            unshare(_CLONE_NEWPID | _CLONE_NEWNS)
            first = os.fork()
            if first == 0:
                _be_first(namespaces, theirs)
            theirs.send(str(first).encode())
            theirs.close()
            os.waitpid(first, 0)
        finally:
            os._exit(0)
    theirs.close()
    return ours, pid


def _be_first(namespaces: Mapping[str, int], line: socket.socket) -> NoReturn:
    """The life of the namespace's first process: start the daemons, wait for the end of whoever made us."""
    try:
        die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        _private_folder()
        user = pwd.getpwnam(_USER)
        for switch, fd in namespaces.items():
            folder = Path(_HOME) / switch
            folder.mkdir(parents=True)
            (folder / "vtysh.conf").touch()
            os.chown(folder, user.pw_uid, user.pw_gid)
            for daemon in DAEMONS:
                _start(daemon, folder, fd)
        while line.recv(1):
            pass
    finally:
        os._exit(0)


def _private_folder() -> None:
    """A file system in memory over /run, seen by the daemons alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mount(b"none", b"/", None, _MS_PRIVATE_ALL, None)
    if libc.mount(b"tmpfs", _RUN.encode(), b"tmpfs", 0, b"mode=755"):
        os._exit(1)


def _start(daemon: str, folder: Path, fd: int) -> None:
    if os.fork():
        return
    try:
        set_namespace(fd)
        log = os.open(folder / f"{daemon}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, target)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        program = _program(daemon)
        common = ["-i", f"{folder}/{daemon}.pid", "-z", f"{folder}/zserv.api", "--vty_socket", str(folder)]
        common += ["-f", f"{folder}/{daemon}.conf", "-u", _USER, "-g", _USER, "-P", "0", "--log", "stdout"]
        os.execv(program, [program, *common])  # noqa: S606 - FRR's daemon
    finally:
        os._exit(1)


__all__ = ["Frr", "configuration", "hindrance", "network", "run_vtysh"]
