"""Where a pass may be looked at and changed: edits are applied and values noted under TransformerLens's names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..hooks import is_attention_map
from ..protocol import Edit
from .rows import Fed

__all__ = ["Taps"]


class Taps:
    """The edits and captures of one pass. Values are flat: one column a fed token, ``[column, ...]``."""

    def __init__(self, fed: Fed, capture: Sequence[str], edits: Sequence[Edit]) -> None:
        self._spans = dict(zip(fed.rows, fed.spans(), strict=True))
        self._past = dict(zip(fed.rows, fed.past, strict=True))
        self._capture = dict.fromkeys(capture)
        self._edits: dict[str, list[Edit]] = {}
        for edit in edits:
            if edit.row in self._spans:
                self._edits.setdefault(edit.hook, []).append(edit)
        self._seen: dict[str, Tensor] = {}
        self._maps: dict[str, dict[int, Tensor]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._capture or name in self._edits

    def flat(self, name: str, value: Tensor) -> Tensor:
        """Apply the edits of ``name`` to ``[column, ...]``, in order, and note what comes of it."""
        edited = value
        for edit in self._edits.get(name, ()):
            if edited is value:
                edited = value.clone()
            first = self._spans[edit.row].start
            part = slice(first + edit.start, min(first + edit.stop, self._spans[edit.row].stop))
            edited[part] = edit.fn(edited[part])
        if name in self._capture:
            self._seen[name] = edited
        return edited

    def map(self, name: str, value: Tensor, rows: Sequence[int]) -> Tensor:
        """The same for attention maps ``[row, head, new, pos]`` of rows that feed equally many tokens."""
        edited = value
        for edit in self._edits.get(name, ()):
            if edit.row not in rows:
                continue
            if edited is value:
                edited = value.clone()
            width = self._past[edit.row] + value.shape[2]
            span = edited[rows.index(edit.row), :, edit.start : edit.stop, :width]
            span.copy_(edit.fn(span.transpose(0, 1)).transpose(0, 1))
        if name in self._capture:
            self._note_map(name, edited, rows)
        return edited

    def _note_map(self, name: str, value: Tensor, rows: Sequence[int]) -> None:
        if name.endswith("hook_attn_scores"):
            # Hidden positions are held at the lowest number, so that edits stay finite, and shown as -inf.
            value = value.masked_fill(value <= torch.finfo(value.dtype).min / 2, -torch.inf)
        noted = self._maps.setdefault(name, {})
        for index, row in enumerate(rows):
            noted[row] = value[index, :, :, : self._past[row] + value.shape[2]].transpose(0, 1)

    def seen(self) -> dict[str, dict[int, Tensor]]:
        """What was noted, by hook and fed row, ``[new, …]``."""
        found: dict[str, dict[int, Tensor]] = {}
        for name in self._capture:
            if is_attention_map(name):
                found[name] = self._maps[name]
            else:
                found[name] = {row: self._seen[name][span] for row, span in self._spans.items()}
        return found
