"""A reading on its way to the browser: pages of numbers as one buffer, texts once each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from workbench.reports import legible

from ..base import joined_glyphs, marked
from .reading import PROMPT, Item, Reading

__all__ = ["COLUMNS", "GONE", "ORIGINS", "PAGE", "SPECIAL", "page"]

PAGE = 2048
"""Items of one page: 90 kB of numbers, and texts."""
COLUMNS = (
    "uid", "position", "token", "label", "origin", "by", "flags", "step", "removed_step", "p", "model_p", "entropy",
)  # fmt: skip
ORIGINS = (PROMPT, "sampled", "forced", "reinjected")
SPECIAL, GONE = 1, 2
"""Bits of ``flags``."""


def page(reading: Reading, start: int) -> dict[str, Any]:
    """Items ``start`` to ``start + PAGE``: numbers column by column as float32 (whole ones are exact to 2**24).

    ``labels``, ``names`` and ``tags`` hold each text once, for this page alone.
    """
    items = reading.items[start : start + PAGE]
    labels: dict[str, int] = {}
    names: dict[str, int] = {}
    tags: dict[str, int] = {}
    rows = [_row(reading, item, labels, names) for item in items]
    tagged = {
        str(start + offset): [tags.setdefault(tag, len(tags)) for tag in found]
        for offset, item in enumerate(items)
        if (found := _tags(reading, item))
    }
    numbers = np.asarray(rows, dtype="<f4").reshape(len(items), len(COLUMNS))
    glyphs = {place: glyph for begin, run in _runs(items) for place, glyph in _glyphs(start + begin, run)}
    return {
        "start": start,
        "count": len(items),
        "total": len(reading.items),
        "labels": list(labels),
        "names": list(names),
        "tags": list(tags),
        "tagged": tagged,
        "glyphs": glyphs,
        "branches": _branches(reading, start, start + len(items)),
        "numbers": np.ascontiguousarray(numbers.T).tobytes(),
    }


def _row(reading: Reading, item: Item, labels: dict[str, int], names: dict[str, int]) -> list[float]:
    life = item.life
    flags = SPECIAL * reading.words.special(life.token) | GONE * (item.branch is not None)
    return [
        life.uid,
        life.position,
        life.token,
        labels.setdefault(marked(life.text), len(labels)),
        ORIGINS.index(life.origin),
        -1 if life.added_by is None else names.setdefault(marked_name(life.added_by), len(names)),
        flags,
        life.added_step,
        -1 if life.removed_step is None else life.removed_step,
        math.nan if life.logprob is None else math.exp(life.logprob),
        math.nan if life.raw_logprob is None else math.exp(life.raw_logprob),
        math.nan if life.entropy is None else life.entropy,
    ]


def _tags(reading: Reading, item: Item) -> list[str]:
    """What the filters go by: mods and actions in the records of a token, as ``mod:name`` and ``action:name``."""
    found: dict[str, None] = {}
    for record in reading.records_of(item.life):
        if record.mod is not None:
            found[f"mod:{marked_name(record.mod)}"] = None
        if record.action is not None:
            found[f"action:{marked_name(record.action)}"] = None
    return list(found)


def _runs(items: Sequence[Item]) -> Iterator[tuple[int, list[Item]]]:
    """Neighbours that stood in one sequence, with the place of the first."""
    begin = 0
    for _, group in groupby(items, key=lambda item: item.branch):
        run = list(group)
        yield begin, run
        begin += len(run)


def _glyphs(begin: int, run: Sequence[Item]) -> Iterator[tuple[str, str]]:
    glyphs = joined_glyphs([item.life.text for item in run])
    yield from ((str(begin + offset), glyph) for offset, glyph in glyphs.items())


def _branches(reading: Reading, start: int, stop: int) -> list[dict[str, object]]:
    """The branches that begin on the page: first item, number of items, and what happened."""
    found = []
    place = start
    while place < stop:
        number = reading.items[place].branch
        if number is None:
            place += 1
            continue
        branch = reading.branches[number]
        first = reading.index[branch.lives[0].uid]
        if first >= start:
            found.append({"start": first, "count": len(branch.lives), "told": told_branch(reading, number)})
        place = first + len(branch.lives)
    return found


def told_branch(reading: Reading, number: int) -> str:
    """``3 tokens taken back by calculator at step 7``."""
    branch = reading.branches[number]
    count = len(branch.lives)
    by = f" by {marked_name(branch.mod)}" if branch.mod else ""
    return f"{count} token{'' if count == 1 else 's'} taken back{by} at step {branch.step}"


def marked_name(name: str) -> str:
    """A mod's name as plain text: whatever is in it can be read and forges nothing."""
    return legible(name)
