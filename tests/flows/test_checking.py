"""What check() finds in a flow, and what it leaves alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import load
from workbench.errors import FlowError
from workbench.flows import (
    FlowDefinition,
    FlowQuestion,
    FlowState,
    ListStrat,
    RegexStrat,
    Visit,
    route_noop,
    route_question,
)
from workbench.flows.checking import check
from workbench.flows.document import from_json, to_json
from workbench.flows.drawing import draw
from workbench.flows.python_source import to_python


def ask(name: str = "ask", responses: Any = ("yes", "no"), **settings: Any) -> FlowQuestion:
    settings = {"prompt": f" {name}?"} | settings
    return FlowQuestion(name=name, responses=None if "strategy" in settings else list(responses), **settings)


def never(*arguments: Any) -> Any:
    raise AssertionError("check() must not call the flow's functions")


def found(flow: Any, tokenizer: Any = None) -> list[tuple[str, str]]:
    return [(problem.question, problem.kind) for problem in check(flow, tokenizer)]


def loop(*names: str) -> list[FlowQuestion]:
    asked = [ask(name) for name in names]
    for question, following in zip(asked, asked[1:] + asked[:1], strict=True):
        question.then(following)
    return asked


@pytest.mark.parametrize("fn", [check, draw, to_json, to_python])
def test_only_flows_and_questions_can_be_looked_at(fn: Any) -> None:
    with pytest.raises(FlowError, match="a FlowDefinition or a FlowQuestion is needed, got 'ask'"):
        fn("ask")


FINE = {
    "no routes": lambda: ask(),
    "all answers": lambda: ask().on("yes", ask("two")).on("no", None),
    "a fallback": lambda: ask().on("yes", ask("two")).then(None),
    "a branch": lambda: ask().on("yes", ask("two")).branch(never),
    "open answers": lambda: ask(strategy=RegexStrat("[0-9]+")).on("1", "!"),
    "functions": lambda: ask().assign(never).with_auto_answer(never).when(never).then(never),
    "a loop with a retry": lambda: loop("a", "b")[0].retry(3, None),
    "a loop with an answer out": lambda: loop("a", "b")[0].on("yes", route_noop()),
    "a loop with a branch": lambda: loop("a", "b")[1].branch(never),
}


@pytest.mark.parametrize("name", FINE)
def test_nothing_is_said_of_a_sound_flow(name: str) -> None:
    assert check(FINE[name]()) == []


class TestRoutes:
    def test_a_forgotten_answer_is_named(self) -> None:
        [problem] = check(ask(responses=["yes", "no", "maybe"]).on("yes", None))
        assert (problem.question, problem.kind) == ("ask", "unrouted")
        assert "no route for 'no', 'maybe'" in str(problem)

    def test_two_questions_of_one_name_made_after_the_flow(self) -> None:
        flow = FlowDefinition("f", ask())
        flow.root.then(ask())
        assert found(flow) == [("ask", "duplicate")]
        assert found(ask().then(ask())) == [("ask", "duplicate")]

    def test_a_question_of_the_document_that_nothing_leads_to(self) -> None:
        document = json.loads(to_json(ask().then(ask("two"))))
        document["questions"].append(document["questions"][0] | {"name": "lost", "then": {"question": "two"}})
        flow = from_json(json.dumps(document))
        [problem] = check(flow)
        assert (problem.question, problem.kind) == ("lost", "unreachable")
        assert "nothing written leads here from 'ask'" in problem.message
        assert found(from_json(to_json(flow))) == [("lost", "unreachable")]


class TestChoices:
    @pytest.mark.parametrize(
        "choices",
        [("caf\u00e9", "cafe\u0301"), ("one  two", "One two"), ("x²", "x2"), ("a\u00a0b", "a b")],
    )
    def test_choices_that_look_the_same_collide(self, choices: tuple[str, str]) -> None:
        assert found(ask(responses=choices)) == [("ask", "collision")]
        assert found(ask(strategy=ListStrat(ListStrat(choices)))) == [("ask", "collision")]

    def test_others_do_not(self) -> None:
        assert check(ask(responses=["hello", "hello world", "hell o"])) == []


class TestLoops:
    def test_a_loop_without_a_way_out_is_told_once(self) -> None:
        entry = ask("entry").on("yes", loop("c", "a", "b")[0]).on("no", None)
        [problem] = check(entry)
        assert (problem.question, problem.kind) == ("a", "endless")
        assert "a → b → c → a" in problem.message

    def test_a_long_loop_is_told_in_short(self) -> None:
        [problem] = check(loop(*(f"q{i:03}" for i in range(500)))[0])
        assert "q010 → … 489 more → q000;" in problem.message

    def test_two_loops_are_told_apart(self) -> None:
        entry = ask("entry").on("yes", loop("a", "b")[0]).on("no", loop("c")[0])
        assert found(entry) == [("a", "endless"), ("c", "endless")]

    def test_answers_that_cover_everything_leave_the_fallback_no_chance(self) -> None:
        one = ask()
        one.on("yes", one).on("no", route_question(one)).then(None)
        assert found(one) == [("ask", "endless")]

    def test_a_retry_into_the_same_loop_is_no_way_out(self) -> None:
        one = ask()
        one.then(one).retry(2, one)
        assert found(one) == [("ask", "endless")]

    def test_a_loop_of_auto_answers_is_called_that(self) -> None:
        one = ask().with_auto_answer(never)
        [problem] = check(one.then(one))
        assert "for ever without asking the model: ask → ask" in problem.message

    @given(
        st.lists(st.tuples(*[st.none() | st.integers(0, 5)] * 2, st.none() | st.integers(0, 5)), min_size=6, max_size=6)
    )
    def test_endless_means_that_no_walk_ever_ends(self, plans: Any) -> None:
        asked = [ask(str(i)) for i in range(6)]
        ways: list[set[int | None]] = []
        for question, (yes, no, retry) in zip(asked, plans, strict=True):
            question.on("yes", None if yes is None else asked[yes]).on("no", None if no is None else asked[no])
            if retry is not None:
                question.retry(2, asked[retry])
            ways.append({yes, no} | ({retry} if retry is not None else set()))
        reached = [{i} for i in range(6)]  # the plain twin: reach by repeated union
        for _ in range(6):
            for i in range(6):
                reached[i] |= {w for j in list(reached[i]) if j is not None for w in ways[j]}
        trapped = any(None not in reached[j] for j in reached[0] if j is not None)
        assert any(problem.kind == "endless" for problem in check(asked[0])) == trapped


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load("tiny-llama").tokenizer


class TestPrompts:
    def test_a_plain_prompt_is_fine(self, tokenizer: Any) -> None:
        assert check(ask(prompt=" Should I call a tool?"), tokenizer) == []
        assert check(ask(prompt="\nTool:"), tokenizer) == []

    def test_without_a_tokenizer_prompts_are_left_alone(self) -> None:
        assert check(ask(prompt="glued")) == []

    def test_one_that_sticks_to_the_text(self, tokenizer: Any) -> None:
        [problem] = check(ask(prompt="Should I?"), tokenizer)
        assert "starts without a space" in problem.message
        assert "' Should I?'" in problem.message

    def test_one_with_special_tokens(self, tokenizer: Any) -> None:
        special = tokenizer.token_text(tokenizer.eos_token_ids[0])
        [problem] = check(ask(prompt=f" a{special}b"), tokenizer)
        assert f"holds special tokens, which are marks and no text: {special}" in problem.message

    def test_one_that_does_not_come_back(self) -> None:
        class Lossy:
            """Like a tokenizer that knows small letters only."""

            def encode(self, text: str) -> list[int]:
                return [ord(char) for char in text.lower()]

            def decode(self, tokens: list[int]) -> str:
                return "".join(map(chr, tokens))

            def is_special(self, token: int) -> bool:
                return False

        [problem] = check(ask(prompt=" Why?"), Lossy())  # type: ignore[arg-type]
        assert "' Why?' comes back as ' why?'" in problem.message

    def test_one_that_can_not_be_tokenised(self, tokenizer: Any) -> None:
        [problem] = check(ask(prompt=" \ud800"), tokenizer)
        assert "can't be tokenised: the text can't be tokenised: it holds half a character" in problem.message


class TestDrawing:
    def visit(self, question: str, answer: str, **probs: float) -> Visit:
        return Visit(question=question, answer=answer, probs=probs, tokens=(), spent=0, erased=True)

    def test_questions_and_answers_are_a_flowchart(self) -> None:
        text = draw(ask().on("yes", ask("two").then("Hi")).on("no", None).branch(never))
        assert text.splitlines()[0] == "flowchart TD"
        assert 'q0["ask<br/> ask#63;"]' in text
        assert 'q0 -->|"yes"| q1' in text
        assert 'q0 -->|"no"| e0' in text
        assert 'e0(["back to the text"])' in text
        assert 'q0 -.->|"branch"|' in text
        assert "message#58; Hi" in text

    def test_runs_add_counts_and_mean_probabilities(self) -> None:
        states = [
            FlowState(request_id="1", history=[self.visit("ask", "yes", yes=0.9, no=0.1)]),
            FlowState(request_id="2", history=[self.visit("ask", "no", yes=0.5, no=0.5)]),
        ]
        text = draw(ask().on("yes", None).on("no", ask("two")), states)
        assert "2 visits" in text
        assert "yes p=0.70, taken 1" in text
        assert "no p=0.30, taken 1" in text
        assert "0 visits" in text

    @given(st.text(max_size=30), st.text(max_size=30).filter(lambda s: s.strip()))
    def test_no_text_breaks_out_of_its_label(self, prompt: str, name: str) -> None:
        hostile = ask(name, prompt=f'x"]\n click q0 "javascript:alert(1)" %%{{init}}%% <script>`{prompt}')
        plain = draw(ask("a", prompt=" b").then("c"))
        text = draw(hostile.then(f'"| q9\nend {prompt}'))
        assert len(text.splitlines()) == len(plain.splitlines())
        assert text.count('"') == plain.count('"')
        assert not set("`%{}\\") & set(text)
        assert "<script" not in text
