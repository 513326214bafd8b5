"""Two runs beside each other, aligned at the first difference."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import pandas as pd

from ..mcmc import Chains, Decision
from ..trace import History, Record, TokenLife, Trace, first_difference
from .blocks import Alert, Block, Facts, Grid, Heading, Note, Picture, grid_of, number
from .legible import label, legible, shortened
from .steps import short_list
from .svg import PROBABILITY, heat_strip
from .words import Words

__all__ = ["chain_comparison", "trace_comparison"]

BEFORE, AFTER = 4, 20
"""Tokens drawn before and after the first difference."""
RECORDS_BEFORE, RECORDS_AFTER = 2, 8
Names = tuple[str, str]


def trace_comparison(first: Trace, second: Trace, names: Names, file: str) -> Iterator[Block]:
    """The parts of a comparison of two traces, request by request; ``file`` is the stem of attached files."""
    yield Heading(text=f"Comparison of {names[0]} and {names[1]}")
    difference = first_difference(first, second)
    yield Note(
        text="Every record agrees: what happened exactly, probabilities to 1e-4 nats."
        if difference is None
        else f"The first record that differs is number {difference.index} (from 0), in its {difference.field}."
    )
    yield _settings(first, second, names)
    shared = [name for name in first.request_ids if name in second.request_ids]
    for name in sorted({*first.request_ids, *second.request_ids} - set(shared)):
        yield Alert(text=f"Request {name} is in one of the two runs only.")
    for name in shared:
        yield from _request(first, second, names, name, f"{file}-{shared.index(name)}")
    if difference is not None:
        yield _records(first, second, names, difference.index)


def _settings(first: Trace, second: Trace, names: Names) -> Grid:
    """What was asked of both, and whether it is the same."""
    both = [_told(trace) for trace in (first, second)]
    rows = [(key, both[0].get(key, "–"), both[1].get(key, "–")) for key in dict.fromkeys([*both[0], *both[1]])]
    frame = pd.DataFrame([(*row, "yes" if row[1] == row[2] else "no") for row in rows], dtype=object)
    frame.columns = pd.Index(["what", *map(legible, names), "same"], dtype=object)
    return grid_of(frame, "What was asked of the two runs")


def _told(trace: Trace) -> dict[str, str]:
    run = trace.run
    found = {
        f"model {key}": str(value) for key, value in run.get("model", {}).items() if key in ("name", "backend", "dtype")
    }
    for name, request in run.get("requests", {}).items():
        mods = [f"{mod.get('name')} {json.dumps(mod.get('params'), sort_keys=True)}" for mod in request.get("mods", ())]
        found |= {
            f"{name}: seed": f"{request.get('seed')}, stream {request.get('index')}",
            f"{name}: sampling": json.dumps({**request.get("sampling", {}), "seed": None}, sort_keys=True, default=str),
            f"{name}: most new tokens": str(request.get("max_new_tokens")),
            f"{name}: mods": shortened(short_list(mods), 200) if mods else "none",
        }
    return {legible(key): legible(value) for key, value in found.items()}


# Tokens --------------------------------------------------------------------------------------------------------


def _request(first: Trace, second: Trace, names: Names, name: str, file: str) -> Iterator[Block]:
    histories = (first.history(name), second.history(name))
    yield Heading(text=f"Request {name}", level=3)
    if histories[0].prompt != histories[1].prompt:
        yield Alert(text="The two prompts differ, so positions are counted from the end of each prompt.")
    lives = [history.live for history in histories]
    at = _parting(lives[0], lives[1])
    yield Facts(pairs=tuple((key, f"{a} against {b}") for key, a, b in _outcome(histories)))
    if at is None:
        yield Note(text="The two outputs are the same, token for token.")
        return
    here = [label(own[at].text) if at < len(own) else "(the end)" for own in lives]
    yield Note(text=f"The outputs are the same for {at} tokens and then part: {here[0]} against {here[1]}.")
    yield _strip(lives, names, at, file)


def _outcome(histories: tuple[History, History]) -> list[tuple[str, str, str]]:
    values: dict[str, Callable[[History], str]] = {
        "Output tokens": lambda history: str(len(history.live)),
        "Taken back": lambda history: str(len(history.every) - len(history.live)),
        "Ended by": lambda history: str(history.reason),
    }
    return [(key, told(histories[0]), told(histories[1])) for key, told in values.items()]


def _parting(first: Sequence[TokenLife], second: Sequence[TokenLife]) -> int | None:
    """How many output tokens the two share before they part; None if they are equal."""
    pairs = enumerate(zip_longest(first, second))
    return next((at for at, (a, b) in pairs if a is None or b is None or a.token != b.token), None)


def _strip(lives: Sequence[Sequence[TokenLife]], names: Names, at: int, file: str) -> Picture:
    places = range(max(at - BEFORE, 0), min(at + AFTER, max(map(len, lives))))
    cells = [[own[place] if place < len(own) else None for place in places] for own in lives][::-1]
    return Picture(
        html=heat_strip(
            [[math.nan if life is None else _probability(life) for life in row] for row in cells],
            rows=["B", "A"],
            columns=[f"{place}{' ←' if place == at else ''}" for place in places],
            scale=PROBABILITY,
            texts=[["" if life is None else label(life.text) for life in row] for row in cells],
            alternative=f"Output tokens of both runs from {places.start} on; difference at {at}",
        ),
        caption=f"A: {names[0]}. B: {names[1]}. Output tokens by number, the first that differs marked ←; colour is "
        "the probability that the model itself gave the token.",
        twin=_token_grid(lives, names, file),
    )


def _probability(life: TokenLife) -> float:
    return math.nan if life.raw_logprob is None else math.exp(life.raw_logprob)


def _token_grid(lives: Sequence[Sequence[TokenLife]], names: Names, file: str) -> Grid:
    pairs = list(zip_longest(*lives))
    columns: dict[str, Any] = {"number": range(len(pairs))}
    for side, name in enumerate(names):
        own = [pair[side] for pair in pairs]
        tag = f"{'AB'[side]} ({legible(name)})"
        columns[f"{tag} token"] = pd.Series([None if one is None else label(one.text) for one in own], dtype=object)
        columns[f"{tag} origin"] = pd.Series([None if one is None else one.origin for one in own], dtype=object)
        columns[f"{tag} model p"] = [math.nan if one is None else _probability(one) for one in own]
    columns["same"] = ["yes" if a and b and a.token == b.token else "no" for a, b in pairs]
    return grid_of(pd.DataFrame(columns), "Output tokens of both runs", attach=f"{file}-both.csv")


# Records -------------------------------------------------------------------------------------------------------


def _records(first: Trace, second: Trace, names: Names, index: int) -> Grid:
    """The records of both round the first that differs."""
    words = (Words(first), Words(second))
    rows = []
    for at in range(max(index - RECORDS_BEFORE, 0), index + RECORDS_AFTER):
        for side, trace in enumerate((first, second)):
            if at < len(trace.records):
                rows.append((at, "AB"[side], *_record(trace.records[at], words[side])))
    columns = ["record", "run", "request", "step", "what", "by", "tokens", "model log p"]
    frame = pd.DataFrame(rows, columns=columns)
    frame["model log p"] = frame["model log p"].astype("Float64")
    told = f"Records of both round the first that differs, number {index}. A: {names[0]}, B: {names[1]}"
    return replace(grid_of(frame, told), grouped=True)


def _record(record: Record, words: Words) -> tuple[Any, ...]:
    pieces = " ".join(label(words.of(token)) for token in record.tokens[:12])
    more = f" … ({len(record.tokens)} in all)" if len(record.tokens) > 12 else ""
    what = record.action or record.kind
    return (
        legible(record.request_id), record.step, legible(what), legible(record.mod or ""), pieces + more,
        record.raw_logprob,
    )  # fmt: skip


# Chains --------------------------------------------------------------------------------------------------------

DECIDED = ("chain", "block", "iteration", "pivot", "old_tokens", "new_tokens", "accepted")


def chain_comparison(first: Chains, second: Chains, names: Names, words: Words, file: str) -> Iterator[Block]:
    """The parts of a comparison of two runs of chains, decision by decision."""
    yield Heading(text=f"Comparison of {names[0]} and {names[1]}")
    told = [{**one.settings.to_json(), **one.settings.to_json()["target"]} for one in (first, second)]
    keys = [key for key in told[0] if key not in ("target", "prompt", "capture")]
    rows = [("prompt tokens", *(str(len(one.settings.prompt)) for one in (first, second)))]
    rows += [(key.replace("_", " "), str(told[0][key]), str(told[1][key])) for key in keys]
    rows += [("acceptance", number(first.acceptance), number(second.acceptance))]
    frame = pd.DataFrame([(*row, "yes" if row[1] == row[2] else "no") for row in rows], dtype=object)
    frame.columns = pd.Index(["what", *map(legible, names), "same"], dtype=object)
    yield grid_of(frame, "What was asked of the two runs, and how much was accepted")
    if first.settings.prompt != second.settings.prompt:
        yield Alert(text="The two prompts differ.")
    pairs = list(zip_longest(first.decisions, second.decisions))
    at = next((index for index, (a, b) in enumerate(pairs) if not _same(a, b)), None)
    if at is None:
        yield Note(text=f"All {len(pairs)} decisions are the same.")
    else:
        yield Note(text=f"The first {at} decisions are the same; number {at} (from 0) differs.")
    begin = max((at or 0) - RECORDS_BEFORE, 0)
    lines = [
        (begin + offset, "AB"[side], *_decided(decision, words))
        for offset, pair in enumerate(pairs[begin:])
        for side, decision in enumerate(pair)
        if decision is not None
    ]
    columns = ["decision", "run", "chain", "block", "proposal", "pivot", "verdict", "log A", "log u", "old", "new"]
    caption = f"Decisions of both from number {begin} on. A: {names[0]}, B: {names[1]}"
    table = pd.DataFrame(lines, columns=columns)
    yield replace(grid_of(table, caption, attach=f"{file}-decisions.csv"), grouped=True)


def _same(first: Decision | None, second: Decision | None) -> bool:
    if first is None or second is None:
        return False
    return all(getattr(first, name) == getattr(second, name) for name in DECIDED)


def _decided(decision: Decision, words: Words) -> tuple[Any, ...]:
    texts = (label(words.text(tokens), 60) for tokens in (decision.old_tokens, decision.new_tokens))
    return (
        decision.chain, decision.block, decision.iteration, decision.pivot, decision.kind, decision.log_a,
        decision.log_u, *texts,
    )  # fmt: skip
