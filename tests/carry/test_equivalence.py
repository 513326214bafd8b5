"""The incremental scan is the whole-sequence scan: logits, states and gradients, for every mode, shape and side."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from carry_cases import (
    FAMILIES,
    LAYERS,
    RAGGED,
    bare_blocks,
    batch_of,
    carrier,
    gradients,
    random_adapter,
    relative,
    tiny,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workbench.carry import ADAPTERS, MODES, BandRunner, Batch, CarryModel, Layout, reference_logits, reference_states
from workbench.carry.runner import Columns, Growing
from workbench.carry.scan import scan
from workbench.models import Blocks

LOGITS = 1e-5
"""Largest difference relative to the largest logit, float32."""


def fast(blocks: Blocks, adapter: Any, batch: Batch, **options: Any) -> Tensor:
    """Logits by the incremental scan over any blocks, also bare ones that no model wraps."""
    layout = Layout.of(batch.mask, batch.prompt_lengths)
    runner = BandRunner(blocks, options.pop("band"))
    found = scan(runner, adapter, layout.to_front(batch.ids), layout.front(), **options)
    positions = torch.arange(batch.ids.shape[1]).expand(batch.ids.shape)
    columns = Columns(positions=positions, real=layout.front_mask(), tokens=0)
    final = layout.back(runner.suffix(found.s, columns, Growing(None, columns)))
    return blocks.unembed(blocks.norm(final))


def both(model: CarryModel, batch: Batch, **options: Any) -> tuple[Tensor, Tensor]:
    """Fast and slow logits at real positions, and a check that neither holds NaN."""
    found = model.logits(batch.ids, batch.mask, batch.prompt_lengths, **options)[batch.mask]
    slow = reference_logits(
        model.blocks, model.adapter, batch.ids, batch.mask, batch.prompt_lengths,
        band=model.settings.band, **{"loops": model.settings.loops, **options},
    )[batch.mask]  # fmt: skip
    assert bool(torch.isfinite(found).all())
    return found, slow


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("loops", [0, 1, 3])
def test_an_adapter_at_its_start_gives_the_plain_models_logits(family: str, loops: int) -> None:
    model = carrier(family, adapter=random_adapter(scale=0.0), loops=loops)
    batch = batch_of(1, [(17, 4, 3)])
    plain = model.base.forward([batch.ids[0].tolist()], model.base.new_cache(), keep=[24]).logits[0]
    assert relative(model.logits(batch.ids, batch.mask, batch.prompt_lengths)[0], plain) < LOGITS


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("left", [False, True])
def test_fast_and_slow_agree_on_ragged_rows(family: str, mode: str, left: bool) -> None:
    found, slow = both(carrier(family), batch_of(2, RAGGED, left=left), mode=mode)
    assert relative(found, slow) < LOGITS


@pytest.mark.parametrize("kind", list(ADAPTERS))
def test_fast_and_slow_agree_for_every_adapter(kind: str) -> None:
    found, slow = both(carrier("gemma3", adapter=random_adapter(kind)), batch_of(3, RAGGED))
    assert relative(found, slow) < LOGITS


@pytest.mark.parametrize("family", FAMILIES)
def test_left_padded_and_right_padded_rows_and_each_row_alone_are_equal(family: str) -> None:
    model = carrier(family)
    right, left = batch_of(4, RAGGED), batch_of(4, RAGGED, left=True)
    by_side = [model.logits(b.ids, b.mask, b.prompt_lengths)[b.mask] for b in (right, left)]
    assert torch.equal(*by_side)
    alone = []
    for row in range(len(RAGGED)):
        ids = right.ids[row][right.mask[row]][None]
        alone.append(model.logits(ids, torch.ones_like(ids), right.prompt_lengths[row : row + 1])[0])
    assert relative(by_side[0], torch.cat(alone)) < LOGITS


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "plain"])
def test_gradients_of_the_adapter_agree_and_lead_to_the_same_weights(family: str, mode: str) -> None:
    batch, ends = batch_of(5, RAGGED, left=True), []
    reads, targets = batch.reads(), batch.targets()
    for slow in (False, True):
        model = carrier(family, adapter=random_adapter(scale=0.02), mode=mode)
        optimiser = torch.optim.AdamW(model.parameters_of_adapter(), lr=1e-2)
        seen = []
        for _ in range(3):
            optimiser.zero_grad()
            logits = both(model, batch, mode=mode)[slow]
            torch.nn.functional.cross_entropy(logits[reads[batch.mask]], targets).backward()
            seen.append(gradients(model.adapter))
            optimiser.step()
        ends.append((seen, [parameter.detach().clone() for parameter in model.adapter.parameters()]))
    for one, other in zip(ends[0][0][0], ends[1][0][0], strict=True):
        assert relative(one, other) < 1e-4
    for one, other in zip(ends[0][1], ends[1][1], strict=True):
        assert relative(one, other) < 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_in_double_precision_with_sdpa_fast_and_slow_agree_to_rounding(family: str) -> None:
    blocks = bare_blocks(family, 8, "sdpa", torch.float64)
    adapter, batch = random_adapter().double(), batch_of(6, RAGGED)
    options: dict[str, Any] = {"band": (1, 3), "loops": 2}
    grads = []
    for found in (
        fast(blocks, adapter, batch, **options),
        reference_logits(blocks, adapter, batch.ids, batch.mask, batch.prompt_lengths, **options),
    ):
        adapter.zero_grad()
        found[batch.mask].square().sum().backward()
        grads.append((found[batch.mask].detach(), gradients(adapter)))
    assert relative(grads[0][0], grads[1][0]) < 1e-6  # HF's norms and rotary phases are float32 in any dtype
    assert all(relative(one, other) < 1e-5 for one, other in zip(grads[0][1], grads[1][1], strict=True))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_bare_blocks_give_the_bridges_logits_with_either_attention(family: str, attention: str) -> None:
    model, batch = carrier(family), batch_of(7, RAGGED, left=True)
    blocks = bare_blocks(family, 8, attention, torch.float32)
    found = fast(blocks, model.adapter, batch, band=(1, 3), loops=2)[batch.mask]
    wrapped = model.logits(batch.ids, batch.mask, batch.prompt_lengths)[batch.mask]
    assert relative(found, wrapped) < LOGITS


@pytest.mark.parametrize("family", FAMILIES)
def test_in_bfloat16_fast_and_slow_choose_the_same_tokens(family: str) -> None:
    blocks = bare_blocks(family, 8, "eager", torch.bfloat16)
    spans, adapter = [(20 + i, 4, 20) for i in range(12)], random_adapter()
    batch = batch_of(8, spans)
    options: dict[str, Any] = {"band": (1, 3), "loops": 2}
    with torch.no_grad():
        found = fast(blocks, adapter, batch, **options)[batch.mask]
        slow = reference_logits(blocks, adapter, batch.ids, batch.mask, batch.prompt_lengths, **options)[batch.mask]
    assert found.dtype == torch.float32
    assert float((found.argmax(-1) == slow.argmax(-1)).float().mean()) >= 0.99


@pytest.mark.parametrize("window", [4, 17, 22, 64])
@pytest.mark.parametrize("left", [False, True])
def test_sliding_windows_shorter_and_longer_than_prompt_and_row_agree(window: int, left: bool) -> None:
    model = carrier("gemma3", window=window)
    found, slow = both(model, batch_of(9, RAGGED, left=left))
    assert relative(found, slow) < LOGITS
    wide = carrier("gemma3", window=64)
    if window < 22:  # the longest row: the window must really cut something off
        batch = batch_of(9, RAGGED)
        unlike = wide.logits(batch.ids, batch.mask, batch.prompt_lengths)[batch.mask]
        assert relative(found.detach(), unlike) > 1e-3


def test_noise_at_positions_not_reached_yet_changes_nothing() -> None:
    model, batch = carrier("gemma3"), batch_of(10, RAGGED)
    options: dict[str, Any] = {"band": (1, 3), "loops": 2}
    args = (model.blocks, model.adapter, batch.ids, batch.mask, batch.prompt_lengths)
    with torch.no_grad():
        _, clean, _ = reference_states(*args, **options)
        _, noisy, _ = reference_states(*args, **options, noise=torch.Generator().manual_seed(0))
    assert relative(noisy, clean) < LOGITS


spans = st.lists(st.tuples(st.integers(1, 14), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4)


@settings(max_examples=60)
@given(
    family=st.sampled_from(FAMILIES),
    spans=spans,
    band=st.tuples(st.integers(0, LAYERS - 1), st.integers(1, LAYERS)).filter(lambda b: b[0] < b[1]),
    loops=st.integers(0, 3),
    mode=st.sampled_from(MODES),
    window=st.sampled_from([2, 5, 8, 40]),
    left=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_shape_agrees(
    family: str,
    spans: list[tuple[int, int, int]],
    band: tuple[int, int],
    loops: int,
    mode: str,
    window: int,
    left: bool,
    seed: int,
) -> None:
    window = window if family == "gemma3" else 8
    model = carrier(family, window=window, band=band, adapter=random_adapter(seed=seed), loops=loops)
    with torch.no_grad():
        found, slow = both(model, batch_of(seed, spans, left=left), mode=mode)
    # Random weights and adapters may magnify rounding; a wrong position, mask or order shows at 1e-1 and more.
    assert relative(found, slow) < 100 * LOGITS


def test_the_base_is_the_whole_model_whatever_the_band() -> None:
    model = carrier("gemma3")
    batch = batch_of(11, [(13, 2, 2)])
    whole = tiny("gemma3").forward([batch.ids[0].tolist()], model.base.new_cache(), keep=[17]).logits[0]
    plain = model.logits(batch.ids, batch.mask, batch.prompt_lengths, mode="plain")[0]
    assert relative(plain, whole) < LOGITS
