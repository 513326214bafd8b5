"""Arithmetic as people write it, from text nobody has vetted: evaluate it, write the answer, notice a sum.

The seed's calculator finds ``(5 - 1) * 234.22 =`` with a regular expression and hands it to Python's
``eval``. A model's text is hostile until proven otherwise, so here nothing is ever executed. One lexer cuts
the text into numbers, operators, brackets and the few function names; Python's parser (``ast.parse`` only)
says how they nest; a loop without recursion works the tree out in exact fractions. One invariant replaces
most checks: every value is zero or lies between 1e-300 and 1e300, and what a step may cost is estimated
before it is taken.

The evaluator and the finder share the lexer and the list of what is allowed, hence one file, a long one.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

from workbench.errors import WorkbenchError, did_you_mean

__all__ = ["ArithmeticRefused", "Equation", "evaluate", "find_equation", "format_number"]

MAX_CHARACTERS = 300
MAX_DIGITS = 300  # of an integer; every value is a finite float, and none is rounded to zero
MAX_NESTING = 32  # brackets inside brackets, and signs in a row
MAX_EXPONENT = 1_000_000
FUNCTIONS = {"sqrt": (1, 1), "abs": (1, 1), "round": (1, 2), "min": (1, 99), "max": (1, 99)}  # arguments

_ALLOWED = (
    f"Allowed: numbers such as 12, 1,234.5 or 1e3, + - * / // % ^ **, brackets and {', '.join(FUNCTIONS)}, "
    f"in at most {MAX_CHARACTERS} characters, every value below 1e{MAX_DIGITS}."
)
_LIMIT = 10**MAX_DIGITS
_PARTS = 10 ** (MAX_DIGITS + 50)  # numerator and denominator: a value at the limit and its digits
_WORKING_DIGITS, _KEPT_DIGITS, _SETTLED_DIGITS = 60, 40, 30  # of a value that can't be exact, e.g. sqrt(2)
_SPACES = " \t\u00a0"
_OPERATORS = {"^": "**", "×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-"}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Equation:
    """An expression at the end of a text whose answer is due: ``text[start:end] == expression``."""

    expression: str
    start: int
    end: int  # of the expression: the equals sign comes later
    result_text: str


def evaluate(expression: str) -> int | float:
    """The value of ``expression``: an int when it is a whole number, else the nearest float.

    Fractions are exact inside, so 0.1 + 0.2 is 0.3 and 1/3*3 is 1. Precedence is Python's (``-2^2`` is -4,
    ``2^3^2`` is 512, ``%`` and ``//`` round down); ``round`` takes halves away from zero, as at school.
    Raises ArithmeticRefused for every text that is not arithmetic within the limits, and nothing else.
    """
    try:
        return _Calculation().run(_parse(expression))
    except ArithmeticRefused as refusal:
        shown = repr(expression if len(expression) <= 60 else expression[:57] + "...")
        why = str(refusal)
        stop = "" if why[-1] in ".?" else "."
        raise ArithmeticRefused(f"Won't compute {shown}: {why}{stop} {_ALLOWED}") from None


def format_number(value: int | float) -> str:
    """``value`` as a person would write it: ``10`` for 10.0, ``0.3333333333`` for a third.

    A decimal of at most 15 significant digits is written in full; a longer one is rounded to 10, or to two
    places if those are more. Integers are never rounded. From 1e21 on ``1e21`` style is used where it
    loses nothing, and below 1e-7 always. Raises ArithmeticRefused for inf, nan and integers beyond the
    digit limit.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ArithmeticRefused(f"can't write {value!r} as a number; a finite value is needed")
    if isinstance(value, int) and abs(value) >= _LIMIT:
        raise ArithmeticRefused(f"can't write an integer of more than {MAX_DIGITS} digits")
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)  # as exact as it looks
    number = Decimal(value if isinstance(value, int) else float.__repr__(value))
    sign, digits, exponent = _significant(number)
    long = len(digits) > 15
    if long and isinstance(value, int):
        return str(value)
    if long:
        places = 10 if abs(value) >= 1e15 else max(10, min(len(digits) + exponent + 2, 15))
        sign, digits, exponent = _significant(Context(prec=places, traps=[]).plus(number))
    return "0" if digits == "0" else sign + _with_point(digits, exponent, 15 if long else 21)


