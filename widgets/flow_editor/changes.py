"""What a person does to a flow, one change at a time: functions from a flow document to the next one.

Documents are plain data as ``workbench.flows`` writes them, except that one without any question may stand here too.
Nothing is checked beyond what a change itself needs: the engine's own reader judges every result.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from workbench.errors import FlowError, did_you_mean

__all__ = ["CHANGES", "Document", "checked_change", "empty_document", "question_of", "read_value", "routed_answers"]

Document = dict[str, Any]
Target = Mapping[str, Any] | None
GONE = object()
"""A target that led to a question which is no more."""
MOST_FINITE = 64
"""As the engine has it: more choices than that are not told one by one."""
KEYS = ("prompt", "strategy", "erase_mode", "decide", "then", "assign", "branch", "auto_answer", "retry", "when")
"""What of a question ``set`` and ``unset`` reach."""
LASTING = KEYS[:4]
"""Of these a question always has one."""

# --- looking ---


def empty_document(name: str = "flow") -> Document:
    return {"format": 1, "name": name, "root": "", "questions": []}


def question_of(document: Document, name: str) -> dict[str, Any]:
    """The question of that name.

    :raises FlowError: there is none.
    """
    for question in document["questions"]:
        if question["name"] == name:
            return question  # type: ignore[no-any-return]
    names = [question["name"] for question in document["questions"]]
    raise FlowError(f"there is no question {name!r} any more.{did_you_mean(name, names)}")


def routed_answers(question: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The answers that can be listed, each with the key that its route has."""
    strategy = question["strategy"]
    choices = strategy["choices"] if strategy["kind"] == "choices" else []
    return [(choice, choice.strip().casefold()) for choice in choices] if len(choices) <= MOST_FINITE else []


def fresh_name(document: Document) -> str:
    names = {question["name"] for question in document["questions"]}
    return next(name for number in range(1, len(names) + 2) if (name := f"question {number}") not in names)


def _replaced(document: Document, change: Callable[[Target], Any]) -> None:
    """Put ``change(target)`` in the place of every target; one that is GONE takes what held it along."""
    for question in document["questions"]:
        routes = {answer: change(target) for answer, target in question.get("routes", {}).items()}
        question["routes"] = {answer: target for answer, target in routes.items() if target is not GONE}
        if "then" in question:
            _put(question, "then", change(question["then"]))
        if "retry" in question:
            target = change(question["retry"]["target"])
            _put(question, "retry", GONE if target is GONE else {**question["retry"], "target": target})
        if not question["routes"]:
            del question["routes"]


def _put(question: dict[str, Any], key: str, value: Any) -> None:
    if value is GONE:
        question.pop(key, None)
    else:
        question[key] = value


def _leads_to(target: Target) -> str | None:
    match target:
        case {"flow": {"root": name}} | {"question": name}:
            return str(name)
    return None


# --- changing: each takes a document of its own, changes it, and gives the question to look at next ---


def _add(document: Document, change: Mapping[str, Any]) -> str:
    """A new question, below another one for an answer of it, for all others, or alone."""
    name = fresh_name(document)
    new = {
        "name": name, "prompt": " Question?", "strategy": {"kind": "choices", "choices": ["yes", "no"]},
        "erase_mode": "all", "decide": "whole",
    }  # fmt: skip
    after = change.get("after")
    if after is not None:
        _connect(question_of(document, after), change, {"question": name})
    document["questions"].append(new)
    document["root"] = document["root"] or name
    if change.get("place") is not None:
        document.setdefault("positions", {})[name] = [float(value) for value in change["place"]]
    return name


def _connect(question: dict[str, Any], change: Mapping[str, Any], target: Target) -> None:
    """Let an answer lead to a target: the one named, or as ``way`` says: a ``child`` for all that lead nowhere yet, a
    ``branch`` for the next such answer, ``otherwise`` in any case."""
    answer, way = change.get("answer"), change.get("way", "child")
    free = [key for _, key in routed_answers(question) if key not in question.get("routes", {})]
    if answer is None and (way == "branch" or (way == "child" and "then" in question)):
        if not free:
            raise FlowError(f"every answer of {question['name']!r} leads somewhere: change one in its panel")
        answer = free[0]
    if answer is None:
        question["then"] = target
    else:
        question.setdefault("routes", {})[answer.strip().casefold()] = target


