"""The everyday twin gives the scalars of float64, and draws from the law that they are of."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from workbench.errors import ChainError, ModelError
from workbench.mcmc import reference
from workbench.mcmc.scoring import Scorer

SIZES = [1, 2, 3, 127, 128, 129, 255, 256, 257, 4096, 50_257]
TAUS = [0.25, 0.5, 1.0, 1 / 3, 2.0]


def rows(vocab: int, count: int = 9) -> torch.Tensor:
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(vocab)) * 5
    if vocab > 2:
        logits[1] *= 2000  # about 1e4
        logits[2] = -torch.inf
        logits[2, vocab // 2] = 3.0  # all mass on one
        logits[3, ::2] = -torch.inf
    return logits


def truth(logits: torch.Tensor, tokens: list[int], tau: float) -> np.ndarray:
    exact = logits.double()
    chosen = exact.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return torch.stack([chosen, exact.logsumexp(-1), (exact / tau).logsumexp(-1)], dim=1).numpy()


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("vocab", SIZES)
def test_scalars_and_draws_are_those_of_float64(vocab: int, tau: float) -> None:
    logits = rows(vocab)
    uniforms = np.linspace(0, 1, len(logits), endpoint=False)
    scorer = Scorer(tau)
    tokens, scalars = scorer.draw(logits, uniforms)
    exact = truth(logits, tokens, tau)
    assert np.abs(scalars - exact).max() < 2e-6 * max(1.0, float(np.abs(exact).max()))
    assert np.array_equal(scorer.score(logits, tokens), scalars) or np.allclose(scorer.score(logits, tokens), scalars)
    sums = torch.softmax(logits.double() / tau, dim=-1).cumsum(-1)
    for row, token in enumerate(tokens):
        below = float(sums[row, token - 1]) if token else 0.0
        assert below - 1e-5 <= uniforms[row] <= float(sums[row, token]) + 1e-5
        assert logits[row, token] > -torch.inf


def test_frequencies_follow_the_sharpened_law() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.5, -1.0]])
    uniforms = (np.arange(20_000) + 0.5) / 20_000
    tokens, _ = Scorer(0.5).draw(logits.expand(20_000, 4), uniforms)
    found = np.bincount(tokens, minlength=4) / 20_000
    assert found == pytest.approx(torch.softmax(logits[0] * 2, -1).numpy(), abs=2e-4)


def test_the_last_number_below_one_draws_a_token_that_is_possible() -> None:
    logits = torch.full((1, 1000), -torch.inf)
    logits[0, 3] = logits[0, 700] = 0.0
    assert Scorer(0.25).draw(logits, [np.nextafter(1, 0)])[0] == [700]
    assert Scorer(0.25).draw(logits, [0.0])[0] == [3]


def test_many_short_rows_are_scored_together_and_equal_one_at_a_time() -> None:
    logits = torch.randn(5000, 40)
    tokens = np.arange(5000) % 40
    together, scorer = Scorer(0.25).score(logits, tokens), Scorer(0.25)
    each = np.concatenate([scorer.score(logits[i : i + 1], tokens[i : i + 1]) for i in range(0, 5000, 500)])
    assert np.allclose(together[::500], each, atol=1e-6)


@pytest.mark.parametrize(("value", "row"), [(float("nan"), 1), (float("inf"), 0)])
def test_numbers_that_overflowed_are_an_error(value: float, row: int) -> None:
    logits = torch.zeros(2, 5)
    logits[row, 2] = value
    with pytest.raises(ModelError, match=rf"row {row} of the logits has a NaN or \+inf, or nothing but -inf"):
        Scorer(0.25).draw(logits, [0.1, 0.2])
    with pytest.raises(ModelError, match="nothing but -inf"):
        Scorer(0.25).score(torch.full((1, 5), -torch.inf), [0])


@pytest.mark.parametrize("how", ["twin", "reference"])
def test_a_chosen_token_without_a_chance_is_an_error(how: str) -> None:
    logits = torch.zeros(2, 5)
    logits[1, 3] = -torch.inf
    score = Scorer(0.25).score if how == "twin" else lambda *given: reference.row_stats(*given, 0.25)
    with pytest.raises(ChainError, match=r"row 1: the logit of token 3 is -inf: it can't stand in a text here"):
        score(logits, torch.tensor([0, 3]))


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("tile", [1, 7, 128, 5000])
def test_the_reference_does_not_depend_on_its_tiles(tile: int, tau: float) -> None:
    logits, tokens = rows(129), [64, 5, 64, 1, 9, 9, 9, 9, 0]
    found = reference.row_stats(logits, torch.tensor(tokens), tau, tile=tile, dtype=torch.float64)
    assert np.allclose(found.stats[:, [3, 1, 2]].numpy(), truth(logits, tokens, tau), rtol=1e-12)
    assert torch.equal(found.stats[:, 0], logits.double().amax(-1))
    assert found.trace is None


def test_the_trace_ends_at_the_stats_and_rises_to_the_maximum() -> None:
    logits = rows(300)
    logits[2, 151] = 0.0
    found = reference.row_stats(logits, torch.full((9,), 151), 0.5, tile=64, trace=True, dtype=torch.float64)
    assert found.trace is not None
    assert found.trace.shape == (9, 5, 3)
    top, sum_1, sum_tau = found.trace[:, -1].unbind(-1)
    assert torch.allclose(top + sum_1.log(), found.stats[:, 1])
    assert torch.allclose(2 * top + sum_tau.log(), found.stats[:, 2])
    assert (found.trace[:, 1:, 0] >= found.trace[:, :-1, 0]).all()
