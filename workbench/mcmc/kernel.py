"""The two Triton kernels: one read of each row of logits, and the decision of each chain.

The same source runs on a CUDA device and, with ``TRITON_INTERPRET=1`` set before triton is first imported, as plain
Python on the CPU. Importing this module imports triton, which is optional (``pip install interp-workbench[gpu]``).
What each step computes is said in :mod:`workbench.mcmc.reference`, whose trace has the same layout.
"""

from __future__ import annotations

import numpy as np
import torch
import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-untyped,import-not-found,unused-ignore]
from torch import Tensor

from .reference import Batch, Decided, RowStats, decided, refuse_impossible

__all__ = ["decide", "row_stats"]

LARGEST_TILE = 4096
"""Numbers a program holds at once on a GPU: 16 a thread at eight warps."""
ROWS_AT_ONCE = 128
"""Rows of a suffix that `decide` sums at once."""


@triton.jit  # type: ignore[untyped-decorator]
def _power(value, exponent, INV_TAU: tl.constexpr):  # type: ignore[no-untyped-def]
    """``exp(exponent * INV_TAU)`` from ``value = exp(exponent)``, with no second exp where it is 1, 2 or 4."""
    if INV_TAU == 1.0:
        result = value
    elif INV_TAU == 2.0:
        result = value * value
    elif INV_TAU == 4.0:
        squared = value * value
        result = squared * squared
    else:
        result = tl.exp(exponent * INV_TAU)
    return result


@triton.jit  # type: ignore[untyped-decorator]
def _row_stats(  # type: ignore[no-untyped-def]
    logits, row_stride, tokens, stats, trace, vocab, tiles,
    INV_TAU: tl.constexpr, TILE: tl.constexpr, TRACE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)  # rows * stride passes 2**31 soon
    start = logits + row * row_stride
    top = float("-inf")
    sum_1 = 0.0
    sum_tau = 0.0
    for tile in range(tiles):
        columns = tile * TILE + tl.arange(0, TILE)
        part = tl.load(start + columns, mask=columns < vocab, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(part, axis=0))
        # While all was -inf there is nothing to rescale, and -inf less -inf would be NaN.
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        scale = tl.exp(top - safe)
        each = tl.exp(part - safe)
        sum_1 = sum_1 * scale + tl.sum(each, axis=0)
        sum_tau = sum_tau * _power(scale, top - safe, INV_TAU) + tl.sum(_power(each, part - safe, INV_TAU), axis=0)
        top = higher
        if TRACE:
            place = trace + (row * tiles + tile) * 3
            tl.store(place, top)
            tl.store(place + 1, sum_1)
            tl.store(place + 2, sum_tau)
    chosen = tl.load(start + tl.load(tokens + row)).to(tl.float32)
    tl.store(stats + row * 4, top)
    tl.store(stats + row * 4 + 1, top + tl.log(sum_1))
    tl.store(stats + row * 4 + 2, top * INV_TAU + tl.log(sum_tau))
    tl.store(stats + row * 4 + 3, chosen)


@triton.jit  # type: ignore[untyped-decorator]
def _suffix_sums(  # type: ignore[no-untyped-def]
    stats, offsets, terms, chain, ALPHA: tl.constexpr, INV_TAU: tl.constexpr, ROWS: tl.constexpr
):
    """Sums of alpha log p and log q over one chain's rows, always in the same order, each row's terms stored."""
    first = tl.load(offsets + chain)
    last = tl.load(offsets + chain + 1)
    sum_p = tl.zeros((1,), tl.float64)
    sum_q = tl.zeros((1,), tl.float64)
    for begin in range(first, last, ROWS):
        rows = begin + tl.arange(0, ROWS)
        mine = rows < last
        lse_1 = tl.load(stats + rows * 4 + 1, mask=mine, other=0.0).to(tl.float64)
        lse_tau = tl.load(stats + rows * 4 + 2, mask=mine, other=0.0).to(tl.float64)
        chosen = tl.load(stats + rows * 4 + 3, mask=mine, other=0.0).to(tl.float64)
        term_p = (chosen - lse_1) * ALPHA
        term_q = chosen * INV_TAU - lse_tau
        tl.store(terms + rows * 2, term_p, mask=mine)
        tl.store(terms + rows * 2 + 1, term_q, mask=mine)
        sum_p += tl.sum(tl.where(mine, term_p, 0.0), axis=0)
        sum_q += tl.sum(tl.where(mine, term_q, 0.0), axis=0)
    return sum_p, sum_q


