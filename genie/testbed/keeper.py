"""Testbeds that stay up between commands: a background process holds the namespaces; when it ends they are gone.

So nothing can be left behind: after a kill -9 of the holder only its state file remains, and the next command that
looks takes that away.
"""

from __future__ import annotations

import json
import os
import select
import signal
from pathlib import Path
from typing import Any, Final

from genie.core.testbed import Testbed
from genie.errors import InputError, NotReadyError
from genie.testbed.namespaces import USERNS_MARK, capability, enter_user_namespace

DOWN_TIMEOUT_S: Final = 5.0


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
    if any(row["name"] == testbed.name for row in kept()):
        raise InputError(f"testbed {testbed.name} is up already.", fix=f"genie testbed down {testbed.name}")
    kind, why = capability()
    if kind == "none":
        raise NotReadyError(f"no namespaces here: {why}.", fix="run as root, or allow unprivileged user namespaces.")
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _become_holder(testbed, kind, write_end)
    os.close(write_end)
    with os.fdopen(read_end) as stream:
        answer = json.loads(stream.read() or '{"error": "the holder ended without a word"}')
    if "error" in answer:
        raise NotReadyError(answer["error"], where=testbed.name)
    return [f"testbed {testbed.name} is up, held by process {answer['pid']}", *_usage(answer)]


def _usage(state: dict[str, Any]) -> list[str]:
    lines = [f"  {host}: {enter_command(state, host)} COMMAND" for host in list(state["hosts"])[:4]]
    more = [f"  and {len(state['hosts']) - 4} more hosts"] if len(state["hosts"]) > 4 else []  # noqa: PLR2004
    return [*lines, *more, f"take it down with: genie testbed down {state['name']}"]


def enter_command(state: dict[str, Any], host: str) -> str:
    """The shell command that runs something on a host."""
    user = f"-t {state['pid']} -U --preserve-credentials " if state["kind"] == "userns" else ""
    return f"nsenter {user}--net=/proc/{state['pid']}/fd/{state['hosts'][host]['fd']}"


def _become_holder(testbed: Testbed, kind: str, write_end: int) -> None:
    """The life of the holder: never returns."""
    os.setsid()
    try:
        if kind == "userns" and not os.environ.get(USERNS_MARK):
            enter_user_namespace()
        state, fabric = _hold(testbed, kind)
    except (NotReadyError, OSError) as error:
        _say(write_end, {"error": str(error)})
        os._exit(3)
    _detach()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    _say(write_end, state)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    fabric.close()
    _state_file(testbed.name).unlink(missing_ok=True)
    os._exit(0)


def _hold(testbed: Testbed, kind: str) -> tuple[dict[str, Any], Any]:
    from genie.testbed.emulated import EmulatedFabric  # noqa: PLC0415 - pyroute2 is slow to import

    fabric = EmulatedFabric(testbed)
    fabric.up()
    hosts = {h: {"address": fabric.address(h), "fd": fabric.namespace_fd(h)} for h in testbed.hosts}
    state = {"name": testbed.name, "pid": os.getpid(), "kind": kind, "started": _started(os.getpid()), "hosts": hosts}
    path = _state_file(testbed.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(state), encoding="utf-8")
    return state, fabric


def _say(write_end: int, message: dict[str, Any]) -> None:
    with os.fdopen(write_end, "w") as stream:
        stream.write(json.dumps(message))


def _detach() -> None:
    """Let go of the terminal, so that pipes that wait for its end are not kept open."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def _state_file(name: str) -> Path:
    return state_folder() / f"{name}.json"


def _started(pid: int) -> str | None:
    """Start time of a process (field 22 of its stat): tells it from a later one with the same number."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[19]


def kept() -> list[dict[str, Any]]:
    """Testbeds that are up; state files of holders that are gone are removed."""
    rows = []
    folder = state_folder()
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        state = json.loads(path.read_text(encoding="utf-8"))
        if _started(state["pid"]) != state["started"]:
            path.unlink(missing_ok=True)
            continue
        host = next(iter(state["hosts"]))
        rows.append(
            {
                "name": state["name"],
                "pid": state["pid"],
                "hosts": len(state["hosts"]),
                "enter": enter_command(state, host),
            }
        )
    return rows


def take_down(name: str | None) -> list[str]:
    """End the holder of that testbed, or all of them.

    Raises:
        InputError: none of that name is up.
    """
    rows = [row for row in kept() if name is None or row["name"] == name]
    if not rows and name is not None:
        raise InputError(f"no testbed {name} is up.", fix="genie testbed list")
    for row in rows:
        _end(row["pid"])
    return [f"testbed {row['name']} is down" for row in rows] or ["no testbed was up"]


def _end(pid: int) -> None:
    """Ask a process that is not our child to end, wait for it; at last, kill it."""
    fd = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGTERM)
        if not select.select([fd], [], [], DOWN_TIMEOUT_S)[0]:
            os.kill(pid, signal.SIGKILL)
            select.select([fd], [], [], DOWN_TIMEOUT_S)
    finally:
        os.close(fd)
