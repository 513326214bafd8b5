"""The carry on real models: exact against the whole-sequence scan, and the same as the base while untrained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from carry_cases import random_adapter, relative

from workbench import SamplingParams, Session, load
from workbench.carry import CarryModel, pack, reference_logits, run_carry
from workbench.errors import CarryError
from workbench.models import cached

pytestmark = [pytest.mark.real, pytest.mark.slow]
GREEDY = SamplingParams(temperature=0)
TEXTS = ("The capital of France is", "Two and two make")


@pytest.fixture(scope="module", params=["smollm2-135m-instruct", "gemma-3-270m"])
def base(request: pytest.FixtureRequest) -> Any:
    if request.param == "gemma-3-270m" and not cached("gemma-3-270m"):
        pytest.skip("Gemma's terms were not accepted here: workbench models --fetch gemma-3-270m")
    return load(request.param, backend="bridge", accept_terms=True, progress=False)


def carry(base: Any, scale: float, **settings: Any) -> CarryModel:
    adapter = random_adapter(d_model=base.d_model, scale=scale / base.d_model**0.5)
    gemma = base.n_layers == 18
    return CarryModel(
        base, band=(6, 12) if gemma else (10, 20), adapter=adapter, pauses=3, loops=1,
        pause_token="<unused0>" if gemma else "<empty_output>", **settings,
    )  # fmt: skip


def test_fast_and_slow_agree_with_the_real_pause_token(base: Any) -> None:
    model = carry(base, 0.2)
    rows = [(base.tokenizer.prompt(text), 3, base.tokenizer.encode(" Paris")) for text in TEXTS]
    batch = pack(rows, model.pause.id, left=True)
    with torch.no_grad():
        found = model.logits(batch.ids, batch.mask, batch.prompt_lengths)[batch.mask]
        slow = reference_logits(
            model.blocks, model.adapter, batch.ids, batch.mask, batch.prompt_lengths, band=model.settings.band, loops=1
        )[batch.mask]
    assert relative(found, slow) < 1e-4
    assert torch.equal(found.argmax(-1), slow.argmax(-1))


def test_beyond_gemmas_sliding_window_fast_and_slow_agree(base: Any) -> None:
    model = carry(base, 0.2)
    if model.blocks.sliding_window is None:
        pytest.skip("this model has no sliding window")
    assert model.blocks.sliding_window == 512
    words = base.tokenizer.encode("one two three four five six seven eight nine ten ") * 60
    batch = pack([([base.tokenizer.bos_token_id, *words[:560]], 2, words[:1])], model.pause.id)
    reads = batch.reads()
    with torch.no_grad():
        found = model.logits(batch.ids, batch.mask, batch.prompt_lengths, reads=reads)
        slow = reference_logits(
            model.blocks, model.adapter, batch.ids, batch.mask, batch.prompt_lengths, band=model.settings.band, loops=1
        )[reads]
    assert relative(found, slow) < 1e-4


def test_before_training_the_carry_writes_what_the_base_does_after_the_same_pauses(base: Any) -> None:
    model = carry(base, 0.0)
    for text in TEXTS:
        plain = Session(base).generate(
            [*base.tokenizer.prompt(text), *[model.pause.id] * 3], max_new_tokens=6, sampling=GREEDY, seed=0
        )
        carried = Session(model, [model.pausing()], capture="carry.s").generate(
            text, max_new_tokens=6, sampling=GREEDY, seed=0
        )
        assert carried.tokens == plain.tokens
        assert list(carried.tokens) == list(model.generate([base.tokenizer.prompt(text)], max_new_tokens=6)[0].tokens)


def test_the_pause_token_is_gemmas_own_and_no_other_models(base: Any) -> None:
    if base.n_layers == 18:
        model = carry(base, 0.0)
        assert (model.pause.id, model.pause.text) == (6, "<unused0>")
        assert model.pause.norm == pytest.approx(model.pause.median_norm, rel=0.5)
    else:
        with pytest.raises(CarryError, match=r"no token '<unused0>'.*'<repo_name>'"):
            run_carry(base, TEXTS[0], band=(10, 20))


def test_a_run_tells_what_every_state_says(base: Any) -> None:
    model = carry(base, 0.0)
    done = run_carry(
        base, TEXTS[0], band=model.settings.band, pauses=2, loops=1, pause_token=model.pause.text, max_new_tokens=2,
        check=True,
    )  # fmt: skip
    assert len(done.trace.rows()) == 2 + 2 + 2
    assert "against the whole-sequence scan" in done.text
