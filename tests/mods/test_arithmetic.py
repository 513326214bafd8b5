"""Laws of the calculator: exact where it answers, quick and clear where it refuses, never anything else."""

import math
import time
from contextlib import suppress
from fractions import Fraction

import pytest
from arithmetic_cases import HOSTILE, integers, laws, trees
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import WorkbenchError
from workbench.mods.arithmetic import ArithmeticRefused, evaluate, format_number


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(5 - 1) * 234.22", 936.88),
        ("17 * 23", 391),
        ("  3+4*(2-1)\n", 7),
        ("0.1 + 0.2", 0.3),
        ("2.50*4", 10),
        ("6/3", 2),
        ("1/3*3", 1),
        ("7/2", 3.5),
        ("7 // 2", 3),
        ("-7 // 2", -4),
        ("17 % 5", 2),
        ("17%5", 2),
        ("-2^2", -4),
        ("2^3^2", 512),
        ("2**-3", 0.125),
        ("2 ** 200", 2**200),
        ("1e3 + .5", 1000.5),
        ("1,234,567.5 * 2", 2469135),
        ("17 × 23 − 10 ÷ 4 · 2", 386),
        ("17 x 23 X (2)", 782),
        ("17 \\times 23 \\div 2 \\cdot 2", 391),
        ("\\left(3 + 4\\right)\\, \\cdot 2", 14),
        ("sqrt(16) + abs(-2)", 6),
        ("sqrt(2)^2 - 2", 0),
        ("sqrt(2) * sqrt(8) // 1", 4),
        ("sqrt(10**100)", 10**50),
        ("sqrt(1/4)", 0.5),
        ("8 ** (1/3)", 2),
        ("16 ** 1.5", 64),
        ("round(2.5)", 3),
        ("round(-2.5)", -3),
        ("round(2.345, 2)", 2.35),
        ("round(2.345,2)", 2.35),
        ("max(.5,.25, 0)", 0.5),
        ("round(1234, -2)", 1200),
        ("min(1,2) + max(3, 4, (1,000))", 1001),
        ("1.005 ** 360", 1.005**360),
        ("(-2) ** 3", -8),
        ("0 ** 0", 1),
        ("1 ** 1000000", 1),
        ("--5 - +3", 2),
    ],
)
def test_arithmetic_as_people_write_it_is_worked_out(expression: str, value: float) -> None:
    result = evaluate(expression)
    assert result == pytest.approx(value, rel=1e-12, abs=0)
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "complete it"),
        ("3 +", "complete it"),
        ("3 4", "complete it"),
        ("()", "complete it"),
        ("(1", "complete it"),
        ("max(*3)", "complete it"),
        ("max(**3)", "complete it"),
        ("2 * * 3", "complete it"),
        ("5(3)", r"write the \* between"),
        ("2, 3", "comma separates only"),
        ("3,4 + 1", "do not group thousands"),
        ("1,2345", "do not group thousands"),
        ("max(1,234)", "one number or several"),
        ("1_000", "'1_000' is not a decimal number"),
        ("0x10", "'0x10' is not a decimal number"),
        ("17x23", "'17x23' is not a decimal number"),
        ("x 3", "'x' is neither"),
        ("2j", "'2j' is not a decimal number"),
        ("007", "leading zero"),
        ("20% * 5", "percentages are not supported.*write 0.2 for 20%"),
        ("20% + 5", "percentages are not supported"),
        ("20% 5", "percentages are not supported"),
        ("50 %", "percentages are not supported"),
        ("sqr(4)", "Did you mean 'sqrt'"),
        ("sqrt 4", "needs its brackets"),
        ("sqrt(1, 2)", "sqrt takes 1 number, not 2"),
        ("max()", "max takes 1 to 99 numbers, not 0"),
        ("round(1, 0.5)", "round takes whole places"),
        ("5!", "'!' is not part of arithmetic"),
        ("٣ + 1", "'٣' is neither"),
        ("1/0", "divides by zero"),
        ("5 % (1 - 1)", "divides by zero"),
        ("0 ** -1", "divides by zero"),
        ("(-8)**0.5", "complex"),
        ("sqrt(-1)", "complex"),
        ("2**9999", "more than 300 digits"),
        ("1e-200 * 1e-200", "smaller than 1e-300"),
        ("9**9**9", "exponent is beyond 1000000"),
        ("1e999999999", "exponent of '1e999999999' is beyond 300"),
        ("1+" * 200 + "1", "it has 401 characters"),
        ("(" * 40 + "1" + ")" * 40, "nests deeper than 32"),
        ("-" * 40 + "1", "nests deeper than 32"),
    ],
)
def test_a_refusal_says_what_why_and_what_is_allowed(expression: str, why: str) -> None:
    with pytest.raises(ArithmeticRefused, match=rf"(?s)^Won't compute ['\"].*{why}.*Allowed: numbers"):
        evaluate(expression)
    assert issubclass(ArithmeticRefused, WorkbenchError)
    assert issubclass(ArithmeticRefused, ValueError)


