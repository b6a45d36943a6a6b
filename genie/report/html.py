"""A run as one HTML file: no network, no scripts; reads well on a phone, in the dark and on paper."""

from __future__ import annotations

from functools import singledispatchmethod
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any

from genie.errors import NotReadyError
from genie.formats.runfile import Run
from genie.report import plots
from genie.report.content import document_of
from genie.report.document import (
    Beside,
    Block,
    Cell,
    Code,
    Document,
    Fact,
    Folded,
    Level,
    Picture,
    Section,
    Table,
    Text,
    Verdict,
)
from genie.report.markup import Markup, element, together

_SIGN = {Level.GOOD: "\N{CHECK MARK}", Level.WARN: "!", Level.BAD: "\N{MULTIPLICATION X}", Level.PLAIN: "i"}


def render(run: Run, out: Path) -> Path:
    """Write the report of a run to `out`; gives `out` back.

    Raises:
        InputError: a path in the run leads out of its directory.
        NotReadyError: `out` cannot be written.
    """
    text = page(document_of(run))
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NotReadyError(f"the report cannot be written: {error.strerror}.", where=str(out)) from error
    return out


def page(document: Document) -> str:
    """A document as a whole HTML page."""
    style = resources.files("genie.report").joinpath("style.css").read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{document.title} - {document.kind}"),
        element("style", Markup(style)),
    )
    body = element("body", element("main", _top(document), *_Renderer().sections(document)))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _top(document: Document) -> Markup:
    titles = element("header", element("p", document.kind, class_="kind"), element("h1", document.title))
    facts = element("div", *(_fact(fact) for fact in document.facts), class_="facts") if document.facts else None
    contents = [element("a", section.title, href=f"#s{at}") for at, section in enumerate(document.sections)]
    origin = element("p", document.origin, class_="origin")
    return together(titles, origin, _verdict(document.verdict), facts, element("nav", *contents))


def _verdict(verdict: Verdict) -> Markup:
    reasons = element("ul", *(element("li", reason) for reason in verdict.reasons)) if verdict.reasons else None
    sign = element("span", _SIGN[verdict.level], class_="sign", aria_hidden="true")
    return element(
        "section", sign, element("div", element("p", verdict.headline), reasons), class_=f"verdict {verdict.level}"
    )


def _fact(fact: Fact) -> Markup:
    label, value = element("span", fact.label, class_="label"), element("b", fact.value)
    return element("div", label, value, element("span", fact.detail, class_="detail"), class_=f"fact {fact.level}")


class _Renderer:
    """Blocks -> HTML; numbers the figures, so that their ids differ."""

    def __init__(self) -> None:
        self._figures = count(1)

    def sections(self, document: Document) -> list[Markup]:
        return [self._section(at, section) for at, section in enumerate(document.sections)]

    def _section(self, at: int, section: Section) -> Markup:
        blocks = [self.block(block) for block in section.blocks]
        return element("section", element("h2", section.title), *blocks, id=f"s{at}")

    @singledispatchmethod
    def block(self, block: Block) -> Markup:
        raise NotImplementedError(type(block).__name__)

    @block.register
    def _(self, block: Text) -> Markup:
        return element("p", block.text, class_=None if block.level is Level.PLAIN else f"says {block.level}")

    @block.register
    def _(self, block: Code) -> Markup:
        return element("pre", block.text)

    @block.register
    def _(self, block: Table) -> Markup:
        head = element("tr", *(element("th", text, class_=_wrap(block, at)) for at, text in enumerate(block.head)))
        rows = (
            element("tr", *(self._cell(cell, _wrap(block, at)) for at, cell in enumerate(row))) for row in block.rows
        )
        table = element("table", element("thead", head), element("tbody", *rows))
        return element("div", table, class_="scroll", tabindex="0")

    def _cell(self, cell: str | Cell, klass: str | None) -> Markup:
        if isinstance(cell, str):
            return element("td", cell, class_=klass)
        bar = None if cell.bar is None else element("i", class_="bar", style=f"width:{cell.bar:.1%}")
        return element("td", element("span", cell.text, class_=str(cell.level)), bar, class_=klass)

    @block.register
    def _(self, block: Picture) -> Markup:
        drawing = Markup(plots.svg(block.draw(), f"f{next(self._figures)}"))
        caption = element("figcaption", block.caption)
        inside = element("div", drawing, class_="scroll", tabindex="0") if block.wide else drawing
        return element("figure", inside, caption, class_="wide" if block.wide else None)

    @block.register
    def _(self, block: Beside) -> Markup:
        return element("div", *(self.block(picture) for picture in block.pictures), class_="beside")

    @block.register
    def _(self, block: Folded) -> Markup:
        return element("details", element("summary", block.summary), *(self.block(inner) for inner in block.blocks))


def _wrap(table: Table, column: int) -> str | None:
    return "text" if column in table.text else None


__all__: list[Any] = ["page", "render"]
