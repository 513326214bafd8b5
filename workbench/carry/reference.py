"""The whole-sequence scan, as plain as it can be written: slow, and what the fast one is measured against.

Every step runs the band over every position. It uses the model's own forward pass for the masks and rotary phases
and is otherwise independent of :mod:`workbench.carry.runner`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CarryError
from ..models import Blocks
from .spans import Layout

__all__ = ["Calls", "capture", "reference_generate", "reference_logits", "reference_states"]

Calls = tuple[dict[str, Any], ...]
"""Per layer, the keyword arguments that one whole forward pass gave its block; never written to again."""
Merge = Callable[[Tensor, Tensor], Tensor]
Do = Callable[[int, Tensor], Tensor]


def capture(blocks: Blocks, ids: Tensor, mask: Tensor, entry: int) -> tuple[Tensor, Calls]:
    """Run the whole model once, without a cache; the residual entering block ``entry``, and all blocks' arguments."""
    seen: dict[int, tuple[Tensor, dict[str, Any]]] = {}

    def note(layer: int) -> Callable[..., None]:
        def hook(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if kwargs.get("past_key_values") is not None:
                raise CarryError("the capture holds a live cache: a replay would attend to stale keys")
            seen[layer] = (args[0] if args else kwargs["hidden_states"]), dict(kwargs)

        return hook

    handles = [
        block.register_forward_pre_hook(note(layer), with_kwargs=True) for layer, block in enumerate(blocks.layers)
    ]
    try:
        positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
        blocks.whole(ids, attention_mask=mask.long(), position_ids=positions, use_cache=False, logits_to_keep=1)
    finally:
        for handle in handles:
            handle.remove()
    dropped = {"hidden_states", "past_key_values", "use_cache"}
    calls = tuple(
        {name: value for name, value in seen[layer][1].items() if name not in dropped} for layer in range(len(seen))
    )
    return seen[entry][0], calls


def _replay(blocks: Blocks, x: Tensor, calls: Calls, first: int, last: int) -> Tensor:
    for layer in range(first, last):
        out = blocks.layers[layer](x, **calls[layer])
        x = out[0] if isinstance(out, tuple) else out
    return x


def reference_states(
    blocks: Blocks,
    merge: Merge,
    ids: Tensor,
    mask: Tensor,
    prompt_lengths: Tensor,
    *,
    band: tuple[int, int],
    loops: int,
    mode: str = "carry",
    do: Do | None = None,
    noise: torch.Generator | None = None,
) -> tuple[Tensor, Tensor, Calls]:
    """Band inputs X and outputs S, ``[batch, pos, d_model]``, and the captured calls.

    ``noise`` fills positions that are not settled yet with random numbers at every step: nothing may change.
    """
    layout = Layout.of(mask, prompt_lengths)
    real, rows = layout.mask[..., None], torch.arange(len(ids), device=ids.device)
    prompt = real & (layout.positions < layout.prompt_lengths[:, None])[..., None]
    e, calls = capture(blocks, ids, mask, band[0])
    e = e.masked_fill(~real, 0)

    def run(x: Tensor) -> Tensor:
        return _replay(blocks, x, calls, *band).masked_fill(~real, 0)

    if mode == "feedforward":
        x = torch.where(real, merge(e, e), e)
        return x, run(x), calls
    looped = {"carry": prompt, "prompt_loops": prompt, "depth": real, "depth_tail": real & ~prompt, "plain": ~real}[
        mode
    ]
    x, s = e, run(e)
    for _ in range(0 if mode == "plain" else loops):
        x = torch.where(looped, merge(e, s), e)
        s = run(x)
    if mode == "prompt_loops":
        x = torch.where(real & ~prompt, merge(e, e), x)
        s = run(x)
    for step in range(int((layout.lengths - layout.prompt_lengths).max()) if mode == "carry" else 0):
        position = layout.prompt_lengths + step
        live = position < layout.lengths
        column = (layout.starts + position).clamp(max=ids.shape[1] - 1)
        state = s[rows, column - 1]
        new = merge(e[rows, column], state if do is None else do(step, state))
        here = torch.zeros_like(real[..., 0])
        here[rows, column] = live
        x = torch.where(here[..., None], new[:, None], x)
        if noise is not None:
            later = real & (layout.positions > position[:, None])[..., None]
            x = torch.where(later, torch.randn(x.shape, generator=noise, dtype=x.dtype), x)
        s = run(x)
    return x, s, calls


def reference_logits(
    blocks: Blocks,
    merge: Merge,
    ids: Tensor,
    mask: Tensor,
    prompt_lengths: Tensor,
    *,
    band: tuple[int, int],
    loops: int,
    mode: str = "carry",
    do: Do | None = None,
    noise: torch.Generator | None = None,
) -> Tensor:
    """Logits ``[batch, pos, vocab]`` by the slow scan. Arguments as :meth:`workbench.carry.CarryModel.logits`."""
    _, s, calls = reference_states(
        blocks, merge, ids, mask, prompt_lengths, band=band, loops=loops, mode=mode, do=do, noise=noise
    )
    return blocks.unembed(blocks.norm(_replay(blocks, s, calls, band[1], blocks.n_layers)))


@torch.no_grad()
def reference_generate(
    blocks: Blocks,
    merge: Merge,
    prompts: Tensor,
    *,
    band: tuple[int, int],
    loops: int,
    pause: int,
    pauses: int,
    max_new_tokens: int,
) -> Tensor:
    """Greedy tokens ``[batch, max_new_tokens]`` after prompts of one length ``[batch, prompt]``, the slow way.

    Each token captures the whole model anew and runs the band twice over everything, as a scan without caches must
    that keeps only the band inputs it has settled.
    """
    ids = torch.cat([prompts, prompts.new_full((len(prompts), pauses), pause)], 1)
    lengths = torch.full((len(prompts),), prompts.shape[1])
    mask = torch.ones_like(ids)
    x, s, calls = reference_states(blocks, merge, ids, mask, lengths, band=band, loops=loops)
    for made in range(max_new_tokens):
        if made:
            mask = torch.ones_like(ids)
            e, calls = capture(blocks, ids, mask, band[0])
            x = torch.cat([x, e[:, -1:]], 1)
            s = _replay(blocks, x, calls, *band)
            x = torch.cat([x[:, :-1], merge(e[:, -1], s[:, -2])[:, None]], 1)
            s = _replay(blocks, x, calls, *band)
        final = _replay(blocks, s, calls, band[1], blocks.n_layers)
        ids = torch.cat([ids, blocks.unembed(blocks.norm(final[:, -1])).argmax(-1)[:, None]], 1)
    return ids[:, prompts.shape[1] + pauses :]
