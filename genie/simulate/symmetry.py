"""Which ranks do the same, and a proof of it: translations of the ranks that leave schedule and network unchanged.

Ranks are read as numbers of several digits (axes). A translation adds to one digit, modulo its size, or flips bits of
it. If every generator of an axis maps each rank's operators, peers, collective partners and message costs onto those
of its image, then all ranks that differ in that digit alone are instances of one representative, and what it sends
"three to the right" it receives from "three to the left". Whether ties within a tick could still set them apart is
watched during the simulation (quotient.py).
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genie.core.netmodel import DimensionModel, Topology
from genie.core.schedule import STREAMS_PER_GROUP, Collective, OpKind, Phase, Schedule, TokenProgram
from genie.core.system import MemoryKind, Profile

Places = NDArray[np.int64]

MAX_PAIRS = 1 << 24
"""Pairs of ranks whose cost is compared one by one, at most; a larger proof is given up."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A digit of the rank: (rank // stride) % size. Translations add to it, or flip its bits (`xor`)."""

    stride: int
    size: int
    xor: bool = False

    def generators(self) -> list[int]:
        """Translations of rank 0 that make all translations of the axis."""
        if self.xor:
            return [self.stride << bit for bit in range(self.size.bit_length() - 1)]
        return [self.stride]

    def moved(self, rank: Any, by: Any) -> Any:
        """`rank` translated by the digit of `by`; integers or arrays."""
        digit, other = rank // self.stride % self.size, by // self.stride % self.size
        return rank + self.stride * ((digit ^ other if self.xor else (digit + other) % self.size) - digit)