def test_hostile_text_is_refused_and_quickly() -> None:
    assert len(HOSTILE) >= 100
    begun = time.perf_counter()
    for expression in HOSTILE:
        with pytest.raises(ArithmeticRefused, match="Allowed:"):
            evaluate(expression)
    assert time.perf_counter() - begun < 1


@pytest.mark.parametrize(
    "expression",
    [
        "1.1" + "**1.1" * 59,
        "sqrt(" * 32 + "2" + ")" * 32,
        "+".join(["1/97", "1/89", "1/83", "1/79", "1/73", "1/71", "1/67"] * 8),
        "*".join(["9.99999"] * 37),
        "1" * 298 + "/7",
        "2" + "**1" * 99,
        "max(" + "1, " * 98 + "1)",
    ],
)
def test_the_dearest_expressions_allowed_still_cost_little(expression: str) -> None:
    begun = time.perf_counter()
    assert math.isfinite(evaluate(expression))
    assert time.perf_counter() - begun < 1  # generous: 3 ms is usual


@laws
@given(tree=trees.filter(lambda tree: len(tree[0]) <= 300))
def test_it_agrees_with_fractions(tree: tuple[str, Fraction]) -> None:
    expression, value = tree
    result = evaluate(expression)
    if value.denominator == 1:
        assert isinstance(result, int)
        assert result == value
    else:
        assert isinstance(result, float)
        assert result == float(value)


@laws
@given(a=integers, b=integers.filter(bool), operator=st.sampled_from(["//", "%"]))
def test_whole_division_and_remainder_are_pythons(a: int, b: int, operator: str) -> None:
    assert evaluate(f"({a}) {operator} ({b})") == (a // b if operator == "//" else a % b)


@laws
@given(text=st.text(max_size=320) | st.text(alphabet="0123456789+-*/%^()., esqrtmax=\\×−\ud800\n", max_size=320))
def test_no_text_does_anything_but_answer_or_be_refused(text: str) -> None:
    with suppress(ArithmeticRefused):
        assert math.isfinite(evaluate(text))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (10, "10"),
        (10.0, "10"),
        (-0.0, "0"),
        (-3, "-3"),
        (0.1, "0.1"),
        (-0.25, "-0.25"),
        (1 / 3, "0.3333333333"),
        (100 / 7, "14.28571429"),
        (0.1 + 0.2, "0.3"),
        (936.88, "936.88"),
        (1235184533.625, "1235184533.625"),
        (1e10 / 3, "3333333333.33"),
        (1e15 / 7, "142857142857143"),
        (1e16, "10000000000000000"),
        (1000000000000001.0, "1000000000000001"),
        (1e20 / 3, "3.333333333e19"),
        (10**20.5, "3.16227766e20"),
        (1e21, "1e21"),
        (1e20, "100000000000000000000"),
        (10**22, "1e22"),
        (2**100, "1267650600228229401496703205376"),
        (-(10**299), "-1e299"),
        (0.00001, "0.00001"),
        (1e-7, "0.0000001"),
        (1.5e-8, "1.5e-8"),
        (1e-9 / 3, "3.333333333e-10"),
        (True, "1"),
    ],
)
def test_a_number_is_written_as_a_person_would(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_not_written(value: float) -> None:
    with pytest.raises(ArithmeticRefused, match="a finite value is needed"):
        format_number(value)


def test_an_integer_beyond_the_limit_is_not_written() -> None:
    with pytest.raises(ArithmeticRefused, match="more than 300 digits"):
        format_number(10**100000)


@laws
@given(value=st.integers(-(10**299), 10**299) | st.integers(-(10**6), 10**6).map(lambda n: n * 10**30))
def test_an_integer_survives_being_written(value: int) -> None:
    assert evaluate(format_number(value)) == value


@laws
@given(value=st.floats(1e-290, 1e290) | st.floats(-1e9, -1e-9) | st.floats(1e-3, 1e16))
def test_a_float_survives_being_written_to_ten_digits(value: float) -> None:
    written = format_number(value)
    assert evaluate(written) == pytest.approx(value, rel=1e-9, abs=0)
    assert "e+" not in written
    assert not written.endswith(".")
    assert "e" in written or format_number(evaluate(written)) == written
