"""What an answer may look like: seven strategies that are plain data, and the one grammar they all become.

Everything but JSON and a grammar is a regular language, so it becomes one Lark terminal: llguidance runs
that as an exact automaton over bytes. Several terminals would be split by its greedy lexer, which refuses
some texts that are right. ``llguidance`` also judges patterns, schemas and grammars here, without a
tokenizer and in about a millisecond, so that a wrong one is refused where it is written.
Longer than 300 lines because a strategy, its grammar and what it refuses are best read together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from llguidance import LLMatcher, regex_to_lark

from ..errors import FlowError

__all__ = [
    "KNOWN_STRATEGIES",
    "CharsMode",
    "CharsStrat",
    "ChoicesStrat",
    "GrammarStrat",
    "JsonStrat",
    "ListStrat",
    "RegexStrat",
    "Strategy",
    "UntilEndType",
    "UntilStrat",
    "grammar_of",
]

MAX_CHOICES = 1_000
MAX_FINITE = 64
"""Up to so many choices are decided on whole strings."""
MAX_TEXT = 1_000
"""Characters in one choice, tag or separator."""
MAX_SIZE = 4_000
"""Characters or elements that a strategy may count; beyond, the automaton gets large."""
MAX_SOURCE = 100_000
"""Characters in a pattern, a schema or a grammar."""


class UntilEndType(StrEnum):
    """What ends an answer of ``UntilStrat``: a tag, or any of some characters."""

    TAG = "tag"
    ANYCHAR = "anychar"


class CharsMode(StrEnum):
    """``ALPHA``: Unicode letters; ``NUMERIC``: the digits 0 to 9; ``ALPHANUMERIC``: both; ``STRING``: any
    character, line breaks too; ``JS_FLOAT``: a JSON number, such as ``-1.5e3``."""

    ALPHA = "alpha"
    ALPHANUMERIC = "alphanumeric"
    NUMERIC = "numeric"
    STRING = "string"
    JS_FLOAT = "js_float"


_CLASSES = {
    CharsMode.ALPHA: r"[\p{L}]",
    CharsMode.ALPHANUMERIC: r"[\p{L}0-9]",
    CharsMode.NUMERIC: "[0-9]",
    CharsMode.STRING: "(?s:.)",
}
_JS_FLOAT = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/"


class _Open:
    """What strategies share; most have more answers than can be listed."""

    __slots__ = ()

    def finite(self) -> tuple[str, ...] | None:
        """All whole answers, where there are at most 64 of them and they are listed."""
        return None

    def answer_of(self, text: str) -> str:
        """The answer in a text that matched: without a space at its start and without what only marks its end."""
        return text.removeprefix(" ")


@dataclass(frozen=True, slots=True)
class ChoicesStrat(_Open):
    """One of some strings, up to 1,000; no two may be equal after ``strip().casefold()``."""

    choices: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", _distinct(self.choices, "ChoicesStrat"))

    def finite(self) -> tuple[str, ...] | None:
        return self.choices if len(self.choices) <= MAX_FINITE else None

    def answer_of(self, text: str) -> str:
        return text if text in self.choices else text.removeprefix(" ")


@dataclass(frozen=True, slots=True)
class UntilStrat(_Open):
    """Text that begins with ``start`` and ends where, after it, ``end`` first appears.

    TAG: ``end`` is one string; ANYCHAR: each of its characters ends the text. The answer is all of it.
    """

    start: str
    end_type: UntilEndType
    end: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "end_type", _member(UntilEndType, self.end_type, "UntilStrat.end_type"))
        _text(self.start, "UntilStrat.start", empty=True)
        _text(self.end, "UntilStrat.end")


@dataclass(frozen=True, slots=True)
class CharsStrat(_Open):
    """At least ``min`` characters of a kind. ``stop``: at most so many, or up to the first time that string appears.

    A ``stop`` string is generated, and so belongs to the match, but not to the answer.
    """

    mode: CharsMode
    min: int = 1
    stop: int | str = field(kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", _member(CharsMode, self.mode, "CharsStrat.mode"))
        _whole(self.min, "CharsStrat.min")
        if isinstance(self.stop, str):
            _text(self.stop, "CharsStrat.stop")
        else:
            _whole(self.stop, "CharsStrat.stop", least=1)
            _in_order(self.min, self.stop, "CharsStrat", "stop")

    def answer_of(self, text: str) -> str:
        text = text.removeprefix(" ")
        return text.removesuffix(self.stop) if isinstance(self.stop, str) else text


@dataclass(frozen=True, slots=True)
class ListStrat(_Open):
    """``open``, then ``min`` to ``max`` elements with ``sep`` between and ``wrap`` round each, ``close``, ``end_with``.

    ``elements`` are strings to pick from, again and again, or a strategy that each element follows. ``end_with``
    is generated, and so belongs to the match, but not to the answer. A list of JSON values is JsonStrat's work.
    """

    elements: tuple[str, ...] | ListedStrategy
    open: str = ""
    close: str = ""
    wrap: str = ""
    sep: str = ", "
    min: int = 1
    max: int | None = None
    end_with: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.elements, (JsonStrat, GrammarStrat)):
            raise FlowError(
                f"ListStrat can't hold {type(self.elements).__name__}: say the whole list in the schema or the grammar"
            )
        if not isinstance(self.elements, LISTED):
            object.__setattr__(self, "elements", _distinct(self.elements, "ListStrat", what="element"))
        for name in ("open", "close", "wrap", "sep"):
            _text(getattr(self, name), f"ListStrat.{name}", empty=True)
        if self.end_with is not None:
            _text(self.end_with, "ListStrat.end_with")
        _whole(self.min, "ListStrat.min")
        if self.max is not None:
            _whole(self.max, "ListStrat.max", least=1)
            _in_order(self.min, self.max, "ListStrat", "max")

    def answer_of(self, text: str) -> str:
        return text.removeprefix(" ").removesuffix(self.end_with or "")


@dataclass(frozen=True, slots=True)
class RegexStrat(_Open):
    """A text that the whole pattern matches, in the syntax of Rust's regex crate.

    No look-around, back-references or ``\\b``; ``\\d`` is an ASCII digit; ``^`` and ``$`` only at the
    ends, where they change nothing.
    """

    pattern: str

    def __post_init__(self) -> None:
        _text(self.pattern, "RegexStrat.pattern", most=MAX_SOURCE)
        if not _unanchored(self.pattern):
            raise FlowError(f"RegexStrat's pattern {self.pattern!r} fits only an empty text")
        _refuse_wrong(self, f"RegexStrat can't use the pattern {_short(self.pattern)}")


@dataclass(frozen=True, slots=True)
class JsonStrat(_Open):
    """A JSON value that fits a JSON Schema, written without white space. The schema may be given as JSON text."""

    schema: Mapping[str, Any] = field(hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", _schema(self.schema))
        _refuse_wrong(self, "JsonStrat can't use this schema")


@dataclass(frozen=True, slots=True)
class GrammarStrat(_Open):
    """A text of a context-free grammar: Lark as llguidance reads it, with a rule named ``start``."""

    lark: str

    def __post_init__(self) -> None:
        _text(self.lark, "GrammarStrat.lark", most=MAX_SOURCE)
        _refuse_wrong(self, "GrammarStrat can't use this grammar")


ListedStrategy: TypeAlias = "ChoicesStrat | UntilStrat | CharsStrat | ListStrat | RegexStrat"
Strategy: TypeAlias = "ListedStrategy | JsonStrat | GrammarStrat"
KNOWN_STRATEGIES = (ChoicesStrat, UntilStrat, CharsStrat, ListStrat, RegexStrat, JsonStrat, GrammarStrat)
LISTED = (ChoicesStrat, UntilStrat, CharsStrat, ListStrat, RegexStrat)


def grammar_of(strategy: Strategy, *, leading_space: bool = False) -> str:
    """The strategy as a Lark grammar for llguidance; ``leading_space`` lets one space come first, or not."""
    space = '" "? ' if leading_space else ""
    match strategy:
        case JsonStrat(schema=schema):
            options = {"whitespace_flexible": False, **schema.get("x-guidance", {})}
            return f"start: {space}answer\nanswer: %json {_json({**schema, 'x-guidance': options})}\n"
        case GrammarStrat(lark=lark):
            return f"start: {space}answer\nanswer: %lark {{\n{lark}\n}}\n" if leading_space else lark
        case _:
            return f"start: ANSWER\nANSWER: {space}{_terminal(strategy)}\n"


def _terminal(strategy: ListedStrategy) -> str:
    """The strategy as one bracketed expression of Lark's terminals, where ``&`` is and, ``~`` not."""
    match strategy:
        case ChoicesStrat(choices=choices):
            return f"({' | '.join(map(_json, choices))})"
        case UntilStrat(start=start, end_type=UntilEndType.TAG, end=end):
            return f"({_json(start)} {_first(_ANYTHING, end)})"
        case UntilStrat(start=start, end=end):
            marks = "".join(f"\\x{{{ord(char):x}}}" for char in dict.fromkeys(end))
            return f"({_json(start)} /[^{marks}]*[{marks}]/)"
        case CharsStrat(stop=str(stop)):
            return _first(_characters(strategy.mode, strategy.min, None), stop)
        case CharsStrat():
            return _characters(strategy.mode, strategy.min, int(strategy.stop))
        case RegexStrat(pattern=pattern):
            return f"(/{regex_to_lark(_unanchored(pattern), 'd')}/)"
        case ListStrat():
            return _list(strategy)


