"""Laws of the human in the loop: asked only when unsure, at most so often, and what is answered is written."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from mod_scripts import actions_of, run

from workbench.errors import ModError, WorkbenchError
from workbench.mods import ask_at_terminal, ask_when_unsure


class Clerk:
    """Answers questions from a list and keeps what was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, list[str]]] = []

    def __call__(self, question: str, choices: list[str]) -> Any:
        self.asked.append((question, choices))
        return self.answers.pop(0)


def test_the_answer_is_written_next(model: Any) -> None:
    """The script's distribution is certain, so a threshold of 0 nats or 1.0 asks at every pass."""
    clerk = Clerk("!", "", " and more")
    result = run(model, [ask_when_unsure(1.1, measure="top_probability", ask=clerk)], "ab")
    assert result.text == "!a and moreb"
    assert len(clerk.asked) == 3
    question, choices = clerk.asked[1]
    assert question.startswith("The model is unsure how to go on (top probability 1.00): …p:\n!")
    assert choices[0] == "a"
    assert len(choices) == 5
    assert actions_of(result, "ask_when_unsure") == [("force_tokens", "applied")] * 2


def test_a_choice_is_taken_as_the_token_it_is(merging_model: Any) -> None:
    ids = merging_model.tokenizer.hf.convert_tokens_to_ids(["Ġcat"])
    clerk = Clerk(" cat")
    result = run(merging_model, [ask_when_unsure(0, max_questions=1, ask=clerk)], ids)
    assert result.tokens[:1] == tuple(ids)


def test_a_typed_word_gets_its_space(model: Any) -> None:
    clerk = Clerk("two", "words", ".")
    assert run(model, [ask_when_unsure(0, ask=clerk)], "").text == "two words."


@pytest.mark.parametrize(("threshold", "measure", "asked"), [(9.0, "entropy", 0), (0.0, "top_probability", 0)])
def test_nobody_is_asked_when_sure(model: Any, threshold: float, measure: str, asked: int) -> None:
    clerk = Clerk()
    assert run(model, [ask_when_unsure(threshold, measure=measure, ask=clerk)], "ab").text == "ab"
    assert len(clerk.asked) == asked


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"measure": "entropi"}, "choose from entropy, top_probability"),
        ({"threshold": -1}, "threshold=-1"),
        ({"threshold": float("nan")}, "threshold=nan"),
        ({"choices": 0}, "choices=0"),
        ({"max_questions": -1}, "max_questions=-1"),
    ],
)
def test_what_can_not_be_asked_is_refused(given: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ask_when_unsure(**given)


def test_an_answer_that_is_no_text_is_refused(model: Any) -> None:
    with pytest.raises(ModError, match=r"ask must return text, one of .* got 3"):
        run(model, [ask_when_unsure(0, ask=Clerk(3))], "a")


@pytest.mark.parametrize(("typed", "answer"), [("2\n", "yes"), ("\n", ""), ("9\n", "9"), ("so be it\n", "so be it")])
def test_at_a_terminal_a_number_picks_a_choice(monkeypatch: Any, capsys: Any, typed: str, answer: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert ask_at_terminal("How?", ["no", "yes"]) == answer
    assert "How?\n[1] 'no'  [2] 'yes'\n" in capsys.readouterr().out


def test_where_nobody_can_answer_the_error_says_so(monkeypatch: Any, model: Any) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(WorkbenchError, match=r"no terminal or notebook to answer in\. Give it ask="):
        ask_at_terminal("How?", [])
    with pytest.raises(ModError, match="can't ask anybody"):
        run(model, [ask_when_unsure(0)], "a")
