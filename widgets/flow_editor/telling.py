"""A draft, and a try of it, as they are told: to the browser, and as a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.models import HookedModel
from workbench.reports import legible

from ..base import marked
from .attempts import Attempt
from .draft import Draft
from .offered import offered_functions
from .visits import Walked

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["document_told", "in_parts", "prompt_told", "run_told", "visits_frame"]

PART_SIZE = 200_000
"""Bytes of a message's part: a document may be larger than one message."""

MOST_PROBS = 12
LONGEST_TEXT = 1_500
LONGEST_OUTPUT = 20_000
"""Characters that are told of one text."""


def document_told(draft: Draft, boxes: Mapping[str, Any], known: Mapping[str, Any], **about: Any) -> dict[str, Any]:
    """What a window needs to draw a draft, given the boxes that it has; ``about`` adds to it what is to be said."""
    return {
        "version": draft.version, "whole": not known, "order": list(boxes), "name": draft.document["name"],
        "boxes": [box for name, box in boxes.items() if known.get(name) != box],
        "summary": draft.document.get("summary"), "undo": draft.undoes, "redo": draft.redoes,
        "functions": offered_functions(), "look_at": None, "say": "", "edit": None, **about,
    }  # fmt: skip


def in_parts(kind: str, content: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], bytes]]:
    """A message of any size as JSON in parts, each with what it is a part of."""
    data = json.dumps(content, allow_nan=False).encode()
    parts = [data[start : start + PART_SIZE] for start in range(0, len(data), PART_SIZE)]
    for index, part in enumerate(parts):
        yield {"of": kind, "index": index, "count": len(parts)}, part


def prompt_told(prompt: str | Sequence[Any]) -> str:
    """A prompt in a few words: the text, the last message of a chat, or what it is."""
    last = prompt if isinstance(prompt, str) else prompt[-1] if prompt else ""
    text = str(last.get("content", "")) if isinstance(last, Mapping) else last if isinstance(last, str) else "token ids"
    text = " ".join(legible(text).split())
    return text if len(text) <= 40 else f"{text[:39]}…"


def run_told(run: Attempt, model: HookedModel) -> dict[str, Any]:
    """What a window shows of a run, in the middle of it and at its end; JSON-able and of bounded size."""
    result = run.result
    generated: Sequence[int] = () if result is None else (*run.base, *result.tokens)
    return {
        "visits": [_visit(step, run, model) for step in run.walk()],
        "text": _text(generated, model, LONGEST_OUTPUT),
        "reason": "" if result is None else result.reason,
        "tool_calls": None if result is None or result.tool_calls is None else legible(repr(result.tool_calls)),
        "error": run.error,
        "fed": run.fed,
        "reused": run.reused,
        "seconds": run.seconds,
        "live": result is not None and result.lane is not None and result.lane.cache is not None,
    }


def _visit(step: Walked, run: Attempt, model: HookedModel) -> dict[str, Any]:
    visit = step.visit
    probs = sorted(visit.probs.items(), key=lambda pair: -pair[1])[:MOST_PROBS]
    question = run.flow.questions.get(visit.question)
    return {
        "question": visit.question,
        "answer": marked(visit.answer[:LONGEST_TEXT]),
        "key": visit.answer.strip().casefold(),
        "p": visit.probs.get(visit.answer),
        "probs": [[marked(answer), answer.strip().casefold(), p] for answer, p in probs],
        "choices": list((question.strategy.finite() if question else None) or ()),
        "erased": _text(step.erased, model, LONGEST_TEXT),
        "kept": _text(step.kept, model, LONGEST_TEXT),
        "spent": visit.spent,
        "by": "a person" if step.by_hand else "a function" if visit.auto else "the model",
        "route": visit.route,
    }


def _text(tokens: Sequence[int], model: HookedModel, most: int) -> str:
    text = legible(model.tokenizer.decode(tokens))
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"


def visits_frame(run: Attempt, model: HookedModel) -> pd.DataFrame:
    """One row per visit; ``probability`` is that of the answer, nan where none was computed."""
    import pandas as pd

    rows = [
        {
            "question": step.visit.question,
            "answer": step.visit.answer,
            "probability": step.visit.probs.get(step.visit.answer, float("nan")),
            "probabilities": dict(step.visit.probs),
            "erased_text": model.tokenizer.decode(step.erased),
            "kept_text": model.tokenizer.decode(step.kept),
            "spent": step.visit.spent,
            "by_hand": step.by_hand,
            "auto": step.visit.auto,
            "route": step.visit.route,
        }
        for step in run.walk()
    ]
    columns = ("question", "answer", "probability", "probabilities", "erased_text", "kept_text", "spent", "by_hand")
    return pd.DataFrame(rows, columns=[*columns, "auto", "route"])
