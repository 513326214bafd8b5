"""Asking the model about continuations without committing to any."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InvalidActionError, ModelError
from ..models import Cache, Edit, HookedModel
from .events import Scored
from .request import Request

__all__ = ["score"]

MOST_LOGITS = 1 << 25
"""Logits held at once; more continuations are scored a part at a time."""


def score(
    model: HookedModel, cache: Cache, request: Request, here: Tensor | None, tails: Sequence[Sequence[int]]
) -> list[Scored]:
    """Log-probabilities of each tail, from rows that share the request's cache.

    ``here`` are the logits ``[vocab]`` of the next token, from the pass just made.
    """
    if here is None or request.valid != len(request.tokens):
        raise InvalidActionError("score() is possible on ForwardPass and Sampled only, when the cache holds everything")
    if not tails or not all(len(tail) for tail in tails):
        raise InvalidActionError("score() needs continuations of at least one token each")
    if not model.cache_works:
        raise ModelError("score() needs the KV cache, which is switched off for this model (see the warning at load)")
    longest = max(map(len, tails))
    part = max(MOST_LOGITS // (longest * model.vocab_size), 1)
    here = torch.log_softmax(here, dim=-1)
    found: list[Scored] = []
    for begin in range(0, len(tails), part):
        found += _score_part(model, cache, request, here, tails[begin : begin + part])
    request.fed += sum(map(len, tails))
    return found


def _score_part(
    model: HookedModel, cache: Cache, request: Request, here: Tensor, tails: Sequence[Sequence[int]]
) -> list[Scored]:
    longest = max(map(len, tails))
    # Padded behind their end to one length, which what comes before can't see: one pass for all.
    padded = [[*tail, *[tail[-1]] * (longest - len(tail))] for tail in tails]
    edits = [
        Edit(hook=edit.hook, row=row, start=0, stop=longest, fn=edit.fn)
        for row in range(len(tails))
        for edit in request.active
    ]
    fork = cache.fork(request.row, len(tails))
    logits = model.forward(padded, fork, edits=edits, keep=[longest] * len(tails)).logits
    scored = []
    for tail, rows in zip(tails, logits, strict=True):
        after = torch.log_softmax(rows[: len(tail)], dim=-1)
        before = torch.cat([here[None], after[:-1]])
        own = before[torch.arange(len(tail)), torch.tensor(list(tail), device=before.device)]
        scored.append(Scored(logprobs=own, after=after[-1]))
    return scored
