"""Arithmetic as people write it, from text nobody has vetted: work it out, write the answer.

The seed's calculator hands ``(5 - 1) * 234.22`` to Python's ``eval``. A model's text is hostile until proven
otherwise, so here a loop without recursion works the parsed tree out in exact fractions. One invariant
replaces most checks: every value is zero or lies between 1e-300 and 1e300, and what a step may cost is
estimated before it is taken.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction

from .expressions import FUNCTIONS, MAX_CHARACTERS, MAX_DIGITS, ArithmeticRefused, parse

__all__ = ["ArithmeticRefused", "evaluate", "format_number", "value_of"]

MAX_EXPONENT = 1_000_000

_ALLOWED = (
    f"Allowed: numbers such as 12, 1,234.5 or 1e3, + - * / // % ^ **, brackets and {', '.join(FUNCTIONS)}, "
    f"in at most {MAX_CHARACTERS} characters, every value below 1e{MAX_DIGITS}."
)
_LIMIT = 10**MAX_DIGITS
_PARTS = 10 ** (MAX_DIGITS + 50)  # numerator and denominator: a value at the limit and its digits
_WORKING_DIGITS, _KEPT_DIGITS, _SETTLED_DIGITS = 60, 40, 30  # of a value that can't be exact, e.g. sqrt(2)


def evaluate(expression: str) -> int | float:
    """The value of ``expression``: an int when it is a whole number, else the nearest float.

    Fractions are exact inside, so 0.1 + 0.2 is 0.3 and 1/3*3 is 1. Precedence is Python's (``-2^2`` is -4,
    ``2^3^2`` is 512, ``%`` and ``//`` round down); ``round`` takes halves away from zero, as at school.
    Raises ArithmeticRefused for every text that is not arithmetic within the limits, and nothing else.
    """
    try:
        return value_of(parse(expression))
    except ArithmeticRefused as refusal:
        shown = repr(expression if len(expression) <= 60 else expression[:57] + "...")
        why = str(refusal)
        stop = "" if why[-1] in ".?" else "."
        raise ArithmeticRefused(f"Won't compute {shown}: {why}{stop} {_ALLOWED}") from None


def value_of(tree: ast.expr) -> int | float:
    """The value of a tree that ``parse`` made, in the way of :func:`evaluate`."""
    return _Calculation().run(tree)


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
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() | ast.FloorDiv() | ast.Mod() | ast.Pow()):
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
