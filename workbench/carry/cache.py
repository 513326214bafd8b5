"""The cache of a carry model under the engine: three stores of keys and values that rewind together, and states.

A row's prompt ends before its first pause token or, if the tokens fed first hold none, with those. A rewind that
reaches into a looped prompt forgets all of it: only the last loop's keys and values are kept, so that the loops can't
be taken up in the middle. The engine then feeds the prompt again, and the result is that of a fresh pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import CarryError
from ..models import KVRows, Tail

if TYPE_CHECKING:
    from .served import ServedCarry

__all__ = ["CarryCache"]


class CarryCache:
    """Keys and values of prefix, band and suffix, and the states that were handed on, for ``batch`` rows."""

    def __init__(self, model: ServedCarry, batch: int, prompt_lengths: Sequence[int] | None = None) -> None:
        if model.settings.mode != "carry":
            raise CarryError(
                f"under the engine a carry model runs in mode 'carry', not {model.settings.mode!r}: use logits(), "
                "generate() or controls() for the other modes"
            )
        if prompt_lengths is not None and (len(prompt_lengths) != batch or min(prompt_lengths) < 1):
            raise CarryError(
                f"prompt_lengths must be one number of 1 or more for each of {batch} rows, got {list(prompt_lengths)}"
            )
        first, last = model.settings.band
        self._layers = (first, last - first, model.n_layers - last)
        self.prefix, self.band, self.suffix = (KVRows(n, batch, model.n_ctx) for n in self._layers)
        self.loops = model.settings.loops
        self.prompt_lengths: list[int | None] = [None] * batch if prompt_lengths is None else list(prompt_lengths)
        """Where each row's prompt ends, known once it was fed; kept through rewinds."""
        self.states: list[list[Tensor]] = [[] for _ in range(batch)]
        """Per row, s at its prompt's last position and at every one after it, ``[d_model]`` each."""

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.prefix.lengths

    def rewind(self, row: int, n: int) -> None:
        """Forget the last ``n`` positions, or the whole row if the prompt is looped and this reaches into it."""
        held = self.lengths[row]
        prompt = self.prompt_lengths[row]
        if prompt is not None and self.loops and 0 <= n <= held and n and held - n < prompt:
            n = held
        for store in self._stores():
            store.rewind(row, n)
        if prompt is not None:
            del self.states[row][max(held - n - prompt + 1, 0) :]

    def take(self, row: int, n: int) -> Tail:
        """Rewind ``row`` by ``n`` and hand over what it forgets. Raises ValueError within a looped prompt.

        The tail lists the layers of prefix, band and suffix and then, as one more, the states ``[n, 1, d_model]``.
        """
        kept, prompt = self.lengths[row] - n, self.prompt_lengths[row]
        if n and prompt is not None and kept < prompt:
            raise ValueError(
                f"can't take {n} positions of row {row}: they reach into its prompt, which is fed as a whole"
            )
        first = 0 if prompt is None else kept - prompt + 1
        states = torch.stack(self.states[row][first:])[:, None] if n else None
        parts = [store.take(row, n) for store in self._stores()]
        del self.states[row][first:]
        return Tail(
            n=n,
            keys=(*(layer for part in parts for layer in part.keys), states),
            values=(*(layer for part in parts for layer in part.values), None),
        )

    def put(self, row: int, tail: Tail) -> None:
        """Append what :meth:`take` gave, bit for bit."""
        if len(tail.keys) != sum(self._layers) + 1:
            raise ValueError("this tail holds no carried states: put back what a carry model's own cache gave")
        begin = 0
        for store, count in zip(self._stores(), self._layers, strict=True):
            span = slice(begin, begin + count)
            store.put(row, Tail(n=tail.n, keys=tail.keys[span], values=tail.values[span]))
            begin += count
        states = tail.keys[begin]
        if states is not None:
            self.states[row].extend(states[:, 0].unbind())

    def fork(self, row: int, copies: int) -> CarryCache:
        """``copies`` rows that begin as ``row`` is now, sharing its keys, values and states."""
        twin = object.__new__(CarryCache)
        twin.prefix, twin.band, twin.suffix = (store.fork(row, copies) for store in self._stores())
        twin._layers = self._layers
        twin.loops = self.loops
        twin.prompt_lengths = [self.prompt_lengths[row]] * copies
        twin.states = [list(self.states[row]) for _ in range(copies)]
        return twin

    def _stores(self) -> tuple[KVRows, KVRows, KVRows]:
        return self.prefix, self.band, self.suffix
