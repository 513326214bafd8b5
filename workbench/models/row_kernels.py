"""Compiled reads of rows of logits: the maximum, sums of exponentials, the entropy's sum, the likeliest tokens.

Two passes over a row, of which the second one finds it in the processor's cache: the first for the maximum, the second
for all sums at once, with one exponential a number. Sums are kept in float32 over blocks and in float64 over the row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .lean.atomics import entry, jit
from .lean.exponential import LOWEST, exponential

__all__ = ["likeliest", "read_rows", "weigh_rows"]

BLOCK = 512
"""Numbers that are summed in float32 before the sum goes on in float64."""
STRETCH = 64
"""Numbers that are passed over at once where none of them is among the likeliest so far."""
Row = NDArray[np.float32]
Integers = NDArray[np.int32]


@jit
def _in_order(bits: np.int32) -> np.int32:
    """A float32's bits as an integer that is the larger the larger the float is, or back again."""
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@jit
def _peak(bits: Integers) -> np.int32:
    """The largest of some float32, as an integer in order: compared so, a NaN is not overlooked, and it is faster."""
    peak = np.int32(-0x7FFFFFFF)
    for k in range(bits.size):
        ordered = _in_order(np.int32(bits[k]))
        peak = ordered if ordered > peak else peak
    return peak


@jit
def _as_float(ordered: np.int32) -> np.float32:
    return np.float32(np.int32(_in_order(ordered)).view(np.float32))


@jit
def _ordered(number: Any) -> np.int32:
    return _in_order(np.float32(number).view(np.int32))


@jit
def _value(depth: np.float32) -> np.float32:
    """``exp(depth)`` for any ``depth <= 0``, zero where that is tiny."""
    value = exponential(LOWEST if depth < LOWEST else depth)
    return np.float32(0) if depth < LOWEST else value


@jit
def _power(value: np.float32, squarings: int) -> np.float32:
    """``value`` squared once or twice. (A choice, not a branch: loops over it use the processor's wide registers.)"""
    squared = value * value
    return squared * squared if squarings == 2 else squared


@jit
def _sums(block: Row, peak: np.float32, squarings: int) -> tuple[Any, Any, Any]:
    """Three sums over a block: of ``exp(d)``, of its power, and of ``exp(d) * d``."""
    plain = sharp = mean = np.float32(0)
    for k in range(block.size):
        depth = block[k] - peak
        depth = LOWEST if depth < LOWEST else depth  # whose 1e-38 is nothing beside the largest number's 1
        value = exponential(depth)
        plain += value
        sharp += _power(value, squarings)
        mean += value * depth
    return plain, sharp, mean


@jit
def _scaled_sum(block: Row, peak: np.float32, inverse_tau: np.float32) -> np.float32:
    """The sum of ``exp(d / tau)`` over a block, for a power that squaring does not give."""
    total = np.float32(0)
    for k in range(block.size):
        total += _value((block[k] - peak) * inverse_tau)
    return total


@entry
def read_rows(
    numbers: Row, bits: Integers, stride: int, size: int, tokens: NDArray[np.int64], tau: float, squarings: int,
    found: NDArray[np.float64],
) -> None:  # fmt: skip
    """Of each row, into ``found [row, 5]``: maximum, logsumexp, that at ``tau``, entropy, a token's logit.

    Row ``i`` is ``numbers[i * stride : i * stride + size]``; ``bits`` is the same memory, seen as integers. A NaN,
    ``+inf`` or a row of ``-inf`` makes the middle three NaN. ``squarings`` says how often an exponential is squared for
    its power ``1 / tau``: 0, 1, 2, or -1 where that does not give it.
    """
    for row in range(found.shape[0]):
        start = row * stride
        peak = _as_float(_peak(bits[start : start + size]))
        plain = sharp = mean = 0.0
        for first in range(start, start + size, BLOCK):
            # A slice: with indices that begin anywhere the compiler would check each of them for its sign.
            block = numbers[first : min(first + BLOCK, start + size)]
            # Written out for each power, so that the loop within has nothing to choose.
            a, b, c = _sums(block, peak, 2) if squarings == 2 else _sums(block, peak, 1)
            if squarings == 0:
                b = a
            elif squarings < 0:
                b = _scaled_sum(block, peak, np.float32(1 / tau))
            plain, sharp, mean = plain + a, sharp + b, mean + c
        if mean != mean:
            plain = sharp = mean  # an exponential made of a NaN's bits may be any number
        found[row, 0], found[row, 1], found[row, 2] = peak, peak + math.log(plain), peak / tau + math.log(sharp)
        found[row, 3] = math.log(plain) - mean / plain
        found[row, 4] = numbers[start + tokens[row]]


@entry
def weigh_rows(
    numbers: Row,
    stride: int,
    size: int,
    found: NDArray[np.float64],
    tau: float,
    squarings: int,
    weights: Row,
    apart: int,
) -> None:
    """``exp(d / tau)`` of every number, as :func:`read_rows` summed it, into ``weights``, its rows ``apart`` apart."""
    inverse_tau = np.float32(1 / tau)
    for row in range(found.shape[0]):
        peak = np.float32(found[row, 0])
        given = numbers[row * stride : row * stride + size]
        weight = weights[row * apart : row * apart + size]
        if squarings <= 0:
            for k in range(size):
                weight[k] = _value((given[k] - peak) * inverse_tau)
        else:
            for k in range(size):
                weight[k] = _power(_value(given[k] - peak), squarings)


@entry
def likeliest(bits: Integers, tokens: NDArray[np.int64], logits: Row) -> None:
    """The largest numbers of a row ``bits [vocab]``, best first, the first of equals first, and where they stand."""
    count, size = tokens.size, bits.size
    ordered = np.int32(-0x7FFFFFFF)
    for slot in range(count):
        tokens[slot], logits[slot] = -1, -np.inf
    for first in range(0, size, STRETCH):
        stop = min(first + STRETCH, size)
        if _peak(bits[first:stop]) <= ordered:
            continue
        for k in range(first, stop):
            number = _in_order(np.int32(bits[k]))
            if number <= ordered:
                continue
            slot = count - 1
            while slot > 0 and _as_float(number) > logits[slot - 1]:
                tokens[slot], logits[slot] = tokens[slot - 1], logits[slot - 1]
                slot -= 1
            tokens[slot], logits[slot] = k, _as_float(number)
            if tokens[count - 1] >= 0:
                ordered = _ordered(logits[count - 1])
