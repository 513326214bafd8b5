"""The compiled gear: a pass on the CPU in float32 that comes back to Python only where an edit asks for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..compiled_code import keep_compiled
from ..protocol import Edit
from .captures import EDITED, CapturePlan, kind_of, layer_of
from .crew import Crew
from .layout import PHASES, POST, STRIDE, Array, Model, Notes, Scratch, Store
from .packed import PackedMatrices
from .rows import Fed, LeanRows
from .twin import phases_of, positions_of
from .weights import LeanWeights

__all__ = ["CompiledGear"]

SOURCES = (
    "atomics.py", "attention.py", "exponential.py", "kernels.py", "layout.py", "packed_products.py", "products.py",
)  # fmt: skip
"""What the compiled pass is made from."""
MAX_COLUMNS = 96
"""Tokens a pass may feed; for more of them torch's matrix product is as fast or faster."""
APART = 16
"""Unused numbers behind a row whose length is a power of two or near it: rows would fall on the same cache lines."""
CHUNK = 256
"""Positions of the past that are worth a piece of work of their own."""
MOST_PLANS = 64
"""Sets of captured hooks that are kept in mind."""


@cache
def _function() -> Any:
    """The compiled pass. numba is imported, and its compiler or its cache asked, when a model first needs it."""
    from .kernels import run_halves

    keep_compiled(run_halves, [Path(__file__).with_name(name) for name in SOURCES])
    return run_halves


class CompiledGear:
    """Runs passes of one model. Not for several threads at once: its scratch space is used again."""

    def __init__(self, weights: LeanWeights) -> None:
        self._weights = weights
        self._model = _model(weights)
        self._crew = Crew()
        self._plans: dict[tuple[str, ...], CapturePlan] = {}
        self._shape = (0, 0, 0)
        self._scratch: Scratch | None = None
        self._phases = phases_of(weights, torch.zeros(0))

    def plan(self, capture: Sequence[str]) -> CapturePlan:
        """How these hooks are captured."""
        key = tuple(capture)
        if key not in self._plans:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[key] = CapturePlan(self._weights, key)
        return self._plans[key]

    def refusal(self, fed: Fed, capture: Sequence[str], edits: Sequence[Edit]) -> str | None:
        """Why this pass can't be run here, or None."""
        if refusal := self.plan(capture).refusal:
            return refusal
        for edit in edits:
            if kind_of(edit.hook) not in EDITED:
                return f"edit of {kind_of(edit.hook)}"
        if fed.n_columns > MAX_COLUMNS:
            return "many tokens"
        return None

    def run(
        self,
        store: LeanRows,
        fed: Fed,
        tokens: Sequence[int],
        capture: Sequence[str],
        edits: Sequence[Edit],
        kept: Sequence[int],
        n_threads: int,
    ) -> tuple[Tensor, dict[str, dict[int, Tensor]]]:
        """Logits ``[len(kept), vocab]`` and, by hook and fed row, captures ``[new, …]``."""
        plan = self.plan(capture)
        notes = plan.notes(fed)
        scratch = self._fill(fed, tokens, kept)
        arguments = self._model, _store(store), scratch, notes
        n_halves = 2 * self._weights.n_layers + 1
        first = 0
        for stop, here in [*_stops(fed, edits), (n_halves, [])]:
            if stop > first:
                counters = np.zeros(n_halves * PHASES * STRIDE, dtype=np.int64)
                self._crew.run(n_threads, _function(), (first, stop, *arguments, counters))
                first = stop
            for edit in here:
                _change(edit, fed, scratch, notes)
        with torch.inference_mode(False):
            logits, softcap = torch.from_numpy(scratch.logits)[:, :-APART], self._weights.softcap
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
        return logits, plan.views(fed, notes)

    def _fill(self, fed: Fed, tokens: Sequence[int], kept: Sequence[int]) -> Scratch:
        """The scratch space of a pass, its tokens embedded; the arrays of the last pass where they fit."""
        weights, n = self._weights, fed.n_columns
        shape = n, 1 + (fed.width - 1) // CHUNK, len(kept)
        if self._scratch is None or shape != self._shape:
            self._scratch, self._shape = _scratch(weights, *shape), shape
        positions = np.array(positions_of(fed), dtype=np.int64)
        embedded = weights.embed(torch.tensor(tokens))
        torch.mul(embedded, weights.embed_scale, out=torch.from_numpy(self._scratch.residual[:n]))
        if fed.width > self._phases[0].shape[1]:
            self._phases = phases_of(weights, torch.arange(2 * fed.width))
        # take, not an index: that may give another layout, and compiled code is made anew for each.
        cosines, sines = (np.take(table.numpy(), positions, axis=1) for table in self._phases)
        return self._scratch._replace(
            rows=np.repeat(np.array(fed.rows, dtype=np.int64), fed.counts),
            positions=positions,
            kept=np.array(kept, dtype=np.int64),
            cosines=cosines,
            sines=sines,
            logits=np.empty((len(kept), weights.vocab + APART), dtype=np.float32),
        )


