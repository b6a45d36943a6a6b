"""ASTRA-sim's own configuration files, read with its defaults and refused where it would abort."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from genie.core.netmodel import Dimension, DimensionModel, Estimate, Topology
from genie.core.system import MemoryKind, Optimization, RemoteMemory, Scheduling, System
from genie.core.workload import CollectiveKind, RankTrace
from genie.errors import InputError
from genie.formats.chakra import read_trace
from genie.formats.textfile import Keys, as_count, as_number, read_json, read_yaml, shown
from genie.formats.workload import find_traces
from genie.units import GB, astra_gbps_to_bps, bps_to_astra_gbps

_COLLECTIVES: Final = {
    "all-reduce": CollectiveKind.ALL_REDUCE,
    "all-gather": CollectiveKind.ALL_GATHER,
    "reduce-scatter": CollectiveKind.REDUCE_SCATTER,
    "all-to-all": CollectiveKind.ALL_TO_ALL,
}
_TERA: Final = 1e12


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
        raise InputError(f"unknown topology {shown(topology)}.", fix="use Ring, FullyConnected or Switch.")
    count = as_count(size)
    if count is None:
        raise InputError(f"npus_count {shown(size)} is no whole number of ranks.")
    numbers = []
    for name, value in (("bandwidth", bandwidth), ("latency", latency)):
        number = as_number(value)
        if number is None:
            raise InputError(f"{name} {shown(value)} is no number.")
        numbers.append(number)
    bandwidth_bps = Estimate(astra_gbps_to_bps(numbers[0]))
    return Dimension(Topology(topology), count, bandwidth_bps, Estimate(numbers[1]))


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
    keys = Keys(read_json(path), path)
    active = keys.whole("active-chunks-per-dimension", 1)
    if active < 1 or queues_per_dim < 1:
        raise InputError("without an active chunk or a queue nothing would ever be sent.", where=str(path))
    if keys.whole("model-shared-bus", 0) == 1:
        raise InputError("model-shared-bus is not supported.", where=str(path), fix="set it to 0.")
    system = System(
        splits=keys.whole("preferred-dataset-splits", 0),
        active_chunks=active,
        queues_per_dim=queues_per_dim,
        endpoint_delay_ns=_endpoint_delay_ns(keys, injection_scale),
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


def _endpoint_delay_ns(keys: Keys, injection_scale: float) -> int:
    delay_ns = keys.whole("endpoint-delay", 10)
    if "endpoint-delay" not in keys.content:
        return delay_ns
    if not math.isfinite(injection_scale) or injection_scale < 0:
        raise InputError(f"an injection scale of {injection_scale} is no factor.", fix="use a number from 0.")
    return int(delay_ns * injection_scale)


_UNUSED: Final = {
    **dict.fromkeys(("L", "o", "g", "G", "local-reduction-delay"), "acts only with model-shared-bus"),
    **dict.fromkeys(
        ("boost-mode", "intra-dimension-scheduling", "inter-dimension-scheduling"), "is not read by ASTRA-sim any more"
    ),
    **dict.fromkeys(("track-local-mem", "local-mem-trace-filename"), "is not supported: memory is not tracked"),
    "trace-enabled": "is not needed: a run always records every node",
}
"""Keys that are accepted without an effect, and why."""

_USED: Final = {
    "preferred-dataset-splits",
    "scheduling-policy",
    "collective-optimization",
    "endpoint-delay",
    "active-chunks-per-dimension",
    "local-mem-bw",
    "peak-perf",
    "roofline-enabled",
    "replay-only",
    "model-shared-bus",
    "per-node-custom-implementation",
    *(f"{name}-implementation" for name in _COLLECTIVES),
    *(f"{name}-implementation-custom" for name in _COLLECTIVES),
}


def system_notes(path: Path | str) -> tuple[str, ...]:
    """What `read_system` passes over in a system file: one sentence a key that has no effect.

    Raises:
        InputError: the file cannot be read.
    """
    notes = []
    for key in Keys(read_json(path), path).content:
        if key in _UNUSED:
            notes.append(f"{path}: {key} {_UNUSED[key]}.")
        elif key not in _USED:
            near = difflib.get_close_matches(key, sorted(_USED), 1)
            notes.append(f"{path}: unknown key {key} is ignored{f'; did you mean {near[0]}' if near else ''}.")
    return tuple(notes)


def _algorithms(keys: Keys) -> dict[str, Any]:
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
        "custom_by_node": _per_node(by_node, keys.path) if by_node is not None else {},
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
    keys = Keys(read_json(path), path)
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
    keys = Keys(read_json(path), path)
    dims = keys.content.get("logical-dims")
    counts = [as_count(dim) for dim in dims] if isinstance(dims, list) else []
    sizes = tuple(count for count in counts if count)
    if not sizes or len(sizes) != len(counts):
        raise InputError("logical-dims is no list of sizes.", where=str(path), fix='{"logical-dims": ["8", "4"]}')
    return sizes


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
