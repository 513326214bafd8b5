"""Flows at work: asked, answered, erased and routed, with the text as if nothing had been asked."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench import Added, ForwardPass, Prefilled, Sampled, SamplingParams, Session, load, mod, replay
from workbench.errors import FlowError, ModError
from workbench.flows import (
    FlowDefinition,
    FlowEngine,
    FlowQuestion,
    RegexStrat,
    after_text,
    route_message,
    route_noop,
    route_output,
    route_question,
    route_summary,
    route_tool,
    when_unsure,
)

GREEDY = SamplingParams(temperature=0)
PROMPT = "Once upon"


@pytest.fixture(scope="module")
def model() -> Any:
    return load("tiny-llama")


@pytest.fixture(scope="module")
def plain(model: Any) -> Any:
    return Session(model).generate(PROMPT, max_new_tokens=12, sampling=GREEDY)


def run(model: Any, *engines: FlowEngine, **settings: Any) -> Any:
    mods = [engine.as_mod() for engine in engines]
    return Session(model, mods).generate(PROMPT, **{"max_new_tokens": 12, "sampling": GREEDY, **settings})


def state_of(engine: FlowEngine) -> Any:
    return next(reversed(engine.states.values()))


def ask(name: str = "ask", erase: str = "all", responses: Any = ("yes", "no"), **settings: Any) -> FlowQuestion:
    return FlowQuestion(name=name, prompt=f" {name}?", responses=list(responses), erase_mode=erase, **settings)


class TestErasing:
    def test_all_leaves_no_mark(self, model: Any, plain: Any) -> None:
        engine = FlowEngine(ask())
        result = run(model, engine)
        assert (result.tokens, result.reason) == (plain.tokens, plain.reason)
        [visit] = state_of(engine).history
        assert visit.answer in ("yes", "no")
        assert visit.erased
        assert sum(visit.probs.values()) == pytest.approx(1)

    def test_prompt_keeps_the_answer_as_it_was_generated(self, model: Any) -> None:
        engine = FlowEngine(ask(erase="prompt"))
        result = run(model, engine)
        [visit] = state_of(engine).history
        assert result.tokens[: len(visit.tokens)] == visit.tokens
        assert result.text.strip().startswith(visit.answer)
        assert "ask?" not in result.text

    def test_none_keeps_everything(self, model: Any) -> None:
        result = run(model, FlowEngine(ask(erase="none")))
        assert result.text.startswith((" ask?yes", " ask?no", " ask? yes", " ask? no"))

    @pytest.mark.parametrize("limit", [1, 2, 5])
    def test_a_long_question_does_not_eat_a_short_output(self, model: Any, plain: Any, limit: int) -> None:
        question = FlowQuestion(name="q", prompt=" a long question, is it", responses=["a", "b"], erase_mode="all")
        assert run(model, FlowEngine(question), max_new_tokens=limit).tokens == plain.tokens[:limit]

    def test_a_flow_cut_half_way_is_taken_back(self, model: Any) -> None:
        result = run(model, FlowEngine(ask()), max_forward_tokens=3)
        assert result.reason == "budget"
        assert "ask" not in result.text
        assert result.trace.history().tokens == list(result.prompt_tokens + result.tokens)


class TestDeciding:
    CHOICES = ("hello", "hello world", "help", "東京")

    def test_probabilities_are_those_of_whole_strings_scored_by_hand(self, model: Any) -> None:
        engine = FlowEngine(ask(responses=self.CHOICES))
        run(model, engine)
        [probs] = state_of(engine).answer_probs.values()
        context = [*model.tokenizer.prompt(PROMPT), *model.tokenizer.encode(" ask?")]
        totals = {lead: self.by_hand(model, context, lead) for lead in ("", " ")}
        form = max(totals.values(), key=lambda values: math.log(sum(math.exp(v) for v in values)))
        whole = sum(math.exp(value) for value in form)
        expected = [math.exp(value) / whole for value in form]
        assert list(probs) == list(self.CHOICES)
        assert list(probs.values()) == pytest.approx(expected, abs=1e-5)

    def by_hand(self, model: Any, context: list[int], lead: str) -> list[float]:
        totals = []
        for choice in self.CHOICES:
            tail = model.tokenizer.encode(lead + choice)
            tokens = [*context, *tail]
            logprobs = model.forward([tokens], model.new_cache(), keep=[len(tokens)]).logits[0].log_softmax(-1)
            total = sum(float(logprobs[len(context) - 1 + i, token]) for i, token in enumerate(tail))
            if choice == "hello":  # it ends unless the next byte is a space, as "hello world" would have it
                space = model.tokenizer.encode(" ")[0]
                total += math.log(1 - math.exp(float(logprobs[-1, space])))
            totals.append(total)
        return totals

    def test_at_temperature_zero_the_likeliest_is_taken(self, model: Any) -> None:
        engine = FlowEngine(ask(responses=self.CHOICES))
        run(model, engine)
        state = state_of(engine)
        probs = state.answer_probs["ask"]
        assert state.answers["ask"] == max(probs, key=probs.__getitem__)

    def test_otherwise_it_is_drawn_from_them_by_the_requests_stream(self, model: Any) -> None:
        engine = FlowEngine(ask(responses=["a", "b", "c", "d"]))
        warm = SamplingParams(temperature=1.0)
        answers = []
        for seed in range(40):
            run(model, engine, sampling=warm, seed=seed, max_new_tokens=1)
            answers.append(state_of(engine).answers["ask"])
        run(model, engine, sampling=warm, seed=7, max_new_tokens=1)
        assert state_of(engine).answers["ask"] == answers[7]
        assert len(set(answers)) > 1

    def test_open_answers_are_found_token_by_token_under_their_grammar(self, model: Any, plain: Any) -> None:
        question = FlowQuestion(name="year", prompt=" year?", strategy=RegexStrat("[0-9]{4}"), erase_mode="all")
        engine = FlowEngine(question)
        result = run(model, engine)
        answer = state_of(engine).answers["year"]
        assert len(answer) == 4
        assert answer.isdigit()
        assert result.tokens == plain.tokens

    def test_choices_can_be_found_token_by_token_too(self, model: Any, plain: Any) -> None:
        engine = FlowEngine(ask(responses=self.CHOICES, decide="tokenwise"))
        assert run(model, engine).tokens == plain.tokens
        assert state_of(engine).answers["ask"] in self.CHOICES


def forced(name: str, answer: str) -> FlowQuestion:
    """A question that answers itself, so that routing can be tested for sure."""
    return ask(name).with_auto_answer(lambda state: answer)


class TestRouting:
    def test_order_is_assign_then_on_then_branch_then_then(self, model: Any) -> None:
        told: list[str] = []
        last = forced("last", "yes").assign(lambda state, answer: told.append("last"))
        other = forced("other", "no")
        first = (
            forced("first", "YES ")
            .assign(lambda state, answer: told.append(f"assign {answer}"))
            .on("yes", last)
            .branch(lambda state: told.append("branch") or other)
            .then(other)
        )
        second = forced("second", "no").branch(lambda state: told.append("branch") or first).then(other)
        engine = FlowEngine(second)
        run(model, engine)
        assert told == ["branch", "assign YES ", "last"]
        assert list(state_of(engine).answers) == ["second", "first", "last"]

    def test_messages_outputs_tools_and_noops(self, model: Any, plain: Any) -> None:
        encode = model.tokenizer.encode
        assert run(model, FlowEngine(forced("q", "yes").then("Hi! "))).text.startswith("Hi! ")
        assert run(model, FlowEngine(ask().then(route_message("Hi! ")))).text.startswith("Hi! ")
        output = run(model, FlowEngine(ask().then(route_output("The end."))))
        assert (output.tokens, output.reason) == (tuple(encode("The end.")), "force_output")
        tool = run(model, FlowEngine(ask().then(route_tool(lambda state: {"answer": state.answers["ask"]}))))
        assert tool.reason == "tool_calls"
        assert tool.tool_calls["answer"] in ("yes", "no")
        assert tool.text == ""
        assert run(model, FlowEngine(ask().then(route_noop()))).tokens == plain.tokens
        assert run(model, FlowEngine(ask().then(route_question(ask("two"))))).tokens == plain.tokens

    def test_a_summary_is_built_from_the_state(self, model: Any) -> None:
        root = forced("q", "yes").then(route_summary())
        flow = FlowDefinition("f", root, lambda state: f"[{state.answers['q']}] ")
        assert run(model, FlowEngine(flow)).text.startswith("[yes] ")

    def test_functions_of_the_state_give_targets_and_actions(self, model: Any) -> None:
        def act(state: Any, actions: Any, tokenizer: Any) -> Any:
            return actions.force_tokens(tokenizer.encode(f"<{state.answers['ask']}>"))

        result = run(model, FlowEngine(ask().then(act)))
        assert result.text.startswith(("<yes>", "<no>"))
        chosen = run(model, FlowEngine(ask().then(lambda state: route_message(f"({state.answers['ask']})"))))
        assert chosen.text.startswith(("(yes)", "(no)"))

    def test_kept_answers_stand_before_the_next_question(self, model: Any) -> None:
        engine = FlowEngine(ask("one", erase="prompt").then(ask("two", erase="all").then(ask("three", erase="prompt"))))
        result = run(model, engine)
        one, _, three = state_of(engine).history
        assert result.tokens[: len(one.tokens) + len(three.tokens)] == one.tokens + three.tokens

    def test_a_loop_ends_by_retry(self, model: Any, plain: Any) -> None:
        again = ask("again").retry(3, None)
        again.then(again)
        engine = FlowEngine(again)
        assert run(model, engine).tokens == plain.tokens
        assert len(state_of(engine).history) == 3

    def test_a_circle_is_cut_with_a_clear_error(self, model: Any) -> None:
        asked = ask("round")
        asked.then(asked)
        with pytest.raises(ModError, match=r"asked 10 questions in one request, the last one 'round'.*Use retry"):
            run(model, FlowEngine(asked, max_visits=10))
        auto = forced("auto", "yes")
        auto.then(auto)
        with pytest.raises(ModError, match="goes round in a circle"):
            run(model, FlowEngine(auto))

    def test_what_a_callback_raises_reaches_the_user_with_its_question(self, model: Any) -> None:
        broken = ask("q").assign(lambda state, answer: {}["missing"])
        with pytest.raises(ModError, match="raised KeyError") as caught:
            run(model, FlowEngine(broken))
        assert "assign of question 'q' raised KeyError: 'missing' (answers so far: {'q':" in str(caught.value)
        assert isinstance(caught.value.__cause__.__cause__, KeyError)


class TestEntering:
    def test_after_a_text_in_the_output(self, model: Any, plain: Any) -> None:
        engine = FlowEngine(ask().when(after_text(".{5}")).then("!"))
        result = run(model, engine)
        assert result.text.startswith(model.tokenizer.decode(plain.tokens[:3]))
        assert "!" in result.text

    def test_when_the_model_is_unsure(self, model: Any) -> None:
        engine = FlowEngine(ask().when(when_unsure(1000.0)))
        run(model, engine)
        assert state_of(engine).history == []

    def test_several_flows_and_other_mods_in_one_run(self, model: Any, plain: Any) -> None:
        heard: list[int] = []

        @mod
        def listener(event: Any, actions: Any, tokenizer: Any) -> None:
            if isinstance(event, Added):
                heard.extend(event.tokens)

        one, two = FlowEngine(ask("one")), FlowEngine(ask("two").when(after_text(".{3}")))
        session = Session(model, [one.as_mod(), listener, two.as_mod()])
        result = session.generate(PROMPT, max_new_tokens=12, sampling=GREEDY)
        assert result.tokens == plain.tokens
        assert len(state_of(one).history) == len(state_of(two).history) == 1
        assert len(heard) == len(result.trace.history().every)

    @pytest.mark.parametrize("decide", ["whole", "tokenwise"])
    def test_a_flow_waits_until_another_ones_question_is_gone(self, model: Any, plain: Any, decide: str) -> None:
        one = FlowEngine(ask("one", responses=["yes", "no", "perhaps"], decide=decide))
        two = FlowEngine(ask("two", decide=decide))
        result = run(model, one, two)
        assert result.tokens == plain.tokens
        assert [len(state_of(engine).history) for engine in (one, two)] == [1, 1]
        assert not any(record.data.get("abandoned") for record in result.trace.records)

    def test_a_flow_that_another_mod_overrules_tries_again(self, model: Any) -> None:
        @mod
        def first(event: Any, actions: Any, tokenizer: Any) -> Any:
            if isinstance(event, ForwardPass) and event.step == 1:
                return actions.force_tokens(tokenizer.encode("X"))
            return None

        engine = FlowEngine(ask())
        result = Session(model, [first, engine.as_mod()]).generate(PROMPT, max_new_tokens=6, sampling=GREEDY)
        assert result.text.startswith("X")
        assert len(state_of(engine).history) == 1

    @pytest.mark.parametrize("decide", ["whole", "tokenwise"])
    @pytest.mark.parametrize("kind", [ForwardPass, Added])
    def test_a_flow_that_is_overruled_half_way_takes_itself_back(self, model: Any, decide: str, kind: type) -> None:
        @mod
        def meddler(event: Any, actions: Any, tokenizer: Any) -> Any:
            if isinstance(event, kind) and event.step == 2 and not event.state.get("done"):
                event.state["done"] = True
                return actions.force_tokens(tokenizer.encode("XYZ"))
            return None

        engine = FlowEngine(ask(responses=["yellow", "yes indeed"], decide=decide))
        result = Session(model, [meddler, engine.as_mod()]).generate(PROMPT, max_new_tokens=9, sampling=GREEDY)
        assert result.text.startswith("XYZ")
        assert "ask?" not in result.text
        assert len(result.tokens) == 9
        assert any(r.data.get("overruled") for r in result.trace.records)

    def test_each_request_of_a_batch_has_its_own(self, model: Any) -> None:
        engine = FlowEngine(ask())
        results = Session(model, [engine.as_mod()]).generate(["a", "bc", "def"], max_new_tokens=5, sampling=GREEDY)
        alone = [Session(model).generate(p, max_new_tokens=5, sampling=GREEDY) for p in ("a", "bc", "def")]
        assert [r.tokens for r in results] == [r.tokens for r in alone]
        assert len(engine.states) == 3

    def test_a_flow_replays(self, model: Any) -> None:
        result = run(model, FlowEngine(ask()), sampling=SamplingParams(temperature=1.0), seed=3)
        assert replay(result.trace, model, [FlowEngine(ask()).as_mod()]).agrees

    def test_every_visit_is_on_record(self, model: Any) -> None:
        engine = FlowEngine(ask("one").then(ask("two")))
        result = run(model, engine)
        flow_state = state_of(engine)
        notes = [r.data for r in result.trace.records if r.action == "note"]
        assert [note["question"] for note in notes] == ["one", "two"]
        assert [note["route"] for note in notes] == ["two", "back to the text"]
        assert [note["choices"] for note in notes] == [2, 2]
        assert [note["tokens"] for note in notes] == [list(visit.tokens) for visit in flow_state.history]
        assert sum(notes[0]["probs"].values()) == pytest.approx(1)
        assert all(note["erased"] for note in notes)


def test_the_seeds_runtime_tool_flow_runs_as_it_is_written(model: Any, plain: Any) -> None:
    class Tool:
        def __init__(self, name: str, fn: Any) -> None:
            self.name, self.fn = name, fn

    called: list[str] = []

    def tool(name: str) -> Tool:
        def fn(actions: Any, tokenizer: Any) -> Any:
            called.append(name)
            return actions.force_tokens(tokenizer.encode(f" [{name}]"))

        return Tool(name, fn)

    tools = [tool("search"), tool("calc")]

    def call_runtime_tool(ctx: Any, actions: Any, tokenizer: Any) -> Any:
        chosen = ctx.answers["runtime_tool_router"]
        return next(t for t in tools if t.name == chosen).fn(actions, tokenizer)

    names = ", ".join(t.name for t in tools)
    router = FlowQuestion(
        name="runtime_tool_router",
        prompt=f" Which of these tools should I call: {names}?",
        responses=[t.name for t in tools],
        erase_mode="all",
    ).then(call_runtime_tool)
    should = (
        FlowQuestion(
            name="runtime_tool_calls",
            prompt=f" Wait, I am augmented by tools that I can immediately call: {names}. Should I call one?",
            responses=["yes", "no"],
            erase_mode="all",
        )
        .on("yes", router)
        .on("no", None)
    )
    engine = FlowEngine(entry_question=should)

    @mod
    def runtime_tools(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, (Prefilled, ForwardPass, Added)):
            return engine.handle_event(event, actions, tokenizer)
        return actions.noop()

    seen = set()
    for number in range(40):  # a random model is sure of itself: other prompts, other answers
        result = Session(model, [runtime_tools]).generate(
            f"{number} {PROMPT}", max_new_tokens=12, sampling=SamplingParams(temperature=1.0), seed=number
        )
        answers = state_of(engine).answers
        seen.add(answers["runtime_tool_calls"])
        assert "Wait" not in result.text
        if answers["runtime_tool_calls"] == "yes":
            assert result.text.startswith(f" [{answers['runtime_tool_router']}]")
            assert called.pop() == answers["runtime_tool_router"]
    assert seen == {"yes", "no"}


questions = st.recursive(
    st.tuples(
        st.sampled_from(["none", "prompt", "all"]), st.sampled_from(["whole", "tokenwise"]), st.none(), st.none()
    ),
    lambda children: st.tuples(
        st.sampled_from(["none", "prompt", "all"]), st.sampled_from(["whole", "tokenwise"]), children, children
    ),
    max_leaves=5,
)


@settings(max_examples=80)
@given(
    tree=questions,
    limit=st.integers(1, 12),
    budget=st.integers(3, 200),
    entry=st.sampled_from([0, 3]),
    meddles=st.one_of(
        st.none(),
        st.tuples(
            st.integers(1, 9), st.sampled_from([ForwardPass, Sampled, Added]), st.integers(0, 6), st.integers(0, 5)
        ),
    ),
    seed=st.integers(0, 9),
)
def test_after_any_flow_tokens_cache_and_trace_agree(
    tree: Any, limit: int, budget: int, entry: int, meddles: Any, seed: int
) -> None:
    model = TINY
    counter = iter(range(100))

    def build(node: Any) -> Any:
        if node is None:
            return None
        erase, decide, yes, no = node
        question = ask(f"q{next(counter)}", erase=erase, responses=["yes", "no", "yes and no"], decide=decide)
        return question.on("yes", build(yes)).on("no", build(no)).then("!")

    root = build(tree)
    if entry:
        root.when(after_text(f".{{{entry}}}"))
    checked = []

    @mod
    def twin(event: Any, actions: Any, tokenizer: Any) -> None:
        if isinstance(event, ForwardPass):
            tokens = list(event.request.tokens)
            fresh = model.forward([tokens], model.new_cache()).logits[0][-1]
            checked.append(float((event.raw_logits - fresh).abs().max()))

    @mod
    def meddler(event: Any, actions: Any, tokenizer: Any) -> Any:
        due = meddles is not None and isinstance(event, meddles[1]) and event.step == meddles[0]
        if due and not event.state.get("done"):
            event.state["done"] = True
            back = min(meddles[2], len(event.request.generated))
            text = tokenizer.encode("XYZQ1"[: meddles[3]])
            return actions.backtrack(back, text) if back else actions.force_tokens(text) if text else None
        return None

    result = Session(model, [meddler, FlowEngine(root).as_mod(), twin]).generate(
        PROMPT, max_new_tokens=limit, max_forward_tokens=budget, seed=seed
    )
    assert max(checked) < 1e-3
    assert result.trace.history().tokens == list(result.prompt_tokens + result.tokens)
    assert len(result.tokens) <= limit
    if tree[0] == "all" and tree[2] is None and tree[3] is None:
        assert "q0?" not in result.text


TINY = load("tiny-gemma3")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FlowQuestion(name="", prompt="a", responses=["b"]), "a question needs a name"),
        (lambda: FlowQuestion(name="q", prompt="", responses=["b"]), "'q' needs a prompt"),
        (lambda: FlowQuestion(name="q", prompt="a"), "either as responses=.* or as strategy="),
        (lambda: ask(erase="al"), r"erase_mode must be one of none, prompt, all, got 'al'. Did you mean 'all'"),
        (lambda: ask().on("yess", None), r"can't be answered 'yess'; its answers are 'yes', 'no'. Did you mean 'yes'"),
        (lambda: ask().on("yes", None).on(" YES", None), "leads somewhere already"),
        (lambda: ask().then(None).otherwise(None), "has a then"),
        (lambda: ask().retry(0, None), "at least 1"),
        (lambda: ask().assign(3), "needs a function"),
        (lambda: FlowEngine("ask"), "must be a FlowQuestion or a FlowDefinition"),
        (lambda: FlowEngine(ask().on("yes", ask())), "two questions are named 'ask'"),
        (lambda: FlowEngine(ask(), max_visits=0), "max_visits must be 1 or more"),
    ],
)
def test_mistakes_are_said_before_anything_runs(make: Any, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        make()


@pytest.mark.real
def test_the_real_model_answers_sensibly() -> None:
    model = load("smollm2-135m-instruct")
    question = FlowQuestion(
        name="capital", prompt=" The capital of France is", responses=["Paris", "Rome", "Berlin"], erase_mode="all"
    )
    engine = FlowEngine(question)
    chat = [{"role": "user", "content": "Tell me about France."}]
    plain = Session(model).generate(chat, max_new_tokens=8, sampling=GREEDY)
    result = Session(model, [engine.as_mod()]).generate(chat, max_new_tokens=8, sampling=GREEDY)
    assert result.tokens == plain.tokens
    assert state_of(engine).answers["capital"] == "Paris"
    assert state_of(engine).answer_probs["capital"]["Paris"] > 0.9
    assert torch.isfinite(torch.tensor(list(state_of(engine).answer_probs["capital"].values()))).all()
