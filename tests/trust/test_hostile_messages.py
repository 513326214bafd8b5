"""Messages of wrong shape to every kind of window: answered with a sentence, in bounded time; nothing else happens."""

from __future__ import annotations

import ast
import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from soak_scale import scaled

from widgets.base.incoming import LONGEST_ERROR, MOST_DEPTH, checked_message
from workbench.errors import ReportError

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "widgets"))  # for a run of this folder alone

from window_kinds import KINDS  # noqa: E402

FOLDERS = {
    "explorer": "trace_explorer", "residual": "residual_view", "live": "live_run", "flow": "flow_editor",
    "carry": "carry_inspector", "mcmc": "mcmc_stepper",
}  # fmt: skip
SECONDS = 15.0
"""Longest a message may take of its own thread's time; milliseconds are usual."""
LARGEST_ANSWER = 1_000_000
"""Characters of the JSON half of one message."""


def deep(levels: int, make: Any = list) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value] if make is list else {"a": value}
    return value


VALUES: list[Any] = [
    None, True, -1, 0, 10**9, 10**30, -(10**30), 1.5, float("nan"), float("inf"), -float("inf"), "", "x", "-1", "1e999",
    "9" * 5000, "nan", "x" * 100_000, "\x00", "\ud800", "../../etc/passwd", "/etc/passwd", "<script>alert(1)</script>",
    "__class__", "__import__('os')", [], [1] * 1000, [[1]], {}, {"a": 1}, {"__class__": "x"}, deep(60), deep(60, dict),
]  # fmt: skip


def fields_of(folder: str) -> list[str]:
    """The fields of messages that a window's own code reads."""
    found = set()
    for path in (ROOT / "widgets" / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Subscript(value=ast.Name(id="content"), slice=ast.Constant(value=str() as name)):
                    found.add(name)
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="content"), attr="get"), args=[ast.Constant(value=name), *_]
                ):
                    found.add(name)
                case ast.Call(func=ast.Name(id="typed_number"), args=[_, ast.Constant(value=name), *_]):
                    found.add(name)
    return sorted(found)


class Subject:
    """A window, what it sent, and the folder that it may write to."""

    def __init__(self, kind: str) -> None:
        self.window: Any = KINDS[kind]("ab")
        self.sent: list[Any] = []
        self.window.send = lambda content, buffers=None: self.sent.append(content)

    def hear(self, content: Any) -> None:
        """One message as a user's window hears it: under pytest it would raise what it is to show."""
        with pytest.MonkeyPatch.context() as patched:
            patched.delenv("PYTEST_CURRENT_TEST")
            self.window._heard(self.window, content, [])

    def say(self, content: Any) -> None:
        """Send one message and hold what must hold after any."""
        began = time.thread_time()
        self.hear(content)
        if "stop" in dir(self.window):
            self.window.stop()
            assert self.window.wait(60), "its work does not end"
        assert time.thread_time() - began < SECONDS
        assert len(self.window.error) <= LONGEST_ERROR, self.window.error[:200]
        for sent in self.sent:
            assert len(repr(sent)) < LARGEST_ANSWER, sent["type"]
        self.sent.clear()
        self.hear({"type": "ping"})
        assert {"type": "pong"} in self.sent, "it is dead"
        self.sent.clear()

    def close(self) -> None:
        self.window.close()


