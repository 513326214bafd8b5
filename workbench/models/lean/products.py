"""Matrix products of the compiled pass: rows of a weight matrix times a few columns, each weight read once.

``weights`` is ``[out, in]``, ``given`` ``[column, in]``, ``result`` ``[column, out]``, all float32. One column is bound
by memory: one row at a time, as the prefetcher likes it. Eight are bound by both: one row by eight columns, so that the
weights are still one stream. Others are bound by arithmetic: three rows by four columns, so that twelve running sums
stay in registers and seven numbers are read for twelve products. Packed weights have a product of their own, see
``packed_products.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from .atomics import jit, meaning
from .layout import GROUP
from .packed_products import multiply_packed, spread_columns

__all__ = ["Matrix", "dot_eight", "height", "multiply", "product", "spread"]

Matrix = NDArray[np.float32]
MANY = 16
"""From so many columns on, reading the weights is the smaller part."""


def product(
    weights: Any, layer: int, span: tuple[int, int], given: Matrix, scratch: Any, n_columns: int, result: Matrix
) -> None:
    """Rows ``span`` of ``result = given @ weights[layer].T``, for both kinds. Known to compiled code only."""
    raise NotImplementedError("compiled code only")


@meaning(product)
def _product(weights: Any, *_: Any) -> Callable[..., None]:
    def plain(
        weights: Any, layer: int, span: tuple[int, int], given: Matrix, scratch: Any, n_columns: int, result: Matrix
    ) -> None:
        multiply(weights[layer], span[0], span[1], given, n_columns, result)

    def packed(
        weights: Any, layer: int, span: tuple[int, int], given: Matrix, scratch: Any, n_columns: int, result: Matrix
    ) -> None:
        multiply_packed(weights, layer, span[0], span[1], scratch.spread, scratch.block_sums, n_columns, result)

    return packed if isinstance(weights, types.BaseTuple) else plain


def spread(weights: Any, given: Matrix, n_columns: int, scratch: Any) -> None:
    """Make ``given`` ready to be multiplied with ``weights``, once for all threads. Known to compiled code only."""
    raise NotImplementedError("compiled code only")


@meaning(spread)
def _spread(weights: Any, *_: Any) -> Callable[..., None]:
    def plain(weights: Any, given: Matrix, n_columns: int, scratch: Any) -> None:
        return

    def packed(weights: Any, given: Matrix, n_columns: int, scratch: Any) -> None:
        spread_columns(weights, given, n_columns, scratch.spread, scratch.block_sums)

    return packed if isinstance(weights, types.BaseTuple) else plain


def height(weights: Any) -> int:
    """How many rows a layer's matrix has. Known to compiled code only."""
    raise NotImplementedError("compiled code only")


@meaning(height)
def _height(weights: Any) -> Callable[[Any], int]:
    def plain(weights: Any) -> int:
        return int(weights.shape[1])

    def packed(weights: Any) -> int:
        return int(weights.words.shape[1] * GROUP)

    return packed if isinstance(weights, types.BaseTuple) else plain


@jit
def multiply(weights: Matrix, first: int, stop: int, given: Matrix, n_columns: int, result: Matrix) -> None:
    """Rows ``first`` to ``stop`` of ``result = given @ weights.T`` for the first ``n_columns`` columns."""
    if n_columns == 1:
        for row in range(first, stop):
            result[0, row] = _dot(weights, row, given, 0)
        return
    eights = n_columns // 8 * 8 if n_columns < MANY else 0
    if eights:
        for row in range(first, stop):
            _one_by_eight(weights, row, given, 0, result)
    fours = n_columns // 4 * 4
    threes = first + (stop - first) // 3 * 3
    for row in range(first, threes, 3):
        for column in range(eights, fours, 4):
            _three_by_four(weights, row, given, column, result)
        for column in range(fours, n_columns):
            for one in range(row, row + 3):
                result[column, one] = _dot(weights, one, given, column)
    for row in range(threes, stop):
        for column in range(eights, n_columns):
            result[column, row] = _dot(weights, row, given, column)


@jit
def _dot(weights: Matrix, row: int, given: Matrix, column: int) -> np.float32:
    total = np.float32(0)
    for k in range(weights.shape[1]):
        total += weights[row, k] * given[column, k]
    return total


@jit
def _three_by_four(weights: Matrix, row: int, given: Matrix, column: int, result: Matrix) -> None:
    a = b = c = d = np.float32(0)
    e = f = g = h = np.float32(0)
    p = q = r = s = np.float32(0)
    for k in range(weights.shape[1]):
        # Twelve sums, three weights and one number of a column are all that sixteen registers hold: so in this order.
        upper, middle, lower = weights[row, k], weights[row + 1, k], weights[row + 2, k]
        number = given[column, k]
        a += upper * number
        e += middle * number
        p += lower * number
        number = given[column + 1, k]
        b += upper * number
        f += middle * number
        q += lower * number
        number = given[column + 2, k]
        c += upper * number
        g += middle * number
        r += lower * number
        number = given[column + 3, k]
        d += upper * number
        h += middle * number
        s += lower * number
    result[column, row], result[column + 1, row] = a, b
    result[column + 2, row], result[column + 3, row] = c, d
    result[column, row + 1], result[column + 1, row + 1] = e, f
    result[column + 2, row + 1], result[column + 3, row + 1] = g, h
    result[column, row + 2], result[column + 1, row + 2] = p, q
    result[column + 2, row + 2], result[column + 3, row + 2] = r, s


@jit
def _one_by_eight(weights: Matrix, row: int, given: Matrix, column: int, result: Matrix) -> None:
    a, b, c, d, e, f, g, h = dot_eight(weights[row], given, column)
    result[column, row], result[column + 1, row] = a, b
    result[column + 2, row], result[column + 3, row] = c, d
    result[column + 4, row], result[column + 5, row] = e, f
    result[column + 6, row], result[column + 7, row] = g, h


@jit
def dot_eight(one: Any, others: Matrix, first: int) -> tuple[Any, ...]:
    """The products of ``one [in]`` with eight rows of ``others [row, in]``, from the row ``first`` on."""
    a = b = c = d = np.float32(0)
    e = f = g = h = np.float32(0)
    for k in range(one.size):
        number = one[k]
        a += number * others[first, k]
        b += number * others[first + 1, k]
        c += number * others[first + 2, k]
        d += number * others[first + 3, k]
        e += number * others[first + 4, k]
        f += number * others[first + 5, k]
        g += number * others[first + 6, k]
        h += number * others[first + 7, k]
    return a, b, c, d, e, f, g, h
