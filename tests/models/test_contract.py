"""The contract of HookedModel, for every backend and family: exactness, rewinding, capture, edits."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workbench.errors import PromptError, UnknownHookError, UnsupportedModelError
from workbench.models import Edit, HookedModel, Tokenizer, cached, load, match_hooks, path
from workbench.models.tiny import TINY_FAMILIES, tiny_checkpoint

HAS_HOOKED = importlib.util.find_spec("transformer_lens.HookedTransformer") is not None
needs_hooked = pytest.mark.skipif(not HAS_HOOKED, reason="TransformerLens 4 no longer has HookedTransformer")
BACKENDS = ["bridge", pytest.param("hooked", marks=needs_hooked)]
"""The wrapped ones, which run every family."""
LEAN_FAMILIES = ("llama", "gemma3")
MODELS = [
    *((family, "bridge") for family in TINY_FAMILIES),
    *(pytest.param(family, "hooked", marks=needs_hooked) for family in TINY_FAMILIES),
    *((family, "lean") for family in LEAN_FAMILIES),
]
LOGITS = 1e-3
RESIDUAL = 1e-4
"""Largest allowed differences: of logits, and of a residual relative to its own norm."""


@cache
def tiny(family: str, backend: str) -> Any:
    return load(f"tiny-{family}", backend=backend)


@cache
def plain(family: str) -> Any:
    """The Hugging Face model that the wrapped ones were made of: same family, same seed."""
    return tiny_checkpoint(family)[0]


def reference(family: str, ids: list[int]) -> tuple[Tensor, list[Tensor]]:
    with torch.inference_mode():
        out = plain(family)(torch.tensor([ids]), output_hidden_states=True)
    return out.logits[0], [state[0] for state in out.hidden_states]


def relative(found: Tensor, wanted: Tensor) -> float:
    return float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max())


IDS = [5, 99, 123, 7, 43, 8, 200, 17, 64, 3, 250, 31, 90, 12, 77, 6]


@pytest.mark.parametrize(("family", "backend"), MODELS)
class TestEveryModel:
    def test_is_a_hooked_model(self, family: str, backend: str) -> None:
        model = tiny(family, backend)
        assert isinstance(model, HookedModel)
        assert model.backend == backend
        assert (model.n_layers, model.d_model, model.vocab_size) == (3, 32, len(model.tokenizer))

    def test_logits_and_residuals_are_those_of_plain_transformers(self, family: str, backend: str) -> None:
        model = tiny(family, backend)
        hooks = [f"blocks.{layer}.hook_resid_post" for layer in range(model.n_layers)]
        passed = model.forward([IDS], model.new_cache(), capture=hooks, keep=[len(IDS)])
        logits, states = reference(family, IDS)
        assert (passed.logits[0] - logits).abs().max() < LOGITS
        # The last hidden state of transformers is already normed, so it is compared through the head.
        for layer in range(model.n_layers - 1):
            assert relative(passed.activations[hooks[layer]][0], states[layer + 1]) < RESIDUAL
        assert (model.unembed(passed.activations[hooks[-1]][0]) - logits).abs().max() < LOGITS

    def test_residual_stream_adds_up(self, family: str, backend: str) -> None:
        model = tiny(family, backend)
        names = ("hook_resid_pre", "hook_resid_mid", "hook_attn_out", "hook_mlp_out", "hook_resid_post")
        wanted = [f"blocks.{n}.{name}" for n in range(3) for name in names]
        wanted = [name for name in wanted if name in model.hook_names]  # NeoX has no middle: it runs in parallel
        found = model.forward([IDS], model.new_cache(), capture=wanted).activations
        for n in range(3):
            pre, post = found[f"blocks.{n}.hook_resid_pre"][0], found[f"blocks.{n}.hook_resid_post"][0]
            parts = found[f"blocks.{n}.hook_attn_out"][0] + found[f"blocks.{n}.hook_mlp_out"][0]
            assert relative(pre + parts, post) < RESIDUAL
            if f"blocks.{n}.hook_resid_mid" in found:
                middle = pre + found[f"blocks.{n}.hook_attn_out"][0]
                assert relative(middle, found[f"blocks.{n}.hook_resid_mid"][0]) < RESIDUAL
            if n:
                assert torch.equal(pre, found[f"blocks.{n - 1}.hook_resid_post"][0])

    def test_a_few_tokens_at_a_time_equal_all_at_once(self, family: str, backend: str) -> None:
        model = tiny(family, backend)
        store = model.new_cache()
        parts = [model.forward([IDS[a:b]], store, keep=[b - a]).logits[0] for a, b in ((0, 9), (9, 10), (10, 16))]
        assert (torch.cat(parts) - reference(family, IDS)[0]).abs().max() < LOGITS
        assert store.lengths == (len(IDS),)

    def test_edit_acts_where_asked_and_is_seen_by_capture(self, family: str, backend: str) -> None:
        model = tiny(family, backend)
        hook = "blocks.1.hook_resid_post"
        ramp = torch.linspace(-1, 1, 32)  # not constant: a LayerNorm would not see that
        edit = Edit(hook=hook, row=0, start=4, stop=6, fn=lambda value: value + ramp)
        before = model.forward([IDS], model.new_cache(), capture=[hook], keep=[16])
        after = model.forward([IDS], model.new_cache(), capture=[hook], edits=[edit], keep=[16])
        change = after.activations[hook][0] - before.activations[hook][0]
        assert torch.allclose(change[4:6], ramp.expand(2, 32), atol=1e-5)
        assert change[:4].abs().max() == 0
        assert change[6:].abs().max() == 0
        assert (after.logits[0][:4] - before.logits[0][:4]).abs().max() < 1e-5
        assert (after.logits[0][4:] - before.logits[0][4:]).abs().max() > 1e-2

    def test_hooks_are_gone_after_a_pass_and_after_a_failed_one(self, family: str, backend: str) -> None:
        model = tiny(family, backend)
        hook = "blocks.0.hook_resid_pre"
        if backend == "lean":
            with pytest.raises(UnsupportedModelError, match=r"has no module at 'blocks\.0\.hook_resid_pre'"):
                model.point(hook)
            return
        point = model.point(hook)
        mine = point.register_forward_hook(lambda *_: None)
        try:
            edit = Edit(hook=hook, row=0, start=0, stop=1, fn=lambda _: 1 / 0)
            store = model.new_cache()
            with pytest.raises(ZeroDivisionError):
                model.forward([IDS], store, capture=[hook], edits=[edit])
            assert list(point._forward_hooks) == [mine.id]
            assert store.lengths == (0,)
        finally:
            mine.remove()

    def test_attention_patterns_sum_to_one_over_the_past(self, family: str, backend: str) -> None:
        model = tiny(family, backend)
        hook = "blocks.2.attn.hook_pattern"
        store = model.new_cache(2)
        model.forward([IDS[:3], IDS[:7]], store)
        found = model.forward([IDS[3:5], IDS[7:9]], store, capture=[hook]).activations[hook]
        assert [tuple(pattern.shape) for pattern in found] == [(2, 4, 5), (2, 4, 9)]
        for pattern in found:
            assert torch.allclose(pattern.sum(-1), torch.ones(2, 4), atol=1e-5)


@needs_hooked
@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_the_backends_name_the_same_things(family: str) -> None:
    bridge, hooked = tiny(family, "bridge"), tiny(family, "hooked")
    common = [name for name in bridge.hook_names if name in hooked.hook_names]
    assert set(bridge.hook_names) ^ set(hooked.hook_names) <= {"hook_pos_embed"}
    one = bridge.forward([IDS], bridge.new_cache(), capture=common)
    two = hooked.forward([IDS], hooked.new_cache(), capture=common)
    for name in common:
        a, b = one.activations[name][0], two.activations[name][0]
        assert a.shape == b.shape, name
        assert torch.equal(a == -torch.inf, b == -torch.inf), name
        a, b = a.masked_fill(a == -torch.inf, 0.0), b.masked_fill(b == -torch.inf, 0.0)
        assert float((a - b).abs().max()) <= RESIDUAL * max(float(b.abs().max()), 1.0), name


@needs_hooked
@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_the_same_edit_means_the_same_in_both_backends(family: str) -> None:
    bridge, hooked = tiny(family, "bridge"), tiny(family, "hooked")
    shared = [name for name in bridge.edit_names if name in hooked.edit_names and name != "hook_pos_embed"]
    assert "blocks.1.hook_resid_post" in shared
    for name in shared:
        edit = Edit(hook=name, row=0, start=3, stop=9, fn=lambda value: value * 0.5)
        one, two = (m.forward([IDS], m.new_cache(), edits=[edit], keep=[16]).logits[0] for m in (bridge, hooked))
        assert (one - two).abs().max() < LOGITS, name


@settings(max_examples=25, deadline=None)
@given(
    which=st.sampled_from(
        [(family, "bridge") for family in TINY_FAMILIES]
        + [(family, "hooked") for family in TINY_FAMILIES if HAS_HOOKED]
        + [(family, "lean") for family in LEAN_FAMILIES]
    ),
    moves=st.lists(
        st.tuples(st.lists(st.integers(0, 5), min_size=3, max_size=3), st.integers(0, 2), st.integers(0, 9)),
        min_size=1, max_size=8,
    ),
)  # fmt: skip
def test_any_mix_of_ragged_passes_and_rewinds_equals_a_fresh_pass(
    which: tuple[str, str], moves: list[tuple[list[int], int, int]]
) -> None:
    family, backend = which
    model = tiny(family, backend)
    rows: list[list[int]] = [[], [], []]
    store = model.new_cache(3)
    for number, (counts, row, back) in enumerate(moves):
        fed = [[(31 * number + 7 * r + i) % 260 for i in range(count)] for r, count in enumerate(counts)]
        logits = model.forward(fed, store, keep=[min(count, 1) for count in counts]).logits
        for r, tokens in enumerate(fed):
            rows[r] += tokens
            if tokens:
                assert (logits[r][-1] - reference(family, rows[r])[0][-1]).abs().max() < LOGITS
        back = min(back, len(rows[row]))
        store.rewind(row, back)
        rows[row] = rows[row][: len(rows[row]) - back]
        assert store.lengths == tuple(map(len, rows))


@pytest.mark.parametrize(("family", "backend"), MODELS)
def test_every_offered_hook_fires(family: str, backend: str) -> None:
    model = tiny(family, backend)
    found = model.forward([IDS], model.new_cache(), capture=model.hook_names).activations
    assert tuple(found) == model.hook_names
    assert all(len(rows[0]) == len(IDS) for rows in found.values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("family", "backend"), MODELS)
def test_half_precision_keeps_its_cache(family: str, backend: str, dtype: torch.dtype) -> None:
    model = load(f"tiny-{family}", backend=backend, dtype=dtype)
    assert model.cache_works
    assert model.forward([IDS], model.new_cache()).logits[0].dtype == torch.float32


@needs_hooked
def test_what_a_backend_leaves_out_is_noticed_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.models import load as _  # noqa: F401
    from workbench.models import tiny as tiny_module

    def with_bias(*args: Any) -> Any:
        config = plain_llama(*args)
        config.attention_bias = True
        return config

    plain_llama = tiny_module._llama
    monkeypatch.setattr(tiny_module, "_llama", with_bias)
    monkeypatch.setattr(
        tiny_module.torch.nn.Module, "named_parameters", _random_biases(tiny_module.torch.nn.Module.named_parameters)
    )
    with pytest.raises(UnsupportedModelError, match="gives other logits for tiny-llama than transformers does"):
        load("tiny-llama", backend="hooked")


def _random_biases(original: Any) -> Any:
    """Weights are drawn for matrices only; this draws the biases too."""

    def named(self: Any, *args: Any, **settings: Any) -> Any:
        for name, weight in original(self, *args, **settings):
            if name.endswith("_proj.bias"):
                with torch.no_grad():
                    weight.normal_(0, 1)
            yield name, weight

    return named


def test_rewind_moves_no_memory() -> None:
    model = tiny("llama", "bridge")
    store = model.new_cache()
    model.forward([IDS], store)
    before = [tensor.data_ptr() for tensor in store._keys]
    store.rewind(0, 9)
    assert [tensor.data_ptr() for tensor in store._keys] == before
    with pytest.raises(ValueError, match="can't rewind row 0 by 8: it holds 7 positions"):
        store.rewind(0, 8)


def test_a_cache_that_lies_is_switched_off_and_results_stay_right(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("tiny-llama")
    inner = model.bridge

    def forgetful(tokens: Tensor, **kwargs: Any) -> Tensor:
        kwargs["past_key_values"] = None
        return inner(tokens, **kwargs)

    monkeypatch.setattr(model, "bridge", forgetful)
    with pytest.warns(UserWarning, match="KV cache is switched off"):
        model.check_cache()
    store = model.new_cache()
    model.forward([IDS[:5]], store)
    assert store.lengths == (0,)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.forward([[999]], m.new_cache()), PromptError, "token id 999 in row 0 is outside"),
        (lambda m: m.forward([[1] * 257], m.new_cache()), PromptError, "accepts at most n_ctx=256"),
        (lambda m: m.forward([[1]], m.new_cache(2)), ValueError, "cache has 2 rows but tokens for 1"),
        (
            lambda m: m.forward([[1]], m.new_cache(), capture=["blocks.0.resid_post"]),
            UnknownHookError,
            "Did you mean 'blocks.0.hook_resid_post'",
        ),
        (lambda m: match_hooks("blocks.*.resid", m.hook_names), UnknownHookError, "no hook matches"),
        (lambda m: load("tiny-llama", backend="fast"), UnsupportedModelError, "choose from bridge, hooked, lean"),
        (lambda m: m.new_cache(0), ValueError, "at least one row"),
    ],
)
def test_bad_calls_say_what_would_be_right(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(tiny("llama", "bridge"))


class TestTokenizer:
    tokenizer: Tokenizer = tiny_checkpoint("llama")[1]

    def test_encode_adds_nothing_and_decode_gives_it_back(self) -> None:
        text = "a b\n\tçé 東京 🙂"
        assert self.tokenizer.decode(self.tokenizer.encode(text)) == text

    def test_a_chat_has_exactly_one_bos(self) -> None:
        ids = self.tokenizer.chat([{"role": "user", "content": "hi"}])
        assert ids.count(1) == 1
        assert ids[0] == 1
        assert self.tokenizer.prompt("<bos>hi")[0] == 1
        assert self.tokenizer.prompt("<bos><bos>hi").count(1) == 1

    def test_part_of_a_character_shows_its_bytes(self) -> None:
        assert [self.tokenizer.token_text(t) for t in self.tokenizer.encode("🙂")] == [
            "<0xF0>", "<0x9F>", "<0x99>", "<0x82>",
        ]  # fmt: skip

    def test_special_tokens_are_found_by_name_only_if_they_exist(self) -> None:
        assert self.tokenizer.special_token("<unused0>") == 3
        assert self.tokenizer.special_token("<end_of_turn>") is None

    def test_special_tokens_are_told_from_the_same_letters(self) -> None:
        assert [self.tokenizer.is_special(token) for token in (0, 1, 2, 3, 4)] == [True] * 4 + [False]
        assert not any(map(self.tokenizer.is_special, self.tokenizer.encode("<b") + self.tokenizer.encode("os>")))

    def test_empty_prompts_are_refused(self) -> None:
        with pytest.raises(PromptError, match="the prompt is empty"):
            self.tokenizer.prompt("")
        with pytest.raises(PromptError, match="conversation is empty"):
            self.tokenizer.chat([])


needs_gemma = pytest.mark.skipif(
    not cached("gemma-3-270m") and "gemma" not in os.environ.get("WORKBENCH_ACCEPT_TERMS", ""),
    reason="Gemma's terms are not accepted here: WORKBENCH_ACCEPT_TERMS=gemma, as continuous integration does",
)
REAL = ["smollm2-135m-instruct", pytest.param("gemma-3-270m", marks=needs_gemma)]


@pytest.mark.real
@pytest.mark.parametrize("name", REAL)
class TestRealModels:
    PROMPT = "The capital of France is Paris, and 17 * 23 ="

    def test_backends_and_plain_transformers_agree(self, name: str) -> None:
        from transformers import AutoModelForCausalLM

        source = AutoModelForCausalLM.from_pretrained(path(name), dtype=torch.float32, attn_implementation="sdpa")
        bridge = load(name)
        ids = bridge.tokenizer.prompt(self.PROMPT)
        with torch.inference_mode():
            out = source(torch.tensor([ids]), output_hidden_states=True)
        hooks = match_hooks("blocks.*.hook_resid_post", bridge.hook_names)
        others = [load(name, backend=backend) for backend in (["hooked", "lean"] if HAS_HOOKED else ["lean"])]
        for model in [bridge, *others]:
            found = model.forward([ids], model.new_cache(), capture=hooks, keep=[len(ids)])
            assert (found.logits[0] - out.logits[0]).abs().max() < LOGITS
            for layer, hook in enumerate(hooks[:-1]):
                assert relative(found.activations[hook][0], out.hidden_states[layer + 1][0]) < RESIDUAL
            assert (model.unembed(found.activations[hooks[-1]][0]) - out.logits[0]).abs().max() < LOGITS

    def test_the_sliding_window_and_the_cache_agree_beyond_the_window(self, name: str) -> None:
        model = load(name)
        ids = model.tokenizer.prompt("The lighthouse keeper wrote down every ship that passed. " * 60)[:600]
        store = model.new_cache()
        model.forward([ids[:590]], store)
        parts = model.forward([ids[590:]], store, keep=[10]).logits[0]
        whole = model.forward([ids], model.new_cache(), keep=[10]).logits[0]
        assert (parts - whole).abs().max() < LOGITS

    def test_the_chat_template_is_the_models_own(self, name: str) -> None:
        model = load(name)
        if not model.tokenizer.has_chat_template:
            with pytest.raises(PromptError, match="has no chat template"):
                model.tokenizer.chat([{"role": "user", "content": "Hi"}])
            return
        ids = model.tokenizer.chat([{"role": "user", "content": "Hi"}])
        text = model.tokenizer.decode(ids)
        assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
        assert ids[0] == model.tokenizer.bos_token_id
        assert ids[1] != ids[0]
