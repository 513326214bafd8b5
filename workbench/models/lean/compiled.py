"""The compiled gear: a pass on the CPU in float32 that comes back to Python only where an edit asks for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..protocol import Edit
from .crew import Crew, keep_compiled
from .layout import PHASES, POST, STRIDE, Array, Model, Notes, Scratch, Store
from .rows import Fed, LeanRows
from .twin import phases_of, positions_of
from .weights import LeanWeights

__all__ = ["CompiledGear"]

MAX_COLUMNS = 24
"""Tokens a pass may feed; for more of them torch's matrix product is as fast or faster."""
APART = 16
"""Unused numbers behind a row whose length is a power of two or near it: rows would fall on the same cache lines."""
CHUNK = 256
"""Positions of the past that are worth a piece of work of their own."""
KINDS = (
    "hook_resid_pre", "hook_resid_mid", "hook_resid_post", "hook_attn_out", "hook_mlp_out",
    "attn.hook_q", "attn.hook_k", "attn.hook_v", "attn.hook_z", "attn.hook_pattern",
)  # fmt: skip
"""Hooks that are captured inside the compiled pass, in the order of ``Notes``."""
EDITED = ("hook_resid_pre", "hook_resid_mid", "hook_resid_post")
"""Hooks whose edits it comes back to Python for: before a layer, between its halves, behind it."""


@cache
def _function() -> Any:
    """The compiled pass. numba is imported, and its compiler or its cache asked, when a model first needs it."""
    from .kernels import run_halves

    keep_compiled(run_halves)
    return run_halves


