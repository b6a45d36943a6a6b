"""The rdma-lab's kernel: user-mode Linux with Soft-RoCE, built from Debian's kernel source package, kept in a cache.

Nothing is installed and nobody needs to be root, except to install the packages that the build needs. A change of our
part of the configuration makes another kernel.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from genie.errors import NotReadyError

CONFIGURATION: Final = Path(__file__).with_name("rdma_kernel.config")
BUILD_PACKAGES: Final = ("gcc", "make", "bc", "flex", "bison", "libc6-dev", "libelf-dev", "libssl-dev", "xz-utils")
RUN_PACKAGES: Final = (
    *("ibverbs-providers", "ibverbs-utils", "rdma-core", "python3-pyverbs"),
    *("iproute2", "busybox-static", "tcpdump"),
)
PREFERRED_SOURCE: Final = "linux-source-6.12"
NEEDED_BYTES: Final = 4 << 30
"""Room for sources and objects while it is built; the kernel itself takes 9 MB."""

_SOURCE_NAME: Final = re.compile(r"^(linux-source-(\d+)\.(\d+)) ", re.MULTILINE)
_OLDEST: Final = (6, 1)
_LAST_LINES: Final = 8
_NAMED: Final = "GENIE_RDMA_KERNEL"

Say = Callable[[str], None]


def cache_folder() -> Path:
    """Where kernels are kept: XDG_CACHE_HOME/genie/rdma-lab."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "genie" / "rdma-lab"


def cached_kernel() -> Path:
    """Where the kernel of this configuration is or will be."""
    digest = hashlib.sha256(CONFIGURATION.read_bytes()).hexdigest()[:12]
    return cache_folder() / f"linux-{digest}"


def find_kernel() -> Path:
    """The kernel to boot: what GENIE_RDMA_KERNEL names, or the cached one.

    Raises:
        NotReadyError: there is none.
    """
    named = os.environ.get(_NAMED)
    kernel = Path(named) if named else cached_kernel()
    if not os.access(kernel, os.X_OK) or not kernel.is_file():
        fix = f"unset {_NAMED}, or build one: make rdma-lab" if named else "make rdma-lab"
        raise NotReadyError("the rdma-lab has no kernel yet.", where=str(kernel), fix=fix)
    return kernel


