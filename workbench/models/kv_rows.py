"""A key-value store with one length per row: rewinding is a subtraction, an aborted pass leaves no mark.

A row's token at position ``p`` lives in column ``p`` of that row. A pass writes behind each row's length
and only ``PassView.commit`` moves the lengths, so a pass that raised or was interrupted never happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["FIRST_CAPACITY", "KVRows", "PassView", "RowLengths", "Tail"]

FIRST_CAPACITY = 256
"""Columns allocated at first; doubled when they run out, so that growth costs O(1) a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Keys and values of a row's last ``n`` positions, taken out of the store.

    One ``[n, head, d_head]`` a layer; None for a layer that holds none.
    """

    n: int
    keys: tuple[Tensor | None, ...] = field(repr=False)
    values: tuple[Tensor | None, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The first ``length`` positions of a row of another store."""

    store: KVRows
    row: int
    length: int

    def at(self, layer: int) -> tuple[Tensor | None, Tensor | None]:
        """Its keys and values in one layer, ``[1, length, head, d_head]``: views, or joined where it is a fork."""
        before = (None, None) if self.store.prefix is None else self.store.prefix.at(layer)
        own = slice(self.row, self.row + 1), slice(0, self.length - self.store.base)
        return _after(before[0], self.store._keys[layer], own), _after(before[1], self.store._values[layer], own)


def _after(before: Tensor | None, held: Tensor | None, span: tuple[slice, slice]) -> Tensor | None:
    """What a store holds of a row, behind what it shares with the store that it was forked from."""
    own = None if held is None or span[1].stop == 0 else held[span]
    if before is None or own is None:
        return before if own is None else own
    return torch.cat([before, own], dim=1)


class RowLengths:
    """How many positions each row of a store holds, the first ``base`` of them shared with another store."""

    def __init__(self, batch: int, base: int) -> None:
        if batch < 1:
            raise ValueError(f"a cache needs at least one row, got batch={batch}")
        self.base = base
        """Positions that all rows share and that this store does not hold itself."""
        self._lengths = [base] * batch

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self._lengths)

    def rewind(self, row: int, n: int) -> None:
        own = self._lengths[row] - self.base
        if not 0 <= n <= own:
            raise ValueError(f"can't rewind row {row} by {n}: it holds {own} positions")
        self._lengths[row] -= n


class KVRows(RowLengths):
    """Keys and values of ``batch`` rows over ``n_layers`` layers, ``[batch, capacity, head, d_head]`` each.

    With ``enabled=False`` it remembers nothing: its lengths stay 0 and every pass must feed whole rows.
    That is the fallback for a model whose own caching is found to be wrong at load.
    """

    def __init__(
        self, n_layers: int, batch: int, n_ctx: int, *, enabled: bool = True, prefix: Prefix | None = None
    ) -> None:
        super().__init__(batch, 0 if prefix is None else prefix.length)
        self.n_ctx = n_ctx
        self.enabled = enabled
        self.prefix = prefix
        self._capacity = min(FIRST_CAPACITY, n_ctx)
        self._keys: list[Tensor | None] = [None] * n_layers
        self._values: list[Tensor | None] = [None] * n_layers

    def take(self, row: int, n: int) -> Tail:
        """Rewind ``row`` by ``n`` and hand over what it forgets, so that :meth:`put` can bring it back.

        Copies ``n`` positions. Raises ValueError as :meth:`rewind` does.
        """
        self.rewind(row, n)
        first = self._lengths[row] - self.base
        with torch.inference_mode():
            keys, values = (
                tuple(None if held is None else held[row, first : first + n].clone() for held in store)
                for store in (self._keys, self._values)
            )
        return Tail(n=n, keys=keys, values=values)

    def put(self, row: int, tail: Tail) -> None:
        """Append what :meth:`take` gave to ``row``, bit for bit. It must follow the positions it followed then."""
        if not tail.n:
            return
        first = self._lengths[row] - self.base
        self._reserve(first + tail.n)
        with torch.inference_mode():
            for store, parts in ((self._keys, tail.keys), (self._values, tail.values)):
                for layer, part in enumerate(parts):
                    if part is not None:
                        self._layer(store, layer, part[None])[row, first : first + tail.n] = part
        self._lengths[row] += tail.n

    def fork(self, row: int, copies: int) -> KVRows:
        """``copies`` rows that all start as ``row`` is now. Its keys and values are shared, not copied.

        Valid as long as the row only grows: rewinding it below what was shared spoils the fork.
        """
        if not self.enabled:
            raise ValueError("this model's cache is switched off: feed whole rows instead of forking one")
        prefix = Prefix(store=self, row=row, length=self._lengths[row])
        return KVRows(len(self._keys), copies, self.n_ctx, prefix=prefix)

    def begin(self, rows: Sequence[int], n_new: int) -> PassView:
        """Open a pass in which each of ``rows`` appends ``n_new`` positions."""
        self._reserve(max(self._lengths[row] for row in rows) + n_new - self.base)
        return PassView(self, tuple(rows), n_new)

    def _reserve(self, needed: int) -> None:
        if needed <= self._capacity:
            return
        self._capacity = min(self.n_ctx, max(needed, 2 * self._capacity))
        for store in (self._keys, self._values):
            for layer, old in enumerate(store):
                if old is not None:
                    grown = old.new_zeros(old.shape[0], self._capacity, *old.shape[2:])
                    grown[:, : old.shape[1]] = old
                    store[layer] = grown

    def _layer(self, store: list[Tensor | None], layer: int, like: Tensor) -> Tensor:
        held = store[layer]
        if held is None:
            # Zeros, not empty: columns behind a row's length are masked, but 0 * NaN would still leak.
            held = like.new_zeros(len(self._lengths), self._capacity, *like.shape[2:])
            store[layer] = held
        return held


