"""The law that a chain has to keep: its target, its proposal, and the ratio that decides.

The target over generated text is ``pi(x) ~ p(x)**alpha`` (Karan & Du, "Reasoning with Sampling", arXiv 2510.14901); a
proposal draws a new suffix from ``q = softmax(logits / tau)``. All that a decision needs of a position are three
scalars, ``(x_tok, lse_1, lse_tau)``: the chosen token's logit and the logsumexp of the logits at 1 and at ``tau``.
They are kept as float64, 24 bytes a position: a sum over thousands of them must not blur a ratio that is compared
with a random number, and nothing else about a position is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import ChainError
from .philox import MOST_POSITIONS

__all__ = [
    "Scalars",
    "Target",
    "Terms",
    "acceptance",
    "accepts",
    "log_p",
    "log_q",
    "log_weight",
    "pivot_from",
    "renyi_terms",
    "swap_log_a",
    "token_terms",
]

Scalars: TypeAlias = NDArray[np.float64]
"""``[n, 3]`` float64: x_tok, lse_1, lse_tau of n positions, each at its own prefix."""
MARGIN = 1e-4
"""Below this distance between log u and log A another precision might have decided otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``pi_k(x) ~ p(x)**alpha`` over texts of at most ``(k + 1) * block_size`` tokens, or ended before.

    ``tau`` is the temperature that proposals are drawn at; any value above 0 keeps the chain exact, and ``1 / alpha``
    (the default) is the paper's choice. ``n_mcmc`` proposals are made per block.

    :raises ChainError: a value outside its range.
    """

    alpha: float = 4.0
    tau: float | None = None
    block_size: int = 32
    n_mcmc: int = 6
    max_tokens: int = 128

    def __post_init__(self) -> None:
        checks = {
            "alpha": (self.alpha, math.isfinite(self.alpha) and self.alpha > 0, "above 0"),
            "tau": (self.tau, self.tau is None or (math.isfinite(self.tau) and self.tau > 0), "above 0, or None"),
            "block_size": (self.block_size, self.block_size >= 1, "1 or more"),
            "n_mcmc": (self.n_mcmc, self.n_mcmc >= 0, "0 or more"),
            "max_tokens": (self.max_tokens, 1 <= self.max_tokens < MOST_POSITIONS, "at least 1 and below 2**24"),
        }
        for name, (value, good, wanted) in checks.items():
            if not good:
                raise ChainError(f"{name} must be {wanted}, got {value!r}")

    @property
    def temperature(self) -> float:
        """The proposal's: ``tau``, or ``1 / alpha`` where none was given."""
        return 1.0 / self.alpha if self.tau is None else self.tau

    @property
    def n_blocks(self) -> int:
        return -(-self.max_tokens // self.block_size)

    def limit(self, block: int) -> int:
        """How long a text of this block may be, in tokens."""
        return min((block + 1) * self.block_size, self.max_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The parts of ``log A``, in nats: four sums over a suffix, and what the choice of the pivot adds."""

    alpha_log_p_new: float
    alpha_log_p_old: float
    log_q_new: float
    log_q_old: float
    pivot: float
    """``log rho(m | new) - log rho(m | old)``; with a uniform pivot that is ``log(old length / new length)``."""

    @property
    def log_a(self) -> float:
        return (
            (self.alpha_log_p_new - self.alpha_log_p_old)
            + (self.log_q_old - self.log_q_new)
            + self.pivot
        )  # fmt: skip


def log_p(scalars: Scalars) -> NDArray[np.float64]:
    """Log-probability (nats) of each token under the model itself."""
    return scalars[..., 0] - scalars[..., 1]


def log_q(scalars: Scalars, tau: float) -> NDArray[np.float64]:
    """Log-probability (nats) of each token under the proposal."""
    return scalars[..., 0] / tau - scalars[..., 2]


def token_terms(scalars: Scalars, alpha: float, tau: float) -> NDArray[np.float64]:
    """``[n, 2]``: alpha log p and log q of each token. The first less the second is its share of a log weight."""
    return np.stack([alpha * log_p(scalars), log_q(scalars, tau)], axis=-1)


def acceptance(
    old: Scalars, new: Scalars, alpha: float, tau: float, *, old_length: int, new_length: int
) -> Terms:  # fmt: skip
    """The terms of ``log A`` for replacing the suffix ``old`` by ``new`` behind the same prefix.

    ``old`` reaches to the old text's own end and ``new`` to the new text's. The lengths are those of the whole
    generated texts, among whose positions the pivot was drawn uniformly (0 included).
    """
    before, after = token_terms(old, alpha, tau).sum(axis=0), token_terms(new, alpha, tau).sum(axis=0)
    return Terms(
        alpha_log_p_new=float(after[0]),
        alpha_log_p_old=float(before[0]),
        log_q_new=float(after[1]),
        log_q_old=float(before[1]),
        pivot=math.log(old_length / new_length),
    )


def log_weight(suffix: Scalars, alpha: float, tau: float, length: int) -> float:
    """``log [pi rho / q]`` of a suffix, up to what its rivals behind the same prefix share."""
    summed = token_terms(suffix, alpha, tau).sum(axis=0)
    return float(summed[0] - summed[1]) - math.log(length)


def renyi_terms(scalars: Scalars, alpha: float) -> NDArray[np.float64]:
    """``log Z_t = lse_tau - alpha * lse_1`` at ``tau = 1 / alpha``: ``-(alpha - 1)`` times a Renyi entropy, in nats.

    There the chosen tokens cancel out of ``log A``, which is the sum of these over the new suffix less that over the
    old one: the suffix wins whose prefixes made the model more certain.
    """
    terms: NDArray[np.float64] = scalars[..., 2] - alpha * scalars[..., 1]
    return terms


def pivot_from(u: float, length: int) -> int:
    """The position that a uniform number in [0, 1) picks among ``length``, each with the same chance."""
    return int(u * length)


def accepts(u: float, log_a: float) -> bool:
    """Whether ``log u < log A``. A NaN never accepts."""
    return (math.log(u) if u > 0 else -math.inf) < log_a


def swap_log_a(alpha_first: float, alpha_second: float, log_p_first: float, log_p_second: float) -> float:
    """``log A`` for exchanging the states of two chains of a ladder (Geyer 1991). No forward pass is needed."""
    return (alpha_first - alpha_second) * (log_p_second - log_p_first)
