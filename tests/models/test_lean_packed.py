"""Packed weights: blocks mean what their format says, and the pass means the dequantized model's."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize

from workbench.errors import UnsupportedModelError
from workbench.models import Edit, cached, load
from workbench.models.lean import LeanModel
from workbench.models.lean.blocks import FORMATS, Fields, take_apart
from workbench.models.lean.captures import KINDS, kind_of
from workbench.models.lean.compiled import MAX_COLUMNS
from workbench.models.lean.packed import PackedMatrices
from workbench.models.tiny import tiny_checkpoint

LOGITS = 1e-3
needs_gemma = pytest.mark.skipif(
    not cached("gemma-3-270m") and "gemma" not in os.environ.get("WORKBENCH_ACCEPT_TERMS", ""),
    reason="Gemma's terms are not accepted here: WORKBENCH_ACCEPT_TERMS=gemma, as continuous integration does",
)
REAL = ["smollm2-135m-instruct", pytest.param("gemma-3-270m", marks=needs_gemma)]
IDS = [5, 99, 123, 7, 43, 8, 200, 17, 64, 3, 250, 31, 90, 12, 77, 6]


def random_blocks(type_name: str, rows: int, width: int) -> np.ndarray:
    """Bytes of a tensor whose fields are random and whose 16-bit scales are ordinary numbers."""
    known = FORMATS[type_name]
    raw = np.random.default_rng(7).integers(0, 256, (rows * width // known.weights, known.size), dtype=np.uint8)
    halves = {"Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q6_K": [208]}.get(type_name, [0])
    for number, first in enumerate(halves):
        scale = np.random.default_rng(number).uniform(-0.1, 0.1, len(raw)).astype(np.float16)
        raw[:, first : first + 2] = scale[:, None].view(np.uint8)
    return raw


@pytest.mark.parametrize("type_name", FORMATS)
class TestBlocks:
    def test_fields_scales_and_minima_give_the_weights_that_the_format_says(self, type_name: str) -> None:
        raw = random_blocks(type_name, 16, 512)
        wanted = dequantize(raw.reshape(16, -1), gguf.GGMLQuantizationType[type_name])
        found = take_apart(raw.ravel(), type_name, (16, 512))
        weights = np.repeat(found.scales, found.block, axis=1).astype(np.float64) * found.fields
        weights += np.repeat(found.minima, found.block, axis=1)
        assert np.allclose(weights, wanted, rtol=1e-6, atol=1e-6)
        assert found.fields.max() < 1 << found.bits

    def test_they_are_decoded_to_the_same_numbers(self, type_name: str) -> None:
        raw = random_blocks(type_name, 16, 512)
        wanted = torch.from_numpy(dequantize(raw.reshape(16, -1), gguf.GGMLQuantizationType[type_name]))
        packed = PackedMatrices([[take_apart(raw.ravel(), type_name, (16, 512))]] * 2)
        assert packed.shape == (2, 16, 512)
        assert torch.allclose(packed[1], wanted, rtol=1e-6, atol=1e-7)
        assert torch.equal(packed.rows(np.array([9, 2])), packed[0][[9, 2]])
        given = torch.randn(3, 512, generator=torch.Generator().manual_seed(0))
        assert torch.allclose(packed.times(given), given @ packed[0].T, atol=1e-4)


def test_unlike_blocks_are_brought_to_one_form() -> None:
    four, six = (take_apart(random_blocks(name, 8, 512).ravel(), name, (8, 512)) for name in ("Q4_K", "Q6_K"))
    together = PackedMatrices([[four, six], [six, four]])
    alone = [PackedMatrices([[part]])[0] for part in (four, six)]
    assert together.packed.bits == 8
    assert torch.equal(together[0], torch.cat(alone))
    assert torch.equal(together[1], torch.cat(alone[::-1]))


class Requantized:
    """A tiny model's weights in blocks of our own making, and the model with exactly those weights."""

    def __init__(self, family: str, bits: int) -> None:
        self.whole, self.tokenizer = tiny_checkpoint(family, n_ctx=256)
        self.bits = bits
        embed = self.whole.model.embed_tokens
        self._embedding = self._take(embed)
        tied = self.whole.lm_head.weight is embed.weight
        self._head = None if tied else self._take(self.whole.lm_head)
        self._parts = {
            (layer, name): self._take(getattr(each.self_attn, name, None) or getattr(each.mlp, name))
            for layer, each in enumerate(self.whole.model.layers)
            for name in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        }

    def _take(self, module: Any) -> Fields:
        weight = module.get_parameter("weight")
        blocks = weight.detach().reshape(len(weight), -1, 32)
        low, high = blocks.amin(-1), blocks.amax(-1)
        scale = (high - low) / ((1 << self.bits) - 1)
        fields = ((blocks - low[..., None]) / scale[..., None]).round()
        weight.data = (fields * scale[..., None] + low[..., None]).reshape(weight.shape)
        flat = fields.reshape(weight.shape).numpy().astype(np.uint8)
        return Fields(fields=flat, scales=scale.numpy(), minima=low.numpy(), bits=self.bits)

    def part(self, layer: int, name: str) -> Fields:
        return self._parts[layer, name]

    def embedding(self) -> Fields:
        return self._embedding

    def unembedding(self) -> Fields | None:
        return self._head


