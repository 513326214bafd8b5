"""TransformerLens's HookedTransformer behind :class:`HookedModel`: weights converted, not processed.

Nothing is folded or centred, so the residual stream is the one the checkpoint was trained with.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedModelError
from .kv_rows import PassView
from .tokenizer import Tokenizer
from .wrapped import WrappedModel

__all__ = ["HookedTransformerModel"]


class HookedTransformerModel(WrappedModel):
    """Llama-, Gemma-3-, GPT-2- and NeoX-shaped models as a HookedTransformer (TransformerLens 3.x)."""

    backend = "hooked"

    def __init__(self, hf_model: Any, tokenizer: Tokenizer, name: str) -> None:
        from transformer_lens import HookedTransformer, HookedTransformerConfig

        settings, convert = _recipe(hf_model.config)
        config = HookedTransformerConfig.from_dict(
            {**settings, "init_weights": False, "device": str(hf_model.device), "dtype": hf_model.dtype}
        )
        with warnings.catch_warnings():
            # It announces its end in 4.0; we pin 3.9 for those who need it, and have the bridge beside it.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.model = HookedTransformer(config, tokenizer=None)
        # assign: the converted tensors are views of the loaded weights, so nothing is held twice.
        weights = {name: weight.to(hf_model.dtype) for name, weight in convert(hf_model, config).items()}
        self.model.load_state_dict(weights, strict=False, assign=True)
        self.model.eval()
        self.n_layers = config.n_layers
        self.d_model = config.d_model
        self.n_ctx = config.n_ctx
        self.vocab_size = config.d_vocab
        self.device = hf_model.device
        self.dtype = hf_model.dtype
        super().__init__(name, self.model.hook_dict, tokenizer)

    def _run(self, tokens: Tensor, view: PassView, keep: int) -> Tensor:
        residual: Tensor = self.model(
            tokens,
            stop_at_layer=self.n_layers,
            past_kv_cache=_RowCache(view, self.model.cfg, self.device),
            attention_mask=torch.ones_like(tokens),
        )
        return self._head(residual, keep)

    def _head(self, residual: Tensor, keep: int) -> Tensor:
        # The norm sees every position, so that its hooks do; the unembedding only those asked for.
        logits: Tensor = self.model.unembed(self.model.ln_final(residual)[:, -keep:])
        cap = self.model.cfg.output_logits_soft_cap
        return cap * torch.tanh(logits / cap) if cap > 0 else logits

    def unembed(self, residual: Tensor) -> Tensor:
        with self.lock, torch.inference_mode():
            rows = residual.to(self.device, self.dtype).reshape(1, -1, self.d_model)
            return self._head(rows, rows.shape[1])[0].float().reshape(*residual.shape[:-1], -1)


class _RowEntry:
    """One layer of a pass, in the shape of HookedTransformer's cache entry.

    ``past_keys`` is only asked for its shape (how wide the past is), so it is one stretched scalar.
    """

    def __init__(self, view: PassView, layer: int, heads: tuple[int, int]) -> None:
        self._view = view
        self._layer = layer
        self.past_keys = torch.empty(()).expand(len(view.rows), view.width, *heads)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return self._view.append(self._layer, keys, values)


class _RowCache:
    """A pass in the shape of HookedTransformer's cache, which asks it for widths and for the mask."""

    def __init__(self, view: PassView, config: Any, device: torch.device) -> None:
        self._view = view
        self._heads = (config.n_key_value_heads or config.n_heads, config.d_head)
        self._device = device

    def append_attention_mask(self, _mask: Tensor) -> Tensor | None:
        return self._view.mask(self._device)

    def __getitem__(self, layer: int) -> _RowEntry:
        return _RowEntry(self._view, layer, self._heads)


Recipe = tuple[dict[str, Any], Callable[[Any, Any], dict[str, Tensor]]]


def _recipe(config: Any) -> Recipe:
    """HookedTransformer settings and weight converter for a Hugging Face config.

    :raises UnsupportedModelError: another architecture, or a rotary scaling it can't express.
    """
    recipes = {"llama": _llama, "gemma3_text": _gemma3, "gpt2": _gpt2, "gpt_neox": _gpt_neox}
    if config.model_type not in recipes:
        raise UnsupportedModelError(
            f"backend 'hooked' covers {', '.join(recipes)} models, not {config.model_type!r}. "
            "Use backend='bridge', which covers many more."
        )
    return recipes[config.model_type](config)


