"""What a report says, apart from how it looks: written once, rendered as HTML and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Level(StrEnum):
    """How good something is."""

    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that is more than its text: `bar` (0 to 1) draws its size, `level` colours it."""

    text: str
    level: Level = Level.PLAIN
    bar: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table; `text` numbers the columns that hold words (they wrap and are set to the left)."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    text: frozenset[int] = frozenset({0})


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str
    level: Level = Level.PLAIN


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to be typed."""

    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure, drawn when it is needed; wide ones scroll on small screens."""

    caption: str
    draw: Callable[[], Figure]
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Folded:
    """Blocks that are shown on demand."""

    summary: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Beside:
    """Pictures that stand side by side where there is room."""

    pictures: Sequence[Picture]


Block = Table | Text | Code | Picture | Folded | Beside


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what is below it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the numbers may be used, in one sentence, and why."""

    level: Level
    headline: str
    reasons: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Fact:
    """One of the few numbers that matter most."""

    label: str
    value: str
    detail: str = ""
    level: Level = Level.PLAIN


@dataclass(frozen=True, slots=True)
class Document:
    """A report."""

    title: str
    kind: str
    origin: str
    verdict: Verdict
    facts: Sequence[Fact]
    sections: Sequence[Section] = field(default=())
