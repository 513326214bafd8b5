"""Chains of a ladder exchange texts: the joint law is exact, and nothing is fed for it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from mcmc_toys import Toy, ToyModel, chi_square_p, distance, imbalance, start, stationary, transitions
from test_sampler import fresh_scalars

from workbench.mcmc import PowerSampler
from workbench.mcmc.target import swap_log_a

TOY = Toy(seed=5, longest=2, end=2, scale=1.0)
LADDER, TAU = (3.0, 1.0), 0.5


def exchange(toy: Toy) -> np.ndarray:
    """``P[(x, y), (x', y')]`` of one offer to exchange, from the production ratio."""
    texts = toy.texts()
    size = len(texts)
    matrix = np.eye(size * size)
    for x, first in enumerate(texts):
        for y, second in enumerate(texts):
            rate = min(1.0, float(np.exp(swap_log_a(*LADDER, toy.log_p(first), toy.log_p(second)))))
            if x != y:
                matrix[x * size + y, y * size + x] = rate
                matrix[x * size + y, x * size + y] = 1 - rate
    return matrix


def test_an_exchange_keeps_the_joint_target() -> None:
    target = np.kron(*(TOY.target(alpha) for alpha in LADDER))
    assert imbalance(exchange(TOY), target) < 1e-12
    moves = np.kron(*(transitions(TOY, alpha, TAU) for alpha in LADDER))
    assert distance(stationary(moves @ exchange(TOY)), target) < 1e-10


@pytest.mark.slow
def test_a_ladder_follows_the_exact_joint_law() -> None:
    n, runs = 4, 1200
    moves = np.kron(*(transitions(TOY, alpha, TAU) for alpha in LADDER))
    joint = np.kron(start(TOY, TAU), start(TOY, TAU))
    offer = exchange(TOY)
    for iteration in range(1, n + 1):
        joint = joint @ moves
        if iteration % 2 == 0:  # with two chains every other turn has the pair
            joint = joint @ offer
    model, seen = ToyModel(TOY), Counter[Any]()
    for seed in range(runs):
        sampler = PowerSampler(
            model, [0], alpha=3.0, tau=TAU, block_size=2, n_mcmc=n, max_tokens=2, chains=2, ladder=LADDER, seed=seed
        )
        seen[tuple(text.tokens for text in sampler.run())] += 1
    texts = TOY.texts()
    counts = np.array([seen[first, second] for first in texts for second in texts])
    assert chi_square_p(counts, joint) > 1e-3


def test_exchanges_feed_nothing_and_leave_every_chain_with_its_own_cache(model: Any) -> None:
    settings: dict[str, Any] = {"alpha": 2.0, "tau": 0.5, "block_size": 6, "n_mcmc": 8, "max_tokens": 12, "seed": 6}
    sampler = PowerSampler(model, "A letter: ", chains=3, ladder=(2.0, 1.5, 1.0), swap_every=2, **settings)
    result = sampler.run()
    assert sampler.rows.row_of != [0, 1, 2] or any(swap.accepted for swap in result.swaps)
    assert {(swap.first, swap.second) for swap in result.swaps} == {(0, 1), (1, 2)}
    assert {d.forwarded / len(d.new_tokens) for d in result.decisions} == {1.0}
    for text in result:
        fresh = fresh_scalars(model, result.settings.prompt, text.tokens, 0.5)
        assert np.abs(text.scalars - fresh).max() < 1e-4
