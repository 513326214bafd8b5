"""Is the answer of a sum due at the end of a text? The finder behind the calculator mod."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from .arithmetic import format_number, value_of
from .expressions import MAX_CHARACTERS, SPACES, ArithmeticRefused, Lexeme, lexemes, parse

__all__ = ["Equation", "find_equation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Equation:
    """An expression at the end of a text whose answer is due: ``text[start:end] == expression``."""

    expression: str
    start: int
    end: int  # of the expression: the equals sign comes later
    result_text: str


def find_equation(text: str, *, start: int = 0) -> Equation | None:
    """The sum at the very end of ``text[start:]`` whose answer is due, as in ``"so 3 + 4 ="``, or None.

    The longest arithmetic before one final ``=`` (and optional spaces) counts, if it holds an operator
    between two numbers, stands in one line, within the last 300 characters, and nothing before it would
    change its value: ``a*3 + 4 =``, ``x1 + 2 =`` and ``sin(1) + 2 =`` give None, as does any doubt.
    Never raises. LaTeX's ``\\times``, ``\\cdot`` and ``\\div`` are understood, as is a lone ``x`` between two
    numbers; markdown's ``**``, backquotes, ``$``, ``\\(`` and ``\\[`` may stand right around the expression.
    """
    begin = max(start, len(text) - MAX_CHARACTERS, 0)
    tail = text[begin:].rstrip(SPACES)
    if not tail.endswith("="):
        return None
    line = max(tail.rfind(mark) for mark in "\n\r\v\f\u2028\u2029") + 1
    cut = begin > 0 and (begin != start or text[begin - 1].isalnum() or text[begin - 1] in "_.,")
    body, wrappers = _unwrapped(tail[line:-1])
    pieces = lexemes(body)
    first = _first_of_expression(pieces, bool(line) or not cut)
    if first is None or not _opens_with(body[: pieces[first].start], wrappers):
        return None
    left, right = begin + line + pieces[first].start, begin + line + pieces[-1].end
    answer = _answer(text[left:right])
    if answer is None:
        return None
    return Equation(expression=text[left:right], start=left, end=right, result_text=answer)


def _answer(expression: str) -> str | None:
    """The value as text; None for a lone number, a date, and what can't be worked out."""
    try:
        tree = parse(expression)
        if _DATE.fullmatch(expression) or not any(isinstance(x, ast.BinOp) for x in ast.walk(tree)):
            return None
        return format_number(value_of(tree))
    except ArithmeticRefused:
        return None


def _unwrapped(body: str) -> tuple[str, list[str]]:
    """``body`` without the marks that close a wrapping at its end, and the marks that must have opened it."""
    openers: list[str] = []  # the innermost first
    body = body.rstrip(SPACES)
    while closer := next((mark for mark in _WRAPPERS if body.endswith(mark)), None):
        openers.insert(0, _WRAPPERS[closer])
        body = body[: -len(closer)].rstrip(SPACES)
    return body, openers


def _opens_with(before: str, openers: Sequence[str]) -> bool:
    for opener in openers:
        before = before.rstrip(SPACES)
        if not before.endswith(opener):
            return False
        before = before[: -len(opener)]
    return True


# --- where an expression begins -------------------------------------------------------------------------

_WRAPPERS = {"**": "**", "$$": "$$", "$": "$", "\\)": "\\(", "\\]": "\\[", "`": "`"}  # closed by: opened by
_DATE = re.compile(r"[0-9]{4}([-/])[0-9]{1,2}\1[0-9]{1,2}|[0-9]{1,2}([-/])[0-9]{1,2}\2[0-9]{4}")
_LABEL = re.compile(r"(?:^\(?|\s)\w{1,3}\)$")  # "1)", "b)"; and "(2)" where a line begins, else a factor
_BINDING_WORDS = re.compile(
    r"(?:^|\W)(?:plus|minus|negative|times|over|by|mod|twice|double|triple|choose|sin|cos|tan|log|ln|exp"
    r"|(?:percent|half|thirds?|quarters?|root|square|cube|power|factorial)\s+of)$|%\s*of$",
    re.IGNORECASE,
)
_OPENERS = "=<>≈≤≥≠→⇒[{$&"
_QUOTES = "\"'`“”‘’«"
_STOPS = ":;.?!|…"
_CURRENCIES = "£€¥"
_BULLETS = ("*", "**", "•", "–", "—", "#", "-", "+", "−")