_ANYTHING = "/(?s:.*)/"


def _first(body: str, end: str) -> str:
    """``body`` and then ``end``, which appears nowhere before its place at the end."""
    tag = _json(end)
    return f"(({body} {tag}) & ~({_ANYTHING} {tag} /(?s:.+)/))"


def _characters(mode: CharsMode, least: int, most: int | None) -> str:
    count = f"{{{least},{'' if most is None else most}}}"
    if mode is CharsMode.JS_FLOAT:
        return f"({_JS_FLOAT} & /(?s:.){count}/)"
    return f"/{_CLASSES[mode]}{count}/"


def _list(strategy: ListStrat) -> str:
    elements = strategy.elements
    inner = _terminal(ChoicesStrat(elements) if isinstance(elements, tuple) else elements)
    wrap, sep = _json(strategy.wrap), _json(strategy.sep)
    one = f"{wrap} {inner} {wrap}"
    most = "" if strategy.max is None else strategy.max - 1
    more = "" if most == 0 else f" ({sep} {one}){{{max(strategy.min - 1, 0)},{most}}}"
    some = f"({one}{more})" + ("?" if strategy.min == 0 else "")
    return f"({_json(strategy.open)} {some} {_json(strategy.close + (strategy.end_with or ''))})"


def _unanchored(pattern: str) -> str:
    """The pattern without a first ``^`` and a last ``$``: the whole answer must match anyway."""
    pattern = pattern.removeprefix("^")
    before = pattern.removesuffix("$")
    escaped = (len(before) - len(before.rstrip("\\"))) % 2 == 1
    return pattern if escaped else before


