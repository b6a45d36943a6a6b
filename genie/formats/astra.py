"""ASTRA-sim's own configuration files, read with its defaults and refused where it would abort."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml

from genie.core.netmodel import Dimension, DimensionModel, Estimate, Topology
from genie.core.system import MemoryKind, Optimization, RemoteMemory, Scheduling, System
from genie.core.workload import CollectiveKind, RankTrace
from genie.errors import InputError
from genie.formats.chakra import read_trace
from genie.formats.comm_groups import read_json
from genie.formats.workload import find_traces
from genie.units import GB, astra_gbps_to_bps, bps_to_astra_gbps

_COLLECTIVES: Final = {
    "all-reduce": CollectiveKind.ALL_REDUCE,
    "all-gather": CollectiveKind.ALL_GATHER,
    "reduce-scatter": CollectiveKind.REDUCE_SCATTER,
    "all-to-all": CollectiveKind.ALL_TO_ALL,
}
_TERA: Final = 1e12


def read_yaml(path: Path | str) -> Any:
    """A YAML file's content, loaded safely.

    Raises:
        InputError: missing or malformed.
    """
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"is no YAML: {' '.join(str(error).split())}.", where=str(path)) from error


def read_network(path: Path | str, *, aware: bool = False) -> DimensionModel:
    """An analytical network file: lists of topology, npus_count, bandwidth (GB/s, 2**30) and latency (ns).

    Raises:
        InputError: a key missing, scalars instead of lists, unequal lengths, a value out of range.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise InputError("a network file is a mapping.", where=str(path))
    lists = {key: _network_list(content, key, path) for key in ("topology", "npus_count", "bandwidth", "latency")}
    if len({len(values) for values in lists.values()}) != 1 or not lists["topology"]:
        raise InputError(
            "topology, npus_count, bandwidth and latency need one entry a dimension each.", where=str(path)
        )
    try:
        return DimensionModel(tuple(map(_dimension, *lists.values())), aware)
    except InputError as error:
        raise InputError(error.what, where=str(path), fix=error.fix) from error


def _network_list(content: dict[str, Any], key: str, path: Path | str) -> list[Any]:
    if key not in content:
        raise InputError(f"the key {key} is missing.", where=str(path))
    values: Any = content[key]
    if not isinstance(values, list):
        raise InputError(
            f"{key} must be a list (ASTRA-sim aborts on a scalar).", where=str(path), fix=f"{key}: [ ... ]"
        )
    return values