@triton.jit  # type: ignore[untyped-decorator]
def _decide(  # type: ignore[no-untyped-def]
    old_stats, old_offsets, old_terms, new_stats, new_offsets, new_terms, lengths, words, sums, uniforms, random,
    ALPHA: tl.constexpr, INV_TAU: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    chain = tl.program_id(0).to(tl.int64)
    one = tl.arange(0, 1)
    old_p, old_q = _suffix_sums(old_stats, old_offsets, old_terms, chain, ALPHA, INV_TAU, ROWS)
    new_p, new_q = _suffix_sums(new_stats, new_offsets, new_terms, chain, ALPHA, INV_TAU, ROWS)
    pivot = tl.log(tl.load(lengths + chain * 2 + one) / tl.load(lengths + chain * 2 + 1 + one))
    place = sums + chain * 5 + one
    tl.store(place, new_p)
    tl.store(place + 1, old_p)
    tl.store(place + 2, new_q)
    tl.store(place + 3, old_q)
    tl.store(place + 4, pivot)
    word = words + chain * 6 + one
    r0, r1, r2, r3 = tl.philox_impl(
        tl.load(word).to(tl.uint32, bitcast=True), tl.load(word + 1).to(tl.uint32, bitcast=True),
        tl.load(word + 2).to(tl.uint32, bitcast=True), tl.load(word + 3).to(tl.uint32, bitcast=True),
        tl.load(word + 4).to(tl.uint32, bitcast=True), tl.load(word + 5).to(tl.uint32, bitcast=True),
    )  # fmt: skip
    drawn = random + chain * 4 + one
    tl.store(drawn, r0.to(tl.int32, bitcast=True))
    tl.store(drawn + 1, r1.to(tl.int32, bitcast=True))
    tl.store(drawn + 2, r2.to(tl.int32, bitcast=True))
    tl.store(drawn + 3, r3.to(tl.int32, bitcast=True))
    high = (r0 >> 5).to(tl.float64)
    low = (r1 >> 6).to(tl.float64)
    tl.store(uniforms + chain + one, (high * 67108864.0 + low) / 9007199254740992.0)


def row_stats(
    logits: Tensor, tokens: Tensor, tau: float, *, tile: int | None = None, trace: bool = False, check: bool = True
) -> RowStats:
    """``[rows, vocab]`` logits (float32, bfloat16 or float16, any row stride) and ``[rows]`` ids to float32 stats.

    ``check=False`` leaves out the look at the chosen logits, which makes the host wait for the device.

    :raises ChainError: the chosen token's logit is ``-inf``.
    """
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    tile = min(triton.next_power_of_2(vocab), LARGEST_TILE) if tile is None else tile
    tiles = triton.cdiv(vocab, tile)
    tokens = tokens.to(device=logits.device, dtype=torch.int64).contiguous()
    stats = torch.empty((rows, 4), dtype=torch.float32, device=logits.device)
    kept = torch.empty((rows, tiles, 3) if trace else (1, 1, 3), dtype=torch.float32, device=logits.device)
    _row_stats[(rows,)](
        logits, logits.stride(0), tokens, stats, kept, vocab, tiles,
        INV_TAU=1.0 / tau, TILE=tile, TRACE=trace, num_warps=8 if tile >= 2048 else 4,
    )  # fmt: skip
    if check:
        refuse_impossible(stats[:, 3], tokens)
    return RowStats(stats=stats, trace=kept if trace else None)


def decide(batch: Batch, alpha: float, tau: float) -> Decided:
    """The decisions of a batch: sums in float64 in a fixed order, the accept draw by Philox, one program a chain."""
    chains, device = len(batch.lengths), batch.lengths.device
    old_terms, new_terms = (
        torch.empty((len(stats), 2), dtype=torch.float64, device=device) for stats in (batch.old_stats, batch.new_stats)
    )
    sums = torch.empty((chains, 5), dtype=torch.float64, device=device)
    uniforms = torch.empty(chains, dtype=torch.float64, device=device)
    random = torch.empty((chains, 4), dtype=torch.int32, device=device)
    words = torch.from_numpy(np.ascontiguousarray(batch.words).view(np.int32)).to(device)
    _decide[(chains,)](
        batch.old_stats.contiguous(), batch.old_offsets, old_terms,
        batch.new_stats.contiguous(), batch.new_offsets, new_terms,
        batch.lengths.contiguous(), words, sums, uniforms, random,
        ALPHA=float(alpha), INV_TAU=1.0 / tau, ROWS=ROWS_AT_ONCE,
    )  # fmt: skip
    return decided(old_terms, new_terms, sums, uniforms, random.cpu().numpy().view(np.uint32))