def _common(config: Any) -> dict[str, Any]:
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {
        "d_model": config.hidden_size,
        "d_head": head,
        "n_heads": config.num_attention_heads,
        "n_layers": config.num_hidden_layers,
        "n_ctx": config.max_position_embeddings,
        "d_vocab": config.vocab_size,
        "original_architecture": config.architectures[0],
        "model_name": config.model_type,
    }


def _rms_rotary(config: Any) -> dict[str, Any]:
    shared = _common(config)
    kv_heads = config.num_key_value_heads
    return {
        **shared,
        "d_mlp": config.intermediate_size,
        "eps": config.rms_norm_eps,
        "normalization_type": "RMS",
        "final_rms": True,
        "gated_mlp": True,
        "positional_embedding_type": "rotary",
        "rotary_dim": shared["d_head"],
        "rotary_adjacent_pairs": False,
        # HookedTransformer picks grouped attention whenever this is set, so leave it out when equal.
        "n_key_value_heads": None if kv_heads == config.num_attention_heads else kv_heads,
    }


def _plain_theta(parameters: Any, layer_type: str) -> float:
    if parameters.get("rope_type", "default") != "default":
        raise UnsupportedModelError(
            f"backend 'hooked' knows plain rotary embeddings only; this model's {layer_type} uses "
            f"rope_type={parameters['rope_type']!r}. Use backend='bridge'."
        )
    return float(parameters["rope_theta"])


def _llama(config: Any) -> Recipe:
    from transformer_lens.pretrained.weight_conversions import convert_llama_weights

    settings = {
        **_rms_rotary(config),
        "act_fn": config.hidden_act,
        "rotary_base": _plain_theta(config.rope_parameters, "attention"),
    }
    return settings, convert_llama_weights


def _gemma3(config: Any) -> Recipe:
    from transformer_lens.pretrained.weight_conversions import convert_gemma_weights

    rope = config.rope_parameters
    settings = {
        **_rms_rotary(config),
        # The converter addresses grouped weights, also where there are as many KV heads as heads.
        "n_key_value_heads": config.num_key_value_heads,
        "act_fn": config.hidden_activation,
        "rotary_base": _plain_theta(rope["full_attention"], "full attention"),
        "rotary_base_local": _plain_theta(rope["sliding_attention"], "sliding attention"),
        "attn_scale": config.query_pre_attn_scalar**0.5,
        "use_attn_scale": True,
        "use_normalization_before_and_after": True,
        "use_qk_norm": True,
        "use_local_attn": True,
        "window_size": config.sliding_window,
        "attn_types": ["local" if kind == "sliding_attention" else "global" for kind in config.layer_types],
        "output_logits_soft_cap": config.final_logit_softcapping or -1.0,
        "attn_scores_soft_cap": config.attn_logit_softcapping or -1.0,
    }
    return settings, convert_gemma_weights


def _gpt2(config: Any) -> Recipe:
    from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights

    settings = {
        **_common(config),
        "d_mlp": config.n_inner or 4 * config.hidden_size,
        "eps": config.layer_norm_epsilon,
        "act_fn": config.activation_function,
        "normalization_type": "LN",
        "positional_embedding_type": "standard",
    }
    return settings, convert_gpt2_weights


def _gpt_neox(config: Any) -> Recipe:
    from transformer_lens.pretrained.weight_conversions import convert_neox_weights

    shared = _common(config)
    rope = config.rope_parameters
    settings = {
        **shared,
        "d_mlp": config.intermediate_size,
        "eps": config.layer_norm_eps,
        "act_fn": config.hidden_act,
        "normalization_type": "LN",
        "positional_embedding_type": "rotary",
        "rotary_dim": int(shared["d_head"] * rope.get("partial_rotary_factor", 1.0)),
        "rotary_base": _plain_theta(rope, "attention"),
        "rotary_adjacent_pairs": False,
        "parallel_attn_mlp": bool(config.use_parallel_residual),
    }
    return settings, convert_neox_weights
