"""Packed weights back to float32: to the bit what the file's format says."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .atomics import entry
from .layout import GROUP, LANES, Array, Packed

__all__ = ["decode_groups", "decode_rows"]


@entry
def decode_rows(weights: Packed, layer: int, rows: NDArray[np.int64], decoded: Array) -> None:
    """Some rows of a packed matrix, ``[len(rows), in]``."""
    fields, mask, n_words = 32 // weights.bits, (1 << weights.bits) - 1, weights.words.shape[4] - 2
    for index in range(rows.size):
        group, vector, lane = rows[index] // GROUP, rows[index] % GROUP // LANES, rows[index] % LANES
        at = 0
        for block in range(weights.words.shape[2]):
            words, numbers = weights.words[layer, group, block, vector], weights.numbers[layer, group, block, vector]
            scale, minimum = numbers[n_words, lane], numbers[n_words + 1, lane]
            for word in range(n_words):
                for field in range(fields):
                    cut = (words[word, lane] >> (weights.bits * field)) & mask
                    decoded[index, at] = scale * np.float32(cut) + minimum
                    at += 1


@entry
def decode_groups(weights: Packed, layer: int, first: int, decoded: Array) -> None:
    """Groups from ``first`` on, turned: ``[in, 16 * groups]``, so that what stands side by side is written so."""
    fields, mask, n_words = 32 // weights.bits, np.int32((1 << weights.bits) - 1), weights.words.shape[4] - 2
    for index in range(decoded.shape[1] // LANES):
        group, vector = first + index // 2, index % 2
        at = 0
        for block in range(weights.words.shape[2]):
            words, numbers = weights.words[layer, group, block, vector], weights.numbers[layer, group, block, vector]
            scale, minimum = numbers[n_words], numbers[n_words + 1]
            for word in range(n_words):
                packed = words[word]
                for field in range(fields):
                    row = decoded[at, index * LANES : index * LANES + LANES]
                    shift = np.int32(weights.bits * field)
                    for lane in range(LANES):
                        row[lane] = scale[lane] * np.float32(np.int32(packed[lane] >> shift) & mask) + minimum[lane]
                    at += 1
