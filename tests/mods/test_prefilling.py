"""Laws of the mods that act before the first pass, and of the one that only watches."""

from __future__ import annotations

from typing import Any

import pytest
from mod_scripts import run

from workbench import Finished, ForwardPass
from workbench.errors import ModError
from workbench.mods import canned_output, replace_prefill, watch

CHAT = [{"role": "system", "content": "old"}, {"role": "user", "content": "hi"}]


def test_another_prompt_takes_the_place_of_the_one_given(model: Any) -> None:
    tokenizer = model.tokenizer
    messages = [{"role": "user", "content": "new"}]
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({"text": "Once"}, tokenizer.prompt("Once")),
        ({"messages": messages}, tokenizer.chat(messages)),
        ({"system": "be brief"}, tokenizer.chat([{"role": "system", "content": "be brief"}, CHAT[1]])),
    ]
    for given, tokens in cases:
        result = run(model, [replace_prefill(**given)], "ok", CHAT)
        assert list(result.prompt_tokens) == tokens
        assert result.text == "ok"


def test_the_output_limit_can_be_replaced_too(model: Any) -> None:
    assert run(model, [replace_prefill("Once", max_new_tokens=2)], "abcdef").text == "ab"


@pytest.mark.parametrize(
    ("given", "got"),
    [({}, "none of them"), ({"text": "a", "system": "b"}, "text='a', system='b'"), ({"text": ""}, "text=''")],
)
def test_a_prefill_is_exactly_one_thing(given: Any, got: str) -> None:
    with pytest.raises(ValueError, match=f"exactly one of text, messages and system.*{got}"):
        replace_prefill(**given)


def test_a_system_message_needs_a_chat(model: Any) -> None:
    with pytest.raises(ModError, match="needs a chat, but the prompt is raw text"):
        run(model, [replace_prefill(system="be brief")], "ok", "raw")


@pytest.mark.parametrize(("when", "passes"), [(None, 0), ("weather", 0), ("(?i)WEATHER", 0), ("tides", 3)])
def test_a_canned_output_needs_no_pass(model: Any, when: str | None, passes: int) -> None:
    seen: list[Any] = []
    result = run(model, [canned_output("no", when), watch(seen.append)], "ok", "What weather?\n")
    assert sum(isinstance(event, ForwardPass) for event in seen) == passes
    assert (result.text, result.reason) == (("ok", "eos") if passes else ("no", "force_output"))


def test_a_canned_output_needs_a_regular_expression() -> None:
    with pytest.raises(ValueError, match=r"when='\('\) is not a regular expression"):
        canned_output("no", "(")


def test_watching_changes_nothing_and_sees_everything(model: Any) -> None:
    seen: list[Any] = []
    result = run(model, [watch(seen.append, capture="blocks.1.hook_resid_post")], "ok")
    assert result.text == "ok"
    assert isinstance(seen[-1], Finished)
    assert next(e for e in seen if isinstance(e, ForwardPass)).activations["blocks.1.hook_resid_post"].shape == (32,)
    with pytest.raises(TypeError, match="needs a function of an event, got 3"):
        watch(3)  # type: ignore[arg-type]
