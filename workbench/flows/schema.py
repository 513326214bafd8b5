"""What a flow document may hold: its JSON Schema, and the check of a document against that very schema.

A document is somebody's input: sizes, depth and numbers are bounded before anything is built.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from ..errors import FlowError, did_you_mean
from .question import Decide, EraseMode
from .routes import RouteKind
from .strategies import (
    CharsMode,
    CharsStrat,
    ChoicesStrat,
    GrammarStrat,
    JsonStrat,
    ListStrat,
    RegexStrat,
    UntilEndType,
    UntilStrat,
)

__all__ = ["FORMAT", "KINDS", "MAX_TEXT", "ROUTE_FIELDS", "STRATEGIES", "check_document", "json_schema", "step"]

FORMAT = 1
MAX_TEXT = 1_000_000
"""Characters in a document."""
MAX_QUESTIONS = 2_000
MAX_DEPTH = 64
MAX_INTEGER = 2**63

STRATEGIES: dict[str, type[Any]] = {
    "choices": ChoicesStrat,
    "until": UntilStrat,
    "chars": CharsStrat,
    "list": ListStrat,
    "regex": RegexStrat,
    "json": JsonStrat,
    "grammar": GrammarStrat,
}
KINDS = {cls: kind for kind, cls in STRATEGIES.items()}
ROUTE_FIELDS = {
    RouteKind.QUESTION: "question",
    RouteKind.MESSAGE: "text",
    RouteKind.OUTPUT: "text",
    RouteKind.TOOL: "payload",
}

# --- the schema ---


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a flow document; ``docs/flow.schema.json`` is this."""
    text, name = {"type": "string"}, {"type": "string", "minLength": 1}
    position = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    questions = {"type": "array", "items": {"$ref": "#/$defs/question"}, "minItems": 1, "maxItems": MAX_QUESTIONS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Interp Workbench flow",
        "description": "Questions that a model asks itself. Functions are named, never held.",
        **_object(
            {"format": {"const": FORMAT}, "name": text, "root": name, "questions": questions},
            {"summary": name, "positions": {"type": "object", "additionalProperties": position}},
        ),
        "$defs": {
            "question": _question_form(name),
            "strategy": {"anyOf": _strategy_forms(text)},
            "target": {"anyOf": _target_forms(text, name)},
        },
    }


def _object(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def _question_form(name: Any) -> dict[str, Any]:
    """What a question is, and what its chain methods add; absent means not called."""
    target = {"$ref": "#/$defs/target"}
    question = {
        "name": name,
        "prompt": name,
        "strategy": {"$ref": "#/$defs/strategy"},
        "erase_mode": {"enum": [str(mode) for mode in EraseMode]},
        "decide": {"enum": [str(mode) for mode in Decide]},
    }
    chain = {
        "routes": {"type": "object", "additionalProperties": target},
        "then": target,
        "assign": {"type": "array", "items": name},
        "branch": name,
        "auto_answer": name,
        "retry": _object({"most": {"type": "integer", "minimum": 1}, "target": target}),
        "when": {
            "anyOf": [
                name,
                _object({"after_text": name}),
                _object({"when_unsure": {"type": "number", "minimum": 0}}),
            ]
        },
    }
    return _object(question, chain)


def _strategy_forms(text: Any) -> list[dict[str, Any]]:
    """One form per strategy, told apart by ``kind``; its keys are the strategy's own fields."""
    count, strategy = {"type": "integer", "minimum": 0}, {"$ref": "#/$defs/strategy"}
    texts = {"type": "array", "items": text}
    ends, modes = {"enum": [str(end) for end in UntilEndType]}, {"enum": [str(mode) for mode in CharsMode]}
    around = dict.fromkeys(("open", "close", "wrap", "sep"), text)
    forms: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "choices": ({"choices": texts}, {}),
        "until": ({"start": text, "end_type": ends, "end": text}, {}),
        "chars": ({"mode": modes, "stop": {"type": ["integer", "string"]}}, {"min": count}),
        "list": (
            {"elements": {"anyOf": [texts, strategy]}},
            {**around, "min": count, "max": {"type": ["integer", "null"]}, "end_with": {"type": ["string", "null"]}},
        ),
        "regex": ({"pattern": text}, {}),
        "json": ({"schema": {"type": "object"}}, {}),
        "grammar": ({"lark": text}, {}),
    }
    return [_object({"kind": {"const": kind}, **required}, optional) for kind, (required, optional) in forms.items()]


def _target_forms(text: Any, name: Any) -> list[dict[str, Any]]:
    """What a target may be, each told by its first key; null is back to normal generation."""
    return [
        {"type": "null"},
        _object({"route": {"const": "question"}, "question": name}),
        _object({"route": {"const": "message"}, "text": text}),
        _object({"route": {"const": "output"}, "text": text}),
        _object({"route": {"const": "tool"}}, {"payload": {}, "function": name}),
        _object({"route": {"const": "summary"}}),
        _object({"route": {"const": "noop"}}),
        _object({"question": name}),
        _object({"message": text}),
        _object({"function": name}),
        _object({"flow": _object({"name": text, "root": name}, {"summary": name})}),
    ]


# --- checking a document against it ---

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}


def _refuse(where: str, got: Any, allowed: str) -> NoReturn:
    shown = repr(got) if got is None or isinstance(got, (str, int, float)) else f"a JSON {_type_of(got)}"
    raise FlowError(f"{where}: got {shown if len(shown) <= 80 else shown[:77] + '...'}; {allowed}")


