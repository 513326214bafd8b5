"""A flow as data: one JSON document out, the same flow back in; never any code.

What is read is checked against the schema before anything is built; what is written is checked in the same way, so
whatever is written can be read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from ..errors import FlowError, did_you_mean
from .entries import CONDITIONS
from .functions import name_of, registered
from .question import FlowDefinition, FlowQuestion, Target, question_of
from .routes import FlowRoute, RouteKind
from .schema import FORMAT, KINDS, MAX_TEXT, ROUTE_FIELDS, STRATEGIES, check_document, step
from .strategies import (
    Strategy,
)

__all__ = ["as_document", "from_json", "positions_of", "questions_of", "to_json"]

# --- reading ---


def from_json(text: str) -> FlowDefinition:
    """The flow that a document describes. Its functions must be registered; none is called.

    ``questions`` of the flow has every question of the document, also those that nothing leads to.

    :raises FlowError: the text is no such document; the message begins with the place, as a JSON path.
    """
    document = _parsed(text)
    placed = [(data, f"$.questions[{index}]") for index, data in enumerate(document["questions"])]
    questions = {data["name"]: _question(data, where) for data, where in placed}
    read = _Targets(questions)
    for data, where in placed:
        _chain(questions[data["name"]], data, read, where)
    root = read.question(document["root"], "$.root")
    flow = FlowDefinition(document["name"], root, _function(document, "summary", "$"))
    for nested in read.flows.values():
        nested.questions = FlowDefinition(nested.name, nested.root).questions
    flow.questions = questions
    flow.positions = {name: (x, y) for name, (x, y) in document.get("positions", {}).items()}
    return flow


def positions_of(text: str) -> dict[str, tuple[float, float]]:
    """Where an editor shows each question: x and y by name; empty if the document does not say."""
    return {name: (x, y) for name, (x, y) in _parsed(text).get("positions", {}).items()}


def _parsed(text: str) -> dict[str, Any]:
    if not isinstance(text, str):
        raise FlowError(f"a flow document is JSON text, got {type(text).__name__}")
    if len(text) > MAX_TEXT:
        raise FlowError(f"the flow document has {len(text):,} characters; the limit is {MAX_TEXT:,}")
    try:
        document = json.loads(text, object_pairs_hook=_no_key_twice)
    except FlowError:
        raise
    except (ValueError, RecursionError) as error:
        raise FlowError(f"the flow document is no JSON: {str(error)[:200]}") from None
    check_document(document)
    return document  # type: ignore[no-any-return]


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise FlowError(f"$: an object of the flow document has the key {key[:40]!r} twice")
        found[key] = value
    return found


@contextmanager
def _at(where: str) -> Iterator[None]:
    try:
        yield
    except FlowError as error:
        raise FlowError(f"{where}: {error}") from None


def _question(data: Mapping[str, Any], where: str) -> FlowQuestion:
    strategy = _strategy(data["strategy"], f"{where}.strategy")
    with _at(where):
        return FlowQuestion(
            data["name"], data["prompt"], strategy=strategy, erase_mode=data["erase_mode"], decide=data["decide"]
        )


def _strategy(data: Mapping[str, Any], where: str) -> Strategy:
    values = {key: value for key, value in data.items() if key != "kind"}
    if isinstance(values.get("elements"), dict):
        values["elements"] = _strategy(values["elements"], f"{where}.elements")
    with _at(where):
        return STRATEGIES[data["kind"]](**values)  # type: ignore[no-any-return]


def _chain(question: FlowQuestion, data: Mapping[str, Any], read: _Targets, where: str) -> None:
    for answer, leads in data.get("routes", {}).items():
        place = step(f"{where}.routes", answer)
        target = read.target(leads, place)
        with _at(place):
            question.on(answer, target)
    if "then" in data:
        question.then(read.target(data["then"], f"{where}.then"))
    for index, name in enumerate(data.get("assign", ())):
        with _at(f"{where}.assign[{index}]"):
            question.assign(registered(name))
    question.brancher = _function(data, "branch", where)
    question.auto_answer = _function(data, "auto_answer", where)
    question.entry = _condition(data, where)
    if "retry" in data:
        question.retry(data["retry"]["most"], read.target(data["retry"]["target"], f"{where}.retry.target"))


def _function(data: Mapping[str, Any], key: str, where: str) -> Callable[..., Any] | None:
    if key not in data:
        return None
    with _at(f"{where}.{key}"):
        return registered(data[key])


def _condition(data: Mapping[str, Any], where: str) -> Callable[..., Any] | None:
    held = data.get("when")
    if not isinstance(held, Mapping):
        return _function(data, "when", where)
    ((kind, value),) = held.items()
    with _at(f"{where}.when"):
        return CONDITIONS[kind](value)


MOST_FLOWS = 64
"""Nested flows of a document."""


class _Targets:
    """Targets by what a document says of them; questions are shared, so that loops close."""

    def __init__(self, questions: dict[str, FlowQuestion]) -> None:
        self.questions = questions
        self.flows: dict[tuple[Any, ...], FlowDefinition] = {}

    def question(self, name: str, where: str) -> FlowQuestion:
        if name not in self.questions:
            raise FlowError(f"{where}: there is no question {name!r}.{did_you_mean(name, self.questions)}")
        return self.questions[name]

    def target(self, data: Mapping[str, Any] | None, where: str) -> Target:
        match data:
            case None:
                return None
            case {"route": kind}:
                return self.route(RouteKind(kind), data, where)
            case {"question": name}:
                return self.question(name, f"{where}.question")
            case {"message": text}:
                return str(text)
            case {"flow": flow}:
                return self.flow(flow, f"{where}.flow")
            case _:
                return _function(data, "function", where)

    def route(self, kind: RouteKind, data: Mapping[str, Any], where: str) -> FlowRoute:
        if kind is RouteKind.TOOL and ("function" in data) == ("payload" in data):
            raise FlowError(f"{where}: a tool route has either a 'payload' or a 'function'")
        payload = _function(data, "function", where) if "function" in data else data.get("payload")
        question = self.question(data["question"], f"{where}.question") if "question" in data else None
        return FlowRoute(kind=kind, question=question, text=data.get("text"), payload=payload)

    def flow(self, data: Mapping[str, Any], where: str) -> FlowDefinition:
        key = (data["name"], data["root"], data.get("summary"))
        if key not in self.flows and len(self.flows) >= MOST_FLOWS:
            raise FlowError(f"{where}: the document nests more than {MOST_FLOWS} flows; link questions instead")
        if key not in self.flows:
            root = self.question(data["root"], f"{where}.root")
            self.flows[key] = FlowDefinition(data["name"], root, _function(data, "summary", where))
        return self.flows[key]


# --- writing ---


def to_json(flow: FlowDefinition | FlowQuestion, positions: Mapping[str, tuple[float, float]] | None = None) -> str:
    """The flow as a JSON document, the same text every time; ``positions`` in place of the flow's own.

    :raises FlowError: a function is not registered, something is no data, or two questions share a name.
    """
    text = json.dumps(as_document(flow, positions), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if len(text) > MAX_TEXT:
        raise FlowError(f"the flow document would have {len(text):,} characters; the limit is {MAX_TEXT:,}")
    return text


def as_document(
    flow: FlowDefinition | FlowQuestion, positions: Mapping[str, tuple[float, float]] | None = None
) -> dict[str, Any]:
    """What ``to_json`` writes, as plain data."""
    if isinstance(flow, FlowQuestion):
        flow = FlowDefinition(flow.name, flow)
    questions = sorted(questions_of(flow), key=lambda question: question.name)
    document: dict[str, Any] = {"format": FORMAT, "name": flow.name, "root": flow.root.name}
    document |= _named("summary", flow.summary_builder, f"flow {flow.name!r}: summary_builder")
    document["questions"] = [_question_data(question) for question in questions]
    placed = flow.positions if positions is None else positions
    if placed:
        document["positions"] = {name: list(placed[name]) for name in sorted(placed)}
    check_document(document)
    return document


def questions_of(flow: FlowDefinition | FlowQuestion) -> list[FlowQuestion]:
    """Every question of a flow, the root first: those that something written leads to, then any others it lists."""
    match flow:
        case FlowQuestion():
            waiting = [flow]
        case FlowDefinition():
            waiting = [*reversed(flow.questions.values()), flow.root]
        case _:
            raise FlowError(f"a FlowDefinition or a FlowQuestion is needed, got {flow!r}")
    found: dict[int, FlowQuestion] = {}
    while waiting:
        question = waiting.pop()
        if id(question) in found:
            continue
        found[id(question)] = question
        following = [question_of(target) for _, target in question.targets()]
        waiting.extend(each for each in reversed(following) if each is not None)
    return list(found.values())


def _question_data(question: FlowQuestion) -> dict[str, Any]:
    what = f"question {question.name!r}"
    data: dict[str, Any] = {"name": question.name, "prompt": question.prompt}
    data["strategy"] = _strategy_data(question.strategy, what)
    data |= {"erase_mode": str(question.erase_mode), "decide": str(question.decide)}
    if question.routes:
        data["routes"] = {
            answer: _target_data(question.routes[answer], f"{what}: on({answer!r})")
            for answer in sorted(question.routes)
        }
    if question.has_fallback:
        data["then"] = _target_data(question.fallback, f"{what}: then")
    if question.assigns:
        data["assign"] = [_named("assign", fn, f"{what}: assign")["assign"] for fn in question.assigns]
    data |= _named("branch", question.brancher, f"{what}: branch")
    data |= _named("auto_answer", question.auto_answer, f"{what}: with_auto_answer")
    if question.retries is not None:
        most, target = question.retries
        data["retry"] = {"most": most, "target": _target_data(target, f"{what}: retry")}
    for kind, condition in CONDITIONS.items():
        if isinstance(question.entry, condition):
            (value,) = (getattr(question.entry, each.name) for each in fields(question.entry) if each.init)
            return data | {"when": {kind: value}}
    return data | _named("when", question.entry, f"{what}: when")


def _strategy_data(strategy: Strategy, what: str) -> dict[str, Any]:
    if type(strategy) not in KINDS:
        raise FlowError(f"{what}: {type(strategy).__name__} is no strategy that a flow file can hold")
    data: dict[str, Any] = {"kind": KINDS[type(strategy)]}
    for field in fields(strategy):
        value = getattr(strategy, field.name)
        if type(value) in KINDS:
            value = _strategy_data(value, what)
        data[field.name] = list(value) if isinstance(value, tuple) else value
    return data


def _target_data(target: Target, what: str) -> dict[str, Any] | None:
    match target:
        case None:
            return None
        case FlowQuestion():
            return {"question": target.name}
        case FlowDefinition():
            nested = {"name": target.name, "root": target.root.name}
            return {"flow": nested | _named("summary", target.summary_builder, f"{what}: summary_builder")}
        case FlowRoute():
            return _route_data(target, what)
        case str():
            return {"message": target}
        case _:
            return _named("function", target, what)


def _route_data(route: FlowRoute, what: str) -> dict[str, Any]:
    data: dict[str, Any] = {"route": str(route.kind)}
    field = ROUTE_FIELDS.get(route.kind)
    extra = [each for each in ("question", "text", "payload") if each != field and getattr(route, each) is not None]
    if extra:
        raise FlowError(f"{what}: a route of kind {route.kind} has no use for {', '.join(extra)}")
    if field == "question":
        if route.question is None:
            raise FlowError(f"{what}: the route leads to no question: use route_question(question)")
        return data | {"question": route.question.name}
    if field == "payload" and callable(route.payload):
        return data | _named("function", route.payload, f"{what}: route_tool")
    return data if field is None else data | {field: getattr(route, field)}


def _named(key: str, fn: Any, what: str) -> dict[str, str]:
    """The function under its registered name, or nothing where there is none."""
    if fn is None:
        return {}
    if not callable(fn):
        raise FlowError(f"{what}: {fn!r} is no target: a question, a route, a flow, a text, a function or None")
    name = name_of(fn)
    if name is None:
        shown = getattr(fn, "__qualname__", repr(fn))
        raise FlowError(
            f"{what}: the function {shown} is not registered, and a flow file holds names, not code: "
            'put @flow_function("a_name") above its definition'
        )
    return {key: name}