@dataclass(frozen=True, slots=True)
class Symmetry:
    """Translations along `axes`: each maps the job onto itself.

    A translation is written as the rank onto which it moves rank 0.

    Attributes:
        ranks: of the job.
        axes: along which it is symmetric; none for a job whose ranks all differ.
        group_of: group name -> the group that stands for it and its images.
    """

    ranks: int
    axes: tuple[Axis, ...]
    group_of: dict[str, str]

    @property
    def order(self) -> int:
        """How many ranks each representative stands for."""
        return math.prod(axis.size for axis in self.axes)

    def translation(self, rank: Any) -> Any:
        """The translation that moves the representative of `rank` onto it."""
        return sum(axis.stride * (rank // axis.stride % axis.size) for axis in self.axes) + 0 * rank

    def moved(self, rank: Any, by: Any) -> Any:
        """`rank` translated by `by` (also: the translation that does both)."""
        for axis in self.axes:
            rank = axis.moved(rank, by)
        return rank

    def inverse(self, by: int) -> int:
        """The translation that undoes `by`."""
        return sum(
            axis.stride * (digit if axis.xor else -digit % axis.size)
            for axis in self.axes
            for digit in (by // axis.stride % axis.size,)
        )

    def representatives(self) -> Places:
        """One rank of every class, ascending."""
        ranks = np.arange(self.ranks, dtype=np.int64)
        chosen: Places = ranks[self.translation(ranks) == 0]
        return chosen


def find_symmetry(schedule: Schedule, network: DimensionModel) -> Symmetry:
    """The largest group of translations found that leaves the job unchanged; one without axes if there is none."""
    job = _Job(schedule, network)
    best = Symmetry(job.ranks, (), {})
    if not job.may_be_symmetric():
        return best
    for boundaries in job.factorisations():
        found = _symmetry_along(job, boundaries)
        if found is not None and found.order > best.order:
            best = found
        if best.order == job.ranks:
            break
    return best


def _symmetry_along(job: _Job, boundaries: tuple[int, ...]) -> Symmetry | None:
    """The symmetric ones among the axes between the boundaries."""
    axes, images = [], _Orbits()
    for stride, end in itertools.pairwise(boundaries):
        size = end // stride
        kinds = [Axis(stride, size)] + [Axis(stride, size, xor=True)] * (size > 2 and not size & (size - 1))  # noqa: PLR2004
        for axis in kinds:
            pairs = _Proof(job, axis).group_images()
            if pairs is not None:
                axes.append(axis)
                images.join(pairs)
                break
    group_of = images.representatives()
    if not axes or not job.tags_stay_apart(group_of):
        return None
    return Symmetry(job.ranks, tuple(axes), group_of)


class _Orbits:
    """Group names that translations carry into each other."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def _root(self, name: str) -> str:
        while (up := self._parent.setdefault(name, name)) != name:
            name = up
        return name

    def join(self, pairs: Iterable[tuple[str, str]]) -> None:
        for one, other in pairs:
            self._parent[self._root(one)] = self._root(other)

    def representatives(self) -> dict[str, str]:
        return {name: self._root(name) for name in self._parent}


class _Job:
    """A schedule on a network, prepared for comparisons."""

    def __init__(self, schedule: Schedule, network: DimensionModel) -> None:
        self.schedule, self.network, self.ranks = schedule, network, len(schedule.ranks)
        self.overlap = schedule.system.profile is Profile.OVERLAP
        self._digests: dict[tuple[int, int], bytes] = {}
        digests = [self._digest(rank) for rank in range(self.ranks)]
        numbers = {digest: at for at, digest in enumerate(dict.fromkeys(digests))}
        self.shape = np.array([numbers[digest] for digest in digests], np.int64)
        self.sends = self._sends()

    def _digest(self, rank: int) -> bytes:
        """Equal for ranks whose operators differ at most in peers and in which collective they name."""
        part = self.schedule.ranks[rank]
        key = id(part.operators), id(part.children)
        if key not in self._digests:
            digest = hashlib.blake2b(digest_size=16)
            columns = part.operators.columns()
            names = ["kind", "slot", "duration_ns", "tag", "size_bytes", "lane", "first_stream"]
            for column in [*(columns[name] for name in names), part.dep_counts, part.child_offsets, part.children]:
                digest.update(np.ascontiguousarray(column).tobytes())
                digest.update(b"|")
            self._digests[key] = digest.digest()
        return self._digests[key]

    def _sends(self) -> list[Places | None]:
        """For every rank the peers of its sends and receives in order; None without any."""
        known: dict[int, Places | None] = {}
        for part in self.schedule.ranks:
            if id(part.operators) not in known:
                kinds = part.operators.kind
                chosen = (kinds == OpKind.SEND) | (kinds == OpKind.RECV)
                known[id(part.operators)] = part.operators.peer[chosen] if chosen.any() else None
        return [known[id(part.operators)] for part in self.schedule.ranks]

    def may_be_symmetric(self) -> bool:
        """Some ranks are alike, and no memory is shared, whose requests the order of ranks would decide."""
        if len(np.unique(self.shape)) > self.ranks // 2:
            return False
        if self.schedule.system.memory.kind in {MemoryKind.NONE, MemoryKind.PER_NPU}:
            return True
        return not any((part.operators.kind == OpKind.MEMORY).any() for part in self.schedule.ranks)

    def factorisations(self) -> Iterator[tuple[int, ...]]:
        """Ways to cut the rank into digits: by the network's dimensions, groups, peers and the repetition of ranks."""
        sizes = tuple(dimension.size for dimension in self.network.dimensions)
        dimensions = {math.prod(sizes[:k]) for k in range(len(sizes) + 1)}
        sources = [set(), self._group_boundaries(), self._repetition(), self._peer_boundaries()]
        tried = set()
        for chosen in ((0,), (1,), (2,), (1, 2), (1, 2, 3), (3,)):
            boundaries = _chain(dimensions.union(*(sources[at] for at in chosen)), self.ranks)
            if boundaries not in tried:
                tried.add(boundaries)
                yield boundaries

    def _group_boundaries(self) -> set[int]:
        """Strides and extents of the groups that are evenly spaced."""
        found: set[int] = set()
        for group in {collective.group_ranks for collective in self.schedule.collectives}:
            steps = np.unique(np.diff(np.sort(np.array(group))))
            if len(steps) == 1:
                found |= {int(steps[0]), int(steps[0]) * len(group)}
        return found

    def _repetition(self) -> set[int]:
        """The length of the first run of equal ranks, and the least distance after which ranks repeat."""
        other = np.flatnonzero(self.shape != self.shape[0])
        found = {int(other[0])} if len(other) else set()
        for period in np.flatnonzero(self.shape[1:] == self.shape[0])[:64].tolist():
            if self.ranks % (period + 1) == 0 and (self.shape[period + 1 :] == self.shape[: -period - 1]).all():
                return found | {period + 1}
        return found

    def _peer_boundaries(self) -> set[int]:
        found: set[int] = set()
        for rank in range(0, self.ranks, max(1, self.ranks // 64)):
            peers = self.sends[rank]
            if peers is not None:
                found |= set(np.abs(np.unique(peers) - rank).tolist())
        return found

    def tags_stay_apart(self, group_of: dict[str, str]) -> bool:
        """Two groups of one rank are never written as one, nor as a running number of all ranks together."""
        if all(name == root for name, root in group_of.items()):
            return True
        used: dict[int, tuple[set[str], int]] = {}
        for part in self.schedule.ranks:
            key = id(part.operators)
            if key not in used:
                column = part.operators.collective
                made = [self.schedule.collectives[at] for at in column[column >= 0].tolist()]
                used[key] = {c.group for c in made}, sum(c.chunks for c in made)
        return all(
            len({group_of.get(name, name) for name in names}) == len(names) and chunks < STREAMS_PER_GROUP
            for names, chunks in used.values()
        )


def _chain(numbers: set[int], ranks: int) -> tuple[int, ...]:
    """1, ..., `ranks`: those of the numbers that divide the next ones, smallest first."""
    chain = [1]
    for number in sorted(numbers):
        if number > chain[-1] and number < ranks and number % chain[-1] == 0 and ranks % number == 0:
            chain.append(number)
    return (*chain, ranks)


class _Proof:
    """Does an axis carry the job onto itself?"""

    def __init__(self, job: _Job, axis: Axis) -> None:
        self.job, self.axis = job, axis
        self.everyone = np.arange(job.ranks)
        self.budget = MAX_PAIRS

    def group_images(self) -> set[tuple[str, str]] | None:
        """Pairs of groups of which one is carried onto the other; None if the axis is no symmetry."""
        pairs: set[tuple[str, str]] = set()
        for by in self.axis.generators():
            image = self.axis.moved(self.everyone, by)
            collectives = self._carried(image)
            if collectives is None or not self._network_carried(image):
                return None
            for one, other in collectives:
                names = self.job.schedule.collectives[one].group, self.job.schedule.collectives[other].group
                if not self._groups_carried(*names):
                    return None
                pairs.add(names)
        return pairs

    def _groups_carried(self, one: str, other: str) -> bool:
        return one == other or (one.isdigit() and other.isdigit() and not self.job.overlap)

    def _carried(self, image: Places) -> set[tuple[int, int]] | None:
        """Pairs of collectives that are carried onto each other; None if operators are not."""
        job = self.job
        if (job.shape[image] != job.shape).any():
            return None
        for rank, peers in enumerate(job.sends):
            if peers is not None and not np.array_equal(image[peers], job.sends[image[rank]]):
                return None
        pairs: set[tuple[int, int]] = set()
        seen: set[tuple[int, int]] = set()
        for rank, part in enumerate(job.schedule.ranks):
            one, other = part.operators.collective, job.schedule.ranks[image[rank]].operators.collective
            if (id(one), id(other)) not in seen:
                seen.add((id(one), id(other)))
                pairs |= set(zip(one.tolist(), other.tolist(), strict=True))
        pairs.discard((-1, -1))
        good = all(min(pair) >= 0 and self._collective_carried(*pair, image) for pair in pairs)
        return pairs if good else None

    def _collective_carried(self, at: int, other_at: int, image: Places) -> bool:
        one, other = self.job.schedule.collectives[at], self.job.schedule.collectives[other_at]
        if at != other_at and not _alike(one, other):
            return False
        return all(
            self._phase_carried(mine, theirs, image) for mine, theirs in zip(one.phases, other.phases, strict=True)
        )

    def _phase_carried(self, one: Phase, other: Phase, image: Places) -> bool:
        if one.members.ranks:
            rotation = _rotation(image[list(one.members.ranks)], np.array(other.members.ranks))
            return rotation == 0 or (rotation is not None and _moves_by(one, xor=False))
        if one.members != other.members:
            return False
        return self._commutes(one)

    def _commutes(self, phase: Phase) -> bool:
        """Moving along the phase's line and then along the axis is the same as the other way round."""
        axis, line = self.axis, phase.members
        end, line_end = axis.stride * axis.size, line.stride * line.size
        if end <= line.stride or axis.stride >= line_end:
            return True
        if axis.xor:
            return line.stride <= axis.stride and end <= line_end and _moves_by(phase, xor=True)
        return line.stride <= axis.stride and end == line_end and _moves_by(phase, xor=False)

    def _network_carried(self, image: Places) -> bool:
        """Messages between images cost what messages between the ranks cost, and share links alike."""
        axis, stride = self.axis, 1
        for dimension in self.job.network.dimensions:
            end = stride * dimension.size
            inside = stride <= axis.stride and axis.stride * axis.size <= end
            outside = axis.stride * axis.size <= stride or axis.stride >= end
            if not (inside or outside):
                return False
            turned = axis.stride * axis.size == end and not axis.xor
            if inside and dimension.topology is Topology.RING and not turned:
                return not self.job.network.aware and self._pairs_carried(image)
            stride = end
        return True

    def _pairs_carried(self, image: Places) -> bool:
        """Every pair of ranks that talks, compared in hops."""
        for sources, targets in self._pairs():
            self.budget -= len(sources)
            if self.budget < 0:
                return False
            for mine, theirs in zip(
                _charges(self.job.network, sources, targets),
                _charges(self.job.network, image[sources], image[targets]),
                strict=True,
            ):
                if (mine != theirs).any():
                    return False
        return True

    def _pairs(self) -> Iterator[tuple[Places, Places]]:
        for rank, peers in enumerate(self.job.sends):
            if peers is not None:
                yield np.full(len(peers), rank), peers
        for collective in self.job.schedule.collectives:
            for phase in collective.phases:
                yield from _phase_pairs(phase, self.everyone)


def _phase_pairs(phase: Phase, everyone: Places) -> Iterator[tuple[Places, Places]]:
    """(senders, receivers) of every message offset of a phase; for a graph program, everyone to everyone."""
    ranks = np.array(phase.members.ranks) if phase.members.ranks else None
    size, stride = phase.members.size, phase.members.stride
    offsets = {
        offset
        for programs in phase.variants
        for program in programs
        for offset in (set(program.offsets) if isinstance(program, TokenProgram) else range(1, size))
    }
    xor = _moves_by(phase, xor=True)
    for offset in offsets:
        for signed in (offset, -offset):
            if ranks is not None:
                place = np.arange(size)
                yield ranks, ranks[place ^ offset if xor else (place + signed) % size]
            else:
                place = everyone // stride % size
                yield everyone, everyone + stride * ((place ^ offset if xor else (place + signed) % size) - place)


def _charges(model: DimensionModel, sources: Places, targets: Places) -> tuple[Places, Places]:
    """(dimension, hops) that each message is charged for; vectorised genie.network.models.charged_dimension."""
    charged, hops = np.full(len(sources), -1), np.zeros(len(sources), np.int64)
    stride = 1
    for at, dimension in enumerate(model.dimensions):
        clockwise = (targets // stride - sources // stride) % dimension.size
        here = (charged < 0) & (clockwise != 0)
        charged[here] = at
        if dimension.topology is Topology.RING:
            hops[here] = np.minimum(clockwise, dimension.size - clockwise)[here]
        stride *= dimension.size
    return charged, hops


def _alike(one: Collective, other: Collective) -> bool:
    """Equal but for who takes part."""
    if (one.kind, one.chunks, one.chunk_bytes, one.fixed_queue, len(one.phases)) != (
        other.kind,
        other.chunks,
        other.chunk_bytes,
        other.fixed_queue,
        len(other.phases),
    ):
        return False
    return all(
        (a.dimension, a.lane, a.endpoint_delay_ns, a.turn_key, a.variants, len(a.members.ranks))
        == (b.dimension, b.lane, b.endpoint_delay_ns, b.turn_key, b.variants, len(b.members.ranks))
        for a, b in zip(one.phases, other.phases, strict=True)
    )


def _rotation(one: Places, other: Places) -> int | None:
    """By how many places `other` is `one` turned; None if it is not."""
    found = np.flatnonzero(other == one[0]) if len(one) == len(other) else np.empty(0, np.int64)
    if len(found) and np.array_equal(np.roll(one, int(found[0])), other):
        return int(found[0])
    return None


def _moves_by(phase: Phase, *, xor: bool) -> bool:
    """All programs are token programs whose peers are found by XOR, or by adding."""
    return all(
        isinstance(program, TokenProgram) and program.xor is xor for programs in phase.variants for program in programs
    )