def find_equation(text: str, *, start: int = 0) -> Equation | None:
    """The sum at the very end of ``text[start:]`` whose answer is due, as in ``"so 3 + 4 ="``, or None.

    The longest arithmetic before one final ``=`` (and optional spaces) counts, if it holds an operator
    between two numbers, stands in one line, within the last 300 characters, and nothing before it would
    change its value: ``a*3 + 4 =``, ``x1 + 2 =`` and ``sin(1) + 2 =`` give None, as does any doubt.
    Never raises. LaTeX's ``\\times``, ``\\cdot`` and ``\\div`` are understood.
    """
    begin = max(start, len(text) - MAX_CHARACTERS, 0)
    tail = text[begin:].rstrip(_SPACES)
    if not tail.endswith("="):
        return None
    line = max(tail.rfind(mark) for mark in "\n\r\v\f\u2028\u2029") + 1
    cut = begin > 0 and (begin != start or text[begin - 1].isalnum() or text[begin - 1] in "_.,")
    lexemes = [lexeme for lexeme in _lex(tail[line:-1]) if lexeme.kind != "space"]
    first = _first_of_expression(lexemes, bool(line) or not cut)
    if first is None:
        return None
    left, right = begin + line + lexemes[first].start, begin + line + lexemes[-1].end
    try:
        tree = _parse(text[left:right])
        if _DATE.fullmatch(text[left:right]) or not any(isinstance(x, ast.BinOp) for x in ast.walk(tree)):
            return None
        answer = format_number(_Calculation().run(tree))
    except ArithmeticRefused:
        return None
    return Equation(expression=text[left:right], start=left, end=right, result_text=answer)


# --- text to tree ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Lexeme:
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


def _lex(text: str) -> Iterator[_Lexeme]:
    for match in _LEXEME.finditer(text):
        kind, piece = match.lastgroup or "other", match.group()
        yield _Lexeme("function" if piece in FUNCTIONS else kind, piece, match.start(), match.end())


def _parse(expression: str) -> ast.expr:
    """The tree of an expression made of allowed lexemes only, its numbers kept as text."""
    if len(expression) > MAX_CHARACTERS:
        raise ArithmeticRefused(f"it has {len(expression)} characters; shorten it")
    source = " ".join(_python_tokens([x for x in _lex(expression.strip()) if x.kind != "space"]))
    try:
        tree = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # the last two: the parser's own stack
        raise ArithmeticRefused("numbers, operators and brackets do not fit together; complete it") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = source[node.col_offset : node.end_col_offset]
    return tree


def _python_tokens(lexemes: Sequence[_Lexeme]) -> Iterator[str]:
    """What Python's parser may see: ``lexemes`` translated, once each of them is found harmless."""
    calls: list[bool] = []  # one per open bracket: is it a function's?
    run = 0  # of operators, all but one of them signs
    before: _Lexeme | None = None
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


def _python_token(before: _Lexeme | None, lexeme: _Lexeme, after: _Lexeme | None, in_call: bool) -> str:
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
        raise ArithmeticRefused(
            f"{text[:20]!r} is one number or several; put a space after a comma that separates"
        )
    for index, part in enumerate(text.split(",")):
        lexeme = next(_lex(part))
        if lexeme.kind != "number" or lexeme.text != part:
            raise ArithmeticRefused(_why_not(lexeme))
        yield from ([","] if index else [])
        yield _number(part)


def _check_percent(before: _Lexeme | None, lexeme: _Lexeme, after: _Lexeme | None) -> None:
    """Refuse ``20% * 5``, ``20% + 5`` and ``20% 5``, where a person means a percentage, not a remainder."""
    if lexeme.text != "%":
        return
    follows = after is not None and after.begins_operand and not after.is_sign
    if before is None or after is None or not follows or _touch(before, lexeme) != _touch(lexeme, after):
        raise ArithmeticRefused(
            "percentages are not supported (% is the remainder, as in 17 % 5); write 0.2 for 20%"
        )


def _touch(left: _Lexeme, right: _Lexeme) -> bool:
    return left.end == right.start


def _why_not(lexeme: _Lexeme) -> str:
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


# --- tree to value --------------------------------------------------------------------------------------


