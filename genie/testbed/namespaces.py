"""Network namespaces without child processes: anonymous ones, held by a file descriptor, vanish with their holder."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

from genie.errors import NotReadyError
from genie.testbed.netlink import Conversation, up

CLONE_NEWNET: Final = 0x4000_0000
CLONE_NEWUSER: Final = 0x1000_0000
_SELF: Final = "/proc/thread-self/ns/net"
USERNS_MARK: Final = "GENIE_IN_USERNS"
"""Set in the environment of a process that entered its own user namespace."""

_PR_SET_PDEATHSIG: Final = 1
_WELL: Final = "well"
_HINDRANCES: Final = (
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"),
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise NotReadyError(f"{what} failed: {os.strerror(number)}.", fix=remedy())


def unshare(flags: int) -> None:
    """Leave shared namespaces, the calling thread only (Python 3.11 has no os.unshare)."""
    _check(_libc().unshare(flags), "unshare")


def set_namespace(fd: int) -> None:
    """Move the calling thread into the network namespace behind `fd`."""
    _check(_libc().setns(fd, CLONE_NEWNET), "setns")


def enter_file(path: str) -> None:
    """Move the calling thread into the network namespace that a file (of /proc, say) stands for.

    Raises:
        NotReadyError: it is gone, or not ours to enter.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NotReadyError(f"the network namespace {path} cannot be entered: {error.strerror}.") from error
    try:
        set_namespace(fd)
    finally:
        os.close(fd)


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
    refused = _trial(lambda: unshare(CLONE_NEWNET))
    if refused is None:
        return ("userns", "in a user namespace") if os.environ.get(USERNS_MARK) else ("root", "privileged")
    as_user = _trial(enter_user_namespace)
    if as_user is None:
        return "userns", "unprivileged user namespaces are allowed"
    return "none", f"without a user namespace: {refused} In one: {as_user}"


def remedy() -> str:
    """What to type so that ordinary users may make namespaces."""
    for path, hindrance, line in _HINDRANCES:
        with contextlib.suppress(OSError):
            if Path(path).read_text(encoding="utf-8").strip() == hindrance:
                return f"sudo sysctl -w {line}"
    return "run as root; in a container, with --privileged (namespaces and a writable /proc/sys)"


def _trial(enter: Callable[[], None]) -> str | None:
    """Why a fresh process cannot enter namespaces and use them, None if it can; nothing changes here."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write_end, _attempt(enter).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as stream:
        words = stream.read()
    os.waitpid(pid, 0)
    return None if words == _WELL else words or "the trial ended without a word."


def _attempt(enter: Callable[[], None]) -> str:
    """A namespace that can be entered may still allow nothing (AppArmor), or not be configurable (containers)."""
    try:
        enter()
        unshare(CLONE_NEWNET)
        with Conversation() as conversation:
            conversation.say([up(1)])
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="utf-8")
    except NotReadyError as error:
        return error.what
    except OSError as error:
        return f"{error.filename}: {error.strerror}."
    return _WELL


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it ends."""
    _check(_libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")


def reexec_in_user_namespace(arguments: list[str]) -> NoReturn:
    """Start this program again inside a user namespace of its own, where it may make network namespaces.

    A process with threads cannot enter a user namespace, hence the fresh start through `genie.userns`.
    """
    os.execv(sys.executable, [sys.executable, "-m", "genie.userns", *arguments])  # noqa: S606


def enter_user_namespace() -> None:
    """Become root of a new user namespace and of a network namespace in it. Only before any thread exists."""
    uid, gid = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER | CLONE_NEWNET)
    Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1", encoding="utf-8")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1", encoding="utf-8")
    os.environ[USERNS_MARK] = "1"
