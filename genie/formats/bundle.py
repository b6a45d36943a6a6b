"""An experiment as one block of bytes, for hosts that share no files: a tar of its inputs, and JSON about it."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
from pathlib import Path
from typing import Any, Final

from genie.core.experiment import Experiment, ReplayRule
from genie.core.system import Profile
from genie.errors import InputError
from genie.formats.workload import find_traces

_ABOUT: Final = "about.json"
_FILES: Final = ("system", "memory", "network", "comm_groups", "testbed")
_PLAIN: Final = ("name", "scale_bytes", "model", "extended", "queues_per_dim")


def pack(experiment: Experiment, more: dict[str, Any]) -> bytes:
    """Everything that `unpack` needs elsewhere; `more` is plain JSON that goes along.

    Raises:
        InputError: a file cannot be read.
    """
    about: dict[str, Any] = {name: getattr(experiment, name) for name in _PLAIN}
    about |= {"profile": experiment.profile.value, "traces": _traces_name(experiment.traces), "more": more}
    about["replay"] = {"transport": experiment.replay.transport, "options": dict(experiment.replay.options)}
    files = {f"traces/{path.name}": path for path in find_traces(experiment.traces).values()}
    for role in _FILES:
        path = getattr(experiment, role)
        about[role] = None if path is None else f"{role}/{path.name}"
        if path is not None:
            files[f"{role}/{path.name}"] = path
    return _tar(about, files)


def _traces_name(traces: Path) -> str:
    return "traces" if traces.is_dir() else f"traces/{traces.name}"


def _tar(about: dict[str, Any], files: dict[str, Path]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        _add(archive, _ABOUT, json.dumps(about).encode())
        for name, path in files.items():
            try:
                _add(archive, name, path.read_bytes())
            except OSError as error:
                raise InputError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    return data.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def unpack(data: bytes, folder: Path) -> tuple[Experiment, dict[str, Any]]:
    """The experiment with its files in `folder`, and what went along.

    Raises:
        InputError: no bundle, or one with names that lead out of the folder.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for entry in archive:
                _put(archive, entry, folder)
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
    except (tarfile.TarError, OSError, ValueError) as error:
        raise InputError(f"is no bundle of an experiment: {error}.") from error
    return _experiment(about, folder), about["more"]


def _put(archive: tarfile.TarFile, entry: tarfile.TarInfo, folder: Path) -> None:
    target = folder / entry.name
    content = archive.extractfile(entry) if entry.isreg() else None
    if content is None or not target.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"a bundle with an entry {entry.name!r} is none of ours.")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content.read())


def _experiment(about: dict[str, Any], folder: Path) -> Experiment:
    paths = {role: None if about[role] is None else folder / about[role] for role in _FILES}
    fields: dict[str, Any] = {name: about[name] for name in _PLAIN} | paths
    return Experiment(
        source=None,
        traces=folder / about["traces"],
        profile=Profile(about["profile"]),
        replay=dataclasses.replace(ReplayRule(), **about["replay"]),
        **fields,
    )
