"""Which step's state matters to which later step: edit one, read the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import CarryError
from .controls import wilson
from .interventions import only_at
from .model import CarryModel
from .scan import Do
from .settings import CarrySettings
from .spans import pack

__all__ = ["Effect", "effect_grid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What an edit of the state handed on from one step does to what the model would answer at another."""

    edited: int
    read: int
    n: int
    """Rows."""
    kl: float
    """Mean KL divergence of the answer from that without the edit, nats."""
    kl_error: float
    """Standard error of the mean."""
    flip_rate: float
    """Share of rows whose likeliest token changes."""
    low: float
    """Wilson 95 % interval of ``flip_rate``."""
    high: float


@torch.no_grad()
def effect_grid(
    model: CarryModel,
    prompts: Sequence[Sequence[int]],
    make: Callable[[], Do],
    *,
    settings: CarrySettings | None = None,
) -> list[Effect]:
    """Edit the state of each step 0..p-1 by ``make()`` (such as ``zero``) and read every step 0..p.

    The states of steps up to the edited one can't change, so those effects are exact zeros: a check of causality.
    """
    chosen = model.settings if settings is None else settings
    if chosen.mode != "carry" or not chosen.pauses:
        raise CarryError("an effect grid needs mode 'carry' and at least one pause")
    batch = pack([(prompt, chosen.pauses, ()) for prompt in prompts], model.pause.id, device=model.device)
    steps = torch.arange(chosen.pauses + 1, device=model.device)
    reads = torch.zeros_like(batch.mask)
    rows = torch.arange(len(prompts), device=model.device)[:, None]
    reads[rows, batch.prompt_lengths[:, None] - 1 + steps] = True

    def logprobs(do: Do | None) -> Tensor:
        logits = model.logits(
            batch.ids, batch.mask, batch.prompt_lengths, loops=chosen.loops, mode=chosen.mode, do=do, reads=reads
        )
        return torch.log_softmax(logits, -1).reshape(len(prompts), len(steps), -1)

    plain, found = logprobs(None), []
    for edited in range(chosen.pauses):
        changed = logprobs(only_at(make(), {edited}))
        kl = (plain.exp() * (plain - changed)).sum(-1).clamp(min=0)
        flips = plain.argmax(-1) != changed.argmax(-1)
        for read in range(len(steps)):
            found.append(_effect(edited, read, kl[:, read], flips[:, read]))
    return found


def _effect(edited: int, read: int, kl: Tensor, flips: Tensor) -> Effect:
    n = len(kl)
    low, high = wilson(int(flips.sum()), n)
    return Effect(
        edited=edited,
        read=read,
        n=n,
        kl=float(kl.mean()),
        kl_error=float(kl.std() / n**0.5) if n > 1 else 0.0,
        flip_rate=float(flips.float().mean()),
        low=low,
        high=high,
    )
