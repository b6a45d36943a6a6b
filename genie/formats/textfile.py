"""JSON and YAML files as plain values, typed access to their keys: whatever a file holds, only InputErrors leave."""

from __future__ import annotations

import json
import math
import reprlib
import stat
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from genie.errors import InputError

MAX_TEXT_BYTES: Final = 64 << 20
"""More than this is no configuration file."""

MAX_INT32: Final = (1 << 31) - 1
"""ASTRA-sim keeps ranks, sizes of dimensions, and group numbers in C++ ints."""

_TOO_DEEP: Final = "is nested too deeply."


def read_text(path: Path | str) -> str:
    """A text file's content.

    Raises:
        InputError: missing, unreadable, no regular file, too large, or no UTF-8.
    """
    path = Path(path)
    try:
        about = path.stat()
        if stat.S_ISREG(about.st_mode) and about.st_size > MAX_TEXT_BYTES:
            raise InputError(f"is larger than {MAX_TEXT_BYTES >> 20} MiB.", where=str(path))
        if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
            raise InputError("is no regular file.", where=str(path))
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError("is no UTF-8 text.", where=str(path)) from error


def read_json(path: Path | str) -> Any:
    """A JSON file's content; NaN and Infinity are no JSON.

    Raises:
        InputError: missing or malformed, with line and column.
    """
    try:
        return json.loads(read_text(path), parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        where = f"{path}, line {error.lineno}, column {error.colno}"
        raise InputError(f"is no JSON: {error.msg}.", where=where) from error
    except RecursionError as error:
        raise InputError(_TOO_DEEP, where=str(path)) from error
    except ValueError as error:
        raise InputError(f"is no JSON: {error}.", where=str(path)) from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON's")


def read_yaml(path: Path | str) -> Any:
    """A YAML file's content, loaded safely.

    Raises:
        InputError: missing or malformed.
    """
    try:
        return yaml.safe_load(read_text(path))
    except RecursionError as error:
        raise InputError(_TOO_DEEP, where=str(path)) from error
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"is no YAML: {' '.join(str(error).split())}.", where=str(path)) from error


def as_number(value: Any) -> float | None:
    """A finite number, or None if `value` is none; text that spells one counts, as in ASTRA-sim's YAML reader."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def as_count(value: Any) -> int | None:
    """A whole number from 0 that ASTRA-sim can hold, or None; decimal digits as text count."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= len(str(MAX_INT32)):
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_INT32 else None


class Keys:
    """Typed access to a JSON object's keys, with the file in every message."""

    def __init__(self, content: Any, path: Path | str) -> None:
        if not isinstance(content, dict):
            raise InputError("is no JSON object.", where=str(path))
        self.content, self.path = content, str(path)

    def _wrong(self, key: str, what: str) -> InputError:
        return InputError(f"{key} must be {what}, not {shown(self.content.get(key))}.", where=self.path)

    def number(self, key: str, default: float, least: float = 0.0) -> float:
        """A finite number not below `least`."""
        value = self.content.get(key, default)
        number = float(value) if isinstance(value, bool) else None if isinstance(value, str) else as_number(value)
        if number is None:
            raise self._wrong(key, "a number")
        if number < least:
            raise self._wrong(key, f"at least {least:g}")
        return number

    def whole(self, key: str, default: int, least: int = 0) -> int:
        """A whole number that ASTRA-sim can hold; it truncates fractions (10.7 becomes 10)."""
        number = int(self.number(key, default, least))
        if number > MAX_INT32:
            raise self._wrong(key, f"at most {MAX_INT32}")
        return number

    def choice(self, key: str, choices: type[StrEnum], default: Any) -> Any:
        """A member of `choices`."""
        value = self.content.get(key, default)
        if value not in list(choices):
            raise self._wrong(key, f"one of {', '.join(str(c.value) for c in choices)}")
        return choices(value)

    def names(self, key: str) -> tuple[str, ...]:
        """A list of texts, () when absent."""
        value = self.content.get(key, [])
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self._wrong(key, "a list of names")
        return tuple(value)


def shown(value: Any) -> str:
    """A value for a message, shortened while it is made: YAML aliases can stand for terabytes of text."""
    text = reprlib.repr(value)
    return text if len(text) <= 40 else text[:37] + "..."  # noqa: PLR2004 - as much as fits a line


def wrong_fields(error: ValidationError) -> str:
    """Everything that is wrong with a file that was held against its model, as one sentence."""
    return "; ".join(_wrong_field(detail["loc"], detail["type"], detail["msg"]) for detail in error.errors()) + "."


def _wrong_field(where: tuple[int | str, ...], kind: str, message: str) -> str:
    key = ".".join(map(str, where))
    if kind == "missing":
        return f"{key} is missing"
    if kind == "extra_forbidden":
        return f"{key} is no key here"
    if kind == "model_type":
        return f"{key or 'the file'} must be a mapping"
    return f"{key}: {message[:1].lower()}{message[1:]}"
