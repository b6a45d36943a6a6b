"""ASTRA-sim's input files, written from Genie's values: system, memory, logical topology, logging, ns-3 and htsim."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from genie.core.netmodel import DimensionModel, Topology
from genie.core.system import MemoryKind, RemoteMemory, System
from genie.core.workload import CollectiveKind
from genie.errors import InputError
from genie.formats.textfile import read_text
from genie.units import (
    bps_to_gigabits,
    bytes_per_s_to_astra_memory_gbps,
    flops_to_astra_teraflops,
    ns_to_ms,
)

_NAMES: Final = {
    CollectiveKind.ALL_REDUCE: "all-reduce",
    CollectiveKind.ALL_GATHER: "all-gather",
    CollectiveKind.REDUCE_SCATTER: "reduce-scatter",
    CollectiveKind.ALL_TO_ALL: "all-to-all",
}


def write_system(path: Path, system: System, custom: Mapping[str, str], *, by_node: str | None = None) -> None:
    """A system file that says what `system` says, and asks for a record of every node.

    Args:
        path: to write.
        system: queues and rendezvous are no part of the file: they are options of ASTRA-sim's command line.
        custom: ET prefix in `system` -> ET prefix to write instead.
        by_node: name of the file that `write_custom_by_node` wrote, if there is one.
    """
    content: dict[str, Any] = {
        "scheduling-policy": system.scheduling.value,
        "endpoint-delay": system.endpoint_delay_ns,
        "active-chunks-per-dimension": system.active_chunks,
        "preferred-dataset-splits": system.splits,
        "collective-optimization": system.optimization.value,
        "local-mem-bw": bytes_per_s_to_astra_memory_gbps(system.local_mem_bytes_per_s),
        "peak-perf": flops_to_astra_teraflops(system.peak_flops),
        "roofline-enabled": int(system.roofline),
        "replay-only": int(system.replay_only),
        "trace-enabled": 1,
    }
    for kind, algorithms in system.algorithms.items():
        if kind in _NAMES:  # ASTRA-sim has no key for the others
            content[f"{_NAMES[kind]}-implementation"] = list(algorithms)
    for kind, prefix in system.custom.items():
        content[f"{_NAMES[kind]}-implementation-custom"] = [custom[prefix]]
    if by_node is not None:
        content["per-node-custom-implementation"] = by_node
    _write_json(path, content)


def write_custom_by_node(path: Path, system: System, custom: Mapping[str, str]) -> None:
    """The YAML of ``node id: ET prefix`` that a system file can name."""
    lines = [f"{node}: {custom[prefix]}" for node, prefix in system.custom_by_node.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_memory(path: Path, memory: RemoteMemory, ranks: int) -> None:
    """A remote memory file."""
    content: dict[str, Any] = {"memory-type": memory.kind.value}
    if memory.kind is not MemoryKind.NONE:
        content |= {"remote-mem-latency": memory.latency_ns, "remote-mem-bw": memory.bytes_per_ns}
    if memory.kind is MemoryKind.PER_NODE:
        content |= {
            "num-nodes": math.ceil(ranks / memory.ranks_per_node),
            "num-npus-per-node": memory.ranks_per_node,
        }
    _write_json(path, content)


def write_logical_topology(path: Path, sizes: tuple[int, ...]) -> None:
    """The sizes of the logical dimensions, for the ns-3 front end: texts, not numbers."""
    _write_json(path, {"logical-dims": [str(size) for size in sizes]})


def write_logging(path: Path, log: str) -> None:
    """A logging file that has every node's ticks written to `log`, which does not rotate as ASTRA-sim's own does."""
    path.write_text(
        f'[[sink]]\nname = "ticks"\ntype = "basic_file_sink_mt"\nfilename = "{log}"\ntruncate = true\n'
        'level = "debug"\n\n[[logger]]\nname = "workload"\nsinks = ["ticks"]\nlevel = "debug"\n',
        encoding="utf-8",
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


# --- ns-3 -------------------------------------------------------------------------------------------------------------

_NS3_INPUTS: Final = ("TOPOLOGY_FILE", "FLOW_FILE", "TRACE_FILE")
_NS3_OUTPUTS: Final = {
    "TRACE_OUTPUT_FILE": "mix.tr",
    "FCT_OUTPUT_FILE": "fct.txt",
    "PFC_OUTPUT_FILE": "pfc.txt",
    "QLEN_MON_FILE": "qlen.txt",
}
"""Keys of an ns-3 configuration that name outputs, and what they are called in a run."""

NS3_FLOWS: Final = _NS3_OUTPUTS["FCT_OUTPUT_FILE"]

_NS3_DEFAULTS: Final = """\
ENABLE_QCN 1
USE_DYNAMIC_PFC_THRESHOLD 1
PACKET_PAYLOAD_SIZE 1000
SIMULATOR_STOP_TIME 40000000000000.00
CC_MODE 12
ALPHA_RESUME_INTERVAL 1
RATE_DECREASE_INTERVAL 4
CLAMP_TARGET_RATE 0
RP_TIMER 900
EWMA_GAIN 0.00390625
FAST_RECOVERY_TIMES 1
RATE_AI 50Mb/s
RATE_HAI 100Mb/s
MIN_RATE 100Mb/s
DCTCP_RATE_AI 1000Mb/s
ERROR_RATE_PER_LINK 0.0
L2_CHUNK_SIZE 4000
L2_ACK_INTERVAL 1
L2_BACK_TO_ZERO 0
HAS_WIN 1
GLOBAL_T 0
VAR_WIN 1
FAST_REACT 1
U_TARGET 0.95
MI_THRESH 0
INT_MULTI 1
MULTI_RATE 0
SAMPLE_FEEDBACK 0
PINT_LOG_BASE 1.05
PINT_PROB 1.0
NIC_TOTAL_PAUSE_TIME 0
RATE_BOUND 1
ACK_HIGH_PRIO 0
LINK_DOWN 0 0 0
ENABLE_TRACE 0
BUFFER_SIZE 32
QLEN_MON_START 0
QLEN_MON_END 0
"""
"""DCTCP-like rate control with PFC: the settings that ASTRA-sim's examples use. Marking thresholds follow the rates."""


