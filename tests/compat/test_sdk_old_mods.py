"""What mods written against the SDK take for granted: orders, names and defaults; and what is said of errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compat_cases import Flat, Hand, Letters, level, open_letters
from test_sdk_self_prompt import asked

from workbench import SamplingParams, Session, compat
from workbench.compat.flow import (
    FlowDefinition,
    FlowEngine,
    FlowQuestion,
    route_message,
    route_output,
    route_question,
    route_summary,
    route_tool,
)
from workbench.compat.self_prompt import EraseMode, SelfPrompt, self_prompt_mod
from workbench.compat.strategy_constructor import (
    CharsMode,
    CharsStrat,
    ChoicesStrat,
    ListStrat,
    UntilEndType,
    UntilStrat,
)
from workbench.errors import CompatError, InvalidActionError

YES = ChoicesStrat(["yes"])


def flow_hand(question: FlowQuestion, **options: Any) -> tuple[FlowEngine, Hand]:
    from quote_mod_sdk import mod

    engine = FlowEngine(question, **options)

    @mod
    def flow(event: Any, actions: Any, tokenizer: Any) -> Any:
        return engine.handle_event(event, actions, tokenizer)

    return engine, Hand(flow)


def silent(name: str, *answers: str) -> FlowQuestion:
    return FlowQuestion(name, f"{name}?", ChoicesStrat(answers), "", EraseMode.ALL)


# Orders and names ------------------------------------------------------------------------------------------


def test_later_events_tell_of_the_model_by_position_and_by_name() -> None:
    from shared.types import ForwardPass, Prefilled

    event = ForwardPass("r", 1, "logits", "hidden", "attention", 3, (1, 2))
    assert (event.hidden_states, event.attention_patterns, event.layer, event.input_ids) == (
        "hidden", "attention", 3, [1, 2],
    )  # fmt: skip
    assert event.tokens_so_far_len is None
    before = Prefilled("r", 0, 8, {"a": 1}, hidden_states="hidden", input_ids=[4])
    assert (before.max_steps, before.context_info, before.hidden_states, before.input_ids) == (
        8,
        {"a": 1},
        "hidden",
        [4],
    )
    assert (Prefilled("r", 0, 8).hidden_states, ForwardPass("r", 0, None).layer) == (None, None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'hidden'"):
        ForwardPass("r", 0, None, hidden=1)


def test_a_session_tells_the_context_so_far(model: Any) -> None:
    from quote_mod_sdk import ForwardPass, Prefilled, mod

    told: list[Any] = []

    @mod
    def listen(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, (Prefilled, ForwardPass)):
            told.append((event.input_ids, event.hidden_states, event.attention_patterns, event.layer))
        return actions.noop()

    result = Session(model, mods=[listen]).generate("Hi", max_new_tokens=3, seed=1)
    whole = [*result.prompt_tokens, *result.tokens]
    length = len(result.prompt_tokens)
    assert [ids for ids, *_ in told] == [whole[:length], whole[:length], whole[: length + 1], whole[: length + 2]]
    assert {rest for _, *others in told for rest in others} == {None}


def test_questions_and_lists_take_their_arguments_in_the_sdks_order() -> None:
    question = FlowQuestion("q", "q?", YES, "!", EraseMode.PROMPT)
    assert (question.completion_text, question.erase_mode) == ("!", EraseMode.PROMPT)
    assert FlowQuestion("q", "q?", YES, erase_mode=None).erase_mode is EraseMode.NONE
    question.on("a", None).then(None).assign(print).branch(print)
    assert list(question.transitions) == ["a"]
    assert (question.default_route, question.assignments, question.branch_resolvers) == (None, [print], [print])
    listed = ListStrat(YES, "[", "]", '"', "; ", 1, 3, "\n")
    assert (listed.open, listed.close, listed.wrap, listed.sep) == ("[", "]", '"', "; ")
    assert (listed.min, listed.max, listed.end_with) == (1, 3, "\n")


def test_none_is_no_choice_where_the_sdk_takes_it_so() -> None:
    listed = ListStrat(YES, sep=None, min=None, max=None)
    assert (listed.sep, listed.min, listed.max) == (", ", 0, None)
    assert ListStrat(YES, max=0).max is None
    pair = ListStrat([YES, YES], min=5, max=1)
    assert (pair.min, pair.max) == (2, 2)
    assert CharsStrat(CharsMode.ALPHA, stop=2, min=None).min == 0
    assert SelfPrompt(strategy=YES, erase=None).erase is EraseMode.NONE


def test_a_limit_of_nought_leaves_the_limit_as_it_was(model: Any) -> None:
    from quote_mod_sdk import AdjustedPrefill, Prefilled

    for limit, length in ((0, 5), (-1, 5), (None, 5), (2, 2)):

        def swap(event: Any, tokenizer: Any, limit: Any = limit) -> Any:
            return AdjustedPrefill(tokenizer.encode("Hi"), limit) if isinstance(event, Prefilled) else None

        mods = [compat.adapt(swap), _without_end()]
        assert len(Session(model, mods=mods).generate("Hello", max_new_tokens=5, seed=1).tokens) == length


def _without_end() -> Any:
    from quote_mod_sdk import ForwardPass, mod

    @mod
    def endless(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, ForwardPass):
            logits = event.logits.to_numpy()
            logits[tokenizer.eos_token_id] = -1e9
            return actions.adjust_logits(logits)
        return actions.noop()

    return endless


def test_a_temperature_alone_keeps_the_events_own_logits(model: Any) -> None:
    from quote_mod_sdk import ForwardPass, for_event, mod

    event = ForwardPass("r", 0, level("b"))
    made = for_event(event).adjust_logits(token_temp=0.5)
    assert (made.logits, made.token_temp) == (event.logits, 0.5)
    assert made.top_k_logprob(1)[1].tolist() == event.top_k_logprob(1)[1].tolist() == [[ord("b")]]
    assert for_event(event).adjust_logits(np.arange(4.0)).top_k_logprob(2)[1].tolist() == [[3, 2]]

    @mod
    def likeliest(event: Any, actions: Any, tokenizer: Any) -> Any:
        return actions.adjust_logits(token_temp=0.0) if isinstance(event, ForwardPass) else actions.noop()

    greedy = Session(model).generate("Hi", max_new_tokens=6, seed=3, sampling=SamplingParams(temperature=0))
    assert Session(model, mods=[likeliest]).generate("Hi", max_new_tokens=6, seed=9).tokens == greedy.tokens


def test_an_answer_is_told_once_it_is_complete_and_without_its_end_mark() -> None:
    asking, hand = asked(CharsStrat(CharsMode.ALPHA, stop=".", min=1), erase="prompt")
    hand.look()
    hand.say("ab")
    assert asking.answer_tokens("r") is None
    hand.draw(".")
    assert asking.answer_tokens("r") is None  # the erase is still to come
    hand.look()
    assert asking.answer_tokens("r") == [ord("a"), ord("b")]
    assert hand.text == "ab."


def test_a_strategy_maker_needs_no_base_class() -> None:
    class Own:
        def into_strategy(self, tokenizer: Any) -> Any:
            return ChoicesStrat(["ok"]).into_strategy(tokenizer)

    asking, hand = asked(Own())
    hand.look()
    hand.say("ok")
    assert asking.is_complete("r")
    assert isinstance(FlowQuestion("q", "q?", Own()).strategy, Own)
    assert open_letters(Hand(self_prompt_mod(strategy=Own())).look().logits) == "o"
    with pytest.raises(CompatError, match="needs a strategy such as"):
        SelfPrompt(strategy=Own)


def test_a_tokenizer_of_ones_own_may_have_a_length_instead_of_a_vocabulary() -> None:
    from quote_mod_sdk.strategies.base import require_token_ids

    class Counted:
        def __len__(self) -> int:
            return 3

    assert require_token_ids(Counted()) == {0, 1, 2}
    assert require_token_ids(Letters()) == set(Letters().get_vocab().values())


# Flows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, False, True, 3, "", "  "])
def test_an_automatic_answer_that_is_no_text_leaves_the_question_to_the_model(given: Any) -> None:
    engine, hand = flow_hand(silent("q", "a").with_auto_answer(lambda state: given))
    hand.look()
    hand.draw("a")
    assert engine._states["r"].answers == {"q": "a"}


def test_an_automatic_answer_is_kept_without_surrounding_space() -> None:
    engine, hand = flow_hand(silent("q", "a").with_auto_answer(lambda state: " yes\n").on("yes", route_message("on")))
    hand.look()
    assert (engine._states["r"].answers, hand.text) == ({"q": "yes"}, "on")


def test_the_answer_leads_on_whatever_was_made_of_it_in_the_state() -> None:
    question = silent("q", "a").assign(lambda state, answer: state.answers.clear()).on("a", route_message("on a"))
    _, hand = flow_hand(question)
    hand.look()
    hand.draw("a")
    hand.look()
    assert hand.text == "on a"


def test_a_summary_is_of_the_flow_that_holds_the_question() -> None:
    second = silent("second", "b").then(route_summary())
    first = silent("first", "a").then(route_question(second))
    flows = {
        "one": FlowDefinition("one", silent("other", "c"), lambda state: "one"),
        "two": FlowDefinition("two", second, lambda state: "two"),
        "three": FlowDefinition("three", first, lambda state: "three"),
    }
    assert [one.name for one in flows["three"].all_questions()] == ["first", "second"]
    for known, said in ((["one", "two"], "two"), (["one", "three", "two"], "three"), (["one"], "one")):
        _, hand = flow_hand(first, flows={name: flows[name] for name in known})
        for letter in "ab":
            hand.look()
            hand.draw(letter)
        hand.look()
        assert hand.text == said


def test_the_questions_of_a_flow_are_those_that_can_be_seen() -> None:
    last = silent("last", "x")
    circle = silent("circle", "a")
    circle.on("a", circle).on("b", FlowDefinition("inner", last)).then(lambda state: silent("hidden", "y"))
    assert [one.name for one in FlowDefinition("f", circle).all_questions()] == ["circle", "last"]


def test_a_state_needs_no_data_of_its_own() -> None:
    class Bare:
        def __init__(self, request_id: str) -> None:
            self.request_id, self.answers = request_id, {}
            self.current_question = self.pending_route = None

    engine, hand = flow_hand(silent("q", "a"), state_factory=Bare)
    hand.look()
    hand.draw("a")
    assert engine._states["r"].answers == {"q": "a"}


# What is said of errors ------------------------------------------------------------------------------------


def _sdk() -> Any:
    import quote_mod_sdk

    return quote_mod_sdk


def _event(kind: str = "Added") -> Any:
    values = {"Added": ([1], False), "Sampled": (1,), "ForwardPass": (level(),), "Prefilled": (8,)}
    return getattr(_sdk(), kind)("r", 0, *values[kind])


def _build(kind: str = "Added") -> Any:
    from quote_mod_sdk import for_event

    return for_event(_event(kind))


ENCODE = r"takes a list of token ids \(whole numbers\), got .*tokenizer\.encode"
WRONG = {
    "text for tokens": (lambda: _build().force_tokens("hey"), InvalidActionError, r"force_tokens\(\) " + ENCODE),
    "no tokens": (lambda: _build().force_output(None), InvalidActionError, r"force_output\(\) " + ENCODE),
    "fractions": (lambda: _build().backtrack(1, [1.5]), InvalidActionError, r"backtrack\(\) " + ENCODE),
    "one token": (lambda: _build("Prefilled").adjust_prefill(5), InvalidActionError, r"adjust_prefill\(\) " + ENCODE),
    "steps": (lambda: _build().backtrack("x"), InvalidActionError, "number of tokens to take back, got 'x'"),
    "no event": (lambda: _sdk().for_event(None), TypeError, "an event is a Prefilled, .* got None"),
    "added text": (lambda: _sdk().Added("r", 0, "abc", True), CompatError, "Added " + ENCODE),
    "drawn text": (lambda: _sdk().Sampled("r", 0, "x"), CompatError, "Sampled " + ENCODE),
    "limit": (lambda: _sdk().Prefilled("r", 0, "x"), TypeError, r"max_steps a whole number; got \('x',\)"),
    "two arguments": (
        lambda: compat.mod(lambda event, actions: None),
        TypeError,
        r"handler\(event, actions, tokenizer\)",
    ),
    "mod of a mod": (lambda: compat.mod(compat.mod(lambda e, a, t: None)), TypeError, "@mod wraps a function"),
    "no mod": (lambda: compat.ModManager([3]), CompatError, r"a mod is a function of \(event, tokenizer\), got 3"),
    "dispatch": (lambda: compat.ModManager().dispatch("x"), TypeError, "an event is a Prefilled"),
    "prompt": (lambda: SelfPrompt({"text": 5}, YES), CompatError, "a prompt's 'text' is a text, got 5"),
    "prompt tokens": (lambda: SelfPrompt({"tokens": "abc"}, YES), CompatError, "a prompt's 'tokens' " + ENCODE),
    "mask": (lambda: SelfPrompt(strategy=YES, mask_value="low"), ValueError, "could not convert string to float"),
    "erase": (
        lambda: SelfPrompt(strategy=YES, erase="some"),
        CompatError,
        "what to erase is one of EraseMode.NONE, .*'some'",
    ),
    "no tokenizer": (
        lambda: SelfPrompt({"text": "Q"}, YES).handle_prefilled(_event("Prefilled"), None),
        CompatError,
        r"the text 'yes' needs a tokenizer: call the mod as mod\(event, tokenizer\)",
    ),
    "end type": (
        lambda: UntilStrat("", "tags", "x"),
        CompatError,
        "end_type is one of UntilEndType.TAG, .* got 'tags'",
    ),
    "start": (lambda: UntilStrat(3, UntilEndType.TAG, "x"), CompatError, "UntilStrat's start is a text, got 3"),
    "mode": (lambda: CharsStrat("letters", 3), CompatError, "mode is one of CharsMode.ALPHA, .* got 'letters'"),
    "minimum": (
        lambda: CharsStrat(CharsMode.ALPHA, 3, min="1"),
        CompatError,
        r"CharsStrat\(min='1'\) must be a whole number",
    ),
    "mark": (lambda: ListStrat(YES, open=3), CompatError, "ListStrat's open is a text, got 3"),
    "list minimum": (lambda: ListStrat(YES, min=-1), CompatError, r"ListStrat\(min=-1\) must be a whole number"),
    "question's prompt": (
        lambda: FlowQuestion("q", None, YES),
        CompatError,
        "the prompt of question 'q' is a text, got None",
    ),
    "answer": (lambda: silent("q", "a").on(5, None), CompatError, "an answer to question 'q' is a text, got 5"),
    "assign": (lambda: silent("q", "a").assign(None), CompatError, r"assign\(\) takes a function of \(state, answer\)"),
    "branch": (lambda: silent("q", "a").branch(5), CompatError, r"branch\(\) takes a function of the state, got 5"),
    "automatic": (
        lambda: silent("q", "a").with_auto_answer("x"),
        CompatError,
        r"with_auto_answer\(\) takes a function",
    ),
    "output": (lambda: route_output(3), CompatError, r"route_output\(\)'s argument is a text, got 3"),
    "tool": (lambda: route_tool(None), CompatError, r"route_tool\(\) takes a function, got None"),
    "flows": (
        lambda: FlowEngine(silent("q", "a"), flows=[1]),
        CompatError,
        r"flows is a mapping of names .* got \[1\]",
    ),
    "factory": (lambda: FlowEngine(silent("q", "a"), state_factory=3), CompatError, "state_factory is a function"),
    "state": (
        lambda: flow_hand(silent("q", "a"), state_factory=lambda name: 5),
        CompatError,
        "state_factory gave 5: a state has request_id, current_question, pending_route and answers",
    ),
    "chat": (
        lambda: _set_conversation("hello"),
        CompatError,
        "a conversation is a list of messages such as .* got 'hello'",
    ),
    "message": (
        lambda: _set_conversation([1]),
        CompatError,
        r"a conversation is a list of messages such as .* got \[1\]",
    ),
    "pairs": (lambda: _sdk().tool_call_pairs([1]), CompatError, "a conversation is a list of messages"),
}


def _set_conversation(messages: Any) -> None:
    from quote_mod_sdk.conversation import set_conversation

    set_conversation("r", messages)


@pytest.mark.parametrize("name", WRONG)
def test_what_can_not_be_is_said_where_it_is_written(name: str) -> None:
    make, error, says = WRONG[name]
    with pytest.raises(error, match=says):
        make()


def test_a_function_that_a_flow_can_not_call_is_named() -> None:
    _, hand = flow_hand(silent("q", "a").then(lambda state, other: None))
    hand.look()
    hand.draw("a")
    with pytest.raises(CompatError, match="which takes state, other: a function is given the state, or"):
        hand.look()


def test_numpy_numbers_are_token_ids(model: Any) -> None:
    from quote_mod_sdk import Added, ForceTokens, Sampled

    assert ForceTokens(np.array([1, 2])).tokens == [1, 2]
    assert Added("r", 0, np.array([3]), True).added_tokens == [3]
    assert type(Sampled("r", 0, np.int64(4)).sampled_token) is int
    assert Flat(np.zeros(3)).to_numpy().shape == (3,)