class _Calculation:
    """Works out one tree. ``exact`` turns False for good once a value had to be rounded."""

    def __init__(self) -> None:
        self.exact = True

    def run(self, tree: ast.expr) -> int | float:
        pending, order = [tree], []
        while pending:  # parents first, read backwards below: no recursion, whatever the depth
            order.append(pending.pop())
            pending.extend(_operands(order[-1]))
        values: list[Fraction] = []
        for node in reversed(order):
            count = len(_operands(node))
            taken = values[len(values) - count :]
            del values[len(values) - count :]
            values.append(self.settle(self.step(node, taken)))
        value = values.pop()
        if self.exact and value.denominator == 1:
            return value.numerator
        nearest = float(value)
        return int(nearest) if not self.exact and nearest.is_integer() and abs(nearest) < 1e15 else nearest

    def step(self, node: ast.expr, values: list[Fraction]) -> Fraction:
        match node:
            case ast.Constant(value=str() as text):
                return Fraction(text)
            case ast.UnaryOp(op=op):
                return -values[0] if isinstance(op, ast.USub) else values[0]
            case ast.BinOp(op=op):
                return self.binary(op, *values)
            case ast.Call(func=ast.Name(id=name)):
                return self.call(name, values)
        raise ArithmeticRefused(f"{type(node).__name__} is not arithmetic")  # _operands saw to it before

    def settle(self, value: Fraction) -> Fraction:
        """``value`` within the invariant: of a size allowed, and of no more digits than that size needs."""
        top, bottom = abs(value.numerator), value.denominator
        if top >= _LIMIT * bottom:
            raise ArithmeticRefused(f"a value on the way has more than {MAX_DIGITS} digits")
        if top and top * _LIMIT < bottom:
            raise ArithmeticRefused(f"a value on the way is smaller than 1e-{MAX_DIGITS}")
        return value if top < _PARTS and bottom < _PARTS else self.inexact(value)

    def inexact(self, value: Fraction, digits: int = _KEPT_DIGITS) -> Fraction:
        self.exact = False
        return Fraction(_decimal(value, digits))

    def binary(self, op: ast.operator, a: Fraction, b: Fraction) -> Fraction:
        match op:
            case ast.Add():
                return self.add(a, b)
            case ast.Sub():
                return self.add(a, -b)
            case ast.Mult():
                return a * b
            case ast.Pow():
                return self.power(a, b)
        if not b:
            raise ArithmeticRefused("it divides by zero")
        if isinstance(op, ast.Div):
            return a / b
        quotient = Fraction(math.floor(self.settled(a / b)))
        return quotient if isinstance(op, ast.FloorDiv) else self.add(a, -b * quotient)

    def add(self, a: Fraction, b: Fraction) -> Fraction:
        total = a + b
        noise = max(abs(a), abs(b)) / 10 ** (_KEPT_DIGITS - 5)
        return total if self.exact or abs(total) > noise else Fraction(0)  # sqrt(2)^2 - 2 is 0

    def settled(self, value: Fraction) -> Fraction:
        """What a jump (``//``, ``round``) may look at: not the last digits of a rounded value."""
        return value if self.exact else self.inexact(value, _SETTLED_DIGITS)

    def power(self, base: Fraction, exponent: Fraction) -> Fraction:
        if abs(exponent) > MAX_EXPONENT:
            raise ArithmeticRefused(f"an exponent is beyond {MAX_EXPONENT}")
        if not base and exponent < 0:
            raise ArithmeticRefused("it divides by zero (zero to a negative power)")
        whole = exponent.denominator == 1
        if not base:
            return Fraction(int(not exponent))
        if base < 0 and not whole:
            raise ArithmeticRefused("a fractional power of a negative number is a complex number")
        top, bottom = math.log10(abs(base.numerator)), math.log10(base.denominator)
        if abs(float(exponent) * (top - bottom)) > MAX_DIGITS + 1:
            raise ArithmeticRefused(f"a power would have more than {MAX_DIGITS} digits")
        if exponent == Fraction(1, 2):
            return self.root(base)
        if whole and abs(exponent) * Fraction(max(top, bottom)) <= MAX_DIGITS + 50:
            return Fraction(base ** int(exponent))
        rounded = Context(prec=_WORKING_DIGITS, traps=[]).power(_decimal(base), _decimal(exponent))
        return self.inexact(Fraction(rounded))

    def root(self, value: Fraction) -> Fraction:
        if value < 0:
            raise ArithmeticRefused("the square root of a negative number is a complex number")
        root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
        if root * root == value:
            return root
        return self.inexact(Fraction(_decimal(value).sqrt(Context(prec=_WORKING_DIGITS, traps=[]))))

    def call(self, name: str, values: list[Fraction]) -> Fraction:
        if name == "sqrt":
            return self.root(values[0])
        if name == "round":
            return self.round(*values)
        return abs(values[0]) if name == "abs" else (min if name == "min" else max)(values)

    def round(self, value: Fraction, places: Fraction = Fraction(0)) -> Fraction:
        if places.denominator != 1 or abs(places) > MAX_DIGITS:
            raise ArithmeticRefused(f"round takes whole places up to {MAX_DIGITS}, as in round(2.345, 2)")
        scale = Fraction(10) ** int(places)
        size = math.floor(self.settled(abs(value) * scale) + Fraction(1, 2))
        return (size if value >= 0 else -size) / scale


def _decimal(value: Fraction, digits: int = _WORKING_DIGITS) -> Decimal:
    return Context(prec=digits, traps=[]).divide(Decimal(value.numerator), Decimal(value.denominator))


def _significant(number: Decimal) -> tuple[str, str, int]:
    """Sign, digits without zeros at the end, and the power of ten that the digits count."""
    sign, digits, exponent = number.as_tuple()
    shown = "".join(map(str, digits)).rstrip("0")
    return "-" if sign else "", shown or "0", int(exponent) + len(digits) - len(shown)


