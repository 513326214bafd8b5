"""FlowEditor from Python: one document, changed step by step, saved; its JSON is the engine's."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flow_samples import two_questions
from hypothesis import given, settings
from hypothesis import strategies as st

from widgets import FlowEditor
from widgets.flow_editor.changes import CHANGES, read_value
from widgets.flow_editor.draft import Draft
from widgets.flow_editor.preview import FRESH, allowed_next, in_words, strategy_of
from workbench import SamplingParams
from workbench.errors import FlowError
from workbench.flows import (
    FlowDefinition,
    FlowQuestion,
    JsonStrat,
    RegexStrat,
    layout,
    outline,
    route_tool,
)
from workbench.mods import tool_flow

WANTED = (Path(__file__).parents[2] / "data/flows/runtime_tools.json").read_text("utf-8")
GREEDY = SamplingParams(temperature=0)
WAIT = 60.0


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def editor(model: Any) -> Iterator[FlowEditor]:
    editor = FlowEditor(two_questions(counted=False), model)
    yield editor
    editor.close()


# The document ------------------------------------------------------------------------------------------------------


def test_the_tool_flow_authored_step_by_step_is_the_bundled_file_byte_for_byte() -> None:
    editor = FlowEditor()
    calls, router = json.loads(WANTED)["questions"]
    first = editor.edit("add")
    editor.edit("rename", node=first, name=calls["name"])
    editor.edit("set", node=calls["name"], key="prompt", value=calls["prompt"])
    second = editor.edit("add", after=calls["name"], way="branch")
    editor.edit("rename", node=second, name=router["name"])
    editor.edit("set", node=router["name"], key="prompt", value=router["prompt"])
    editor.edit("set", node=router["name"], key="strategy", value=router["strategy"])
    editor.edit("set", node=router["name"], key="then", value={"function": "call_runtime_tool"})
    editor.edit("route", node=calls["name"], answer="no", target=None)
    editor.edit("flow", key="name", value="runtime_tools")
    assert editor.to_json() == WANTED
    assert editor.path.read_text("utf-8") == WANTED
    assert editor.flow.to_json() == FlowDefinition("runtime_tools", tool_flow()).to_json() == WANTED


NAMES = st.sampled_from(["question 1", "question 2", "question 3", "a", "b", "wetter ☀", "gone"])
TARGETS = st.one_of(
    st.none(), st.builds(lambda name: {"question": name}, NAMES), st.builds(lambda text: {"message": text}, st.text()),
    st.sampled_from([{"function": "sample.say"}, {"function": "nobody"}, {"route": "noop"}, {"what": 1}]),
    st.builds(lambda name: {"flow": {"name": "inner", "root": name}}, NAMES),
)  # fmt: skip
WAYS = st.sampled_from(["child", "branch", "otherwise"])
ANSWERS = st.sampled_from(["yes", "no", " YES ", "perhaps", ""])
STRATEGY = st.sampled_from(
    [
        {"kind": "choices", "choices": ["yes", "no"]}, {"kind": "choices", "choices": ["yes", "perhaps"]},
        {"kind": "choices", "choices": []}, {"kind": "regex", "pattern": "[0-9"}, {"kind": "regex", "pattern": "a+"},
        {"kind": "json", "schema": '{"const": 1.0}'}, 7,
    ]
)  # fmt: skip
STEPS = st.one_of(
    st.builds(lambda after, way: {"do": "add", "after": after, "way": way}, st.none() | NAMES, WAYS),
    st.builds(lambda name: {"do": "delete", "node": name}, NAMES),
    st.builds(lambda old, new: {"do": "rename", "node": old, "name": new}, NAMES, NAMES | st.just("")),
    st.builds(lambda n, a, t: {"do": "route", "node": n, "answer": a, "target": t}, NAMES, ANSWERS, TARGETS),
    st.builds(lambda n, t: {"do": "set", "node": n, "key": "then", "value": t}, NAMES, TARGETS),
    st.builds(lambda n, v: {"do": "set", "node": n, "key": "strategy", "value": v}, NAMES, STRATEGY),
    st.builds(lambda n, t: {"do": "set", "node": n, "key": "prompt", "value": t}, NAMES, st.text(max_size=5)),
    st.builds(lambda n, t: {"do": "set", "node": n, "key": "retry", "value": {"most": 2, "target": t}}, NAMES, TARGETS),
    st.builds(lambda n: {"do": "unset", "node": n, "key": "then"}, NAMES),
    st.builds(lambda n, x: {"do": "move", "places": {n: [x, 2]}}, NAMES, st.floats() | st.integers(-9, 9)),
    st.builds(lambda n: {"do": "root", "node": n}, NAMES),
    st.sampled_from([{"do": "tidy"}, {"do": "undo"}, {"do": "flow", "key": "name", "value": "f"}, {}, {"do": "set"}]),
)  # fmt: skip


@given(st.lists(STEPS, max_size=14))
@settings(max_examples=150)
def test_any_changes_leave_a_document_that_the_engine_writes_the_same_and_undo_takes_all_back(steps: list[Any]) -> None:
    draft = Draft()
    seen = [draft.document]
    for step in steps:
        undoes = draft.undoes
        try:
            draft.apply(step)
        except FlowError:
            assert (draft.document, draft.undoes) == (seen[-1], undoes)
            continue
        if draft.text:
            assert FlowDefinition.from_json(draft.text).to_json() == draft.text
        if draft.document != seen[-1]:
            seen.append(draft.document)
    for before in reversed(seen[:-1]):
        assert draft.undo() is not None
        assert draft.document == before
    assert draft.undo() is None
    for after in seen[1:]:
        assert draft.redo() is not None
        assert draft.document == after
    assert draft.redo() is None


def test_every_flow_that_the_engine_writes_opens_and_is_unchanged() -> None:
    inner = FlowDefinition("inner", FlowQuestion("deep", "d", strategy=RegexStrat("[a-z]+")))
    schema = {"type": "number", "minimum": 1.0, "maximum": 2**53 + 1}
    root = (
        FlowQuestion("root", "r", strategy=JsonStrat(schema))
        .then(route_tool({"precise": [1.0, 2**60]}))
        .retry(2, inner)
    )
    text = FlowDefinition("all", root).to_json()
    editor = FlowEditor(text, path="all.json")
    assert editor.to_json() == text
    box = editor._boxes()["root"]
    # What the browser shows of any JSON is text; sent back as it is, no number has changed.
    editor.edit("set", node="root", key="strategy", value=box["data"]["strategy"])
    editor.edit("set", node="root", key="then", value=box["data"]["then"])
    assert editor.to_json() == text


def test_a_reworded_choice_keeps_its_way_and_a_removed_one_takes_it_along(editor: FlowEditor) -> None:
    editor.edit("route", node="first", answer="yes", target={"question": "second"})
    editor.edit("set", node="first", key="strategy", value={"kind": "choices", "choices": ["yep", "no"]})
    assert editor.flow.root.routes.keys() == {"yep"}
    editor.edit("set", node="first", key="strategy", value={"kind": "choices", "choices": ["no"]})
    assert editor.flow.root.routes == {}
    editor.undo()
    assert editor.flow.root.routes.keys() == {"yep"}


def test_renaming_and_deleting_follow_every_mention(editor: FlowEditor) -> None:
    editor.edit("route", node="first", answer="yes", target={"flow": {"name": "in", "root": "second"}})
    editor.edit(
        "set", node="second", key="retry", value={"most": 2, "target": {"route": "question", "question": "second"}}
    )
    editor.edit("move", places={"second": [5, 6.5]})
    editor.edit("rename", node="second", name="2nd")
    document = json.loads(editor.to_json())
    first, second = sorted(document["questions"], key=lambda question: question["name"] != "first")
    assert document["positions"] == {"2nd": [5.0, 6.5]}
    assert first["routes"] == {"yes": {"flow": {"name": "in", "root": "2nd"}}}
    assert first["then"] == {"question": "2nd"}
    assert second["retry"]["target"] == {"route": "question", "question": "2nd"}
    assert editor.edit("delete", node="2nd") == "first"
    (left,) = json.loads(editor.to_json())["questions"]
    assert not {"routes", "then", "retry"} & left.keys()


def test_deleting_the_root_lets_the_next_question_begin_and_the_last_leaves_an_empty_canvas(editor: FlowEditor) -> None:
    text = editor.to_json()
    assert editor.edit("delete", node="first") == "second"
    assert editor.flow.root.name == "second"
    assert editor.edit("delete", node="second") == ""
    with pytest.raises(FlowError, match="the canvas is empty: add a question first"):
        editor.to_json()
    assert editor.undo()
    assert editor.undo()
    assert not editor.undo()
    assert editor.to_json() == text
    assert editor.redo()
    assert len(editor.flow.questions) == 1


def test_what_is_typed_in_one_sitting_is_one_step(editor: FlowEditor) -> None:
    text = editor.to_json()
    for typed in ("W", "Wh", "Why"):
        editor.edit("set", node="first", key="prompt", value=typed, group="prompt#1")
    editor.edit("set", node="first", key="prompt", value="Why not", group="prompt#2")
    assert editor.undo()
    assert editor.flow.root.prompt == "Why"
    assert editor.undo()
    assert editor.to_json() == text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"do": "explode"}, "got the change 'explode', which is none of add, delete"),
        ({"do": "rename", "node": "first"}, "needs 'name' as text, got nothing; nothing was changed"),
        ({"do": "rename", "node": 3, "name": "x"}, "needs 'node' as text, got int"),
        ({"do": "set", "node": "first", "key": "name", "value": "x"}, "has the key 'name'; prompt, strategy"),
        ({"do": "set", "node": "frist", "key": "prompt", "value": "x"}, "'frist' any more. Did you mean 'first'"),
        ({"do": "set", "node": "first", "key": "prompt", "value": ""}, "prompt: got ''; this must not be empty"),
        ({"do": "unset", "node": "first", "key": "prompt"}, "a question always has its prompt"),
        ({"do": "rename", "node": "first", "name": "second"}, "there is a question named 'second' already"),
        ({"do": "rename", "node": "first", "name": " "}, "needs a name"),
        ({"do": "route", "node": "first", "answer": "maybe", "target": None}, "can't be answered 'maybe'"),
        ({"do": "route", "node": "first", "answer": "yes", "target": {"question": "third"}}, "no question 'third'"),
        ({"do": "set", "node": "first", "key": "branch", "value": "nobody"}, "no flow function is registered as"),
        ({"do": "set", "node": "first", "key": "strategy", "value": {"kind": "json", "schema": "{"}}, "is no JSON"),
        ({"do": "move", "places": {"first": [1]}}, "needs a place as two numbers"),
        ({"do": "move", "places": {"first": [float("nan"), 1]}}, "needs a place as two numbers"),
        ({"do": "add", "place": [1, "2"]}, "needs a place as two numbers"),
    ],
)  # fmt: skip
def test_what_can_not_be_changed_is_said_and_nothing_is_lost(
    editor: FlowEditor, change: dict[str, Any], says: str
) -> None:
    text = editor.to_json()
    with pytest.raises(FlowError, match=says):
        editor.edit(**change)
    assert editor.to_json() == text


def test_a_branch_takes_the_next_free_answer_and_a_child_all_others(editor: FlowEditor) -> None:
    editor.edit("unset", node="first", key="then")
    assert editor.edit("add", after="first", way="branch") == "question 1"
    assert editor.edit("add", after="first") == "question 2"
    first = editor.flow.root
    assert first.routes["yes"].name == "question 1"  # type: ignore[union-attr]
    assert first.fallback.name == "question 2"  # type: ignore[union-attr]
    editor.edit("add", after="first")
    with pytest.raises(FlowError, match="every answer of 'first' leads somewhere"):
        editor.edit("add", after="first")


def test_a_message_of_the_browser_that_is_no_change_is_an_error_and_a_refused_one_goes_to_its_field(
    editor: FlowEditor, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(editor, "tell", lambda kind, content, buffers=(): told.append((kind, content)))
    text = editor.to_json()
    editor._heard(editor, {"type": "edit", "id": 5, "change": {"do": "rename", "node": "first", "name": "second"}}, [])
    assert told == [
        ("refused", {"id": 5, "message": "there is a question named 'second' already: choose another name"})
    ]
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    for change in (None, [], "x", 5):
        editor.error = ""
        editor._heard(editor, {"type": "edit", "id": 6, "change": change}, [])
        assert "an edit that is none" in editor.error
    assert editor.to_json() == text


# The file ----------------------------------------------------------------------------------------------------------


def test_every_change_is_in_the_file_and_an_editor_opened_later_goes_on(model: Any) -> None:
    one = FlowEditor(path="mine.json")
    assert not one.path.exists()
    one.edit("add")
    assert one.path.read_text("utf-8") == one.to_json()
    one.edit("rename", node="question 1", name="again")
    one.close()
    two = FlowEditor(path="mine.json")
    assert two.flow.root.name == "again"
    two.undo()  # there is nothing to undo in a new window, and nothing is written
    assert two.path.read_text("utf-8") == two.to_json()
    assert [name for name in os.listdir() if name != "mine.json"] == []


def test_a_new_editor_without_anything_goes_on_where_the_last_one_was_left() -> None:
    FlowEditor().edit("add")
    assert str(FlowEditor().path) == "data/flows/untitled.json"
    assert FlowEditor().flow.root.name == "question 1"


def test_a_file_that_someone_else_changed_is_left_alone() -> None:
    editor = FlowEditor(two_questions(counted=False), path="mine.json")
    editor.edit("rename", node="first", name="1st")
    Path("mine.json").write_text("theirs")
    editor.edit("rename", node="1st", name="one")
    assert Path("mine.json").read_text() == "theirs"
    assert editor.path == Path("mine-2.json")
    assert editor.path.read_text("utf-8") == editor.to_json()


def test_a_flow_of_a_name_that_has_a_file_gets_a_file_of_its_own() -> None:
    first = FlowEditor(two_questions(counted=False))
    first.edit("rename", node="first", name="1st")
    second = FlowEditor(two_questions(counted=False))
    assert second.path == Path("data/flows/two-2.json")
    assert "FlowEditor(path='data/flows/two.json') opens that one" in second._told
    with pytest.raises(FlowError, match="holds another flow than the one given"):
        FlowEditor(two_questions(counted=False), path="data/flows/two.json")
    assert FlowEditor(path="data/flows/two.json").flow.root.name == "1st"


def test_a_file_that_can_not_be_written_is_an_error_row_and_the_flow_is_still_there() -> None:
    editor = FlowEditor(path="folder/mine.json")
    Path("folder").write_text("a file where the folder would be")
    editor.edit("add")
    assert "folder/mine.json" in editor.error
    assert editor.flow.root.name == "question 1"
    Path("folder").unlink()
    editor.edit("rename", node="question 1", name="saved")
    assert editor.path.read_text("utf-8") == editor.to_json()


@pytest.mark.parametrize(
    ("text", "says"), [("{", "no JSON"), ("[]", "JSON type object"), ('{"format": 2}', "'name' is missing")]
)
def test_a_file_that_is_no_flow_is_refused_and_left_alone(text: str, says: str) -> None:
    Path("bad.json").write_text(text)
    with pytest.raises(FlowError, match=says):
        FlowEditor(path="bad.json")
    assert Path("bad.json").read_text() == text


# Previews and places -----------------------------------------------------------------------------------------------


def test_a_preview_is_the_mask_of_a_run(model: Any) -> None:
    found = allowed_next(RegexStrat("[0-9]{3}"), model, "1")
    assert (found["count"], found["complete"], found["tokens"]) == (10, False, list("0123456789"))
    assert allowed_next(RegexStrat("[0-9]{3}"), model, "123") == {
        "words": "a text that matches ^([0-9]{3})$", "so_far": "123", "tokens": [], "count": 0, "complete": True,
    }  # fmt: skip
    with pytest.raises(FlowError, match="can't follow"):
        allowed_next(RegexStrat("[0-9]{3}"), model, "x")
    shown = "".join(allowed_next(strategy_of(read_value({"kind": "until", **FRESH["until"][1]})), model)["tokens"])
    assert "\u2400" not in shown, "what can't be read comes last"
    assert "tokens" not in allowed_next(RegexStrat("[0-9]{3}"), None)


@pytest.mark.parametrize("kind", FRESH)
def test_what_a_strategy_begins_with_is_one(model: Any, kind: str) -> None:
    strategy = strategy_of(read_value({"kind": kind, **FRESH[kind][1]}))
    assert allowed_next(strategy, model)["count"] > 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"kind": "choices", "choices": ["a", "b"]}, "one of 2 strings"),
        ({"kind": "until", "start": "<", "end_type": "tag", "end": ">"}, "'<', then anything up to the first '>'"),
        ({"kind": "until", "start": "", "end_type": "anychar", "end": ".!"}, "anything up to the first of '.', '!'"),
        ({"kind": "chars", "mode": "numeric", "min": 1, "stop": 4}, "1 to 4 characters (numeric)"),
        (
            {"kind": "chars", "mode": "alpha", "min": 2, "stop": "."},
            "2 or more characters (alpha), up to the first '.'",
        ),
        (
            {"kind": "list", "elements": ["a"], "open": "[", "close": "]", "min": 1, "max": None},
            "a list of 1 to any number elements, of 1 strings, with ', ' between between '[' and ']'",
        ),
        ({"kind": "json", "schema": {"type": "integer"}}, "a JSON value that fits the schema, without white space"),
        ({"kind": "grammar", "lark": 'start: "a"'}, "a text of the grammar, from its rule 'start'"),
    ],
)
def test_every_strategy_has_its_words(data: dict[str, Any], words: str) -> None:
    assert in_words(strategy_of(data)) == words


@given(st.lists(st.tuples(st.integers(0, 11), st.sampled_from("abc"), st.integers(0, 11)), max_size=30))
def test_the_layout_overlaps_nothing_and_is_the_same_every_time(links: list[tuple[int, str, int]]) -> None:
    questions = [FlowQuestion(f"q{number}", "?", ["a", "b", "c"]) for number in range(12)]
    for start, answer, end in links:
        if answer not in questions[start].routes:
            questions[start].on(answer, questions[end])
    flow = FlowDefinition("f", questions[0])
    flow.questions = {question.name: question for question in questions}
    heights = {f"q{number}": 1.0 + number % 3 for number in range(12)}
    places, parents = layout(flow, heights, across=10, gap=0.5), outline(flow)
    assert list(places) == list(parents)
    assert set(parents) == set(heights)
    assert layout(flow, heights, across=10, gap=0.5) == places
    depth = {name: x for name, (x, _) in places.items()}
    assert all(parent is None or depth[name] == depth[parent] + 10 for name, parent in parents.items())
    columns: dict[float, list[tuple[float, float]]] = {}
    for name, (x, y) in places.items():
        columns.setdefault(x, []).append((y, y + heights[name]))
    for spans in columns.values():
        ordered = sorted(spans)
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in itertools.pairwise(ordered))


def test_the_plain_layout_is_depth_and_leaf_index() -> None:
    leaves = [FlowQuestion(name, "?", ["a"]) for name in ("one", "two", "three")]
    root = FlowQuestion("root", "?", ["a", "b", "c"])
    for answer, leaf in zip("abc", leaves, strict=True):
        root.on(answer, leaf)
    assert layout(root) == {"root": (0, 1), "one": (1, 0), "two": (1, 1), "three": (1, 2)}


def test_the_frame_is_what_is_drawn(editor: FlowEditor) -> None:
    frame = editor.frame()
    assert frame[["question", "answer", "leads to"]].values.tolist() == [
        ["first", "yes", "otherwise"], ["", "no", "otherwise"], ["", "otherwise", "second"],
        ["second", "one", "otherwise"], ["", "two", "otherwise"], ["", "otherwise", "function sample.say"],
    ]  # fmt: skip
    assert "<svg" in editor.static_html()
    hostile = FlowEditor(FlowDefinition("<em>", FlowQuestion("<img>", "<script>", ["<u>"])), path="h.json")
    assert not re.search("<(em|img|script|u)>", hostile.static_html())


def test_every_change_is_documented_in_the_method_that_makes_them() -> None:
    assert all(f"``{name}``" in (FlowEditor.edit.__doc__ or "") for name in CHANGES)
