"""What a row of logits says: compiled code and torch agree with float64, and nothing but the row matters."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.models import read_rows, reads_compiled, summarize_row, weigh_rows
from workbench.models.compiled_code import UNUSED_SECONDS, _used_now
from workbench.models.row_summary import LONG, _summarize_plainly


def row(vocab: int, seed: int = 0, spread: float = 4.0) -> torch.Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("vocab", [LONG - 1, LONG, 5000, 49_152, 50_257])
@pytest.mark.parametrize("spread", [0.0, 0.1, 4.0, 300.0])
def test_a_summary_is_that_of_float64(vocab: int, spread: float) -> None:
    logits = row(vocab, spread=spread)
    exact = torch.log_softmax(logits.double(), dim=-1)
    found = summarize_row(logits, 5)
    assert found.log_total == pytest.approx(float(logits.double().logsumexp(-1)), rel=1e-6, abs=1e-6)
    assert found.entropy == pytest.approx(float(torch.special.entr(exact.exp()).sum()), rel=1e-5, abs=1e-5)
    values, tokens = exact.topk(5)
    assert [value for _, value in found.top] == pytest.approx(values.tolist(), abs=1e-4)
    if spread:
        assert [token for token, _ in found.top] == tokens.tolist()
    assert reads_compiled(logits) == (vocab >= LONG)


@settings(max_examples=50, deadline=None)
@given(
    vocab=st.integers(LONG, LONG + 700),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([0.01, 1.0, 30.0, 1e4]),
    holes=st.sampled_from([0.0, 0.5, 0.9995]),
    tau=st.sampled_from([0.25, 0.5, 1.0, 0.3, 2.0]),
)
def test_compiled_code_says_what_float64_says(vocab: int, seed: int, scale: float, holes: float, tau: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, vocab, generator=generator) * scale
    logits[torch.rand(3, vocab, generator=generator) < holes] = -torch.inf
    logits[:, 17] = 1.0
    found = read_rows(logits, [17, 17, 17], tau)
    exact = logits.double()
    entropy = torch.special.entr(exact.softmax(-1)).sum(-1)
    wanted = torch.stack([exact.amax(-1), exact.logsumexp(-1), (exact / tau).logsumexp(-1), entropy, exact[:, 17]], 1)
    assert np.allclose(found, wanted.numpy(), rtol=2e-6, atol=5e-6 * max(scale, 1))
    weights = torch.empty_like(logits)
    weigh_rows(logits, found, tau, weights)
    assert (weights[torch.isneginf(logits)] == 0).all()
    assert torch.allclose(weights.sum(-1, dtype=torch.float64).log() + exact.amax(-1) / tau, wanted[:, 2], rtol=1e-6)


def test_a_row_gives_the_same_bits_in_any_company() -> None:
    logits = torch.stack([row(6000, seed) for seed in range(5)])
    together = read_rows(logits, range(5), 0.25)
    for index in range(5):
        alone = read_rows(logits[index : index + 1].clone(), [index], 0.25)
        assert np.array_equal(alone[0], together[index])


def test_rows_may_stand_apart_in_memory() -> None:
    wide = torch.stack([row(6000, seed) for seed in range(3)])
    assert np.array_equal(
        read_rows(wide[:, 500:5500], [1, 2, 3], 0.5), read_rows(wide[:, 500:5500].clone(), [1, 2, 3], 0.5)
    )
    across = wide.T.contiguous().T
    assert not reads_compiled(across)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0x7FC00001, -0x3FFFFF])
@pytest.mark.parametrize("at", [0, 511, 512, 5999])
def test_a_number_that_overflowed_is_seen_wherever_it_stands(bad: Any, at: int) -> None:
    logits = row(6000)
    if isinstance(bad, int):  # the bits of a NaN that carries something, positive or negative
        logits.view(torch.int32)[at] = bad
        assert math.isnan(float(logits[at]))
    else:
        logits[at] = bad
    assert math.isnan(summarize_row(logits, 5).log_total)
    assert not math.isfinite(_summarize_plainly(logits, 5).log_total)
    assert np.isnan(read_rows(logits[None], [3], 0.25)[0, 1:4]).all()


def test_a_row_of_nothing_is_no_distribution() -> None:
    assert math.isnan(summarize_row(torch.full((6000,), -torch.inf), 5).log_total)


def test_impossible_tokens_are_never_among_the_likeliest_and_the_first_of_equals_comes_first() -> None:
    logits = torch.full((6000,), -torch.inf)
    logits[[5999, 7, 300]] = 0.0
    found = summarize_row(logits, 5)
    assert [token for token, _ in found.top] == [7, 300, 5999]
    assert found.entropy == pytest.approx(math.log(3))


@pytest.mark.parametrize("tokens", [[0], [0, 6000], [0, -1]])
def test_a_token_outside_the_vocabulary_is_refused(tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="each of 2 rows needs a token below 6000"):
        read_rows(torch.zeros(2, 6000), tokens, 1.0)


def test_compiled_code_that_nobody_uses_is_deleted_after_a_month(tmp_path: Path) -> None:
    for name, age in (("mine", 2 * UNUSED_SECONDS), ("old", UNUSED_SECONDS + 60), ("recent", UNUSED_SECONDS - 3600)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "code").write_text("x")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    _used_now(tmp_path / "mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "recent"]
    assert time.time() - (tmp_path / "mine").stat().st_mtime < 600
