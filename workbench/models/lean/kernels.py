"""A whole pass as one compiled function that several threads run at once, each taking the next piece of work.

A pass is a row of phases (products, attention, …), a phase a number of pieces. A thread takes a piece by raising the
phase's counter. Whoever does the last piece also does what stands between two phases (norms, sums, copies), which is
too little to share out; then all go on to the next phase. So a thread that the system puts aside, or that arrives
late, holds nobody up unless it holds a piece; one alone does the whole pass.

Layers come in halves: half ``2 * layer`` turns resid_pre into resid_mid, the next one resid_mid into resid_post, and
half ``2 * n_layers`` unembeds. Between any two the caller may look at the stream and change it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .atomics import entry, fetch_add, jit, load, pause
from .attention import attend, gather, note, place
from .exponential import LOWEST, exponential
from .layout import ATTENTION_OUT, MID, MLP_OUT, PHASES, POST, PRE, STRIDE, Counters, Model, Notes, Scratch, Store
from .products import Matrix, height, product, spread

__all__ = ["run_halves"]

PIECES = 24
"""About so many pieces a product is cut into: enough for threads to end together, few since each has its price."""
LINE = 16
"""Rows of a weight matrix whose results fill a cache line: no two threads share one."""
MOST_ROWS = 256
"""Rows in a piece at most."""
SPINS = 64
"""Looks at a counter before the processor is offered to others."""


@entry
def run_halves(
    first: int, stop: int, model: Model, store: Store, scratch: Scratch, notes: Notes, counters: Counters
) -> None:
    """Run the halves from ``first`` to before ``stop``. Every thread of a pass calls this with the same arguments."""
    phase = first * PHASES + PHASES - 1
    if _next(counters, phase) == 0:
        _ready(first, model, scratch, notes)
        _did(counters, phase)
    _wait(counters, phase, 1)
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
def _did(counters: Counters, phase: int) -> int:
    """Say that a piece is done; how many were done before."""
    before: int = fetch_add(counters, phase * STRIDE + STRIDE // 2, 1)
    return before


@jit
def _wait(counters: Counters, phase: int, pieces: int) -> None:
    """Wait until all pieces of a phase are done."""
    looks = 0
    while load(counters, phase * STRIDE + STRIDE // 2) < pieces:
        looks += 1
        if looks > SPINS:
            pause()


@jit
def _multiply(weights: Any, layer: int, piece: int, given: Matrix, scratch: Scratch, n: int, result: Matrix) -> None:
    """A piece of a product."""
    product(weights, layer, _span(height(weights), piece), given, scratch, n, result)


@jit
def _rows(n_rows: int) -> int:
    """How many of ``n_rows`` make a piece."""
    lines = (n_rows + PIECES * LINE - 1) // (PIECES * LINE)
    return min(lines * LINE, MOST_ROWS)


@jit
def _span(n_rows: int, piece: int) -> tuple[int, int]:
    """First row of a piece, and the row behind its last."""
    rows = _rows(n_rows)
    return piece * rows, min(piece * rows + rows, n_rows)


@jit
def _pieces(n_rows: int) -> int:
    return (n_rows + _rows(n_rows) - 1) // _rows(n_rows)


@jit
def _attention_half(
    half: int, layer: int, model: Model, store: Store, scratch: Scratch, notes: Notes, counters: Counters
) -> None:
    phase, n = half * PHASES, scratch.n_columns
    pieces = _pieces(height(model.qkv))
    piece = _next(counters, phase)
    while piece < pieces:
        _multiply(model.qkv, layer, piece, scratch.normed, scratch, n, scratch.qkv)
        if _did(counters, phase) == pieces - 1:
            for column in range(n):
                place(layer, column, model, store, scratch, notes)
            _did(counters, phase)
        piece = _next(counters, phase)
    _wait(counters, phase, pieces + 1)
    pieces = n * model.n_kv_heads * scratch.n_chunks
    piece = _next(counters, phase + 1)
    while piece < pieces:
        attend(layer, piece, model, store, scratch)
        if _did(counters, phase + 1) == pieces - 1:
            for column in range(n):
                gather(layer, column, model, scratch, notes)
            spread(model.attention_out, scratch.mixed, n, scratch)
            _did(counters, phase + 1)
        piece = _next(counters, phase + 1)
    _wait(counters, phase + 1, pieces + 1)
    pieces = _pieces(height(model.attention_out))
    piece = _next(counters, phase + 2)
    while piece < pieces:
        _multiply(model.attention_out, layer, piece, scratch.mixed, scratch, n, scratch.added)
        if _did(counters, phase + 2) == pieces - 1:
            for column in range(n):
                _norm_in_place(scratch.added, column, model.after_attention, layer, model.epsilon)
                note(notes.slots[ATTENTION_OUT, layer], notes.attention_out, scratch.added, column, 0)
                _add(scratch, column)
            _ready(half + 1, model, scratch, notes)
            _did(counters, phase + 2)
        piece = _next(counters, phase + 2)
    _wait(counters, phase + 2, pieces + 1)


@jit
def _mlp_half(half: int, layer: int, model: Model, scratch: Scratch, notes: Notes, counters: Counters) -> None:
    phase, n = half * PHASES, scratch.n_columns
    pieces = _pieces(height(model.gate_up) // 2)
    piece = _next(counters, phase)
    while piece < pieces:
        _gate(layer, piece, model, scratch)
        if _did(counters, phase) == pieces - 1:
            spread(model.down, scratch.opened, n, scratch)
            _did(counters, phase)
        piece = _next(counters, phase)
    _wait(counters, phase, pieces + 1)
    pieces = _pieces(height(model.down))
    piece = _next(counters, phase + 1)
    while piece < pieces:
        _multiply(model.down, layer, piece, scratch.opened, scratch, n, scratch.added)
        if _did(counters, phase + 1) == pieces - 1:
            for column in range(n):
                _norm_in_place(scratch.added, column, model.after_mlp, layer, model.epsilon)
                note(notes.slots[MLP_OUT, layer], notes.mlp_out, scratch.added, column, 0)
                _add(scratch, column)
                note(notes.slots[POST, layer], notes.post, scratch.residual, column, 0)
            _ready(half + 1, model, scratch, notes)
            _did(counters, phase + 1)
        piece = _next(counters, phase + 1)
    _wait(counters, phase + 1, pieces + 1)


@jit
def _unembed(half: int, model: Model, scratch: Scratch, counters: Counters) -> None:
    phase, n = half * PHASES, scratch.n_kept
    pieces = _pieces(height(model.unembedding)) if n else 0
    piece = _next(counters, phase)
    while piece < pieces:
        _multiply(model.unembedding, 0, piece, scratch.normed, scratch, n, scratch.logits)
        _did(counters, phase)
        piece = _next(counters, phase)
    _wait(counters, phase, pieces)


@jit
def _ready(half: int, model: Model, scratch: Scratch, notes: Notes) -> None:
    """Note and norm the stream for the half that comes next."""
    layer = half // 2
    if layer == model.n_layers:
        for index in range(scratch.n_kept):
            _norm(scratch.residual, scratch.kept[index], model.final, 0, model.epsilon, scratch.normed, index)
        spread(model.unembedding, scratch.normed, scratch.n_kept, scratch)
    elif half % 2 == 0:
        for column in range(scratch.n_columns):
            note(notes.slots[PRE, layer], notes.pre, scratch.residual, column, 0)
            _norm(scratch.residual, column, model.before_attention, layer, model.epsilon, scratch.normed, column)
        spread(model.qkv, scratch.normed, scratch.n_columns, scratch)
    else:
        for column in range(scratch.n_columns):
            note(notes.slots[MID, layer], notes.mid, scratch.residual, column, 0)
            _norm(scratch.residual, column, model.before_mlp, layer, model.epsilon, scratch.normed, column)
        spread(model.gate_up, scratch.normed, scratch.n_columns, scratch)


@jit
def _gate(layer: int, piece: int, model: Model, scratch: Scratch) -> None:
    """Some rows of the gate, what they gate, and their product."""
    n, d_mlp = scratch.n_columns, height(model.gate_up) // 2
    first, stop = _span(d_mlp, piece)
    product(model.gate_up, layer, (first, stop), scratch.normed, scratch, n, scratch.gated)
    product(model.gate_up, layer, (d_mlp + first, d_mlp + stop), scratch.normed, scratch, n, scratch.gated)
    for column in range(n):
        gates, gated = scratch.gated[column, first:stop], scratch.gated[column, d_mlp + first : d_mlp + stop]
        opened = scratch.opened[column, first:stop]
        if model.is_silu:
            for k in range(gates.size):
                opened[k] = _silu(gates[k]) * gated[k]
        else:
            for k in range(gates.size):
                opened[k] = _gelu(gates[k]) * gated[k]


@jit
def _silu(x: np.float32) -> np.float32:
    decay = _decay(x)
    return (x if x >= 0 else x * decay) / (np.float32(1) + decay)


@jit
def _gelu(x: np.float32) -> np.float32:
    """The approximation by tanh that Gemma is trained with: ``x (1 + tanh(y)) / 2``, a sigmoid of ``2 y``."""
    decay = _decay(np.float32(1.5957691216057308) * (x + np.float32(0.044715) * x * x * x))
    return (x if x >= 0 else x * decay) / (np.float32(1) + decay)


@jit
def _decay(x: np.float32) -> np.float32:
    """``exp(-|x|)``, where that is no tiny number: both kinds of gates need no other."""
    below = -abs(x)
    return exponential(LOWEST if below < LOWEST else below)


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
