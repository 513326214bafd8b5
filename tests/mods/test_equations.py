"""Laws of the finder: a sum is found only where its answer is due and nothing around it changes its value."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from arithmetic_cases import HOSTILE, laws, trees
from hypothesis import given
from hypothesis import strategies as st

from workbench.mods.arithmetic import evaluate, format_number
from workbench.mods.equations import Equation, find_equation


@pytest.mark.parametrize(
    ("text", "expression", "answer"),
    [
        ("(5 - 1) * 234.22 =", "(5 - 1) * 234.22", "936.88"),
        ("What is 17 * 23? 17 * 23 =", "17 * 23", "391"),
        ("so 3+4*(2-1) = ", "3+4*(2-1)", "7"),
        ("17 \\times 23 =", "17 \\times 23", "391"),
        ("$$17 \\cdot 23 =", "17 \\cdot 23", "391"),
        ("\\[ 10 \\div 4 =", "10 \\div 4", "2.5"),
        ("3 × 4 − 2 ÷ 1 =  ", "3 × 4 − 2 ÷ 1", "10"),
        ("Answer 2: 3 + 4 =", "3 + 4", "7"),
        ("2 + 3 = 5 + 1 =", "5 + 1", "6"),
        ("2 + 3 == 5 + 1 =", "5 + 1", "6"),
        ("x=3+4=", "3+4", "7"),
        ("y = - 3 + 4 =", "- 3 + 4", "1"),
        ("that is -3 + 4 =", "-3 + 4", "1"),
        ("That's 3 * 4 =", "3 * 4", "12"),
        ("The sum of 3 + 4 =", "3 + 4", "7"),
        ("in total (3 + 4 =", "3 + 4", "7"),
        ("f(3, 4 + 5 =", "4 + 5", "9"),
        ("1. 3 + 4 =", "3 + 4", "7"),
        ("Both: a) 1, 2) 3 + 4 =", "3 + 4", "7"),
        ("- 3 + 4 =", "3 + 4", "7"),
        ("  * 3 + 4 =", "3 + 4", "7"),
        ("Answer: **3 + 4 =", "3 + 4", "7"),
        ("# 3 + 4 =", "3 + 4", "7"),
        ("one\n3 + 4 =", "3 + 4", "7"),
        ("costs £3 + 4 =", "3 + 4", "7"),
        ("1,234 + 4 =", "1,234 + 4", "1238"),
        ("sqrt(16) + 2 =", "sqrt(16) + 2", "6"),
        ("1/3 =", "1/3", "0.3333333333"),
        ("計算 3+4 =", "3+4", "7"),
        ("17 x 23 =", "17 x 23", "391"),
        ("(3 + 4) X 2 =", "(3 + 4) X 2", "14"),
        ("**17 * 23** =", "17 * 23", "391"),
        ("The answer is **17 * 23 =", "17 * 23", "391"),
        ("the sum is **17 * 23** =", "17 * 23", "391"),
        ("- **3 + 4 =", "3 + 4", "7"),
        ("$17 \\times 23$ =", "17 \\times 23", "391"),
        ("so \\(17 * 23\\) = ", "17 * 23", "391"),
        ("\\( 17 * 23 =", "17 * 23", "391"),
        ("\\[ 17 * 23 \\] =", "17 * 23", "391"),
        ("**$3+4$** =", "3+4", "7"),
        ("that is `3 + 4` =", "3 + 4", "7"),
        ("word " * 1000 + "3 + 4 =", "3 + 4", "7"),
    ],
)
def test_a_sum_whose_answer_is_due_is_found(text: str, expression: str, answer: str) -> None:
    begin = text.rindex(expression)
    wanted = Equation(expression=expression, start=begin, end=begin + len(expression), result_text=answer)
    assert find_equation(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *["", "=", " = ", "3 + 4", "3 + 4 = 7", "3 + 4 =\n", "3 + 4 ==", "3 + 4 !=", "3 + 4 <="],
        *["3 + 4 >=", "3 + 4 = =", "x = 5 =", "= 5 =", "page 5 =", "(5) =", "-5 =", "sqrt(16) =", "3 + ="],
        *["3 + 4 * =", ") + 3 =", "x1 + 2 =", "x + 2 =", "x² + 2 + 1 =", "a*3 + 4 =", "a - 3 + 4 ="],
        *["a-3 + 4 =", "x -3 + 4 =", "x_3 + 4 =", "3a + 2 =", "2\\pi * 3 + 4 =", "\\frac{3}{4} + 2 + 1 ="],
        *["|x| + 3 + 4 =", "(a + 3) + 4 * 2 =", "x 3 + 4 =", "sin(16) + 2 =", "sin 16 + 2 ="],
        *["\\sqrt(16) + 2 =", "√9 + 4 =", "√(9) + 4 =", "5! + 3 * 2 =", "5! - 3 + 4 =", "3² + 4 * 2 ="],
        *["20% + 5 * 2 =", "50% * 20 + 1 =", "20% of 30 + 4 =", "half of 3 + 4 =", "5 times 3 + 4 ="],
        *["3x4 + 2 =", "x 3 + 4 * 2 =", "a x 3 + 4 =", "3 x + 4 =", "3 x -4 =", "3 (4 + 1) ="],
        *["5 * (2) 3 + 4 =", "1 234 + 4 =", "1'234 + 4 =", "3,4 + 5 ="],
        *["1.5.2 + 3 =", "2024-01-15 =", "2024-11-15 =", "15/11/2024 =", "12:30 + 5 =", "1/0 + 1 ="],
        *["twice 3 + 4 =", "5 choose 2 + 1 ="],
        *["3 + 4** =", "**3 + 4$ =", "(a) 3 + 4$ =", "x **3 + 4 =", "2 **3 + 4** =", "half of **3 + 4 ="],
        *["**the sum 3 + 4** =", "5 ** =", "`` =", "$$ ="],
        *["9**9**9 =", "1_0 + 2 =", "$5 + $3 =", "x + .5.5 + 1 =", "3 +\n4 =\n", "٣ + 4 * 2 ="],
        *["1 + " * 100 + "1 =", "3 + 4 =" + " " * 400],
    ],
)  # fmt: skip
def test_nothing_is_found_where_the_answer_is_not_due_or_in_doubt(text: str) -> None:
    assert find_equation(text) is None


def test_the_search_begins_at_start_and_not_inside_a_number() -> None:
    text = "1 + 1 = 2 + 3 ="
    assert find_equation(text, start=8) == Equation(expression="2 + 3", start=8, end=13, result_text="5")
    assert find_equation(text, start=9) is None
    assert find_equation("12 + 3 =", start=1) is None
    assert find_equation(text, start=-5) == find_equation(text)
    assert find_equation(text, start=99) is None


def test_the_cost_of_a_search_does_not_grow_with_the_text() -> None:
    for filler in (
        "1" * 10**6,
        "(" * 10**6,
        " " * 10**6,
        "1+" * 10**6,
        "\\" * 10**6,
        "1," * 10**6,
        "x " * 10**6,
    ):
        begun = time.perf_counter()
        find_equation(filler + "3 + 4 =")
        assert time.perf_counter() - begun < 0.5


@laws
@given(
    tree=trees.filter(lambda tree: len(tree[0]) <= 250 and " " in tree[0]),
    prose=st.sampled_from(["", "So ", "It is: "]),
)
def test_any_sum_is_found_whole_behind_prose(tree: tuple[str, Fraction], prose: str) -> None:
    found = find_equation(f"{prose}{tree[0]} = ")
    assert found is not None
    assert found.expression == tree[0]
    assert found.result_text == format_number(evaluate(tree[0]))


def test_nothing_is_found_in_hostile_text() -> None:
    for expression in HOSTILE:
        assert find_equation(expression + " =") is None or len(expression) > 300 or "\n" in expression


@laws
@given(text=st.text(max_size=320) | st.text(alphabet="0123456789+-*/%^()., esqrtmaxX=\\×−$`[]\ud800\n", max_size=320))
def test_what_is_found_is_in_the_text_and_has_that_value(text: str) -> None:
    for candidate in (text, text + " ="):
        found = find_equation(candidate)
        if found is not None:
            assert candidate[found.start : found.end] == found.expression
            assert found.result_text == format_number(evaluate(found.expression))
