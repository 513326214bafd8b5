"""What docs/compat.md says differs from the public engine is so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workbench import Session
from workbench.engine import Result
from workbench.errors import InvalidActionError, ModError

ASK = [{"role": "user", "content": "Tell me."}]


def run(model: Any, *handlers: Callable[..., Any], prompt: Any = ASK, tokens: int = 6, **options: Any) -> Result:
    from quote_mod_sdk import mod

    session = Session(model, mods=[mod(handler) for handler in handlers], **options)
    return session.generate(prompt, max_new_tokens=tokens, seed=1)


def once(kind: str, answer: Callable[..., Any], *, after: int = 0) -> Callable[..., Any]:
    """A handler that answers the event of a kind number ``after``, and no other."""
    heard = iter(range(1000))

    def handler(event: Any, actions: Any, tokenizer: Any) -> Any:
        if type(event).__name__ == kind and next(heard) == after:
            return answer(event, actions, tokenizer)
        return actions.noop()

    return handler


def letters(tokenizer: Any, text: str) -> list[int]:
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens


@pytest.mark.parametrize("kind", ["ForwardPass", "Sampled", "Added"])
@pytest.mark.parametrize("again", ["", "xy"])
def test_a_backtrack_takes_back_exactly_its_number_of_committed_tokens(model: Any, kind: str, again: str) -> None:
    def back(event: Any, actions: Any, tokenizer: Any) -> Any:
        return actions.backtrack(2, letters(tokenizer, again) if again else None)

    # answered before the fifth token is drawn, once it is drawn, or once the fourth is committed
    after = 3 if kind == "Added" else 4
    result = run(model, once(kind, back, after=after), tokens=9)
    history = result.trace.history()
    plain = run(model, tokens=9)
    assert [life.token for life in history.every if not life.visible] == list(plain.tokens[2:4])
    assert result.tokens[:2] == plain.tokens[:2]
    assert model.tokenizer.decode(result.tokens[2:]).startswith(again)


def test_only_the_drawn_token_is_replaced_by_forcing_in_answer_to_it(model: Any) -> None:
    force = once("Sampled", lambda event, actions, tokenizer: actions.force_tokens(letters(tokenizer, "xy")), after=2)
    result, plain = run(model, force), run(model)
    assert result.tokens[:2] == plain.tokens[:2]
    assert model.tokenizer.decode(result.tokens[2:4]) == "xy"
    assert all(life.visible for life in result.trace.history().every)


def test_what_can_not_be_carried_out_names_mod_event_and_step(model: Any) -> None:
    cases = {
        "reaches past the first generated token": ("Added", lambda e, a, t: a.backtrack(9)),
        "token id 999 is outside the vocabulary": ("ForwardPass", lambda e, a, t: a.force_tokens([999])),
        "got NaN": ("ForwardPass", lambda e, a, t: a.adjust_logits(e.logits.to_numpy() * float("nan"))),
    }
    for says, (kind, answer) in cases.items():
        with pytest.raises(InvalidActionError, match=rf"mod 'handler' on {kind} at step 1 .*{says}"):
            run(model, once(kind, answer))


def test_an_exception_ends_the_run_or_the_mod(model: Any) -> None:
    fail = once("Added", lambda event, actions, tokenizer: 1 / 0, after=1)
    with pytest.raises(ModError, match="mod 'handler' raised ZeroDivisionError on Added at step 2") as raised:
        run(model, fail)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    fail = once("Added", lambda event, actions, tokenizer: 1 / 0, after=1)
    result = run(model, fail, on_mod_error="disable")
    assert result.tokens == run(model).tokens
    (told,) = (record.data["error"] for record in result.trace.records if record.action == "raised")
    assert "ZeroDivisionError" in told


def test_of_two_mods_actions_the_first_wins_and_the_other_is_kept(model: Any) -> None:
    both = [once("ForwardPass", lambda e, a, t, text=text: a.force_tokens(letters(t, text))) for text in ("aa", "bb")]
    result = run(model, *both)
    assert result.text.startswith("aa")
    assert "bb" not in result.text[:4]
    told = [record.status for record in result.trace.records if record.action == "force_tokens"]
    assert told == ["applied", "shadowed"]


def test_a_forced_batch_is_one_added_and_removed_and_finished_are_not_told(model: Any) -> None:
    heard: list[Any] = []

    def listen(event: Any, actions: Any, tokenizer: Any) -> Any:
        heard.append(event)
        return actions.noop()

    force = once("ForwardPass", lambda event, actions, tokenizer: actions.force_tokens(letters(tokenizer, "abc")))
    back = once("Added", lambda event, actions, tokenizer: actions.backtrack(1), after=2)
    run(model, listen, force, back, tokens=8)
    batch = next(event for event in heard if type(event).__name__ == "Added")
    assert (len(batch.added_tokens), batch.forced) == (3, True)
    assert {type(event).__name__ for event in heard} == {"Prefilled", "ForwardPass", "Sampled", "Added"}


def test_a_raw_prompt_is_no_chat_and_schemas_are_the_programs_own(model: Any) -> None:
    from quote_mod_sdk import get_conversation, get_schemas
    from quote_mod_sdk.conversation import set_schemas

    told: list[Any] = []

    def look(event: Any, actions: Any, tokenizer: Any) -> Any:
        told.append((get_conversation(), get_schemas()))
        set_schemas(event.request_id, [{"type": "object"}])
        return actions.noop()

    run(model, look, prompt="Tell me.", tokens=1)
    assert told[0] == ([], [])
    assert told[-1] == ([], [{"type": "object"}])
    told.clear()
    run(model, look, tokens=1)
    assert told[0][0] == ASK
