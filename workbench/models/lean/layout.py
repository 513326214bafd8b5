"""What the compiled pass is given, as named tuples of arrays, the one kind of record that numba takes apart for free.

All arrays are C-contiguous float32 unless said otherwise. An absent norm is an array of no rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ATTENTION_OUT",
    "GROUP",
    "KEY",
    "LANES",
    "MID",
    "MLP_OUT",
    "PATTERN",
    "PHASES",
    "POST",
    "PRE",
    "QUERY",
    "STRIDE",
    "VALUE",
    "Array",
    "Counters",
    "Model",
    "Notes",
    "Packed",
    "Scratch",
    "Store",
    "Z",
]  # fmt: skip

Array = NDArray[np.float32]
Counters = NDArray[np.int64]

PRE, MID, POST, ATTENTION_OUT, MLP_OUT, QUERY, KEY, VALUE, Z, PATTERN = range(10)
"""Rows of ``Notes.slots``."""
PHASES = 4
"""Phases of half a layer, at most."""
STRIDE = 16
"""Counters a phase: the first says what is taken, the middle one what is done, each on a cache line of its own."""


LANES = 8
"""Numbers that are worked on at once: a row of a packed matrix has a lane."""
GROUP = 16
"""Rows of a packed matrix that stand together, as two vectors of lanes."""


class Packed(NamedTuple):
    """Matrices of some layers whose weights stay packed: ``scale * field + minimum`` each.

    All lies in the order in which it is read, ``[layer, group, block, vector, word, lane]``; row
    ``16 * group + 8 * vector + lane``. The last two words are the block's scale and minimum.
    """

    words: NDArray[np.int32]
    """A word is eight fields of 4 bits or four of 8, the first one lowest."""
    numbers: Array
    """The same memory as float32."""
    bits: int


class Model(NamedTuple):
    """The weights; names and meanings as in :class:`~workbench.models.lean.weights.LeanWeights`.

    The five matrices are arrays ``[layer, out, in]``, or all of them :class:`Packed`; the unembedding has one layer.
    """

    unembedding: Any
    qkv: Any
    attention_out: Any
    gate_up: Any
    down: Any
    before_attention: Array
    after_attention: Array
    before_mlp: Array
    after_mlp: Array
    query_norm: Array
    key_norm: Array
    final: Array
    """``[1, d_model]``"""
    kind: NDArray[np.int64]
    window: NDArray[np.int64]
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    attention_scale: Any
    epsilon: Any
    """These two are float32 scalars."""
    is_silu: bool


class Store(NamedTuple):
    """Keys and values, ``[layer, row, kv_head, capacity, d_head]``; the shared ones are those of ``shared_row``."""

    keys: Array
    values: Array
    shared_keys: Array
    shared_values: Array
    shared_row: int
    base: int
    """Positions that are shared: the store's own columns begin behind them."""


class Scratch(NamedTuple):
    """Where a pass works, ``[column, …]``; rows behind ``n_columns`` are unused."""

    n_columns: int
    n_chunks: int
    """Into how many pieces a query's past is cut."""
    n_kept: int
    rows: NDArray[np.int64]
    """By column, the row of the store."""
    positions: NDArray[np.int64]
    kept: NDArray[np.int64]
    """Columns whose logits are wanted."""
    cosines: Array
    """``[kind, column, d_head / 2]``"""
    sines: Array
    residual: Array
    normed: Array
    qkv: Array
    scores: Array
    """``[column, head, width]``: exponentials of the scores over those of their piece's largest."""
    peaks: Array
    """``[column, head, chunk]``: that largest score."""
    totals: Array
    """``[column, head, chunk]``: the sum of the exponentials."""
    sums: Array
    """``[column, head, chunk, d_head]``: the sum of the values, each times its exponential."""
    mixed: Array
    added: Array
    """``[column, d_model]``: what attention or MLP adds to the stream."""
    gated: Array
    """``[column, 2 * d_mlp]``: gate, then what it gates."""
    opened: Array
    spread: Array
    """``[column, in]``: what is multiplied with packed weights next, made ready for their fields."""
    block_sums: Array
    """``[column, block]``: its sums."""
    logits: Array
    """``[kept, vocab]``"""


class Notes(NamedTuple):
    """Captures, ``[slot, column, …]``; an array of no slots where nothing of its kind is wanted."""

    slots: NDArray[np.int64]
    """``[kind, layer]``: the slot of that layer in the array of that kind, or -1."""
    pre: Array
    mid: Array
    post: Array
    attention_out: Array
    mlp_out: Array
    query: Array
    key: Array
    value: Array
    z: Array
    pattern: Array
    """``[slot, column, head, width]``, zero where nothing is seen."""
