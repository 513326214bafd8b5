"""Decisions on their way to the browser: numbers as buffers, texts once each, everything bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from workbench.mcmc import Decision, Scalars, Swap, WhatIf, token_terms
from workbench.reports import legible, number

from ..base import joined_glyphs, json_safe, marked
from ..reading import GONE, SPECIAL
from . import frames
from .tracks import TokenTexts, Track

__all__ = [
    "COLUMNS",
    "PAGE",
    "STRIP_COLUMNS",
    "STRIP_ORIGINS",
    "decision_told",
    "page_told",
    "records_told",
    "supposed_told",
    "tokens_told",
    "track_told",
]

PAGE = 2000
"""Decisions of one message: 176 kB."""
COLUMNS = ("chain", "block", "iteration", "kind", "pivot", "old", "new", "log_a", "log_u", "flagged", "log_p")
KINDS = ("accepted", "rejected", "null")
TOKENS_PAGE = 100
"""Rows of the table of suffixes at once."""
STRIP_PART = 2048
"""Tokens of each part of the strip at most."""
STRIP_COLUMNS = ("uid", "position", "label", "origin", "by", "flags", "step", "removed_step", "p", "model_p", "entropy")
STRIP_ORIGINS = ("prompt", "sampled", "old", "new")
LONGEST_TEXT = 600
MOST_TEXTS = 16


def page_told(track: Track, start: int) -> tuple[dict[str, Any], bytes]:
    """Decisions from ``start`` on, column by column as float64."""
    decisions = track.decisions[start : start + PAGE]
    rows = [
        (
            d.chain, d.block, d.iteration, KINDS.index(d.kind), d.pivot, len(d.old_tokens), len(d.new_tokens), d.log_a,
            d.log_u, d.flagged, d.log_p,
        )
        for d in decisions
    ]  # fmt: skip
    numbers = np.asarray(rows, dtype="<f8").reshape(len(decisions), len(COLUMNS))
    about = {"track": track.number, "start": start, "count": len(decisions)}
    return about, np.ascontiguousarray(numbers.T).tobytes()


def track_told(track: Track) -> dict[str, Any]:
    """A track in a few words and numbers."""
    settings, decisions = track.chains.settings, track.decisions
    told: dict[str, Any] = json_safe(
        {
            "number": track.number, "told": track.told, "shown": len(decisions), "total": track.total,
            "live": track.sampler is not None, "finished": track.chains.finished and track.shown == track.total,
            "chains": settings.chains, "alpha": settings.target.alpha, "tau": settings.target.temperature,
            "block_size": settings.target.block_size, "n_mcmc": settings.target.n_mcmc,
            "ladder": list(settings.ladder or ()), "seed": str(settings.seed), "parent": track.parent, "at": track.at,
            "warnings": list(track.warnings), "accepted": sum(d.accepted for d in decisions),
            "forwarded": track.chains.forwarded,
            "texts": [
                {"chain": text.chain, "text": _cut(legible(text.text)), "length": len(text.tokens), "log_p": text.log_p}
                for text in track.chains.texts[:MOST_TEXTS]
            ],
        }
    )  # fmt: skip
    return told


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… (+{len(text) - LONGEST_TEXT:,} characters)"


def decision_told(track: Track, index: int, texts: TokenTexts) -> tuple[dict[str, Any], list[bytes]]:
    """Everything about one decision but what needs the model."""
    place = track.place(index)
    decision = track.decision(place)
    tokens = frames.tokens_frame(track, place, texts)
    strip, numbers = _strip(track, place, decision, texts)
    told = {
        "track": track.number, "index": place, "verdict": frames.verdict_of(track, place),
        "terms": records_told(frames.terms_frame(track, place)), "strip": strip,
        "largest": float(tokens["share"].abs().max()), "alpha": decision.alpha, "tau": decision.tau,
        "rows": {side: len(ids) for side, ids in (("old", decision.old_tokens), ("new", decision.new_tokens))},
        "tokens": tokens_told(decision, tokens, 0), "pivot": decision.pivot,
        "cache": None if decision.cache is None else records_told(frames.cache_frame(track, place)),
        "said": _said(track, decision, int(strip["omitted"])),
        "difference": decision.first_difference,
    }  # fmt: skip
    safe: dict[str, Any] = json_safe(told)
    return safe, [numbers]


def _said(track: Track, decision: Decision, omitted: int) -> dict[str, str]:
    """The sentences below three of the views."""
    differ = decision.first_difference
    first = "The two are the same." if differ is None else f"They differ first at position {differ}."
    suffixes = [first, f"log p is the model's own (temperature 1), log q the proposal's (tau {number(decision.tau)})."]
    if abs(decision.alpha * decision.tau - 1) < 1e-12:
        suffixes.append(
            "At tau = 1 / alpha a bar is log Z of its prefix, -(alpha - 1) times a Rényi entropy: the suffix wins "
            "whose prefixes made the model more certain."
        )
    strip = [
        f"Pivot {decision.pivot} (outlined): what follows was proposed anew; the suffix that lost is struck through. "
        "Bars and shades: the model's own probability.",
        f"After it: {decision.length} tokens, log p {number(decision.log_p)}.",
    ]
    if omitted:
        strip.append(f"{omitted:,} tokens further away are left out.")
    strip += [_told_swap(swap) for swap in track.chains.swaps if _follows(swap, decision)]
    return {"suffixes": " ".join(suffixes), "strip": " ".join(strip), "cache": _told_cache(decision)}


def _told_cache(decision: Decision) -> str:
    move = decision.cache
    if move is None:
        return ""
    if not decision.accepted:
        return f"Rejected: {move.restored} positions were put back bit for bit; nothing was computed for them again."
    stand = move.fed - move.dropped
    return f"Accepted: the old suffix's {move.taken} positions are gone, {stand} of the {move.fed} computed stand."


def _follows(swap: Swap, decision: Decision) -> bool:
    here = (swap.block, swap.iteration) == (decision.block, decision.iteration)
    return here and decision.chain in (swap.first, swap.second)


def _told_swap(swap: Swap) -> str:
    verdict = "exchanged their texts" if swap.accepted else "kept their texts"
    return f"Then chains {swap.first} and {swap.second} {verdict} (log A {number(swap.log_a)}, u {number(swap.u)})."


def tokens_told(decision: Decision, tokens: pd.DataFrame, start: int) -> dict[str, Any]:
    """A page of both suffixes, out of their ``tokens_frame``.

    Per side ``[label, log p, log q, share, sum, x_tok, lse_1, lse_tau]`` a row.
    """
    frame = frames.with_scalars(decision, tokens)
    page: dict[str, Any] = {"start": start, "size": TOKENS_PAGE}
    for side in ("old", "new"):
        part = frame[frame.side == side].iloc[start : start + TOKENS_PAGE]
        numbers = part[["log_p", "log_q", "share", "sum", "x_tok", "lse_1", "lse_tau"]].to_numpy().tolist()
        page[side] = [[marked(text), *row] for text, row in zip(part.text, numbers, strict=True)]
    safe: dict[str, Any] = json_safe(page)
    return safe


def _strip(track: Track, index: int, decision: Decision, texts: TokenTexts) -> tuple[dict[str, Any], bytes]:
    """Prompt, text before the pivot, the suffix that lost, the one that stands: as pages of the token strip."""
    before = track.before(index)
    prompt = track.chains.settings.prompt
    old = (2, decision.old_tokens, _log_p(decision.old_scalars))
    new = (3, decision.new_tokens, _log_p(decision.new_scalars))
    lost, stands = (old, new) if decision.accepted else (new, old)
    parts = [
        (0, prompt, np.full(len(prompt), np.nan), -len(prompt), 0, -STRIP_PART),
        (1, before.tokens[: decision.pivot], _log_p(before.scalars[: decision.pivot]), 0, 0, -STRIP_PART),
    ]
    if decision.kind != "null":
        parts.append((*lost, decision.pivot, GONE, STRIP_PART))
    parts.append((*stands, decision.pivot, 0, STRIP_PART))
    labels: dict[str, int] = {}
    rows: list[tuple[float, ...]] = []
    glyphs: dict[str, str] = {}
    branches, omitted, standing = [], 0, 0
    for origin, ids, logs, first, flag, limit in parts:
        kept = range(len(ids))[limit:] if limit < 0 else range(len(ids))[:limit]
        omitted += len(ids) - len(kept)
        begin = len(rows)
        if flag:
            branches.append({"start": begin, "count": len(kept), "told": _told_lost(decision)})
        standing = begin
        glyphs |= {str(begin + at): glyph for at, glyph in joined_glyphs([texts.of(ids[i]) for i in kept]).items()}
        for i in kept:
            special = SPECIAL if texts.tokenizer is not None and texts.tokenizer.is_special(ids[i]) else 0
            label = labels.setdefault(marked(texts.of(ids[i])), len(labels))
            p = float(np.exp(logs[i]))
            rows.append((len(rows), first + i, label, origin, -1, flag | special, 0, -1, p, p, np.nan))
    numbers = np.asarray(rows, dtype="<f4").reshape(len(rows), len(STRIP_COLUMNS))
    told = {
        "start": 0, "count": len(rows), "total": len(rows), "labels": list(labels), "names": [], "tags": [],
        "tagged": {}, "glyphs": glyphs, "branches": branches, "omitted": omitted, "standing": standing,
    }  # fmt: skip
    return told, np.ascontiguousarray(numbers.T).tobytes()


def _log_p(scalars: Scalars) -> np.ndarray:
    return token_terms(scalars, 1.0, 1.0)[:, 0]


def _told_lost(decision: Decision) -> str:
    return "old suffix, replaced" if decision.accepted else "new suffix, rejected"


def supposed_told(found: WhatIf) -> dict[str, Any]:
    """What if, in numbers and sentences."""
    told: dict[str, Any] = json_safe(
        {
            "alpha": found.alpha, "redraw": found.redraw, "verdict": found.verdict, "log_a": found.log_a,
            "u": found.u, "log_u": found.log_a - found.margin, "margin": found.margin, "accepted": found.accepted,
            "warnings": list(found.warnings), "changed": found.changed, "was": found.decision.accepted,
            "tau": found.decision.tau,
        }
    )  # fmt: skip
    return told


def records_told(frame: pd.DataFrame) -> dict[str, Any]:
    """A small table."""
    rows = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
    safe: dict[str, Any] = json_safe({"columns": list(frame.columns), "rows": rows})
    return safe
