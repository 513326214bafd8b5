"""A flow as a mermaid flowchart, with what happened in it where states of finished runs are given."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import Any

from .document import questions_of
from .question import FlowDefinition, FlowQuestion, Target, normalised, question_of
from .routing import described
from .state import FlowState

__all__ = ["Drawing", "draw"]

LONGEST_LABEL = 60
MOST_LISTED = 8
"""Answers without an arrow of their own that are listed beside "otherwise"."""


class Drawing(str):
    """Mermaid text that a notebook shows as the picture it describes."""

    __slots__ = ()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/vnd.mermaid": str(self), "text/plain": str(self)}


def draw(flow: FlowDefinition | FlowQuestion, states: Iterable[FlowState] = ()) -> Drawing:
    """Mermaid text: a box per question, an arrow per answer.

    With ``states``, a box has its number of visits, an arrow the answer's mean probability over the visits that
    computed it and how often it was given. All texts are escaped: none can end its label.
    """
    return Drawing("\n".join(_Chart(questions_of(flow), _Record(states)).lines()) + "\n")


class _Record:
    """Visits counted over several requests."""

    def __init__(self, states: Iterable[FlowState]) -> None:
        self.any = False
        self.visits: Counter[str] = Counter()
        self.given: Counter[tuple[str, str]] = Counter()
        self.probs: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for state in states:
            self.any = True
            for visit in state.history:
                self.visits[visit.question] += 1
                self.given[visit.question, normalised(visit.answer)] += 1
                for answer, probability in visit.probs.items():
                    self.probs[visit.question, normalised(answer)].append(probability)

    def of_question(self, name: str) -> str:
        count = self.visits[name]
        return f"{count} visit{'' if count == 1 else 's'}" if self.any else ""

    def of_answer(self, name: str, answer: str) -> str:
        if not self.any:
            return ""
        probs = self.probs.get((name, answer))
        return f"{f' p={fmean(probs):.2f},' if probs else ''} taken {self.given[name, answer]}"


class _Chart:
    """Lines of the flowchart; an exit gets a box of its own at each arrow."""

    def __init__(self, questions: list[FlowQuestion], record: _Record) -> None:
        self.questions = questions
        self.record = record
        self.boxes = {id(question): f"q{index}" for index, question in enumerate(questions)}
        self.exits = 0

    def lines(self) -> Iterator[str]:
        yield "flowchart TD"
        for question in self.questions:
            parts = [question.name, question.prompt, self.record.of_question(question.name)]
            label = "<br/>".join(_escaped(part) for part in parts if part)
            yield f'  {self.boxes[id(question)]}["{label}"]'
        for question in self.questions:
            yield from self.arrows(question)

    def arrows(self, question: FlowQuestion) -> Iterator[str]:
        for answer, target in question.routes.items():
            seen = _escaped(self.record.of_answer(question.name, answer))
            yield from self.arrow(question, f"{_escaped(answer)}{seen}", target)
        if question.brancher is not None:
            yield from self.arrow(question, "branch", question.brancher, dotted=True)
        if question.has_fallback:
            yield from self.arrow(question, f"otherwise{self.others(question)}", question.fallback)
        if question.retries is not None:
            most, target = question.retries
            yield from self.arrow(question, f"after {most}", target, dotted=True)

    def others(self, question: FlowQuestion) -> str:
        """What is known of the answers that have no arrow of their own, one a line."""
        answers = [each for each in question.strategy.finite() or () if normalised(each) not in question.routes]
        if not self.record.any or not answers or len(answers) > MOST_LISTED:
            return ""
        told = (f"{each}{self.record.of_answer(question.name, normalised(each))}" for each in answers)
        return "".join(f"<br/>{_escaped(line)}" for line in told)

    def arrow(self, question: FlowQuestion, label: str, target: Target, *, dotted: bool = False) -> Iterator[str]:
        following = question_of(target)
        if following is None:
            box = f"e{self.exits}"
            self.exits += 1
            yield f'  {box}(["{_escaped(described(target))}"])'
        else:
            box = self.boxes[id(following)]
        yield f'  {self.boxes[id(question)]} {"-.->" if dotted else "-->"}|"{label}"| {box}'


def _escaped(text: str) -> str:
    """Letters, digits and a few marks as they are, all else as mermaid's ``#number;``; cut where it gets long."""
    space = " " if text[:1].isspace() else ""
    flat = space + " ".join(text.split())
    if len(flat) > LONGEST_LABEL:
        flat = flat[: LONGEST_LABEL - 1] + "…"
    return "".join(char if char.isalnum() or char in " .,=_-…" else f"#{ord(char)};" for char in flat)