def _scratch(weights: LeanWeights, n: int, n_chunks: int, n_kept: int) -> Scratch:
    """Room for passes of ``n`` columns."""
    heads, kv_heads, size = weights.n_heads, weights.n_kv_heads, weights.d_head
    widest = max(weights.d_model, weights.d_mlp, heads * size)
    packed = isinstance(weights.qkv, PackedMatrices)
    nothing = np.empty((0, 0), dtype=np.float32)
    numbers = np.zeros(0, dtype=np.int64)
    return Scratch(
        n_columns=n,
        n_chunks=n_chunks,
        n_kept=n_kept,
        rows=numbers,
        positions=numbers,
        kept=numbers,
        cosines=nothing[None],
        sines=nothing[None],
        residual=_room(n, weights.d_model),
        normed=_room(n, weights.d_model),
        qkv=_room(n, (heads + 2 * kv_heads) * size),
        scores=_room(n, heads, n_chunks * CHUNK),
        peaks=_room(n, heads, n_chunks),
        totals=_room(n, heads, n_chunks),
        sums=_room(n, heads, n_chunks, size),
        mixed=_room(n, heads * size),
        added=_room(n, weights.d_model),
        gated=_room(n, 2 * weights.d_mlp + APART),
        opened=_room(n, weights.d_mlp + APART),
        spread=_room(n, widest) if packed else nothing,
        block_sums=_room(n, widest) if packed else nothing,
        logits=nothing,
    )


def _room(*shape: int) -> Array:
    """An array at the start of a cache line."""
    wide = np.empty(math.prod(shape) + APART, dtype=np.float32)
    first = -(wide.ctypes.data // 4) % APART
    return wide[first : first + math.prod(shape)].reshape(shape)


def _model(weights: LeanWeights) -> Model:
    absent = np.empty((0, 0), dtype=np.float32)

    def array(value: Tensor | PackedMatrices | None) -> Any:
        if isinstance(value, PackedMatrices):
            return value.packed
        return absent if value is None else value.contiguous().numpy()

    unembedding = array(weights.unembedding)
    return Model(
        unembedding=unembedding if isinstance(weights.unembedding, PackedMatrices) else unembedding[None],
        qkv=array(weights.qkv),
        attention_out=array(weights.attention_out),
        gate_up=array(weights.gate_up),
        down=array(weights.down),
        before_attention=array(weights.before_attention),
        after_attention=array(weights.after_attention),
        before_mlp=array(weights.before_mlp),
        after_mlp=array(weights.after_mlp),
        query_norm=array(weights.query_norm),
        key_norm=array(weights.key_norm),
        final=array(weights.final[None]),
        kind=np.array(weights.kind, dtype=np.int64),
        window=np.array(weights.window, dtype=np.int64),
        n_layers=weights.n_layers,
        n_heads=weights.n_heads,
        n_kv_heads=weights.n_kv_heads,
        d_head=weights.d_head,
        attention_scale=np.float32(weights.attention_scale),
        epsilon=np.float32(weights.epsilon),
        is_silu=weights.activation == "silu",
    )


def _store(store: LeanRows) -> Store:
    keys, values = store.keys.numpy(), store.values.numpy()
    shared = store.shared
    return Store(
        keys=keys,
        values=values,
        shared_keys=keys if shared is None else shared.keys.numpy(),
        shared_values=values if shared is None else shared.values.numpy(),
        shared_row=0 if shared is None else shared.row,
        base=store.base,
    )


def _stops(fed: Fed, edits: Sequence[Edit]) -> list[tuple[int, list[Edit]]]:
    """Before which half of a layer to stop, and the edits to make there, in the order in which they act."""
    stops: dict[int, list[Edit]] = {}
    # Sorting keeps the order of edits of one hook; the end of a layer comes before the start of the next.
    for edit in sorted(edits, key=lambda edit: kind_of(edit.hook) != "hook_resid_post"):
        if edit.row in fed.rows:
            half = 2 * layer_of(edit.hook) + EDITED.index(kind_of(edit.hook))
            stops.setdefault(half, []).append(edit)
    return sorted(stops.items())


def _change(edit: Edit, fed: Fed, scratch: Scratch, notes: Notes) -> None:
    """Make one edit of the stream; a capture of the same value shows it."""
    span = fed.spans()[fed.rows.index(edit.row)]
    columns = slice(span.start + edit.start, min(span.start + edit.stop, span.stop))
    residual = torch.from_numpy(scratch.residual)
    residual[columns] = edit.fn(residual[columns].clone())
    slot = notes.slots[POST, layer_of(edit.hook)]
    if kind_of(edit.hook) == "hook_resid_post" and slot >= 0:
        torch.from_numpy(notes.post)[slot, columns] = residual[columns]
