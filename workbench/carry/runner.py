"""Running a part of a model's blocks over some columns, with the keys and values of earlier ones kept beside.

Masks go by position id, never by column: a query sees a key of its row that is real, not later than itself and, on
sliding layers, nearer than the window. Columns may thus stand in any order and rows may be ragged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..errors import CarryError
from ..models import Blocks

__all__ = ["BandRunner", "Columns", "Growing", "Kept", "Past", "Watcher", "Where"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """What a pass over some blocks is: enough to address any value in it together with a layer."""

    phase: str
    """``prefix``, ``prompt`` (the band over the prompt), ``step`` (the band at later positions) or ``suffix``."""
    loop: int
    """How often the band ran over these positions before."""
    step: int
    """Position minus that of the prompt's last token: 0 there, 1 at the first pause; 0 in all other phases."""
    first: int
    """Place of the pass's first column among the columns of the whole call."""
    count: int


class Watcher(Protocol):
    """Told of each pass before it runs, with what goes in (ids or residual), and of what leaves each block."""

    def enter(self, where: Where, x: Tensor) -> None: ...
    def left_block(self, layer: int, x: Tensor) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which positions the columns of a pass hold: ``positions`` and ``real``, both ``[batch, new]``."""

    positions: Tensor
    real: Tensor
    tokens: int
    """How many of them are real: what the work is counted in."""


class Past(Protocol):
    """One pass's access to keys and values: takes the new ones, gives all."""

    @property
    def key_positions(self) -> Tensor:
        """``[batch, pos]``, the new columns last."""
        ...

    @property
    def key_real(self) -> Tensor: ...

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Keys and values by layer, ``[batch, kv_head, pos, d_head]``, with their positions. Never changed, only succeeded.

    A scan may therefore start twice from one prefill, and a checkpointed function can't append twice.
    """

    keys: Mapping[int, Tensor]
    values: Mapping[int, Tensor]
    positions: Tensor
    real: Tensor

    @property
    def length(self) -> int:
        """Columns held."""
        return int(self.positions.shape[1])

    def bytes(self) -> int:
        """Size of the keys and values."""
        return sum(t.numel() * t.element_size() for t in (*self.keys.values(), *self.values.values()))


class Growing:
    """A pass on top of ``kept`` (or nothing). Joined by ``cat``, so that gradients flow to earlier columns."""

    def __init__(self, kept: Kept | None, columns: Columns) -> None:
        self._kept = kept
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self.key_positions, self.key_real = columns.positions, columns.real
        if kept is not None:
            self.key_positions = torch.cat([kept.positions, columns.positions], 1)
            self.key_real = torch.cat([kept.real, columns.real], 1)

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        if layer in self._keys:
            raise CarryError(f"block {layer} appended twice in one pass: a position is kept exactly once")
        if self._kept is not None and layer in self._kept.keys:
            keys = torch.cat([self._kept.keys[layer], keys], 2)
            values = torch.cat([self._kept.values[layer], values], 2)
        self._keys[layer], self._values[layer] = keys, values
        return keys, values

    def close(self) -> Kept:
        """What a later pass may build on."""
        return Kept(keys=self._keys, values=self._values, positions=self.key_positions, real=self.key_real)


class BandRunner:
    """The blocks of a model in three parts: prefix, band ``[first, last)`` and suffix.

    ``token_layers`` counts block evaluations per real token, ``band_passes`` the passes over the band.

    :raises CarryError: the band is empty or outside the model.
    """

    def __init__(self, blocks: Blocks, band: tuple[int, int]) -> None:
        first, last = band
        if not 0 <= first < last <= blocks.n_layers:
            raise CarryError(
                f"the band must be layers (l0, l1) with 0 <= l0 < l1 <= {blocks.n_layers} (this model's layers, l1 "
                f"not included), got ({first}, {last})"
            )
        self.blocks = blocks
        self.band = (int(first), int(last))
        self.token_layers = 0
        self.band_passes = 0

    def prefix(self, ids: Tensor, columns: Columns, past: Past, watcher: Watcher | None = None) -> Tensor:
        """Token ids to the residual entering the band; zeros at padding, whatever lies there."""
        where = Where(phase="prefix", loop=0, step=0, first=0, count=ids.shape[1])
        if watcher is not None:
            watcher.enter(where, ids)
        x = self._hide(self.blocks.embed(ids), columns)
        return self._hide(self._run(0, self.band[0], x, columns, past, watcher), columns)

    def through_band(
        self, x: Tensor, columns: Columns, past: Past, where: Where, watcher: Watcher | None = None
    ) -> Tensor:
        """The band once; zeros at padding."""
        if watcher is not None:
            watcher.enter(where, x)
        self.band_passes += 1
        return self._hide(self._run(*self.band, x, columns, past, watcher), columns)

    def suffix(self, s: Tensor, columns: Columns, past: Past, watcher: Watcher | None = None) -> Tensor:
        """The residual leaving the band to the one leaving the last block."""
        if watcher is not None:
            watcher.enter(Where(phase="suffix", loop=0, step=0, first=0, count=s.shape[1]), s)
        return self._run(self.band[1], self.blocks.n_layers, s, columns, past, watcher)

    def _run(self, first: int, last: int, x: Tensor, columns: Columns, past: Past, watcher: Watcher | None) -> Tensor:
        if first == last:
            return x
        self.token_layers += columns.tokens * (last - first)
        phases = self.blocks.phases(x, columns.positions)
        masks = {
            kind: attention_mask(columns, past, self.blocks.window(kind), x.dtype)
            for kind in dict.fromkeys(self.blocks.kinds[first:last])
        }
        for layer in range(first, last):
            kind = self.blocks.kinds[layer]
            x = self.blocks.block(layer, x, mask=masks[kind], phases=phases[kind], positions=columns.positions, kv=past)
            if watcher is not None:
                watcher.left_block(layer, x)
        return x

    @staticmethod
    def _hide(x: Tensor, columns: Columns) -> Tensor:
        return x.masked_fill(~columns.real[..., None], 0)


def attention_mask(columns: Columns, past: Past, window: int | None, dtype: torch.dtype) -> Tensor:
    """What is added to attention scores, ``[batch, 1, new, pos]``: 0 where visible, else a very low number.

    A padded query sees its own column, since a softmax over nothing is NaN.
    """
    queries, keys = columns.positions[:, :, None], past.key_positions[:, None, :]
    seen = past.key_real[:, None, :] & columns.real[:, :, None] & (keys <= queries)
    if window is not None:
        seen = seen & (queries - keys < window)
    new, width = seen.shape[1], seen.shape[2]
    own = torch.eye(new, dtype=torch.bool, device=seen.device)
    seen[:, :, width - new :] |= own & ~columns.real[:, :, None]
    # Softmax runs in float32 also in float64 models, where float64's lowest number would become -inf.
    low = torch.finfo(torch.float32 if dtype == torch.float64 else dtype).min
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, low)[:, None]
