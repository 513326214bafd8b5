"""A flow that somebody wrote to do harm: refused as it is read, or run within bounds of time and memory."""

from __future__ import annotations

import json
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hostile_files import outcome_within

import workbench
from workbench.errors import FlowError, WorkbenchError
from workbench.flows import FlowDefinition, FlowEngine
from workbench.flows.schema import MAX_TEXT

SECONDS = 20.0
"""Of a thread's own time; a second is much."""


def question(name: str = "q", **other: Any) -> dict[str, Any]:
    return {
        "name": name, "prompt": "Is it? ", "strategy": {"kind": "choices", "choices": ["a", "b"]}, "erase_mode": "none",
        "decide": "whole", **other,
    }  # fmt: skip


def flow(*questions: dict[str, Any], **other: Any) -> str:
    told = [question()] if not questions else list(questions)
    return json.dumps({"format": 1, "name": "f", "root": told[0]["name"], "questions": told, **other})


def strategy(kind: str, **fields: Any) -> str:
    return flow(question(strategy={"kind": kind, **fields}))


# Read ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 500_000, "is no JSON"),
        ('{"a":' * 190_000, "is no JSON"),
        (flow(payload=[[[]]]), "keys allowed here"),
        (flow(question(then={"route": "tool", "payload": json.loads("[" * 80 + "]" * 80)})), "deeper than 64"),
        (flow(*[question(f"q{n}") for n in range(2001)]), "this takes 1 to 2,000"),
        ("1" * 5000, "is no JSON"),
        ("x" * (MAX_TEXT + 1), "the limit is 1,000,000"),
        (" " * 10**8, "the limit is 1,000,000"),
        (flow().replace('"format": 1', '"format": 1, "format": 1'), "twice"),
        (flow().replace('"format": 1', '"format": true'), "must be 1"),
        (flow().replace('"format": 1', '"format": 1e400'), "not finite"),
        (flow().replace('"format": 1', '"format": NaN'), "not finite"),
        (flow().replace('"format": 1', f'"format": {10**30}'), "more than 64 bits"),
        (flow().replace('"f"', '"\\ud800"'), "half a character"),
        (flow(question(), question()), "two questions are named"),
        (flow(root="nobody"), "there is no question"),
        (flow(question(then={"question": "nobody"})), "there is no question"),
        (flow(question(then={"function": "os.system"})), "os.system"),
        (flow(question(branch="builtins.exec")), "builtins.exec"),
        (flow(question(auto_answer="__import__")), "__import__"),
        (flow(question(when="../../evil")), "evil"),
        (flow(question(assign=["eval"])), "eval"),
        (flow(summary="os.system"), "os.system"),
        (flow(question(then={"route": "exec"})), "this is one of"),
        (flow(question(retry={"most": -1, "target": None})), "at least 1"),
        (flow(question(retry={"most": 1.5, "target": None})), "of JSON type integer"),
        (flow(question(when={"after_text": "(" * 500})), "after_text"),
        (flow(question(when={"when_unsure": -1})), "at least 0"),
        (flow(positions={"q": [1e400, 0]}), "not finite"),
        (flow(positions={"nobody": [0, 0]}), "there is no question"),
        (flow(*[question(then={"flow": {"name": str(n), "root": "q"}}) for n in range(1)], *[
            question(f"q{n}", then={"flow": {"name": f"f{n}", "root": "q"}}) for n in range(70)]), "than 64 flows"),
        (strategy("evil"), "this is one of"),
        (strategy("choices", choices=[]), "."),
        (strategy("regex", pattern="("), "."),
        (strategy("list", elements=["a"], min=10, max=1), "."),
        (strategy("chars", mode="exec", stop=1), "this is one of"),
    ],
    ids=lambda value: value[:30],
)  # fmt: skip
def test_a_hostile_document_is_refused(text: str, says: str) -> None:
    began = time.thread_time()
    with pytest.raises(FlowError, match=says) as caught:
        FlowDefinition.from_json(text)
    assert time.thread_time() - began < SECONDS
    assert len(str(caught.value)) < 2000


def test_a_million_questions_take_no_memory() -> None:
    text = '{"format": 1, "questions": [' + ",".join(['{"name": "q"}'] * 1_000_000) + "]}"
    tracemalloc.start()
    try:
        with pytest.raises(FlowError, match="the limit is 1,000,000"):
            FlowDefinition.from_json(text)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_densest_document_takes_little_memory(tmp_path: Path) -> None:
    """A million characters of the smallest things there are."""
    for number, filling in enumerate(("[],", "{},", "0,", '"",')):
        dense = f"[{(filling * (990_000 // len(filling)))[:-1]}]"
        text = flow(question(then={"route": "tool", "payload": []})).replace("[]", dense)
        (tmp_path / f"{number}.json").write_text(text)
    program = f"""
from pathlib import Path
from workbench.flows import FlowDefinition
for path in sorted(Path({str(tmp_path)!r}).iterdir()):
    try:
        FlowDefinition.from_json(path.read_text())
    except WorkbenchError:
        pass
"""
    said, taken = outcome_within(1500, program)
    assert said == "read"
    assert taken < 500


