"""Runs a command where RDMA devices exist in software: in a user-mode Linux that sees this machine's files.

The guest is an ordinary process. It boots in under a second, sees the host's files as they are (what it writes stays
in its memory), shares one folder for real, runs one command and hands back its exit code.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from genie.errors import NotReadyError, RunError
from genie.testbed.rdma_kernel import find_kernel

BUSYBOX: Final = Path("/bin/busybox")
GUEST_SCRIPT: Final = Path(__file__).with_name("rdma_guest.sh")
MIN_MEMORY_BYTES: Final = 256 << 20
MARK: Final = "GENIE_IN_RDMA_LAB"
"""Set in the environment of what runs inside."""

LOUD: Final = "GENIE_RDMA_VERBOSE"
"""Set this to see what the guest's kernel says."""

_LAST_WORDS_BYTES: Final = 600
_ADMINISTRATORS_PATH: Final = "/usr/local/sbin:/usr/sbin:/sbin"
"""Where tc and its like are, which an ordinary user's PATH leaves out; in the guest everybody is root."""

_PASSED_ON: Final = ("PATH", "HOME", "LANG", "CI", "VIRTUAL_ENV", "HYPOTHESIS_PROFILE")
_END_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class GuestOptions:
    """How a guest runs.

    Attributes:
        memory_bytes: its RAM, taken from the host as it is used.
        timeout_s: it is ended after so long; None: never.
        folder: where the command starts; None: the current one.
        environment: variables for the command, besides PATH, HOME, LANG and CI, which are passed on.
        kernel: instead of the cached one.
    """

    memory_bytes: int = 2 << 30
    timeout_s: float | None = 600.0
    folder: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    kernel: Path | None = None


def inside_guest() -> bool:
    """Whether this process runs in a guest."""
    return bool(os.environ.get(MARK))


def run_in_guest(
    command: Sequence[str], share: Path, options: GuestOptions | None = None, output: IO[bytes] | None = None
) -> int:
    """Boot a guest, run a command in it; the command's exit code.

    Args:
        command: program and arguments; no shell looks at them.
        share: a folder that the guest may write to; it has the same path there.
        options: how.
        output: where the command's output goes; None: ours.

    Raises:
        NotReadyError: no kernel, or something else is missing: names it.
        RunError: the guest died, or the time was over: with its last words where they were not shown.
    """
    options = options or GuestOptions()
    kernel = options.kernel or find_kernel()
    _require_tools()
    share = share.resolve()
    if any(letter.isspace() for letter in str(share)):
        raise NotReadyError(
            "the shared folder's path has a space, which a kernel's command line cannot.", where=str(share)
        )
    with _control_folder(share, command, options) as control:
        _boot(kernel, share, control, options, output)
        try:
            return int((control / "exit-code").read_text(encoding="ascii"))
        except (OSError, ValueError):
            raise RunError(
                f"the guest died before the command ended.{_last_words(output)}",
                where="rdma-lab",
                fix=f"give it more memory, or look at what its kernel says: {LOUD}=1",
            ) from None


def _require_tools() -> None:
    if not BUSYBOX.exists():
        raise NotReadyError(
            "busybox is not installed; the guest begins with it.", fix="sudo apt install busybox-static"
        )


@contextlib.contextmanager
def _control_folder(share: Path, command: Sequence[str], options: GuestOptions) -> Iterator[Path]:
    """What the guest reads, and where it leaves its exit code: a folder in the shared one, gone afterwards."""
    try:
        share.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".guest-", dir=share))
    except OSError as error:
        raise NotReadyError(f"cannot be written: {error.strerror}.", where=str(share)) from error
    try:
        (folder / "command").write_text(_script(command, options), encoding="utf-8")
        shutil.copyfile(GUEST_SCRIPT, folder / "init")
        (folder / "init").chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _script(command: Sequence[str], options: GuestOptions) -> str:
    """What the guest's shell runs: variables, the folder, the command."""
    variables = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    if not sys.stdout.isatty():  # inside it is a terminal all the same
        variables |= {"TERM": "dumb", "NO_COLOR": "1"}
    variables["PATH"] = f"{variables.get('PATH', os.defpath)}:{_ADMINISTRATORS_PATH}"
    variables["COLUMNS"] = str(shutil.get_terminal_size().columns)
    variables |= {MARK: "1", "TMPDIR": "/tmp/.genie-guest", **options.environment}  # noqa: S108 - inside the guest
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    folder = shlex.quote(str((options.folder or Path.cwd()).resolve()))
    return "\n".join([*lines, f"cd {folder} || exit 126", shlex.join(command), ""])


