"""Named topologies that have more to them than a leaf-spine: fat tree, rail-optimised, dumbbell. Pure shorthands."""

from __future__ import annotations

from genie.core.testbed import Cable, LinkSpec, Node, Role
from genie.errors import InputError

Graph = tuple[tuple[Node, ...], tuple[Cable, ...]]


def fat_tree(
    pods: int,
    leaves: int,
    spines: int,
    cores: int,
    hosts_per_leaf: int,
    specs: tuple[LinkSpec, LinkSpec, LinkSpec],
    seed: int,
) -> Graph:
    """Three tiers: in each pod every leaf on every spine; spine i of every pod on the i-th equal part of the cores.

    Al-Fares et al., "A scalable, commodity data center network architecture", SIGCOMM 2008, with free counts.

    Args:
        pods: how many pods.
        leaves: of each pod.
        spines: of each pod.
        cores: in all.
        hosts_per_leaf: the first hosts on the first leaf of the first pod.
        specs: of host, leaf-spine ("fabric") and spine-core ("core") links.
        seed: ECMP seed of the first switch.

    Raises:
        InputError: a count below one, or cores that do not divide evenly among a pod's spines.
    """
    if min(pods, leaves, spines, cores, hosts_per_leaf) < 1 or cores % spines:
        raise InputError(f"{cores} cores cannot be spread evenly over the {spines} spines of a pod.")
    host, fabric, core = specs
    per_spine = cores // spines
    leaf_names = [f"pod{p}-leaf{i}" for p in range(pods) for i in range(leaves)]
    hosts = [f"h{i}" for i in range(len(leaf_names) * hosts_per_leaf)]
    switches = leaf_names + [f"pod{p}-spine{i}" for p in range(pods) for i in range(spines)]
    switches += [f"core{i}" for i in range(cores)]
    cables = [host.cable(name, leaf_names[at // hosts_per_leaf], "host") for at, name in enumerate(hosts)]
    for pod in range(pods):
        for spine in range(spines):
            name = f"pod{pod}-spine{spine}"
            cables += [fabric.cable(f"pod{pod}-leaf{leaf}", name, "fabric") for leaf in range(leaves)]
            first = spine * per_spine
            cables += [core.cable(name, f"core{at}", "core") for at in range(first, first + per_spine)]
    return _nodes(hosts, switches, seed), tuple(cables)


def rail_optimised(
    hosts: int, rails: int, hosts_per_unit: int, spines: int, specs: tuple[LinkSpec, LinkSpec], seed: int
) -> Graph:
    """Hosts of `rails` NICs; NIC r of every host of a scalable unit on that unit's rail leaf r; leaves on all spines.

    Args:
        hosts: how many, in all.
        rails: NICs a host, rail leaves a unit.
        hosts_per_unit: of each scalable unit.
        spines: how many; every rail leaf is on each.
        specs: of host and of leaf-spine ("fabric") links.
        seed: ECMP seed of the first switch.

    Raises:
        InputError: a count below one, or hosts that do not fill whole units.
    """
    if min(hosts, rails, hosts_per_unit, spines) < 1 or hosts % hosts_per_unit:
        raise InputError(f"{hosts} hosts do not fill whole units of {hosts_per_unit}.")
    host, fabric = specs
    names = [f"h{i}" for i in range(hosts)]
    leaves = [f"unit{u}-rail{r}" for u in range(hosts // hosts_per_unit) for r in range(rails)]
    cables = [
        host.cable(name, f"unit{at // hosts_per_unit}-rail{rail}", "host")
        for at, name in enumerate(names)
        for rail in range(rails)
    ]
    cables += [fabric.cable(leaf, f"spine{k}", "fabric") for leaf in leaves for k in range(spines)]
    return _nodes(names, leaves + [f"spine{k}" for k in range(spines)], seed), tuple(cables)


def dumbbell(left: int, right: int, host: LinkSpec, bottleneck: LinkSpec, seed: int) -> Graph:
    """Two switches, so many hosts on each, one cable between them."""
    names = [f"h{i}" for i in range(left + right)]
    cables = [host.cable(name, "left" if at < left else "right", "host") for at, name in enumerate(names)]
    return _nodes(names, ["left", "right"], seed), (*cables, bottleneck.cable("left", "right", "bottleneck"))


def _nodes(hosts: list[str], switches: list[str], seed: int) -> tuple[Node, ...]:
    made = [Node(name, Role.HOST) for name in hosts]
    return (*made, *(Node(name, Role.SWITCH, seed + at) for at, name in enumerate(switches)))
