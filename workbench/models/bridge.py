"""TransformerLens's TransformerBridge behind :class:`HookedModel`: Hugging Face modules with hooks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache as HFCache
from transformers.cache_utils import CacheLayerMixin

from .kv_rows import PassView
from .tokenizer import Tokenizer
from .wrapped import WrappedModel

__all__ = ["BridgeModel"]


class BridgeModel(WrappedModel):
    """Any causal architecture that the bridge adapts. Weights are the Hugging Face ones, unprocessed."""

    backend = "bridge"

    def __init__(self, hf_model: Any, tokenizer: Tokenizer, name: str) -> None:
        from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

        config = hf_model.config
        self.bridge = build_bridge_from_module(hf_model, config.architectures[0], hf_config=config)
        self.bridge.eval()
        self.n_layers = int(config.num_hidden_layers)
        self.d_model = int(config.hidden_size)
        self.n_ctx = int(config.max_position_embeddings)
        self.vocab_size = int(config.vocab_size)
        self.device = hf_model.device
        self.dtype = hf_model.dtype
        super().__init__(name, self.bridge.hook_dict, tokenizer)

    def _editable(self) -> tuple[str, ...]:
        # In the bridge these two are read-outs beside the stream (the input of the second norm, the norms'
        # inner values): a change made there would not reach the residual, unlike in HookedTransformer.
        return tuple(
            name for name in self.hook_names if not name.endswith(("hook_resid_mid", "hook_normalized", "hook_scale"))
        )

    def _run(self, tokens: Tensor, view: PassView, keep: int) -> Tensor:
        logits: Tensor = self.bridge(
            tokens,
            past_key_values=_RowCache(view, self.n_layers),
            use_cache=True,
            attention_mask=view.mask(self.device),
            position_ids=view.positions(self.device),
            logits_to_keep=keep,
        )
        return logits[:, -keep:]

    def unembed(self, residual: Tensor) -> Tensor:
        with self.lock, torch.inference_mode():
            rows = residual.to(self.device, self.dtype).reshape(1, -1, self.d_model)
            logits: Tensor = self.bridge.unembed(self.bridge.ln_final(rows))[0].float()
            logits = logits.reshape(*residual.shape[:-1], -1)
            cap = getattr(self.bridge.original_model.config, "final_logit_softcapping", None)
            return logits if cap is None else cap * torch.tanh(logits / cap)


class _RowLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of a pass, in the shape that transformers' attention expects of a cache layer."""

    is_sliding = False

    def __init__(self, view: PassView, layer: int) -> None:
        super().__init__()
        self._view = view
        self._layer = layer
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the store allocates on its first write."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = self._view.append(self._layer, key_states.transpose(1, 2), value_states.transpose(1, 2))
        return keys.transpose(1, 2), values.transpose(1, 2)

    def get_seq_length(self) -> int:
        return self._view.width

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._view.width + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1


class _RowCache(HFCache):  # type: ignore[misc]
    def __init__(self, view: PassView, n_layers: int) -> None:
        super().__init__(layers=[_RowLayer(view, layer) for layer in range(n_layers)])
