"""The traps that a carry is known to fall into, one test each, and what is refused rather than got wrong.

Those with tests elsewhere: T3, T13 (padding) and T15 (masks per call) in test_equivalence and test_interventions,
T4, T9 and T12 in test_carry_generation, T16 in test_adapters, T18 in test_carry_cost; T19 (a load that asks a network)
in tests/models/test_load, for every backend that a carry runs on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from carry_cases import (
    FAMILIES,
    PAUSE,
    RAGGED,
    bare,
    bare_blocks,
    batch_of,
    carrier,
    random_adapter,
    relative,
    tiny,
)

from workbench import load
from workbench.carry import (
    BandRunner,
    CarryModel,
    CarrySettings,
    Layout,
    find_pause_token,
    make_adapter,
    pack,
    prompt_ids,
    reference_logits,
)
from workbench.carry.reference import capture
from workbench.carry.scan import scan
from workbench.errors import CarryError, PromptError, UnsupportedModelError
from workbench.models import Blocks
from workbench.models.bridge import BridgeModel
from workbench.models.tiny import tiny_checkpoint


def test_t1_the_captured_arguments_hold_no_cache_and_stay_right_after_other_passes() -> None:
    model, batch = carrier(), batch_of(1, [(9, 2, 2)])
    _, calls = capture(model.blocks, batch.ids, batch.mask, 1)
    assert all("past_key_values" not in call and "cache" not in call for call in calls)
    args = (model.blocks, model.adapter, batch.ids, batch.mask, batch.prompt_lengths)
    first = reference_logits(*args, band=(1, 3), loops=1)
    model.generate([[5, 6, 7]], max_new_tokens=4, stop=False)
    model.base.forward([[5, 6, 7]], model.base.new_cache())
    assert torch.equal(reference_logits(*args, band=(1, 3), loops=1), first)


def test_t2_a_prompt_of_no_tokens_is_refused() -> None:
    model, batch = carrier(), batch_of(2, [(5, 2, 1)])
    with pytest.raises(CarryError, match=r"prompt lengths must be 1 up to the row's length, got \[0\]"):
        model.logits(batch.ids, batch.mask, torch.tensor([0]))
    with pytest.raises(CarryError, match="row 0 has a prompt of 0 tokens"):
        model.generate([[]], max_new_tokens=1)


@pytest.mark.parametrize("mode", ["carry", "feedforward", "depth"])
def test_t5_a_float32_adapter_serves_a_bfloat16_model(mode: str) -> None:
    hf_model, tokenizer = tiny_checkpoint("gemma3", n_layers=4, n_ctx=96)
    model = CarryModel(
        BridgeModel(hf_model.to(torch.bfloat16), tokenizer, "half"), band=(1, 3), adapter=random_adapter(), mode=mode
    )
    batch = batch_of(3, RAGGED)
    found = model.states(batch.ids, batch.mask, batch.prompt_lengths)
    assert found.x.dtype == found.s.dtype == torch.bfloat16
    model.logits(batch.ids, batch.mask, batch.prompt_lengths)[batch.mask].sum().backward()
    assert all(parameter.dtype == torch.float32 for parameter in model.adapter.parameters())
    assert any(parameter.grad is not None for parameter in model.adapter.parameters())


def test_t6_any_of_several_end_tokens_ends_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    model = carrier()
    [free] = model.generate([[5, 6, 7]], max_new_tokens=6, stop=False)
    monkeypatch.setattr(model.tokenizer, "eos_token_ids", (2, free.tokens[2], free.tokens[3]))
    [found] = model.generate([[5, 6, 7]], max_new_tokens=6)
    first = min(free.tokens.index(free.tokens[2]), free.tokens.index(free.tokens[3]))
    assert (found.tokens, found.reason) == (free.tokens[: first + 1], "eos")


def test_t7_an_unknown_pause_token_is_refused_though_the_tokenizer_has_an_id_for_it() -> None:
    with pytest.raises(CarryError, match=r"no token '<unused1>'. Name one that it has.*'<pad>', '<bos>', '<unused0>'"):
        carrier(pause_token="<unused1>")


def test_t8_the_pause_token_is_found_by_name_and_shown_with_its_length() -> None:
    model = tiny("llama")
    found = find_pause_token(model.tokenizer, "<unused0>", carrier().blocks)
    norms = model.bridge.original_model.model.embed_tokens.weight.detach().norm(dim=-1)
    assert (found.id, found.text) == (PAUSE, "<unused0>")
    assert found.norm == pytest.approx(float(norms[PAUSE]), rel=1e-5)
    assert found.median_norm == pytest.approx(float(norms.median()), rel=1e-5)
    by_id = find_pause_token(model.tokenizer, 40, carrier().blocks)
    assert by_id.text == model.tokenizer.token_text(40)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (260, r"260 is outside the vocabulary 0..259"),
        (-1, "-1 is outside"),
        (2, r"token 2 \('<eos>'\) ends generation"),
    ],
)
def test_t8_a_pause_token_that_can_not_be_one_is_refused(wanted: int, says: str) -> None:
    with pytest.raises(CarryError, match=says):
        carrier(pause_token=wanted)


@pytest.mark.parametrize(
    ("mode", "loops", "spans", "fine"),
    [
        ("carry", 0, (5, 0, 1), False),
        ("carry", 0, (5, 1, 1), True),
        ("carry", 0, (5, 0, 2), True),
        ("carry", 1, (5, 0, 1), True),
        ("depth", 0, (5, 3, 1), False),
        ("depth_tail", 2, (5, 0, 1), False),
        ("depth_tail", 2, (5, 1, 1), True),
        ("prompt_loops", 0, (5, 0, 1), False),
        ("feedforward", 0, (5, 0, 1), True),
        ("plain", 3, (5, 3, 2), False),
    ],
)
def test_t10_a_batch_that_can_not_move_the_adapter_is_refused(
    mode: str, loops: int, spans: tuple[int, int, int], fine: bool
) -> None:
    model, batch = carrier(), batch_of(4, [spans])
    args = (batch.mask, batch.prompt_lengths, batch.reads())
    loss = model.logits(batch.ids, batch.mask, batch.prompt_lengths, loops=loops, mode=mode, reads=batch.reads()).sum()
    if fine:
        model.require_trainable(*args, loops=loops, mode=mode)
        loss.backward()
        assert any(bool((p.grad != 0).any()) for p in model.adapter.parameters() if p.grad is not None)
    else:
        with pytest.raises(CarryError, match="reads its answer before the adapter is ever used"):
            model.require_trainable(*args, loops=loops, mode=mode)
        assert not loss.requires_grad or all(
            not bool(g.any()) for g in torch.autograd.grad(loss, list(model.adapter.parameters()), allow_unused=True)
            if g is not None
        )  # fmt: skip


def test_t10_an_adapter_without_weights_is_refused() -> None:
    model, batch = carrier(adapter=make_adapter("replace", 32)), batch_of(4, [(5, 1, 1)])
    with pytest.raises(CarryError, match="'replace' has no parameters to train"):
        model.require_trainable(batch.mask, batch.prompt_lengths, batch.reads(), loops=1, mode="carry")


@pytest.mark.parametrize("frozen", [True, False])
def test_t11_gradients_reach_the_base_exactly_when_it_is_not_frozen(frozen: bool) -> None:
    hf_model, tokenizer = tiny_checkpoint("llama", n_layers=4, n_ctx=96)
    model = CarryModel(BridgeModel(hf_model, tokenizer, "own"), band=(1, 3), adapter=random_adapter(), frozen=frozen)
    batch, grads = batch_of(5, RAGGED), []
    assert all(parameter.requires_grad is not frozen for parameter in model.blocks.parameters())
    for slow in (False, True):
        model.adapter.zero_grad()
        for parameter in model.blocks.parameters():
            parameter.grad = None
        args = (batch.ids, batch.mask, batch.prompt_lengths)
        logits = (
            reference_logits(model.blocks, model.adapter, *args, band=(1, 3), loops=2)
            if slow
            else model.logits(*args, loops=2)
        )
        logits[batch.mask].square().mean().backward()
        grads.append([None if p.grad is None else p.grad.clone() for p in model.blocks.parameters()])
    for one, other in zip(*grads, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert relative(one, other) < 1e-3
    assert all(grad is None for grad in grads[0]) is frozen


def test_t14_double_precision_with_eager_attention_gives_no_nan() -> None:
    blocks, batch = bare_blocks("gemma3", 8, "eager", torch.float64), batch_of(6, RAGGED, left=True)
    layout = Layout.of(batch.mask, batch.prompt_lengths)
    found = scan(
        BandRunner(blocks, (1, 3)), random_adapter().double(), layout.to_front(batch.ids), layout.front(), loops=2
    )
    assert found.s.dtype == torch.float64
    assert bool(torch.isfinite(found.s).all())


def test_t17_a_softcap_on_the_logits_is_applied() -> None:
    hf_model, tokenizer = tiny_checkpoint("gemma3", n_layers=4, n_ctx=96)
    hf_model.config.final_logit_softcapping = 2.0
    model = CarryModel(BridgeModel(hf_model, tokenizer, "capped"), band=(1, 3))
    batch = batch_of(7, [(9, 2, 2)])
    found = model.logits(batch.ids, batch.mask, batch.prompt_lengths)
    with torch.no_grad():
        assert relative(found, model.blocks.whole(batch.ids).logits) < 1e-5
    assert float(found.detach().abs().max()) <= 2.0


def test_t20_pauses_stand_after_a_chats_generation_prompt() -> None:
    model = carrier()
    chat = [{"role": "user", "content": "hi"}]
    ids = prompt_ids(model, chat, pauses=2)
    assert ids == [*model.tokenizer.chat(chat), PAUSE, PAUSE]
    assert model.tokenizer.decode(ids).endswith("[assistant] <unused0><unused0>")


def test_t21_both_accuracies_are_reported_and_may_differ() -> None:
    model = carrier(pauses=1)
    [own] = model.generate([[5, 6, 7]], max_new_tokens=3, stop=False)
    wrong = (own.tokens[0] + 1) % 256
    rows = [([5, 6, 7], own.tokens), ([5, 6, 7], (wrong, *own.tokens[1:]))]
    carry = next(control for control in model.controls(rows) if control.name == "carry")
    assert carry.generated == 0.5
    assert carry.accuracy == 0.5
    depth = next(control for control in model.controls(rows) if control.mode == "depth")
    assert depth.generated is None


# --- what is refused ---


@pytest.mark.parametrize("band", [(2, 2), (3, 1), (-1, 2), (0, 5)])
def test_an_empty_band_or_one_outside_the_model_is_refused(band: tuple[int, int]) -> None:
    with pytest.raises(CarryError, match=r"0 <= l0 < l1 <= 4 .*got \("):
        carrier(band=band)


def test_an_adapter_of_another_width_is_refused() -> None:
    with pytest.raises(
        CarryError, match=r"width d_model=16, the model 32: make it with make_adapter\('linear_add', 32\)"
    ):
        carrier(adapter=make_adapter("linear_add", 16))


def test_more_positions_than_the_context_are_refused() -> None:
    model, batch = carrier(), batch_of(8, [(90, 5, 2)])
    with pytest.raises(PromptError, match=r"97 positions, pauses included.*n_ctx=96"):
        model.logits(batch.ids, batch.mask, batch.prompt_lengths)


def test_tokens_outside_the_vocabulary_are_refused() -> None:
    model, batch = carrier(), batch_of(8, [(5, 1, 2)])
    batch.ids[0, 2] = 260
    with pytest.raises(PromptError, match=r"must be 0..259, got .*260"):
        model.logits(batch.ids, batch.mask, batch.prompt_lengths)


@pytest.mark.parametrize(
    ("mask", "lengths", "says"),
    [
        ([[1, 0, 1]], [1], "one span of ones"),
        ([[0, 0, 0]], [1], r"for rows of \[0\] tokens"),
        ([[1, 1, 0]], [3], r"got \[3\] for rows of \[2\]"),
        ([[1, 1, 1]], [1, 2], r"prompt_lengths \[batch\]; got \(1, 3\) and \(2,\)"),
    ],
)
def test_spans_that_can_not_be_are_refused(mask: Any, lengths: list[int], says: str) -> None:
    with pytest.raises(CarryError, match=says):
        Layout.of(torch.tensor(mask), torch.tensor(lengths))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: load("tiny-llama", backend="hooked"), "backend 'bridge'.*load\\('tiny-llama', backend='bridge'\\)"),
        (
            lambda: load("tiny-gpt2", backend="bridge"),
            "'gpt2' models can't be run block by block.*llama, mistral, qwen2, qwen3, gemma3_text",
        ),
        (lambda: load("tiny-gpt_neox", backend="bridge"), "'gpt_neox' models can't be run block by block"),
    ],
)
def test_a_model_on_which_the_scan_is_not_known_to_be_exact_is_refused_by_name(make: Any, says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        CarryModel(make(), band=(0, 1))


@pytest.mark.parametrize(
    ("family", "change", "says"),
    [
        ("gemma3", {"use_bidirectional_attention": True}, "attends in both directions"),
        ("gemma3", {"layer_types": ["full_attention", "chunked_attention"] * 2}, "layers of type 'chunked_attention'"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}},
            "depend on the length of the sequence",
        ),
        ("llama", {"model_type": "mixtral"}, "'mixtral' models can't be run block by block"),
    ],
)
def test_a_config_that_breaks_the_proof_is_refused_by_name(family: str, change: dict[str, Any], says: str) -> None:
    model = bare(family)
    for name, value in change.items():
        object.__setattr__(model.config, name, value)
    with pytest.raises(UnsupportedModelError, match=says):
        Blocks(model)


def test_a_model_in_training_mode_with_dropout_is_refused() -> None:
    model = bare("llama")
    model.config.attention_dropout = 0.1
    with pytest.raises(UnsupportedModelError, match=r"attention_dropout > 0.*call .eval\(\)"):
        Blocks(model.train())


def test_a_model_whose_cache_failed_its_check_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny("llama"), "cache_works", False)
    with pytest.raises(CarryError, match="KV cache failed its check at load"):
        carrier()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_whose_parts_are_not_its_whole_is_refused(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Blocks.norm
    monkeypatch.setattr(Blocks, "norm", lambda self, x: 1.1 * wrong(self, x))
    with pytest.raises(CarryError, match="run part by part give other logits than the whole"):
        carrier(family)


def test_settings_are_plain_data_and_refuse_what_is_not_there() -> None:
    made = CarrySettings(band=(1, 3), pauses=4, loops=1, mode="depth")
    assert CarrySettings.of(made.to_dict()) == made
    with pytest.raises(CarryError, match="no mode 'deep'; choose from carry, feedforward"):
        replace(made, mode="deep")
    with pytest.raises(CarryError, match="loops=-1"):
        replace(made, loops=-1)


def test_an_empty_batch_and_a_mixed_prompt_are_refused() -> None:
    with pytest.raises(CarryError, match="a batch needs at least one row"):
        pack([], PAUSE)
    with pytest.raises(PromptError, match="empty or mixed"):
        prompt_ids(carrier(), [5, "a"])  # type: ignore[list-item]
    with pytest.raises(PromptError, match="prompt is empty"):
        prompt_ids(carrier(), "")
