"""The explorer as HTML without script, style or kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from workbench.reports import label, legible, number

from ..base import table_html
from ..reading import Item, Reading

__all__ = ["explorer_html"]

SHOWN = 100
COLUMNS = ("uid", "position", "token", "origin", "by", "p", "model p", "taken back")


def explorer_html(readings: Sequence[Reading]) -> str:
    """The output of each reading as text, and its first tokens as a table."""
    return "".join(_reading_html(reading) for reading in readings)


def _reading_html(reading: Reading) -> str:
    made = [item for item in reading.items if item.life.uid >= 0]
    text = legible(reading.words.text([life.token for life in reading.history.live]))
    name = f"Trace of request {legible(reading.request_id)}, {reading.history.reason or 'not finished'}"
    cut = f" The first {SHOWN} of {len(made):,} are shown." if len(made) > SHOWN else ""
    caption = f"Tokens in order, taken back ones included.{cut}"
    rows = [_row(item) for item in made[:SHOWN]]
    if not rows:
        return f"<p><b>{escape(name)}</b>: no token was committed. Run the session with more tokens.</p>"
    return f"<p><b>{escape(name)}</b></p><pre>{escape(text[:2000])}</pre>{table_html(caption, COLUMNS, rows)}"


def _row(item: Item) -> tuple[str, ...]:
    life = item.life
    gone = "" if life.removed_step is None else f"step {life.removed_step} by {legible(life.removed_by or '–')}"
    chances = ("–" if value is None else number(math.exp(value)) for value in (life.logprob, life.raw_logprob))
    return (
        str(life.uid), str(life.position), label(life.text), life.origin, legible(life.added_by or ""), *chances, gone,
    )  # fmt: skip
