"""A flow as data: what is written comes back the same, and nothing else comes in."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from workbench.errors import FlowError
from workbench.flows import (
    CharsMode,
    CharsStrat,
    ChoicesStrat,
    FlowDefinition,
    FlowQuestion,
    FlowRoute,
    GrammarStrat,
    JsonStrat,
    ListStrat,
    RegexStrat,
    RouteKind,
    UntilEndType,
    UntilStrat,
    after_text,
    route_message,
    route_noop,
    route_output,
    route_question,
    route_summary,
    route_tool,
    when_unsure,
)
from workbench.flows.document import from_json, positions_of, questions_of, to_json
from workbench.flows.functions import flow_function, name_of, registered
from workbench.flows.python_source import to_python
from workbench.flows.schema import json_schema

ROOT = Path(__file__).resolve().parents[2]
CALLED: list[str] = []
PREFIX = f"t{uuid.uuid4().hex[:6]}"


def named(name: str) -> Callable[..., Any]:
    def fn(*arguments: Any) -> None:
        CALLED.append(name)

    return flow_function(f"{PREFIX}.{name}")(fn)


FUNCTIONS = [named(name) for name in ("one", "two", "three")]
STRATEGIES = [
    ChoicesStrat(("yes", "no", "Straße", "東京")),
    ChoicesStrat(('a "quoted" one', "b\n", "\u2028 c")),
    UntilStrat("<a>", UntilEndType.TAG, "</a>"),
    UntilStrat("", UntilEndType.ANYCHAR, ".!"),
    CharsStrat(CharsMode.ALPHA, stop=5),
    CharsStrat(CharsMode.STRING, min=0, stop="END"),
    ListStrat(("a", "b"), open="[", close="]", wrap='"', min=0, max=3, end_with="\n"),
    ListStrat(ListStrat(CharsStrat(CharsMode.NUMERIC, stop=2), sep=";"), open="("),
    RegexStrat(r"\d{4}-\d{2}"),
    JsonStrat({"type": "object", "properties": {"z": {"type": "integer"}, "a": {}}, "required": ["z"]}),
    GrammarStrat('start: "a" | "b"'),
]
FINITE = STRATEGIES[:2]


# --- random flows: plain data drawn, questions built ---

indices = st.integers(0, 5)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
payloads = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
targets = st.one_of(
    st.tuples(st.sampled_from(["none", "summary", "noop"]), st.none()),
    st.tuples(st.sampled_from(["question", "route", "function", "tool function"]), indices),
    st.tuples(st.sampled_from(["message", "text", "output"]), texts),
    st.tuples(st.just("tool"), payloads),
    st.tuples(st.just("flow"), st.tuples(texts, indices, st.none() | indices)),
)
conditions = st.sampled_from([after_text("[0-9]+ =$"), when_unsure(1.5), when_unsure(0)])
questions = st.fixed_dictionaries(
    {
        "prompt": texts.filter(bool),
        "strategy": st.integers(0, len(STRATEGIES) - 1),
        "erase": st.sampled_from(["none", "prompt", "all"]),
        "decide": st.sampled_from(["whole", "tokenwise"]),
        "routes": st.lists(targets, max_size=3),
        "then": st.none() | targets,
        "assign": st.lists(indices, max_size=3),
        "branch": st.none() | indices,
        "auto": st.none() | indices,
        "when": st.none() | indices | conditions,
        "retry": st.none() | st.tuples(st.integers(1, 99), targets),
    }
)
flows = st.tuples(texts, st.lists(questions, min_size=1, max_size=4), st.none() | indices, st.booleans())


def fn_at(index: int) -> Any:
    return FUNCTIONS[index % len(FUNCTIONS)]


def target_of(drawn: Any, asked: list[FlowQuestion]) -> Any:
    kind, value = drawn
    match kind:
        case "question":
            return asked[value % len(asked)]
        case "route":
            return route_question(asked[value % len(asked)])
        case "function":
            return fn_at(value)
        case "tool function":
            return route_tool(fn_at(value))
        case "flow":
            name, root, summary = value
            return FlowDefinition(name, asked[root % len(asked)], None if summary is None else fn_at(summary))
    return {
        "none": lambda: None,
        "summary": route_summary,
        "noop": route_noop,
        "message": lambda: route_message(value),
        "text": lambda: value,
        "output": lambda: route_output(value),
        "tool": lambda: route_tool(value),
    }[kind]()


def build(drawn: Any) -> FlowDefinition:
    name, plans, summary, listed = drawn
    asked = [
        FlowQuestion(
            f"q {i}",
            plan["prompt"],
            strategy=STRATEGIES[plan["strategy"]],
            erase_mode=plan["erase"],
            decide=plan["decide"],
        )
        for i, plan in enumerate(plans)
    ]
    for question, plan in zip(asked, plans, strict=True):
        answers = question.strategy.finite() or ("free", "Ä ", "other")
        for answer, target in zip(answers, plan["routes"], strict=False):
            question.on(answer, target_of(target, asked))
        if plan["then"]:
            question.then(target_of(plan["then"], asked))
        for index in plan["assign"]:
            question.assign(fn_at(index))
        if plan["branch"] is not None:
            question.branch(fn_at(plan["branch"]))
        if plan["auto"] is not None:
            question.with_auto_answer(fn_at(plan["auto"]))
        if plan["when"] is not None:
            question.when(fn_at(plan["when"]) if isinstance(plan["when"], int) else plan["when"])
        if plan["retry"]:
            question.retry(plan["retry"][0], target_of(plan["retry"][1], asked))
    flow = FlowDefinition(name, asked[0], None if summary is None else fn_at(summary))
    if listed:
        flow.questions = {question.name: question for question in asked}
    return flow


def shape(flow: FlowDefinition) -> Any:
    """All of a flow that can be compared, read off the objects and not through the document."""

    def of_target(target: Any) -> Any:
        match target:
            case FlowQuestion():
                return ("question", target.name)
            case FlowDefinition():
                return ("flow", target.name, target.root.name, target.summary_builder)
            case FlowRoute():
                return (
                    "route",
                    target.kind,
                    target.question and target.question.name,
                    target.text,
                    repr(target.payload),
                )
        return target

    return flow.name, flow.root.name, flow.summary_builder, {
        q.name: (
            q.prompt, q.strategy, q.erase_mode, q.decide, {a: of_target(t) for a, t in q.routes.items()},
            q.has_fallback, of_target(q.fallback), q.assigns, q.brancher, q.auto_answer, q.entry,
            q.retries and (q.retries[0], of_target(q.retries[1])),
        )
        for q in questions_of(flow)
    }  # fmt: skip


@settings(max_examples=150)
@given(drawn=flows)
def test_a_flow_comes_back_as_it_was(drawn: Any) -> None:
    flow = build(drawn)
    text = to_json(flow)
    again = from_json(text)
    assert shape(again) == shape(flow)
    assert to_json(again) == text
    assert list(Draft202012Validator(json_schema()).iter_errors(json.loads(text))) == []
    assert CALLED == []


@settings(max_examples=60)
@given(drawn=flows)
def test_the_python_source_builds_the_same_flow(drawn: Any) -> None:
    flow = build(drawn)
    namespace: dict[str, Any] = {}
    exec(compile(to_python(flow), "<flow>", "exec"), namespace)
    assert to_json(namespace["flow"]) == to_json(flow)
    assert CALLED == []


@pytest.mark.parametrize(
    "names",
    [
        ("flow", "class"),
        ("a b", "a_b"),
        ("1", "…"),
        ("registered", "flow_1"),
        ("x\n'\"", "None"),
        ("ChoicesStrat", "_"),
    ],
)
def test_any_name_gives_a_variable_of_its_own(names: tuple[str, str]) -> None:
    one, two = (FlowQuestion(name, f" {name}\\", strategy=STRATEGIES[6]) for name in names)
    flow = FlowDefinition(names[1], one.then(FlowDefinition(names[0], two)))
    namespace: dict[str, Any] = {}
    exec(compile(to_python(flow), "<flow>", "exec"), namespace)
    assert to_json(namespace["flow"]) == to_json(flow)


def test_the_python_source_reads_well() -> None:
    router = FlowQuestion("router", " Which tool?", ["search", "calc"], erase_mode="all").then(FUNCTIONS[0])
    ask = FlowQuestion("ask", " Should I?", ["yes", "no"]).on("yes", router).on("no", None)
    assert to_python(ask).replace(PREFIX, "my") == (
        "from workbench.flows import FlowDefinition, FlowQuestion\n"
        "from workbench.flows import registered\n\n"
        "ask = FlowQuestion('ask', ' Should I?', responses=['yes', 'no'], erase_mode='none', decide='whole')\n"
        "router = FlowQuestion('router', ' Which tool?', responses=['search', 'calc'], "
        "erase_mode='all', decide='whole')"
        "\n\nask.on('no', None)\nask.on('yes', router)\nrouter.then(registered('my.one'))\n\n"
        "flow = FlowDefinition('ask', ask)\n"
    )


# --- hostile documents ---


def rich() -> dict[str, Any]:
    one, two, three = FUNCTIONS
    ask = FlowQuestion("ask", " Ask?", ["yes", "no"], erase_mode="all")
    lists = FlowQuestion("list", " List?", strategy=STRATEGIES[7])
    ask.on("yes", lists).on("no", route_tool({"a": [1, None]})).then(one).branch(two).with_auto_answer(three)
    lists.then(FlowDefinition("inner", ask, one)).retry(2, "!").assign(one).when(two).on("x", route_output("y"))
    text = to_json(FlowDefinition("rich", ask, three), {"ask": (1, 2.5)})
    return json.loads(text)  # type: ignore[no-any-return]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] + [place for key, item in items for place in places(item, (*path, key))]


PLACES = places(rich())
JUNK = [
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "",
    "ask",
    "nope",
    [],
    ["a"],
    {},
    {"question": "ask"},
    {"kind": "regex", "pattern": "("},
]


@settings(max_examples=300)
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(PLACES), st.sampled_from(["set", "drop", "add"]), st.sampled_from(JUNK)), max_size=3
    )
)
def test_a_mutated_document_is_read_or_refused_and_runs_nothing(changes: Any) -> None:
    document = {"$": rich()}
    for path, how, junk in changes:
        holder: Any = document
        path = ("$", *path)
        try:
            for key in path[:-1]:
                holder = holder[key]
            if how == "set":
                holder[path[-1]] = copy.deepcopy(junk)
            elif how == "drop" and len(path) > 1:
                del holder[path[-1]]
            elif isinstance(holder[path[-1]], dict):
                holder[path[-1]]["extra"] = copy.deepcopy(junk)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    try:
        flow = from_json(json.dumps(document["$"]))
    except FlowError:
        pass
    else:
        assert Draft202012Validator(json_schema()).is_valid(document["$"])
        assert to_json(from_json(to_json(flow))) == to_json(flow)
    assert CALLED == []


@given(
    st.text(max_size=50)
    | st.recursive(st.none() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)).map(json.dumps)
)
def test_no_text_gives_another_error(text: str) -> None:
    with pytest.raises(FlowError, match=r"^(\$|the flow document)"):
        from_json(text)


def changed(**changes: Any) -> str:
    return json.dumps(rich() | changes)


def with_question(**changes: Any) -> str:
    document = rich()
    document["questions"][0] |= changes
    return json.dumps(document)


def nested_list(depth: int) -> Any:
    inner: Any = ["a"]
    for _ in range(depth):
        inner = {"kind": "list", "elements": inner}
    return inner


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the flow document is no JSON"),
        (3, "a flow document is JSON text, got int"),
        (" " * 1_000_001, "has 1,000,001 characters; the limit is 1,000,000"),
        ("[" * 100_000, "the flow document is no JSON|nested deeper"),
        ('{"a": 1, "a": 2}', "has the key 'a' twice"),
        ("[]", r"^\$: got a JSON array; this must be of JSON type object"),
        ("9" * 5_000, "no JSON|64 bits"),
        (changed(format=2), r"^\$\.format: got 2; this must be 1"),
        (changed(format=True), r"^\$\.format: got True"),
        (changed(nam="x"), r"^\$: got 'nam'; the keys allowed here are .* Did you mean 'name'"),
        (changed(root="asc"), r"^\$\.root: there is no question 'asc'. Did you mean 'ask'"),
        (changed(questions=[]), r"^\$\.questions: got 0 items; this takes 1 to 2,000"),
        (changed(questions=[{}] * 2_001), "got 2,001 items"),
        (changed(questions=rich()["questions"] * 2), r"^\$\.questions\[2\]\.name: two questions are named 'ask'"),
        (changed(positions={"asc": [1, 2]}), r"^\$\.positions: there is no question 'asc'. Did you mean 'ask'"),
        (changed(positions={"ask": [1]}), r"^\$\.positions\.ask: got 1 items"),
        (changed(positions={"ask": [1, float("inf")]}), r"^\$\.positions\.ask\[1\]: this number is not finite"),
        (changed(summary=f"{PREFIX}.on"), r"^\$\.summary: no flow function is registered as .* Did you mean"),
        (with_question(prompt=""), r"^\$\.questions\[0\]\.prompt: got ''; this must not be empty"),
        (
            to_json(FlowQuestion("q", "?", ["a"])).replace('"q"', '"  "'),
            r"^\$\.questions\[0\]: a question needs a name",
        ),
        (with_question(prompt="\ud800"), r"^\$\.questions\[0\]\.prompt: .* holds half a character"),
        (with_question(prompt=3), r"prompt: got 3; this must be of JSON type string"),
        (with_question(erase_mode="al"), r"erase_mode: got 'al'; this is one of none, prompt, all. Did you mean 'all'"),
        (
            with_question(strategy={"kind": "regexp"}),
            r'strategy: got a JSON object; this is one of {"kind": "choices"}',
        ),
        (with_question(strategy={"kind": "regex"}), r"strategy: the key 'pattern' is missing"),
        (with_question(strategy={"kind": "regex", "pattern": "("}), r"strategy: RegexStrat can't use the pattern"),
        (with_question(strategy=nested_list(80)), "nested deeper than 64 levels"),
        (
            with_question(strategy={"kind": "list", "elements": {"kind": "json", "schema": {}}}),
            r"strategy: ListStrat can't hold JsonStrat",
        ),
        (with_question(routes={"maybe": None}), r"routes\.maybe: question 'ask' can't be answered 'maybe'"),
        (with_question(routes={"yes": None, "YES": None}), r"routes\.YES: .* leads somewhere already"),
        (with_question(routes={"yes": {"question": "lis"}}), r"routes\.yes\.question: there is no question 'lis'"),
        (with_question(routes={"yes": "hello"}), r"routes\.yes: got 'hello'; this is one of null, "),
        (with_question(then={"route": "tool"}), "then: a tool route has either a 'payload' or a 'function'"),
        (
            with_question(then={"function": "os.system"}),
            r"then\.function: no flow function is registered as 'os.system'",
        ),
        (with_question(branch="__import__"), r"branch: no flow function is registered as '__import__'"),
        (with_question(retry={"most": 0, "target": None}), r"retry\.most: got 0; this must be at least 1"),
        (with_question(assign=[3]), r"assign\[0\]: got 3; this must be of JSON type string"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: Any, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        from_json(text)
    assert CALLED == []


def question(**settings: Any) -> FlowQuestion:
    return FlowQuestion(**({"name": "q", "prompt": " q?", "responses": ["yes", "no"]} | settings))


def deep(levels: int) -> Any:
    value: Any = None
    for _ in range(levels):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: "q", "a FlowDefinition or a FlowQuestion is needed, got 'q'"),
        (lambda: question().branch(len), r"question 'q': branch: the function len is not registered.*@flow_function"),
        (lambda: question().on("yes", lambda state: None), r"question 'q': on\('yes'\): the function .*lambda"),
        (lambda: question().on("yes", 3), r"question 'q': on\('yes'\) can't lead to 3"),
        (lambda: question().then(route_tool(print)), r"question 'q': then: route_tool: the function print is not"),
        (lambda: question().then(route_tool({1: 2})), r"payload: got 1; a JSON object's keys are strings"),
        (lambda: question().then(route_tool((1,))), r"payload: got a tuple; a flow file holds JSON data only"),
        (lambda: question().then(route_tool(deep(40))), "nested deeper than 64 levels or endless"),
        (lambda: question().then(FlowRoute(kind=RouteKind.QUESTION)), "leads to no question"),
        (lambda: question().then(FlowRoute(kind=RouteKind.NOOP, text="x")), "kind noop has no use for text"),
        (lambda: question().then(FlowRoute(kind=RouteKind.OUTPUT)), r"then\.text: got None; this must be of JSON type"),
        (lambda: question(prompt=" \ud800"), "holds half a character"),
        (lambda: question(prompt="x" * 1_000_001), r"would have 1,000,\d+ characters"),
    ],
)
def test_what_is_no_data_is_not_written(make: Any, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        to_json(make())


def test_a_second_question_of_a_name_is_not_written() -> None:
    flow = FlowDefinition("f", question())
    flow.root.on("yes", question())
    with pytest.raises(FlowError, match="two questions are named 'q'"):
        to_json(flow)


def test_loops_close_on_the_same_question() -> None:
    flow = from_json(json.dumps(rich()))
    assert flow.root.routes["yes"].fallback.root is flow.root  # type: ignore[union-attr]
    assert set(flow.questions) == {"ask", "list"}


def test_positions_go_along() -> None:
    text = to_json(question(), {"q": (3, -1.5)})
    assert positions_of(text) == {"q": (3, -1.5)}
    assert to_json(from_json(text), positions_of(text)) == text
    assert positions_of(to_json(question())) == {}
    with pytest.raises(FlowError, match=r"^\$\.positions: there is no question 'r'"):
        to_json(question(), {"r": (0, 0)})


def test_the_order_of_writing_does_not_matter() -> None:
    one = question().on("yes", None).on("no", "x")
    two = question().on("no", "x").on("yes", None)
    assert to_json(one) == to_json(two)


def test_the_published_schema_is_the_one_in_use() -> None:
    assert json.loads((ROOT / "docs" / "flow.schema.json").read_text("utf-8")) == json_schema()
    Draft202012Validator.check_schema(json_schema())


# --- functions by name ---


def test_a_function_is_found_by_its_name_and_its_name_by_it() -> None:
    assert registered(f"{PREFIX}.one") is FUNCTIONS[0]
    assert name_of(FUNCTIONS[0]) == f"{PREFIX}.one"
    assert name_of(len) is None
    assert flow_function(f"{PREFIX}.one")(FUNCTIONS[0]) is FUNCTIONS[0]


def test_a_notebook_cell_may_be_run_again() -> None:
    source = f"@flow_function('{PREFIX}.cell')\ndef cell(state): return None"
    scope: dict[str, Any] = {"flow_function": flow_function, "__name__": "a notebook"}
    exec(source, scope)
    first = scope["cell"]
    exec(source, scope)
    assert registered(f"{PREFIX}.cell") is scope["cell"] is not first


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: flow_function(f"{PREFIX}.one")(len), "is registered already, as .*choose another name"),
        (lambda: flow_function(f"{PREFIX}.one")(lambda state: None), "is registered already"),
        (lambda: flow_function("a b"), "flow_function needs a name, got 'a b'"),
        (lambda: flow_function(len), "flow_function needs a name, got <built-in"),
        (lambda: flow_function("x")(3), r"flow_function\('x'\) needs a function, got 3"),
        (lambda: registered(f"{PREFIX}.tow"), r"no flow function is registered as .*Did you mean .*two'"),
    ],
)
def test_wrong_registrations_are_refused(make: Any, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        make()
