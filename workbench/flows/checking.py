"""What is doubtful about a flow, found before anything runs."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import PromptError
from ..models import Tokenizer
from .document import questions_of
from .question import FlowDefinition, FlowQuestion, Target, normalised, question_of
from .strategies import ChoicesStrat, ListStrat, Strategy

__all__ = ["Problem", "check"]

LONGEST_LOOP = 12
"""Questions of a loop that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One finding. ``kind`` is duplicate, unreachable, unrouted, collision, entry, endless or prompt."""

    question: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.question}: {self.message}"


def check(flow: FlowDefinition | FlowQuestion, tokenizer: Tokenizer | None = None) -> list[Problem]:
    """Everything doubtful about a flow, calling none of its functions; an empty list if nothing is.

    With a tokenizer, prompts are looked at too: special tokens, text that does not come back, a start without space.
    """
    questions = questions_of(flow)
    root = flow if isinstance(flow, FlowQuestion) else flow.root
    found = [*_duplicates(questions), *_unreachable(questions, root)]
    for question in questions:
        found.extend(_unrouted(question))
        found.extend(_collisions(question))
        if question.entry is not None and question is not root:
            message = f"its when() is never asked: a flow enters at its root, {root.name!r}; put it there"
            found.append(Problem(question=question.name, kind="entry", message=message))
        if tokenizer is not None:
            found.extend(_prompt(question, tokenizer))
    return [*found, *_endless(questions)]


def _duplicates(questions: list[FlowQuestion]) -> Iterator[Problem]:
    for name, count in Counter(question.name for question in questions).items():
        if count > 1:
            message = f"{count} questions have this name: give each its own, or use one question in all places"
            yield Problem(question=name, kind="duplicate", message=message)


def _unreachable(questions: list[FlowQuestion], root: FlowQuestion) -> Iterator[Problem]:
    reached = {id(question) for question in questions_of(root)}
    for question in questions:
        if id(question) not in reached:
            message = f"nothing written leads here from {root.name!r}; only a function could: route to it or remove it"
            yield Problem(question=question.name, kind="unreachable", message=message)


def _unrouted(question: FlowQuestion) -> Iterator[Problem]:
    """Some answers have a route, others nothing: an answer may have been forgotten."""
    without = _uncovered(question)[:8]
    if without and question.routes and not question.has_fallback and question.brancher is None:
        answers = ", ".join(map(repr, without))
        message = f"no route for {answers}: say on(…, None) or then(None) if the flow shall end there"
        yield Problem(question=question.name, kind="unrouted", message=message)


def _uncovered(question: FlowQuestion) -> list[str]:
    """Those of finitely many answers that no ``on`` names."""
    answers = _listed(question.strategy) if isinstance(question.strategy, ChoicesStrat) else question.strategy.finite()
    return [answer for answer in answers or () if normalised(answer) not in question.routes]


def _collisions(question: FlowQuestion) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for choice in _listed(question.strategy):
        key = " ".join(unicodedata.normalize("NFKC", choice).casefold().split())
        if key in seen:
            message = (
                f"{seen[key]!r} and {choice!r} look the same but are two answers: "
                "they differ in inner spaces or in how characters are composed; keep one"
            )
            yield Problem(question=question.name, kind="collision", message=message)
        seen.setdefault(key, choice)


def _listed(strategy: Strategy) -> tuple[str, ...]:
    while isinstance(strategy, ListStrat):
        if isinstance(strategy.elements, tuple):
            return strategy.elements
        strategy = strategy.elements
    return strategy.choices if isinstance(strategy, ChoicesStrat) else ()


# --- prompts ---


def _prompt(question: FlowQuestion, tokenizer: Tokenizer) -> Iterator[Problem]:
    for message in _prompt_faults(question.prompt, tokenizer):
        yield Problem(question=question.name, kind="prompt", message=message)


def _prompt_faults(prompt: str, tokenizer: Tokenizer) -> Iterator[str]:
    try:
        tokens = tokenizer.encode(prompt)
    except PromptError as error:
        yield f"the prompt {prompt!r} can't be tokenised: {error}"
        return
    special = dict.fromkeys(tokenizer.token_text(token) for token in tokens if tokenizer.is_special(token))
    if special:
        yield f"the prompt holds special tokens, which are marks and no text: {', '.join(special)}"
    back = tokenizer.decode(tokens)
    if back != prompt:
        yield f"the prompt does not survive this tokenizer: {prompt!r} comes back as {back!r}"
    if prompt[:1].isalnum():
        better = f" {prompt[:20]}"
        yield f"the prompt starts without a space and will stick to the text before it: begin with {better!r}"


# --- loops ---


def _endless(questions: list[FlowQuestion]) -> Iterator[Problem]:
    """Loops that no answer leads out of, each once.

    A question can end if one of its ways on leads out of the flow, to a function, or to a question that can end.
    """
    ways = {id(question): _ways(question) for question in questions}
    stuck = _stuck(questions, ways)
    walked: set[int] = set()
    for question in questions:
        if id(question) in stuck and (loop := _loop(question, ways, walked)):
            yield Problem(question=loop[0].name, kind="endless", message=_round(loop))


def _round(loop: list[FlowQuestion]) -> str:
    names = [each.name for each in loop]
    if len(names) > LONGEST_LOOP:
        names[LONGEST_LOOP - 1 :] = [f"… {len(names) - LONGEST_LOOP + 1:,} more"]
    alone = " without asking the model" if all(each.auto_answer for each in loop) else ""
    way = " → ".join([*names, loop[0].name])
    return f"this goes round for ever{alone}: {way}; add retry(n, None) or an answer that leads out"


def _stuck(questions: list[FlowQuestion], ways: dict[int, list[Target]]) -> set[int]:
    """Questions from which every way on comes to another such question; worked out backwards from the exits."""
    before: dict[int, list[int]] = {}
    ending: list[int] = []
    for question in questions:
        following = [question_of(way) for way in ways[id(question)]]
        for each in following:
            if each is None:
                ending.append(id(question))
            else:
                before.setdefault(id(each), []).append(id(question))
    stuck = {id(question) for question in questions}
    while ending:
        question_id = ending.pop()
        if question_id in stuck:
            stuck.remove(question_id)
            ending.extend(before.get(question_id, ()))
    return stuck


def _ways(question: FlowQuestion) -> list[Target]:
    """Every way on that can be taken; None also stands for a branch, which may lead anywhere."""
    ways: list[Target] = list(question.routes.values())
    if question.brancher is not None:
        ways.append(None)
    if question.strategy.finite() is None or _uncovered(question) or not ways:
        ways.append(question.fallback)
    if question.retries is not None:
        ways.append(question.retries[1])
    return ways


def _loop(question: FlowQuestion, ways: dict[int, list[Target]], walked: set[int]) -> list[FlowQuestion]:
    """The loop ahead of a question that can't end, by the first way each time; empty if walked before."""
    path: dict[int, FlowQuestion] = {}
    following: FlowQuestion | None = question
    while following is not None and id(following) not in walked:
        walked.add(id(following))
        path[id(following)] = following
        following = question_of(ways[id(following)][0])
    if id(following) not in path:
        return []
    loop = list(path.values())[list(path).index(id(following)) :]
    first = min(range(len(loop)), key=lambda index: loop[index].name)
    return loop[first:] + loop[:first]
