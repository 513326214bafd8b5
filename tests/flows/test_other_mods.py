"""A flow beside others: it knows its own actions from theirs, gives way, tries again, and never eats their text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workbench import Added, ForwardPass, SamplingParams, Session, load, mod
from workbench.errors import FlowError, ModError
from workbench.flows import FlowDefinition, FlowEngine, FlowQuestion, after_text, route_summary, route_tool

GREEDY = SamplingParams(temperature=0.0)
PROMPT = "The answer"


@pytest.fixture(scope="module")
def model() -> Any:
    return load("tiny-llama")


@pytest.fixture(scope="module")
def plain(model: Any) -> Any:
    return Session(model).generate(PROMPT, max_new_tokens=12, sampling=GREEDY)


def run(model: Any, *mods: Any, **settings: Any) -> Any:
    made = [each.as_mod() if isinstance(each, FlowEngine) else each for each in mods]
    session = settings.pop("session", {})
    return Session(model, made, **session).generate(PROMPT, **{"max_new_tokens": 12, "sampling": GREEDY, **settings})


def ask(name: str = "ask", erase: str = "all", responses: Any = ("yes", "no"), **settings: Any) -> FlowQuestion:
    return FlowQuestion(name=name, prompt=f" {name}?", responses=list(responses), erase_mode=erase, **settings)


def state(engine: FlowEngine) -> Any:
    return next(reversed(engine.states.values()))


def added(result: Any, by: str) -> str:
    """All that one mod ever put into the text."""
    return "".join(
        "".join(record.data["texts"]) for record in result.trace.records if record.kind == "added" and record.mod == by
    )


def once(kind: type, step: int, answer: Callable[[Any, Any], Any], name: str = "meddler") -> Any:
    """A mod that answers one event, once."""

    @mod(name=name)
    def meddle(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, kind) and event.step == step and not event.state.get("done"):
            event.state["done"] = True
            return answer(actions, tokenizer)
        return None

    return meddle


@pytest.mark.parametrize("second", ["two", "three", "ask of another length"])
@pytest.mark.parametrize("decide", ["whole", "tokenwise"])
def test_two_flows_at_one_pass_each_ask_their_own_question(model: Any, plain: Any, second: str, decide: str) -> None:
    one, two = FlowEngine(ask("one", decide=decide)), FlowEngine(ask(second, decide=decide))
    result = run(model, one, two)
    assert result.tokens == plain.tokens
    assert added(result, "flow:one").startswith(" one?")
    assert added(result, f"flow:{second}").startswith(f" {second}?")
    assert [len(state(engine).history) for engine in (one, two)] == [1, 1]


def test_two_flows_with_the_same_words_are_told_apart(model: Any, plain: Any) -> None:
    one, two = FlowEngine(ask()), FlowEngine(ask())
    result = run(model, one, two)
    assert result.tokens == plain.tokens
    forced = [r for r in result.trace.records if r.kind == "added" and "".join(r.data["texts"]) == " ask?"]
    assert len(forced) == 2


def test_a_visit_that_never_happened_is_not_counted(model: Any) -> None:
    engine = FlowEngine(ask("second").retry(1, "GAVE UP"))
    result = run(model, FlowEngine(ask("one")), engine)
    assert len(state(engine).history) == 1
    assert "GAVE UP" not in result.text


def test_a_message_that_was_overruled_is_said_later(model: Any) -> None:
    engine = FlowEngine(ask("two").with_auto_answer(lambda state: "yes").then("HELLO"))
    result = run(model, FlowEngine(ask("one")), engine)
    assert "HELLO" in result.text
    assert any(record.data.get("overruled") for record in result.trace.records)


def test_a_tool_that_was_overruled_is_called_once_and_its_text_put_there_later(model: Any) -> None:
    calls = []

    def tool(state: Any, actions: Any, tokenizer: Any) -> Any:
        calls.append(1)
        return actions.force_tokens(tokenizer.encode("TOOL"))

    engine = FlowEngine(ask("two").with_auto_answer(lambda state: "yes").then(tool))
    result = run(model, FlowEngine(ask("one")), engine)
    assert "TOOL" in result.text
    assert calls == [1]


@pytest.mark.parametrize("kind", [ForwardPass, Added])
@pytest.mark.parametrize("decide", ["whole", "tokenwise"])
@pytest.mark.parametrize("back", [0, 1, 2, 3, 6])
@pytest.mark.parametrize("text", ["", "X", "XYZ", " ask?", " ask"])
def test_no_meddling_leaves_a_part_of_an_erased_question_or_eats_what_was_meddled_in(
    model: Any, kind: type, decide: str, back: int, text: str
) -> None:
    def meddle(actions: Any, tokenizer: Any) -> Any:
        tokens = tokenizer.encode(text)
        n = min(back, len(actions.request.generated))
        return actions.backtrack(n, tokens) if n else actions.force_tokens(tokens) if tokens else None

    engine = FlowEngine(ask(responses=["yellow", "yes indeed"], decide=decide))
    for step in (2, 3):
        result = run(model, once(kind, step, meddle), engine)
        assert len(result.tokens) == 12, (step, result.text)
        if text[:1] == "X":
            assert text in result.text, (step, result.text)
            rest = result.text.replace(text, "", 1)
            assert "ask?" not in rest
            assert "yel" not in rest


def test_text_of_the_length_of_the_question_is_not_taken_for_it(model: Any) -> None:
    engine = FlowEngine(FlowQuestion("q", "abc", ["a", "b"], erase_mode="all"))
    for step in (1, 2):
        for text in ("X", "XYZ"):
            meddler = once(
                ForwardPass, step, lambda actions, tokenizer, text=text: actions.force_tokens(tokenizer.encode(text))
            )
            assert text in run(model, meddler, engine).text


def test_what_a_disabled_mod_owes_is_taken_back(model: Any, plain: Any) -> None:
    engine = FlowEngine(ask().assign(lambda state, answer: 1 / 0))
    result = run(model, engine, session={"on_mod_error": "disable"})
    assert result.tokens == plain.tokens
    assert any(record.action == "raised" for record in result.trace.records)


def test_events_without_added_are_enough(model: Any, plain: Any) -> None:
    engine = FlowEngine(ask().then(ask("again")))

    @mod
    def only_passes(event: Any, actions: Any, tokenizer: Any) -> Any:
        return engine.handle_event(event, actions, tokenizer) if isinstance(event, ForwardPass) else None

    assert run(model, only_passes).tokens == plain.tokens
    assert [visit.question for visit in state(engine).history] == ["ask", "again"]


class TestFunctions:
    @pytest.mark.parametrize(
        ("flow", "says"),
        [
            (lambda: ask().then(lambda state: {}["zonk"]), "raised KeyError: 'zonk'"),
            (lambda: ask().then(lambda state, actions, tokenizer: {}["zonk"]), "raised KeyError: 'zonk'"),
            (lambda: ask().then(route_tool(lambda state: {}["zonk"])), "the payload of route_tool raised KeyError"),
            (lambda: ask().branch(lambda state: True), "can't lead to True: it may be a question, a route"),
            (lambda: ask().then(lambda state: 42), "can't lead to 42"),
            (lambda: ask().with_auto_answer(lambda state: "purple"), "gave 'purple'; the answers are 'yes', 'no'"),
            (lambda: ask().with_auto_answer(lambda state: 3), "gave 3; the answers are"),
            (lambda: ask().assign(lambda state, answer: _later()), "a flow calls plain functions, not async"),
        ],
    )
    def test_what_goes_wrong_in_one_is_said_with_its_place(self, model: Any, flow: Any, says: str) -> None:
        with pytest.raises(ModError, match=says):
            run(model, FlowEngine(flow()))

    @pytest.mark.parametrize(
        ("make", "says"),
        [
            (lambda: ask().then(42), "can't lead to 42"),
            (lambda: ask().then(["a"]), r"can't lead to \['a'\]"),
            (lambda: ask().on("yes", str), "can't lead to <class 'str'>"),
            (lambda: ask().retry(2, 3.5), "retry can't lead to 3.5"),
            (lambda: ask().then(_async), "can't lead to"),
            (lambda: ask().assign(_async), "needs a plain function, got the async"),
            (lambda: ask().then(lambda: None), "takes neither"),
            (lambda: ask().then(lambda a, b: None), "takes neither"),
            (lambda: ask().then(lambda a, *, b: None), "takes neither"),
            (lambda: FlowQuestion("q", "p", "yes"), "responses is a list of answers, got the text 'yes'"),
            (lambda: FlowQuestion("q", "p", strategy=["yes"]), "strategy is one of the strategies"),
            (lambda: FlowQuestion("q", "p", [f"a{i}" for i in range(80)]).on("nope", None), "can't be answered 'nope'"),
        ],
    )
    def test_what_can_not_be_called_or_led_to_is_refused_when_it_is_written(self, make: Any, says: str) -> None:
        with pytest.raises(FlowError, match=says):
            make()

    def test_defaults_do_not_hide_what_a_function_takes(self, model: Any) -> None:
        def act(state: Any, actions: Any = None, tokenizer: Any = None) -> Any:
            return actions.force_tokens(tokenizer.encode("ACT"))

        assert run(model, FlowEngine(ask().then(act))).text.startswith("ACT")
        assert run(model, FlowEngine(ask().then(lambda state, word="WORD": word))).text.startswith("WORD")

    def test_names_are_looked_at_again_when_the_engine_is_made(self) -> None:
        flow = FlowDefinition("d", root := ask("root"))
        root.then(ask("root"))
        with pytest.raises(FlowError, match="two questions are named 'root'"):
            FlowEngine(flow)

    def test_the_summary_is_that_of_the_flow_that_was_entered(self, model: Any) -> None:
        inner = FlowDefinition("inner", ask("deep").then(route_summary()), lambda state: "INNER ")
        outer = FlowDefinition("outer", ask("top").then(inner), lambda state: "OUTER ")
        assert run(model, FlowEngine(outer)).text.startswith("INNER ")

    def test_a_summary_that_is_no_text_is_an_error(self, model: Any) -> None:
        flow = FlowDefinition("f", ask().then(route_summary()), lambda state: 42)
        with pytest.raises(ModError, match="summary_builder of flow 'f' must give text, got 42"):
            run(model, FlowEngine(flow))

    def test_a_long_circle_of_given_answers_is_a_clear_error(self, model: Any) -> None:
        circle = ask().with_auto_answer(lambda state: "yes")
        circle.then(circle)
        with pytest.raises(ModError, match="it goes round in a circle"):
            run(model, FlowEngine(circle, max_visits=5000))


async def _async(*_: Any) -> None: ...


def _later() -> Any:
    return _async()


def test_marks_of_the_format_are_no_answers(model: Any) -> None:
    with pytest.raises(ModError, match="does not read the choice '<eos>' as text"):
        run(model, FlowEngine(FlowQuestion("q", " A:", ["<eos>", "no"], erase_mode="prompt")))


@pytest.mark.parametrize("decide", ["whole", "tokenwise"])
def test_a_question_that_the_context_can_not_hold_is_skipped_and_the_trace_says_so(model: Any, decide: str) -> None:
    engine = FlowEngine(ask(decide=decide))
    prompt = "a" * (model.n_ctx - 8)
    plain = Session(model).generate(prompt, max_new_tokens=4, sampling=GREEDY)
    result = Session(model, [engine.as_mod()]).generate(prompt, max_new_tokens=4, sampling=GREEDY)
    assert result.tokens == plain.tokens
    assert any(record.data.get("skipped") == "the context is full" for record in result.trace.records)


@pytest.mark.parametrize("pattern", ["((((a{1000}){1000}){1000}){1000})", "(?:" * 5000 + "a" + ")" * 5000, "a" * 301])
def test_a_pattern_that_is_made_to_cost_is_refused_at_once(pattern: str) -> None:
    with pytest.raises(FlowError, match=r"after_text: .* is too large"):
        after_text(pattern)


def test_positions_are_part_of_a_flow() -> None:
    flow = FlowDefinition("f", ask())
    flow.positions = {"ask": (3.0, 4.5)}
    again = FlowDefinition.from_json(flow.to_json())
    assert again.positions == {"ask": (3.0, 4.5)}
    assert again.to_json() == flow.to_json()


def test_a_when_that_is_never_asked_is_a_problem() -> None:
    flow = ask().then(ask("next").when(after_text("x")))
    [problem] = FlowDefinition("f", flow).check()
    assert (problem.question, problem.kind) == ("next", "entry")