@cache
def pair(family: str, bits: int) -> tuple[LeanModel, LeanModel]:
    """The same weights, packed and plain."""
    made: Any = Requantized(family, bits)
    packed = LeanModel(made.whole, made.tokenizer, "packed", made)
    return packed, LeanModel(made.whole, made.tokenizer, "plain")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
class TestPass:
    @pytest.mark.parametrize("n", [1, 3, 16, 60, 100])
    def test_it_gives_the_plain_models_logits_and_activations(self, family: str, bits: int, n: int) -> None:
        packed, plain = pair(family, bits)
        ids = (IDS * 7)[:n]
        hooks = [name for name in plain.hook_names if kind_of(name) in KINDS]
        found, wanted = (m.forward([ids], m.new_cache(), capture=hooks, keep=[n]) for m in (packed, plain))
        assert (found.logits[0] - wanted.logits[0]).abs().max() < LOGITS
        for name in hooks:
            assert torch.allclose(found.activations[name][0], wanted.activations[name][0], atol=1e-4, rtol=1e-4), name
        assert found.note == ("compiled" if n <= MAX_COLUMNS else "twin: many tokens")

    def test_edits_of_the_stream_mean_the_same(self, family: str, bits: int) -> None:
        packed, plain = pair(family, bits)
        names = ("blocks.0.hook_resid_pre", "blocks.1.hook_resid_mid", "blocks.2.hook_resid_post")
        edits = [
            Edit(hook=name, row=0, start=2, stop=9, fn=lambda value: value * 0.5 + torch.linspace(-1, 1, 32))
            for name in names
        ]
        found, wanted = (m.forward([IDS], m.new_cache(), edits=edits, keep=[16]).logits[0] for m in (packed, plain))
        assert (found - wanted).abs().max() < LOGITS
        assert (plain.forward([IDS], plain.new_cache(), keep=[16]).logits[0] - wanted).abs().max() > 1e-2

    def test_any_number_of_threads_gives_the_same_bits(self, family: str, bits: int) -> None:
        packed = pair(family, bits)[0]
        present = torch.get_num_threads()
        try:
            found = []
            for count in (1, 2, 4):
                torch.set_num_threads(count)
                found += [packed.forward([IDS, IDS[:5]], packed.new_cache(2)).logits for _ in range(5)]
        finally:
            torch.set_num_threads(present)
        assert all(torch.equal(a, b) for result in found[1:] for a, b in zip(result, found[0], strict=True))


class TestRefusals:
    def test_a_model_that_was_made_from_no_gguf_file_is_refused(self) -> None:
        with pytest.raises(UnsupportedModelError, match="'tiny-llama' was not made from a GGUF file"):
            load("tiny-llama", backend="lean", packed=True)

    def test_another_backend_is_refused(self) -> None:
        with pytest.raises(UnsupportedModelError, match="packed=True is for backend='lean'"):
            load("tiny-llama", packed=True)

    def test_another_dtype_is_refused(self) -> None:
        whole, tokenizer = tiny_checkpoint("llama")
        blocks: Any = Requantized("llama", 4)
        with pytest.raises(UnsupportedModelError, match=r"decoded to float32 on the CPU, not to torch\.bfloat16"):
            LeanModel(whole.to(torch.bfloat16), tokenizer, "half", blocks)


@pytest.mark.real
@pytest.mark.parametrize("name", REAL)
def test_a_real_models_blocks_give_the_dequantized_models_logits(name: str) -> None:
    plain, packed = (load(name, backend="lean", packed=which) for which in (False, True))
    assert isinstance(plain, LeanModel)
    assert isinstance(packed, LeanModel)
    assert packed.weights.nbytes < 0.45 * plain.weights.nbytes
    for which in ("qkv", "attention_out", "gate_up", "down"):
        assert torch.equal(getattr(packed.weights, which)[3], getattr(plain.weights, which)[3]), which
    ids = plain.tokenizer.prompt("The lighthouse keeper wrote down every ship that passed. " * 16)
    stores: list[Any] = [model.new_cache() for model in (plain, packed)]
    for part in (ids[:110], ids[110:130], ids[130:131]):
        wanted, found = (
            model.forward([part], store, keep=[len(part)]).logits[0]
            for model, store in zip((plain, packed), stores, strict=True)
        )
        assert float((found - wanted).abs().max()) < LOGITS
