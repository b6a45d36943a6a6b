"""Suite files (YAML): cases and what they must hold. The schema is published as genie/suite/suite.schema.json."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from genie.errors import InputError
from genie.units import parse_size_bytes

MAX_RUNS: Final = 500
"""So many replays of one suite are a slip of the pen."""

LINE_RATE: Final = "line_rate"
CASE: Final = "case:"


def _size(value: Any) -> Any:
    if isinstance(value, int):
        return value
    if not isinstance(value, str):
        raise ValueError("write a size with its unit, such as 4 MiB")  # noqa: TRY004 - pydantic wants ValueError
    try:
        return parse_size_bytes(value)
    except InputError as error:
        raise ValueError(str(error)) from error


Size = Annotated[int, BeforeValidator(_size, json_schema_input_type=str), Field(ge=1)]
Ranks = Annotated[int, Field(ge=2, le=4096)] | Literal["all"]


def _list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Threshold(_Model):
    """A bound on a figure of docs/metrics.md.

    Attributes:
        metric: the figure.
        scope: of what, * stands for anything; "" is the whole run. Every scope that fits is checked.
        at_most, at_least: bounds, both included; one of them or both.
        of: what the bounds are multiples of: nothing, "line_rate" (of the slowest host link, in GB/s), or "case:NAME"
            (the same figure of that case).
        severity: a warning is told and fails nothing.
        every: the bound holds for every iteration, not only for their median.
        optional: that the run does not tell the figure is no failure.
    """

    metric: str
    scope: str = ""
    at_most: float | None = None
    at_least: float | None = None
    of: str = Field("", pattern=r"^($|line_rate$|case:.+)")
    severity: Literal["failure", "warning"] = "failure"
    every: bool = False
    optional: bool = False

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.at_most is None and self.at_least is None:
            raise ValueError("say at_most, at_least or both")
        return self

    def fits(self, scope: str) -> bool:
        """Whether figures of that scope are meant."""
        return fnmatchcase(scope, self.scope)

    @property
    def words(self) -> str:
        """The bound for people."""
        times = f" x {self.of}" if self.of else ""
        bounds = (("at least", self.at_least), ("at most", self.at_most))
        return " and ".join(f"{word} {bound:g}{times}" for word, bound in bounds if bound is not None)


class CaseFile(_Model):
    """What is replayed. Lists of ranks, sizes and flows stand for all their combinations.

    Attributes:
        pattern: of `genie trace generate list`; or
        trace: prefix or folder of traces, relative to the suite file.
        set: further parameters of the pattern.
        ranks: "all" are all places of the testbed; combinations with more ranks than it has are left out.
        size: bytes of the pattern's largest message or buffer.
        flows: connections (queue pairs) per pair of ranks.
        jobs: the ranks' number is split into so many equal jobs, interleaved over the hosts.
        idle: all but the first of the jobs do nothing: what interference is measured against.
        system: ASTRA-sim system file, relative to the suite file.
        without: cables that are missing, as "leaf0-spine1".
        warmup, repeats: iterations that do not count, and that do.
        attempts: a case that fails is replayed so often in all, to tell flaky failures from firm ones; it stays failed.
        section: of the report.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$")
    about: str = ""
    section: str = ""
    pattern: str = ""
    trace: str = ""
    set: dict[str, float | int | str] = Field(default_factory=dict)
    ranks: Annotated[list[Ranks], BeforeValidator(_list)] = Field(["all"], min_length=1)
    size: Annotated[list[Size], BeforeValidator(_list)] = Field([1 << 20], min_length=1)
    flows: Annotated[list[Annotated[int, Field(ge=1, le=1024)]], BeforeValidator(_list)] = Field([1], min_length=1)
    jobs: int = Field(1, ge=1, le=64)
    idle: bool = False
    system: str = ""
    without: list[str] = Field(default_factory=list)
    transport: str = "tcp"
    warmup: int = Field(1, ge=0)
    repeats: int = Field(3, ge=1, le=100_000)
    attempts: int = Field(1, ge=1, le=10)
    thresholds: list[Threshold] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.pattern) == bool(self.trace):
            raise ValueError("say either pattern or trace")
        return self


