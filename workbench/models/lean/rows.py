"""The lean path's key-value store: all layers in one tensor, a length per row, rewinding by subtraction.

A row's token at position ``p`` lives in column ``p`` of that row, so that neither sliding windows nor ragged rows
need padding: what a query sees is a range of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..kv_rows import FIRST_CAPACITY, RowLengths, Tail

__all__ = ["Fed", "LeanRows", "Shared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The first ``length`` positions of one row of another store, which all rows of a fork begin with."""

    keys: Tensor = field(repr=False)
    values: Tensor = field(repr=False)
    row: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """Which tokens a pass feeds: one column a token, the columns of a row side by side."""

    rows: tuple[int, ...]
    """The rows that feed something, in rising order."""
    counts: tuple[int, ...]
    """How many tokens each of them feeds."""
    past: tuple[int, ...]
    """How many positions each of them held before."""

    @property
    def n_columns(self) -> int:
        return sum(self.counts)

    @property
    def width(self) -> int:
        """The longest row after the pass, in positions."""
        return max((past + count for past, count in zip(self.past, self.counts, strict=True)), default=0)

    def spans(self) -> list[slice]:
        """By fed row, its columns."""
        spans, first = [], 0
        for count in self.counts:
            spans.append(slice(first, first + count))
            first += count
        return spans


class LeanRows(RowLengths):
    """Keys and values of ``batch`` rows, ``[layer, batch, kv_head, capacity, d_head]``; capacity doubles as needed.

    With ``enabled=False`` it remembers nothing, as :class:`~workbench.models.KVRows` does.
    """

    def __init__(
        self,
        like: Tensor,
        sizes: tuple[int, int, int],
        batch: int,
        n_ctx: int,
        *,
        enabled: bool = True,
        shared: Shared | None = None,
    ) -> None:
        super().__init__(batch, 0 if shared is None else shared.length)
        self.n_ctx = n_ctx
        self.enabled = enabled
        self.shared = shared
        self._sizes = sizes
        n_layers, n_kv_heads, d_head = sizes
        capacity = min(FIRST_CAPACITY, n_ctx)
        # Zeros, not empty: columns behind a row's length are masked, but 0 * NaN would still leak.
        self.keys = like.new_zeros(n_layers, batch, n_kv_heads, capacity, d_head)
        self.values = torch.zeros_like(self.keys)

    def take(self, row: int, n: int) -> Tail:
        self.rewind(row, n)
        first = self._lengths[row] - self.base
        with torch.inference_mode():
            keys, values = (
                tuple(part.transpose(0, 1).clone() for part in held[:, row, :, first : first + n])
                for held in (self.keys, self.values)
            )
        return Tail(n=n, keys=keys, values=values)

    def put(self, row: int, tail: Tail) -> None:
        first = self._lengths[row] - self.base
        with torch.inference_mode():
            self.reserve(self._lengths[row] + tail.n)
            for held, parts in ((self.keys, tail.keys), (self.values, tail.values)):
                for layer, part in enumerate(parts):
                    if part is not None:
                        held[layer, row, :, first : first + tail.n] = part.transpose(0, 1)
        self._lengths[row] += tail.n

    def fork(self, row: int, copies: int) -> LeanRows:
        """``copies`` rows that all start as ``row`` is now, whose keys and values are shared, not copied.

        A fork of a fork copies what the two share. Valid as long as the row only grows.
        """
        if not self.enabled:
            raise ValueError("this model's cache is switched off: feed whole rows instead of forking one")
        length = self._lengths[row]
        if self.shared is None:
            shared = Shared(keys=self.keys, values=self.values, row=row, length=length)
        else:
            keys, values = (self._joined(which, row) for which in ("keys", "values"))
            shared = Shared(keys=keys, values=values, row=0, length=length)
        return LeanRows(self.keys, self._sizes, copies, self.n_ctx, shared=shared)

    def _joined(self, which: str, row: int) -> Tensor:
        """All positions of ``row``, shared ones first: ``[layer, 1, kv_head, length, d_head]``."""
        held = self.keys if which == "keys" else self.values
        own = held[:, row : row + 1, :, : self._lengths[row] - self.base]
        if self.shared is None:
            return own
        before = self.shared.keys if which == "keys" else self.shared.values
        return torch.cat([before[:, self.shared.row, None, :, : self.base], own], dim=3)

    def reserve(self, length: int) -> None:
        """Make room for rows of ``length`` positions."""
        needed, capacity = length - self.base, self.keys.shape[3]
        if needed <= capacity:
            return
        grown = min(self.n_ctx, max(needed, 2 * capacity))
        for name, old in (("keys", self.keys), ("values", self.values)):
            new = old.new_zeros(*old.shape[:3], grown, old.shape[4])
            new[:, :, :, :capacity] = old
            setattr(self, name, new)

    def begin(self, counts: Sequence[int]) -> Fed:
        """Open a pass in which row ``i`` appends ``counts[i]`` positions."""
        rows = tuple(row for row, count in enumerate(counts) if count)
        fed = Fed(
            rows=rows,
            counts=tuple(counts[row] for row in rows),
            past=tuple(self._lengths[row] for row in rows),
        )
        self.reserve(fed.width)
        return fed

    def commit(self, fed: Fed) -> None:
        """Count the fed positions as held. Called once, after the whole pass succeeded."""
        if self.enabled:
            for row, count in zip(fed.rows, fed.counts, strict=True):
                self._lengths[row] += count