def _dimension(topology: Any, size: Any, bandwidth: Any, latency: Any) -> Dimension:
    if topology not in list(Topology):
        raise InputError(f"unknown topology {topology!r}.", fix="use Ring, FullyConnected or Switch.")
    if type(size) is not int:
        raise InputError(f"npus_count {size!r} is no whole number.")
    for name, value in (("bandwidth", bandwidth), ("latency", latency)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{name} {value!r} is no number.")
    bandwidth_bps = Estimate(astra_gbps_to_bps(float(bandwidth)))
    return Dimension(Topology(topology), size, bandwidth_bps, Estimate(float(latency)))


def write_network(path: Path | str, model: DimensionModel, comment: str = "") -> None:
    """Write a network file that ASTRA-sim reads; fitted values keep their standard errors as comments."""
    dims = model.dimensions
    bandwidth = [bps_to_astra_gbps(d.bandwidth_bps.value) for d in dims]
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [
        f"topology: [ {', '.join(d.topology.value for d in dims)} ]",
        f"npus_count: [ {', '.join(str(d.size) for d in dims)} ]",
        f"bandwidth: [ {', '.join(map(repr, bandwidth))} ]  # GB/s, 1 GB = 2^30 B{_errors(dims, 'bandwidth')}",
        f"latency: [ {', '.join(repr(d.latency_ns.value) for d in dims)} ]  # ns{_errors(dims, 'latency')}",
    ]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _errors(dims: tuple[Dimension, ...], which: str) -> str:
    estimates = [d.bandwidth_bps if which == "bandwidth" else d.latency_ns for d in dims]
    if any(e.stderr is None for e in estimates):
        return ""
    scale: Callable[[float], float] = bps_to_astra_gbps if which == "bandwidth" else float
    return "; standard errors " + ", ".join(f"{scale(e.stderr or 0.0):.4g}" for e in estimates)


class _Keys:
    """Typed access to a JSON object's keys, with the file in every message."""

    def __init__(self, content: Any, path: Path | str) -> None:
        if not isinstance(content, dict):
            raise InputError("is no JSON object.", where=str(path))
        self.content, self.path = content, str(path)

    def number(self, key: str, default: float) -> float:
        value = self.content.get(key, default)
        if isinstance(value, str | list | dict) or value is None:
            raise InputError(f"{key} must be a number, not {value!r}.", where=self.path)
        return float(value)

    def whole(self, key: str, default: int) -> int:
        """ASTRA-sim truncates fractions (10.7 becomes 10)."""
        return int(self.number(key, default))

    def choice(self, key: str, choices: type[StrEnum], default: Any) -> Any:
        value = self.content.get(key, default)
        if value not in list(choices):
            names = ", ".join(str(c.value) for c in choices)
            raise InputError(f"{key} is {value!r}; it can be {names}.", where=self.path)
        return choices(value)

    def names(self, key: str) -> tuple[str, ...]:
        value = self.content.get(key, [])
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise InputError(f"{key} must be a list of names, not {value!r}.", where=self.path)
        return tuple(value)


def read_system(
    path: Path | str,
    *,
    queues_per_dim: int = 1,
    injection_scale: float = 1.0,
    rendezvous: bool = False,
    memory: RemoteMemory | None = None,
) -> System:
    """A system file with ASTRA-sim's defaults; unknown keys are ignored, as there.

    Args:
        path: the JSON file.
        queues_per_dim: ``--num-queues-per-dim``.
        injection_scale: ``--injection-scale``; acts only on an endpoint-delay that the file names.
        rendezvous: ``--rendezvous-protocol``.
        memory: what `read_memory` gave.

    Raises:
        InputError: a wrong type, an unknown name, or a value that lets ASTRA-sim do nothing.
    """
    keys = _Keys(read_json(path), path)
    delay_ns = keys.whole("endpoint-delay", 10)
    if "endpoint-delay" in keys.content:
        delay_ns = int(delay_ns * injection_scale)
    active = keys.whole("active-chunks-per-dimension", 1)
    if active < 1 or queues_per_dim < 1:
        raise InputError("without an active chunk or a queue nothing would ever be sent.", where=str(path))
    if keys.whole("model-shared-bus", 0):
        raise InputError("model-shared-bus is not supported.", where=str(path), fix="set it to 0.")
    system = System(
        splits=keys.whole("preferred-dataset-splits", 0),
        active_chunks=active,
        queues_per_dim=queues_per_dim,
        endpoint_delay_ns=delay_ns,
        scheduling=keys.choice("scheduling-policy", Scheduling, Scheduling.LIFO.value),
        optimization=keys.choice("collective-optimization", Optimization, Optimization.BASELINE.value),
        local_mem_bytes_per_s=keys.number("local-mem-bw", 0.0) * GB,
        peak_flops=keys.number("peak-perf", 0.0) * _TERA,
        roofline=bool(keys.number("roofline-enabled", 0)),
        replay_only=bool(keys.number("replay-only", 0)),
        rendezvous=rendezvous,
        memory=memory or RemoteMemory(),
    )
    return replace(system, **_algorithms(keys))


def _algorithms(keys: _Keys) -> dict[str, Any]:
    algorithms, custom = {}, {}
    for name, kind in _COLLECTIVES.items():
        if names := keys.names(f"{name}-implementation"):
            algorithms[kind] = names
        if prefixes := keys.names(f"{name}-implementation-custom"):
            if len(prefixes) != 1:
                raise InputError(f"{name}-implementation-custom takes exactly one prefix.", where=keys.path)
            custom[kind] = prefixes[0]
    by_node = keys.content.get("per-node-custom-implementation")
    return {
        "algorithms": algorithms,
        "custom": custom,
        "custom_by_node": _per_node(by_node, keys.path) if by_node else {},
    }


def _per_node(path: Any, source: str) -> dict[int, str]:
    content = read_yaml(path) if isinstance(path, str) else None
    if not isinstance(content, dict) or not all(
        type(node) is int and isinstance(prefix, str) for node, prefix in content.items()
    ):
        raise InputError(
            f"per-node-custom-implementation {path!r} must name a YAML file of node_id: et_prefix.",
            where=source,
        )
    return content


def read_memory(path: Path | str) -> RemoteMemory:
    """A remote memory file.

    Raises:
        InputError: unknown type, or a bandwidth that is not above zero where one is needed.
    """
    keys = _Keys(read_json(path), path)
    kind = keys.choice("memory-type", MemoryKind, None)
    bandwidth = keys.whole("remote-mem-bw", 0)
    if kind is not MemoryKind.NONE and bandwidth < 1:
        raise InputError("remote-mem-bw must be at least 1 byte per ns.", where=str(path))
    per_node = keys.whole("num-npus-per-node", 1)
    if per_node < 1:
        raise InputError("num-npus-per-node must be at least 1.", where=str(path))
    return RemoteMemory(kind, keys.whole("remote-mem-latency", 0), max(1, bandwidth), per_node)


def read_logical_topology(path: Path | str) -> tuple[int, ...]:
    """Logical dimensions of ASTRA-sim's ns-3 front end: ``{"logical-dims": ["8", "4"]}``.

    Raises:
        InputError: no list of whole numbers above zero.
    """
    keys = _Keys(read_json(path), path)
    dims = keys.content.get("logical-dims")
    if not isinstance(dims, list) or not dims or not all(str(d).isdigit() and int(d) > 0 for d in dims):
        raise InputError(f"logical-dims {dims!r} is no list of sizes.", where=str(path))
    return tuple(int(d) for d in dims)


def read_custom_collectives(system: System) -> dict[str, tuple[RankTrace, ...]]:
    """The traces of every custom collective that a system names, by prefix.

    Paths are relative to the working directory, as in ASTRA-sim.

    Raises:
        InputError: missing positions, or anything wrong in a file.
    """
    prefixes = {*system.custom.values(), *system.custom_by_node.values()}
    return {prefix: _positions(prefix) for prefix in sorted(prefixes)}


def _positions(prefix: str) -> tuple[RankTrace, ...]:
    files = find_traces(prefix)
    if sorted(files) != list(range(len(files))):
        raise InputError("positions are missing.", where=f"{prefix}.POSITION.et")
    return tuple(read_trace(files[position], position) for position in range(len(files)))