def write_ns3_config(path: Path, given: Path | None, topology: Path) -> None:
    """An ns-3 configuration whose outputs lie beside it.

    Args:
        path: to write.
        given: a user's configuration, whose settings are kept and whose input files are found from where it lies;
            None writes settings of ours.
        topology: the physical topology when `given` is None.

    Raises:
        InputError: the user's configuration cannot be read, or names a file that is not there.
    """
    lines = _given_ns3_lines(given) if given is not None else _own_ns3_lines(path.parent, topology)
    lines += [f"{key} {name}" for key, name in _NS3_OUTPUTS.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _given_ns3_lines(given: Path) -> list[str]:
    lines = []
    for line in read_text(given).splitlines():
        key, _, rest = line.strip().partition(" ")
        if key in _NS3_INPUTS:
            lines.append(f"{key} {_ns3_input(given, key, rest.strip())}")
        elif key not in _NS3_OUTPUTS:
            lines.append(line)
    return lines


def _ns3_input(given: Path, key: str, name: str) -> Path:
    """Paths in such a file are relative to where ASTRA-sim is started; examples start it in build/scratch of ns-3."""
    starts = (given.parent, Path.cwd(), *(parent / "build" / "scratch" for parent in given.resolve().parents))
    for start in starts:
        if (start / name).is_file():
            return (start / name).resolve()
    raise InputError(
        f"{key} names {name}, which is not there.", where=str(given), fix="write a path from this file's folder."
    )


def _own_ns3_lines(folder: Path, topology: Path) -> list[str]:
    for name in ("flow.txt", "trace.txt"):
        (folder / name).write_text("0\n", encoding="utf-8")
    rates = sorted({int(line.split()[2].removesuffix("bps")) for line in _links_of(topology)})
    marking = {
        "KMAX_MAP": [f"{rate} {max(1, rate * 16 // 1_000_000_000)}" for rate in rates],
        "KMIN_MAP": [f"{rate} {max(1, rate * 4 // 1_000_000_000)}" for rate in rates],
        "PMAX_MAP": [f"{rate} 0.2" for rate in rates],
    }
    lines = _NS3_DEFAULTS.splitlines()
    lines += [f"{key} {len(rates)} {' '.join(values)}" for key, values in marking.items()]
    return [*lines, f"TOPOLOGY_FILE {topology.name}", "FLOW_FILE flow.txt", "TRACE_FILE trace.txt"]


def _links_of(topology: Path) -> list[str]:
    return topology.read_text(encoding="utf-8").splitlines()[2:]


def write_ns3_topology(path: Path, model: DimensionModel) -> None:
    """One switch that all ranks hang on, as the ns-3 front end reads a physical topology.

    Each link's delay is the dimension's latency: both count a hop, and a path through the switch has two.

    Raises:
        InputError: the model is no single Switch.
    """
    dimension = _one_switch(model, "ns-3", "--ns3-config FILE")
    ranks, rate_bps = model.ranks, round(dimension.bandwidth_bps.value)
    delay_ms = f"{ns_to_ms(dimension.latency_ns.value):.9f}ms"
    links = [f"{ranks} {rank} {rate_bps}bps {delay_ms} 0" for rank in range(ranks)]
    path.write_text("\n".join([f"{ranks + 1} 1 {ranks}", str(ranks), *links]) + "\n", encoding="utf-8")


def write_htsim_topology(path: Path, model: DimensionModel) -> None:
    """A fat tree of one switch, below another that nothing crosses: htsim's loader knows no smaller one.

    Raises:
        InputError: the model is no single Switch.
    """
    dimension = _one_switch(model, "htsim", "--htsim-topology FILE")
    ranks, latency_ns = model.ranks, round(dimension.latency_ns.value)
    rate_gbps = max(1, round(bps_to_gigabits(dimension.bandwidth_bps.value)))
    each = f"Downlink_speed_Gbps {rate_gbps}\nDownlink_Latency_ns {latency_ns}"
    lines = [
        f"Nodes {ranks}",
        "Tiers 2",
        f"Podsize {ranks}",
        f"Tier 0\n{each}\nRadix_Down {ranks}\nRadix_Up 1\nOversubscribed {ranks}",
        f"Tier 1\n{each}\nRadix_Down 1",
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _one_switch(model: DimensionModel, simulator: str, option: str) -> Any:
    dimension = model.dimensions[0]
    if len(model.dimensions) == 1 and dimension.topology is Topology.SWITCH:
        return dimension
    shape = " x ".join(f"{d.topology.value} of {d.size}" for d in model.dimensions)
    raise InputError(
        f"Genie makes {simulator} a physical topology of a single Switch only, the network file has {shape}.",
        fix=f"pass one of your own: {option}, or describe the network as one Switch.",
    )
