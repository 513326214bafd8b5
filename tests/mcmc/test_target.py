"""Identities of the ratio that decides, over random scalars."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import ChainError
from workbench.mcmc import Target
from workbench.mcmc.target import acceptance, accepts, log_weight, pivot_from, renyi_terms, swap_log_a, token_terms

SIZES = st.integers(1, 12)
SEEDS = st.integers(0, 2**32 - 1)
POWERS = st.sampled_from([0.5, 1.0, 2.0, 3.0, 4.0, 7.5])


def suffix(n: int, seed: int, tau: float, shift: float = 0.0) -> np.ndarray:
    """Scalars of ``n`` tokens of a model with random logits; ``shift`` is added to every row."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 4, (n, 9)) + shift * random.normal(0, 1, (n, 1))
    tokens = np.random.default_rng(seed + 1).integers(0, 9, n)
    scaled = logits / tau
    return np.stack(
        [logits[np.arange(n), tokens], np.logaddexp.reduce(logits, axis=1), np.logaddexp.reduce(scaled, axis=1)], axis=1
    )


@given(SIZES, SIZES, SEEDS, POWERS)
def test_four_terms_are_the_renyi_form_where_tau_is_one_over_alpha(n: int, m: int, seed: int, alpha: float) -> None:
    old, new = suffix(n, seed, 1 / alpha), suffix(m, seed + 7, 1 / alpha)
    terms = acceptance(old, new, alpha, 1 / alpha, old_length=n + 3, new_length=m + 3)
    renyi = renyi_terms(new, alpha).sum() - renyi_terms(old, alpha).sum() + math.log((n + 3) / (m + 3))
    assert terms.log_a == pytest.approx(renyi, abs=1e-9)


@given(SIZES, SIZES, SEEDS, POWERS, POWERS)
def test_the_way_back_has_the_negated_ratio_and_standing_still_none(
    n: int, m: int, seed: int, alpha: float, sharp: float
) -> None:
    tau = 1 / sharp
    old, new = suffix(n, seed, tau), suffix(m, seed + 7, tau)
    there = acceptance(old, new, alpha, tau, old_length=n, new_length=m).log_a
    back = acceptance(new, old, alpha, tau, old_length=m, new_length=n).log_a
    assert there == pytest.approx(-back, abs=1e-9)
    assert acceptance(old, old, alpha, tau, old_length=n, new_length=n).log_a == 0
    assert there == pytest.approx(log_weight(new, alpha, tau, m) - log_weight(old, alpha, tau, n), abs=1e-9)


@given(SIZES, SIZES, SEEDS, POWERS)
def test_a_constant_added_to_every_row_changes_nothing(n: int, m: int, seed: int, alpha: float) -> None:
    tau = 0.5
    plain = acceptance(suffix(n, seed, tau), suffix(m, seed + 7, tau), alpha, tau, old_length=n, new_length=m)
    moved = acceptance(
        suffix(n, seed, tau, shift=50), suffix(m, seed + 7, tau, shift=50), alpha, tau, old_length=n, new_length=m
    )
    assert abs(plain.log_a - moved.log_a) < 1e-6
    shifted = suffix(n, seed, tau)
    shifted += np.array([3.0, 3.0, 3.0 / tau])
    assert token_terms(shifted, alpha, tau) == pytest.approx(token_terms(suffix(n, seed, tau), alpha, tau), abs=1e-9)


@given(SIZES, SEEDS)
def test_at_power_one_and_temperature_one_every_proposal_of_equal_length_is_taken(n: int, seed: int) -> None:
    old, new = suffix(n, seed, 1.0), suffix(n, seed + 7, 1.0)
    terms = acceptance(old, new, 1.0, 1.0, old_length=n, new_length=n)
    assert terms.log_a == pytest.approx(0, abs=1e-9)


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 10_000))
def test_a_pivot_lies_in_the_text(u: float, length: int) -> None:
    assert 0 <= pivot_from(u, length) < length


def test_pivots_are_evenly_spread_and_reach_the_first_position() -> None:
    counts = np.bincount([pivot_from(u, 5) for u in np.linspace(0, 1, 1000, endpoint=False)])
    assert counts.tolist() == [200] * 5


def test_the_verdict_at_its_edges() -> None:
    assert accepts(0.0, -1e9)
    assert accepts(0.5, 0.0)
    assert not accepts(0.5, math.log(0.5))
    assert not accepts(0.5, math.nan)
    assert not accepts(0.5, -math.inf)


def test_exchanging_twice_is_no_exchange() -> None:
    assert swap_log_a(4.0, 2.0, -10.0, -7.0) == pytest.approx(2 * 3)
    assert swap_log_a(4.0, 2.0, -10.0, -7.0) == -swap_log_a(4.0, 2.0, -7.0, -10.0)


def test_the_blocks_of_a_target() -> None:
    target = Target(block_size=5, max_tokens=12)
    assert (target.n_blocks, [target.limit(block) for block in range(3)]) == (3, [5, 10, 12])
    assert target.temperature == 0.25
    assert Target(alpha=4, tau=0.7).temperature == 0.7
    with pytest.raises(ChainError, match=r"max_tokens must be at least 1 and below 2\*\*24, got 16777216"):
        Target(max_tokens=1 << 24)
