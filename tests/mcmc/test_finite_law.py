"""Thousands of chains, counted: after N proposals they follow the exact law after N proposals, not one near it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from mcmc_toys import (
    Switches,
    Toy,
    ToyModel,
    chi_square_p,
    draws,
    law,
    log_a,
)

from workbench.mcmc import PowerSampler
from workbench.mcmc.philox import Purpose, uniform

ALPHA, TAU = 4.0, 0.25
PLAIN, ENDING = Toy(seed=1, scale=1.0), Toy(seed=3, end=2, scale=1.0)
CHAINS, PROPOSALS = 20_000, 50
LEAST_P = 1e-3
"""Seeds are fixed, so this is no source of chance failures."""


def simulated(toy: Toy, chains: int, proposals: int, *, seed: int, switches: Switches | None = None) -> np.ndarray:
    """How often each text stands after so many proposals: production random numbers and ratios, arrays for speed."""
    broken = switches or Switches()
    texts = toy.texts()
    rows = np.array([toy.proposal(p, TAU, broken.top_k) for p in toy.logits])
    code = {prefix: index for index, prefix in enumerate(toy.logits)}
    child = np.array([[code.get((*p, t), -1) for t in range(toy.vocab)] for p in toy.logits])
    tokens = np.array(texts)
    place = {text: index for index, text in enumerate(texts)}
    number = np.arange(chains)
    ratios: dict[tuple[int, int, int], float] = {}

    def ratio(old: int, pivot: int, new: int) -> float:
        key = (old, pivot, new)
        if key not in ratios:
            ratios[key] = log_a(toy, texts[old], texts[new], pivot, ALPHA, TAU, broken)
        return ratios[key]

    def drawn(now: np.ndarray, pivot: np.ndarray, iteration: int) -> np.ndarray:
        """Texts with everything from ``pivot`` on drawn anew."""
        prefix = np.zeros(chains, dtype=int)
        made = now.copy()
        for at in range(toy.longest):
            u = uniform(seed, chain=number, block=0, iteration=iteration, purpose=Purpose.TOKEN, index=at)
            new = draws(rows[prefix], u)
            made[:, at] = np.where(at >= pivot, new, made[:, at])
            prefix = child[prefix, made[:, at]]
        return made

    now = drawn(np.zeros((chains, toy.longest), dtype=int), np.zeros(chains, dtype=int), 0)
    state = np.array([place[tuple(row)] for row in now.tolist()])
    for iteration in range(1, proposals + 1):
        named: dict[str, Any] = {"chain": number, "block": 0, "iteration": iteration}
        spread = toy.longest - broken.first_pivot
        pivot = broken.first_pivot + (uniform(seed, **named, purpose=Purpose.PIVOT) * spread).astype(int)
        offered = drawn(tokens[state], pivot, iteration)
        wanted = np.array([place[tuple(row)] for row in offered.tolist()])
        log_u = np.log(uniform(seed, **named, purpose=Purpose.ACCEPT))
        log_ratio = np.array([ratio(*key) for key in zip(state.tolist(), pivot.tolist(), wanted.tolist(), strict=True)])
        state = np.where(log_u < log_ratio, wanted, state)
    return np.bincount(state, minlength=len(texts))


@pytest.mark.slow
def test_twenty_thousand_chains_follow_the_exact_law_after_fifty_proposals() -> None:
    counts = simulated(PLAIN, CHAINS, PROPOSALS, seed=11)
    assert chi_square_p(counts, law(PLAIN, ALPHA, TAU, [4], PROPOSALS)) > LEAST_P


@pytest.mark.parametrize(
    "switches",
    [Switches(without_q=True), Switches(first_pivot=1), Switches(scored_tau=0.5), Switches(top_k=2)],
    ids=["q terms dropped", "pivot never 0", "scored temperature other than sampled", "top-k unmodelled"],
)
def test_the_count_catches_a_mistake(switches: Switches) -> None:
    counts = simulated(PLAIN, 4000, 12, seed=5, switches=switches)
    assert chi_square_p(counts, law(PLAIN, ALPHA, TAU, [4], 12)) < 1e-6


def counted(toy: Toy, result: Any) -> np.ndarray:
    seen = Counter(text.tokens for text in result)
    return np.array([seen[text] for text in toy.texts()])


@pytest.mark.parametrize("toy", [PLAIN, ENDING], ids=["fixed length", "with an end token"])
@pytest.mark.parametrize("block_size", [4, 2])
def test_the_sampler_itself_follows_the_exact_law(toy: Toy, block_size: int) -> None:
    sampler = PowerSampler(
        ToyModel(toy), [0], alpha=ALPHA, block_size=block_size, n_mcmc=3, max_tokens=4, chains=2500, seed=7
    )
    expected = law(toy, ALPHA, TAU, [4] if block_size == 4 else [2, 4], 3)
    assert chi_square_p(counted(toy, sampler.run()), expected) > LEAST_P


@pytest.mark.slow
def test_several_tries_keep_the_target_and_reach_it_sooner() -> None:
    target = ENDING.target(ALPHA)
    found = {}
    for tries in (1, 4):
        sampler = PowerSampler(
            ToyModel(ENDING), [0], alpha=ALPHA, tau=1.0, block_size=4, n_mcmc=10, max_tokens=4, chains=800, seed=2,
            tries=tries,
        )  # fmt: skip
        result = sampler.run()
        found[tries] = (chi_square_p(counted(ENDING, result), target), result.acceptance)
    assert found[4][0] > LEAST_P
    assert found[4][1] > found[1][1]
