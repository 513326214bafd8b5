"""Tiny models, random adapters and batches that the carry's tests share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from workbench.carry import Adapter, Batch, CarryModel, make_adapter, pack
from workbench.models import Blocks
from workbench.models.bridge import BridgeModel
from workbench.models.tiny import tiny_checkpoint
from workbench.models.wrapped import check_ids

FAMILIES = ("llama", "gemma3")
LAYERS = 4
PAUSE = 3
"""Id of ``<unused0>`` in the tiny models' tokenizer."""


def bare(family: str, *, window: int = 8, attention: str = "eager", dtype: torch.dtype = torch.float32) -> Any:
    """A Hugging Face model as transformers has it, with four layers."""
    model, _ = tiny_checkpoint(family, n_layers=LAYERS, n_ctx=96)
    if family == "gemma3":
        model.config.sliding_window = window
    model.set_attn_implementation(attention)
    return model.to(dtype).requires_grad_(False)


def tiny(family: str, window: int = 8) -> Any:
    """A loaded model on the bridge backend."""
    return _tiny(family, window)


@cache
def _tiny(family: str, window: int) -> Any:
    hf_model, tokenizer = tiny_checkpoint(family, n_layers=LAYERS, n_ctx=96)
    if family == "gemma3":
        hf_model.config.sliding_window = window
    with torch.no_grad():
        reference = hf_model(torch.tensor([check_ids(len(tokenizer))])).logits[0]
    model = BridgeModel(hf_model, tokenizer, f"tiny-{family}")
    model.check_against(reference)  # as load() does; hooks that do not fire are dropped
    return model


@cache
def bare_blocks(family: str, window: int, attention: str, dtype: torch.dtype) -> Blocks:
    return Blocks(bare(family, window=window, attention=attention, dtype=dtype))


def random_adapter(kind: str = "linear_add", *, seed: int = 0, scale: float = 0.08, d_model: int = 32) -> Adapter:
    """An adapter whose every weight is away from its start, so that a wrong seed or position shows."""
    adapter = make_adapter(kind, d_model)
    stream = torch.Generator().manual_seed(seed)
    for parameter in adapter.parameters():
        shift = torch.randn(parameter.shape, generator=stream) * scale
        parameter.data.add_(shift)
    return adapter


def carrier(
    family: str = "llama",
    *,
    window: int = 8,
    band: tuple[int, int] = (1, 3),
    adapter: Adapter | None = None,
    **settings: Any,
) -> CarryModel:
    made = random_adapter() if adapter is None else adapter
    return CarryModel(tiny(family, window), band=band, adapter=made, **{"pauses": 3, "loops": 2, **settings})


def random_rows(seed: int, spans: Sequence[tuple[int, int, int]]) -> list[tuple[list[int], int, list[int]]]:
    """Rows of ``(prompt, pauses, answer)`` lengths filled with random tokens that are no special ones."""
    stream = torch.Generator().manual_seed(seed)

    def draw(n: int) -> list[int]:
        return [int(token) for token in torch.randint(4, 256, (n,), generator=stream)]

    return [(draw(prompt), pauses, draw(answer)) for prompt, pauses, answer in spans]


def batch_of(seed: int, spans: Sequence[tuple[int, int, int]], *, left: bool = False) -> Batch:
    return pack(random_rows(seed, spans), PAUSE, left=left)


RAGGED = ((17, 2, 3), (5, 3, 1), (1, 0, 5), (9, 4, 0))
"""Spans whose rows are of different lengths, finish at different steps and pass a window of 8."""


def gradients(module: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in module.parameters()]


def relative(found: Tensor, wanted: Tensor) -> float:
    """Largest difference, as a share of the largest number."""
    found, wanted = found.detach(), wanted.detach()
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-12))
