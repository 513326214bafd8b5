"""A trace to the parts of a report: what was asked, what came, who did what, and where it all came from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import pandas as pd

from ..models import HookedModel
from ..trace import ACTION, WARNING, Record, TokenLife, Trace
from .blocks import Alert, Attachment, Block, Facts, Grid, Heading, Note, Picture, Verbatim, frame_csv, grid_of
from .layers import layer_blocks
from .legible import label, legible, shortened
from .provenance import provenance_blocks
from .steps import step_blocks
from .strip import removed_branches, token_strip
from .words import Words, prompt_text

__all__ = ["file_stems", "trace_blocks"]

TEXT_SHOWN = 20_000
"""Characters of a prompt or output that are printed; all of them are in the attached records."""
WARNINGS_SHOWN = 50


def trace_blocks(
    trace: Trace,
    model: HookedModel | None,
    tokens: Sequence[TokenLife | int] | None,
    files: Mapping[str, str],
) -> Iterator[Block]:
    """The parts of one trace: the requests that ``files`` gives a stem of file names to, then the provenance."""
    words = Words(trace, model)
    wanted = list(files)
    if not wanted:
        yield Heading(text=f"Run {trace.run.get('run_id', 'without a name')}")
        yield Note(text="This trace holds no records: the run ended before its first event.")
    for name in wanted:
        yield from _request_blocks(trace, name, model, tokens, words, files[name])
    yield from provenance_blocks(trace, wanted)


def file_stems(request_ids: Sequence[str], prefix: str) -> dict[str, str]:
    """What the attached files of each request are called: safe in any file system, and none like another."""
    found: dict[str, str] = {}
    for number, name in enumerate(request_ids):
        stem = prefix + (re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:40] or "request")
        found[name] = f"{stem}-{number}" if stem in found.values() else stem
    return found


def _request_blocks(
    trace: Trace,
    request_id: str,
    model: HookedModel | None,
    tokens: Sequence[TokenLife | int] | None,
    words: Words,
    file: str,
) -> Iterator[Block]:
    history = trace.history(request_id)
    records = [record for record in trace.records if record.request_id == request_id]
    yield Heading(text=f"Run {trace.run.get('run_id', 'without a name')}, request {request_id}")
    yield _summary(trace, request_id, records)
    yield from _warnings(records)
    yield from _text("Prompt", prompt_text(trace, request_id))
    yield from _text("Output", words.text([life.token for life in history.live]))
    yield Heading(text="Tokens", level=3)
    yield Picture(
        html=token_strip(history, removed_branches(records, history), words),
        caption="Every committed token. Branches that were taken back stand where they were, struck through.",
        twin=_token_grid(trace, request_id, file),
    )
    yield from _mod_blocks(trace, request_id, records)
    yield from layer_blocks(trace, request_id, model, tokens, file)
    yield from step_blocks(request_id, records, words, f"{file}-records.jsonl")


# What came ---------------------------------------------------------------------------------------------------


def _summary(trace: Trace, request_id: str, records: Sequence[Record]) -> Facts:
    history = trace.history(request_id)
    ending = next((dict(r.data) for r in reversed(records) if r.kind == "finished"), {})
    passes = [record for record in records if record.kind == "forward_pass"]
    pairs = [
        ("Model", str(trace.run.get("model", {}).get("name", "not recorded"))),
        ("Ended by", history.reason or f"nothing: the run is {trace.run.get('status', 'not finished')}"),
        ("Prompt tokens", f"{len(history.prompt):,}"),
        ("Output tokens", f"{len(history.live):,}"),
        ("Taken back", f"{len(history.every) - len(history.live):,}"),
        ("Forward passes", f"{len(passes):,}"),
        ("Tokens fed", f"{sum(int(record.data['fed']) for record in passes):,}"),
    ]
    pairs += [("Error", str(ending["error"]))] if "error" in ending else []
    pairs += [("Tool calls", shortened(str(ending["tool_calls"]), 2000))] if "tool_calls" in ending else []
    return Facts(pairs=tuple(pairs))


def _warnings(records: Sequence[Record]) -> Iterator[Alert]:
    told = [str(record.data.get("message", "")) for record in records if record.kind == WARNING]
    told += [
        f"mod {record.mod!r} raised on {record.data.get('event', 'an event')}: {record.data.get('error', '')}"
        for record in records
        if record.kind == ACTION and record.action == "raised"
    ]
    for text in told[:WARNINGS_SHOWN]:
        yield Alert(text=shortened(text, 2000))
    if len(told) > WARNINGS_SHOWN:
        yield Alert(text=f"These are the first {WARNINGS_SHOWN} of {len(told):,} warnings.")


def _text(name: str, text: str) -> Iterator[Block]:
    yield Heading(text=name, level=3)
    yield Verbatim(label=name, text=shortened(text, TEXT_SHOWN) if text else "(nothing)")


def _token_grid(trace: Trace, request_id: str, stem: str) -> Grid:
    """The tokens table: the rows of ``trace.tokens()``; labels to read, running text in the attached file."""
    every = trace.history(request_id).every
    names = [field.name for field in fields(TokenLife) if field.name != "request_id"]
    columns: dict[str, Sequence[Any]] = {name: [getattr(life, name) for life in every] for name in names}
    columns["text"] = [legible(life.text) for life in every]
    columns["edits"] = [legible(", ".join(life.edits)) for life in every]
    for name in ("origin", "added_by", "removed_by"):
        columns[name] = [None if value is None else legible(value) for value in columns[name]]
    frame = pd.DataFrame(columns)
    for name in ("removed_step", "source_row"):
        frame[name] = frame[name].astype("Int64")
    file = Attachment(name=f"{stem}-tokens.csv", text=frame_csv(frame))
    shown = frame.assign(text=[label(life.text) for life in every])
    shown.columns = shown.columns.str.replace("_", " ")
    return replace(grid_of(shown, f"Tokens of request {request_id}", shown=200), attachment=file)


# Who did what ------------------------------------------------------------------------------------------------


def _mod_blocks(trace: Trace, request_id: str, records: Sequence[Record]) -> Iterator[Block]:
    told = trace.run.get("requests", {}).get(request_id, {}).get("mods", ())
    names = [str(mod.get("name", "?")) for mod in told]
    actions = [record for record in records if record.kind == ACTION]
    yield Heading(text="Mods", level=3)
    if not names and not actions:
        yield Note(text="No mods: every token was sampled from the model.")
    acted = {record.mod for record in actions}
    for name in dict.fromkeys(names):
        if name not in acted:
            yield Alert(text=f"The mod {name!r} never acted: it heard every event and answered none.")
    if actions:
        yield grid_of(_counts(actions), "What each mod did")
    if trace.history(request_id).every:
        yield grid_of(_origins(trace, request_id), "Where the tokens came from")


def _counts(actions: Sequence[Record]) -> pd.DataFrame:
    """One row per mod and action, in order of first appearance."""
    counted: dict[tuple[str, str], dict[str, int]] = {}
    for record in actions:
        key = (legible(record.mod or "–"), legible(record.action or "–"))
        row = counted.setdefault(
            key, {"applied": 0, "shadowed": 0, "refused": 0, "first step": record.step, "last step": record.step}
        )
        row[record.status or "applied"] = row.get(record.status or "applied", 0) + 1
        row["last step"] = record.step
    return pd.DataFrame([{"mod": mod, "action": action, **row} for (mod, action), row in counted.items()])


def _origins(trace: Trace, request_id: str) -> pd.DataFrame:
    """Tokens by who put them there, and what became of them."""
    counted: dict[tuple[str, str], list[int]] = {}
    for life in trace.history(request_id).every:
        row = counted.setdefault((legible(life.origin), legible(life.added_by or "the model")), [0, 0])
        row[0] += 1
        row[1] += not life.visible
    lines = [(*key, total, total - gone, gone) for key, (total, gone) in counted.items()]
    return pd.DataFrame(lines, columns=["origin", "by", "committed", "in the output", "taken back"])
