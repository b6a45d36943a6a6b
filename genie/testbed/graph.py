"""A testbed as a picture's source: Graphviz (DOT) or Mermaid text, hosts at the bottom, ranks and rates written out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from genie.core.testbed import Cable, Role, Testbed
from genie.units import PPM_PER_PERCENT, bps_to_gigabits, ns_to_us

FORMATS: Final = ("dot", "mermaid")
_NEW_LINE: Final = "\n"


def draw(testbed: Testbed, form: str) -> str:
    """The graph as text, in one of `FORMATS`."""
    lines = _dot(testbed) if form == "dot" else _mermaid(testbed)
    return "\n".join(lines) + "\n"


def _dot(testbed: Testbed) -> Iterator[str]:
    yield f'graph "{testbed.name}" {{'
    yield "  rankdir=BT;"
    for name, role, label in _labels(testbed):
        shape = "box" if role is Role.HOST else "ellipse"
        text = label.replace(_NEW_LINE, "\\n")
        yield f'  "{name}" [shape={shape}, label="{text}"];'
    for cable in testbed.cables:
        yield f'  "{cable.a}" -- "{cable.b}" [label="{about(cable)}"];'
    yield "}"


def _mermaid(testbed: Testbed) -> Iterator[str]:
    """Mermaid's names are stricter than ours: nodes are numbered, names are labels."""
    yield "flowchart BT"
    number = {}
    for at, (name, role, label) in enumerate(_labels(testbed)):
        number[name] = f"n{at}"
        left, right = ("[", "]") if role is Role.HOST else ("([", "])")
        text = label.replace(_NEW_LINE, "<br/>")
        yield f'  n{at}{left}"{text}"{right}'
    for cable in testbed.cables:
        yield f'  {number[cable.a]} ---|"{about(cable)}"| {number[cable.b]}'


def _labels(testbed: Testbed) -> Iterator[tuple[str, Role, str]]:
    """(name, role, what to write on it) of every node."""
    ranks: dict[str, list[str]] = {}
    for rank, host in enumerate(testbed.placement):
        ranks.setdefault(host, []).append(str(rank))
    for node in testbed.nodes:
        here = ranks.get(node.name, [])
        told = f"{_NEW_LINE}rank{'s' if len(here) > 1 else ''} {', '.join(here)}" if here else ""
        yield node.name, node.role, node.name + told


def about(cable: Cable) -> str:
    """A cable's figures in a few words."""
    words = [f"{bps_to_gigabits(cable.rate_bps):g} Gb/s", f"{ns_to_us(cable.delay_ns):g} us"]
    if cable.ecn_bytes:
        words.append(f"ECN {cable.ecn_bytes >> 10} KiB")
    if cable.loss_ppm:
        words.append(f"loss {cable.loss_ppm / PPM_PER_PERCENT:g} %")
    return ", ".join(words)
