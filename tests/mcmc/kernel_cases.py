"""Cases of the Triton kernels, run by ``test_kernel.py`` under the interpreter and by ``make gpu-check`` on a card.

Triton reads ``TRITON_INTERPRET`` when it is first imported, so this file is run by a process of its own:
``python tests/mcmc/kernel_cases.py [cpu|cuda]`` prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
import torch

TAUS = (0.25, 0.5, 1.0, 1 / 3)
SIZES = (1, 2, 3, 127, 128, 129, 4096, 50_257)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def rows(vocab: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Six rows in a wider store, so that their stride is odd: plain, ±1e4, one-hot, half -inf, equal, tiny."""
    width = vocab + 3 + vocab % 2
    store = torch.randn(6, width, generator=torch.Generator().manual_seed(vocab)) * 4
    logits = store[:, :vocab]
    logits[1] = torch.where(logits[1] > 0, 1e4, -1e4)
    logits[2] = -torch.inf
    logits[2, vocab // 2] = 1.5
    if vocab > 1:
        logits[3, : vocab // 2] = -torch.inf  # whole tiles of -inf come first
    logits[4] = 7.25
    logits[5] *= 1e-3
    return store.to(device=device, dtype=dtype)[:, :vocab]


def check_rows(device: str) -> dict[str, float]:
    """Largest differences, relative to their size: the kernel's stats from float64, its trace from the twin's."""
    from workbench.mcmc import kernel, reference

    worst = {"stats": 0.0, "trace": 0.0}
    for vocab in SIZES:
        for tau in TAUS if vocab < 50_257 else TAUS[:1]:
            for dtype in DTYPES if vocab in (129, 4096) else DTYPES[:1]:
                logits = rows(vocab, dtype, device)
                assert vocab == 1 or logits.stride(0) % 2 == 1
                tokens = torch.tensor([vocab - 1, 0, vocab // 2, vocab - 1, 0, vocab // 3], device=device)
                tile = None if vocab > 4096 else max(1, (1 << vocab.bit_length()) // 8)  # four to eight tiles
                found = kernel.row_stats(logits, tokens, tau, tile=tile, trace=True)
                used = tile or 4096
                twin = reference.row_stats(logits, tokens, tau, tile=used, trace=True)
                exact = reference.row_stats(logits, tokens, tau, dtype=torch.float64).stats
                assert torch.isfinite(found.stats).all()
                size = exact.abs().clamp(min=1)
                worst["stats"] = max(worst["stats"], float(((found.stats - exact).abs() / size).max()))
                assert found.trace is not None
                assert twin.trace is not None
                assert found.trace.shape == twin.trace.shape == (6, -(-vocab // used), 3)
                assert not torch.isnan(found.trace).any()
                assert torch.equal(found.trace[..., 0], twin.trace[..., 0])  # maxima are exact
                gap = (found.trace - twin.trace)[..., 1:].abs() / twin.trace[..., 1:].abs().clamp(min=1)
                worst["trace"] = max(worst["trace"], float(gap.max()))
    return worst


def suffixes(chains: int, vocab: int, device: str) -> tuple[Any, ...]:
    """Random rows of old and new suffixes of several chains, one of them longer than the kernel sums at once."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, 40, (chains, 2))
    lengths[0] = (150, 3)
    offsets = [torch.tensor([0, *np.cumsum(lengths[:, side])], device=device) for side in (0, 1)]
    logits = [torch.randn(int(o[-1]), vocab, device=device) * 3 for o in offsets]
    tokens = [torch.from_numpy(random.integers(0, vocab, int(o[-1]))).to(device) for o in offsets]
    return lengths, offsets, logits, tokens


def check_decisions(device: str) -> dict[str, Any]:
    """The kernels' decisions from logits against float64 all the way; those outside the margin must agree."""
    from workbench.mcmc import kernel, reference
    from workbench.mcmc.philox import Purpose, counter_of, key_of

    chains, vocab, alpha = 60, 40, 1.3
    lengths, offsets, logits, tokens = suffixes(chains, vocab, device)
    counter = counter_of(chain=np.arange(chains), block=2, iteration=9, purpose=Purpose.ACCEPT)
    words = np.concatenate([counter, np.broadcast_to(key_of((7 << 40) + 1), (chains, 2))], axis=1)

    def batch(stats: list[torch.Tensor]) -> reference.Batch:
        return reference.Batch(
            old_stats=stats[0], new_stats=stats[1], old_offsets=offsets[0], new_offsets=offsets[1],
            lengths=torch.from_numpy(lengths + 5.0).to(device), words=words,
        )  # fmt: skip

    pairs = list(zip(logits, tokens, strict=True))
    ours = batch([kernel.row_stats(rows, ids, 1 / alpha).stats for rows, ids in pairs])
    truth = batch([reference.row_stats(rows, ids, 1 / alpha, dtype=torch.float64).stats for rows, ids in pairs])
    found, exact = kernel.decide(ours, alpha, 1 / alpha), reference.decide(truth, alpha, 1 / alpha)
    same_stats = reference.decide(ours, alpha, 1 / alpha)
    clear = ~exact.flagged
    return {
        "random": bool(np.array_equal(found.random, exact.random)),
        "uniforms": bool(torch.equal(found.u, exact.u)),
        "sums": float((found.sums - same_stats.sums).abs().max()),
        "terms": float((found.old_terms - same_stats.old_terms).abs().max()),
        "log_a": float((found.log_a - exact.log_a).abs().max()),
        "wrong": int((found.accepted != exact.accepted)[clear].sum()),
        "clear": int(clear.sum()),
        "accepted": int(exact.accepted.sum()),
        "again": bool(torch.equal(kernel.decide(ours, alpha, 1 / alpha).sums, found.sums)),
    }


def check_sampler(device: str) -> dict[str, Any]:
    """Draws whose scalars come from the kernel against those of the twin; and the refusal of a -inf."""
    from workbench.errors import ChainError
    from workbench.mcmc import kernel
    from workbench.mcmc.scoring import Scorer

    logits, uniforms = torch.randn(5, 300, device=device) * 4, np.linspace(0.05, 0.95, 5)
    tokens, scalars = Scorer(0.25, kernel=True).draw(logits, uniforms)
    twin_tokens, twin_scalars = Scorer(0.25, kernel=False).draw(logits, uniforms)
    logits[1, 3] = -torch.inf
    try:
        kernel.row_stats(logits, torch.tensor([0, 3, 0, 0, 0], device=device), 0.25)
        refused = ""
    except ChainError as error:
        refused = str(error)
    return {"tokens": tokens == twin_tokens, "scalars": float(np.abs(scalars - twin_scalars).max()), "refused": refused}


def main(device: str) -> None:
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    found = {"rows": check_rows(device), "decisions": check_decisions(device), "sampler": check_sampler(device)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
