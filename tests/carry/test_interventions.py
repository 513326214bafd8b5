"""Causality, and what changing a handed-on state may and may not reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from carry_cases import FAMILIES, RAGGED, batch_of, carrier, gradients, relative
from torch import Tensor

from workbench.carry import (
    GradientNorms,
    Layout,
    detach_every,
    frozen,
    noise,
    only_at,
    patched,
    reference_logits,
    scaled,
    shuffled,
    step_mean,
    together,
    zero,
)
from workbench.errors import CarryError


def logits_of(model: Any, batch: Any, **options: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.logits(batch.ids, batch.mask, batch.prompt_lengths, **options)
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("position", [3, 16, 17, 18, 20])
def test_changing_a_token_moves_nothing_before_it(family: str, position: int) -> None:
    model, batch = carrier(family), batch_of(1, [(17, 2, 3), (5, 3, 1)])
    before = logits_of(model, batch)
    batch.ids[0, position] = (batch.ids[0, position] + 11) % 250
    after = logits_of(model, batch)
    assert torch.equal(after[0, :position], before[0, :position])
    assert torch.equal(after[1][batch.mask[1]], before[1][batch.mask[1]])
    assert not torch.equal(after[0, position], before[0, position])


@pytest.mark.parametrize("left", [False, True])
def test_what_stands_at_padding_does_not_matter(left: bool) -> None:
    model, batch = carrier("gemma3"), batch_of(2, RAGGED, left=left)
    before = logits_of(model, batch)[batch.mask]
    batch.ids[~batch.mask] = 211
    assert torch.equal(logits_of(model, batch)[batch.mask], before)


@pytest.mark.parametrize("left", [False, True])
def test_nan_at_padding_reaches_neither_logits_nor_gradients(left: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = carrier("llama"), batch_of(3, RAGGED, left=left)
    clean = model.logits(batch.ids, batch.mask, batch.prompt_lengths)[batch.mask]
    embed = model.blocks.embed
    layout = Layout.of(batch.mask, batch.prompt_lengths)

    def poisoned(ids: Tensor) -> Tensor:
        hidden = ~layout.front_mask()[..., None]
        return embed(ids).masked_fill(hidden, torch.nan)

    monkeypatch.setattr(model.blocks, "embed", poisoned)
    found = model.logits(batch.ids, batch.mask, batch.prompt_lengths)[batch.mask]
    assert torch.equal(found, clean)
    found.square().sum().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.adapter.parameters() if p.grad is not None)


@pytest.mark.parametrize("family", FAMILIES)
def test_handing_on_the_state_as_it_is_changes_no_bit(family: str) -> None:
    model, batch = carrier(family), batch_of(4, RAGGED)
    plain = logits_of(model, batch)
    assert torch.equal(logits_of(model, batch, do=lambda _step, states: states), plain)
    assert torch.equal(logits_of(model, batch, do={t: lambda s: s for t in range(9)}), plain)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("step", [0, 1, 2, 4])
def test_an_intervention_at_a_step_moves_no_earlier_or_equal_step(family: str, step: int) -> None:
    model, batch = carrier(family), batch_of(5, [(11, 3, 3)])
    plain, changed = logits_of(model, batch), logits_of(model, batch, do={step: torch.zeros_like})
    read = 10 + step
    assert torch.equal(changed[0, : read + 1], plain[0, : read + 1])
    assert not torch.equal(changed[0, read + 1], plain[0, read + 1])


@pytest.mark.parametrize(
    "make",
    [
        zero,
        frozen,
        lambda: scaled(-1.0),
        lambda: step_mean(torch.linspace(-1, 1, 32).repeat(3, 1)),
        lambda: noise(torch.Generator().manual_seed(1)),
        lambda: shuffled(torch.Generator().manual_seed(1)),
        lambda: patched(torch.linspace(-3, 3, 32).repeat(9, 1)),
        lambda: only_at(zero(), {1}),
    ],
)
def test_every_ablation_does_something_and_the_same_in_the_slow_scan(make: Any) -> None:
    model, batch = carrier("gemma3"), batch_of(6, [(11, 3, 2), (6, 3, 2), (9, 3, 2)])
    found = logits_of(model, batch, do=make())
    with torch.no_grad():
        slow = reference_logits(
            model.blocks, model.adapter, batch.ids, batch.mask, batch.prompt_lengths, band=(1, 3), loops=2, do=make()
        )
    assert relative(found[batch.mask], slow[batch.mask]) < 1e-5
    assert relative(found[batch.mask], logits_of(model, batch)[batch.mask]) > 1e-4


def test_frozen_hands_on_the_first_state_at_every_step() -> None:
    do, states = frozen(), [torch.full((2, 4), float(t)) for t in range(3)]
    assert [float(do(t, state)[0, 0]) for t, state in enumerate(states)] == [0, 0, 0]
    again = torch.full((2, 4), 7.0)
    assert torch.equal(do(0, again), again)  # a new run begins at step 0


def test_shuffled_gives_no_row_its_own_state() -> None:
    do, states = shuffled(torch.Generator().manual_seed(0)), torch.arange(5.0)[:, None].expand(5, 3)
    for step in range(8):
        given = do(step, states)
        assert sorted(given[:, 0].tolist()) == [0, 1, 2, 3, 4]
        assert not bool((given == states).any())


def test_noise_has_the_states_length() -> None:
    states = torch.randn(6, 32, generator=torch.Generator().manual_seed(3)) * 40
    given = noise(torch.Generator().manual_seed(0))(1, states)
    torch.testing.assert_close(given.norm(dim=-1), states.norm(dim=-1))


def test_a_donors_states_are_handed_on_in_place_of_ones_own() -> None:
    model, batch = carrier(), batch_of(7, [(8, 3, 0), (8, 3, 0)])
    donor = model.states(batch.ids, batch.mask, batch.prompt_lengths).s[1, 7:].detach()
    seen: list[Tensor] = []

    def watch(step: int, states: Tensor) -> Tensor:
        seen.append(patched(donor)(step, states))
        return seen[-1]

    found = model.states(batch.ids, batch.mask, batch.prompt_lengths, do=watch)
    assert all(torch.equal(given, donor[step].expand(2, 32)) for step, given in enumerate(seen))
    wanted = model.adapter(found.e[:, 8], donor[0].expand(2, 32))
    torch.testing.assert_close(found.x[:, 8], wanted)


@pytest.mark.parametrize("every", [1, 2, 9])
def test_truncated_backpropagation_changes_gradients_and_no_value(every: int) -> None:
    model, batch = carrier(loops=0), batch_of(9, [(8, 4, 1), (5, 4, 1)])
    args, reads = (batch.ids, batch.mask, batch.prompt_lengths), batch.reads()
    plain, cut, alone = GradientNorms(), GradientNorms(), model.logits(*args, reads=reads)
    found = []
    for norms, do in ((plain, plain), (cut, together(detach_every(every), cut))):
        model.adapter.zero_grad()
        logits = model.logits(*args, reads=reads, do=do)
        assert torch.equal(logits, alone)
        torch.nn.functional.cross_entropy(logits, batch.targets()).backward()
        found.append(gradients(model.adapter))
        assert [step for step, norm in sorted(norms.norms.items()) if norm] == [
            step for step in (1, 2, 3) if norms is plain or step % every
        ]  # s_0 is the frozen model's own; s_4 is handed to the answer's token, behind what is read
    same = all(torch.allclose(one, other) for one, other in zip(*found, strict=True))
    assert same is (every == 9)


def test_what_is_handed_on_at_the_end_is_each_rows_own_last_state() -> None:
    model, batch = carrier(), batch_of(10, RAGGED, left=True)
    found = model.states(batch.ids, batch.mask, batch.prompt_lengths)
    last = found.s[torch.arange(len(RAGGED)), found.layout.lengths - 1]
    assert found.carried is not None
    assert torch.equal(found.carried, last)


@pytest.mark.parametrize(
    ("do", "says"),
    [
        ({-1: torch.zeros_like}, "steps t >= 0"),
        ({0: 3}, "functions of the state"),
        (patched(torch.zeros(1, 32)), "none for 1"),
        (only_at(shuffled(torch.Generator()), {0}), "at least two rows"),
        (only_at(frozen(), {1}), "must see step 0 first"),
    ],
)
def test_an_intervention_that_can_not_be_is_refused(do: Any, says: str) -> None:
    with pytest.raises(CarryError, match=says):
        logits_of(carrier(), batch_of(8, [(5, 3, 1)]), do=do)


def test_a_truncation_of_no_steps_is_refused() -> None:
    with pytest.raises(CarryError, match="1 or more steps, got 0"):
        detach_every(0)