def _delete(document: Document, change: Mapping[str, Any]) -> str:
    """Take a question away, and with it what leads to it."""
    name = change["node"]
    question = question_of(document, name)
    near = _neighbour(document, question)
    document["questions"].remove(question)
    document.get("positions", {}).pop(name, None)
    _replaced(document, lambda target: GONE if _leads_to(target) == name else target)
    if document["root"] == name:
        document["root"] = near
    return near


def _neighbour(document: Document, question: Mapping[str, Any]) -> str:
    """Where to look when a question is gone: what it led to, else what led to it, else any other."""
    name = question["name"]
    following = [_leads_to(target) for target in _targets(question)]
    before = [each["name"] for each in document["questions"] if name in map(_leads_to, _targets(each))]
    rest = [each["name"] for each in document["questions"]]
    order = [*following, *before, *rest] if document["root"] == name else [*before, *following, *rest]
    return next((each for each in order if each is not None and each != name), "")


def _targets(question: Mapping[str, Any]) -> Iterator[Target]:
    yield from question.get("routes", {}).values()
    yield question.get("then")
    yield question.get("retry", {}).get("target")


def _rename(document: Document, change: Mapping[str, Any]) -> str:
    old, new = change["node"], change["name"]
    question = question_of(document, old)
    if new != old and any(each["name"] == new for each in document["questions"]):
        raise FlowError(f"there is a question named {new!r} already: choose another name")
    question["name"] = new
    if document["root"] == old:
        document["root"] = new
    places = document.get("positions", {})
    if old in places:
        places[new] = places.pop(old)

    def renamed(target: Target) -> Target:
        if target is None or _leads_to(target) != old:
            return target
        return {"flow": {**target["flow"], "root": new}} if "flow" in target else {**target, "question": new}

    _replaced(document, renamed)
    return str(new)


def _set(document: Document, change: Mapping[str, Any]) -> str:
    question, key = question_of(document, change["node"]), change["key"]
    value = read_value(change["value"])
    if key == "strategy":
        _carry_routes(question, value)
    question[key] = value
    return str(question["name"])


def _carry_routes(question: dict[str, Any], strategy: Any) -> None:
    """A choice that was reworded keeps its route; the route of one that is gone goes with it."""
    before = routed_answers(question)
    if not isinstance(strategy, dict) or not isinstance(strategy.get("choices", []), list):
        return  # not a strategy at all, as the reader will say
    texts = [choice for choice in strategy.get("choices", ()) if isinstance(choice, str)]
    after = routed_answers({"strategy": {"kind": strategy.get("kind", ""), "choices": texts}})
    routes = question.get("routes", {})
    reworded = [(old, new) for (_, old), (_, new) in zip(before, after, strict=False) if old != new]
    if len(before) == len(after) and len(reworded) == 1 and reworded[0][0] in routes:
        routes[reworded[0][1]] = routes.pop(reworded[0][0])
    if after:
        kept = {key for _, key in after}
        routes = {answer: target for answer, target in routes.items() if answer in kept}
    _put(question, "routes", routes or GONE)


