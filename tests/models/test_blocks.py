"""A model taken apart gives what the whole gives, for every shape that is allowed, and hooks can be attached to it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from workbench.errors import UnknownHookError, UnsupportedModelError
from workbench.models import Blocks, blocks_of, hooks_on, load
from workbench.models.blocks import SHAPES

SIZES = {
    "vocab_size": 90, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 8,
}  # fmt: skip


def config(shape: str) -> Any:
    import transformers

    match shape:
        case "llama":
            return transformers.LlamaConfig(**SIZES)
        case "mistral":
            return transformers.MistralConfig(**SIZES, sliding_window=4)
        case "qwen2":
            kinds = ["sliding_attention", "full_attention", "sliding_attention"]
            return transformers.Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, layer_types=kinds)
        case "qwen3":
            return transformers.Qwen3Config(**SIZES)
        case _:
            return transformers.Gemma3TextConfig(**SIZES, sliding_window=4, final_logit_softcapping=3.0)


def made(shape: str) -> Any:
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config(shape), attn_implementation="eager").eval()
        for name, weight in model.named_parameters():
            if weight.ndim > 1 or "bias" in name:
                weight.data.normal_(0, 0.3)
    return model.requires_grad_(False)


def low(seen: Tensor) -> Tensor:
    return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_parts_in_order_are_the_whole(shape: str) -> None:
    model = made(shape)
    blocks = Blocks(model)
    ids = torch.randint(4, 90, (2, 11), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(11).expand(2, 11)
    distance = positions[:, :, None] - positions[:, None, :]
    x = blocks.embed(ids)
    phases = blocks.phases(x, positions)
    for layer, kind in enumerate(blocks.kinds):
        window = blocks.window(kind)
        seen = (distance >= 0) & (distance < (window or 99))
        x = blocks.block(layer, x, mask=low(seen)[:, None], phases=phases[kind], positions=positions, kv=None)
    torch.testing.assert_close(blocks.unembed(blocks.norm(x)), model(ids).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", ["mistral", "qwen2", "gemma3_text"])
def test_a_sliding_window_is_known_and_matters(shape: str) -> None:
    blocks = Blocks(made(shape))
    assert blocks.sliding_window == 4
    assert "sliding_attention" in blocks.kinds
    assert blocks.window("full_attention") is None


def test_keys_and_values_go_through_the_object_that_is_given() -> None:
    blocks, seen = Blocks(made("llama")), []

    class Listener:
        def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
            seen.append((layer, tuple(keys.shape), tuple(values.shape)))
            return keys, values

    positions = torch.arange(3)[None]
    x = blocks.embed(torch.tensor([[5, 6, 7]]))
    mask = low(torch.ones(1, 1, 3, 3, dtype=torch.bool).tril())
    phases = blocks.phases(x, positions)["full_attention"]
    blocks.block(1, x, mask=mask, phases=phases, positions=positions, kv=Listener())
    assert seen == [(1, (1, 2, 3, 8), (1, 2, 3, 8))]


def test_hooks_of_a_loaded_model_fire_in_its_parts_and_are_taken_off_again() -> None:
    model = load("tiny-llama", backend="bridge", progress=False)
    blocks, seen = blocks_of(model), []
    positions = torch.arange(3)[None]
    x = blocks.embed(torch.tensor([[5, 6, 7]]))
    mask = low(torch.ones(1, 1, 3, 3, dtype=torch.bool).tril())
    phases = blocks.phases(x, positions)["full_attention"]

    def run() -> Tensor:
        return blocks.block(1, x, mask=mask, phases=phases, positions=positions, kv=None)

    plain = run()
    with hooks_on(model, {"blocks.1.hook_resid_post": lambda value: seen.append(value) or value + 1}):
        torch.testing.assert_close(run(), plain + 1)

    def fail(value: Tensor) -> None:
        seen.append(value)
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"), hooks_on(model, {"blocks.1.attn.hook_z": fail}):
        run()
    assert torch.equal(run(), plain)
    assert len(seen) == 2
    assert torch.equal(seen[0], plain)
    with (
        pytest.raises(UnknownHookError, match=r"no hook 'blocks\.1\.hook_resid_pots'.*Did you mean"),
        hooks_on(model, {"blocks.1.hook_resid_pots": seen.append}),
    ):
        run()


def test_only_a_bridge_is_taken_apart() -> None:
    model = load("tiny-llama", backend="hooked", progress=False)
    with pytest.raises(UnsupportedModelError, match=r"only models of backend 'bridge'.*is on 'hooked'"):
        blocks_of(model)
