"""SDK mods on the real bundled model, with its merged tokens and its chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from test_sdk_patterns import STRATEGIES
from test_sdk_patterns import test_an_answer_has_the_form_of_its_strategy as answers_in_form
from test_sdk_patterns import test_reasoning_with_sampling_runs_and_keeps_one_of_its_texts as samples_its_reasoning

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


CAPITAL = "The capital of France is"


def generated(real: Any, handler: Callable[..., Any], prompt: Any = CAPITAL, *, tokens: int = 12) -> Any:
    from quote_mod_sdk import mod

    return Session(real, mods=[mod(handler)]).generate(prompt, max_new_tokens=tokens, sampling=GREEDY, seed=0)


def encoded(tokenizer: Any, text: str) -> list[int]:
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens


def test_a_prefix_is_put_before_the_answer_on_its_first_pass(real: Any) -> None:
    from quote_mod_sdk import ForwardPass

    done: set[str] = set()

    def begin(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, ForwardPass) and event.step == 0 and event.request_id not in done:
            done.add(event.request_id)
            return actions.force_tokens(encoded(tokenizer, " surely the old town of"))
        return actions.noop()

    result = generated(real, begin)
    assert result.text.startswith(" surely the old town of Paris")


@pytest.mark.parametrize("more", ["", " (let me check)"])
def test_words_are_taken_back_for_others_or_for_themselves_and_more(real: Any, more: str) -> None:
    from quote_mod_sdk import Added

    texts: dict[str, str] = {}
    wrong, right = " Paris", f" Paris{more}" if more else " Lyon"

    def replace(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, Added) and not event.forced:
            texts[event.request_id] = texts.get(event.request_id, "") + tokenizer.decode(event.added_tokens)
            if texts[event.request_id].endswith(wrong):
                texts[event.request_id] = ""
                return actions.backtrack(len(encoded(tokenizer, wrong)), encoded(tokenizer, right))
        return actions.noop()

    plain = generated(real, lambda event, actions, tokenizer: None).text
    assert plain.startswith(wrong)
    assert generated(real, replace).text.startswith(right)


def test_an_answer_found_in_the_text_becomes_the_output(real: Any) -> None:
    from quote_mod_sdk import Added

    texts: dict[str, str] = {}

    def stop(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, Added):
            text = texts[event.request_id] = texts.get(event.request_id, "") + tokenizer.decode(event.added_tokens)
            if "Paris" in text:
                return actions.force_output(encoded(tokenizer, f"ANSWER: {text.strip()}"))
        return actions.noop()

    result = generated(real, stop)
    assert (result.text, result.reason) == ("ANSWER: Paris", "force_output")


def test_a_tool_is_called_for_what_the_user_wrote(real: Any) -> None:
    from quote_mod_sdk import Prefilled, get_conversation, tool_call_pairs

    call = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": "{}"}}

    def search(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, Prefilled):
            answered = [reply["content"] for _, reply in tool_call_pairs()]
            if answered:
                return actions.force_output(encoded(tokenizer, f"found {answered[0]}"))
            if get_conversation()[-1]["content"] == "find cats":
                return actions.tool_calls([call])
        return actions.noop()

    asked = [{"role": "user", "content": "find cats"}]
    result = generated(real, search, asked)
    assert (result.reason, result.tool_calls) == ("tool_calls", [call])
    reply = {"role": "tool", "tool_call_id": "call_1", "content": "two cats"}
    again = generated(real, search, [*asked, {"role": "assistant", "content": "", "tool_calls": [call]}, reply])
    assert again.text == "found two cats"


def test_json_that_can_not_be_is_rolled_again_until_it_can(real: Any) -> None:
    from quote_mod_sdk import Added, ForwardPass

    text, barred, begun = "", set(), False

    def judge(event: Any, actions: Any, tokenizer: Any) -> Any:
        """Lets ``{"a": 1`` go on to a whole object: what breaks it is taken back and barred for that place."""
        nonlocal text, begun
        if isinstance(event, ForwardPass):
            if not begun:
                begun = True
                return actions.force_tokens(encoded(tokenizer, ' {"a": 1'))
            logits = event.logits.to_numpy()
            logits[list(barred)] = -1e9
            return actions.adjust_logits(logits)
        if isinstance(event, Added):
            new = text + tokenizer.decode(event.added_tokens)
            try:
                json.loads(new)
                return actions.force_output(encoded(tokenizer, new))
            except json.JSONDecodeError:
                pass
            if not event.forced and not re.fullmatch(r' \{"a": [0-9]+', new):
                barred.update(event.added_tokens)
                return actions.backtrack(1)
            text = new
            barred.clear()
        return actions.noop()

    result = generated(real, judge, "Here is a sentence, and no JSON at all:", tokens=64)
    assert (type(json.loads(result.text)["a"]), result.reason) == (int, "force_output")
    assert any(not life.visible for life in result.trace.history().every)


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - {"letters"}))
def test_an_answer_of_merged_tokens_has_the_form_of_its_strategy(real: Any, name: str) -> None:
    answers_in_form(real, name, 1)


def test_an_answer_up_to_a_dot_is_told_without_it(real: Any) -> None:
    from quote_mod_sdk import Added, ForwardPass
    from quote_mod_sdk.self_prompt import SelfPrompt
    from quote_mod_sdk.strategies.primitives import CharsMode
    from quote_mod_sdk.strategies.strategy_constructor import CharsStrat

    asking = SelfPrompt(prompt={"text": " It fell in the year 19"}, strategy=CharsStrat(CharsMode.NUMERIC, ".", min=2))

    def ask(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, ForwardPass):
            if asking.is_complete(event.request_id):
                return actions.force_output(asking.answer_tokens(event.request_id))
            return asking.handle_forward_pass(event, actions, tokenizer)
        if isinstance(event, Added):
            asking.handle_added(event, actions, tokenizer)
        return actions.noop()

    assert re.fullmatch("[0-9]{2,}", generated(real, ask, "The Berlin wall was built.", tokens=64).text)


def test_reasoning_with_sampling_runs(real: Any) -> None:
    samples_its_reasoning(real)