class SuiteFile(_Model):
    """A suite.

    Attributes:
        thresholds: checked of every case, after its own.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    about: str = ""
    thresholds: list[Threshold] = Field(default_factory=list)
    cases: list[CaseFile] = Field(min_length=1)

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [case.name for case in self.cases]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"two cases are called {twice[0]}")
        for case in self.cases:
            self._check_references(case)
        return self

    def _check_references(self, case: CaseFile) -> None:
        """A case may only refer to earlier ones, of as many combinations (or one)."""
        before = {}
        for one in self.cases:
            if one.name == case.name:
                break
            before[one.name] = one
        for threshold in case.thresholds:
            if threshold.of.startswith(CASE) and threshold.of.removeprefix(CASE) not in before:
                raise ValueError(f"{case.name}: {threshold.of} is no earlier case")


@dataclass(frozen=True, slots=True)
class Case:
    """One combination of a case: what is replayed once.

    Attributes:
        file: what the suite says.
        ranks, size_bytes, flows: chosen of it.
        label: tells the combination from the others of its case, "" if there is one.
    """

    file: CaseFile
    ranks: int
    size_bytes: int
    flows: int
    label: str

    @property
    def name(self) -> str:
        """The case's name with its combination."""
        return f"{self.file.name} ({self.label})" if self.label else self.file.name


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite, scaled to a testbed: the replays to make, and what was left out for want of places."""

    name: str
    about: str
    folder: Path
    cases: tuple[Case, ...]
    left_out: tuple[str, ...]
    thresholds: tuple[Threshold, ...]


def load_suite(path: Path) -> SuiteFile:
    """Read a suite file.

    Raises:
        InputError: missing, no YAML, or a wrong field.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return SuiteFile.model_validate(content)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"is no YAML: {' '.join(str(error).split())}.", where=str(path)) from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InputError(wrong, where=str(path), fix="docs/validate.md describes the file.") from error


def find_suite(name: str) -> Path:
    """A shipped suite by name, else a file.

    Raises:
        InputError: neither.
    """
    if name in (known := shipped()):
        return known[name]
    path = Path(name)
    if not path.is_file():
        raise InputError(f"no suite {name!r}.", fix=f"name a file, or one of {', '.join(known)}.")
    return path


def shipped() -> dict[str, Path]:
    """The suites that come with Genie."""
    folder = Path(str(resources.files("genie.suite"))) / "shipped"
    return {path.stem: path for path in sorted(folder.glob("*.yml"))}


def scale(file: SuiteFile, folder: Path, places: int, cables: Collection[str]) -> Suite:
    """The replays of a suite on a testbed of so many places and with cables of these names (both ways round).

    Raises:
        InputError: no case fits, or there are too many replays.
    """
    cases: list[Case] = []
    left_out: list[str] = []
    for case in file.cases:
        for made in _combinations(case, places):
            missing = [name for name in case.without if name not in cables]
            if missing:
                left_out.append(f"{made.name}: the testbed has no cable {missing[0]}")
            elif made.ranks > places or made.ranks // case.jobs < 2:  # noqa: PLR2004 - one rank sends nothing
                left_out.append(f"{made.name}: {made.ranks} ranks in {case.jobs} jobs, the testbed has {places} places")
            else:
                cases.append(made)
    if not cases:
        raise InputError("no case of the suite fits the testbed.", where=file.name, fix="use a larger testbed.")
    if len(cases) > MAX_RUNS:
        raise InputError(f"{len(cases)} replays; {MAX_RUNS} are the limit.", where=file.name)
    return Suite(file.name, file.about, folder, tuple(cases), tuple(left_out), tuple(file.thresholds))


def _combinations(case: CaseFile, places: int) -> Iterator[Case]:
    seen = set()
    for ranks, size, flows in itertools.product(case.ranks, case.size, case.flows):
        count = places // case.jobs * case.jobs if ranks == "all" else ranks
        if (count, size, flows) not in seen:
            seen.add((count, size, flows))
            parts = ((case.ranks, f"{count} ranks"), (case.size, _bytes(size)), (case.flows, f"{flows} flows"))
            yield Case(case, count, size, flows, ", ".join(text for given, text in parts if len(given) > 1))


def _bytes(size: int) -> str:
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def schema() -> dict[str, Any]:
    """The JSON schema of suite files."""
    return SuiteFile.model_json_schema()
