"""Attention of the compiled pass: a query's past is cut into chunks, which threads share, and then put together.

Each chunk keeps its largest score, its sum of exponentials and its weighted sum of values (the "online softmax" of
Milakov and Gimelshein, arXiv:1805.02867), so that no chunk waits for another.
"""

from __future__ import annotations

import math

import numpy as np

from .atomics import jit
from .exponential import LOWEST, exponential
from .layout import KEY, PATTERN, QUERY, VALUE, Array, Model, Notes, Scratch, Store, Z
from .products import dot_eight

__all__ = ["attend", "gather", "note", "place"]


@jit
def note(slot: int, notes: Array, given: Array, column: int, first: int) -> None:
    """Copy ``notes.shape[2]`` numbers of a column, from ``first`` on, into a slot; slot -1 is nobody's."""
    if slot >= 0:
        for k in range(notes.shape[2]):
            notes[slot, column, k] = given[column, first + k]


@jit
def place(layer: int, column: int, model: Model, store: Store, scratch: Scratch, notes: Notes) -> None:
    """Note a column's query, key and value, norm and turn them, and put key and value into the store."""
    size, queries = model.d_head, model.n_heads * model.d_head
    keys = queries + model.n_kv_heads * size
    note(notes.slots[QUERY, layer], notes.query, scratch.qkv, column, 0)
    note(notes.slots[KEY, layer], notes.key, scratch.qkv, column, queries)
    note(notes.slots[VALUE, layer], notes.value, scratch.qkv, column, keys)
    for head in range(model.n_heads):
        _turn(layer, column, head * size, model.query_norm, model, scratch)
    for head in range(model.n_kv_heads):
        _turn(layer, column, queries + head * size, model.key_norm, model, scratch)
    row, at = scratch.rows[column], scratch.positions[column] - store.base
    for head in range(model.n_kv_heads):
        for k in range(size):
            store.keys[layer, row, head, at, k] = scratch.qkv[column, queries + head * size + k]
            store.values[layer, row, head, at, k] = scratch.qkv[column, keys + head * size + k]


@jit
def _turn(layer: int, column: int, first: int, norm: Array, model: Model, scratch: Scratch) -> None:
    """Norm (where the model does) and rotary embedding of one head, in place."""
    size, half, kind = model.d_head, model.d_head // 2, model.kind[layer]
    if norm.shape[0]:
        total = np.float32(0)
        for k in range(size):
            total += scratch.qkv[column, first + k] * scratch.qkv[column, first + k]
        factor = np.float32(1) / np.sqrt(total / np.float32(size) + model.epsilon)
        for k in range(size):
            scratch.qkv[column, first + k] *= factor * norm[layer, k]
    for k in range(half):
        cosine, sine = scratch.cosines[kind, column, k], scratch.sines[kind, column, k]
        one, two = scratch.qkv[column, first + k], scratch.qkv[column, first + half + k]
        scratch.qkv[column, first + k] = one * cosine - two * sine
        scratch.qkv[column, first + half + k] = two * cosine + one * sine


@jit
def attend(layer: int, piece: int, model: Model, store: Store, scratch: Scratch) -> None:
    """One chunk of the past of one column, for the query heads that share one key head."""
    chunk, rest = piece % scratch.n_chunks, piece // scratch.n_chunks
    kv_head, column = rest % model.n_kv_heads, rest // model.n_kv_heads
    stop = scratch.positions[column] + 1
    begin = max(0, stop - model.window[layer]) if model.window[layer] else 0
    low = begin + (stop - begin) * chunk // scratch.n_chunks
    high = begin + (stop - begin) * (chunk + 1) // scratch.n_chunks
    row, middle = scratch.rows[column], min(max(store.base, low), high)
    group = model.n_heads // model.n_kv_heads
    first_head = kv_head * group
    where = (layer, column, kv_head, first_head, group)
    _score(where, store.shared_keys, store.shared_row, 0, low, middle, model, scratch)
    _score(where, store.keys, row, store.base, middle, high, model, scratch)
    for head in range(first_head, first_head + group):
        _exponentials(column, head, chunk, low, high, scratch)
    _weigh(where, chunk, store.shared_values, store.shared_row, 0, low, middle, scratch)
    _weigh(where, chunk, store.values, row, store.base, middle, high, scratch)


