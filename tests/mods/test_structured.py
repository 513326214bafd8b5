"""Laws of the mods for structured output: only a value that parses gets through, and rolls are bounded."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mod_scripts import actions_of, run

from workbench.mods import canned_output, tool_call, valid_json
from workbench.mods.strict_json import closing, parse_json

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


@pytest.mark.parametrize(
    "call",
    [CALL, CALL.replace("{", " \n{", 1), '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>'],
)
def test_a_tool_call_ends_the_run_with_its_payload(model: Any, call: str) -> None:
    result = run(model, [tool_call()], f"Let me see. {call} never written")
    assert result.reason == "tool_calls"
    assert result.tool_calls == {"name": "add", "arguments": {"a": 1}}
    assert result.text == f"Let me see. {call}"


@pytest.mark.parametrize("bad", ["{", "nonsense", "[1]", '{"name": 3}', '{"name": "f", "arguments": 3}', '{"a": NaN}'])
def test_a_malformed_call_is_rolled_again(model: Any, bad: str) -> None:
    result = run(model, [tool_call()], f"So: <tool_call>{bad}</tool_call>{CALL}")
    assert result.tool_calls == {"name": "add", "arguments": {"a": 1}}
    assert result.text == f"So: {CALL}"


def test_a_call_that_stays_malformed_is_an_error(model: Any) -> None:
    result = run(model, [tool_call(max_rolls=2)], "<tool_call>{]</tool_call>" * 5)
    assert result.reason == "error"
    assert "gave up after 3 rolls; the last gave no tool call: " in str(result.error)
    assert [a for a, _ in actions_of(result, "tool_call")] == ["backtrack", "backtrack", "emit_error"]


def test_a_call_can_look_otherwise(model: Any) -> None:
    result = run(model, [tool_call(r"CALL (\{.*?\}\})")], 'CALL {"name": "f", "arguments": {}} x')
    assert result.tool_calls == {"name": "f", "arguments": {}}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: tool_call("("), r"pattern='\('\) is not a regular expression"),
        (lambda: tool_call("x"), "needs a group around the JSON"),
        (lambda: tool_call(max_rolls=-1), "must be a whole number, 0 or more"),
        (lambda: valid_json(max_rolls=1.5), "must be a whole number, 0 or more"),  # type: ignore[arg-type]
    ],
)
def test_what_can_not_work_is_refused(make: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


@pytest.mark.parametrize(
    ("written", "text", "rolls"),
    [
        ('{"a": [1, "}"]} and more', '{"a": [1, "}"]}', 0),
        (" [1, 2]\n", " [1, 2]", 0),
        ('"quoted \\" text" x', '"quoted \\" text"', 0),
        ("12", "12", 0),
        ("12 apples", "12 ", 0),
        ("-1.5e3\n", "-1.5e3\n", 0),
        ('```json\n{"a": 1}\n```', '{"a": 1}', 0),
        (" ```\n\n[]", "[]", 0),
        ("{} {}", "{}", 0),
        ('{"a": 1, }{"a": 2}', '{"a": 2}', 1),
        ("{][1]", "[1]", 1),
        ("true.,[1]", "[1]", 1),
        ('Sure!{"a": 1}', '{"a": 1}', 5),  # each of these characters begins no JSON
    ],
)
def test_only_json_gets_through(model: Any, written: str, text: str, rolls: int) -> None:
    result = run(model, [valid_json()], written)
    assert result.text == text
    assert result.reason in ("eos", "force_output")
    assert actions_of(result, "valid_json").count(("backtrack", "applied")) == rolls
    json.loads(result.text)


def test_an_answer_that_ends_open_is_rolled_again(model: Any) -> None:
    end = model.tokenizer.eos_token_ids[0]
    ids = [*model.tokenizer.encode('{"a": '), end, *model.tokenizer.encode("[]")]
    assert run(model, [valid_json()], ids).text == "[]"


def test_an_answer_cut_by_the_limit_is_rolled_again(model: Any) -> None:
    result = run(model, [valid_json()], "[1, 2[1]", max_new_tokens=5)
    assert result.text == "[1]"


def test_rolls_are_bounded(model: Any) -> None:
    result = run(model, [valid_json(max_rolls=2)], "nnnnnnxxx")
    assert result.reason == "error"
    result = run(model, [valid_json(max_rolls=2)], "Sure")
    assert result.error == "gave up after 3 rolls; the last gave no JSON: no value begins with 'r'"
    assert result.text == "r"


def test_an_output_given_by_another_mod_is_left_alone(model: Any) -> None:
    assert run(model, [canned_output("no"), valid_json()], "x").text == "no"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200)
@given(value=values, after=st.sampled_from([" x", "\n", ", 1", "]"]))
def test_a_value_is_closed_where_it_ends(value: Any, after: str) -> None:
    text = json.dumps(value)
    assert closing(text + after, 0) == len(text)
    if text[0] in '"[{':
        assert all(closing(text[:end], 0) is None for end in range(1, len(text)))
    assert parse_json(text) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 65 + "]" * 65, "nests deeper than 64"),
        ('"' + "x" * 100_000 + '"', "characters; 100000 are allowed"),
        ("[NaN]", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("1" * 5000, "Exceeds the limit"),
        ('"' + '\\"' * 49_000, "Unterminated string"),
        ("", "Expecting value"),
    ],
)
def test_hostile_json_is_refused_and_quickly(text: str, why: str) -> None:
    begun = time.perf_counter()
    with pytest.raises(ValueError, match=why):
        parse_json(text)
    assert time.perf_counter() - begun < 1
