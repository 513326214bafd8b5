"""A whole pass as one compiled function that several threads run at once, each taking the next piece of work.

A pass is a row of phases (norm, products, attention, …), a phase a number of pieces. A thread takes a piece by raising
the phase's counter, and goes on to the next phase once all pieces are done, whoever did them. So a thread that the
system puts aside, or that arrives late, holds nobody up unless it holds a piece; one alone does the whole pass.

Layers come in halves: half ``2 * layer`` turns resid_pre into resid_mid, the next one resid_mid into resid_post, and
half ``2 * n_layers`` unembeds. Between any two the caller may look at the stream and change it.
"""

from __future__ import annotations

import math

import numpy as np

from .atomics import entry, fetch_add, jit, load, pause
from .attention import attend, gather, note, place
from .layout import ATTENTION_OUT, MID, MLP_OUT, PHASES, POST, PRE, STRIDE, Counters, Model, Notes, Scratch, Store
from .products import Matrix, multiply

__all__ = ["run_halves"]

ROWS = 16
"""Rows of a weight matrix in a piece: some 40 kB, and one cache line of results, so that no two threads share one."""
SPINS = 64
"""Looks at a counter before the processor is offered to others."""


@entry
def run_halves(
    first: int, stop: int, model: Model, store: Store, scratch: Scratch, notes: Notes, counters: Counters
) -> None:
    """Run the halves from ``first`` to before ``stop``. Every thread of a pass calls this with the same arguments."""
    for half in range(first, stop):
        layer = half // 2
        if layer == model.n_layers:
            _unembed(half, model, scratch, counters)
        elif half % 2 == 0:
            _attention_half(half, layer, model, store, scratch, notes, counters)
        else:
            _mlp_half(half, layer, model, scratch, notes, counters)


@jit
def _next(counters: Counters, phase: int) -> int:
    """The piece that this thread is to do now; past the last one there is none left."""
    piece: int = fetch_add(counters, phase * STRIDE, 1)
    return piece


