"""Steering by a direction in activation space, and finding one as a difference of means.

References: Turner et al. 2023, "Activation Addition: Steering Language Models Without Optimization"; Rimsky et
al. 2024, "Steering Llama 2 via Contrastive Activation Addition".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..engine import ActionBuilder, Answer, Event, FunctionMod, Prefilled, mod
from ..models import HookedModel, Tokenizer, match_hooks
from ..shapes import Residual

__all__ = ["Direction", "difference_of_means", "steer"]

POSITIONS = ("last", "mean")
BATCH = 8
REBUILDABLE = 8192
"""Longest vector that a trace's manifest keeps in full."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Direction:
    """A direction at one hook, from so many texts that show something to so many that do not."""

    hook: str
    vector: Residual = field(repr=False)
    """``[d_model]`` float32."""
    norm: float
    """Length of the difference of means, also where ``vector`` was scaled to length 1."""
    n_positive: int
    n_negative: int

    def unit(self) -> Direction:
        """The same direction with a vector of length 1."""
        return replace(self, vector=self.vector / self.vector.norm())


def difference_of_means(
    model: HookedModel,
    positive: Sequence[str],
    negative: Sequence[str],
    *,
    hook: str,
    position: str = "last",
    unit: bool = False,
) -> Direction:
    """The mean activation over ``positive`` texts minus that over ``negative`` ones, at ``hook``.

    v = mean_{p in P} a_L(p) - mean_{n in N} a_L(n) (Rimsky et al. 2024, eq. 1), where a_L is taken at each
    text's last token, or averaged over its tokens (``position="mean"``; the BOS token, whose activation is
    far off, does not count). ``unit`` scales the vector to length 1.

    :raises ValueError: no texts on one side, an unknown position, a hook that is no vector per position, or
        means that do not differ.
    :raises UnknownHookError: no hook of that name.
    """
    if position not in POSITIONS:
        raise ValueError(f"position={position!r}: choose from {', '.join(POSITIONS)}")
    for side, texts in (("positive", positive), ("negative", negative)):
        if isinstance(texts, str) or not texts:
            raise ValueError(f"{side} must be a list of at least one text, got {texts!r}")
    match_hooks(hook, model.hook_names)
    means = [
        torch.stack(list(_activations(model, texts, hook, position))).mean(dim=0) for texts in (positive, negative)
    ]
    vector = means[0] - means[1]
    norm = float(vector.norm())
    if not norm > 0:
        raise ValueError(f"the means at {hook} do not differ: give texts that differ")
    found = Direction(hook=hook, vector=vector, norm=norm, n_positive=len(positive), n_negative=len(negative))
    return found.unit() if unit else found


def _activations(model: HookedModel, texts: Sequence[str], hook: str, position: str) -> Iterator[Tensor]:
    """One ``[d_model]`` float32 vector per text, a batch at a time, each on a fresh cache."""
    for begin in range(0, len(texts), BATCH):
        batch = [model.tokenizer.prompt(text) for text in texts[begin : begin + BATCH]]
        rows = model.forward(batch, model.new_cache(len(batch)), capture=(hook,)).activations[hook]
        for tokens, row in zip(batch, rows, strict=True):
            if row.ndim != 2:
                raise ValueError(f"{hook} holds {tuple(row.shape[1:])} per position; a direction needs one vector")
            skipped = int(len(tokens) > 1 and tokens[0] == model.tokenizer.bos_token_id)
            # Cloned outside inference mode: what leaves here is an ordinary tensor.
            yield (row[-1] if position == "last" else row[skipped:].mean(dim=0)).detach().float().cpu().clone()


def steer(
    direction: Direction | Sequence[float] | Tensor,
    *,
    layer: int | None = None,
    hook: str | None = None,
    scale: float = 1.0,
) -> FunctionMod:
    """A mod that adds ``scale * direction`` at a hook, at every position from the prompt's first on.

    The hook is ``hook``, or the residual stream after ``layer``, or the one the direction was found at.

    :raises ValueError: no hook or two of them, or a vector or scale that is not finite.
    """
    if isinstance(direction, Direction):
        vector, found_at = direction.vector, direction.hook
    else:
        vector, found_at = torch.as_tensor(direction, dtype=torch.float32), None
    if (layer is not None and hook is not None) or (layer is None and hook is None and found_at is None):
        raise ValueError(
            "steer() needs one hook: hook='blocks.3.hook_resid_post', or layer=3, or a Direction that has one"
        )
    vector = vector.detach().float().cpu()
    if vector.ndim != 1 or not bool(torch.isfinite(vector).all()) or not math.isfinite(scale):
        raise ValueError(f"steer() needs one vector and a scale, all finite; got {tuple(vector.shape)}, {scale}")
    where = hook or (found_at if layer is None else f"blocks.{layer}.hook_resid_post")
    return _steering(vector, str(where), scale)


def _steering(vector: Tensor, hook: str, scale: float) -> FunctionMod:
    params: dict[str, Any] | None = None
    if len(vector) <= REBUILDABLE:
        params = {"direction": vector.tolist(), "hook": hook, "scale": scale}

    @mod(name="steer", params=params)
    def add_direction(event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Answer:
        return actions.steer(hook, vector, scale) if isinstance(event, Prefilled) else None

    return add_direction
