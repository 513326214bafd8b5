"""A draft as it is drawn: boxes with their rows, places and findings, the same for the window and the static form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from workbench.flows import Problem, layout, outline

from .changes import routed_answers
from .draft import Draft
from .preview import summed_up

__all__ = ["BOX_WIDTH", "HEAD", "ROW", "drawn", "row_place", "target_told"]

BOX_WIDTH = 244
HEAD = 86
"""Pixels of a box above its rows: name, two lines of prompt, one of facts. As in style.css."""
ROW = 21
FOOT = 7
FINDING = 20
MOST_ROWS = 8
MOST_FINDINGS = 2
ACROSS = BOX_WIDTH + 96
GAP = 26


def drawn(draft: Draft, problems: list[Problem]) -> dict[str, dict[str, Any]]:
    """Every box by its question's name, in the order of the outline; JSON-able."""
    if draft.flow is None:
        return {}
    found: dict[str, list[Problem]] = {}
    for problem in problems:
        found.setdefault(problem.question, []).append(problem)
    parents = outline(draft.flow)
    questions = {question["name"]: question for question in draft.document["questions"]}
    boxes = {name: _box(questions[name], found.get(name, [])) for name in parents}
    heights = {name: float(box["height"]) for name, box in boxes.items()}
    places = layout(draft.flow, heights, across=ACROSS, gap=GAP) | _pinned(draft)
    children: dict[str | None, list[str]] = {}
    for name, parent in parents.items():
        children.setdefault(parent, []).append(name)
    indices = {name: index for names in children.values() for index, name in enumerate(names, start=1)}
    for name, parent in parents.items():
        level = 1 if parent is None else boxes[parent]["level"] + 1
        boxes[name] |= {
            "parent": parent, "level": level, "index": indices[name], "siblings": len(children[parent]),
            "children": len(children.get(name, ())), "place": list(places[name]),
            "is_root": name == draft.document["root"],
        }  # fmt: skip
        boxes[name]["told"] = _told(boxes[name])
    return boxes


def _pinned(draft: Draft) -> dict[str, tuple[float, float]]:
    return {name: (x, y) for name, (x, y) in draft.document.get("positions", {}).items()}


def _box(question: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    rows = _rows(question)
    shown = min(len(rows), MOST_ROWS) + (len(rows) > MOST_ROWS)
    findings = min(len(problems), MOST_FINDINGS)
    return {
        "name": question["name"],
        "data": as_text(question),
        "answers": [list(pair) for pair in routed_answers(question)],
        "facts": summed_up(question["strategy"]),
        "about": _about(question),
        "rows": rows,
        "more_rows": max(len(rows) - MOST_ROWS, 0),
        "problems": [{"kind": each.kind, "message": each.message} for each in problems],
        "height": HEAD + ROW * shown + FINDING * findings + FOOT,
    }


def _about(question: Mapping[str, Any]) -> str:
    """The line of facts of a box."""
    erased = {"all": "all erased", "prompt": "prompt erased", "none": "all kept"}[question["erase_mode"]]
    rest = [text for key, text in (("auto_answer", "by function"), ("when", "waits")) if key in question]
    return " · ".join([summed_up(question["strategy"]), erased, *rest])


def _told(box: Mapping[str, Any]) -> str:
    """A box as it is read aloud."""
    ways = [f"{row['label']}: {row['told']}" for row in box["rows"] if row["told"]][:4]
    findings = [f"finding: {problem['message']}" for problem in box["problems"]]
    return ", ".join([box["name"], *(["start"] if box["is_root"] else []), box["facts"], *ways, *findings])


def as_text(value: Any) -> Any:
    """Data with what may be any JSON as JSON text: a browser would read 1.0 as 1, and large numbers as others."""
    if isinstance(value, list):
        return [as_text(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("kind") == "json":
        return {**value, "schema": json.dumps(value["schema"], indent=2, ensure_ascii=False)}
    if value.get("route") == "tool" and "payload" in value:
        rest = {key: each for key, each in value.items() if key != "payload"}
        return {**rest, "payload_text": json.dumps(value["payload"], indent=2, ensure_ascii=False)}
    return {key: as_text(each) for key, each in value.items()}


def _rows(question: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a box lists: its answers, then the other ways on. ``key`` says which target a row's handle sets."""
    routes = question.get("routes", {})
    answers = routed_answers(question)
    rows = [_row(f"routes:{key}", label, routes.get(key), key in routes) for label, key in answers]
    listed = {key for _, key in answers}
    rows += [_row(f"routes:{key}", key, target, True) for key, target in routes.items() if key not in listed]
    if "branch" in question:
        rows.append({"key": "", "label": "branch", "to": None, "told": f"function {question['branch']}", "set": True})
    if "then" in question or not answers or len(routes) < len(answers):
        rows.append(_row("then", "otherwise", question.get("then"), "then" in question))
    if "retry" in question:
        rows.append(_row("retry", f"after {question['retry']['most']}", question["retry"]["target"], True))
    return rows


def _row(key: str, label: str, target: Mapping[str, Any] | None, is_set: bool) -> dict[str, Any]:
    if not is_set:
        told = "back to the text" if key == "then" else ""
        return {"key": key, "label": label, "to": None, "told": told, "set": False}
    to, told = target_told(target)
    return {"key": key, "label": label, "to": to, "told": told, "set": True}


def target_told(target: Mapping[str, Any] | None) -> tuple[str | None, str]:
    """The question that a target leads to, if it is one, and the target in a few words."""
    match target:
        case {"flow": {"name": name, "root": root}}:
            return root, f"{root} (flow {name})"
        case {"question": name}:
            return name, name
        case {"message": text} | {"route": "message", "text": text}:
            return None, f"writes {text!r}"
        case {"route": "output", "text": text}:
            return None, f"output {text!r}"
        case {"function": name} | {"route": "tool", "function": name}:
            return None, f"{'tool call by ' if 'route' in (target or {}) else ''}function {name}"
        case {"route": "tool"}:
            return None, "tool call"
        case {"route": "summary"}:
            return None, "summary"
    return None, "back to the text"


def row_place(box: Mapping[str, Any], index: int) -> tuple[float, float]:
    """Where the arrow of a row begins: at the right edge, in the row's middle."""
    x, y = box["place"]
    return x + BOX_WIDTH, y + HEAD + ROW * min(index, MOST_ROWS) + ROW / 2
