"""Tiny random models, made on the spot: for tests, for trying the workbench with nothing to download."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import UnknownModelError, did_you_mean
from .tokenizer import Tokenizer

__all__ = ["TINY_FAMILIES", "tiny_checkpoint"]

TINY_FAMILIES = ("llama", "gemma3", "gpt2", "gpt_neox")
WEIGHT_SCALE = 0.3
"""Standard deviation of the random weights: large enough that a wrong position or mask shows."""


def tiny_checkpoint(
    family: str = "llama", *, seed: int = 0, n_layers: int = 3, n_ctx: int = 256
) -> tuple[Any, Tokenizer]:
    """A random Hugging Face model of ``family`` (d_model 32, 4 heads) and a byte-level tokenizer.

    The Gemma-3 one has a sliding window of 8 on two of three layers. Same seed, same weights; the global
    random state is left as it was.

    :raises UnknownModelError: the family is not one of ``TINY_FAMILIES``.
    """
    import transformers

    tokenizer = _byte_tokenizer()
    builders = {"llama": _llama, "gemma3": _gemma3, "gpt2": _gpt2, "gpt_neox": _gpt_neox}
    if family not in builders:
        raise UnknownModelError(
            f"no tiny model {family!r}; the families are {', '.join(TINY_FAMILIES)}."
            f"{did_you_mean(family, TINY_FAMILIES)}"
        )
    config = builders[family](len(tokenizer), n_layers, n_ctx)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.ndim > 1:
                    weight.normal_(0.0, WEIGHT_SCALE)
                elif "norm" in name or "ln_" in name:
                    weight.add_(0.1 * torch.randn_like(weight))
    model.config.architectures = [type(model).__name__]
    return model, tokenizer


def _byte_tokenizer() -> Tokenizer:
    """256 byte tokens and four special ones, ``<pad> <bos> <eos> <unused0>``."""
    from tokenizers import Tokenizer as RawTokenizer
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<pad>", "<bos>", "<eos>", "<unused0>"]
    vocab = {text: index for index, text in enumerate([*special, *alphabet])}
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    hf = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        additional_special_tokens=["<unused0>"],
    )
    hf.chat_template = (
        "{{ '<bos>' }}{% for m in messages %}{{ '[' + m['role'] + '] ' + m['content'] + '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
    )
    return Tokenizer(hf, trusted=True)


_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _llama(vocab: int, n_layers: int, n_ctx: int) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=n_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=n_ctx,
        **_SPECIAL,
    )


def _gemma3(vocab: int, n_layers: int, n_ctx: int) -> Any:
    from transformers import Gemma3TextConfig

    kinds = ["full_attention" if i % 3 == 2 else "sliding_attention" for i in range(n_layers)]
    return Gemma3TextConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=n_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=n_ctx,
        sliding_window=8,
        layer_types=kinds,
        query_pre_attn_scalar=8,
        **_SPECIAL,
    )


def _gpt2(vocab: int, n_layers: int, n_ctx: int) -> Any:
    from transformers import GPT2Config

    return GPT2Config(vocab_size=vocab, n_embd=32, n_layer=n_layers, n_head=4, n_positions=n_ctx, **_SPECIAL)


def _gpt_neox(vocab: int, n_layers: int, n_ctx: int) -> Any:
    from transformers import GPTNeoXConfig

    return GPTNeoXConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=n_layers,
        num_attention_heads=4,
        max_position_embeddings=n_ctx,
        **_SPECIAL,
    )