@pytest.fixture(scope="module", params=sorted(KINDS))
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """One window for all messages of a kind: it has to survive them all."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path_factory.mktemp("cwd"))
        made = Subject(request.param)
        made.folder = FOLDERS[request.param]  # type: ignore[attr-defined]
        yield made
        assert {path.suffix for path in Path.cwd().rglob("*") if path.is_file()} <= {".json"}, (
            "only a flow's own file is written"
        )
        made.close()
    gc.collect()


@pytest.mark.parametrize(
    "content", [None, 7, "x", [], {}, {"type": None}, {"type": ["detail"]}, {"type": {}}, b"x", {1: 2}]
)
def test_what_is_no_message_is_told(subject: Subject, content: Any) -> None:
    subject.window.error = ""
    subject.say(content)
    assert "the browser sent a message without a type: reload the page" in subject.window.error


@pytest.mark.parametrize("kind", ["", "exec", "__init__", "x" * 10_000, "_answer_detail", "close", "<b>", "\ud800"])
def test_an_unknown_kind_is_told(subject: Subject, kind: str) -> None:
    subject.window.error = ""
    subject.say({"type": kind})
    assert "which this window does not know: reload the page" in subject.window.error


@pytest.mark.parametrize(
    "value",
    [["x"] * 1_000_000, "x" * 10_000_000, {str(n): n for n in range(300_000)}, deep(5000), deep(5000, dict)],
    ids=["list", "text", "object", "deep list", "deep object"],
)
def test_a_message_beyond_bounds_is_refused_before_it_is_looked_at(subject: Subject, value: Any) -> None:
    for kind in subject.window.answers:
        subject.window.error = ""
        subject.say({"type": kind, "item": value})
        assert "nothing was done" in subject.window.error


def test_fields_that_are_missing_are_told(subject: Subject) -> None:
    for kind in list(subject.window.answers):
        subject.say({"type": kind})
        subject.say({"type": kind, "x": 1})


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_a_field_of_another_type_is_told(subject: Subject, value: Any) -> None:
    names = fields_of(subject.folder)  # type: ignore[attr-defined]
    assert names
    for kind in list(subject.window.answers):
        if kind in ("start", "run", "branch", "step") and not isinstance(value, (str, type(None))):
            continue  # those that begin work: below
        subject.say({"type": kind, **dict.fromkeys(names, value)})


@pytest.mark.parametrize(
    "value", [None, -1, 10**9, 10**30, 1e308, float("nan"), "x", [1], {"a": 1}], ids=lambda v: repr(v)[:20]
)
def test_work_that_is_asked_for_with_absurd_numbers_ends(subject: Subject, value: Any) -> None:
    names = fields_of(subject.folder)  # type: ignore[attr-defined]
    sound = dict.fromkeys(names, 1) | {"prompt": "a", "text": "a", "study": "effects", "kind": "noise", "mods": []}
    for kind in [kind for kind in ("start", "run", "branch", "step") if kind in subject.window.answers]:
        for name in names:
            subject.say({**sound, "type": kind, name: value})


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(VALUES[:24]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=scaled(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_message_whatever_does_more_than_answer(subject: Subject, data: st.DataObject) -> None:
    names = fields_of(subject.folder)  # type: ignore[attr-defined]
    kind = data.draw(st.sampled_from(sorted(subject.window.answers)))
    drawn = data.draw(st.dictionaries(st.sampled_from(names), plain, max_size=6))
    subject.say({**drawn, "type": kind})


# A flow's changes have names and fields of their own.


@settings(max_examples=scaled(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_change_of_a_flow_leaves_a_document_that_can_not_be_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    from widgets.flow_editor.changes import CHANGES
    from workbench.flows import FlowDefinition

    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path_factory.mktemp("flow"))
        subject = Subject("flow")
        for _ in range(data.draw(st.integers(1, 4))):
            name = data.draw(st.sampled_from(sorted(CHANGES)))
            _, needed, possible = CHANGES[name]
            fields = {
                key: data.draw(st.sampled_from(["ask", "root", "prompt", "strategy", "routes", "x", ""]) | plain)
                for key in (*needed, *possible)
            }
            subject.say({"type": "edit", "change": {"do": name, **fields}, "group": None, "id": 1})
        if subject.window._draft.document["questions"]:
            assert isinstance(FlowDefinition.from_json(subject.window._draft.text), FlowDefinition)
        assert {path.suffix for path in Path.cwd().rglob("*") if path.is_file()} <= {".json"}
        subject.close()


@pytest.mark.parametrize(
    "strategy",
    [
        '{"kind": "regex", "pattern": "(a+)+$"}',
        '{"kind": "regex", "pattern": "(a|a)*b"}',
        '{"kind": "regex", "pattern": "a{1000000000}"}',
        '{"kind": "regex", "pattern": "((a{1000}){1000}){1000}"}',
        '{"kind": "regex", "pattern": "' + "(" * 5000 + '"}',
        '{"kind": "regex", "pattern": "(?=a)(?<=b)\\\\1"}',
        '{"kind": "grammar", "grammar": "start: start start"}',
        '{"kind": "grammar", "grammar": "start: ' + "( " * 3000 + '"}',
        '{"kind": "json", "schema": "' + "[" * 5000 + '"}',
        '{"kind": "json", "schema": "{\\"$ref\\": \\"file:///etc/passwd\\"}"}',
        '{"kind": "json", "schema": "{\\"$ref\\": \\"#\\"}"}',
        '{"kind": "json", "schema": "{\\"minLength\\": 1000000000, \\"type\\": \\"string\\"}"}',
        '{"kind": "chars", "mode": "alpha", "stop": 1000000000000}',
        '{"kind": "list", "elements": ["a"], "min": 1000000000, "max": 1000000001}',
        '{"kind": "until", "start": "", "end_type": "anychar", "end": "' + "x" * 100_000 + '"}',
        '{"kind": "choices", "choices": [' + ", ".join(f'"{n}"' for n in range(50_000)) + "]}",
        '{"kind": "choices", "choices": []}', '{"kind": "os.system"}', "[" * 5000, "null", "7", '"x"', "{", "",
    ],
    ids=lambda text: text[:50],
)  # fmt: skip
def test_a_strategy_that_is_no_good_is_told_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.chdir(tmp_path)
    subject = Subject("flow")
    began = time.thread_time()
    subject.hear({"type": "preview", "strategy": strategy, "so_far": "a" * 60, "asked": 1})
    assert time.thread_time() - began < SECONDS
    assert [sent for sent in subject.sent if sent["type"] == "part"] or subject.window.error
    subject.close()


def test_the_browser_can_not_set_what_is_pythons() -> None:
    """A comm may also carry new values of traits: those that are shown are checked by type, the rest is not synced."""
    window: Any = KINDS["explorer"]("ab")
    assert set(window.keys) >= {"state", "error", "notices", "window_id"}
    synced = {name for name in window.keys if not name.startswith("_")}
    assert synced <= {"state", "error", "notices", "window_id", "layout", "tabbable", "tooltip", "comm", "chosen"}
    trace, answers = window.trace, dict(window.answers)
    window.set_state({"trace": 7, "answers": {}, "model": 1, "_open": False, "__class__": 1})
    window.set_state({"chosen": [10**9]})
    window.refresh()
    assert window.chosen == [], "where the cursor is put is Python's to say"
    window.select(0)
    assert window.trace is trace
    assert window.answers == answers
    assert window._open
    window.close()


def test_bounds_are_exact() -> None:
    assert checked_message({"type": "x", "a": deep(MOST_DEPTH - 3)}) == "x"
    with pytest.raises(ReportError, match="nested deeper than 100 levels"):
        checked_message({"type": "x", "a": deep(MOST_DEPTH)})
    endless: Any = {"type": "x"}
    endless["a"] = endless
    with pytest.raises(ReportError, match=r"nested deeper|more than"):
        checked_message(endless)
