"""Parallel tempering: chains at several powers of one model, which now and then exchange their texts (Geyer 1991)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ChainError
from .chain import Chain
from .philox import Purpose, uniform_one
from .target import accepts, swap_log_a

__all__ = ["Swap", "checked_ladder", "swap_neighbours"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """An offer to exchange the texts of two neighbouring chains, after an iteration of both."""

    first: int
    second: int
    block: int
    iteration: int
    log_a: float
    u: float
    accepted: bool


def checked_ladder(ladder: Sequence[float] | None, chains: int) -> tuple[float, ...] | None:
    """The powers of all chains, or None where they have the target's.

    :raises ChainError: not one power above 0 for each chain, or fewer than two.
    """
    if ladder is None:
        return None
    powers = tuple(float(power) for power in ladder)
    if len(powers) < 2 or len(powers) != chains or not all(math.isfinite(power) and power > 0 for power in powers):
        raise ChainError(
            f"ladder={list(powers)} must give one power above 0 for each of the chains={chains}, two or more; "
            "the first is that of the chain to be read"
        )
    return powers


def swap_neighbours(chains: Sequence[Chain], seed: int, turn: int) -> list[Swap]:
    """Offer every second pair of neighbours an exchange: from the first on at even turns, from the second at odd ones.

    All chains have just made the same iteration of the same block, and share the proposal's temperature, so that
    their scalars stay right: nothing is computed again. What is exchanged are the texts; whoever drives the chains
    exchanges their rows of the cache where ``accepted``.
    """
    block, iteration = chains[0].block, chains[0].iteration
    swaps = []
    for index in range(turn % 2, len(chains) - 1, 2):
        first, second = chains[index], chains[index + 1]
        log_a = swap_log_a(first.alpha, second.alpha, first.log_p, second.log_p)
        u = uniform_one(seed, chain=first.number, block=block, iteration=iteration, purpose=Purpose.SWAP)
        accepted = accepts(u, log_a)
        if accepted:
            first.exchange(second)
        swaps.append(
            Swap(
                first=first.number, second=second.number, block=block, iteration=iteration, log_a=log_a, u=u,
                accepted=accepted,
            )
        )  # fmt: skip
    return swaps
