"""The ready mods on the real bundled model: a sum it gets wrong comes out right, and the run can be repeated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workbench import SamplingParams, Session, load, replay
from workbench.engine import Mod
from workbench.mods import ban_tokens, calculator, evaluate, rebuild, valid_json

pytestmark = pytest.mark.real
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def smollm() -> Any:
    return load("smollm2-135m-instruct", progress=False)


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def says(model: Any, prompt: Any, mods: list[Mod], most: int = 16) -> str:
    result = Session(model, mods).generate(prompt, max_new_tokens=most, sampling=GREEDY, seed=0)
    tokens = [*result.prompt_tokens, *result.tokens]
    assert result.trace.history().tokens == tokens
    return str(result.text)


@pytest.mark.parametrize(
    ("prompt", "sum_"),
    [
        (chat("What is 17 * 23? Write it as an equation."), "17 * 23"),
        (chat("Compute 48 * 37 and show the equation."), "48 * 37"),
        (chat("Compute 128 * 7 and show the equation."), "128 * 7"),
        ("The bill for 17 books at 23 dollars each: 17 * 23 =", "17 * 23"),
        ("My rent is 1250 dollars a month, so a year costs 12 * 1250 =", "12 * 1250"),
        ("Q: What is 47 * 89?\nA: 47 * 89", "47 * 89"),
    ],
)
def test_a_sum_that_the_model_gets_wrong_comes_out_right(smollm: Any, prompt: Any, sum_: str) -> None:
    begun = prompt if isinstance(prompt, str) else ""
    right = f"{sum_} = {evaluate(sum_)}"
    assert right not in begun + says(smollm, prompt, [])
    corrected = begun + says(smollm, prompt, [calculator()])
    assert right in corrected
    assert not corrected.partition(right)[2][:1].isdigit()


def test_a_run_is_repeated_with_mods_rebuilt_from_its_trace(smollm: Any) -> None:
    session = Session(smollm, [calculator(), ban_tokens(["equation"])])
    prompt = chat("What is 17 * 23? Write it as an equation.")
    trace = session.generate(prompt, max_new_tokens=12, sampling=SamplingParams(temperature=0.7), seed=1).trace
    mods = [rebuild(told) for told in trace.run["requests"]["r0"]["mods"]]
    assert replay(trace, smollm, mods).agrees


def test_a_banned_word_gives_way_to_another(smollm: Any) -> None:
    prompt = chat("Tell me about Paris in one sentence.")
    assert "city" in says(smollm, prompt, [])
    assert "city" not in says(smollm, prompt, [ban_tokens(["city"])]).lower()


def test_json_is_what_comes_out(smollm: Any) -> None:
    prompt = chat("Write a JSON object with the keys city and country for Paris.")
    result = Session(smollm, [valid_json(max_rolls=20)]).generate(
        prompt, max_new_tokens=60, sampling=SamplingParams(temperature=0.8), seed=2
    )
    assert isinstance(json.loads(result.text), dict)
