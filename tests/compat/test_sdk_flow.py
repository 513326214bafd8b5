"""FlowEngine, driven event by event: questions in their order, answers where they lead, marks left and erased."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from compat_cases import Hand, Letters

from workbench.compat.flow import (
    FlowDefinition,
    FlowEngine,
    FlowQuestion,
    FlowState,
    RequestState,
    route_message,
    route_noop,
    route_output,
    route_question,
    route_summary,
    route_tool,
)
from workbench.compat.self_prompt import EraseMode
from workbench.compat.strategy_constructor import CharsMode, CharsStrat, ChoicesStrat, UntilEndType, UntilStrat
from workbench.errors import CompatError


def question(name: str, *answers: str, erase: str = "all", suffix: str = "") -> FlowQuestion:
    return FlowQuestion(name, f"{name}?", ChoicesStrat(answers), erase_mode=erase, completion_text=suffix)


def hand_of(engine: FlowEngine, request_id: str = "r", tokenizer: Any = None) -> Hand:
    from quote_mod_sdk import mod

    @mod
    def flow(event: Any, actions: Any, tokenizer: Any) -> Any:
        return engine.handle_event(event, actions, tokenizer)

    return Hand(flow, request_id, tokenizer=tokenizer)


def answer(hand: Hand, letters: str) -> Any:
    """Read the prompt that is due and give an answer."""
    hand.look()
    return hand.say(letters)


def current(engine: FlowEngine, request_id: str = "r") -> str | None:
    asked = engine._states[request_id].current_question
    return None if asked is None else str(asked.name)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("suffix", ["", "\n"])
@pytest.mark.parametrize("erase", EraseMode)
def test_a_flow_asks_all_its_questions_however_many(count: int, suffix: str, erase: EraseMode) -> None:
    questions = [question(f"q{n}", "a", "b", erase=erase, suffix=suffix) for n in range(count)]
    for one, following in itertools.pairwise(questions):
        one.then(route_question(following))
    engine = FlowEngine(entry_question=questions[0])
    hand = hand_of(engine)
    for number in range(count):
        assert current(engine) == f"q{number}"
        answer(hand, "b")
        if suffix:
            hand.look()
    assert engine._states["r"].answers == {f"q{n}": "b" for n in range(count)}
    assert current(engine) is None
    kept = {"none": "".join(f"q{n}?b{suffix}" for n in range(count)), "prompt": "b" * count, "all": ""}
    assert hand.text == kept[erase]


def test_the_erase_comes_on_the_added_that_completes_the_answer() -> None:
    from quote_mod_sdk import Backtrack, Noop

    hand = hand_of(FlowEngine(entry_question=question("q", "yes", erase="prompt")))
    hand.look()
    assert hand.draw("y") == hand.draw("e") == Noop()
    assert hand.draw("s") == Backtrack(5, [ord(c) for c in "yes"])


def test_a_suffix_is_forced_and_erased_with_the_rest() -> None:
    from quote_mod_sdk import Backtrack, ForceTokens

    hand = hand_of(FlowEngine(entry_question=question("q", "y", suffix="\n")))
    answer(hand, "y")
    assert hand.text == "q?y"
    assert hand.look() == ForceTokens([ord("\n")])
    assert hand.actions[-1] == Backtrack(4)
    assert hand.text == ""


def test_the_default_suffix_is_a_line_break() -> None:
    hand = hand_of(FlowEngine(FlowQuestion("q", "q?", ChoicesStrat(["y"]))))
    answer(hand, "y")
    hand.look()
    assert hand.text == "q?y\n"


def test_states_and_constraints_may_be_looked_at() -> None:
    engine = FlowEngine(entry_question=question("q", "y"))
    hand = hand_of(engine)
    assert isinstance(engine._states["r"], FlowState)
    assert current(engine) == "q"
    hand.look()
    state = engine._constraints["q"]._states["r"]
    assert (state.prompt_emitted, state.outstanding_forced, state.completed) == (True, 0, False)
    hand.say("y")
    assert engine._constraints["q"]._states["r"].completed
    assert engine._get_state("r") is engine._states["r"]


def test_requests_do_not_mix() -> None:
    first = question("one", "a").then(question("two", "b"))
    engine = FlowEngine(first)
    left, right = hand_of(engine, "left"), hand_of(engine, "right")
    answer(left, "a")
    assert (current(engine, "left"), current(engine, "right")) == ("two", "one")
    answer(right, "a")
    answer(left, "b")
    assert (current(engine, "left"), current(engine, "right")) == (None, "two")


def test_a_users_own_state_is_what_callbacks_read() -> None:
    @dataclass
    class Booking:
        request_id: str
        current_question: Any = None
        pending_route: Any = None
        answers: dict[str, str] = field(default_factory=dict)
        data: dict[str, Any] = field(default_factory=dict)
        seats: int = 0

    seats = FlowQuestion("seats", "seats?", CharsStrat(CharsMode.NUMERIC, stop=1), erase_mode="all", completion_text="")
    seats.assign(lambda state, given: setattr(state, "seats", int(given)))
    engine = FlowEngine(seats, state_factory=lambda request_id: Booking(request_id))
    answer(hand_of(engine), "4")
    assert engine._states["r"].seats == 4


def test_an_answer_leads_by_on_then_branch_then_then() -> None:
    def led(given: str) -> str:
        start = question("start", "a", "b", "c")
        start.on(" A ", route_message("by on"))
        start.branch(lambda state: route_message("by branch") if state.answers["start"] == "b" else None)
        start.otherwise(route_message("by then"))
        hand = hand_of(FlowEngine(start))
        answer(hand, given)
        hand.look()
        return hand.text

    assert [led(letter) for letter in "abc"] == ["by on", "by branch", "by then"]


def test_every_kind_of_target_can_be_reached() -> None:
    other = question("other", "x")
    flow = FlowDefinition(name="sub", root=other)
    targets: dict[Any, str | None] = {
        other: "other", route_question(other): "other", route_noop(): None, None: None,
        (lambda state: other): "other", (lambda state: lambda state: route_noop()): None,
    }  # fmt: skip
    for target, name in [*targets.items(), (flow, "other")]:
        engine = FlowEngine(question("start", "a").then(target))
        answer(hand_of(engine), "a")
        assert current(engine) == name
    hand = hand_of(FlowEngine(question("start", "a").then("said")))
    answer(hand, "a")
    hand.look()
    assert hand.text == "said"


def test_automatic_answers_cost_no_token_and_lead_on() -> None:
    skipped = question("skipped", "yes", "no").with_auto_answer(lambda state: "yes")
    last = question("last", "z").with_auto_answer(lambda state: None)
    skipped.on("yes", last)
    engine = FlowEngine(question("start", "a").then(skipped))
    answer(hand_of(engine), "a")
    assert engine._states["r"].answers == {"start": "a", "skipped": "yes"}
    assert current(engine) == "last"
    entry = FlowEngine(question("entry", "a").with_auto_answer(lambda state: "a").then(route_message("m")))
    hand = hand_of(entry)
    hand.look()
    assert hand.text == "m"


def test_a_question_can_be_asked_again() -> None:
    again = question("again", "more", "stop")
    again.on("more", again)
    engine = FlowEngine(again)
    hand = hand_of(engine)
    for given in ("more", "more", "stop"):
        answer(hand, given)
    assert current(engine) is None
    assert hand.text == ""


def test_questions_made_anew_under_one_name_take_their_own_answers() -> None:
    def pick(*answers: str) -> FlowQuestion:
        return question("pick", *answers)

    engine = FlowEngine(pick("a").then(lambda state: pick("b").then(lambda state: pick("c"))))
    hand = hand_of(engine)
    for letter in "abc":
        answer(hand, letter)
    assert engine._states["r"].answers == {"pick": "c"}


class Ending(Letters):
    eos_token_id = 3


def test_a_message_ends_with_the_end_token_where_there_is_one() -> None:
    from quote_mod_sdk import ForceTokens

    engine = FlowEngine(question("q", "a").then(route_message("bye")))
    hand = hand_of(engine, tokenizer=Ending())
    answer(hand, "a")
    assert hand.look() == ForceTokens([*map(ord, "bye"), 3])


def test_a_message_that_was_not_confirmed_is_forced_again() -> None:
    from quote_mod_sdk import Added, ForceTokens, ForwardPass, Noop, for_event

    engine = FlowEngine(question("q", "a").with_auto_answer(lambda state: "a").then(route_message("m")))
    event = ForwardPass("r", 0, None)
    for _ in range(2):
        assert engine.handle_event(event, for_event(event), Letters()) == ForceTokens([ord("m")])
    added = Added("r", 0, [ord("m")], True)
    engine.handle_event(added, for_event(added), Letters())
    assert engine.handle_event(event, for_event(event), Letters()) == Noop()


def test_a_summary_is_what_the_definitions_builder_says() -> None:
    root = question("size", "big").then(route_summary())
    flow = FlowDefinition(name="order", root=root, summary_builder=lambda state: f"size={state.answers['size']}")
    for engine in (FlowEngine(root, flows={"order": flow}), FlowEngine(flow)):
        hand = hand_of(engine)
        answer(hand, "big")
        hand.look()
        assert hand.text == "size=big"
    for message, said in (("that is all", "that is all"), (None, "size: big")):
        hand = hand_of(FlowEngine(question("size", "big").then(route_summary(message))))
        answer(hand, "big")
        hand.look()
        assert hand.text == said


def test_outputs_and_tools_answer_the_next_pass() -> None:
    from quote_mod_sdk import ForceOutput, Noop, ToolCalls

    def last(target: Any) -> Any:
        hand = hand_of(FlowEngine(question("q", "a").then(target)))
        answer(hand, "a")
        return hand.look()

    def sdk_order(actions: Any, state: Any, tokenizer: Any) -> Any:
        return actions.tool_calls({"for": state.request_id})

    def seed_order(state: Any, actions: Any, tokenizer: Any) -> Any:
        return actions.tool_calls({"for": state.request_id})

    assert last(route_output("out")) == ForceOutput([*map(ord, "out")])
    for tool in (route_tool(sdk_order), sdk_order, seed_order, route_tool(seed_order)):
        assert last(tool) == ToolCalls({"for": "r"})
    assert last(route_tool(lambda actions, state, tokenizer: None)) == Noop()
    assert last(route_tool(lambda state: route_output("o"))) == ForceOutput([ord("o")])


def test_tagged_answers_keep_their_tags_and_lose_what_came_with_the_last_token() -> None:
    asked = FlowQuestion("t", "t?", UntilStrat("<a>", UntilEndType.TAG, "</a>"), erase_mode="all", completion_text="")
    engine = FlowEngine(asked)
    answer(hand_of(engine), "<a>hm</a>")
    assert engine._states["r"].answers == {"t": "<a>hm</a>"}


def test_responses_are_short_for_choices() -> None:
    engine = FlowEngine(entry_question=FlowQuestion(name="q", prompt="q?", responses=["yes", "no"], erase_mode="all"))
    answer(hand_of(engine), "no")
    assert engine._states["r"].answers == {"q": "no"}
    assert isinstance(engine._states["r"], RequestState)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FlowQuestion("", "p", ChoicesStrat(["a"])), "a question needs a name"),
        (lambda: FlowQuestion("q", "p"), "either as strategy=… or as responses="),
        (lambda: FlowQuestion("q", "p", ChoicesStrat(["a"]), responses=["a"]), "either as strategy=… or as responses="),
        (lambda: FlowQuestion("q", "p", ["a"]), "needs a strategy such as"),
        (lambda: FlowEngine("q"), "entry_question is a FlowQuestion or a FlowDefinition"),
    ],
)
def test_a_flow_that_can_not_be_is_refused_where_it_is_written(make: Any, says: str) -> None:
    with pytest.raises(CompatError, match=says):
        make()


def test_a_flow_that_leads_nowhere_or_in_a_circle_says_so() -> None:
    wrong = FlowEngine(question("q", "a").then(5))
    hand = hand_of(wrong)
    hand.look()
    with pytest.raises(CompatError, match="a flow can't lead to 5"):
        hand.say("a")
    endless = question("again", "a").with_auto_answer(lambda state: "a")
    endless.then(endless)
    with pytest.raises(CompatError, match="goes on without end and asks the model nothing"):
        hand_of(FlowEngine(endless))