def read_value(value: Any) -> Any:
    """A value of the browser's: what may be any JSON comes as JSON text, so that no number loses a digit on the way."""
    if isinstance(value, list):
        return [read_value(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {key: read_value(each) for key, each in value.items()}
    if found.get("kind") == "json" and isinstance(found.get("schema"), str):
        found["schema"] = _parsed(found["schema"], "the schema")
    if "payload_text" in found:
        found["payload"] = _parsed(found.pop("payload_text"), "the tool call")
    return found


def _parsed(text: Any, what: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise FlowError(f"{what} is no JSON: {str(error)[:200]}") from None


def _unset(document: Document, change: Mapping[str, Any]) -> str:
    question, key = question_of(document, change["node"]), change["key"]
    if key in LASTING:
        raise FlowError(f"question {question['name']!r}: a question always has its {key}")
    question.pop(key, None)
    return str(question["name"])


def _route(document: Document, change: Mapping[str, Any]) -> str:
    """Where one answer leads; without a target it leads where the others do."""
    question, answer = question_of(document, change["node"]), change["answer"].strip().casefold()
    if not answer:
        raise FlowError(f"question {question['name']!r}: which answer leads there? Write it first")
    routes = question.setdefault("routes", {})
    _put(routes, answer, read_value(change["target"]) if "target" in change else GONE)
    if not routes:
        del question["routes"]
    return str(question["name"])


def _root(document: Document, change: Mapping[str, Any]) -> str:
    document["root"] = question_of(document, change["node"])["name"]
    return str(document["root"])


def _flow(document: Document, change: Mapping[str, Any]) -> None:
    """The flow's own name, or the function that sums it up (none: no function)."""
    _put(document, change["key"], GONE if change["value"] is None else change["value"])


def _move(document: Document, change: Mapping[str, Any]) -> None:
    for name, place in change["places"].items():
        question_of(document, name)
        document.setdefault("positions", {})[name] = [float(value) for value in place]


def _tidy(document: Document, change: Mapping[str, Any]) -> None:
    document.pop("positions", None)


Change = Callable[[Document, Mapping[str, Any]], "str | None"]
NAME, ANY = (str,), (object,)
CHANGES: dict[str, tuple[Change, dict[str, tuple[type, ...]], dict[str, tuple[type, ...]]]] = {
    "add": (_add, {}, {"after": (str, type(None)), "answer": (str, type(None)), "way": NAME, "place": (list,)}),
    "delete": (_delete, {"node": NAME}, {}),
    "rename": (_rename, {"node": NAME, "name": NAME}, {}),
    "set": (_set, {"node": NAME, "key": NAME, "value": ANY}, {}),
    "unset": (_unset, {"node": NAME, "key": NAME}, {}),
    "route": (_route, {"node": NAME, "answer": NAME}, {"target": ANY}),
    "root": (_root, {"node": NAME}, {}),
    "flow": (_flow, {"key": NAME, "value": (str, type(None))}, {}),
    "move": (_move, {"places": (dict,)}, {}),
    "tidy": (_tidy, {}, {}),
}
"""By name: what it does, the fields that it needs, and those that it may have."""


def checked_change(given: Any) -> tuple[str, dict[str, Any]]:
    """A change as it came from outside: its name and its own copy of its fields.

    :raises FlowError: it is no change, or a field is missing or of another type.
    """
    name = given.get("do") if isinstance(given, Mapping) else None
    if not isinstance(name, str) or name not in CHANGES:
        raise FlowError(f"got the change {name!r}, which is none of {', '.join(CHANGES)}; nothing was changed")
    _, needed, possible = CHANGES[name]
    fields = {key: given[key] for key in (*needed, *possible) if key in given}
    for key, kinds in {**needed, **possible}.items():
        if (key in needed and key not in fields) or (key in fields and not isinstance(fields[key], kinds)):
            got = "nothing" if key not in fields else type(fields[key]).__name__
            raise FlowError(f"the change {name!r} needs {key!r} as {_told(kinds)}, got {got}; nothing was changed")
    _check_fields(name, fields)
    return name, copy.deepcopy(fields)


def _check_fields(name: str, fields: Mapping[str, Any]) -> None:
    allowed = {"set": KEYS, "unset": KEYS, "flow": ("name", "summary")}.get(name)
    if allowed is not None and fields["key"] not in allowed:
        raise FlowError(f"the change {name!r} has the key {fields['key']!r}; {', '.join(allowed)} are allowed")
    places = [*fields.get("places", {}).values(), *([fields["place"]] if "place" in fields else [])]
    for place in places:
        numbers = [each for each in place if isinstance(each, (int, float)) and not isinstance(each, bool)]
        if (
            not isinstance(place, list)
            or len(place) != 2
            or len(numbers) != 2
            or not all(abs(n) < 1e6 for n in numbers)
        ):
            raise FlowError(f"the change {name!r} needs a place as two numbers below a million; nothing was changed")


def _told(kinds: tuple[type, ...]) -> str:
    names = {str: "text", dict: "an object", list: "a list", type(None): "nothing", object: "a value"}
    return " or ".join(names[kind] for kind in kinds)