class PassView:
    """One pass over some rows that all append the same number of positions.

    Rows of equal length are served as views of the store. Ragged rows are served left-padded, so that
    the last column is everybody's newest token and column differences are position differences, which
    keeps sliding windows right; ``mask`` then says which columns are real.
    """

    def __init__(self, store: KVRows, rows: tuple[int, ...], n_new: int) -> None:
        self._store = store
        self.rows = rows
        self.n_new = n_new
        self.past = tuple(store.lengths[row] for row in rows)
        self.width = max(self.past)
        self._uniform = min(self.past) == self.width
        self._contiguous = rows == tuple(range(rows[0], rows[0] + len(rows)))

    def positions(self, device: torch.device) -> Tensor:
        """Position of every fed token, ``[rows, n_new]``."""
        starts = torch.tensor(self.past, device=device)
        return starts[:, None] + torch.arange(self.n_new, device=device)[None]

    def mask(self, device: torch.device) -> Tensor | None:
        """``[rows, width + n_new]`` with 1 where a column is real, or None when all are."""
        if self._uniform:
            return None
        columns = torch.arange(self.width + self.n_new, device=device)
        first = torch.tensor([self.width - past for past in self.past], device=device)
        return (columns[None] >= first[:, None]).long()

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store ``[rows, n_new, head, d_head]`` and return everything, ``[rows, width + n_new, head, d_head]``."""
        store = self._store
        before = (None, None) if store.prefix is None else store.prefix.at(layer)
        return (
            self._append(store._layer(store._keys, layer, keys), keys, before[0]),
            self._append(store._layer(store._values, layer, values), values, before[1]),
        )

    def _append(self, held: Tensor, new: Tensor, before: Tensor | None) -> Tensor:
        base = self._store.base
        for index, (row, past) in enumerate(zip(self.rows, self.past, strict=True)):
            held[row, past - base : past - base + self.n_new] = new[index]
        end = self.width + self.n_new
        if before is not None:
            return self._joined(held, new, before, end)
        if self._uniform and self._contiguous:
            return held[self.rows[0] : self.rows[-1] + 1, :end]
        if self._uniform:
            return held[list(self.rows), :end]
        padded = new.new_zeros(len(self.rows), end, *new.shape[2:])
        for index, (row, past) in enumerate(zip(self.rows, self.past, strict=True)):
            padded[index, self.width - past :] = held[row, : past + self.n_new]
        return padded

    def _joined(self, held: Tensor, new: Tensor, before: Tensor, end: int) -> Tensor:
        """What all rows share, followed by each row's own."""
        base = self._store.base
        if self._uniform:
            shared = before.expand(len(self.rows), *before.shape[1:])
            return torch.cat([shared, held[list(self.rows), : end - base]], dim=1)
        padded = new.new_zeros(len(self.rows), end, *new.shape[2:])
        for index, (row, past) in enumerate(zip(self.rows, self.past, strict=True)):
            first = self.width - past
            padded[index, first : first + base] = before[0]
            padded[index, first + base :] = held[row, : past - base + self.n_new]
        return padded

    def commit(self) -> None:
        """Count the fed positions as held. Called once, after the whole pass succeeded."""
        if self._store.enabled:
            for row in self.rows:
                self._store._lengths[row] += self.n_new
