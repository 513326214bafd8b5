"""Everything about one token, ready for the browser."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from torch import Tensor

from workbench.reports import label, legible
from workbench.trace import TokenLife

from ..base import json_safe, marked
from .layers import LayerView, attention_hooks
from .pages import told_branch
from .reading import PROMPT, Reading, probability
from .steps import StepView

__all__ = ["attention_detail", "candidates_detail", "detail", "layers_detail"]

SHOWN_KEYS = 12
"""Positions that an attention pattern names; the profile shows all."""


def detail(
    reading: Reading,
    uid: int,
    *,
    directions: Mapping[str, Tensor] | None = None,
    layer: int | None = None,
    head: int = 0,
    trace_name: str = "trace",
) -> dict[str, Any]:
    """Facts, events, distributions, layers and attention of the token ``uid``; JSON-able but for one buffer."""
    life = reading.life(uid)
    step = StepView(reading, life)
    layers = LayerView(reading, life, directions or {})
    return {
        "item": reading.index[uid],
        "uid": uid,
        "facts": _facts(reading, life),
        "events": step.lines(),
        "candidates": candidates_detail(step),
        "layers": layers_detail(layers),
        "attention": attention_detail(layers, layer, head),
        "code": _code(reading, life, trace_name, layer, head),
    }


def _facts(reading: Reading, life: TokenLife) -> list[list[Any]]:
    """Name and value pairs; numbers as numbers, so that the browser writes all of them one way."""
    facts: list[list[Any]] = [["token", life.token], ["position", life.position]]
    if life.origin == PROMPT:
        return [*facts, ["origin", "prompt"]]
    by = f" by {legible(life.added_by)}" if life.added_by else ""
    facts += [["uid", life.uid], ["origin", life.origin + by], ["step", life.added_step]]
    numbers = (
        ("p", probability(life.logprob)),
        ("model p", probability(life.raw_logprob)),
        ("entropy (nats)", math.nan if life.entropy is None else life.entropy),
    )
    facts += [[name, value] for name, value in numbers if not math.isnan(value)]
    branch = reading.items[reading.index[life.uid]].branch
    facts += [["taken back", told_branch(reading, branch)]] if branch is not None else []
    facts += [["edits", legible(", ".join(life.edits))]] if life.edits else []
    return facts


def candidates_detail(step: StepView) -> dict[str, Any]:
    """Rows of :meth:`StepView.candidates` with labels, and what needs saying about them."""
    life = step.life
    frame = step.candidates() if life.position > 0 else pd.DataFrame()
    rows = [
        {
            "token": int(row.token),
            "label": marked(str(row.text)),
            "model_p": json_safe(float(row.model_probability)),
            "p": json_safe(float(row.probability)),
            "chosen": int(row.token) == life.token,
            "drawn": step.drawn is not None and int(row.token) == step.drawn.tokens[0],
        }
        for row in _rows(frame)
    ]
    return {"rows": rows, "removed_mass": json_safe(step.removed_mass), "note": _candidates_note(step)}


def _rows(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows as objects whose fields may be anything: the stubs' own type fits no field."""
    yield from frame.itertuples()


def _candidates_note(step: StepView) -> str:
    if step.life.position == 0:
        return "The first token was not chosen by the model."
    if step.decision is None:
        if step.life.origin == PROMPT:
            return "A prompt token: what the model itself expected here."
        return "Committed along with others: no token was drawn here, so there is only the model's own distribution."
    if step.drawn is None:
        return "A mod put it here before a token was drawn."
    return ""


def layers_detail(view: LayerView) -> dict[str, Any]:
    """The layer table by column, or why there is none."""
    missing = view.why_not()
    if missing is not None:
        return {"note": missing}
    frame = view.frame()
    places = sum(column.startswith("top_") for column in frame.columns)
    found: dict[str, Any] = {
        "layer": frame["layer"].tolist(),
        "norm": frame["norm"].tolist(),
        "top": [
            [[marked(str(row[f"top_{n}"])), float(row[f"p_{n}"])] for n in range(1, places + 1)]
            for _, row in frame.iterrows()
        ]
        if places
        else [],
        "cosines": {legible(name): frame[f"cosine {name}"].tolist() for name in view.directions},
        "note": "" if places else "Give the model along with the trace to read each layer through the logit lens.",
    }
    if places:
        found |= {"rank": frame["rank"].tolist(), "probability": frame["probability"].tolist()}
    return dict(json_safe(found))


def attention_detail(view: LayerView, layer: int | None, head: int) -> dict[str, Any]:
    """The keys with most weight, and the weight of every position as float32."""
    hooks = attention_hooks(view.reading)
    if not hooks:
        return {"layers": [], "note": "Capture 'blocks.N.attn.hook_pattern' to see what a head looked at."}
    if view.life.source_row is None:
        return {"layers": list(hooks), "note": view.why_not() or "Nothing was computed before this token."}
    layer = next(iter(hooks)) if layer not in hooks else layer
    heads = len(view.reading.trace.activation(hooks[layer], view.life))
    head = min(max(head, 0), heads - 1)
    frame = view.attention(layer, head)
    best = frame.sort_values("weight", ascending=False, kind="stable").head(SHOWN_KEYS)
    return {
        "layers": list(hooks),
        "heads": heads,
        "layer": layer,
        "head": head,
        "keys": [
            [view.reading.index[int(row.uid)], int(row.position), marked(str(row.text)), float(row.weight)]
            for row in _rows(best)
        ],
        "weights": frame["weight"].to_numpy("<f4").tobytes(),
        "note": "",
    }


def _code(reading: Reading, life: TokenLife, name: str, layer: int | None, head: int) -> str:
    """A cell that gives the same numbers without the window; ``name`` is what holds the trace."""
    model = "" if reading.model is None else ", model=model"
    lines = [
        "from widgets import TraceExplorer",
        "",
        f"explorer = TraceExplorer({name}{model}, request_id={reading.request_id!r})",
        f"explorer.candidates({life.uid})  # {label(life.text)} at position {life.position}",
        f"explorer.events({life.uid})",
    ]
    view = LayerView(reading, life)
    if view.why_not() is None:
        lines.append(f"explorer.layers({life.uid})")
    hooks = attention_hooks(reading)
    if hooks and life.source_row is not None:
        lines.append(
            f"explorer.attention({life.uid}, layer={layer if layer in hooks else next(iter(hooks))}, head={head})"
        )
    return "\n".join(lines)
