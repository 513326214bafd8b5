"""What the residual stream says at each layer, for the very pass in which a token was chosen.

The logit lens (nostalgebraist 2020, "interpreting GPT: the logit lens") reads every layer as if it were the
last: ``softmax(unembed(final_norm(residual[layer])))``. Its last row is the model's own distribution.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ..errors import ReportError, TraceError
from ..models import HookedModel
from ..trace import TokenLife, Trace

__all__ = ["checked_model", "find_token", "has_residuals", "logit_lens", "residual_norms"]

RESIDUAL = re.compile(r"blocks\.(\d+)\.hook_resid_post")


def logit_lens(
    model: HookedModel, trace: Trace, token: TokenLife | int, *, request_id: str | None = None, k: int = 5
) -> pd.DataFrame:
    """One row per captured layer of the position that ``token`` was chosen from.

    ``token`` is a :class:`TokenLife` or the number (uid) of a commit in a request; tokens that were taken
    back have their rows too. Columns: ``layer``; ``norm`` (L2, of the residual); ``rank`` (1 is the
    likeliest) and ``probability`` of the token that was really committed; ``top_1``, ``p_1`` … ``top_k``,
    ``p_k``. The distribution is the model's own: at temperature 1, before any mod.

    :raises TraceError: its residuals were not captured.
    :raises ReportError: no such token, or the trace is another model's.
    """
    life = token if isinstance(token, TokenLife) else find_token(trace, token, request_id)
    layers, residuals = _residuals(trace, life)
    checked_model(model, trace, residuals.shape[-1])
    logits = model.unembed(residuals).float().cpu()
    logprobs = torch.log_softmax(logits, dim=-1)
    own = logits[:, life.token]
    best = logprobs.topk(min(k, logprobs.shape[-1]), dim=-1)
    columns: dict[str, Any] = {
        "layer": layers,
        "norm": residuals.norm(dim=-1).tolist(),
        "rank": (1 + (logits > own[:, None]).sum(dim=-1)).tolist(),
        "probability": logprobs[:, life.token].exp().tolist(),
    }
    for place in range(best.indices.shape[-1]):
        columns[f"top_{place + 1}"] = _texts(map(model.tokenizer.token_text, best.indices[:, place].tolist()))
        columns[f"p_{place + 1}"] = best.values[:, place].exp().tolist()
    return pd.DataFrame(columns)


def residual_norms(trace: Trace, request_id: str | None = None) -> pd.DataFrame:
    """L2 norm of the residual stream after each captured layer, where each token was chosen.

    One row per token and layer, also for tokens that were taken back: ``request_id, uid, position, token,
    text, visible, layer, norm``. Tokens whose pass was not captured have no rows.

    :raises TraceError: no ``blocks.N.hook_resid_post`` was captured, or no such request.
    """
    if not has_residuals(trace):
        raise TraceError(
            f"no 'blocks.N.hook_resid_post' in this trace; captured: {', '.join(trace.hooks) or 'nothing'}. "
            "Run with capture='blocks.*.hook_resid_post'."
        )
    by_row = _norms_by_row(trace)
    histories = trace.histories.values() if request_id is None else [trace.history(request_id)]
    lines = [
        (life, layer, norm)
        for history in histories
        for life in history.every
        if life.source_row is not None
        for layer, norm in by_row.get(life.source_row, ())
    ]
    return pd.DataFrame(
        {
            "request_id": _texts(life.request_id for life, _, _ in lines),
            "uid": [life.uid for life, _, _ in lines],
            "position": [life.position for life, _, _ in lines],
            "token": [life.token for life, _, _ in lines],
            "text": _texts(life.text for life, _, _ in lines),
            "visible": [life.visible for life, _, _ in lines],
            "layer": [layer for _, layer, _ in lines],
            "norm": [norm for _, _, norm in lines],
        }
    )


def has_residuals(trace: Trace) -> bool:
    """Whether some layer's residual stream was captured."""
    return any(RESIDUAL.fullmatch(name) for name in trace.hooks)


def find_token(trace: Trace, uid: int, request_id: str | None = None) -> TokenLife:
    """The token that was committed as number ``uid`` of a request.

    :raises ReportError: it has no commit of that number.
    """
    every = trace.history(request_id).every
    if not 0 <= uid < len(every):
        allowed = f"0 to {len(every) - 1}" if every else "none, since nothing was committed"
        raise ReportError(f"no token number {uid} in this request; its tokens (uid) are {allowed}")
    return every[uid]


def checked_model(model: HookedModel, trace: Trace, width: int | None = None) -> None:
    """Refuse to read one model's residuals with another's unembedding.

    :raises ReportError: the trace was recorded with a model of other sizes or another tokenizer.
    """
    told = trace.run.get("model", {})
    found = {"n_layers": model.n_layers, "d_model": model.d_model, "vocab_size": model.vocab_size}
    for name, value in {**found, "tokenizer": model.tokenizer.fingerprint}.items():
        expected = told.get(name, width if name == "d_model" and width else value)
        if expected != value:
            raise ReportError(
                f"the trace was recorded with {told.get('name', 'a model')} ({name} {expected}), but the model "
                f"given is {model.name} ({name} {value}): load the one that made the trace"
            )


def _texts(values: Iterable[str]) -> pd.Series[Any]:
    """A column of text that may hold anything: pandas' own string type refuses lone surrogates."""
    return pd.Series(list(values), dtype=object)


def _layers(names: Iterable[str]) -> list[tuple[int, str]]:
    """Captured residual hooks with their layers, first layer first."""
    found = ((RESIDUAL.fullmatch(name), name) for name in names)
    return sorted((int(match[1]), name) for match, name in found if match)


def _residuals(trace: Trace, life: TokenLife) -> tuple[list[int], Tensor]:
    """The layers captured for a token's request, and their residuals ``[layer, d_model]`` float32."""
    told = trace.run.get("requests", {}).get(life.request_id, {}).get("capture")
    hooks = _layers(trace.hooks if told is None else told)
    if not hooks:
        trace.residuals(life)  # says what was captured and how to capture more
    values = [trace.activation(name, life).float() for _, name in hooks]
    return [layer for layer, _ in hooks], torch.stack(values)


def _norms_by_row(trace: Trace) -> dict[int, list[tuple[int, float]]]:
    """(layer, norm) pairs by activation row; one tensor operation per pass."""
    found: dict[int, list[tuple[int, float]]] = {}
    for record in trace.records:
        hooks = _layers(record.activations or ())
        if record.activations and hooks:
            stacked = torch.stack([record.activations[name].float() for _, name in hooks])
            columns = stacked.norm(dim=-1).T.tolist()
            first = int(record.data["row"])
            for offset, norms in enumerate(columns):
                pairs = zip(hooks, norms, strict=True)
                found[first + offset] = [(layer, norm) for (layer, _), norm in pairs]
    return found
