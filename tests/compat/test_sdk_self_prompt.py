"""SelfPrompt, driven event by event: what it forces, masks, confirms and takes back."""

from __future__ import annotations

from typing import Any

import pytest
from compat_cases import Flat, Hand, Letters, level, open_letters

from workbench.compat.remembering import KEPT_REQUESTS
from workbench.compat.self_prompt import EraseMode, SelfPrompt, self_prompt_mod
from workbench.compat.strategy_constructor import CharsMode, CharsStrat, ChoicesStrat, ListStrat
from workbench.errors import CompatError


def asked(strategy: Any, **options: Any) -> tuple[SelfPrompt, Hand]:
    """A self-prompt as users route events to it, and a hand that has read the prompt."""
    from quote_mod_sdk import Added, ForwardPass, Prefilled, mod

    asking = SelfPrompt(prompt={"text": "Q:"}, strategy=strategy, **options)

    @mod
    def route(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, Prefilled):
            asking.handle_prefilled(event, tokenizer)
        if isinstance(event, ForwardPass):
            return asking.handle_forward_pass(event, actions, tokenizer)
        if isinstance(event, Added):
            asking.handle_added(event, actions, tokenizer)
        return actions.noop()

    return asking, Hand(route)


def test_the_prompt_is_forced_and_the_answer_masked() -> None:
    asking, hand = asked(ChoicesStrat(["ab", "cd"]))
    hand.look()
    assert hand.text == "Q:"
    action = hand.look()
    assert open_letters(action.logits) == "ac"
    assert type(action.logits) is Flat
    assert action.token_temp is None
    hand.say("ab")
    assert asking.is_complete("r")
    assert asking.answer_tokens("r") == [ord("a"), ord("b")]
    assert type(hand.look()).__name__ == "Noop"
    assert not asking.is_complete("other")
    assert asking.answer_tokens("other") is None


def test_the_mask_keeps_the_shape_of_logits_and_leaves_the_given_ones_alone() -> None:
    import torch

    from workbench.compat import Tensor
    from workbench.compat.prompt_parts import masked

    given = Tensor.of_logits(torch.arange(4.0))
    changed = masked(given, {1, 3, 99}, {3}, -7.0)
    assert changed.to_numpy().tolist() == [[-7.0, 1.0, -7.0, -7.0]]
    assert given.to_numpy().tolist() == [[0.0, 1.0, 2.0, 3.0]]
    assert masked(given, frozenset(), {0}, -7.0).to_numpy().tolist() == [[-7.0, 1.0, 2.0, 3.0]]


def test_argmax_sampling_asks_for_temperature_zero_and_the_mask_has_its_value() -> None:
    _, hand = asked(ChoicesStrat(["a"]), argmax_sampling=True, mask_value=-50.0)
    hand.look()
    action = hand.look()
    assert action.token_temp == 0.0
    assert action.logits.to_numpy().min() == -50.0


def test_an_unconfirmed_prompt_is_forced_again() -> None:
    from quote_mod_sdk import ForceTokens, ForwardPass, for_event

    asking = SelfPrompt(prompt={"tokens": [81, 58]}, strategy=ChoicesStrat(["a"]))
    event = ForwardPass("r", 0, level())
    for _ in range(2):
        assert asking.handle_forward_pass(event, for_event(event), Letters()) == ForceTokens([81, 58])
    state = asking._states["r"]
    assert (state.prompt_emitted, state.outstanding_forced) == (True, 2)


def test_a_prompt_that_arrives_piece_by_piece_is_waited_for() -> None:
    from quote_mod_sdk import Added, ForwardPass, Noop, for_event

    asking = SelfPrompt(prompt={"tokens": [81, 58]}, strategy=ChoicesStrat(["a"]))
    event = ForwardPass("r", 0, level())
    asking.handle_forward_pass(event, for_event(event), Letters())
    asking.handle_added(Added("r", 0, [81], True), for_event(event), Letters())
    assert asking.handle_forward_pass(event, for_event(event), Letters()) == Noop()
    asking.handle_added(Added("r", 0, [58], True), for_event(event), Letters())
    assert open_letters(asking.handle_forward_pass(event, for_event(event), Letters()).logits) == "a"


ERASED = {
    (EraseMode.NONE, None): "Q:yes",
    (EraseMode.NONE, "!"): "Q:yes!",
    (EraseMode.PROMPT, None): "yes",
    (EraseMode.PROMPT, "!"): "yes",
    (EraseMode.ALL, None): "",
    (EraseMode.ALL, "!"): "",
}


