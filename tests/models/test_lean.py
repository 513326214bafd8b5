"""The lean backend: both gears mean what the bridge means, at every hook, for any mix of rows, edits and rewinds."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workbench.models import Edit, Forward, cached, load
from workbench.models.lean import LeanModel
from workbench.models.lean.captures import EDITED, KINDS
from workbench.models.tiny import tiny_checkpoint

FAMILIES = ("llama", "gemma3")
IDS = [5, 99, 123, 7, 43, 8, 200, 17, 64, 3, 250, 31, 90, 12, 77, 6]
LOGITS = 1e-3
RESIDUAL = 1e-4
needs_gemma = pytest.mark.skipif(
    not cached("gemma-3-270m") and "gemma" not in os.environ.get("WORKBENCH_ACCEPT_TERMS", ""),
    reason="Gemma's terms are not accepted here: WORKBENCH_ACCEPT_TERMS=gemma, as continuous integration does",
)
REAL = ["smollm2-135m-instruct", pytest.param("gemma-3-270m", marks=needs_gemma)]


@cache
def bridge(family: str) -> Any:
    return load(f"tiny-{family}")


@cache
def lean(family: str) -> LeanModel:
    """With room for a past of several chunks, unlike ``load("tiny-…")``; the weights are the same."""
    hf_model, tokenizer = tiny_checkpoint(family, n_ctx=1024)
    return LeanModel(hf_model, tokenizer, f"tiny-{family}")


@cache
def twin(family: str) -> LeanModel:
    hf_model, tokenizer = tiny_checkpoint(family, n_ctx=1024)
    model = LeanModel(hf_model, tokenizer, f"tiny-{family}")
    model.gear = None
    return model


def kind(name: str) -> str:
    return name.split(".", 2)[-1]


def compiled_hooks(model: LeanModel) -> list[str]:
    return [name for name in model.hook_names if kind(name) in KINDS]


def assert_close(found: Tensor, wanted: Tensor, what: str) -> None:
    assert found.shape == wanted.shape, what
    assert torch.equal(found == -torch.inf, wanted == -torch.inf), what
    found, wanted = (value.masked_fill(value == -torch.inf, 0.0) for value in (found, wanted))
    assert float((found - wanted).abs().max()) <= RESIDUAL * max(float(wanted.norm(dim=-1).max()), 1.0), what


def assert_same(found: Forward, wanted: Forward) -> None:
    for one, two in zip(found.logits, wanted.logits, strict=True):
        assert one.shape == two.shape
        assert one.numel() == 0 or (one - two).abs().max() < LOGITS
    for name, rows in wanted.activations.items():
        for one, two in zip(found.activations[name], rows, strict=True):
            if two.numel():
                assert_close(one, two, name)


@pytest.mark.parametrize("family", FAMILIES)
class TestOnePass:
    def test_it_offers_the_bridges_hooks_and_one_more_edit_a_layer(self, family: str) -> None:
        model = lean(family)
        assert model.hook_names == bridge(family).hook_names
        middles = {f"blocks.{layer}.hook_resid_mid" for layer in range(3)}
        assert set(model.edit_names) - set(bridge(family).edit_names) == middles
        assert set(bridge(family).edit_names) <= set(model.edit_names)

    def test_the_twin_shows_what_the_bridge_shows_at_every_hook(self, family: str) -> None:
        one, two = bridge(family), twin(family)
        wanted = one.forward([IDS], one.new_cache(), capture=one.hook_names, keep=[16])
        assert_same(two.forward([IDS], two.new_cache(), capture=one.hook_names, keep=[16]), wanted)

    def test_the_compiled_gear_shows_what_the_bridge_shows(self, family: str) -> None:
        one, two = bridge(family), lean(family)
        before = dict(two.twin_passes)
        hooks = compiled_hooks(two)
        wanted = one.forward([IDS], one.new_cache(), capture=hooks, keep=[16])
        assert_same(two.forward([IDS], two.new_cache(), capture=hooks, keep=[16]), wanted)
        assert two.twin_passes == before
        assert {kind(name) for name in hooks} == set(KINDS)

    @pytest.mark.parametrize("which", [lean, twin], ids=["compiled", "twin"])
    def test_the_same_edit_means_the_same_as_on_the_bridge(self, family: str, which: Callable[[str], Any]) -> None:
        one, two = bridge(family), which(family)
        for name in one.edit_names:
            edit = Edit(hook=name, row=0, start=3, stop=9, fn=lambda value: value * 0.5)
            logits, wanted = (m.forward([IDS], m.new_cache(), edits=[edit], keep=[16]).logits[0] for m in (two, one))
            assert (logits - wanted).abs().max() < LOGITS, name

    def test_edits_of_the_stream_stay_compiled_and_act_in_order(self, family: str) -> None:
        fast, slow = lean(family), twin(family)
        before = dict(fast.twin_passes)
        names = [f"blocks.{layer}.{name}" for layer in range(3) for name in EDITED]
        edits = [
            Edit(hook=name, row=0, start=at, stop=at + 5, fn=change)
            for at, name in enumerate(reversed(names))
            for change in (lambda value: value * 2, lambda value: value + torch.linspace(-1, 1, 32))
        ]
        hooks = compiled_hooks(fast)
        found, wanted = (m.forward([IDS], m.new_cache(), capture=hooks, edits=edits, keep=[16]) for m in (fast, slow))
        assert_same(found, wanted)
        assert fast.twin_passes == before
        plain = slow.forward([IDS], slow.new_cache(), keep=[16])
        assert (plain.logits[0] - wanted.logits[0]).abs().max() > 1e-2

    def test_a_change_of_the_middle_moves_the_stream(self, family: str) -> None:
        model = lean(family)
        ramp = torch.linspace(-1, 1, 32)
        names = ["blocks.1.hook_resid_mid", "blocks.1.hook_mlp_out", "blocks.1.hook_resid_post"]
        edit = Edit(hook=names[0], row=0, start=0, stop=16, fn=lambda value: value + ramp)
        plain, moved = (
            model.forward([IDS], model.new_cache(), capture=names, edits=edits).activations for edits in ([], [edit])
        )
        assert_close(moved[names[0]][0], plain[names[0]][0] + ramp, names[0])
        assert_close(moved[names[2]][0], moved[names[0]][0] + moved[names[1]][0], names[2])

    def test_an_edit_that_fails_leaves_the_cache_as_it_was(self, family: str) -> None:
        model = lean(family)
        store = model.new_cache()
        model.forward([IDS[:7]], store)
        edit = Edit(hook="blocks.1.hook_resid_post", row=0, start=0, stop=1, fn=lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.forward([IDS[7:9]], store, edits=[edit])
        assert store.lengths == (7,)
        again = model.forward([IDS[7:]], store).logits[0]
        assert (again - model.forward([IDS], model.new_cache()).logits[0]).abs().max() < LOGITS

    def test_any_number_of_threads_gives_the_same_bits(self, family: str) -> None:
        model = lean(family)
        hooks = compiled_hooks(model)
        results = []
        present = torch.get_num_threads()
        try:
            for count in (1, 2, 5):
                torch.set_num_threads(count)
                for _ in range(10):
                    results.append(model.forward([IDS, IDS[:5]], model.new_cache(2), capture=hooks, keep=[16, 2]))
        finally:
            torch.set_num_threads(present)
        for result in results[1:]:
            assert all(map(torch.equal, result.logits, results[0].logits))
            for name in hooks:
                assert all(map(torch.equal, result.activations[name], results[0].activations[name])), name

    def test_a_past_of_many_chunks_and_of_many_windows(self, family: str) -> None:
        fast, slow = lean(family), twin(family)
        ids = [(31 * i + 7) % 260 for i in range(900)]
        stores = fast.new_cache(2), slow.new_cache(2)
        hooks = compiled_hooks(fast)
        for part in ([ids[:700], ids[:3]], [ids[700:701], ids[3:4]], [ids[701:765], []], [ids[765:], ids[4:9]]):
            keep = [min(len(row), 4) for row in part]
            found, wanted = (
                m.forward(part, store, capture=hooks, keep=keep) for m, store in zip((fast, slow), stores, strict=True)
            )
            assert_same(found, wanted)

    def test_a_row_that_overflowed_and_was_rewound_leaks_nowhere(self, family: str) -> None:
        for model in (lean(family), twin(family)):
            store = model.new_cache(2)
            model.forward([IDS[:3], IDS[:9]], store)
            spoil = Edit(hook="blocks.0.hook_resid_pre", row=0, start=0, stop=3, fn=lambda value: value * torch.nan)
            model.forward([IDS[3:6], []], store, edits=[spoil])
            store.rewind(0, 3)
            found = model.forward([IDS[3:4], IDS[9:10]], store).logits
            alone = [model.forward([ids], model.new_cache()).logits[0] for ids in (IDS[:4], IDS[:10])]
            for one, two in zip(found, alone, strict=True):
                assert (one - two).abs().max() < LOGITS


Step = tuple[list[int], int, int, int]


@settings(max_examples=30, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    steps=st.lists(
        st.tuples(
            st.lists(st.integers(0, 6), min_size=3, max_size=3),
            st.integers(0, 2),
            st.integers(0, 9),
            st.sampled_from(["rewind", "take and put", "fork", "steer"]),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_any_mix_of_rows_rewinds_forks_and_edits_is_the_same_in_both_gears(
    family: str, steps: list[tuple[list[int], int, int, str]]
) -> None:
    models = lean(family), twin(family)
    stores: list[Any] = [model.new_cache(3) for model in models]
    hooks = ["blocks.0.hook_resid_post", "blocks.2.hook_resid_post", "blocks.1.attn.hook_pattern"]
    for number, (counts, row, back, what) in enumerate(steps):
        fed = [[(31 * number + 7 * r + i) % 260 for i in range(count)] for r, count in enumerate(counts)]
        edits = [Edit(hook="blocks.1.hook_resid_pre", row=row, start=0, stop=counts[row], fn=lambda value: value * 1.5)]
        found, wanted = (
            model.forward(fed, store, capture=hooks, edits=edits if what == "steer" else [], keep=counts)
            for model, store in zip(models, stores, strict=True)
        )
        assert_same(found, wanted)
        for index, store in enumerate(stores):
            n = min(back, store.lengths[row] - store.base)
            if what == "rewind":
                store.rewind(row, n)
            elif what == "take and put":
                store.put(row, store.take(row, n))
            elif what == "fork":
                stores[index] = store.fork(row, 3)
        assert stores[0].lengths == stores[1].lengths


@pytest.mark.real
@pytest.mark.parametrize("name", REAL)
def test_a_real_model_agrees_with_the_bridge_beyond_its_window(name: str) -> None:
    one, two = load(name), load(name, backend="lean")
    ids = one.tokenizer.prompt("The lighthouse keeper wrote down every ship that passed. " * 60)[:600]
    kinds = ("hook_resid_post", "hook_resid_mid", "hook_attn_out", "hook_mlp_out", "attn.hook_q", "attn.hook_z")
    hooks = [hook for hook in one.hook_names if hook.endswith(kinds)]
    stores: list[Any] = [model.new_cache(2) for model in (one, two)]
    feeds = (
        ([ids[:560], ids[:20]], [1, 1]),  # a long prompt: the twin
        ([ids[560:561], ids[20:21]], [1, 1]),  # one token a row
        ([ids[561:600], []], [39, 1]),  # forced tokens, all scored
        ([[], ids[21:85]], [1, 4]),
    )
    for fed, keep in feeds:
        wanted, found = (
            model.forward(fed, store, capture=hooks, keep=keep) for model, store in zip((one, two), stores, strict=True)
        )
        for a, b in zip(found.logits, wanted.logits, strict=True):
            assert a.numel() == 0 or float((a - b).abs().max()) < LOGITS
        for hook in hooks:
            for a, b in zip(found.activations[hook], wanted.activations[hook], strict=True):
                error = (a - b).flatten(1).norm(dim=-1) / b.flatten(1).norm(dim=-1) if a.numel() else torch.zeros(1)
                assert float(error.max()) < RESIDUAL, hook
    assert set(two.twin_passes) == {"many tokens"}  # type: ignore[attr-defined]
