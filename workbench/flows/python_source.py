"""A flow as the Python that builds it, written from the document and so from plain data only."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .document import to_json
from .entries import CONDITIONS
from .question import FlowDefinition, FlowQuestion
from .schema import STRATEGIES

__all__ = ["to_python"]

_TAKEN = {"flow", "registered", "FlowDefinition", "FlowQuestion", *CONDITIONS}
_METHODS = {"branch": "branch", "auto_answer": "with_auto_answer"}


def to_python(flow: FlowDefinition | FlowQuestion) -> str:
    """Python that leaves the same flow in the variable ``flow``; functions are taken by their registered names.

    :raises FlowError: as for ``to_json``.
    """
    return _Source(json.loads(to_json(flow))).text()  # plain types only: repr can be trusted to be a literal


class _Source:
    """Lines of Python for one document, and what they must import."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.variables = _variables(question["name"] for question in document["questions"])
        self.imports = {"FlowDefinition", "FlowQuestion"}
        self.functions = False
        self.flows: dict[tuple[Any, ...], str] = {}

    def text(self) -> str:
        """Imports, the questions, the flows within the flow, where every answer leads, the flow itself."""
        questions = self.document["questions"]
        made = [self.question(question) for question in questions]
        chained = [line for question in questions for line in self.chain(question)]
        nested = [f"{variable} = {self.flow(*key)}" for key, variable in self.flows.items()]
        last = [f"flow = {self.flow(self.document['name'], self.document['root'], self.document.get('summary'))}"]
        last += [f"flow.questions[{name!r}] = {self.variables[name]}" for name in _unreached(self.document)]
        heads = [f"from workbench.flows import {', '.join(sorted(self.imports))}"]
        if self.functions:
            heads.append("from workbench.flows import registered")
        return "\n\n".join("\n".join(part) for part in (heads, made, nested, chained, last) if part) + "\n"

    def question(self, data: Mapping[str, Any]) -> str:
        strategy = data["strategy"]
        if strategy["kind"] == "choices":
            answers = f"responses={strategy['choices']!r}"
        else:
            answers = f"strategy={self.strategy(strategy)}"
        modes = f"erase_mode={data['erase_mode']!r}, decide={data['decide']!r}"
        inside = f"{data['name']!r}, {data['prompt']!r}, {answers}, {modes}"
        return f"{self.variables[data['name']]} = FlowQuestion({inside})"

    def strategy(self, data: Mapping[str, Any]) -> str:
        name = STRATEGIES[data["kind"]].__name__
        self.imports.add(name)
        values = (
            f"{key}={self.strategy(value) if key == 'elements' and isinstance(value, dict) else repr(value)}"
            for key, value in data.items()
            if key != "kind"
        )
        return f"{name}({', '.join(values)})"

    def chain(self, data: Mapping[str, Any]) -> list[str]:
        """One call a line, for all that follows on the question."""
        calls = [f"on({answer!r}, {self.target(target)})" for answer, target in data.get("routes", {}).items()]
        if "then" in data:
            calls.append(f"then({self.target(data['then'])})")
        calls += [f"assign({self.function(name)})" for name in data.get("assign", ())]
        calls += [f"{method}({self.function(data[key])})" for key, method in _METHODS.items() if key in data]
        if "when" in data:
            calls.append(f"when({self.condition(data['when'])})")
        if "retry" in data:
            calls.append(f"retry({data['retry']['most']}, {self.target(data['retry']['target'])})")
        return [f"{self.variables[data['name']]}.{call}" for call in calls]

    def condition(self, data: str | Mapping[str, Any]) -> str:
        if isinstance(data, str):
            return self.function(data)
        ((kind, value),) = data.items()
        self.imports.add(kind)
        return f"{kind}({value!r})"

    def target(self, data: Mapping[str, Any] | None) -> str:
        match data:
            case None:
                return "None"
            case {"route": kind}:
                return self.route(kind, data)
            case {"question": name}:
                return self.variables[name]
            case {"message": text}:
                return repr(text)
            case {"flow": flow}:
                key = (flow["name"], flow["root"], flow.get("summary"))
                return self.flows.setdefault(key, f"flow_{len(self.flows) + 1}")
            case _:
                return self.function(data["function"])

    def route(self, kind: str, data: Mapping[str, Any]) -> str:
        self.imports.add(f"route_{kind}")
        if "question" in data:
            return f"route_question({self.variables[data['question']]})"
        if "function" in data:
            return f"route_{kind}({self.function(data['function'])})"
        given = next((repr(data[key]) for key in ("text", "payload") if key in data), "")
        return f"route_{kind}({given})"

    def function(self, name: str) -> str:
        self.functions = True
        return f"registered({name!r})"

    def flow(self, name: str, root: str, summary: str | None) -> str:
        given = f"{name!r}, {self.variables[root]}"
        if summary is not None:
            given += f", summary_builder={self.function(summary)}"
        return f"FlowDefinition({given})"


def _unreached(document: Mapping[str, Any]) -> list[str]:
    """Questions that nothing written leads to; a flow does not find them by itself."""
    following = {question["name"]: set(_mentioned(question)) for question in document["questions"]}
    reached, waiting = {document["root"]}, [document["root"]]
    while waiting:
        new = following[waiting.pop()] - reached
        reached |= new
        waiting.extend(new)
    return [name for name in following if name not in reached]


def _mentioned(question: Mapping[str, Any]) -> Iterator[str]:
    """Names of the questions that a question's targets lead to."""
    targets = [*question.get("routes", {}).values(), question.get("then"), question.get("retry", {}).get("target")]
    for target in targets:
        match target:
            case {"question": name} | {"flow": {"root": name}}:
                yield name


def _variables(names: Iterable[str]) -> dict[str, str]:
    """A variable for each question: its name where that can be one, made unique."""
    found: dict[str, str] = {}
    used = set(_TAKEN)
    for name in names:
        base = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "question"
        if base[0].isdigit() or keyword.iskeyword(base) or re.match(r"flow_\d|route_|.*Strat$", base):
            base = f"q_{base}"
        variable, number = base, 2
        while variable in used:
            variable, number = f"{base}_{number}", number + 1
        used.add(variable)
        found[name] = variable
    return found