class CompiledGear:
    """Runs passes of one model. Not for several threads at once: its scratch space is used again."""

    def __init__(self, weights: LeanWeights) -> None:
        self._weights = weights
        self._model = _model(weights)
        self._crew = Crew()
        self._room: dict[str, Array] = {}

    def refusal(self, fed: Fed, capture: Sequence[str], edits: Sequence[Edit]) -> str | None:
        """Why this pass can't be run here, or None."""
        for name in capture:
            if _kind(name) not in KINDS:
                return f"capture of {_kind(name)}"
        for edit in edits:
            if _kind(edit.hook) not in EDITED:
                return f"edit of {_kind(edit.hook)}"
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
        scratch = self._scratch(fed, tokens, kept)
        notes = _notes(self._weights, fed, capture)
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
        logits, softcap = torch.from_numpy(scratch.logits)[:, :-APART], self._weights.softcap
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        return logits, _views(self._weights, fed, notes, capture)

    def _scratch(self, fed: Fed, tokens: Sequence[int], kept: Sequence[int]) -> Scratch:
        weights, n = self._weights, fed.n_columns
        positions = positions_of(fed)
        cosines, sines = phases_of(weights, torch.tensor(positions))
        n_chunks = 1 + (fed.width - 1) // CHUNK
        heads, kv_heads, size = weights.n_heads, weights.n_kv_heads, weights.d_head
        d_model = weights.embedding.shape[1]
        residual = self._take("residual", n, d_model)
        embedded = weights.embedding[torch.tensor(tokens)]
        torch.mul(embedded, weights.embed_scale, out=torch.from_numpy(residual[:n]))
        return Scratch(
            n_columns=n,
            n_chunks=n_chunks,
            n_kept=len(kept),
            rows=np.repeat(np.array(fed.rows, dtype=np.int64), fed.counts),
            positions=np.array(positions, dtype=np.int64),
            kept=np.array(kept, dtype=np.int64),
            cosines=cosines.numpy(),
            sines=sines.numpy(),
            residual=residual,
            normed=self._take("normed", n, d_model),
            qkv=self._take("qkv", n, (heads + 2 * kv_heads) * size),
            scores=self._take("scores", n, heads, fed.width),
            peaks=self._take("peaks", n, heads, n_chunks),
            totals=self._take("totals", n, heads, n_chunks),
            sums=self._take("sums", n, heads, n_chunks, size),
            mixed=self._take("mixed", n, heads * size),
            added=self._take("added", n, d_model),
            gated=self._take("gated", n, 2 * weights.d_mlp + APART),
            opened=self._take("opened", n, weights.d_mlp + APART),
            logits=np.empty((len(kept), weights.unembedding.shape[0] + APART), dtype=np.float32),
        )

    def _take(self, name: str, *shape: int) -> Array:
        """An array of ``shape`` in memory that is used again from pass to pass, and grown when it is too small."""
        size = math.prod(shape)
        room = self._room.get(name)
        if room is None or room.size < size:
            wide = np.empty(2 * size + APART, dtype=np.float32)
            room = self._room[name] = wide[-(wide.ctypes.data // 4) % APART :]  # at the start of a cache line
        return room[:size].reshape(shape)


def _model(weights: LeanWeights) -> Model:
    absent = np.empty((0, 0), dtype=np.float32)

    def array(value: Tensor | None) -> Array:
        return absent if value is None else value.contiguous().numpy()

    return Model(
        unembedding=array(weights.unembedding),
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


def _notes(weights: LeanWeights, fed: Fed, capture: Sequence[str]) -> Notes:
    """Room for the captures: fresh memory, since the caller keeps it."""
    slots = np.full((len(KINDS), weights.n_layers), -1, dtype=np.int64)
    counts = [0] * len(KINDS)
    for name in dict.fromkeys(capture):
        kind = KINDS.index(_kind(name))
        slots[kind, _layer(name)] = counts[kind]
        counts[kind] += 1
    n, d_model = fed.n_columns, weights.embedding.shape[1]
    queries, keys = weights.n_heads * weights.d_head, weights.n_kv_heads * weights.d_head
    widths = (*[d_model] * 5, queries, keys, keys, queries)
    flat = [np.empty((count, n, width), dtype=np.float32) for count, width in zip(counts, widths, strict=False)]
    pattern = np.zeros((counts[-1], n, weights.n_heads, fed.width), dtype=np.float32)
    return Notes._make([slots, *flat, pattern])


def _views(weights: LeanWeights, fed: Fed, notes: Notes, capture: Sequence[str]) -> dict[str, dict[int, Tensor]]:
    """What was captured, by hook and fed row, ``[new, …]``."""
    arrays = [torch.from_numpy(array).unbind() for array in notes[1:]]
    spans = list(zip(fed.rows, fed.spans(), fed.past, strict=True))
    found = {}
    for name in capture:
        kind = _kind(name)
        value = arrays[KINDS.index(kind)][notes.slots[KINDS.index(kind), _layer(name)]]
        if kind == "attn.hook_pattern":
            found[name] = {row: value[s, :, : past + s.stop - s.start] for row, s, past in spans}
            continue
        by_head = value.unflatten(1, (-1, weights.d_head)) if kind.startswith("attn.") else value
        found[name] = {row: by_head[span] for row, span, _ in spans}
    return found


def _stops(fed: Fed, edits: Sequence[Edit]) -> list[tuple[int, list[Edit]]]:
    """Before which half of a layer to stop, and the edits to make there, in the order in which they act."""
    stops: dict[int, list[Edit]] = {}
    # Sorting keeps the order of edits of one hook; the end of a layer comes before the start of the next.
    for edit in sorted(edits, key=lambda edit: _kind(edit.hook) != "hook_resid_post"):
        if edit.row in fed.rows:
            half = 2 * _layer(edit.hook) + EDITED.index(_kind(edit.hook))
            stops.setdefault(half, []).append(edit)
    return sorted(stops.items())


def _change(edit: Edit, fed: Fed, scratch: Scratch, notes: Notes) -> None:
    """Make one edit of the stream; a capture of the same value shows it."""
    span = fed.spans()[fed.rows.index(edit.row)]
    columns = slice(span.start + edit.start, min(span.start + edit.stop, span.stop))
    residual = torch.from_numpy(scratch.residual)
    residual[columns] = edit.fn(residual[columns].clone())
    slot = notes.slots[POST, _layer(edit.hook)]
    if _kind(edit.hook) == "hook_resid_post" and slot >= 0:
        torch.from_numpy(notes.post)[slot, columns] = residual[columns]


def _kind(name: str) -> str:
    """The name without its layer: ``blocks.3.attn.hook_q`` is an ``attn.hook_q``."""
    return name.split(".", 2)[2] if name.startswith("blocks.") else name


def _layer(name: str) -> int:
    return int(name.split(".", 2)[1])