def _type_of(value: Any) -> str:
    return "object" if isinstance(value, dict) else "array" if isinstance(value, list) else type(value).__name__


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and not isinstance(value, bool)


def _fit(value: Any, schema: Mapping[str, Any], defs: Mapping[str, Any], where: str) -> None:
    """Refuse what the schema does not allow; knows just the words that ``json_schema`` uses."""
    if "$ref" in schema:
        schema = defs[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        _fit(value, _claimed(value, schema["anyOf"], defs, where), defs, where)
        return
    if "const" in schema and (isinstance(value, bool) or value != schema["const"]):
        _refuse(where, value, f"this must be {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        near = did_you_mean(value, schema["enum"]) if isinstance(value, str) else ""
        _refuse(where, value, f"this is one of {', '.join(schema['enum'])}.{near}")
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        _refuse(where, value, f"this must be of JSON type {' or '.join(kinds)}")
    if "minimum" in schema and value < schema["minimum"]:
        _refuse(where, value, f"this must be at least {schema['minimum']}")
    if "minLength" in schema and len(value) < schema["minLength"]:
        _refuse(where, value, "this must not be empty")
    if isinstance(value, dict):
        _fit_object(value, schema, defs, where)
    if isinstance(value, list):
        _fit_array(value, schema, defs, where)


def _fit_object(value: dict[str, Any], schema: Mapping[str, Any], defs: Mapping[str, Any], where: str) -> None:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    for key in schema.get("required", ()):
        if key not in value:
            raise FlowError(f"{where}: the key {key!r} is missing")
    for key, item in value.items():
        if key not in known and others is False:
            near = did_you_mean(key, known)
            _refuse(where, key, f"the keys allowed here are {', '.join(map(repr, known))}.{near}")
        _fit(item, known.get(key, others), defs, step(where, key))


def _fit_array(value: list[Any], schema: Mapping[str, Any], defs: Mapping[str, Any], where: str) -> None:
    least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    if not least <= len(value) <= most:
        raise FlowError(f"{where}: got {len(value):,} items; this takes {least:,} to {most:,}")
    for index, item in enumerate(value):
        _fit(item, schema.get("items", {}), defs, f"{where}[{index}]")


def _claimed(value: Any, forms: list[Any], defs: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The form that a value means to be: of its type and, for an object, with the form's first key."""
    names = []
    for form in forms:
        if "$ref" in form and _is(value, "object"):
            return _claimed(value, defs[form["$ref"].rpartition("/")[2]]["anyOf"], defs, where)
        first = next(iter(form.get("required", ())), None)
        wanted = {} if first is None else form["properties"][first]
        names.append(str(form.get("type", "a strategy")) if first is None else _form_name(first, wanted))
        if not _is(value, form.get("type", "object")):
            continue
        if first is None or (first in value and value[first] == wanted.get("const", value[first])):
            return form  # type: ignore[no-any-return]
    _refuse(where, value, f"this is one of {', '.join(names)}")


def _form_name(first: str, wanted: Mapping[str, Any]) -> str:
    return f"{{{json.dumps(first)}: {json.dumps(wanted['const']) if 'const' in wanted else '…'}}}"


def step(where: str, key: str) -> str:
    return f"{where}.{key}" if key.isidentifier() and len(key) <= 40 else f"{where}[{key[:40]!r}]"


def _bound(document: Any) -> None:
    """Refuse what is no plain JSON of bounded depth, whoever made it."""
    waiting, seen = [(document, "$", 0)], 0
    while waiting:
        value, where, depth = waiting.pop()
        seen += 1
        if depth > MAX_DEPTH or seen > MAX_TEXT:
            raise FlowError(f"{where[:200]}: the document is nested deeper than {MAX_DEPTH} levels or endless")
        if isinstance(value, dict):
            for key, item in value.items():
                if not isinstance(key, str):
                    _refuse(where, key, "a JSON object's keys are strings")
                _whole_text(key, where)
                waiting.append((item, step(where, key), depth + 1))
        elif isinstance(value, list):
            waiting.extend((item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value))
        else:
            _bound_scalar(value, where)


def _bound_scalar(value: Any, where: str) -> None:
    match value:
        case str():
            _whole_text(value, where)
        case None | bool():
            return
        case int() if -MAX_INTEGER <= value < MAX_INTEGER:
            return
        case float() if math.isfinite(value):
            return
        case int() | float():
            raise FlowError(f"{where}: this number is not finite or has more than 64 bits")
        case _:
            raise FlowError(f"{where}: got a {type(value).__name__}; a flow file holds JSON data only")


def _whole_text(text: str, where: str) -> None:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise FlowError(f"{where}: {text[:40]!r} holds half a character (a lone surrogate)")


def check_document(document: Any) -> None:
    """All that can be said about a document without building it."""
    _bound(document)
    schema = json_schema()
    _fit(document, schema, schema["$defs"], "$")
    seen: set[str] = set()
    for index, question in enumerate(document["questions"]):
        if question["name"] in seen:
            raise FlowError(f"$.questions[{index}].name: two questions are named {question['name']!r}")
        seen.add(question["name"])
    for name in document.get("positions", {}):
        if name not in seen:
            raise FlowError(f"$.positions: there is no question {name!r}.{did_you_mean(name, seen)}")
