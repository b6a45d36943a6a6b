"""Trees as graph programs: ASTRA-sim's double binary tree, and binomial trees of ours for broadcast and reduce."""

from __future__ import annotations

from dataclasses import dataclass

from genie.core.schedule import GraphProgram, GraphStep, StepKind
from genie.errors import InputError


@dataclass(frozen=True, slots=True)
class _Place:
    """A position's neighbours in a binary tree; None where there is none."""

    parent: int | None
    left: int | None
    right: int | None


def _number(depth: int, first: int, parent: int | None, places: dict[int, _Place]) -> int:
    """Number a complete tree of `depth` levels in order from `first`; its root's number."""
    half = (1 << (depth - 1)) - 1
    root = first + half
    left = right = None
    if depth > 1:
        left = _number(depth - 1, first, root, places)
        right = _number(depth - 1, root + 1, root, places)
    places[root] = _Place(parent, left, right)
    return root


def _tree(members: int, *, root_first: bool) -> dict[int, _Place]:
    """A root with one child: the in-order numbered complete tree of the other members - 1 positions."""
    places: dict[int, _Place] = {}
    root = 0 if root_first else members - 1
    child = _number(members.bit_length() - 1, 1 if root_first else 0, root, places)
    places[root] = _Place(None, None if root_first else child, child if root_first else None)
    return places


def _leaf(parent: int, size_bytes: int) -> tuple[GraphStep, ...]:
    return (
        GraphStep(StepKind.DELAY),
        GraphStep(StepKind.SEND, (0,), parent, size_bytes),
        GraphStep(StepKind.RECV, (0,), parent, size_bytes),
        GraphStep(StepKind.DELAY, (2,)),
    )


def _inner(parent: int, left: int, right: int, size_bytes: int) -> tuple[GraphStep, ...]:
    return (
        GraphStep(StepKind.RECV, (), left, size_bytes),
        GraphStep(StepKind.RECV, (), right, size_bytes),
        GraphStep(StepKind.REDUCE, (0,), size_bytes=size_bytes),
        GraphStep(StepKind.REDUCE, (1,), size_bytes=size_bytes),
        GraphStep(StepKind.SEND, (2, 3), parent, size_bytes),
        GraphStep(StepKind.RECV, (2, 3), parent, size_bytes),
        GraphStep(StepKind.REDUCE, (5,), size_bytes=size_bytes),
        GraphStep(StepKind.SEND, (6,), left, size_bytes),
        GraphStep(StepKind.SEND, (6,), right, size_bytes),
    )


def _root(child: int, size_bytes: int) -> tuple[GraphStep, ...]:
    return (
        GraphStep(StepKind.RECV, (), child, size_bytes),
        GraphStep(StepKind.REDUCE, (0,), size_bytes=size_bytes),
        GraphStep(StepKind.SEND, (1,), child, size_bytes),
    )


def _steps(place: _Place, size_bytes: int) -> tuple[GraphStep, ...]:
    if place.parent is None:
        child = place.left if place.left is not None else place.right
        return _root(0 if child is None else child, size_bytes)
    if place.left is None or place.right is None:
        return _leaf(place.parent, size_bytes)
    return _inner(place.parent, place.left, place.right, size_bytes)


def double_binary_tree(data_bytes: int, members: int) -> tuple[tuple[GraphProgram, ...], ...]:
    """Two variants (root last, root first), each a program a position; chunks use them in turn.

    Source: ASTRA-sim's DoubleBinaryTreeAllReduce; section "Collectives" of docs/simulator.md.

    Raises:
        InputError: members are no power of two.
    """
    if members & (members - 1):
        raise InputError(
            f"doubleBinaryTree needs a power of two of members, not {members} (ASTRA-sim crashes).",
            fix="use ring or direct for this dimension.",
        )
    trees = (_tree(members, root_first=False), _tree(members, root_first=True))
    return tuple(
        tuple(GraphProgram(_steps(tree[position], data_bytes)) for position in range(members)) for tree in trees
    )


def _binomial(virtual: int, members: int) -> tuple[int | None, list[int]]:
    """Parent and children (nearest subtree last) of a position counted from the root."""
    low = virtual & -virtual if virtual else 1 << (members - 1).bit_length()
    children = []
    reach = low >> 1
    while reach:
        if virtual + reach < members:
            children.append(virtual + reach)
        reach >>= 1
    return (virtual - low if virtual else None), children


def broadcast(data_bytes: int, members: int, root: int) -> tuple[GraphProgram, ...]:
    """A binomial tree from `root` (a position): each passes the whole buffer on, largest subtree first."""
    return tuple(_broadcast_at(position, data_bytes, members, root) for position in range(members))


def _broadcast_at(position: int, data_bytes: int, members: int, root: int) -> GraphProgram:
    parent, children = _binomial((position - root) % members, members)
    steps = [GraphStep(StepKind.DELAY)]
    if parent is not None:
        steps = [
            GraphStep(StepKind.RECV, (), (parent + root) % members, data_bytes),
            GraphStep(StepKind.DELAY, (0,)),
        ]
    ready = len(steps) - 1
    steps += [GraphStep(StepKind.SEND, (ready,), (c + root) % members, data_bytes) for c in children]
    return GraphProgram(tuple(steps))


def reduce(data_bytes: int, members: int, root: int) -> tuple[GraphProgram, ...]:
    """The broadcast tree upwards: every arrival is reduced into the buffer, then the buffer goes to the parent."""
    return tuple(_reduce_at(position, data_bytes, members, root) for position in range(members))


def _reduce_at(position: int, data_bytes: int, members: int, root: int) -> GraphProgram:
    parent, children = _binomial((position - root) % members, members)
    steps = [GraphStep(StepKind.RECV, (), (c + root) % members, data_bytes) for c in children]
    steps += [GraphStep(StepKind.REDUCE, (at,), size_bytes=data_bytes) for at in range(len(children))]
    if not steps:
        steps = [GraphStep(StepKind.DELAY)]
    done = tuple(range(len(children), len(steps))) or (0,)
    if parent is not None:
        steps.append(GraphStep(StepKind.SEND, done, (parent + root) % members, data_bytes))
    return GraphProgram(tuple(steps))
