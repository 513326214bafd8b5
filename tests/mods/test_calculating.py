"""Laws of the calculator mod: after a sum and its equals sign stands the exact answer, whoever wrote them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mod_scripts import actions_of, run, takes_back_once, writes

from workbench import ForwardPass, SamplingParams, Session, mod
from workbench.mods import calculator, evaluate, format_number


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("17 * 23 =", "17 * 23 = 391"),
        ("17 * 23 =.", "17 * 23 = 391."),
        ("so 3+4= and on", "so 3+4=7 and on"),
        ("1/3 = ", "1/3 = 0.3333333333 "),
        ("3 - 10 = ok", "3 - 10 = -7 ok"),
        ("**2 x 3** =", "**2 x 3** = 6"),
        ("1 + 1 =; 2 + 2 =;", "1 + 1 = 2; 2 + 2 = 4;"),
        ("2 + 3 = + 1 =!", "2 + 3 = 5 + 1 = 6!"),
        ("a = b = 5, x + 2 = y", "a = b = 5, x + 2 = y"),
        ("9**9**9 = big", "9**9**9 = big"),
    ],
)
def test_the_answer_follows_the_equals_sign(model: Any, written: str, text: str) -> None:
    result = run(model, [calculator()], written)
    assert result.text == text
    assert result.reason == "eos"


def test_every_answer_is_forced_once(model: Any) -> None:
    result = run(model, [calculator()], "1 + 1 =; 2 + 2 =;")
    assert [a for a in actions_of(result, "calculator") if a[0] == "force_tokens"] == [("force_tokens", "applied")] * 2


@pytest.mark.parametrize("more", ["5", ".5", ",000"])
def test_no_digit_is_added_to_an_answer(model: Any, more: str) -> None:
    """The masked digit can't be drawn, so the script's end token comes."""
    text = run(model, [calculator()], f"17 * 23 ={more}").text
    assert text == "17 * 23 = 391" + more[:-1].rstrip("0")


@pytest.mark.parametrize("more", [" 5 more", "\n2. Next", ". And 5"])
def test_digits_that_are_not_the_answers_may_follow(model: Any, more: str) -> None:
    assert run(model, [calculator()], f"17 * 23 ={more}").text == f"17 * 23 = 391{more}"


@pytest.mark.parametrize(
    ("prompt", "written", "text"),
    [
        ("17 * 23 =", "", " 391"),
        ("17 * 23 = ", "", "391"),
        ("17 * 23 = 3", "", "91"),
        ("17 * 23 = 4", "", ""),
        ("Sum: 17 * 2", "3 =", "3 = 391"),
        ("17 * 23 =\n", "no", "no"),
        ([{"role": "user", "content": "17 * 23 ="}], "no", "no"),
        ([{"role": "user", "content": "17 *"}], "2 + 1 =", "2 + 1 = 3"),
    ],
)
def test_a_sum_may_begin_in_a_raw_prompts_last_line_only(model: Any, prompt: Any, written: str, text: str) -> None:
    assert run(model, [calculator()], written, prompt).text == text


def test_another_mods_forced_sum_is_answered(model: Any) -> None:
    @mod(name="forcer")
    def forcer(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, ForwardPass) and event.step == 1:
            return actions.force_tokens(tokenizer.encode("It is 6 * 7 ="))
        return None

    assert run(model, [forcer, calculator()], "").text == "It is 6 * 7 = 42"


@pytest.mark.parametrize("n", [1, 3, 4, 5, 6, 13])
def test_it_answers_again_after_its_answer_was_taken_back(model: Any, n: int) -> None:
    kept = "17 * 23 = 391"[:-n]
    rest = "17 * 23 ="[len(kept) :]
    result = run(model, [calculator(), takes_back_once(n, "391")], "17 * 23 =" + rest + ".")
    assert result.text == "17 * 23 = 391."


def test_where_it_was_shadowed_it_answers_on_the_next_pass(model: Any) -> None:
    result = run(model, [takes_back_once(1, "="), calculator()], "17 * 23 ==.")
    assert result.text == "17 * 23 = 391."
    assert ("force_tokens", "shadowed") in actions_of(result, "calculator")


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (["3+1", "= 4", "9."], "3+1= 4"),
        (["5 + 9 ", "= 4", "x"], "5 + 9 = 14x"),
        (["5+9", "= 4", "x"], "5+9= 14x"),
        (["3 - 9 ", "=-", "x"], "3 - 9 = -6x"),
        (["3-9", "=-", "x"], "3-9=-6x"),
        (["3 + 4 ", "= ", "x"], "3 + 4 = 7x"),
        (["if 3 + 4 ", "==", " 7"], "if 3 + 4 == 7"),
        (["x ", "= 4", "x"], "x = 4x"),
    ],
)
def test_a_token_that_begins_a_wrong_answer_is_replaced(merging_model: Any, written: list[str], text: str) -> None:
    tokenizer = merging_model.tokenizer
    ids = [token for part in written for token in tokenizer.encode(part)]
    result = run(merging_model, [calculator()], ids)
    assert result.text == text


@settings(max_examples=15)
@given(a=st.integers(-999, 999), b=st.integers(1, 999), operator=st.sampled_from(["+", "-", "*", "/"]))
def test_any_sum_is_answered_exactly(model: Any, a: int, b: int, operator: str) -> None:
    assert run(model, [calculator()], f"{a} {operator} {b} =").text == (
        f"{a} {operator} {b} = {format_number(evaluate(f'{a} {operator} {b}'))}"
    )


def test_an_answer_that_does_not_fit_is_cut_and_noted(model: Any) -> None:
    result = run(model, [calculator()], "17 * 23 =", max_new_tokens=11)
    assert (result.text, result.reason) == ("17 * 23 = 3", "max_tokens")
    assert any(record.kind == "warning" for record in result.trace.records)


def test_requests_of_one_batch_do_not_mix(model: Any) -> None:
    calculate = calculator()
    results = Session(model).generate(
        ["1 + 1 =", "p:\n"],
        mods=[[writes(""), calculate], [writes("2 + 3 ="), calculate]],
        sampling=SamplingParams(temperature=0),
        seed=0,
        max_new_tokens=30,
    )
    assert [result.text for result in results] == [" 2", "2 + 3 = 5"]
