"""A model taken apart: its blocks, embedding, rotary phases and head, for those who run a part of it more than once.

Llama-, Qwen- and Gemma-3-shaped models only. What comes out of the parts run in order is what the whole gives;
masks, positions and keys and values are the caller's to build.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..errors import UnsupportedModelError
from .protocol import HookedModel
from .wrapped import WrappedModel, hooked

__all__ = ["SHAPES", "Blocks", "KeysValues", "blocks_of", "hooks_on"]

SHAPES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
"""Model types (``config.model_type``) whose parts fit together as :class:`Blocks` runs them."""
FULL, SLIDING = "full_attention", "sliding_attention"


class KeysValues(Protocol):
    """Where a block leaves its keys and values and finds the earlier ones: ``[batch, kv_head, pos, d_head]``."""

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]: ...


class Blocks:
    """The parts of a Hugging Face causal model, wrapped by the bridge (its hooks fire) or bare.

    :raises UnsupportedModelError: another shape, bidirectional attention, or dropout that is switched on.
    """

    def __init__(self, whole: Any, lock: AbstractContextManager[Any] | None = None) -> None:
        config = whole.config
        _refuse(whole, config)
        self.whole = whole
        """The model itself; ``whole(ids, attention_mask=…)`` runs all of it."""
        self.lock: AbstractContextManager[Any] = threading.RLock() if lock is None else lock
        """Passes of several threads take turns."""
        self.layers: list[nn.Module] = list(whole.model.layers)
        self.n_layers = len(self.layers)
        self.d_model = int(config.hidden_size)
        self.vocab_size = int(config.vocab_size)
        self.n_ctx = int(config.max_position_embeddings)
        self.kinds: tuple[str, ...] = _kinds(config, self.n_layers)
        """``full_attention`` or ``sliding_attention`` of each layer."""
        self.sliding_window: int | None = int(config.sliding_window) if SLIDING in self.kinds else None
        self._phases_by_kind = config.model_type == "gemma3_text"
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)

    @property
    def device(self) -> torch.device:
        return torch.device(self.whole.device)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.whole.dtype
        return dtype

    def parameters(self) -> Iterator[nn.Parameter]:
        yield from self.whole.parameters()

    def window(self, kind: str) -> int | None:
        """How many positions, its own included, a query of this kind of layer sees; None for all."""
        return self.sliding_window if kind == SLIDING else None

    def embed(self, ids: Tensor) -> Tensor:
        """Token ids ``[batch, new]`` to the residual stream ``[batch, new, d_model]``, scaled as the model does."""
        embedded: Tensor = self.whole.model.embed_tokens(ids)
        return embedded

    def phases(self, x: Tensor, positions: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Rotary cosines and sines of ``positions`` ``[batch, new]`` by kind of layer, in the dtype of ``x``."""
        rotary = self.whole.model.rotary_emb
        if self._phases_by_kind:
            return {kind: rotary(x, positions, kind) for kind in dict.fromkeys(self.kinds)}
        return dict.fromkeys(self.kinds, rotary(x, positions))

    def block(
        self,
        layer: int,
        x: Tensor,
        *,
        mask: Tensor,
        phases: tuple[Tensor, Tensor],
        positions: Tensor,
        kv: KeysValues | None,
    ) -> Tensor:
        """One block on ``[batch, new, d_model]``; ``mask`` is added to the scores, ``[batch, 1, new, pos]``."""
        out = self.layers[layer](
            x,
            attention_mask=mask,
            position_embeddings=phases,
            position_ids=positions,
            past_key_values=kv,
            use_cache=kv is not None,
        )
        left: Tensor = out[0] if isinstance(out, tuple) else out
        return left

    def norm(self, x: Tensor) -> Tensor:
        """The final norm."""
        normed: Tensor = self.whole.model.norm(x)
        return normed

    def unembed(self, normed: Tensor) -> Tensor:
        """Normed residual ``[..., d_model]`` to logits ``[..., vocab]`` float32 (float64 stays), softcap included."""
        logits: Tensor = self.whole.lm_head(normed)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits if self._softcap is None else self._softcap * torch.tanh(logits / self._softcap)


def blocks_of(model: HookedModel) -> Blocks:
    """The parts of a loaded model.

    :raises UnsupportedModelError: another backend than the bridge, or a shape that :class:`Blocks` refuses.
    """
    from .bridge import BridgeModel

    if not isinstance(model, BridgeModel):
        raise UnsupportedModelError(
            f"only models of backend 'bridge' can be run block by block with positions given per call; "
            f"{model.name} is on {model.backend!r}. Load it with load({model.name!r}, backend='bridge')."
        )
    return Blocks(model.bridge.original_model, model.lock)


@contextmanager
def hooks_on(model: HookedModel, hooks: Mapping[str, Callable[[Tensor], Tensor | None]]) -> Iterator[None]:
    """Attach functions to hooks of a loaded model while the block runs; each sees, and may return, the value.

    Values are ``[batch, new, ...]``, attention maps ``[batch, head, new, pos]``, as the model's own passes see them.
    """
    if not isinstance(model, WrappedModel):
        raise UnsupportedModelError(f"{model.name} has no hook points of its own to attach to")
    with ExitStack() as stack:
        for name, fn in hooks.items():
            stack.enter_context(hooked(model.point(name), fn))
        yield


def _kinds(config: Any, n_layers: int) -> tuple[str, ...]:
    told = getattr(config, "layer_types", None)
    if told is not None:
        return tuple(str(kind) for kind in told[:n_layers])
    return (SLIDING if getattr(config, "sliding_window", None) else FULL,) * n_layers


def _refuse(whole: Any, config: Any) -> None:
    kind = config.model_type
    if kind not in SHAPES:
        raise UnsupportedModelError(
            f"{kind!r} models can't be run block by block: the parts of {', '.join(SHAPES)} models are known to fit "
            "together exactly. Mixtures of experts, state-space mixers, shared keys and values and absolute "
            "positions need rules of their own."
        )
    if getattr(config, "use_bidirectional_attention", False):
        raise UnsupportedModelError(
            "this model attends in both directions (use_bidirectional_attention): no position is ever final, so its "
            "blocks can't be run position by position"
        )
    strange = sorted(set(_kinds(config, config.num_hidden_layers)) - {FULL, SLIDING})
    if strange:
        raise UnsupportedModelError(f"layers of type {strange[0]!r} are unknown here; {FULL} and {SLIDING} are known")
    rope = str(getattr(config, "rope_parameters", None))
    if "'dynamic'" in rope or "'longrope'" in rope:
        raise UnsupportedModelError(
            "this model's rotary frequencies depend on the length of the sequence (rope_type dynamic or longrope), so "
            "keys that were kept would not be those of a longer pass"
        )
    if whole.training and getattr(config, "attention_dropout", 0.0):
        raise UnsupportedModelError(
            "the model is in training mode with attention_dropout > 0, so no two passes agree: call .eval() on it"
        )
