"""A run as Markdown, for a pull request or an issue: what the page says, without its pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from genie.formats.runfile import Run
from genie.report.content import document_of
from genie.report.document import Block, Cell, Code, Document, Folded, Level, Table, Text

_SIGN: Final = {
    Level.GOOD: "\N{WHITE HEAVY CHECK MARK}",
    Level.WARN: "\N{WARNING SIGN}",
    Level.BAD: "\N{CROSS MARK}",
    Level.PLAIN: "\N{INFORMATION SOURCE}",
}


def summary(run: Run) -> str:
    """The verdict, the few numbers that matter, rounds, model and self-checks, as GitHub's Markdown.

    Raises:
        InputError: a path in the run leads out of its directory.
    """
    return "\n".join(_lines(document_of(run))) + "\n"


_SHOWN: Final = (
    "Rounds",
    "Calibrated model",
    "Can this run be trusted?",
    "Who is to blame",
    "Collectives",
    "How to do it again",
)


def _lines(document: Document) -> Iterator[str]:
    yield f"## {_text(document.title)}: {_text(document.kind)}"
    yield f"\n{_SIGN[document.verdict.level]} **{_text(document.verdict.headline)}**\n"
    yield from (f"- {_text(reason)}" for reason in document.verdict.reasons)
    if document.facts:
        rows = [[fact.label, fact.value, fact.detail] for fact in document.facts]
        yield from _table(Table(("", "value", ""), rows, frozenset({0, 2})))
    for section in document.sections:
        if section.title in _SHOWN:
            yield f"\n### {_text(section.title)}"
            for block in section.blocks:
                yield from _block(block)
    yield f"\n{_text(document.origin)}"


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Table):
        yield from _table(block)
    elif isinstance(block, Text):
        yield f"\n{_text(block.text)}"
    elif isinstance(block, Code):
        fence = "`" * 3
        while fence in block.text:
            fence += "`"
        yield f"\n{fence}\n{block.text}\n{fence}"
    elif isinstance(block, Folded):
        yield f"\n<details><summary>{_text(block.summary)}</summary>\n"
        for inner in block.blocks:
            yield from _block(inner)
        yield "\n</details>"


def _table(table: Table) -> Iterator[str]:
    yield f"\n{_row(table.head)}"
    yield _row([":--" if at in table.text else "--:" for at in range(len(table.head))], plain=True)
    for row in table.rows:
        yield _row([cell.text if isinstance(cell, Cell) else cell for cell in row])


def _row(cells: Sequence[str], *, plain: bool = False) -> str:

    return "| " + " | ".join(cell if plain else _text(cell) for cell in cells) + " |"


_SPECIAL: Final = str.maketrans(
    {c: f"\\{c}" for c in "\\`*_[]|#"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;", "\n": " "}
)


def _text(text: str) -> str:
    """Text that Markdown shows as it is."""
    return text.translate(_SPECIAL)
