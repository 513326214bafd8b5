"""The flow that is being authored: always one that the engine reads, or none yet; with undo and redo."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.errors import FlowError
from workbench.flows import FlowDefinition, FlowQuestion, Problem
from workbench.models import Tokenizer

from .changes import CHANGES, Document, checked_change, empty_document

__all__ = ["Draft", "text_of"]

MOST_STEPS = 200
MOST_KEPT = 20_000_000
"""Characters that undo may hold."""
_PLACE = re.compile(r"^\$\.questions\[(\d+)\]\.?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change that can be undone: the text before it (or after it, once undone)."""

    text: str
    told: str
    look_at: str | None
    group: str | None = None


class Draft:
    """A flow document and what was done to it.

    ``text`` is the engine's own JSON, byte for byte what ``workbench.flows`` writes of the flow that it reads from it;
    an empty draft has no text. A change that leads to no such document raises and leaves all as it was.
    """

    def __init__(self, text: str = "") -> None:
        self.version = 0
        self._past: deque[Step] = deque()
        self._future: list[Step] = []
        self._problems: dict[str | None, list[Problem]] = {}
        self.document: Document
        self.flow: FlowDefinition | None
        self._show(*_written(_parsed(text) if text else empty_document()))

    @property
    def text(self) -> str:
        """The document as the engine writes it; an empty string while there is no question."""
        return self._text if self.flow is not None else ""

    @property
    def undoes(self) -> str | None:
        """What undo would take back, in words."""
        return self._past[-1].told if self._past else None

    @property
    def redoes(self) -> str | None:
        """What redo would do again, in words."""
        return self._future[-1].told if self._future else None

    def apply(self, given: Mapping[str, Any], group: str | None = None) -> str | None:
        """Carry out one change; gives the question to look at next, if it says so.

        Changes of one ``group`` that follow one another are undone together: what was typed into one field.

        :raises FlowError: no change, or one that the engine would not read; nothing was changed.
        """
        name, change = checked_change(given)
        document = json.loads(self._text)
        look_at = CHANGES[name][0](document, change)
        text, flow = _written(document)
        if text != self._text:
            self._keep(Step(text=self._text, told=_told(name, change), look_at=change.get("node"), group=group))
            self._show(text, flow)
        return look_at

    def replace(self, text: str, told: str) -> None:
        """Put another document in the place of this one; undo brings this one back.

        :raises FlowError: it is no flow document.
        """
        written, flow = _written(_parsed(text))
        self._keep(Step(text=self._text, told=told, look_at=None))
        self._show(written, flow)

    def undo(self) -> Step | None:
        """Take the last change back; None if there is none."""
        if not self._past:
            return None
        step = self._past[-1]
        written = _written(json.loads(step.text))
        self._future.append(Step(text=self._text, told=step.told, look_at=step.look_at))
        self._past.pop()
        self._show(*written)
        return step

    def redo(self) -> Step | None:
        """Do again what was undone last; None if there is nothing."""
        if not self._future:
            return None
        step = self._future[-1]
        written = _written(json.loads(step.text))
        self._past.append(Step(text=self._text, told=step.told, look_at=step.look_at))
        self._future.pop()
        self._show(*written)
        return step

    def problems(self, tokenizer: Tokenizer | None = None) -> list[Problem]:
        """What ``check()`` says of the flow as it stands; of an empty draft nothing."""
        key = None if tokenizer is None else tokenizer.fingerprint
        if key not in self._problems:
            self._problems[key] = [] if self.flow is None else self.flow.check(tokenizer)
        return self._problems[key]

    def _keep(self, step: Step) -> None:
        together = step.group is not None and bool(self._past) and self._past[-1].group == step.group
        if not together or self._future:
            self._past.append(step)
        self._future.clear()
        while len(self._past) > MOST_STEPS or sum(len(each.text) for each in self._past) > MOST_KEPT:
            self._past.popleft()

    def _show(self, text: str, flow: FlowDefinition | None) -> None:
        self._text, self.flow = text, flow
        self.document = json.loads(text)
        self._problems.clear()
        self.version += 1


def text_of(flow: FlowDefinition | FlowQuestion | str) -> str:
    """A flow as its document; text is taken for one, and judged by whoever reads it."""
    match flow:
        case str():
            return flow
        case FlowQuestion():
            return FlowDefinition(flow.name, flow).to_json()
        case FlowDefinition():
            return flow.to_json()
    raise FlowError(f"a flow is a FlowDefinition, a FlowQuestion, or one as JSON text; got {flow!r}")


def _written(document: Document) -> tuple[str, FlowDefinition | None]:
    """The document as the engine writes it, and the flow that it read: the proof that it can; none of an empty one."""
    if not document["questions"]:
        return json.dumps({**empty_document(), "name": document["name"]}), None
    if not document.get("positions"):
        document.pop("positions", None)
    try:
        flow = FlowDefinition.from_json(json.dumps(document, ensure_ascii=False))
        return flow.to_json(), flow
    except FlowError as error:
        raise FlowError(_named(str(error), document)) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise FlowError(f"this is no plain data: {error}") from None


def _parsed(text: str) -> Document:
    FlowDefinition.from_json(text)  # says what is wrong, with its place in the text
    return dict(json.loads(text))


def _named(message: str, document: Document) -> str:
    """A place in the document, told by the question's name."""
    found = _PLACE.match(message)
    if found is None:
        return message
    rest = message[found.end() :].removeprefix(": ")
    name = document["questions"][int(found[1])]["name"]
    return rest if repr(name) in rest else f"question {name!r}: {rest}"


def _told(name: str, change: Mapping[str, Any]) -> str:
    """A change in a few words, as undo and redo name it."""
    node = change.get("node")
    match name:
        case "add":
            return "new question"
        case "delete":
            return f"delete {node}"
        case "rename":
            return f"rename {node} to {change['name']}"
        case "set" | "unset":
            return f"{change['key'].replace('_', ' ')} of {node}"
        case "route":
            return f"where {change['answer']} of {node} leads"
        case "root":
            return f"begin with {node}"
        case "flow":
            return f"{change['key']} of the flow"
        case "move":
            return "move"
    return "tidy up"
