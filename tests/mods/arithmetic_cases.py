"""What the tests of evaluator and finder share: hostile texts, and random sums with their value."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

laws = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])

HOSTILE = [
    *["9**9**9", "9^9^9", "9**3999999", "(9**9999)**9999", "9**-9**9", "2**(2**(2**(2**(2**2))))"],
    *["10**1000000", "(1/3)**999999", "1.5**1000000", "0.5**1000000", "99999**99999", "-9**99999"],
    *["2**1e6", "2**1e300", "1e300*10", "1e309", "1e308*10", "1e400", "1e-400", "1e999999999"],
    *["1e-999999999", "-1e309", "1" + "0" * 299 + "*10", "9" * 299 + "*9", "9" * 301],
    *["0." + "0" * 400 + "1", "1e300", "1e299*1e299", "1e-299*1e-299", "1e+00000000001", "(-8)**0.5"],
    *["(-1)**(1/2)", "(-2)**0.1", "sqrt(-1)", "sqrt(-1e-9)", "1/0", "1//0", "1%0", "0**-1", "1/(1-1)"],
    *['__import__("os")', "__import__('os').system('id')", "().__class__.__bases__", "().__class__"],
    *["exec('1')", "eval('1')", "open('/etc/passwd')", "lambda: 1", "[1 for x in y]", "[1] * 9", "'a' * 9"],
    *["b'a'", "f'{1}'", "x := 1", "(x := 1)", "1 if 1 else 2", "1 and 2", "not 1", "1 < 2", "1 == 1", "~1"],
    *["1 << 9999", "1 | 2", "1 & 2", "1 @ 2", "True", "None", "...", "inf", "nan", "math.inf", "pi"],
    *["1 .real", "1..real", "(1).real", "factorial(10**6)", "factorial(5)", "pow(9, 9)", "sum([1])"],
    *["range(9)", "sqrt.__self__", "sqrt(x=1)", "sqrt", "min()", "round(1, 10**9)"],
    *["max(" + "1, " * 120 + "1)", "sqrt(*[1])", "abs(**{})", "min(1;2)", "(" * 5000],
    *["(" * 5000 + ")" * 5000, "(" * 149 + "1" + ")" * 149, "-" * 50000 + "1", "-" * 299 + "1"],
    *["1+" * 100000 + "1", "~" * 200 + "1", "2" + "**2" * 90, "1e" * 100, "1," * 100, "." * 300],
    *["1" * 10**6, "\x00", "1\x00+1", "1 + \ud800", "\udfff", "１ + １", "٣+٤", "²", "2²", "½ + 1", "1 +\n1"],
    *["1;1", "1#1", "1\\\n+1", "%" * 200, "1%%1", "* 3", "+", "_", "0b1", "0o7", "1l", "08", "1 000"],
    *["1.2.3", "1..2", "🙂" * 100, "5€ + 1"],
]  # fmt: skip

integers = st.integers(-(10**6), 10**6)


def _join(parts: tuple[tuple[str, Fraction], str, tuple[str, Fraction]]) -> tuple[str, Fraction]:
    (left, a), operator, (right, b) = parts
    return f"({left} {operator} {right})", _apply(operator, a, b)


def _branches(inner: st.SearchStrategy[tuple[str, Fraction]]) -> st.SearchStrategy[tuple[str, Fraction]]:
    parts = st.tuples(inner, st.sampled_from("+-*/"), inner)
    return parts.filter(lambda part: part[1] != "/" or part[2][1] != 0).map(_join)


leaves = integers.map(lambda n: (str(n) if n >= 0 else f"({n})", Fraction(n)))
trees = st.recursive(leaves, _branches, max_leaves=12)


def _apply(operator: str, left: Fraction, right: Fraction) -> Fraction:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
    return left / right
