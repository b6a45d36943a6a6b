"""Network namespaces without child processes: anonymous ones, held by a file descriptor, vanish with their holder."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

from genie.errors import NotReadyError

CLONE_NEWNET: Final = 0x4000_0000
CLONE_NEWUSER: Final = 0x1000_0000
_SELF: Final = "/proc/thread-self/ns/net"
USERNS_MARK: Final = "GENIE_IN_USERNS"
"""Set in the environment of a process that entered its own user namespace."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise NotReadyError(
            f"{what} failed: {os.strerror(number)}.", fix="run as root, or allow unprivileged user namespaces."
        )


def unshare(flags: int) -> None:
    """Leave shared namespaces, the calling thread only (Python 3.11 has no os.unshare)."""
    _check(_libc().unshare(flags), "unshare")


def set_namespace(fd: int) -> None:
    """Move the calling thread into the network namespace behind `fd`."""
    _check(_libc().setns(fd, CLONE_NEWNET), "setns")


def current() -> int:
    """A descriptor of the calling thread's network namespace."""
    return os.open(_SELF, os.O_RDONLY | os.O_CLOEXEC)


def create() -> int:
    """A new, empty network namespace; it lives as long as the descriptor, or a process inside."""
    here = current()
    try:
        unshare(CLONE_NEWNET)
        return current()
    finally:
        set_namespace(here)
        os.close(here)


@contextlib.contextmanager
def inside(fd: int) -> Iterator[None]:
    """Be in a namespace for a while (this thread only)."""
    here = current()
    set_namespace(fd)
    try:
        yield
    finally:
        set_namespace(here)
        os.close(here)


def capability() -> tuple[str, str]:
    """("root" | "userns" | "none", why): what kind of namespaces this process can make, tried for real."""
    if _child_can(CLONE_NEWNET):
        return ("userns", "in a user namespace") if os.environ.get(USERNS_MARK) else ("root", "privileged")
    if _child_can(CLONE_NEWUSER | CLONE_NEWNET):
        return "userns", "unprivileged user namespaces are allowed"
    return "none", "neither privileges nor unprivileged user namespaces"


def _child_can(flags: int) -> bool:
    """Whether a fresh process may unshare `flags`; asked in a child, so that nothing changes here."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if _libc().unshare(flags) == 0 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def reexec_in_user_namespace(arguments: list[str]) -> NoReturn:
    """Start this program again inside a user namespace of its own, where it may make network namespaces.

    A process with threads cannot enter a user namespace, hence the fresh start through `genie.userns`.
    """
    os.execv(sys.executable, [sys.executable, "-m", "genie.userns", *arguments])  # noqa: S606


def enter_user_namespace() -> None:
    """Become root of a new user namespace and of a network namespace in it. Only before any thread exists."""
    uid, gid = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER | CLONE_NEWNET)
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1", encoding="ascii")
    os.environ[USERNS_MARK] = "1"
