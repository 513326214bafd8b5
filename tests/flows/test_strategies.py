"""Strategies are plain data, refuse what can't be meant, and say what the answer in a text is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, replace
from typing import Any

import pytest
from llguidance import LLMatcher

from workbench.errors import FlowError, WorkbenchError
from workbench.flows.strategies import (
    CharsMode,
    CharsStrat,
    ChoicesStrat,
    GrammarStrat,
    JsonStrat,
    ListStrat,
    RegexStrat,
    UntilEndType,
    UntilStrat,
    grammar_of,
)

ALL: list[Any] = [
    ChoicesStrat(["a", "b"]),
    UntilStrat("<x>", UntilEndType.TAG, "</x>"),
    UntilStrat("", UntilEndType.ANYCHAR, ".!"),
    CharsStrat(CharsMode.NUMERIC, stop=4),
    CharsStrat(CharsMode.STRING, min=0, stop="\n"),
    ListStrat(["a", "b"], open="[", close="]"),
    ListStrat(CharsStrat(CharsMode.ALPHA, stop=9), wrap='"', min=2, max=5, end_with=";"),
    RegexStrat("[0-9]{4}"),
    JsonStrat({"type": "integer"}),
    GrammarStrat('start: "a" start "b" | "ab"'),
]


@pytest.mark.parametrize("strategy", ALL, ids=lambda s: type(s).__name__)
def test_a_strategy_is_frozen_plain_data_that_compares_hashes_and_rebuilds(strategy: Any) -> None:
    assert json.loads(json.dumps(asdict(strategy)))
    assert replace(strategy) == strategy
    assert hash(replace(strategy)) == hash(strategy)
    with pytest.raises((FrozenInstanceError, TypeError)):
        strategy.anything = 1


@pytest.mark.parametrize("strategy", ALL, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("leading_space", [False, True])
def test_every_grammar_is_one_that_llguidance_reads(strategy: Any, leading_space: bool) -> None:
    grammar = grammar_of(strategy, leading_space=leading_space)
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar)) == ""


def test_up_to_64_choices_are_finite_and_nothing_else_is() -> None:
    assert ChoicesStrat(["b", "a"]).finite() == ("b", "a")
    assert len(ChoicesStrat([f"c{i}" for i in range(64)]).finite() or ()) == 64
    assert ChoicesStrat([f"c{i}" for i in range(65)]).finite() is None
    assert [s.finite() for s in ALL[1:]] == [None] * len(ALL[1:])


def test_names_stand_for_their_members_and_json_text_for_its_schema() -> None:
    assert CharsStrat("numeric", stop=4) == CharsStrat(CharsMode.NUMERIC, stop=4)  # type: ignore[arg-type]
    assert UntilStrat("", "tag", "x").end_type is UntilEndType.TAG  # type: ignore[arg-type]
    assert JsonStrat('{"type": "integer"}') == JsonStrat({"type": "integer"})  # type: ignore[arg-type]


def test_a_schema_is_copied_so_that_a_later_change_outside_does_not_reach_it() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    strategy = JsonStrat(schema)
    schema["properties"]["late"] = {"type": "string"}
    assert strategy.schema == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("strategy", "text", "answer"),
    [
        (ChoicesStrat(["yes", " no"]), " yes", "yes"),
        (ChoicesStrat(["yes", " no"]), " no", " no"),
        (UntilStrat("<x>", UntilEndType.TAG, "</x>"), " <x>a</x>", "<x>a</x>"),
        (CharsStrat(CharsMode.STRING, stop="\n"), " one two\n", "one two"),
        (CharsStrat(CharsMode.NUMERIC, stop=4), " 1234", "1234"),
        (ListStrat(["a", "b"], open="[", close="]", end_with="\n"), " [a, b]\n", "[a, b]"),
        (ListStrat(["a", "b"]), "a, b", "a, b"),
        (RegexStrat("[0-9]+"), " 12", "12"),
        (JsonStrat({"type": "integer"}), "12", "12"),
    ],
)
def test_the_answer_leaves_out_a_leading_space_and_what_only_marks_the_end(
    strategy: Any, text: str, answer: str
) -> None:
    assert strategy.answer_of(text) == answer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ChoicesStrat([]), r"ChoicesStrat takes 1 to 1,000 choices, got 0"),
        (lambda: ChoicesStrat([f"c{i}" for i in range(1001)]), r"1 to 1,000 choices, got 1,001"),
        (lambda: ChoicesStrat("yes"), r"needs a list of strings, got 'yes'"),
        (lambda: ChoicesStrat(["a", 1]), r"each choice must be a string, got 1"),
        (lambda: ChoicesStrat(["a", ""]), r"each choice is empty"),
        (lambda: ChoicesStrat(["a", " \n"]), r"only white space: ' \\n'"),
        (lambda: ChoicesStrat(["Yes", "no", " yes"]), r"'Yes' and ' yes' are the same choice but for case"),
        (lambda: ChoicesStrat(["straße", "STRASSE"]), r"are the same choice"),
        (lambda: ChoicesStrat(["a" * 1001]), r"has 1,001 characters; the limit is 1,000"),
        (lambda: ChoicesStrat(["\ud800"]), r"half a character"),
        (lambda: UntilStrat("<x>", UntilEndType.TAG, ""), r"UntilStrat.end is empty"),
        (lambda: UntilStrat("<x>", "never", "a"), r"UntilStrat.end_type is one of TAG, ANYCHAR, got 'never'"),
        (lambda: UntilStrat(None, UntilEndType.TAG, "a"), r"UntilStrat.start must be a string, got None"),
        (lambda: CharsStrat("hex", stop=3), r"one of ALPHA, ALPHANUMERIC, NUMERIC, STRING, JS_FLOAT, got 'hex'"),
        (lambda: CharsStrat(CharsMode.ALPHA, min=5, stop=4), r"min 5 above stop 4"),
        (lambda: CharsStrat(CharsMode.ALPHA, min=-1, stop=4), r"CharsStrat.min must be a whole number from 0"),
        (lambda: CharsStrat(CharsMode.ALPHA, stop=0), r"CharsStrat.stop must be a whole number from 1 to 4,000, got 0"),
        (lambda: CharsStrat(CharsMode.ALPHA, stop=4001), r"from 1 to 4,000, got 4001"),
        (lambda: CharsStrat(CharsMode.ALPHA, stop=True), r"got True"),
        (lambda: CharsStrat(CharsMode.ALPHA, stop=""), r"CharsStrat.stop is empty"),
        (lambda: ListStrat([]), r"ListStrat takes 1 to 1,000 elements"),
        (lambda: ListStrat(["a", "A"]), r"same element"),
        (lambda: ListStrat(["a"], min=3, max=2), r"ListStrat has min 3 above max 2"),
        (lambda: ListStrat(["a"], max=0), r"ListStrat.max must be a whole number from 1"),
        (lambda: ListStrat(["a"], sep=None), r"ListStrat.sep must be a string"),
        (lambda: ListStrat(["a"], end_with=""), r"ListStrat.end_with is empty"),
        (lambda: ListStrat(JsonStrat({})), r"ListStrat can't hold JsonStrat: say the whole list in the schema"),
        (lambda: RegexStrat(""), r"RegexStrat.pattern is empty"),
        (lambda: RegexStrat("^$"), r"fits only an empty text"),
        (lambda: RegexStrat("(a"), r"RegexStrat can't use the pattern '\(a': unclosed group"),
        (lambda: RegexStrat("a(?=b)"), r"look-around, .* is not supported"),
        (lambda: RegexStrat(r"(a)\1"), r"backreferences are not supported"),
        (lambda: RegexStrat(r"\bfoo"), r"lookarounds not supported"),
        (lambda: RegexStrat("b^a"), r"lookarounds not supported"),
        (lambda: JsonStrat("{"), r"JsonStrat.schema is no JSON"),
        (lambda: JsonStrat("[1]"), r"must be a JSON object"),
        (lambda: JsonStrat(True), r"must be a JSON object .*got True"),
        (lambda: JsonStrat({"x-guidance": 1}), r"must be a JSON object"),
        (lambda: JsonStrat({"minimum": float("nan")}), r"is no JSON"),
        (lambda: JsonStrat({"type": "strin"}), r"Invalid type: strin"),
        (lambda: JsonStrat({"type": "integer", "minimum": 2, "maximum": 1}), r"Unsatisfiable schema"),
        (lambda: JsonStrat({"enum": ["x" * 100_000]}), r"the limit is 100,000"),
        (lambda: GrammarStrat(""), r"GrammarStrat.lark is empty"),
        (lambda: GrammarStrat('begin: "a"'), r"no start rule found"),
        (lambda: GrammarStrat("start: x"), r'unknown name: "x"'),
    ],
)
def test_what_can_not_be_meant_is_refused_where_it_is_written(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(FlowError, match=message) as caught:
        make()
    assert isinstance(caught.value, WorkbenchError)
    assert isinstance(caught.value, ValueError)