@pytest.mark.parametrize("erase", EraseMode)
@pytest.mark.parametrize("suffix", [None, "!"])
def test_what_stays_is_what_the_erase_mode_says(erase: EraseMode, suffix: str | None) -> None:
    asking, hand = asked(ChoicesStrat(["yes"]), erase=erase, completion=suffix)
    hand.look()
    hand.say("yes")
    assert hand.text == "Q:yes"  # nothing is taken back on Added: a bare self-prompt waits for the next pass
    for _ in range(3):
        hand.look()
    assert hand.text == ERASED[erase, suffix]
    assert asking.is_complete("r")


def test_the_suffix_of_an_answer_that_is_erased_whole_is_never_forced() -> None:
    from quote_mod_sdk import Backtrack

    _, hand = asked(ChoicesStrat(["yes"]), erase="all", completion="!")
    hand.look()
    hand.say("yes")
    assert hand.look() == Backtrack(5)


@pytest.mark.parametrize(
    ("completion", "text"),
    [({"suffix": "!", "force": True}, "Q:a!"), ({"suffix": "!", "force": False}, "Q:a"), ({"suffix": "!"}, "Q:a!")],
)
def test_a_completion_may_be_written_out(completion: Any, text: str) -> None:
    _, hand = asked(ChoicesStrat(["a"]), completion=completion)
    hand.look()
    hand.draw("a")
    hand.look()
    assert hand.text == text


def test_an_answer_that_may_go_on_ends_where_the_likeliest_token_is_none_of_it() -> None:
    asking, hand = asked(ChoicesStrat(["cat", "cats"]))
    hand.look()
    hand.say("cat")
    assert not asking.is_complete("r")
    hand.look("x")
    assert asking.is_complete("r")
    asking, hand = asked(ChoicesStrat(["cat", "cats"]))
    hand.look()
    hand.say("cats")
    assert asking.is_complete("r")
    asking, hand = asked(CharsStrat(CharsMode.NUMERIC, min=2, stop=5), erase="prompt")
    hand.look()
    hand.say("123")
    hand.look(".")
    assert hand.text == "123"


def test_what_others_put_between_is_no_answer_and_is_erased_with_the_rest() -> None:
    asking, hand = asked(ChoicesStrat(["ab"]), erase="prompt")
    hand.look()
    hand.draw("a")
    hand.add([ord("X"), ord("Y")], forced=True)
    hand.add([ord("Z")], forced=False)  # a token that the strategy does not allow: another mod lifted the mask
    hand.draw("b")
    hand.look()
    assert hand.text == "ab"
    assert asking._states["r"].strays == 3


def test_what_stood_there_before_a_question_without_a_prompt_is_not_taken() -> None:
    from quote_mod_sdk import Added, ForwardPass, mod

    asking = SelfPrompt(strategy=ChoicesStrat(["a"]), erase="all")

    @mod
    def route(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, ForwardPass):
            return asking.handle_forward_pass(event, actions, tokenizer)
        if isinstance(event, Added):
            asking.handle_added(event, actions, tokenizer)
        return actions.noop()

    hand = Hand(route)
    hand.add([ord("X")], forced=True)
    hand.draw("a")
    hand.look()
    assert hand.text == "X"


def test_choices_can_be_refreshed_for_one_request_or_for_all() -> None:
    asking, hand = asked(ChoicesStrat(["cat"]), erase="all")
    hand.look()
    hand.draw("c")
    asking.refresh_responses(["owl"], request_id="r")
    assert open_letters(hand.look().logits) == "o"
    hand.say("owl")
    hand.look()
    assert hand.text == ""
    asking.refresh_responses(["bee"])
    other = Hand(hand.mod, "s")
    other.look()
    assert open_letters(other.look().logits) == "b"
    listed = SelfPrompt(strategy=ListStrat([ChoicesStrat(["cat"]), ChoicesStrat(["dog"])]))
    listed.refresh_responses(["owl"], idx=1)
    assert [one.choices for one in listed.strategy.elements] == [["cat"], ["owl"]]
    with pytest.raises(CompatError, match="CharsStrat has no choices at 0"):
        SelfPrompt(strategy=CharsStrat(CharsMode.ALPHA, stop=1)).refresh_responses(["a"])
    with pytest.raises(CompatError, match="ListStrat has no choices at 2"):
        listed.refresh_responses(["a"], idx=2)