def _with_point(digits: str, exponent: int, longest: int) -> str:
    """``digits`` times ten to ``exponent``; with an ``e`` beyond ``longest`` digits or six zeros behind 0."""
    point = len(digits) + exponent  # where the decimal point goes, counted from the first digit
    if point > longest or point < -6:
        return f"{digits[0]}{'.' if digits[1:] else ''}{digits[1:]}e{point - 1}"
    whole = digits[: max(point, 0)].ljust(point, "0") or "0"
    part = "0" * -point + digits[max(point, 0) :]
    return f"{whole}{'.' if part else ''}{part}"


def _operands(node: ast.expr) -> Sequence[ast.expr]:
    """The allow-list: what a node is made of, if it is one we know. Raises ArithmeticRefused."""
    match node:
        case ast.Constant(value=str()):
            return ()
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return (operand,)
        case ast.BinOp(
            op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() | ast.FloorDiv() | ast.Mod() | ast.Pow()
        ):
            return (node.left, node.right)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            least, most = FUNCTIONS[name]
            if least <= len(args) <= most:
                return args
            wanted = "1 number" if most == 1 else f"{least} to {most} numbers"
            raise ArithmeticRefused(f"{name} takes {wanted}, not {len(args)}")
        case ast.Call(func=func) if not isinstance(func, ast.Name):
            raise ArithmeticRefused("a bracket follows a number; write the * between them")
    raise ArithmeticRefused("numbers, operators and brackets do not fit together; complete it")


# --- where an expression begins -------------------------------------------------------------------------

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


def _first_of_expression(lexemes: Sequence[_Lexeme], known: bool) -> int | None:
    """Index of the lexeme that the expression at the end begins with; None when something binds to it.

    ``known`` says that the first lexeme is whole and that nothing stands before it in its line.
    """
    first, depth = len(lexemes), 0
    right: _Lexeme | None = None
    for index in range(len(lexemes) - 1, -1, -1):
        lexeme = lexemes[index]
        depth += (lexeme.kind == "close") - (lexeme.kind == "open")
        if depth < 0 or (lexeme.kind == "comma" and depth == 0) or not _may_precede(lexeme, right):
            break
        if depth == 0 and lexeme.begins_operand:
            first = index
        right = lexeme
    if first == len(lexemes) or (first == 0 and not known):
        return None
    if first == 0 and lexemes[0].is_sign and lexemes[0].end < lexemes[1].start:
        return 1  # "- 3 + 4 =" is an item of a list
    return None if first and _binds(lexemes[:first], lexemes[first], lexemes[first + 1 :], known) else first


def _may_precede(lexeme: _Lexeme, right: _Lexeme | None) -> bool:
    if lexeme.kind in ("number", "close"):
        return right is None or right.kind in ("operator", "close", "comma")
    if lexeme.kind == "function":
        return right is not None and right.kind == "open"
    return lexeme.kind in ("operator", "open", "comma") and right is not None and right.begins_operand


def _binds(before: Sequence[_Lexeme], first: _Lexeme, rest: Sequence[_Lexeme], known: bool) -> bool:
    """Would what stands before the expression change its value, or might it?"""
    last = before[-1]
    glued = last.end == first.start
    minus = first.is_sign and (glued or first.end < rest[0].start)  # "a - 3", "a-3": it takes two
    text = "".join(
        x.text if i == 0 or before[i - 1].end == x.start else " " + x.text for i, x in enumerate(before)
    )
    if last.kind == "open" or (last.kind == "comma" and not glued):
        return False
    if len(before) == 1 and known and last.text in _BULLETS:
        return False
    if last.kind == "operator":  # markdown's bold is the only star that is no product
        return not (last.text == "**" and glued and known and len(before) > 1 and before[-2].text in _STOPS)
    if last.kind == "close":
        return glued or first.is_sign or not _LABEL.search(text)
    if last.kind == "word":
        return glued or minus or not _is_plain_word(before) or bool(_BINDING_WORDS.search(text))
    return last.kind != "other" or _mark_binds(before, first, glued, minus)


def _is_plain_word(before: Sequence[_Lexeme]) -> bool:
    """A word of prose: not a variable, not a name of LaTeX's; the s of "that's" is one."""
    word, mark = before[-1], before[-2] if len(before) > 1 else None
    touching = mark.text if mark is not None and mark.end == word.start else ""
    return word.text.isalpha() and touching != "\\" and (len(word.text) > 1 or touching in ("'", "’"))


def _mark_binds(before: Sequence[_Lexeme], first: _Lexeme, glued: bool, minus: bool) -> bool:
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
