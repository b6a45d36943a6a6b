"""How the kernel is compiled, and where the result is kept.

Only this module imports numba. numba keeps a compiled function on disk until the file changes in which that function
is; it does not notice a change in the file of a function that it calls. So the folder in which the kernel is kept bears
a digest of all of the kernel's files and of numba's version: another kernel looks elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numba

HERE: Final = Path(__file__).resolve().parent
_CONFIG: Final[Any] = numba.config
_OPTIONS: Final[dict[str, Any]] = {"error_model": "numpy"}

jit = numba.njit(**(_OPTIONS | {"no_cpython_wrapper": True}))
"""Compiles what only compiled code calls."""


def digest() -> str:
    """Of the kernel's files and numba's version: another one means that what was compiled is out of date."""
    found = hashlib.sha256(numba.__version__.encode())
    for path in sorted(HERE.glob("*.py")):
        source = path.read_bytes()
        found.update(f"\n{path.name} {len(source)}\n".encode())
        found.update(source)
    return found.hexdigest()[:16]


def cache_folder() -> Path | None:
    """Where the compiled kernel is kept, the first that can be written; None if none can.

    NUMBA_CACHE_DIR, if the user set it, then beside the package's byte code, then the user's cache.
    """
    name = f"genie-kernel-{digest()}"
    asked = [Path(_CONFIG.CACHE_DIR)] if _CONFIG.CACHE_DIR else []
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return next((at / name for at in (*asked, HERE / "__pycache__", cache / "genie") if _writable(at / name)), None)


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Functions decorated within are kept there; numba's settings are the user's again afterwards."""
    before = {name: getattr(_CONFIG, name, "") for name in ("CACHE_DIR", "CACHE_LOCATOR_CLASSES")}
    _CONFIG.CACHE_DIR, _CONFIG.CACHE_LOCATOR_CLASSES = str(folder), ""
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(_CONFIG, name, value)


def entry(function: Callable[..., Any]) -> Any:
    """Compile what Python calls; kept on disk where there is a place for it."""
    folder = cache_folder()
    if folder is None:
        return numba.njit(**_OPTIONS)(function)
    with _kept_in(folder):
        return numba.njit(**_OPTIONS, cache=True)(function)


def is_kept(compiled: Any) -> bool:
    """Whether an earlier run compiled these very files."""
    kept = getattr(compiled, "_cache", None)
    folder = getattr(kept, "cache_path", None)
    if folder is None:
        return False
    function = compiled.py_func
    source = Path(function.__code__.co_filename)
    made = [path.stat().st_mtime for path in Path(folder).glob(f"{source.stem}.{function.__name__}-*.nbi")]
    return max(made, default=0.0) > source.stat().st_mtime
