"""The kernel's arithmetic in plain torch, step by step: its twin in float32, the truth in float64, the same trace.

`row_stats` reads a row of logits once, tile by tile, and keeps a running maximum and two sums that are rescaled when
the maximum grows (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"). `decide` sums what they
give over the suffixes of each chain, draws the accept number, and decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..errors import ChainError
from .chain import Decision
from .philox import Purpose, Words, counter_of, key_of, philox, uniform_of
from .scoring import SQUARINGS
from .target import MARGIN

__all__ = ["Batch", "Decided", "RowStats", "batch_of", "decide", "rescales", "row_stats"]

DEFAULT_TILE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStats:
    """What one read of each row gives."""

    stats: Tensor
    """``[rows, 4]``: max, lse_1, lse_tau, x_tok."""
    trace: Tensor | None = field(repr=False)
    """``[rows, tiles, 3]``: running max, sum of ``exp(x - max)`` and of its power ``1 / tau``, after each tile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One proposal of each of several chains. Rows of chain ``c`` are ``offsets[c]`` to ``offsets[c + 1]``."""

    old_stats: Tensor = field(repr=False)
    """``[old rows, 4]`` as in :class:`RowStats`."""
    new_stats: Tensor = field(repr=False)
    old_offsets: Tensor
    """``[chains + 1]`` int64."""
    new_offsets: Tensor
    lengths: Tensor
    """``[chains, 2]`` float64: old and new length of the whole generated text, in tokens."""
    words: Words = field(repr=False)
    """``[chains, 6]`` uint32: counter (4) and key (2) of the accept draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What :func:`decide` gives; all float64 but for the booleans."""

    old_terms: Tensor = field(repr=False)
    """``[old rows, 2]``: alpha log p and log q of each token."""
    new_terms: Tensor = field(repr=False)
    sums: Tensor
    """``[chains, 5]``: alpha log p new and old, log q new and old, and the pivot's term."""
    log_a: Tensor
    u: Tensor
    log_u: Tensor
    margin: Tensor
    """``log A - log u``."""
    accepted: Tensor
    flagged: Tensor
    """NaN, or a margin below 1e-4: another precision might have decided otherwise."""
    random: Words = field(repr=False)
    """``[chains, 4]`` uint32, what Philox gave."""


def row_stats(
    logits: Tensor,
    tokens: Tensor,
    tau: float,
    *,
    tile: int = DEFAULT_TILE,
    trace: bool = False,
    dtype: torch.dtype = torch.float32,
) -> RowStats:
    """``[rows, vocab]`` logits (any stride, any float type) and ``[rows]`` token ids to their stats.

    ``dtype`` is that of the arithmetic: float64 gives the truth that the others are held against.

    :raises ChainError: the chosen token's logit is ``-inf``.
    """
    rows, vocab = logits.shape
    top = torch.full((rows,), -math.inf, dtype=dtype, device=logits.device)
    sums = torch.zeros((2, rows), dtype=dtype, device=logits.device)
    kept: list[Tensor] = []
    for first in range(0, vocab, tile):
        part = logits[:, first : first + tile].to(dtype)
        higher = torch.maximum(top, part.amax(-1))
        # While all was -inf there is nothing to rescale, and -inf less -inf would be NaN.
        safe = torch.where(higher == -math.inf, torch.zeros_like(higher), higher)
        fall, depth = top - safe, part - safe[:, None]
        scale, each = torch.exp(fall), torch.exp(depth)
        sums[0] = sums[0] * scale + each.sum(-1)
        sums[1] = sums[1] * _power(scale, fall, tau) + _power(each, depth, tau).sum(-1)
        top = higher
        if trace:
            kept.append(torch.stack([top, sums[0], sums[1]], dim=-1))
    chosen = logits.gather(1, tokens.long()[:, None])[:, 0].to(dtype)
    refuse_impossible(chosen, tokens)
    stats = torch.stack([top, top + sums[0].log(), top / tau + sums[1].log(), chosen], dim=-1)
    return RowStats(stats=stats, trace=torch.stack(kept, dim=1) if trace else None)


def _power(value: Tensor, exponent: Tensor, tau: float) -> Tensor:
    """``exp(exponent / tau)`` from ``value = exp(exponent)``, by squaring where ``1 / tau`` is 1, 2 or 4."""
    for _ in range(SQUARINGS.get(1.0 / tau, 0)):
        value = value * value
    return value if 1.0 / tau in SQUARINGS else torch.exp(exponent / tau)


