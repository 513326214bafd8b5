"""JSON from text nobody has vetted: bounded in size and depth, and nothing but JSON."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

__all__ = ["MAX_CHARACTERS", "MAX_NESTING", "closing", "parse_json"]

MAX_CHARACTERS = 100_000
MAX_NESTING = 64
_MARKS = re.compile(r'"(?:[^"\\]|\\.)*+(?P<closed>")?|[\[\]{}]', re.DOTALL)  # whole strings, and brackets
_WORD = re.compile(r"[^\s,\]}]+")


def parse_json(text: str) -> Any:
    """The value of a JSON text.

    :raises ValueError: it is no JSON (NaN and Infinity are none), or beyond ``MAX_CHARACTERS`` characters or
        ``MAX_NESTING`` levels.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it has {len(text)} characters; {MAX_CHARACTERS} are allowed")
    depth = 0
    for mark in _MARKS.finditer(text):
        depth += _step(mark.group())
        if depth > MAX_NESTING:
            raise ValueError(f"it nests deeper than {MAX_NESTING} levels")
    return json.loads(text, parse_constant=_refuse)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def closing(text: str, begin: int) -> int | None:
    """Where the JSON value that begins at ``begin`` is closed, or None while it is open.

    A closed value need not be valid. A number or a word is closed by what follows it.
    """
    if text[begin] not in '"[{':
        word = _WORD.match(text, begin)
        return word.end() if word and word.end() < len(text) else None
    depth = 0
    for mark in _MARKS.finditer(text, begin):
        if mark.group()[0] == '"' and not mark["closed"]:
            return None
        depth += _step(mark.group())
        if depth <= 0:
            return mark.end()
    return None


def _step(mark: str) -> int:
    return (mark in ("[", "{")) - (mark in ("]", "}"))
