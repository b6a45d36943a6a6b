"""Testbeds that stay up between commands: a background process holds the namespaces; when it ends they are gone.

So nothing can be left behind: after a kill -9 of the holder only its state file remains, and the next command that
looks takes that away.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from genie.core.testbed import Testbed
from genie.errors import GenieError, InputError, NotReadyError
from genie.testbed.namespaces import USERNS_MARK, capability, enter_user_namespace, remedy

DOWN_TIMEOUT_S: Final = 5.0
_SHOWN_HOSTS: Final = 4
_MAX_FDS: Final = 1 << 16


def state_folder() -> Path:
    """Where holders leave word of themselves."""
    if os.geteuid() == 0 and not os.environ.get(USERNS_MARK):
        return Path("/run/genie")
    base = os.environ.get("XDG_RUNTIME_DIR") or str(Path.home() / ".cache")
    return Path(base) / "genie"


def keep_up(testbed: Testbed) -> list[str]:
    """Bring a testbed up in a background process; lines that say how to use it.

    Raises:
        InputError: one of that name is up already.
        NotReadyError: it cannot be brought up here.
    """
    kind, why = capability()
    if kind == "none":
        raise NotReadyError(f"no namespaces here: {why}", fix=remedy())
    with _alone():
        if any(row["name"] == testbed.name for row in kept()):
            raise InputError(f"testbed {testbed.name} is up already.", fix=f"genie testbed down {testbed.name}")
        answer = _start_holder(testbed, kind)
    if "error" in answer:
        raise NotReadyError(answer["error"], where=testbed.name)
    return [f"testbed {testbed.name} is up, held by process {answer['pid']}", *_usage(answer)]


def _usage(state: dict[str, Any]) -> list[str]:
    hosts = [name for name, node in state["nodes"].items() if "address" in node]
    lines = [f"  {host}: {enter_command(state, host)} COMMAND" for host in hosts[:_SHOWN_HOSTS]]
    more = [f"  and {len(hosts) - _SHOWN_HOSTS} more hosts"] if len(hosts) > _SHOWN_HOSTS else []
    return [*lines, *more, f"take it down with: genie testbed down {state['name']}"]


def enter_command(state: dict[str, Any], node: str) -> str:
    """The shell command that runs something on a host or switch."""
    user = f"-t {state['pid']} -U --preserve-credentials " if state["kind"] == "userns" else ""
    return f"nsenter {user}--net=/proc/{state['pid']}/fd/{state['nodes'][node]['fd']}"


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Only one at a time brings testbeds up; the kernel lets go when the process ends."""
    folder = state_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise NotReadyError(f"cannot be written: {error.strerror}.", where=str(folder)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _start_holder(testbed: Testbed, kind: str) -> dict[str, Any]:
    """Fork it twice, so that it is nobody's child here and never lingers as one; what it says when it is ready."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.fork() == 0:
                _be_holder(testbed, kind, write_end)
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    with os.fdopen(read_end, encoding="utf-8") as stream:
        words = stream.read()
    answer: dict[str, Any] = json.loads(words) if words else {"error": "its process ended without a word."}
    return answer


def _be_holder(testbed: Testbed, kind: str, write_end: int) -> NoReturn:
    """The life of the holder."""
    code = 70
    try:
        path = _state_file(testbed.name)
        _detach(write_end)
        _hold(testbed, kind, path, write_end)
        code = 0
    except GenieError as error:
        _say(write_end, {"error": error.what})
    except OSError as error:
        _say(write_end, {"error": f"{error.filename or 'its process'}: {error.strerror}."})
    finally:
        os._exit(code)


def _detach(write_end: int) -> None:
    """Let go of everything of the process that forked us: terminal, pipes that wait for our end, locks, folder."""
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, write_end)
    os.closerange(write_end + 1, _MAX_FDS)


def _hold(testbed: Testbed, kind: str, path: Path, write_end: int) -> None:
    """Bring it up, say so, wait for a signal, take it down."""
    if kind == "userns" and not os.environ.get(USERNS_MARK):
        enter_user_namespace()
    from genie.testbed.emulated import EmulatedFabric  # noqa: PLC0415 - pyroute2 is slow to import

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    with EmulatedFabric(testbed) as fabric:
        state = _state(fabric, kind)
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(state), encoding="utf-8")
        unfinished.rename(path)
        try:
            _say(write_end, state)
            signal.sigwait({signal.SIGTERM, signal.SIGINT})
        finally:
            path.unlink(missing_ok=True)


def _state(fabric: Any, kind: str) -> dict[str, Any]:
    nodes = {node.name: {"fd": fabric.namespace_fd(node.name)} for node in fabric.testbed.nodes}
    for host in fabric.testbed.hosts:
        nodes[host]["address"] = fabric.address(host)
    pid = os.getpid()
    return {"name": fabric.testbed.name, "pid": pid, "kind": kind, "started": _started(pid), "nodes": nodes}


def _say(write_end: int, message: dict[str, Any]) -> None:
    with os.fdopen(write_end, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(message))


def _state_file(name: str) -> Path:
    return state_folder() / f"{name}.json"


def _started(pid: int) -> str | None:
    """Start time of a process (field 22 of its stat): tells it from a later one with the same number."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()
    return None if state == "Z" else fields[18]


def _states() -> list[dict[str, Any]]:
    """What the living holders left word of; the files of those that are gone are removed."""
    folder, states = state_folder(), []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        state = _read_state(path)
        if state is None:
            path.unlink(missing_ok=True)
        else:
            states.append(state)
    return states


def _read_state(path: Path) -> dict[str, Any] | None:
    """None if the holder is gone, or the file none of ours."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        alive = _started(state["pid"]) == state["started"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return state if alive and "nodes" in state else None


def kept() -> list[dict[str, Any]]:
    """Testbeds that are up: name, holder's pid, number of hosts, and how to enter the first."""
    rows = []
    for state in _states():
        hosts = [name for name, node in state["nodes"].items() if "address" in node]
        rows.append(
            {
                "name": state["name"],
                "pid": state["pid"],
                "hosts": len(hosts),
                "enter": enter_command(state, hosts[0]),
            }
        )
    return rows


def nodes_of(name: str) -> list[dict[str, Any]]:
    """Hosts and switches of a testbed that is up: node, address (of hosts), and how to enter it.

    Raises:
        InputError: none of that name is up.
    """
    for state in _states():
        if state["name"] == name:
            return [
                {"node": node, "address": about.get("address", ""), "enter": enter_command(state, node)}
                for node, about in state["nodes"].items()
            ]
    raise InputError(f"no testbed {name} is up.", fix="genie testbed list")


def take_down(name: str | None) -> list[str]:
    """End the holder of that testbed, or all of them.

    Raises:
        InputError: none of that name is up.
    """
    states = [state for state in _states() if name is None or state["name"] == name]
    if not states and name is not None:
        raise InputError(f"no testbed {name} is up.", fix="genie testbed list")
    for state in states:
        _end(state)
        _state_file(state["name"]).unlink(missing_ok=True)
    return [f"testbed {state['name']} is down" for state in states] or ["no testbed was up"]


def _end(state: dict[str, Any]) -> None:
    """Ask a process that is not our child to end, wait for it; at last, kill it. It may be gone at any moment."""
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(state["pid"])
        try:
            if _started(state["pid"]) != state["started"]:
                return
            signal.pidfd_send_signal(fd, signal.SIGTERM)
            if not select.select([fd], [], [], DOWN_TIMEOUT_S)[0]:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                select.select([fd], [], [], DOWN_TIMEOUT_S)
        finally:
            os.close(fd)
