"""The events and actions of a request, step by step, and all of its records as an attached file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..trace import ACTION, Record
from .blocks import Attachment, Block, Fold, Grid, Heading, number
from .legible import label, shortened
from .words import Words

__all__ = ["record_file", "record_line", "short_list", "step_blocks"]

SHOWN_RECORDS = 300
SHOWN_TOKENS = 24
NOTE_LENGTH = 300
COLUMNS = ("step", "what", "tokens", "p", "model p", "entropy", "likeliest next", "by", "status", "notes")
NUMERIC = (True, False, False, True, True, True, False, False, False, False)
SKIPPED = frozenset({"activations", "duration_ns"})
"""Fields of a record that a report leaves out: too large, and different in every run."""


def step_blocks(request_id: str, records: Sequence[Record], words: Words, file: str) -> Iterator[Block]:
    """The steps, folded: as many records as can be read, the rest in the attached ``file``."""
    shown = records[:SHOWN_RECORDS]
    yield Heading(text="Step by step", level=3)
    yield Fold(
        summary=f"{len(records):,} records of events and actions",
        blocks=(
            Grid(
                caption=f"Events and actions of request {request_id}; entropy in nats",
                columns=COLUMNS,
                rows=tuple(_row(record, words) for record in shown),
                numeric=NUMERIC,
                total=len(records),
                attachment=record_file(records, file),
                grouped=True,
            ),
        ),
    )


def record_file(records: Sequence[Record], name: str) -> Attachment:
    """All records as a file of JSON lines."""
    return Attachment(
        name=name, text="".join(f"{record_line(one)}\n" for one in records), media_type="application/jsonl"
    )


def record_line(record: Record) -> str:
    """One record as a line of JSON: every field that says something, activations and durations left out."""
    told = {field.name: getattr(record, field.name) for field in fields(record) if field.name not in SKIPPED}
    kept = {
        name: value if name != "data" else dict(value)
        for name, value in told.items()
        if value not in (None, (), "", {})
    }
    return json.dumps(kept, ensure_ascii=True, default=str)


def _row(record: Record, words: Words) -> tuple[str, ...]:
    what = f"{record.action}" if record.kind == ACTION else record.kind
    pieces = [label(words.of(token)) for token in record.tokens[:SHOWN_TOKENS]]
    likeliest = ", ".join(f"{label(words.of(i))} {number(math.exp(value))}" for i, value in record.top[:3])
    return (
        str(record.step),
        what.replace("_", " "),
        " ".join(pieces) + (f" … ({len(record.tokens):,} in all)" if len(record.tokens) > SHOWN_TOKENS else ""),
        _probability(record.logprob),
        _probability(record.raw_logprob),
        "" if record.entropy is None else number(record.entropy),
        likeliest,
        record.mod or "",
        record.status or record.origin or "",
        shortened(_notes(record.data), NOTE_LENGTH),
    )


def _probability(logprob: float | None) -> str:
    return "" if logprob is None else number(math.exp(logprob))


def _notes(data: Mapping[str, Any]) -> str:
    """What else the record says, short."""
    told = dict(data)
    told.pop("texts", None)
    told.pop("row", None)
    parts = []
    if "fed_start" in told:
        start, fed = told.pop("fed_start"), told.pop("fed")
        parts.append(f"fed {fed} from position {start}")
    scored = told.pop("scored", None)
    if scored:
        parts.append(f"scored {len(scored)} forced token{'s' if len(scored) > 1 else ''}")
    parts += [f"{name.replace('_', ' ')}: {_short(value)}" for name, value in told.items()]
    return "; ".join(parts)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def short_list(items: Sequence[str], most: int = 4) -> str:
    """The first and the last of many."""
    if not items:
        return "nothing"
    if len(items) <= most:
        return ", ".join(items)
    return f"{', '.join(items[: most - 1])} … {items[-1]} ({len(items)} in all)"