def _first_of_expression(pieces: Sequence[Lexeme], known: bool) -> int | None:
    """Index of the lexeme that the expression at the end begins with; None when something binds to it.

    ``known`` says that the first lexeme is whole and that nothing stands before it in its line.
    """
    first, depth = len(pieces), 0
    right: Lexeme | None = None
    for index in range(len(pieces) - 1, -1, -1):
        lexeme = pieces[index]
        depth += (lexeme.kind == "close") - (lexeme.kind == "open")
        if depth < 0 or (lexeme.kind == "comma" and depth == 0) or not _may_precede(lexeme, right):
            break
        if depth == 0 and lexeme.begins_operand:
            first = index
        right = lexeme
    if first == len(pieces) or (first == 0 and not known):
        return None
    if first == 0 and pieces[0].is_sign and pieces[0].end < pieces[1].start:
        return 1  # "- 3 + 4 =" is an item of a list
    return None if first and _binds(pieces[:first], pieces[first], pieces[first + 1 :], known) else first


def _may_precede(lexeme: Lexeme, right: Lexeme | None) -> bool:
    if lexeme.kind in ("number", "close"):
        return right is None or right.kind in ("operator", "close", "comma")
    if lexeme.kind == "function":
        return right is not None and right.kind == "open"
    return lexeme.kind in ("operator", "open", "comma") and right is not None and right.begins_operand


def _binds(before: Sequence[Lexeme], first: Lexeme, rest: Sequence[Lexeme], known: bool) -> bool:
    """Would what stands before the expression change its value, or might it?"""
    last = before[-1]
    glued = last.end == first.start
    minus = first.is_sign and (glued or first.end < rest[0].start)  # "a - 3", "a-3": it takes two
    text = "".join(x.text if i == 0 or before[i - 1].end == x.start else " " + x.text for i, x in enumerate(before))
    if last.kind == "open" or (last.kind == "comma" and not glued):
        return False
    if len(before) == 1 and known and last.text in _BULLETS:
        return False
    if last.kind == "operator":  # markdown's bold is the only star that is no product
        return not (last.text == "**" and glued) or _bold_binds(before, first, rest, known)
    if last.kind == "close":
        return glued or first.is_sign or not _LABEL.search(text)
    if last.kind == "word":
        return glued or minus or not _is_plain_word(before) or bool(_BINDING_WORDS.search(text))
    return last.kind != "other" or _mark_binds(before, first, glued, minus)


def _bold_binds(before: Sequence[Lexeme], first: Lexeme, rest: Sequence[Lexeme], known: bool) -> bool:
    """Is ``**`` right before the expression a power after all, or does something before it bind?"""
    outside, bold = before[:-1], before[-1]
    if not outside:
        return not known
    if outside[-1].end < bold.start:
        return _binds(outside, first, rest, known)
    return not (known and outside[-1].text in _STOPS)


def _is_plain_word(before: Sequence[Lexeme]) -> bool:
    """A word of prose: not a variable, not a name of LaTeX's; the s of "that's" is one."""
    word, mark = before[-1], before[-2] if len(before) > 1 else None
    touching = mark.text if mark is not None and mark.end == word.start else ""
    return word.text.isalpha() and touching != "\\" and (len(word.text) > 1 or touching in ("'", "’"))


def _mark_binds(before: Sequence[Lexeme], first: Lexeme, glued: bool, minus: bool) -> bool:
    mark = before[-1].text
    if mark in _OPENERS and not (mark in "$&" and first.is_sign and not glued):
        return False
    if minus and mark not in ":;":  # "5! - 3", "$5' - 3": the sign has something on its left
        return True
    touching = len(before) > 1 and before[-2].end == before[-1].start
    if glued and touching and before[-2].text[-1].isalnum() and not before[-2].text.isalpha():
        return True  # 12:30, 1'234
    if first.is_sign and mark == "!":
        return True
    return mark not in (_QUOTES + _STOPS + _CURRENCIES) or (glued and mark in ".|!")