def test_a_strategy_of_the_users_own_needs_no_more_than_the_protocol() -> None:
    from quote_mod_sdk.strategies.base import RuntimeState, Strategy, decode_token, require_token_ids
    from quote_mod_sdk.strategies.strategy_constructor import StrategyConstructor

    class Vowels:
        def start(self, tokenizer: Any) -> Any:
            state = RuntimeState()
            state.left = 2
            return state

        def allowed_tokens(self, state: Any, tokenizer: Any) -> set[int]:
            return {token for token in require_token_ids(tokenizer) if decode_token(tokenizer, token) in "aeiou"}

        def disallowed_tokens(self, state: Any, tokenizer: Any) -> set[int]:
            return {ord("e")}

        def step(self, state: Any, token_id: int, tokenizer: Any) -> None:
            state.left -= 1

        def is_complete(self, state: Any) -> bool:
            return state.left == 0

    class VowelsStrat(StrategyConstructor):
        def into_strategy(self, tokenizer: Any) -> Any:
            return Vowels()

    assert isinstance(Vowels(), Strategy)
    asking, hand = asked(VowelsStrat())
    hand.look()
    assert open_letters(hand.look().logits) == "aiou"
    hand.say("ai")
    assert asking.is_complete("r")


def test_a_step_that_answers_with_an_action_is_refused() -> None:
    from quote_mod_sdk import Backtrack
    from quote_mod_sdk.strategies.primitives import ChoicesStrategy

    class Second(ChoicesStrategy):
        def step(self, state: Any, token_id: int, tokenizer: Any) -> Any:
            return Backtrack(1)

    class SecondStrat(ChoicesStrat):
        def into_strategy(self, tokenizer: Any) -> Any:
            return Second(["a"])

    _, hand = asked(SecondStrat(["a"]))
    hand.look()
    with pytest.raises(CompatError, match=r"the strategy Second answered step\(\) with an action"):
        hand.draw("a")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"strategy": None}, "needs a strategy such as"),
        ({"prompt": "Q:"}, "a prompt is"),
        ({"prompt": {"words": "Q:"}}, "a prompt is"),
        ({"completion": 3}, "a completion is a text or"),
        ({"completion": {"sufix": "!"}}, "a completion is a text or"),
    ],
)
def test_a_self_prompt_in_another_form_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(CompatError, match=says):
        SelfPrompt(**{"prompt": {"text": "Q:"}, "strategy": ChoicesStrat(["a"]), **options})


def test_the_wrapper_is_the_same_in_one_call() -> None:
    hand = Hand(self_prompt_mod(prompt={"text": "Q:"}, strategy=ChoicesStrat(["a", "b"]), erase=EraseMode.PROMPT))
    hand.look()
    hand.draw("b")
    hand.look()
    assert hand.text == "b"


def test_only_the_latest_requests_are_remembered() -> None:
    asking = SelfPrompt(strategy=ChoicesStrat(["a"]))
    for number in range(KEPT_REQUESTS + 5):
        asking.state_of(f"r{number}", Letters())
    assert len(asking._states) == KEPT_REQUESTS
    assert "r4" not in asking._states
    assert f"r{KEPT_REQUESTS + 4}" in asking._states


def test_the_older_form_asks_the_same() -> None:
    from sdk.quote_mod_sdk import AddedEvent, ForwardPassEvent, PrefilledEvent, self_prompt_constrained_mod
    from shared.types import Added, ForwardPass, Prefilled

    assert (AddedEvent, ForwardPassEvent, PrefilledEvent) == (Added, ForwardPass, Prefilled)
    for erase, text in ((None, "Q:b\n"), ("prompt_only", "b"), ("all", "")):
        made = self_prompt_constrained_mod(prompt_text="Q:", allowed_responses=["a", "b"], erase_after_complete=erase)
        hand = Hand(made)
        hand.look()
        hand.draw("b")
        hand.look()
        hand.look()
        assert hand.text == text
    with pytest.raises(CompatError, match="erase_after_complete is None, 'prompt_only' or 'all', got 'some'"):
        self_prompt_constrained_mod("Q:", ["a"], erase_after_complete="some")
    with pytest.raises(CompatError, match="either as prompt_text=… or as prompt_tokens="):
        self_prompt_constrained_mod(allowed_responses=["a"])
