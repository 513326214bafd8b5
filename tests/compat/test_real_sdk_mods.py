"""SDK mods on the real bundled model, with its merged tokens and its chat template."""

from __future__ import annotations

import re
from typing import Any

import pytest

from workbench import SamplingParams, Session, load

pytestmark = [pytest.mark.real, pytest.mark.slow]
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def real() -> Any:
    return load("smollm2-135m-instruct", progress=False)


def test_a_sdk_flow_of_three_questions_answers_in_words(real: Any) -> None:
    from quote_mod_sdk import mod
    from quote_mod_sdk.flow import FlowEngine, FlowQuestion, route_output, route_question
    from quote_mod_sdk.strategies.primitives import CharsMode
    from quote_mod_sdk.strategies.strategy_constructor import CharsStrat, ChoicesStrat, ListStrat

    animal = FlowQuestion("animal", " Is it a cat or a dog? It is a ", ChoicesStrat(["cat", "dog"]), erase_mode="all")
    legs = FlowQuestion("legs", " Legs: ", CharsStrat(CharsMode.NUMERIC, stop=1), erase_mode="all")
    listed = ListStrat(ChoicesStrat(["black", "white"]), open="[", close="]", wrap='"', min=1, max=2)
    colours = FlowQuestion("colours", " Colours: ", listed, erase_mode="all")
    animal.then(route_question(legs))
    legs.then(colours)
    colours.then(lambda state: route_output(f"{state.answers['animal']}: {state.answers['colours']}"))
    engine = FlowEngine(animal)

    @mod
    def describe(event: Any, actions: Any, tokenizer: Any) -> Any:
        return engine.handle_event(event, actions, tokenizer)

    prompt = [{"role": "user", "content": "My pet barks at the postman."}]
    result = Session(real, mods=[describe]).generate(prompt, max_new_tokens=32, sampling=GREEDY, seed=0)
    (state,) = engine._states.values()
    assert re.fullmatch(r'(cat|dog): \["(black|white)"(, "(black|white)")?\]', result.text)
    assert state.answers["legs"] in "0123456789"
    assert result.reason == "force_output"


def test_an_erased_self_prompt_leaves_the_greedy_text_as_it_would_have_been(real: Any) -> None:
    from quote_mod_sdk import self_prompt_mod
    from quote_mod_sdk.strategies.strategy_constructor import ChoicesStrat

    prompt = [{"role": "user", "content": "Name the capital of France."}]
    asking = self_prompt_mod(
        prompt={"text": " Do I know this?"}, strategy=ChoicesStrat([" yes", " no"]), completion="\n", erase="all"
    )
    plain = Session(real).generate(prompt, max_new_tokens=12, sampling=GREEDY, seed=0)
    asked = Session(real, mods=[asking]).generate(prompt, max_new_tokens=12, sampling=GREEDY, seed=0)
    assert asked.tokens == plain.tokens
    gone = [life for life in asked.trace.history().every if not life.visible]
    assert "".join(life.text for life in gone) in (" Do I know this? yes", " Do I know this? no")


def test_a_word_is_banned_and_another_raised_with_numpy(real: Any) -> None:
    from quote_mod_sdk import ForwardPass, mod

    @mod
    def rather(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, ForwardPass):
            logits = event.logits.to_numpy()
            logits[tokenizer.encode(" Paris", add_special_tokens=False)] = -1e9
            logits[0, tokenizer.encode(" Rome", add_special_tokens=False)[0]] += 8.0
            return actions.adjust_logits(logits)
        return actions.noop()

    text = Session(real, mods=[rather]).generate(
        "The capital of France is", max_new_tokens=3, sampling=GREEDY, seed=0
    ).text  # fmt: skip
    assert text.startswith(" Rome")
