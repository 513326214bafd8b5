"""The chain keeps its target, on toys whose every text is enumerated; and each known mistake is caught."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from mcmc_toys import (
    Switches,
    Toy,
    distance,
    imbalance,
    irreducible,
    law,
    log_a,
    stationary,
    transitions,
)

from workbench.mcmc import reference

ALPHA = 4.0
PLAIN, ENDING = Toy(seed=1), Toy(seed=2, end=2)
BOTH = pytest.mark.parametrize("toy", [PLAIN, ENDING], ids=["fixed length", "with an end token"])


def test_the_toys_have_the_states_that_can_be_counted() -> None:
    assert (len(PLAIN.texts()), len(ENDING.texts())) == (81, 31)


@BOTH
@pytest.mark.parametrize(("alpha", "tau"), [(4.0, 0.25), (4.0, 0.5), (2.0, 0.8), (0.5, 2.0), (1.0, 1.0)])
def test_detailed_balance_the_stationary_law_and_irreducibility(toy: Toy, alpha: float, tau: float) -> None:
    matrix, target = transitions(toy, alpha, tau), toy.target(alpha)
    assert np.allclose(matrix.sum(1), 1)
    assert matrix.min() >= -1e-15
    assert imbalance(matrix, target) < 1e-12
    assert distance(stationary(matrix), target) < 1e-10
    assert irreducible(matrix)


@BOTH
def test_the_same_in_the_arithmetic_of_the_kernel(toy: Toy) -> None:
    @cache
    def score(text: tuple[int, ...], first: int, tau: float) -> np.ndarray:
        rows = torch.tensor(np.array([toy.logits[text[:at]] for at in range(first, len(text))]), dtype=torch.float32)
        if not len(rows):
            return np.empty((0, 3))
        stats = reference.row_stats(rows, torch.tensor(text[first:]), tau).stats.double().numpy()
        return stats[:, [3, 1, 2]]

    matrix, target = transitions(toy, ALPHA, 1 / ALPHA, score=score), toy.target(ALPHA)
    assert imbalance(matrix, target) < 1e-6
    assert distance(stationary(matrix), target) < 1e-5


@BOTH
def test_blocks_lead_to_the_target_of_the_last(toy: Toy) -> None:
    assert distance(law(toy, ALPHA, 0.25, [2, 4], 20_000), toy.target(ALPHA)) < 1e-6
    assert distance(law(toy, ALPHA, 0.25, [1, 2, 3, 4], 20_000), toy.target(ALPHA)) < 1e-6


def padded(toy: Toy, alpha: float, tau: float) -> np.ndarray:
    """The other way with end tokens: pivots among all positions up to the limit; those behind the end do nothing."""
    texts = toy.texts()
    place = {text: index for index, text in enumerate(texts)}
    matrix = np.zeros((len(texts), len(texts)))
    without = Switches(length_term=False)  # both texts have the same number of places for a pivot
    for old in texts:
        for pivot in range(len(old)):
            for new in toy.behind(old[:pivot], toy.longest):
                ratio = log_a(toy, old, new, pivot, alpha, tau, without)
                matrix[place[old], place[new]] += (
                    toy.chance(new, pivot, tau) / toy.longest * math.exp(min(ratio, 0.0))
                )  # fmt: skip
        matrix[place[old], place[old]] += 1 - matrix[place[old]].sum()
    return matrix


def test_both_ways_to_treat_the_end_token_have_one_law() -> None:
    target = ENDING.target(ALPHA)
    for matrix in (transitions(ENDING, ALPHA, 0.25), padded(ENDING, ALPHA, 0.25)):
        far = np.linalg.matrix_power(matrix, 20_000)
        assert distance(far[0], target) < 1e-9
        assert distance(far[-1], target) < 1e-9


@BOTH
def test_pivots_by_entropy_are_exact_with_their_own_rho(toy: Toy) -> None:
    matrix = transitions(toy, ALPHA, 0.5, switches=Switches(entropy_pivots=True))
    assert imbalance(matrix, toy.target(ALPHA)) < 1e-12


BREAKS_BALANCE = {
    "q terms dropped": (PLAIN, Switches(without_q=True)),
    "entropy pivots without rho": (PLAIN, Switches(entropy_pivots=True, rho=False)),
    "length factor missing": (ENDING, Switches(length_term=False)),
    "proposal capped at the old length": (ENDING, Switches(capped=True)),
    "scored temperature other than sampled": (PLAIN, Switches(scored_tau=0.5)),
    "top-k unmodelled": (PLAIN, Switches(top_k=2)),
}


@pytest.mark.parametrize("mistake", list(BREAKS_BALANCE))
def test_a_mistake_in_the_ratio_or_the_proposal_breaks_the_balance(mistake: str) -> None:
    toy, switches = BREAKS_BALANCE[mistake]
    matrix, target = transitions(toy, ALPHA, 0.25, switches=switches), toy.target(ALPHA)
    assert imbalance(matrix, target) > 1e-4
    assert distance(target @ matrix, target) > 1e-4


FREEZES = {
    "pivot never 0": Switches(first_pivot=1),
    "block-local pivots": Switches(first_pivot=2),
}


@pytest.mark.parametrize("mistake", list(FREEZES))
def test_pivots_that_leave_out_positions_never_reach_the_target(mistake: str) -> None:
    switches = FREEZES[mistake]
    matrix = transitions(PLAIN, ALPHA, 0.25, switches=switches)
    assert imbalance(matrix, PLAIN.target(ALPHA)) < 1e-12  # balance alone would not tell
    assert not irreducible(matrix)
    assert distance(law(PLAIN, ALPHA, 0.25, [2, 4], 400, switches=switches), PLAIN.target(ALPHA)) > 1e-2