def refuse_impossible(chosen: Tensor, tokens: Tensor) -> None:
    """:raises ChainError: a chosen logit is ``-inf``."""
    impossible = torch.isneginf(chosen)
    if bool(impossible.any()):
        row = int(impossible.float().argmax())
        raise ChainError(f"row {row}: the logit of token {int(tokens[row])} is -inf: it can't stand in a text here")


def decide(batch: Batch, alpha: float, tau: float) -> Decided:
    """The decisions of a batch in float64, each chain's rows summed in order."""
    old_terms, new_terms = (_terms(stats.double(), alpha, tau) for stats in (batch.old_stats, batch.new_stats))
    old, new = (_summed(old_terms, batch.old_offsets), _summed(new_terms, batch.new_offsets))
    pivot = torch.log(batch.lengths[:, 0] / batch.lengths[:, 1])
    sums = torch.stack([new[:, 0], old[:, 0], new[:, 1], old[:, 1], pivot], dim=-1)
    random = philox(batch.words[:, :4], batch.words[:, 4:])
    u = torch.from_numpy(np.ascontiguousarray(uniform_of(random))).to(sums.device)
    return decided(old_terms, new_terms, sums, u, random)


def decided(old_terms: Tensor, new_terms: Tensor, sums: Tensor, u: Tensor, random: Words) -> Decided:
    """The verdicts that follow from the sums and the uniform numbers."""
    log_a = (sums[:, 0] - sums[:, 1]) + (sums[:, 3] - sums[:, 2]) + sums[:, 4]
    log_u = u.log()
    margin = log_a - log_u
    return Decided(
        old_terms=old_terms, new_terms=new_terms, sums=sums, log_a=log_a, u=u, log_u=log_u, margin=margin,
        accepted=log_u < log_a, flagged=~(margin.abs() >= MARGIN), random=random,
    )  # fmt: skip


def _terms(stats: Tensor, alpha: float, tau: float) -> Tensor:
    return torch.stack([alpha * (stats[:, 3] - stats[:, 1]), stats[:, 3] / tau - stats[:, 2]], dim=-1)


def _summed(terms: Tensor, offsets: Tensor) -> Tensor:
    bounds = offsets.tolist()
    return torch.stack([terms[first:last].sum(0) for first, last in pairwise(bounds)])


def rescales(trace: Tensor, tau: float) -> Tensor:
    """``[rows, tiles, 2]``: by what each tile of a trace ``[rows, tiles, 3]`` multiplied the two sums before it added.

    1 while the maximum stands; 0 at the first tile, where there is nothing to carry on.
    """
    tops = trace[..., 0]
    before = torch.cat([torch.full_like(tops[:, :1], -math.inf), tops[:, :-1]], dim=1)
    fall = before - torch.where(tops == -math.inf, torch.zeros_like(tops), tops)
    scale = torch.exp(fall)
    return torch.stack([scale, _power(scale, fall, tau)], dim=-1)


def batch_of(
    decisions: Sequence[Decision], seed: int, *, redraw: int = 0, device: str | torch.device = "cpu"
) -> Batch:  # fmt: skip
    """The batch of some decisions that were made (each with one try), to make them again.

    ``redraw`` is the index of the accept draw: 0 is the run's own, the others are numbers that no run uses.

    The running maximum of a row is not kept by a chain; its place holds NaN, which nothing reads.
    """

    def stats(each: Sequence[np.ndarray]) -> Tensor:
        scalars = np.concatenate(each)
        return torch.from_numpy(np.column_stack([np.full(len(scalars), np.nan), scalars[:, [1, 2, 0]]])).to(device)

    def offsets(each: Sequence[np.ndarray]) -> Tensor:
        return torch.tensor([0, *np.cumsum([len(scalars) for scalars in each])], device=device)

    old, new = [d.old_scalars for d in decisions], [d.new_scalars for d in decisions]
    lengths = [(d.pivot + len(d.old_tokens), d.pivot + len(d.new_tokens)) for d in decisions]
    counter = counter_of(
        chain=[d.chain for d in decisions], block=[d.block for d in decisions],
        iteration=[d.iteration for d in decisions], purpose=Purpose.ACCEPT, index=redraw,
    )  # fmt: skip
    key = np.broadcast_to(key_of(seed), (len(decisions), 2))
    return Batch(
        old_stats=stats(old), new_stats=stats(new), old_offsets=offsets(old), new_offsets=offsets(new),
        lengths=torch.tensor(lengths, dtype=torch.float64, device=device), words=np.concatenate([counter, key], axis=1),
    )  # fmt: skip