# Run -----------------------------------------------------------------------------------------------------------------


HARD = [
    strategy("regex", pattern="(a+)+$"), strategy("regex", pattern="(a|a)*b"), strategy("regex", pattern="(.*)*x"),
    strategy("regex", pattern="((((a{50}){50}){50}){50})"), strategy("regex", pattern="(a?){500}a{500}"),
    strategy("regex", pattern="[a-z]{0,5000}"), strategy("regex", pattern="(?:a{0,100}){0,100}"),
    strategy("regex", pattern="|".join(f"{n:05}" for n in range(20_000))),
    strategy("grammar", grammar="start: start start"), strategy("grammar", grammar="start: start | \"a\""),
    strategy("grammar", grammar="start: a\na: b\nb: a"),
    strategy("grammar", grammar="start: " + "(" * 2000 + '"a"' + ")" * 2000),
    strategy("grammar", grammar="start: \"a\"{1,1000000000}"), strategy("grammar", grammar="%import os\nstart: \"a\""),
    strategy("grammar", grammar="start: /(a+)+$/"), strategy("grammar", grammar='start: "a"~1..1000000000'),
    strategy("json", schema={"$ref": "#"}), strategy("json", schema={"$ref": "file:///etc/passwd"}),
    strategy("json", schema={"type": "string", "minLength": 10**9}),
    strategy("json", schema={"type": "array", "minItems": 10**9}),
    strategy("json", schema={"type": "string", "pattern": "(a+)+$"}),
    strategy("json", schema={"enum": list(range(30_000))}),
    strategy("json", schema={"allOf": [{"$ref": "#"}, {"$ref": "#"}]}),
    strategy("list", elements=["a"], min=10**9, max=10**9 + 1), strategy("list", elements=["a"], min=0, max=None),
    strategy("chars", mode="alpha", stop=10**15, min=10**14), strategy("chars", mode="string", stop="\x00" * 10_000),
    strategy("until", start="x" * 10_000, end_type="tag", end="y" * 10_000),
    strategy("choices", choices=[f"{n}" for n in range(20_000)]), strategy("choices", choices=["x" * 200_000]),
    strategy("choices", choices=["<script>alert(1)</script>", "\u202e", "\x00"]),
    flow(question(then={"question": "q"})), strategy("regex", pattern="a{1000000000}"),
    flow(question(retry={"most": 10**15, "target": {"question": "q"}}, then=None)),
    flow(question(erase_mode="all", then={"question": "q"})), flow(question(then={"flow": {"name": "x", "root": "q"}})),
    flow(question("a", then={"question": "b"}), question("b", then={"question": "a"})),
    flow(*[question(f"q{n}", then={"question": f"q{(n + 1) % 2000}"}, prompt="p") for n in range(2000)]),
    flow(question(prompt="x" * 500_000)), flow(question(then={"message": "x" * 500_000})),
    flow(question(when={"after_text": "(a+)+$"})), flow(question(when={"after_text": "(.*)*x"})),
]  # fmt: skip


@pytest.mark.parametrize("text", HARD, ids=range(len(HARD)))
def test_a_flow_that_can_be_read_runs_within_bounds(text: str) -> None:
    model: Any = workbench.load("tiny-llama", progress=False)
    began = time.thread_time()
    with suppress(WorkbenchError):
        mod = FlowEngine(FlowDefinition.from_json(text)).as_mod()
        result = workbench.Session(model, [mod]).generate("a" * 60 + "b", max_new_tokens=40, seed=1)
        assert len(result.tokens) <= 40
    assert time.thread_time() - began < SECONDS


def test_grammars_that_grow_take_no_memory(tmp_path: Path) -> None:
    for number, text in enumerate(HARD[:24]):
        (tmp_path / f"{number}.json").write_text(text)
    program = f"""
from pathlib import Path
from workbench.flows import FlowDefinition, FlowEngine
import workbench
model = workbench.load("tiny-llama", progress=False)
for path in sorted(Path({str(tmp_path)!r}).iterdir()):
    try:
        mod = FlowEngine(FlowDefinition.from_json(path.read_text())).as_mod()
        workbench.Session(model, [mod]).generate("a" * 60, max_new_tokens=20, seed=1)
    except WorkbenchError:
        pass
"""
    said, taken = outcome_within(4000, program, seconds=240)
    assert said == "read"
    assert taken < 1500
