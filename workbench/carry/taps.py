"""Captures and edits of one group of rows, put together from the many passes that a carry is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..models import Edit
from .runner import Where

__all__ = ["CARRY_HOOKS", "Taps"]

CARRY_HOOKS = ("carry.e", "carry.x", "carry.s")
"""Residual entering the band, what the band was given after the merge, residual leaving it: ``[new, d_model]``."""
MAPS = ("attn.hook_pattern", "attn.hook_attn_scores")
"""Hooks with a key axis, whose length differs from pass to pass."""


class Taps:
    """What hooks do in one call of ``forward``: apply the rows' edits where they fall, keep what is captured.

    A hook fires in several passes, each over a span of the new positions; the runner says which (:meth:`enter`).
    Where the prompt is looped, edits act in every loop and the last loop's value is kept.
    """

    def __init__(
        self, rows: Sequence[int], past: Sequence[int], new: int, capture: Sequence[str], edits: Sequence[Edit]
    ) -> None:
        self._rows = list(rows)
        self._past = list(past)
        self._new = new
        self._edits: dict[str, list[Edit]] = {}
        for edit in edits:
            self._edits.setdefault(edit.hook, []).append(edit)
        self._kept: dict[str, dict[int, tuple[Tensor, tuple[int, ...]]]] = {name: {} for name in capture}
        self._first, self._count = 0, new
        self.leads: tuple[int, ...] = (0,) * len(self._rows)
        """Columns of padding before each row's first key in the present pass."""

    # Watcher ---------------------------------------------------------------------------------------------------

    def enter(self, where: Where, x: Tensor) -> None:
        self._first, self._count = where.first, where.count

    def left_block(self, layer: int, x: Tensor) -> None:
        """Nothing: the model's own hooks see what leaves a block."""

    # Hooks -----------------------------------------------------------------------------------------------------

    def hooks(self) -> dict[str, Callable[[Tensor], Tensor | None]]:
        """A function for each of the base model's hooks that is captured or edited."""
        names = [name for name in {**self._kept, **self._edits} if name not in CARRY_HOOKS]
        return {name: self._hook(name) for name in names}

    def through(self, name: str, value: Tensor, first: int) -> Tensor:
        """A value of the carry's own, ``[rows, count, d_model]`` from new position ``first`` on: edited and kept."""
        self._first, self._count = first, value.shape[1]
        changed = self._hook(name)(value) if name in self._kept or name in self._edits else None
        return value if changed is None else changed

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(parts), 1)

    def _hook(self, name: str) -> Callable[[Tensor], Tensor | None]:
        edits = self._edits.get(name, [])

        def fn(value: Tensor) -> Tensor | None:
            edited = value
            for edit in edits:
                begin = max(edit.start - self._first, 0)
                end = min(edit.stop - self._first, self._count)
                if begin >= end:
                    continue
                if edited is value:
                    edited = value.clone()
                self._apply(name, edit, edited, slice(begin, end))
            if name in self._kept:
                self._kept[name][self._first] = edited, self.leads
            return None if edited is value else edited

        return fn

    def _apply(self, name: str, edit: Edit, value: Tensor, span: slice) -> None:
        index = self._rows.index(edit.row)
        if name.endswith(MAPS):
            part = value[index, :, span, self.leads[index] :]
            part.copy_(edit.fn(part.transpose(0, 1)).transpose(0, 1))
        else:
            value[index, span] = edit.fn(value[index, span])

    # What was captured -----------------------------------------------------------------------------------------

    def taken(self, name: str, index: int) -> Tensor:
        """One row's value over all new positions, position first."""
        parts = [part for _, part in sorted(self._kept[name].items(), key=lambda item: item[0])]
        if not name.endswith(MAPS):
            return torch.cat([value[index] for value, _ in parts])
        width = self._past[index] + self._new
        return torch.cat([self._widened(name, value[index, :, :, leads[index] :], width) for value, leads in parts])

    @staticmethod
    def _widened(name: str, value: Tensor, width: int) -> Tensor:
        """A map ``[head, new, pos]`` as ``[new, head, width]``: keys that were not there yet got no attention."""
        hidden = -torch.inf if name.endswith("scores") else 0.0
        if hidden:
            value = value.masked_fill(value <= torch.finfo(value.dtype).min / 2, hidden)
        full = value.new_full((*value.shape[:2], width), hidden)
        full[:, :, : value.shape[2]] = value
        return full.transpose(0, 1)
