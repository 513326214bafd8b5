"""What a carry costs: block evaluations per token, by the closed formulas that the counters must meet to the unit."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cost", "token_layers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Token-layers of one row: blocks run, times tokens run through them."""

    naive: int
    """With every step over the whole sequence (:mod:`workbench.carry.reference`)."""
    fast: int
    """With the incremental scan."""

    @property
    def ratio(self) -> float:
        return self.naive / self.fast


def token_layers(
    n_layers: int, band: tuple[int, int], *, prompt: int, pauses: int, answer: int, loops: int, training: bool = False
) -> Cost:
    """Of generation, or of one teacher-forced pass if ``training``, for one row.

    ``prompt`` tokens, ``pauses``, and ``answer`` positions that are fed after them: in generation one less than the
    tokens made, since the last is never fed. With L layers, Lb of them the band and Ls the suffix::

        naive generation  (L + Ls + (k+1+p) Lb)(n+p) + sum over j = 1..m of (L + Ls + 2 Lb)(n+p+j)
        naive training    (L + Ls + (k+1+p+m) Lb)(n+p+m)
        fast, either      (l0 + Ls)(n+p+m) + Lb ((k+1) n + p + m)
    """
    first, last = band
    before, inside, after = first, last - first, n_layers - last
    whole = prompt + pauses + answer
    fast = (before + after) * whole + inside * ((loops + 1) * prompt + pauses + answer)
    if training:
        return Cost(naive=(n_layers + after + (loops + 1 + pauses + answer) * inside) * whole, fast=fast)
    naive = (n_layers + after + (loops + 1 + pauses) * inside) * (prompt + pauses)
    naive += sum((n_layers + after + 2 * inside) * (prompt + pauses + j) for j in range(1, answer + 1))
    return Cost(naive=naive, fast=fast)
