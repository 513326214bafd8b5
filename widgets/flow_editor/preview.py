"""What may come next in an answer: the list of choices, or the tokens that the engine's own mask allows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from workbench.errors import FlowError
from workbench.flows import (
    CharsStrat,
    ChoicesStrat,
    Constraint,
    FlowDefinition,
    GrammarStrat,
    JsonStrat,
    ListStrat,
    RegexStrat,
    UntilEndType,
    UntilStrat,
)
from workbench.models import HookedModel

from ..base import marked

__all__ = ["FRESH", "allowed_next", "in_words", "strategy_of", "summed_up"]

SHOWN = 32
"""Tokens or answers that a preview lists."""
FRESH: dict[str, tuple[str, dict[str, Any]]] = {
    "choices": ("one of some choices", {"choices": ["yes", "no"]}),
    "until": ("text up to an end", {"start": "", "end_type": "anychar", "end": ".\n"}),
    "chars": ("characters of a kind", {"mode": "alpha", "min": 1, "stop": 20}),
    "list": (
        "a list",
        {"elements": ["red", "green", "blue"], "open": "", "close": "", "wrap": "", "sep": ", ", "min": 1, "max": 3,
         "end_with": None},
    ),
    "regex": ("a pattern (regex)", {"pattern": "[0-9]+"}),
    "json": ("JSON of a schema", {"schema": '{"type": "integer"}'}),
    "grammar": ("a grammar (Lark)", {"lark": 'start: "yes" | "no"'}),
}  # fmt: skip
"""By kind: what a strategy is called in the panel, and the one that it begins with."""
LOOKED_AT = 4_000
"""Allowed tokens whose texts are compared to find the shortest ones."""


def strategy_of(data: Mapping[str, Any]) -> Any:
    """The strategy that a flow document describes, read by the engine's own reader.

    :raises FlowError: it describes none.
    """
    question = {"name": "q", "prompt": "p", "strategy": dict(data), "erase_mode": "none", "decide": "whole"}
    document = {"format": 1, "name": "f", "root": "q", "questions": [question]}
    try:
        return FlowDefinition.from_json(json.dumps(document)).root.strategy
    except FlowError as error:
        raise FlowError(str(error).removeprefix("$.questions[0].strategy").removeprefix(": ")) from None


def allowed_next(strategy: Any, model: HookedModel | None, so_far: str = "") -> dict[str, Any]:
    """What an answer that begins with ``so_far`` may go on with: ``words`` always, and lists where there are any.

    ``answers`` are whole answers of a finite list that begin so. ``tokens`` are texts of allowed tokens, the shortest
    first and control characters last, ``count`` how many are allowed, and ``complete`` says whether the answer may end
    here: all from the mask that a run uses.

    :raises FlowError: no answer begins with ``so_far``, or the tokenizer can't spell the answers.
    """
    found: dict[str, Any] = {"words": in_words(strategy), "so_far": so_far}
    finite = strategy.finite()
    if finite is not None:
        rest = [answer for answer in finite if answer.startswith(so_far)]
        found |= {"answers": [marked(answer) for answer in rest[:SHOWN]], "more": max(len(rest) - SHOWN, 0)}
    if model is None:
        return found
    matcher = Constraint(strategy, model.tokenizer, model.vocab_size, leading_space=True).start()
    matcher.advance_all(model.tokenizer.encode(so_far) if so_far else [])
    allowed = matcher.mask().nonzero().flatten().tolist() if matcher.can_continue else []
    texts = sorted(dict.fromkeys(map(model.tokenizer.token_text, allowed[:LOOKED_AT])), key=_hard_to_read)
    return found | {
        "tokens": [marked(text) for text in texts[:SHOWN]], "count": len(allowed), "complete": matcher.complete,
    }  # fmt: skip


def _hard_to_read(text: str) -> tuple[bool, int, str]:
    return not text.strip(" \t\n\r").isprintable(), len(text), text


def in_words(strategy: Any) -> str:
    """What an answer looks like, in a sentence."""
    match strategy:
        case ChoicesStrat(choices=choices):
            return f"one of {len(choices)} strings"
        case UntilStrat(start=start, end_type=UntilEndType.TAG, end=end):
            return f"{_begun(start)}anything up to the first {end!r}"
        case UntilStrat(start=start, end=end):
            return f"{_begun(start)}anything up to the first of {', '.join(map(repr, dict.fromkeys(end)))}"
        case CharsStrat(mode=mode, min=least, stop=str(stop)):
            return f"{least} or more characters ({mode.replace('_', ' ')}), up to the first {stop!r}"
        case CharsStrat(mode=mode, min=least, stop=most):
            return f"{least} to {most} characters ({mode.replace('_', ' ')})"
        case ListStrat():
            return _list_in_words(strategy)
        case RegexStrat(pattern=pattern):
            return f"a text that matches ^({pattern})$"
        case JsonStrat():
            return "a JSON value that fits the schema, without white space"
        case GrammarStrat():
            return "a text of the grammar, from its rule 'start'"
    raise FlowError(f"{strategy!r} is no strategy")


def _begun(start: str) -> str:
    return f"{start!r}, then " if start else ""


def _list_in_words(strategy: ListStrat) -> str:
    elements = strategy.elements
    what = f"of {len(elements)} strings" if isinstance(elements, tuple) else f"each {in_words(elements)}"
    most = "any number" if strategy.max is None else str(strategy.max)
    around = f" between {strategy.open!r} and {strategy.close!r}" if strategy.open or strategy.close else ""
    return f"a list of {strategy.min} to {most} elements, {what}, with {strategy.sep!r} between{around}"


def summed_up(data: Mapping[str, Any]) -> str:
    """A strategy in a few words, as a node shows it."""
    return _summed_up(json.dumps(data))


@lru_cache(maxsize=4096)
def _summed_up(text: str) -> str:
    data = json.loads(text)
    if data["kind"] == "choices":
        return f"{len(data['choices'])} choices"
    words = in_words(strategy_of(data))
    return words if len(words) <= 60 else f"{words[:59]}…"
