"""HTML that is escaped by construction: whatever is no Markup is text."""

from __future__ import annotations

from html import escape


class Markup(str):
    """A piece of HTML, safe to be written as it is."""

    __slots__ = ()


Child = Markup | str | None
VOID = frozenset({"meta", "br"})


def element(tag: str, *children: Child, **attributes: str | None) -> Markup:
    """An element with its children; None leaves a child or an attribute out, `class_` writes the attribute class."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in VOID:
        return Markup(f"<{tag}{given}>")
    return Markup(f"<{tag}{given}>{together(*children)}</{tag}>")


def together(*children: Child) -> Markup:
    """Children one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children if child))
