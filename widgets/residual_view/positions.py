"""The residual stream at the positions of one text: read through the logit lens, measured, compared.

The logit lens (nostalgebraist 2020, "interpreting GPT: the logit lens") reads every layer as if it were the last:
``softmax(unembed(final_norm(residual[layer])))``. What is read at a position is a guess at the token after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.errors import ReportError, TraceError, UnknownHookError
from workbench.models import HookedModel
from workbench.trace import TokenLife

from ..reading import Reading, residual_hooks

__all__ = ["Lens", "Positions"]

KEPT = 64
"""Pieces of the lens that are kept: the browser asks for the same ones again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lens:
    """The lens over a span of positions; arrays are ``[position, layer]`` or ``[position, layer, k]``."""

    tokens: np.ndarray
    """Likeliest tokens, best first, int64 ``[position, layer, k]``."""
    chances: np.ndarray
    """Their probabilities, float32."""
    next_chance: np.ndarray
    """Probability of the token that really follows; NaN where none does."""
    next_rank: np.ndarray
    """Its rank, 1 for the likeliest; 0 where none follows."""


class Positions:
    """The visible tokens of a reading whose position was computed in a captured pass.

    :raises TraceError: no residual stream was captured.
    """

    def __init__(self, reading: Reading, model: HookedModel, directions: Mapping[str, Tensor]) -> None:
        self.model = model
        self.directions = dict(directions)
        self.hooks = residual_hooks(reading)
        if not self.hooks:
            raise TraceError("no residual stream was captured. Run with capture='blocks.*.hook_resid_post'.")
        self.trace = reading.trace
        every = [*reading.prompt, *reading.history.live]
        self._rows = reading.history.rows
        self.lives: tuple[TokenLife, ...] = tuple(life for life in every if life.position in self._rows)
        self.following = {life.position - 1: life for life in every}
        self.edited = any(life.edits for life in every)
        self._lens = lru_cache(maxsize=KEPT)(self._read)

    @property
    def layers(self) -> list[int]:
        return list(self.hooks)

    def __len__(self) -> int:
        return len(self.lives)

    def residuals(self, start: int, stop: int) -> Tensor:
        """``[layer, position, d_model]`` float32."""
        rows = [self._rows[life.position] for life in self.lives[start:stop]]
        found = [
            torch.stack([self.trace.activation_row(name, row).float() for row in rows]) for name in self.hooks.values()
        ]
        return torch.stack(found)

    def lens(self, start: int, stop: int, k: int = 5) -> Lens:
        """The lens over positions ``start`` to ``stop``."""
        return self._lens(start, min(stop, len(self)), k)

    def _read(self, start: int, stop: int, k: int) -> Lens:
        """A layer at a time: all layers' logits at once would be gigabytes."""
        residuals = self.residuals(start, stop)
        follow = [self.following.get(life.position) for life in self.lives[start:stop]]
        index = torch.tensor([0 if life is None else life.token for life in follow])[:, None]
        missing = torch.tensor([life is None for life in follow])
        pieces: list[tuple[Tensor, ...]] = []
        for layer in residuals:
            logits = self.model.unembed(layer.to(self.model.device)).float().cpu()
            logprobs = torch.log_softmax(logits, dim=-1)
            best = logprobs.topk(min(k, logprobs.shape[-1]), dim=-1)
            own = logits.gather(1, index)
            chance = logprobs.gather(1, index)[:, 0].exp().masked_fill(missing, torch.nan)
            rank = (1 + (logits > own).sum(dim=-1)).masked_fill(missing, 0)
            pieces.append((best.indices, best.values.exp(), chance, rank))
        tokens, chances, next_chance, next_rank = (
            torch.stack(each, dim=1).numpy() for each in zip(*pieces, strict=True)
        )
        return Lens(tokens=tokens, chances=chances, next_chance=next_chance, next_rank=next_rank)

    def norms(self, start: int, stop: int) -> np.ndarray:
        """L2 norms, ``[position, layer]`` float32."""
        return np.asarray(self.residuals(start, stop).norm(dim=-1).T.numpy())

    def cosines(self, name: str, start: int, stop: int) -> np.ndarray:
        """Cosine with a direction, ``[position, layer]`` float32, -1 to 1.

        :raises ReportError: no direction of that name.
        """
        if name not in self.directions:
            raise ReportError(f"no direction {name!r}; there are {', '.join(self.directions) or 'none'}")
        cosines = torch.nn.functional.cosine_similarity(self.residuals(start, stop), self.directions[name], dim=-1)
        return np.asarray(cosines.T.numpy())

    def attention(self, layer: int) -> np.ndarray:
        """Attention weights of one layer, ``[head, query, key]`` float32, from a fresh pass over the visible tokens.

        :raises UnknownHookError: no such layer.
        """
        hook = f"blocks.{layer}.attn.hook_pattern"
        if hook not in self.model.hook_names:
            raise UnknownHookError(
                f"no attention pattern {hook!r} in this model; layers go to {self.model.n_layers - 1}"
            )
        tokens = [life.token for life in self.lives]
        pattern = self.model.forward([tokens], self.model.new_cache(1), capture=(hook,)).activations[hook][0]
        return np.asarray(pattern.float().cpu().transpose(0, 1).numpy())

    def place(self, position: int) -> int:
        """The index of a position among those that were computed.

        :raises ReportError: there is none.
        """
        for index, life in enumerate(self.lives):
            if life.position == position:
                return index
        raise ReportError(
            f"no position {position} to look at; computed ones go from {self.lives[0].position} to "
            f"{self.lives[-1].position}"
            if self.lives
            else f"no position {position}: nothing was computed"
        )

    def text(self, token: Any) -> str:
        """The text of a token id."""
        return self.model.tokenizer.token_text(int(token))
