"""The weights of a Llama- or Gemma-3-shaped model, stacked over layers and fused where one input feeds several.

The Hugging Face model's own parameters become views of the stacked tensors, so nothing is held twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import UnsupportedModelError
from .packed import BlockFile, PackedMatrices

__all__ = ["SHAPES", "LeanWeights", "take_weights"]

SHAPES = ("llama", "gemma3_text")
"""Model types (``config.model_type``) that the lean path knows."""
ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeanWeights:
    """Everything a pass needs. Matrices are ``[layer, out, in]`` in the model's dtype, norms ``[layer, d]`` float32.

    In a packed model all matrices are packed.
    """

    embedding: Tensor | PackedMatrices = field(repr=False)
    """``[vocab, d_model]``, before ``embed_scale``; where it is packed, one layer of that."""
    unembedding: Tensor | PackedMatrices = field(repr=False)
    """The same; the embedding itself where the two are tied."""
    qkv: Tensor | PackedMatrices = field(repr=False)
    """Query rows of every head, then key rows, then value rows."""
    attention_out: Tensor | PackedMatrices = field(repr=False)
    gate_up: Tensor | PackedMatrices = field(repr=False)
    """``d_mlp`` rows of the gate, then ``d_mlp`` rows of what it gates."""
    down: Tensor | PackedMatrices = field(repr=False)
    before_attention: Tensor = field(repr=False)
    after_attention: Tensor | None = field(repr=False)
    before_mlp: Tensor = field(repr=False)
    after_mlp: Tensor | None = field(repr=False)
    query_norm: Tensor | None = field(repr=False)
    key_norm: Tensor | None = field(repr=False)
    final: Tensor = field(repr=False)
    """Factor of the last norm, ``[d_model]`` float32."""
    frequencies: Tensor = field(repr=False)
    """Rotary frequencies, radians per position, ``[kind, d_head / 2]`` float32."""
    rotary_scale: tuple[float, ...]
    """By kind, the factor that cosines and sines carry (1 for plain rotary embeddings)."""
    kind: tuple[int, ...]
    """By layer, which of the rotary kinds it uses."""
    window: tuple[int, ...]
    """By layer, how many positions, its own included, a query sees; 0 for all."""
    n_heads: int
    n_kv_heads: int
    d_head: int
    embed_scale: float
    attention_scale: float
    epsilon: float
    activation: str
    softcap: float | None
    """Largest magnitude of a logit, or None."""

    @property
    def n_layers(self) -> int:
        return self.qkv.shape[0]

    @property
    def d_mlp(self) -> int:
        return self.down.shape[2]

    @property
    def d_model(self) -> int:
        return self.final.shape[0]

    @property
    def vocab(self) -> int:
        return self.unembedding.shape[-2]

    @property
    def nbytes(self) -> int:
        """Memory that the matrices take."""
        matrices = (self.embedding, self.qkv, self.attention_out, self.gate_up, self.down)
        untied = () if self.unembedding is self.embedding else (self.unembedding,)
        return sum(matrix.nbytes for matrix in (*matrices, *untied))

    def embed(self, tokens: Tensor) -> Tensor:
        """``[column, d_model]`` of ``tokens [column]``."""
        if isinstance(self.embedding, PackedMatrices):
            return self.embedding.rows(tokens.numpy())
        return self.embedding[tokens]

    def unembed(self, normed: Tensor) -> Tensor:
        """``[..., d_model]`` to ``[..., vocab]``, before any softcap."""
        if isinstance(self.unembedding, PackedMatrices):
            return self.unembedding.times(normed)
        return functional.linear(normed, self.unembedding)


def take_weights(whole: Any, blocks: BlockFile | None = None) -> LeanWeights:
    """Stack the weights of a Hugging Face causal model, whose parameters then share the stacked memory.

    With ``blocks`` the matrices are taken from there, packed, and the model's own are left alone.

    :raises UnsupportedModelError: another architecture, a setting that the lean path leaves out, or blocks of a format
        that it does not know.
    """
    config = whole.config
    _refuse(config)
    gemma = config.model_type == "gemma3_text"
    layers = list(whole.model.layers)
    kinds = [str(kind) for kind in config.layer_types] if gemma else [FULL] * len(layers)
    named = sorted(set(kinds))
    frequencies, scales = _rotary(whole.model.rotary_emb, named if gemma else None)
    attention = [layer.self_attn for layer in layers]
    embed = whole.model.embed_tokens
    matrices = _matrices(whole) if blocks is None else _packed_matrices(blocks, len(layers))
    return LeanWeights(
        **matrices,
        before_attention=_norms([layer.input_layernorm for layer in layers], gemma),
        after_attention=_norms([layer.post_attention_layernorm for layer in layers], gemma) if gemma else None,
        before_mlp=_norms(
            [layer.pre_feedforward_layernorm if gemma else layer.post_attention_layernorm for layer in layers], gemma
        ),
        after_mlp=_norms([layer.post_feedforward_layernorm for layer in layers], gemma) if gemma else None,
        query_norm=_norms([part.q_norm for part in attention], gemma) if gemma else None,
        key_norm=_norms([part.k_norm for part in attention], gemma) if gemma else None,
        final=_norms([whole.model.norm], gemma)[0],
        frequencies=frequencies,
        rotary_scale=scales,
        kind=tuple(named.index(kind) for kind in kinds),
        window=tuple(int(config.sliding_window) if kind == SLIDING else 0 for kind in kinds),
        n_heads=int(config.num_attention_heads),
        n_kv_heads=int(config.num_key_value_heads),
        d_head=int(attention[0].head_dim),
        embed_scale=float(embed.embed_scale.to(embed.weight.dtype)) if gemma else 1.0,
        attention_scale=float(attention[0].scaling),
        epsilon=float(config.rms_norm_eps),
        activation=_activation(config),
        softcap=getattr(config, "final_logit_softcapping", None),
    )


def _matrices(whole: Any) -> dict[str, Any]:
    embed, layers = whole.model.embed_tokens, whole.model.layers
    tied = whole.lm_head.weight is embed.weight
    embedding = _stack([[embed]])[0]
    return {
        "embedding": embedding,
        "unembedding": embedding if tied else _stack([[whole.lm_head]])[0],
        "qkv": _stack([[each.self_attn.q_proj, each.self_attn.k_proj, each.self_attn.v_proj] for each in layers]),
        "attention_out": _stack([[each.self_attn.o_proj] for each in layers]),
        "gate_up": _stack([[each.mlp.gate_proj, each.mlp.up_proj] for each in layers]),
        "down": _stack([[each.mlp.down_proj] for each in layers]),
    }


def _packed_matrices(blocks: BlockFile, n_layers: int) -> dict[str, Any]:
    def stacked(*names: str) -> PackedMatrices:
        return PackedMatrices([[blocks.part(layer, name) for name in names] for layer in range(n_layers)])

    embedding, own = PackedMatrices([[blocks.embedding()]]), blocks.unembedding()
    return {
        "embedding": embedding,
        "unembedding": embedding if own is None else PackedMatrices([[own]]),
        "qkv": stacked("q_proj", "k_proj", "v_proj"),
        "attention_out": stacked("o_proj"),
        "gate_up": stacked("gate_proj", "up_proj"),
        "down": stacked("down_proj"),
    }


def _refuse(config: Any) -> None:
    """Raise for anything that the lean path would run otherwise than transformers does."""
    if config.model_type not in SHAPES:
        raise UnsupportedModelError(
            f"backend 'lean' covers {' and '.join(SHAPES)} models, not {config.model_type!r}. "
            "Use backend='bridge', which covers many more."
        )
    rope = str(config.rope_parameters)
    strange = {
        "biases (attention_bias or mlp_bias)": config.attention_bias or getattr(config, "mlp_bias", False),
        f"the activation {_activation(config)!r}": _activation(config) not in ACTIVATIONS,
        "softcapped attention scores": getattr(config, "attn_logit_softcapping", None) is not None,
        "attention in both directions": getattr(config, "use_bidirectional_attention", False),
        "rotary frequencies that depend on the length": "'dynamic'" in rope or "'longrope'" in rope,
        "rotary embeddings of part of a head": "partial_rotary_factor" in rope,
    }
    for what, asked_for in strange.items():
        if asked_for:
            raise UnsupportedModelError(
                f"backend 'lean' does not know {what}, which this {config.model_type} model's config asks for. "
                "Use backend='bridge'."
            )


def _activation(config: Any) -> str:
    return str(config.hidden_activation if config.model_type == "gemma3_text" else config.hidden_act)


def _stack(modules: list[list[nn.Module]]) -> Tensor:
    """One ``[layer, out, in]`` tensor of linear modules by layer; their weights become its rows."""
    first_layer = [module.get_parameter("weight") for module in modules[0]]
    rows = sum(weight.shape[0] for weight in first_layer)
    stacked = _room(first_layer[0].detach(), len(modules), rows, first_layer[0].shape[1])
    for layer, parts in enumerate(modules):
        first = 0
        for module in parts:
            parameter = module.get_parameter("weight")
            share = stacked[layer, first : first + parameter.shape[0]]
            share.copy_(parameter.data)
            parameter.data = share  # frees the old one at once: at no time is the whole model held twice
            first += share.shape[0]
    return stacked


def _room(like: Tensor, *shape: int) -> Tensor:
    """Memory for weights. numpy asks the system for large pages, torch does not."""
    if like.device.type == "cpu" and like.dtype == torch.float32:
        return torch.from_numpy(np.empty(shape, dtype=np.float32))
    return like.new_empty(*shape)


def _norms(modules: list[nn.Module], one_plus: bool) -> Tensor:
    """What norms multiply by, float32: the weight, or one more than it (Gemma's are kept around zero)."""
    weights = torch.stack([module.get_parameter("weight").detach().float() for module in modules])
    return 1.0 + weights if one_plus else weights


def _rotary(rotary: nn.Module, kinds: list[str] | None) -> tuple[Tensor, tuple[float, ...]]:
    """Frequencies ``[kind, d_head / 2]`` and scale by kind; a model without kinds has one."""
    prefixes = [""] if kinds is None else [f"{kind}_" for kind in kinds]
    frequencies = torch.stack([rotary.get_buffer(f"{prefix}inv_freq").float() for prefix in prefixes])
    scales: list[Any] = [getattr(rotary, f"{prefix}attention_scaling") for prefix in prefixes]
    return frequencies, tuple(map(float, scales))
