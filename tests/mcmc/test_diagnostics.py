"""Diagnostics against processes whose answers are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcmc_toys import Toy, ToyModel

from workbench.errors import ChainError
from workbench.mcmc import (
    Chains,
    PowerSampler,
    acceptance_by_pivot,
    autocorrelation,
    effective_sample_size,
    log_a_histogram,
    running_mean,
    split_r_hat,
    tokens_per_move,
)


def autoregression(rho: float, n: int, seed: int, mean: float = 0.0) -> np.ndarray:
    """AR(1) of unit variance: autocorrelation ``rho**lag``, one draw in ``(1 + rho) / (1 - rho)`` is worth one."""
    random = np.random.default_rng(seed)
    noise = random.normal(0, np.sqrt(1 - rho**2), n)
    values = np.empty(n)
    values[0] = random.normal()
    for step in range(1, n):
        values[step] = rho * values[step - 1] + noise[step]
    return values + mean


@pytest.fixture(scope="module")
def chains() -> Chains:
    toy = Toy(seed=3, end=2, scale=1.0)
    return PowerSampler(ToyModel(toy), [0], block_size=4, n_mcmc=20, max_tokens=4, chains=6, seed=1).run()


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, -0.4])
def test_the_effective_sample_size_of_an_autoregression(rho: float) -> None:
    n = 60_000
    expected = n * (1 - rho) / (1 + rho)
    assert effective_sample_size(autoregression(rho, n, 1)) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("rho", [0.5, 0.9])
def test_the_autocorrelation_of_an_autoregression(rho: float) -> None:
    found = autocorrelation(autoregression(rho, 100_000, 2), most=8)
    assert len(found) == 9
    assert found == pytest.approx(rho ** np.arange(9), abs=0.05)


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=30))
def test_the_autocorrelation_is_that_of_its_definition(values: list[int]) -> None:
    series = np.array(values, dtype=float)
    centred = series - series.mean()
    if not centred.any():
        assert np.isnan(autocorrelation(series)).all()
        return
    plain = [(centred[: len(series) - lag] * centred[lag:]).sum() for lag in range(len(series))]
    assert autocorrelation(series) == pytest.approx(np.array(plain) / plain[0], abs=1e-9)


def test_r_hat_is_one_for_one_law_and_large_for_two() -> None:
    same = [autoregression(0.3, 4000, seed) for seed in range(4)]
    apart = [autoregression(0.3, 4000, seed, mean=3.0 * (seed % 2)) for seed in range(4)]
    drifting = [np.linspace(0, 5, 4000) + autoregression(0.3, 4000, seed) for seed in range(4)]
    assert split_r_hat(same) == pytest.approx(1, abs=0.01)
    assert split_r_hat(apart) > 1.5
    assert split_r_hat(drifting) > 1.3  # halves of one chain disagree: what unsplit R-hat would miss
    assert split_r_hat([[1.0] * 8, [2.0] * 8]) == np.inf
    assert np.isnan(split_r_hat([[1.0] * 8, [1.0] * 8]))


def test_the_running_mean_ends_at_the_mean() -> None:
    assert running_mean([1, 2, 6]) == pytest.approx([1, 1.5, 3])


def test_acceptance_by_pivot_counts_every_decision_once(chains: Chains) -> None:
    bins = acceptance_by_pivot(chains.decisions)
    assert sum(one.proposed for one in bins) == len(chains.decisions) == 120
    assert sum(one.accepted for one in bins) == sum(d.accepted for d in chains.decisions)
    assert [(one.first, one.last) for one in bins] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert bins[3].rate == 1  # at tau = 1 / alpha the last position always accepts
    assert len(acceptance_by_pivot(chains.decisions, bins=2)) == 2


def test_the_histogram_of_log_a_holds_every_finite_value(chains: Chains) -> None:
    with_infinite = [*chains.decisions, replace(chains.decisions[0], log_a=-np.inf)]
    histogram = log_a_histogram(with_infinite, bins=10)
    assert sum(histogram.counts) == 120
    assert histogram.infinite == 1
    assert len(histogram.edges) == 11


def test_tokens_per_move_leaves_out_moves_to_the_same_text(chains: Chains) -> None:
    moved = [d for d in chains.decisions if d.accepted and d.old_tokens != d.new_tokens]
    assert 0 < len(moved) < sum(d.accepted for d in chains.decisions)
    assert tokens_per_move(chains.decisions) == sum(d.forwarded for d in chains.decisions) / len(moved)
    assert tokens_per_move([]) == np.inf


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: effective_sample_size([]), r"one or more finite numbers in a row, got shape \(0,\)"),
        (lambda: running_mean([1.0, float("nan")]), "finite numbers"),
        (lambda: split_r_hat([[1.0, 2.0, 3.0]]), r"chains of four values or more, got \[3\]"),
        (lambda: acceptance_by_pivot([]), "needs a decision and a bin, got 0 and bins=8"),
        (lambda: log_a_histogram([]), "at least one decision with a finite log A"),
    ],
)
def test_what_says_nothing_is_refused(call: Any, says: str) -> None:
    with pytest.raises(ChainError, match=says):
        call()


def test_a_constant_series_has_no_effective_size() -> None:
    assert np.isnan(effective_sample_size([2.5] * 20))