@jit
def _did(counters: Counters, phase: int) -> None:
    fetch_add(counters, phase * STRIDE + STRIDE // 2, 1)


@jit
def _wait(counters: Counters, phase: int, pieces: int) -> None:
    """Wait until all pieces of a phase are done."""
    looks = 0
    while load(counters, phase * STRIDE + STRIDE // 2) < pieces:
        looks += 1
        if looks > SPINS:
            pause()


@jit
def _product(counters: Counters, phase: int, weights: Matrix, given: Matrix, n_columns: int, result: Matrix) -> None:
    n_rows = weights.shape[0]
    pieces = (n_rows + ROWS - 1) // ROWS
    piece = _next(counters, phase)
    while piece < pieces:
        multiply(weights, piece * ROWS, min(piece * ROWS + ROWS, n_rows), given, n_columns, result)
        _did(counters, phase)
        piece = _next(counters, phase)
    _wait(counters, phase, pieces)


@jit
def _attention_half(
    half: int, layer: int, model: Model, store: Store, scratch: Scratch, notes: Notes, counters: Counters
) -> None:
    phase, n = half * PHASES, scratch.n_columns
    column = _next(counters, phase)
    while column < n:
        note(notes.slots[PRE, layer], notes.pre, scratch.residual, column, 0)
        _norm(scratch.residual, column, model.before_attention, layer, model.epsilon, scratch.normed, column)
        _did(counters, phase)
        column = _next(counters, phase)
    _wait(counters, phase, n)
    _product(counters, phase + 1, model.qkv[layer], scratch.normed, n, scratch.qkv)
    column = _next(counters, phase + 2)
    while column < n:
        place(layer, column, model, store, scratch, notes)
        _did(counters, phase + 2)
        column = _next(counters, phase + 2)
    _wait(counters, phase + 2, n)
    pieces = n * model.n_kv_heads * scratch.n_chunks
    piece = _next(counters, phase + 3)
    while piece < pieces:
        attend(layer, piece, model, store, scratch)
        _did(counters, phase + 3)
        piece = _next(counters, phase + 3)
    _wait(counters, phase + 3, pieces)
    column = _next(counters, phase + 4)
    while column < n:
        gather(layer, column, model, scratch, notes)
        _did(counters, phase + 4)
        column = _next(counters, phase + 4)
    _wait(counters, phase + 4, n)
    _product(counters, phase + 5, model.attention_out[layer], scratch.mixed, n, scratch.added)
    column = _next(counters, phase + 6)
    while column < n:
        _norm_in_place(scratch.added, column, model.after_attention, layer, model.epsilon)
        note(notes.slots[ATTENTION_OUT, layer], notes.attention_out, scratch.added, column, 0)
        _add(scratch, column)
        _did(counters, phase + 6)
        column = _next(counters, phase + 6)
    _wait(counters, phase + 6, n)


@jit
def _mlp_half(half: int, layer: int, model: Model, scratch: Scratch, notes: Notes, counters: Counters) -> None:
    phase, n = half * PHASES, scratch.n_columns
    column = _next(counters, phase)
    while column < n:
        note(notes.slots[MID, layer], notes.mid, scratch.residual, column, 0)
        _norm(scratch.residual, column, model.before_mlp, layer, model.epsilon, scratch.normed, column)
        _did(counters, phase)
        column = _next(counters, phase)
    _wait(counters, phase, n)
    _gate(counters, phase + 1, model.gate_up[layer], model.is_silu, scratch)
    _product(counters, phase + 2, model.down[layer], scratch.opened, n, scratch.added)
    column = _next(counters, phase + 3)
    while column < n:
        _norm_in_place(scratch.added, column, model.after_mlp, layer, model.epsilon)
        note(notes.slots[MLP_OUT, layer], notes.mlp_out, scratch.added, column, 0)
        _add(scratch, column)
        note(notes.slots[POST, layer], notes.post, scratch.residual, column, 0)
        _did(counters, phase + 3)
        column = _next(counters, phase + 3)
    _wait(counters, phase + 3, n)


@jit
def _unembed(half: int, model: Model, scratch: Scratch, counters: Counters) -> None:
    phase, n = half * PHASES, scratch.n_kept
    index = _next(counters, phase)
    while index < n:
        _norm(scratch.residual, scratch.kept[index], model.final, 0, model.epsilon, scratch.normed, index)
        _did(counters, phase)
        index = _next(counters, phase)
    _wait(counters, phase, n)
    if n:
        _product(counters, phase + 1, model.unembedding, scratch.normed, n, scratch.logits)


@jit
def _gate(counters: Counters, phase: int, weights: Matrix, is_silu: bool, scratch: Scratch) -> None:
    """The gate, what it gates, and their product, ``ROWS`` of each a piece."""
    n, d_mlp = scratch.n_columns, weights.shape[0] // 2
    pieces = (d_mlp + ROWS - 1) // ROWS
    piece = _next(counters, phase)
    while piece < pieces:
        first, stop = piece * ROWS, min(piece * ROWS + ROWS, d_mlp)
        multiply(weights, first, stop, scratch.normed, n, scratch.gated)
        multiply(weights, d_mlp + first, d_mlp + stop, scratch.normed, n, scratch.gated)
        for column in range(n):
            for k in range(first, stop):
                gate = scratch.gated[column, k]
                opened = _silu(gate) if is_silu else _gelu(gate)
                scratch.opened[column, k] = opened * scratch.gated[column, d_mlp + k]
        _did(counters, phase)
        piece = _next(counters, phase)
    _wait(counters, phase, pieces)


@jit
def _silu(x: np.float32) -> np.float32:
    return x / (np.float32(1) + math.exp(-x))


@jit
def _gelu(x: np.float32) -> np.float32:
    """The approximation by tanh that Gemma is trained with."""
    inner = np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (np.float32(1) + math.tanh(inner))


@jit
def _add(scratch: Scratch, column: int) -> None:
    for k in range(scratch.residual.shape[1]):
        scratch.residual[column, k] += scratch.added[column, k]


@jit
def _norm(
    given: Matrix, column: int, factors: Matrix, layer: int, epsilon: np.float32, result: Matrix, index: int
) -> None:
    """Root-mean-square norm of row ``column`` of ``given`` into row ``index`` of ``result``."""
    total = np.float32(0)
    size = given.shape[1]
    for k in range(size):
        total += given[column, k] * given[column, k]
    scale = np.float32(1) / np.sqrt(total / np.float32(size) + epsilon)
    for k in range(size):
        result[index, k] = given[column, k] * scale * factors[layer, k]


@jit
def _norm_in_place(given: Matrix, column: int, factors: Matrix, layer: int, epsilon: np.float32) -> None:
    """The norm behind attention or MLP, where the model has one."""
    if factors.shape[0]:
        _norm(given, column, factors, layer, epsilon, given, column)
