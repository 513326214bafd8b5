"""Has a chain moved, and far enough? Plain functions of numbers, and a few that take decisions.

None of these can show that a chain has mixed; they can show that it has not. A chain that never left one region looks
calm in all of them but the comparison of several chains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ChainError
from .chain import Decision

__all__ = [
    "Histogram",
    "PivotAcceptance",
    "acceptance_by_pivot",
    "autocorrelation",
    "effective_sample_size",
    "log_a_histogram",
    "running_mean",
    "split_r_hat",
    "tokens_per_move",
]

Series = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PivotAcceptance:
    """Decisions whose pivot lay at ``first`` to ``last`` of the generated text."""

    first: int
    last: int
    proposed: int
    accepted: int

    @property
    def rate(self) -> float:
        """NaN where nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """``counts[i]`` values in ``[edges[i], edges[i + 1])``, the last edge included."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    infinite: int
    """Values that are not finite and stand in no bin."""


def acceptance_by_pivot(decisions: Sequence[Decision], *, bins: int = 8) -> list[PivotAcceptance]:
    """Acceptance in ``bins`` equal stretches of the positions that were pivots. Late pivots accept more easily.

    :raises ChainError: no decisions, or fewer than one bin.
    """
    if not decisions or bins < 1:
        raise ChainError(f"acceptance by pivot needs a decision and a bin, got {len(decisions)} and bins={bins}")
    longest = max(decision.pivot for decision in decisions) + 1
    edges = np.unique(np.linspace(0, longest, min(bins, longest) + 1).astype(int)).tolist()
    found = []
    for first, stop in pairwise(edges):
        here = [decision.accepted for decision in decisions if first <= decision.pivot < stop]
        found.append(PivotAcceptance(first=first, last=stop - 1, proposed=len(here), accepted=sum(here)))
    return found


def log_a_histogram(decisions: Sequence[Decision], *, bins: int = 20) -> Histogram:
    """How ``log A`` (nats) is spread. Mass far below 0 means proposals that had no chance.

    :raises ChainError: no decision with a finite ``log A``.
    """
    values = np.array([decision.log_a for decision in decisions])
    finite = values[np.isfinite(values)]
    if not len(finite):
        raise ChainError("a histogram of log A needs at least one decision with a finite log A")
    counts, edges = np.histogram(finite, bins=bins)
    return Histogram(
        edges=tuple(edges.tolist()), counts=tuple(counts.tolist()), infinite=len(values) - len(finite)
    )  # fmt: skip


def running_mean(values: ArrayLike) -> Series:
    """Mean of the first 1, 2, … values."""
    series = _series(values)
    return np.asarray(series.cumsum() / np.arange(1, len(series) + 1))


def autocorrelation(values: ArrayLike, *, most: int | None = None) -> Series:
    """At lags 0, 1, … ``most`` (all by default), with the biased estimator; NaN for a constant series."""
    series = _series(values)
    n = len(series)
    centred = series - series.mean()
    spectrum = np.fft.rfft(centred, 2 * n)  # padded, so that the end does not meet the beginning
    covariance = np.fft.irfft(spectrum * np.conj(spectrum))[:n] / n
    if covariance[0] <= 1e-24 * max(1.0, float(np.square(series).max())):
        return np.full(n if most is None else min(most + 1, n), np.nan)
    correlation = covariance / covariance[0]
    return np.asarray(correlation if most is None else correlation[: most + 1])


def effective_sample_size(values: ArrayLike) -> float:
    """How many independent draws say as much about the mean as these (Geyer 1992, initial monotone sequence).

    NaN for a constant series: it says nothing about how it moves.
    """
    series = _series(values)
    rho = autocorrelation(series)
    if np.isnan(rho[0]):
        return float("nan")
    pairs = rho[: len(rho) // 2 * 2].reshape(-1, 2).sum(axis=1)
    below = np.flatnonzero(pairs <= 0)
    kept = np.minimum.accumulate(pairs[: below[0]] if len(below) else pairs)
    # A series that swings from side to side can be worth more than its length, but not without bound.
    time = max(2 * float(kept.sum()) - 1, 1 / math.log10(max(len(series), 10)))
    return float(len(series) / time)


def split_r_hat(chains: Sequence[ArrayLike]) -> float:
    """R-hat over the halves of all chains (Gelman et al., Bayesian Data Analysis, 11.4): near 1, or not mixed yet.

    Halves of unequal chains are cut to the shortest. NaN where no half moved and all agree, infinite where no half
    moved and they differ.

    :raises ChainError: no chain, or one of fewer than four values.
    """
    series = [_series(chain) for chain in chains]
    shortest = min((len(one) for one in series), default=0)
    if shortest < 4:
        raise ChainError(f"split R-hat needs chains of four values or more, got {[len(one) for one in series]}")
    n = shortest // 2
    halves = np.array([half for one in series for half in (one[:n], one[len(one) - n :])])
    within = float(halves.var(axis=1, ddof=1).mean())
    between = float(n * halves.mean(axis=1).var(ddof=1))
    if within == 0:
        return float("nan") if between == 0 else float("inf")
    return float(np.sqrt(((n - 1) / n * within + between / n) / within))


def tokens_per_move(decisions: Sequence[Decision]) -> float:
    """Tokens forwarded per decision that changed the text; infinite where none did."""
    moved = sum(decision.kind == "accepted" for decision in decisions)
    forwarded = sum(decision.forwarded for decision in decisions)
    return forwarded / moved if moved else float("inf")


def _series(values: ArrayLike) -> Series:
    series = np.asarray(values, dtype=np.float64)
    if series.ndim != 1 or not len(series) or not np.isfinite(series).all():
        raise ChainError(f"a series needs one or more finite numbers in a row, got shape {series.shape}")
    return series