@jit
def _score(
    where: tuple[int, ...], keys: Array, row: int, base: int, low: int, high: int, model: Model, scratch: Scratch
) -> None:
    layer, column, kv_head, first_head, group = where
    past, size = keys[layer, row, kv_head], keys.shape[4]
    eights = low + (high - low) // 8 * 8
    for position in range(low, eights, 8):  # eight keys are in the nearest cache while all heads read them
        for head in range(first_head, first_head + group):
            query = scratch.qkv[column, head * size : (head + 1) * size]
            scores, scale = scratch.scores[column, head, position : position + 8], model.attention_scale
            a, b, c, d, e, f, g, h = dot_eight(query, past, position - base)
            scores[0], scores[1], scores[2], scores[3] = a * scale, b * scale, c * scale, d * scale
            scores[4], scores[5], scores[6], scores[7] = e * scale, f * scale, g * scale, h * scale
    for position in range(eights, high):
        for head in range(first_head, first_head + group):
            total = np.float32(0)
            for k in range(size):
                total += past[position - base, k] * scratch.qkv[column, head * size + k]
            scratch.scores[column, head, position] = total * model.attention_scale


@jit
def _exponentials(column: int, head: int, chunk: int, low: int, high: int, scratch: Scratch) -> None:
    scores = scratch.scores[column, head, low:high]
    peak = np.float32(-np.inf)
    for k in range(scores.size):
        peak = max(peak, scores[k])
    total = depths = np.float32(0)
    for k in range(scores.size):
        depth = scores[k] - peak
        depths += depth
        weight = exponential(LOWEST if depth < LOWEST else depth)
        scores[k] = weight
        total += weight
    scratch.peaks[column, head, chunk] = peak
    # An exponential made of a NaN's bits may be any number: a NaN must stay one.
    scratch.totals[column, head, chunk] = total if depths == depths else depths
    for k in range(scratch.sums.shape[3]):
        scratch.sums[column, head, chunk, k] = 0


@jit
def _weigh(
    where: tuple[int, ...], chunk: int, values: Array, row: int, base: int, low: int, high: int, scratch: Scratch
) -> None:
    layer, column, kv_head, first_head, group = where
    past = values[layer, row, kv_head]
    eights = low + (high - low) // 8 * 8
    for position in range(low, eights, 8):
        for head in range(first_head, first_head + group):
            weights = scratch.scores[column, head, position : position + 8]
            _add_eight(weights, past, position - base, scratch.sums[column, head, chunk])
    for position in range(eights, high):
        for head in range(first_head, first_head + group):
            weight = scratch.scores[column, head, position]
            for k in range(past.shape[1]):
                scratch.sums[column, head, chunk, k] += weight * past[position - base, k]


@jit
def _add_eight(weights: Array, values: Array, first: int, sums: Array) -> None:
    a, b, c, d = weights[0], weights[1], weights[2], weights[3]
    e, f, g, h = weights[4], weights[5], weights[6], weights[7]
    for k in range(sums.size):
        left = a * values[first, k] + b * values[first + 1, k] + c * values[first + 2, k] + d * values[first + 3, k]
        right = (
            e * values[first + 4, k] + f * values[first + 5, k] + g * values[first + 6, k] + h * values[first + 7, k]
        )
        sums[k] += left + right


@jit
def gather(layer: int, column: int, model: Model, scratch: Scratch, notes: Notes) -> None:
    """Put the chunks of a column together, and note z and the pattern."""
    size = model.d_head
    for head in range(model.n_heads):
        peak = np.float32(-np.inf)
        for chunk in range(scratch.n_chunks):
            peak = max(peak, scratch.peaks[column, head, chunk])
        total = np.float32(0)
        for chunk in range(scratch.n_chunks):
            total += scratch.totals[column, head, chunk] * math.exp(scratch.peaks[column, head, chunk] - peak)
        for k in range(size):
            scratch.mixed[column, head * size + k] = 0
        for chunk in range(scratch.n_chunks):
            share = math.exp(scratch.peaks[column, head, chunk] - peak) / total
            for k in range(size):
                scratch.mixed[column, head * size + k] += share * scratch.sums[column, head, chunk, k]
            # The peak is not needed again: from here on it holds what the chunk's exponentials are multiplied by.
            scratch.peaks[column, head, chunk] = share
    note(notes.slots[Z, layer], notes.z, scratch.mixed, column, 0)
    slot = notes.slots[PATTERN, layer]
    if slot >= 0:
        _note_pattern(layer, column, slot, model, scratch, notes)


@jit
def _note_pattern(layer: int, column: int, slot: int, model: Model, scratch: Scratch, notes: Notes) -> None:
    stop = scratch.positions[column] + 1
    begin = max(0, stop - model.window[layer]) if model.window[layer] else 0
    for head in range(model.n_heads):
        for chunk in range(scratch.n_chunks):
            share = scratch.peaks[column, head, chunk]
            low = begin + (stop - begin) * chunk // scratch.n_chunks
            high = begin + (stop - begin) * (chunk + 1) // scratch.n_chunks
            for position in range(low, high):
                notes.pattern[slot, column, head, position] = scratch.scores[column, head, position] * share