def _boot(kernel: Path, share: Path, control: Path, options: GuestOptions, output: IO[bytes] | None) -> None:
    """The guest's whole life.

    Each of its consoles wants descriptors of its own: one that is shared ends it.
    """
    if options.memory_bytes < MIN_MEMORY_BYTES:
        raise NotReadyError(f"a guest needs {MIN_MEMORY_BYTES >> 20} MiB, not {options.memory_bytes >> 20}.")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="genie-uml-", dir=_memory_folder()))
        nothing = [stack.enter_context(Path(os.devnull).open("rb")).fileno() for _ in range(2)]
        kernel_says = os.dup(2)
        stack.callback(os.close, kernel_says)
        loud = bool(os.environ.get(LOUD))
        words = [
            *(str(kernel), f"mem={options.memory_bytes >> 20}M", "rootfstype=hostfs", "rootflags=/", "ro"),
            *("random.trust_cpu=on", "console=tty0", "con=null", "con1=fd:0,fd:1", f"con2=fd:{nothing[0]},fd:2"),
            *((f"con0=fd:{nothing[1]},fd:{kernel_says}",) if loud else ("quiet", "loglevel=1")),
            *(f"GENIE_SHARE={share}", f"GENIE_CONTROL={control}", f"init={control / 'init'}"),
        ]
        try:
            with _on_one_processor(), _all_descriptors():
                guest = subprocess.Popen(  # noqa: S603 - our own kernel
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT if output is not None else None,
                    env={
                        "PATH": os.environ.get("PATH", ""),
                        "HOME": folder,
                        "TMPDIR": folder,
                    },
                    pass_fds=(*nothing, kernel_says),
                    start_new_session=True,
                )
        except OSError as error:
            raise NotReadyError(f"the kernel does not start: {error.strerror}.", where=str(kernel)) from error
        stack.callback(_end, guest)
        _await(guest, options.timeout_s, output)


@contextlib.contextmanager
def _all_descriptors() -> Iterator[None]:
    """Let a child have as many open files as it may: the guest's are its kernel's, and 1,024 are too few for it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def _on_one_processor() -> Iterator[None]:
    """What starts meanwhile stays on one processor, another one for each process that boots guests.

    Only one of a guest's parts runs at any time; on several processors each would have to wake the next one's, which
    takes several times as long as going on on its own.
    """
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {allowed[os.getpid() % len(allowed)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _await(guest: subprocess.Popen[bytes], timeout_s: float | None, output: IO[bytes] | None) -> None:
    try:
        guest.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise RunError(
            f"the guest was ended after {timeout_s:.0f} s.{_last_words(output)}",
            where="rdma-lab",
            fix="raise the time-out, or find out what hangs.",
        ) from None


def _end(guest: subprocess.Popen[bytes]) -> None:
    """Nothing of it is left: its processes are those of its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(guest.pid, signal.SIGKILL)
    guest.wait(_END_S)


def _memory_folder() -> str | None:
    """The guest's memory is a file: in RAM if there is room for one."""
    folder = Path("/dev/shm")  # noqa: S108 - a directory of random name is made in it
    return str(folder) if folder.is_dir() and os.access(folder, os.W_OK) else None


def _last_words(output: IO[bytes] | None) -> str:
    """The end of what it printed, if that went into a file."""
    if output is None or not output.seekable():
        return ""
    try:
        with Path(output.name).open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _LAST_WORDS_BYTES))
            words = stream.read().decode(errors="replace").split("\n", 1)[-1].strip()
    except (OSError, TypeError):
        return ""
    return f" Its last words: {words}" if words else ""
