"""Other tools' lists of hosts -> a lab: Slurm node lists, MPI hostfiles, Ansible inventories (YAML or INI)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from genie.core.testbed import MAX_NODES
from genie.errors import InputError
from genie.formats.textfile import read_text
from genie.testbed.lab import LabFile, parse_lab

KINDS: Final = ("slurm", "hostfile", "ansible")
_BRACKET: Final = re.compile(r"\[([0-9,:-]+)\]")
_MPICH: Final = re.compile(r"^(\S+?):(\d+)$")
_SLOTS: Final = re.compile(r"\bslots\s*=\s*(\d+)")
_VARIABLE: Final = re.compile(r"(\w+)=(\"[^\"]*\"|'[^']*'|\S+)")

Found = dict[str, dict[str, Any]]
"""Host -> what is known of it."""


def import_lab(kind: str, source: str, name: str) -> LabFile:
    """A lab from another tool's list.

    Args:
        kind: one of `KINDS`.
        source: for slurm the list itself ("node[01-04,07]", as SLURM_JOB_NODELIST), else a file.
        name: of the lab.

    Raises:
        InputError: cannot be read, or no host in it.
    """
    if kind == "slurm":
        found: Found = {host: {} for host in expand(source)}
    else:
        text = read_text(Path(source))
        found = _hostfile(text, source) if kind == "hostfile" else _ansible(text, source)
    if not found:
        raise InputError("names no host.", where=source)
    hosts = [{"name": host, "management": host} | about for host, about in found.items()]
    return parse_lab({"name": name, "kind": "lab", "hosts": hosts}, source)


def expand(text: str) -> list[str]:
    """The names that a Slurm node list stands for, in its order; numbers keep their leading zeros.

    Raises:
        InputError: unbalanced brackets, a range that runs backwards, or more hosts than a testbed has.
    """
    names: list[str] = []
    for pattern in _split(text):
        for name in _expand(pattern, text):
            names.append(name)
            if len(names) > MAX_NODES:
                raise InputError(f"names more than {MAX_NODES} hosts.", where=text[:60])
    return list(dict.fromkeys(names))


def _split(text: str) -> Iterator[str]:
    """At the commas outside of brackets."""
    for part in re.split(r",(?![^\[]*\])", text):
        if part.strip():
            yield part.strip()


def _expand(pattern: str, where: str) -> Iterator[str]:
    found = _BRACKET.search(pattern)
    if found is None:
        if set("[]") & set(pattern):
            raise InputError(f"{pattern!r} is no node list.", where=where[:60], fix='write it as in "node[01-04,07]".')
        yield pattern
        return
    for number in _numbers(found[1], where):
        yield from _expand(pattern[: found.start()] + number + pattern[found.end() :], where)


def _numbers(text: str, where: str) -> Iterator[str]:
    for part in text.replace(":", "-").split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()) or int(first) > int(last):
            raise InputError(f"{part!r} is no range.", where=where[:60])
        if int(last) - int(first) > MAX_NODES:
            raise InputError(f"names more than {MAX_NODES} hosts.", where=where[:60])
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


def _hostfile(text: str, where: str) -> Found:
    """Open MPI ("host slots=4") or MPICH ("host:4"); a host named again has more slots."""
    found: Found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        host = words.split()[0]
        mpich, slots = _MPICH.match(host), _SLOTS.search(words)
        if mpich:
            host = mpich[1]
        elif len(words.split()) > 1 and slots is None:
            raise InputError(f"{words[:40]!r} is no line of a hostfile.", where=f"{where}, line {number}")
        ranks = int(mpich[2]) if mpich else int(slots[1]) if slots else 1
        found.setdefault(host, {"ranks": 0})["ranks"] += ranks
    return found


def _ansible(text: str, where: str) -> Found:
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        content = None
    found = dict(_groups(content, 0)) if isinstance(content, dict) else dict(_ini(text))
    return {host: _of_ansible(variables, where) for host, variables in found.items()}


def _groups(group: Any, depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Hosts of a YAML inventory: mappings of groups, each with hosts and children."""
    if depth > 64 or not isinstance(group, dict):  # noqa: PLR2004 - deeper is no inventory
        return
    for key, value in group.items():
        if key == "hosts" and isinstance(value, dict):
            for pattern, variables in value.items():
                for host in expand(str(pattern)):
                    yield host, variables if isinstance(variables, dict) else {}
        elif key != "vars":
            yield from _groups(value, depth + 1)


def _ini(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Hosts of an INI inventory, but not its [group:vars] and [group:children]."""
    listing = True
    for line in text.splitlines():
        words = line.partition("#")[0].partition(";")[0].strip()
        if re.fullmatch(r"\[[\w.-]+(:\w+)?\]", words):
            listing = ":" not in words
        elif words and listing:
            variables = {key: value.strip("\"'") for key, value in _VARIABLE.findall(words)}
            for host in expand(words.split()[0]):
                yield host, variables


def _of_ansible(variables: dict[str, Any], where: str) -> dict[str, Any]:
    """What an inventory tells of a host: how to reach it; a NIC by genie_address, genie_rdma, genie_netdev."""
    about: dict[str, Any] = {}
    if "ansible_host" in variables:
        about["management"] = str(variables["ansible_host"])
    if "genie_ranks" in variables:
        about["ranks"] = variables["genie_ranks"]
    nic = {key: str(variables[f"genie_{key}"]) for key in ("netdev", "rdma", "address") if f"genie_{key}" in variables}
    if "address" in nic:
        try:
            ipaddress.ip_address(nic["address"])
        except ValueError as error:
            raise InputError(f"genie_address {nic['address']!r} is no address.", where=where) from error
    return about | ({"nics": [nic]} if nic else {})
