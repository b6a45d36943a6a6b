"""Looking for programs below a folder, within bounds: somebody may name the root of everything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

MOST_FOLDERS: Final = 8_000
"""Folders that are looked into; a checkout of ASTRA-sim with all that belongs to it has some thousands."""


def programs_below(folder: Path, names: Sequence[str]) -> list[Path]:
    """Executable files of these names below a folder, in the order of the names; hidden folders are left out."""
    found: dict[str, list[Path]] = {name: [] for name in names}
    for count, (place, folders, files) in enumerate(os.walk(folder)):
        if count >= MOST_FOLDERS:
            break
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in found.keys() & set(files):
            path = Path(place) / name
            if path.is_file() and os.access(path, os.X_OK):
                found[name].append(path)
    return [path for paths in found.values() for path in paths]
