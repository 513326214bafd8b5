"""From hostile text to a harmless tree: which characters are arithmetic, and how they nest.

One lexer cuts a text into numbers, operators, brackets and the few function names; Python's parser
(``ast.parse`` only, nothing is ever executed) says how they nest. The evaluator and the finder of equations
both read what comes out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..errors import WorkbenchError, did_you_mean

__all__ = [
    "FUNCTIONS",
    "MAX_CHARACTERS",
    "MAX_DIGITS",
    "SPACES",
    "ArithmeticRefused",
    "Lexeme",
    "lexemes",
    "parse",
]

MAX_CHARACTERS = 300
MAX_DIGITS = 300  # of an integer; every value is a finite float, and none is rounded to zero
MAX_NESTING = 32  # brackets inside brackets, and signs in a row
FUNCTIONS = {"sqrt": (1, 1), "abs": (1, 1), "round": (1, 2), "min": (1, 99), "max": (1, 99)}  # arguments
SPACES = " \t\u00a0"

_OPERATORS = {"^": "**", "×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-", "x": "*", "X": "*"}
_OPERATORS |= {"\\times": "*", "\\cdot": "*", "\\div": "/"}
# Every alternative either consumes what it looked at or gives up at once: the lexer is linear.
_LEXEME = re.compile(
    r"""
    (?P<space>(?:[ \t\u00a0]|\\(?:left|right)(?![A-Za-z])|\\[,;])++)
    |(?P<number>(?>(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]++)?|\.[0-9]++)
        (?:[eE][+-]?[0-9]++)?+(?!\w|[.,][0-9]))
    |(?P<word>(?:\w|\.(?=[0-9]))(?:\w|[.,](?=[0-9]))*+)
    |(?P<operator>\*\*|//|[-+*/%^×·⋅÷−]|\\(?:times|cdot|div)(?![A-Za-z]))
    |(?P<open>\()|(?P<close>\))|(?P<comma>,)|(?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


class ArithmeticRefused(WorkbenchError, ValueError):
    """The text is not arithmetic, or is arithmetic that costs too much or has no finite real value."""


@dataclass(frozen=True, slots=True)
class Lexeme:
    """One piece of a text, ``text[start:end]``."""

    kind: str  # a group of _LEXEME, or "function"
    text: str
    start: int
    end: int

    @property
    def is_sign(self) -> bool:
        return self.kind == "operator" and self.text in "+-−"

    @property
    def begins_operand(self) -> bool:
        return self.kind in ("number", "open", "function") or self.is_sign


def lexemes(text: str) -> list[Lexeme]:
    """The pieces of ``text`` without its spaces; an ``x`` that stands between two numbers is a times sign."""
    found = [lexeme for lexeme in _lex(text) if lexeme.kind != "space"]
    for index in range(1, len(found) - 1):
        if _is_times(*found[index - 1 : index + 2]):
            found[index] = replace(found[index], kind="operator")
    return found


def _is_times(left: Lexeme, letter: Lexeme, right: Lexeme) -> bool:
    """``17 x 23`` is a product; ``17x23`` may be a size and ``3x2`` a variable, so spaces are needed."""
    spaced = left.end < letter.start and letter.end < right.start
    between = left.kind in ("number", "close") and right.begins_operand and not right.is_sign
    return letter.text in ("x", "X") and spaced and between


def _lex(text: str) -> Iterator[Lexeme]:
    for match in _LEXEME.finditer(text):
        kind, piece = match.lastgroup or "other", match.group()
        yield Lexeme("function" if piece in FUNCTIONS else kind, piece, match.start(), match.end())


def parse(expression: str) -> ast.expr:
    """The tree of an expression made of allowed lexemes only, its numbers kept as text."""
    if len(expression) > MAX_CHARACTERS:
        raise ArithmeticRefused(f"it has {len(expression)} characters; shorten it")
    source = " ".join(_python_tokens(lexemes(expression.strip())))
    try:
        tree = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # the last two: the parser's own stack
        raise ArithmeticRefused("numbers, operators and brackets do not fit together; complete it") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = source[node.col_offset : node.end_col_offset]
    return tree


def _python_tokens(lexemes: Sequence[Lexeme]) -> Iterator[str]:
    """What Python's parser may see: ``lexemes`` translated, once each of them is found harmless."""
    calls: list[bool] = []  # one per open bracket: is it a function's?
    run = 0  # of operators, all but one of them signs
    before: Lexeme | None = None
    for lexeme, after in zip(lexemes, [*lexemes[1:], None], strict=False):
        run = run + 1 if lexeme.kind == "operator" else 0
        if lexeme.kind == "open":
            calls.append(before is not None and before.kind == "function")
        if max(run, len(calls)) > MAX_NESTING:
            raise ArithmeticRefused(f"it nests deeper than {MAX_NESTING} levels; split it up")
        in_call = bool(calls) and calls[-1]
        if in_call and "," in lexeme.text and lexeme.kind in ("number", "word"):
            yield from _arguments(lexeme.text)
        else:
            yield _python_token(before, lexeme, after, in_call)
        if lexeme.kind == "close" and calls:
            calls.pop()
        before = lexeme


def _python_token(before: Lexeme | None, lexeme: Lexeme, after: Lexeme | None, in_call: bool) -> str:
    match lexeme.kind:
        case "number":
            return _number(lexeme.text)
        case "operator":
            _check_percent(before, lexeme, after)
            return _OPERATORS.get(lexeme.text, lexeme.text)
        case "open" | "close":
            return lexeme.text
        case "comma" if in_call:
            return lexeme.text
        case "function" if after is not None and after.kind == "open":
            return lexeme.text
    raise ArithmeticRefused(_why_not(lexeme))


def _number(text: str) -> str:
    """``text`` without its thousands commas. Raises ArithmeticRefused when Python would balk or stall."""
    mantissa, _, exponent = text.lower().partition("e")
    if exponent and (len(exponent) > 5 or abs(int(exponent)) > MAX_DIGITS):
        raise ArithmeticRefused(f"the exponent of {text[:20]!r} is beyond {MAX_DIGITS}; use a smaller one")
    whole = mantissa.partition(".")[0]
    if len(whole) > 1 and whole[0] == "0":
        raise ArithmeticRefused(f"{text[:20]!r} has a leading zero, which is a date or a code; drop the zero")
    return text.replace(",", "")


def _arguments(text: str) -> Iterator[str]:
    """``1,2`` between a function's brackets: two arguments, unless it could be one number."""
    if all(re.fullmatch(r"[0-9]{3}(?:\.[0-9]+)?", part) for part in text.split(",")[1:]):
        raise ArithmeticRefused(f"{text[:20]!r} is one number or several; put a space after a comma that separates")
    for index, part in enumerate(text.split(",")):
        lexeme = next(_lex(part))
        if lexeme.kind != "number" or lexeme.text != part:
            raise ArithmeticRefused(_why_not(lexeme))
        yield from ([","] if index else [])
        yield _number(part)


def _check_percent(before: Lexeme | None, lexeme: Lexeme, after: Lexeme | None) -> None:
    """Refuse ``20% * 5``, ``20% + 5`` and ``20% 5``, where a person means a percentage, not a remainder."""
    if lexeme.text != "%":
        return
    follows = after is not None and after.begins_operand and not after.is_sign
    if before is None or after is None or not follows or _touch(before, lexeme) != _touch(lexeme, after):
        raise ArithmeticRefused("percentages are not supported (% is the remainder, as in 17 % 5); write 0.2 for 20%")


def _touch(left: Lexeme, right: Lexeme) -> bool:
    return left.end == right.start


def _why_not(lexeme: Lexeme) -> str:
    shown = repr(lexeme.text[:20])
    if lexeme.kind == "function":
        return f"{shown} needs its brackets, as in {lexeme.text}(2)"
    if lexeme.kind == "word" and "," in lexeme.text:
        return f"the commas of {shown} do not group thousands; write 1,234,567 or a decimal point"
    if lexeme.kind == "word" and lexeme.text[0] in "0123456789.":
        return f"{shown} is not a decimal number; write digits only, as in 1000"
    if lexeme.kind == "word":
        return f"{shown} is neither a number nor a known function.{did_you_mean(lexeme.text[:20], FUNCTIONS)}"
    if lexeme.kind == "comma":
        return "a comma separates only a function's arguments and thousands; use a decimal point"
    return f"{shown} is not part of arithmetic; leave it out"
