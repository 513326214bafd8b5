"""The counters meet the closed formulas to the unit, and the naive twin's own count does too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from carry_cases import LAYERS, PAUSE, carrier, random_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.carry import pack, reference_generate, reference_logits, token_layers
from workbench.carry.cost import Cost


@pytest.mark.parametrize(
    ("options", "naive", "fast"),
    [
        ({"prompt": 64, "pauses": 8, "answer": 8}, 47_520, 3_680),
        ({"prompt": 64, "pauses": 32, "answer": 8}, 85_680, 4_400),
        ({"prompt": 256, "pauses": 32, "answer": 32}, 696_960, 14_720),
        ({"prompt": 64, "pauses": 8, "answer": 8, "training": True}, 18_400, 3_680),
    ],
)
def test_the_formula_gives_the_known_figures(options: dict[str, Any], naive: int, fast: int) -> None:
    assert token_layers(30, (10, 20), loops=2, **options) == Cost(naive=naive, fast=fast)


shapes = {
    "n": st.integers(1, 14),
    "p": st.integers(0, 5),
    "m": st.integers(0, 5),
    "k": st.integers(0, 3),
    "band": st.tuples(st.integers(0, LAYERS - 1), st.integers(1, LAYERS)).filter(lambda b: b[0] < b[1]),
}


@settings(max_examples=25)
@given(**shapes)
def test_generation_runs_as_many_token_layers_as_the_formula_says(
    n: int, p: int, m: int, k: int, band: tuple[int, int]
) -> None:
    model = carrier(band=band, pauses=p, loops=k)
    model.runner.token_layers = model.runner.band_passes = 0
    [(prompt, _, _)] = random_rows(0, [(n, 0, 0)])
    model.generate([prompt], max_new_tokens=m + 1, stop=False)
    assert model.runner.token_layers == token_layers(LAYERS, band, prompt=n, pauses=p, answer=m, loops=k).fast
    assert model.runner.band_passes == k + 1 + p + m


@settings(max_examples=15)
@given(**shapes)
def test_a_teacher_forced_pass_and_the_slow_scan_run_as_many_as_the_formula_says(
    n: int, p: int, m: int, k: int, band: tuple[int, int]
) -> None:
    model = carrier(band=band, loops=k)
    batch = pack([(row[0], p, row[2]) for row in random_rows(0, [(n, p, m)])], PAUSE)
    cost = token_layers(LAYERS, band, prompt=n, pauses=p, answer=m, loops=k, training=True)
    model.runner.token_layers = 0
    with torch.no_grad():
        model.logits(batch.ids, batch.mask, batch.prompt_lengths)
    assert model.runner.token_layers == cost.fast
    ran = 0

    def count(_block: Any, _args: Any, output: Any) -> None:
        nonlocal ran
        ran += output.shape[1]

    handles = [block.register_forward_hook(count) for block in model.blocks.layers]
    try:
        with torch.no_grad():
            reference_logits(
                model.blocks, model.adapter, batch.ids, batch.mask, batch.prompt_lengths, band=band, loops=k
            )
    finally:
        for handle in handles:
            handle.remove()
    assert ran == cost.naive


@settings(max_examples=12)
@given(**shapes)
def test_the_slow_generation_says_the_same_for_as_much_work_as_the_formula_says(
    n: int, p: int, m: int, k: int, band: tuple[int, int]
) -> None:
    model = carrier("gemma3", band=band, pauses=p, loops=k)
    prompts = torch.tensor([row[0] for row in random_rows(0, [(n, 0, 0), (n, 0, 0)])])
    ran = 0

    def count(_block: Any, _args: Any, output: Any) -> None:
        nonlocal ran
        ran += output.shape[0] * output.shape[1]

    handles = [block.register_forward_hook(count) for block in model.blocks.layers]
    try:
        slow = reference_generate(
            model.blocks, model.adapter, prompts, band=band, loops=k, pause=PAUSE, pauses=p, max_new_tokens=m + 1
        )
    finally:
        for handle in handles:
            handle.remove()
    assert ran == 2 * token_layers(LAYERS, band, prompt=n, pauses=p, answer=m, loops=k).naive
    fast = model.generate(prompts.tolist(), max_new_tokens=m + 1, stop=False)
    assert [list(output.tokens) for output in fast] == slow.tolist()


def test_under_the_engine_a_token_costs_one_pass_through_every_layer() -> None:
    model = carrier(pauses=3, loops=2)
    cache = model.new_cache()
    model.forward([[5, 6, 7, 8, PAUSE, PAUSE, PAUSE]], cache)
    model.runner.token_layers = 0
    model.forward([[9]], cache)
    assert model.runner.token_layers == LAYERS
    model.runner.token_layers = 0
    cache.rewind(0, 2)
    model.forward([[PAUSE, 9]], cache)
    assert model.runner.token_layers == 2 * LAYERS


def test_padding_is_no_work() -> None:
    model = carrier(pauses=2, loops=1)
    model.runner.token_layers = 0
    rows = random_rows(0, [(9, 2, 3), (4, 2, 1)])
    batch = pack(rows, PAUSE, left=True)
    model.logits(batch.ids, batch.mask, batch.prompt_lengths)
    alone = [token_layers(LAYERS, (1, 3), prompt=n, pauses=2, answer=m, loops=1).fast for n, m in ((9, 3), (4, 1))]
    assert model.runner.token_layers == sum(alone)
