"""System: how a rank schedules its work. The values and defaults of ASTRA-sim's system file, named in full.

Source of the defaults: ASTRA-sim's analytical front end, commit 518bd51; see docs/formats.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from genie.core.workload import CollectiveKind


class Scheduling(StrEnum):
    """Order of waiting chunks on a dimension."""

    LIFO = "LIFO"
    FIFO = "FIFO"
    EXPLICIT = "EXPLICIT"


class Optimization(StrEnum):
    """How an all-reduce crosses several dimensions."""

    BASELINE = "baseline"
    LOCAL_BW_AWARE = "localBWAware"


class Profile(StrEnum):
    """Issue rules of the engine.

    ASTRA: one communication operator in flight a rank, ever (the same cycles as ASTRA-sim).
    OVERLAP: collectives of one group in order, those of different groups and plain sends side by side.
    """

    ASTRA = "astra"
    OVERLAP = "overlap"


class MemoryKind(StrEnum):
    """Remote memory expansion, spelled as in ASTRA-sim's memory file."""

    NONE = "NO_MEMORY_EXPANSION"
    PER_NPU = "PER_NPU_MEMORY_EXPANSION"
    PER_NODE = "PER_NODE_MEMORY_EXPANSION"
    POOL = "MEMORY_POOL"


@dataclass(frozen=True, slots=True)
class RemoteMemory:
    """Time of a load or store = latency_ns + floor(bytes / bytes_per_ns); POOL and PER_NODE serve one at a time."""

    kind: MemoryKind = MemoryKind.NONE
    latency_ns: int = 0
    bytes_per_ns: int = 1
    ranks_per_node: int = 1


@dataclass(frozen=True, slots=True)
class System:
    """A rank's scheduling rules.

    Attributes:
        splits: chunks per collective (``preferred-dataset-splits``); 0 means the key was absent.
        active_chunks: chunks in flight per dimension.
        queues_per_dim: command line ``--num-queues-per-dim``.
        endpoint_delay_ns: per message, before it may be sent on.
        algorithms: collective -> one algorithm name per dimension.
        custom: collective -> ET prefix of a custom algorithm.
        custom_by_node: trace node id -> ET prefix.
        local_mem_bytes_per_s: 0 makes a local reduction free.
        peak_flops: for the roofline, operations per s.
        rendezvous: every message waits for an 8,192-byte grant from its receiver.
        extended: go where ASTRA-sim does not: broadcast, reduce and barrier travel as trees of ours instead of taking
            the trace's duration (or being refused), a group of one member finishes at once.
    """

    splits: int = 0
    active_chunks: int = 1
    queues_per_dim: int = 1
    endpoint_delay_ns: int = 10
    scheduling: Scheduling = Scheduling.LIFO
    optimization: Optimization = Optimization.BASELINE
    algorithms: dict[CollectiveKind, tuple[str, ...]] = field(default_factory=dict, hash=False)
    custom: dict[CollectiveKind, str] = field(default_factory=dict, hash=False)
    custom_by_node: dict[int, str] = field(default_factory=dict, hash=False)
    local_mem_bytes_per_s: float = 0.0
    peak_flops: float = 0.0
    roofline: bool = False
    replay_only: bool = False
    rendezvous: bool = False
    profile: Profile = Profile.ASTRA
    memory: RemoteMemory = RemoteMemory()
    extended: bool = False