# --- what is refused ---


def _refuse_wrong(strategy: Strategy, complaint: str) -> None:
    """Let llguidance compile the grammar, without a tokenizer."""
    said = LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar_of(strategy)))
    if said:
        reason = said.rsplit("error: ", 1)[-1] if "error: " in said else said.split("): ", 1)[-1]
        raise FlowError(f"{complaint}: {reason.splitlines()[0]}")


def _distinct(values: Any, name: str, *, what: str = "choice") -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, (list, tuple)):
        raise FlowError(f"{name} needs a list of strings, got {_short(values)}")
    if not 1 <= len(values) <= MAX_CHOICES:
        raise FlowError(f"{name} takes 1 to {MAX_CHOICES:,} {what}s, got {len(values):,}")
    seen: dict[str, str] = {}
    for value in values:
        _text(value, f"{name}: each {what}")
        if not (key := value.strip().casefold()):
            raise FlowError(f"{name} has a {what} that is only white space: {value!r}")
        if key in seen:
            raise FlowError(f"{name}: {seen[key]!r} and {value!r} are the same {what} but for case and outer spaces")
        seen[key] = value
    return tuple(values)


def _text(value: Any, name: str, *, empty: bool = False, most: int = MAX_TEXT) -> None:
    if not isinstance(value, str):
        raise FlowError(f"{name} must be a string, got {_short(value)}")
    if not (empty or value):
        raise FlowError(f"{name} is empty: give at least one character")
    if len(value) > most:
        raise FlowError(f"{name} has {len(value):,} characters; the limit is {most:,}")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise FlowError(f"{name} holds half a character (a lone surrogate): {_short(value)}")


def _whole(value: Any, name: str, *, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_SIZE:
        raise FlowError(f"{name} must be a whole number from {least} to {MAX_SIZE:,}, got {_short(value)}")


def _in_order(least: int, most: int, name: str, limit: str) -> None:
    if least > most:
        raise FlowError(f"{name} has min {least} above {limit} {most}: nothing can fit")


def _member(kind: Any, value: Any, name: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise FlowError(f"{name} is one of {', '.join(member.name for member in kind)}, got {_short(value)}") from None


def _schema(given: Any) -> dict[str, Any]:
    """A private copy of the schema, whether it came as JSON text or as a mapping."""
    try:
        text = given if isinstance(given, str) else json.dumps(given, allow_nan=False)
        schema = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise FlowError(f"JsonStrat.schema is no JSON: {error}") from None
    if not isinstance(schema, dict) or not isinstance(schema.get("x-guidance", {}), dict):
        raise FlowError(f"JsonStrat.schema must be a JSON object such as {{'type': 'integer'}}, got {_short(given)}")
    _text(text, "JsonStrat.schema", most=MAX_SOURCE)
    return schema


def _json(value: Any) -> str:
    return json.dumps(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