def hindrance() -> str:
    """Why the lab can never run on this machine, however much is installed; "" if it can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"user-mode Linux needs Linux on x86-64, this is {platform.system()} on {platform.machine()}"
    if shutil.which("apt-get") is None:
        return "the kernel is built from Debian's source package, and this is no Debian"
    return ""


def build(say: Say = lambda _: None) -> Path:
    """Build the kernel unless it is in the cache; where it is.

    Raises:
        NotReadyError: this machine cannot, a package or space is missing, or the build failed: with its last lines.
    """
    if why := hindrance():
        raise NotReadyError(f"{why}.", fix="run the lab on Debian or Ubuntu on a PC; nothing else of Genie needs it.")
    target = cached_kernel()
    _install(RUN_PACKAGES if target.is_file() else (*RUN_PACKAGES, *BUILD_PACKAGES), say)
    if target.is_file():
        say(f"the kernel is there: {target}")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(target.parent).free
    if free_bytes < NEEDED_BYTES:
        raise NotReadyError(
            f"{free_bytes >> 20} MiB are free, {NEEDED_BYTES >> 20} are needed.", where=str(target.parent)
        )
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent) as folder:
        made = _make(_unpack(Path(folder), say), say)
        made.rename(target)  # whole or not at all, also when two build at once
    say(f"the kernel is there: {target} ({time.monotonic() - begun:.0f} s)")
    return target


def _install(names: Sequence[str], say: Say) -> None:
    """What the build and the lab need; only root can, others are told."""
    missing = missing_packages(names)
    if not missing:
        return
    command = f"sudo apt-get install -y --no-install-recommends {' '.join(missing)}"
    if os.geteuid() != 0:
        raise NotReadyError(f"packages are missing: {' '.join(missing)}.", fix=command)
    say(f"installing {' '.join(missing)}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
        _run(["apt-get", "-q", *words], Path("/"), fix=command, environment=environment)


def missing_packages(names: Sequence[str]) -> list[str]:
    """Those of some Debian packages that are not installed."""
    done = subprocess.run(  # noqa: S603 - fixed words
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\\n", *names],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    installed = {line.split()[0] for line in done.stdout.splitlines() if line.endswith(" installed")}
    return [name for name in names if name not in installed]


def choose_source(listing: str) -> str:
    """The source package to build from: the preferred one, else the newest of `apt-cache search`'s listing.

    Raises:
        NotReadyError: none is new enough.
    """
    found = {(int(major), int(minor)): name for name, major, minor in _SOURCE_NAME.findall(listing)}
    names = {version: name for version, name in found.items() if version >= _OLDEST}
    if not names:
        raise NotReadyError(
            "no kernel source package is to be had.",
            fix="sudo apt-get update; is a Debian or Ubuntu archive configured?",
        )
    return PREFERRED_SOURCE if PREFERRED_SOURCE in names.values() else names[max(names)]


def _unpack(folder: Path, say: Say) -> Path:
    """Fetch and unpack the sources; where they are."""
    listing = _run(["apt-cache", "search", "--names-only", "^linux-source-[0-9.]+$"], folder, fix="sudo apt-get update")
    package = choose_source(listing)
    say(f"fetching {package}")
    _run(["apt-get", "-q", "download", package], folder, fix="sudo apt-get update")
    _run(["dpkg-deb", "-x", *(path.name for path in folder.glob("*.deb")), "."], folder)
    archive = next(iter(sorted((folder / "usr" / "src").glob("**/linux-source-*.tar.*"))), None)
    if archive is None:
        raise NotReadyError(f"{package} has no sources in it.", fix="please report it.")
    sources = folder / "linux"
    sources.mkdir()
    say(f"unpacking {archive.name}")
    _run(["tar", "-xf", str(archive), "-C", str(sources), "--strip-components=1"], folder)
    archive.unlink()
    return sources


def _make(sources: Path, say: Say) -> Path:
    """Configure and compile; the stripped kernel."""
    shutil.copyfile(CONFIGURATION, sources / ".config")
    _run(["make", "ARCH=um", "olddefconfig"], sources)
    cores = len(os.sched_getaffinity(0))
    say(f"compiling with {cores} cores: about {11 // cores} minutes")
    _run(["make", "ARCH=um", f"-j{cores}", "linux"], sources)
    kernel = sources / "linux"
    _run(["strip", str(kernel)], sources)
    return kernel


def _run(words: Sequence[str], folder: Path, fix: str = "", environment: dict[str, str] | None = None) -> str:
    """Run a command to its end; what it printed.

    Raises:
        NotReadyError: it is not there or failed: with its last lines.
    """
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            list(words), cwd=folder, capture_output=True, text=True, check=False, errors="replace", env=environment
        )
    except OSError as error:
        raise NotReadyError(f"{words[0]} does not start: {error.strerror}.", fix=fix) from error
    if done.returncode:
        last = " / ".join((done.stderr or done.stdout).strip().splitlines()[-_LAST_LINES:])
        raise NotReadyError(f"{' '.join(words[:3])} failed with {done.returncode}: {last}", where="rdma-lab", fix=fix)
    return done.stdout


def main() -> int:
    """`make rdma-lab`: build, and say what happens."""
    try:
        build(lambda words: print(f"rdma-lab: {words}", file=sys.stderr, flush=True))  # noqa: T201 - a command
    except NotReadyError as error:
        print(f"rdma-lab: {error}", file=sys.stderr)  # noqa: T201 - a command
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["build", "cached_kernel", "find_kernel", "main"]
