"""What a set of captured hooks asks of the compiled pass: worked out once a set, not once a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .layout import PATTERN, Notes
from .rows import Fed
from .weights import LeanWeights

__all__ = ["EDITED", "KINDS", "CapturePlan", "kind_of", "layer_of"]

KINDS = (
    "hook_resid_pre", "hook_resid_mid", "hook_resid_post", "hook_attn_out", "hook_mlp_out",
    "attn.hook_q", "attn.hook_k", "attn.hook_v", "attn.hook_z", "attn.hook_pattern",
)  # fmt: skip
"""Hooks that are captured inside the compiled pass, in the order of ``Notes``."""
EDITED = ("hook_resid_pre", "hook_resid_mid", "hook_resid_post")
"""Hooks whose edits it comes back to Python for: before a layer, between its halves, behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a captured hook is noted."""

    name: str
    kind: int
    slot: int


class CapturePlan:
    """Where each hook of a set is noted, and how what was noted is handed out."""

    def __init__(self, weights: LeanWeights, capture: Sequence[str]) -> None:
        strange = [kind_of(name) for name in capture if kind_of(name) not in KINDS]
        self.refusal = f"capture of {strange[0]}" if strange else None
        """Why these hooks can't be captured inside the compiled pass, or None."""
        self._weights = weights
        self._slots = np.full((len(KINDS), weights.n_layers), -1, dtype=np.int64)
        self._counts = [0] * len(KINDS)
        self._places: list[_Place] = []
        for name in dict.fromkeys(() if strange else capture):
            kind = KINDS.index(kind_of(name))
            self._slots[kind, layer_of(name)] = self._counts[kind]
            self._places.append(_Place(name=name, kind=kind, slot=self._counts[kind]))
            self._counts[kind] += 1
        queries, keys = weights.n_heads * weights.d_head, weights.n_kv_heads * weights.d_head
        self._widths = (*[weights.d_model] * 5, queries, keys, keys, queries)

    def notes(self, fed: Fed) -> Notes:
        """Room for the captures of a pass: fresh memory, since the caller keeps it."""
        n = fed.n_columns
        flat = [
            np.empty((count, n, width), dtype=np.float32)
            for count, width in zip(self._counts, self._widths, strict=False)
        ]
        pattern = np.zeros((self._counts[PATTERN], n, self._weights.n_heads, fed.width), dtype=np.float32)
        return Notes._make([self._slots, *flat, pattern])

    def views(self, fed: Fed, notes: Notes) -> dict[str, dict[int, Tensor]]:
        """What was captured, by hook and fed row, ``[new, …]``: ordinary tensors, which may be written to."""
        with torch.inference_mode(False):
            arrays = [self._shaped(kind, torch.from_numpy(array)) for kind, array in enumerate(notes[1:])]
            if len(fed.rows) == 1 and not self._counts[PATTERN]:
                row = fed.rows[0]
                return {place.name: {row: arrays[place.kind][place.slot]} for place in self._places}
            spans = list(zip(fed.rows, fed.spans(), fed.past, strict=True))
            found = {}
            for place in self._places:
                value = arrays[place.kind][place.slot]
                if place.kind == PATTERN:
                    found[place.name] = {row: value[s, :, : past + s.stop - s.start] for row, s, past in spans}
                else:
                    found[place.name] = {row: value[span] for row, span, _ in spans}
            return found

    def _shaped(self, kind: int, value: Tensor) -> tuple[Tensor, ...]:
        """By slot, ``[column, …]``; heads on an axis of their own."""
        by_head = KINDS[kind].startswith("attn.") and kind != PATTERN
        d_head = self._weights.d_head
        return (value.view(*value.shape[:2], value.shape[2] // d_head, d_head) if by_head else value).unbind()


def kind_of(name: str) -> str:
    """The name without its layer: ``blocks.3.attn.hook_q`` is an ``attn.hook_q``."""
    return name.split(".", 2)[2] if name.startswith("blocks.") else name


def layer_of(name: str) -> int:
    return int(name.split(".", 2)[1])
