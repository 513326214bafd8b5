"""Generation is teacher forcing on its own output; caches grow by one column a step and are never changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from carry_cases import FAMILIES, PAUSE, carrier, random_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.carry import BandRunner, Layout, pack, reference_logits
from workbench.carry.generation import INCREMENTAL
from workbench.carry.runner import Columns, Growing, Where
from workbench.carry.scan import carry_step, scan, tail_columns
from workbench.errors import CarryError, PromptError

PROMPTS = [[5, 99, 123, 7, 43, 8, 200, 17, 64, 3, 250], [31], [90, 12, 77, 6]]


def forced(model: Any, outputs: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Slow teacher-forced logits at the positions that predict the outputs' tokens, and those tokens."""
    pauses = options.pop("pauses", model.settings.pauses)
    batch = pack([(output.prompt, pauses, output.tokens) for output in outputs], PAUSE, left=True)
    logits = reference_logits(
        model.blocks, model.adapter, batch.ids, batch.mask, batch.prompt_lengths,
        band=model.settings.band, **{"loops": model.settings.loops, **options},
    )  # fmt: skip
    return logits[batch.reads()], batch.targets()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", INCREMENTAL)
@pytest.mark.parametrize("pauses", [0, 1, 4])
def test_every_token_is_the_likeliest_under_teacher_forcing_on_what_was_made(
    family: str, mode: str, pauses: int
) -> None:
    model = carrier(family)
    outputs = model.generate(PROMPTS, max_new_tokens=9, pauses=pauses, mode=mode, stop=False)
    with torch.no_grad():
        logits, tokens = forced(model, outputs, pauses=pauses, mode=mode)
    best = logits.max(-1).values
    assert float((best - logits.gather(1, tokens[:, None])[:, 0]).max()) < 1e-4
    assert [output.prompt for output in outputs] == [tuple(prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("n", [1, 2, 7])
def test_exactly_as_many_tokens_as_asked_are_made(n: int) -> None:
    outputs = carrier().generate(PROMPTS, max_new_tokens=n, stop=False)
    assert [len(output.tokens) for output in outputs] == [n] * 3
    assert {output.reason for output in outputs} == {"max_tokens"}


def test_the_first_token_is_read_at_the_last_pause() -> None:
    model = carrier(pauses=3)
    [output] = model.generate(PROMPTS[:1], max_new_tokens=1, stop=False)
    batch = pack([(PROMPTS[0], 3, [])], PAUSE)
    logits = model.logits(batch.ids, batch.mask, batch.prompt_lengths)[0]
    assert output.tokens == (int(logits[len(PROMPTS[0]) + 2].argmax()),)


def test_a_finished_row_is_frozen_and_its_neighbours_are_as_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = carrier()
    free = model.generate(PROMPTS, max_new_tokens=8, stop=False)
    end = free[1].tokens[1]  # what row 1 says second now ends a row
    monkeypatch.setattr(model.tokenizer, "eos_token_ids", (end,))
    together = model.generate(PROMPTS, max_new_tokens=8)
    for prompt, output, unbound in zip(PROMPTS, together, free, strict=True):
        cut = unbound.tokens.index(end) + 1 if end in unbound.tokens else 8
        assert output.tokens == unbound.tokens[:cut]
        assert output.reason == ("eos" if end in unbound.tokens else "max_tokens")
        assert model.generate([prompt], max_new_tokens=8)[0].tokens == output.tokens


@settings(max_examples=25)
@given(
    family=st.sampled_from(FAMILIES),
    lengths=st.lists(st.integers(1, 14), min_size=1, max_size=3),
    pauses=st.integers(0, 4),
    loops=st.integers(0, 2),
    n=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_any_batch_generates_what_each_prompt_does_alone(
    family: str, lengths: list[int], pauses: int, loops: int, n: int, seed: int
) -> None:
    model = carrier(family)
    prompts = [row[0] for row in random_rows(seed, [(length, 0, 0) for length in lengths])]
    together = model.generate(prompts, max_new_tokens=n, pauses=pauses, loops=loops, stop=False)
    for prompt, output in zip(prompts, together, strict=True):
        [alone] = model.generate([prompt], max_new_tokens=n, pauses=pauses, loops=loops, stop=False)
        assert alone.tokens == output.tokens


def prefilled(model: Any, pauses: int, loops: int = 2) -> Any:
    batch = pack([(PROMPTS[0], pauses, [])], PAUSE)
    layout = Layout.of(batch.mask, batch.prompt_lengths)
    return scan(BandRunner(model.blocks, model.settings.band), model.adapter, batch.ids, layout, loops=loops)


@pytest.mark.parametrize("loops", [0, 1, 4])
@pytest.mark.parametrize("pauses", [0, 1, 5])
def test_the_cache_holds_prompt_and_pauses_once_however_often_the_prompt_was_looped(loops: int, pauses: int) -> None:
    found = prefilled(carrier(), pauses, loops)
    assert found.band.length == found.prefix.length == len(PROMPTS[0]) + pauses
    assert all(keys.shape[2] == found.band.length for keys in found.band.keys.values())
    assert found.band.keys[1].shape[1] * 2 == 4  # grouped heads stay grouped
    assert found.band.bytes() == 2 * 2 * found.band.length * 2 * 8 * 4  # two layers, k and v, 2 heads of 8, float32


def test_a_scan_can_go_on_twice_from_one_prefill() -> None:
    model = carrier()
    runner, ends = BandRunner(model.blocks, (1, 3)), []
    with torch.no_grad():
        found = prefilled(model, 2)
        before = {layer: keys.clone() for layer, keys in found.band.keys.items()}
        columns = tail_columns(found.layout, 2, 1)
        columns = Columns(positions=columns.positions, real=torch.ones(1, 1, dtype=torch.bool), tokens=1)
        for _ in range(2):
            past = Growing(found.band, columns)
            where = Where(phase="step", loop=0, step=3, first=13, count=1)
            ends.append(carry_step(runner, model.adapter, found.e[:, -1], found.carried, columns, past, where)[1])
            assert past.close().length == found.band.length + 1
    assert torch.equal(*ends)
    assert all(torch.equal(before[layer], keys) for layer, keys in found.band.keys.items())


def test_a_block_can_not_append_twice_in_one_pass() -> None:
    columns = Columns(positions=torch.zeros(1, 1, dtype=torch.long), real=torch.ones(1, 1, dtype=torch.bool), tokens=1)
    past = Growing(None, columns)
    past.update(torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8), 0)
    with pytest.raises(CarryError, match="block 0 appended twice in one pass"):
        past.update(torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8), 0)


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"max_new_tokens": 0}, CarryError, "max_new_tokens must be 1 or more, got 0"),
        ({"max_new_tokens": 3, "mode": "depth"}, CarryError, "mode 'depth' can't generate position by position"),
        ({"max_new_tokens": 3, "pauses": -1}, CarryError, "pauses and loops must be 0 or more, got pauses=-1"),
        ({"max_new_tokens": 90}, PromptError, "3 pauses and 90 new tokens are 104 positions.*n_ctx=96"),
    ],
)
def test_what_can_not_be_generated_is_refused(options: dict[str, Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        carrier().generate(PROMPTS, **options)
