"""Products with weights that stay packed in 4 or 8 bits each, decoded as they are read; the other factor is float32.

Eight rows of a matrix stand side by side, one in each lane of a vector register, and two such vectors together. A
32-bit word of each row holds eight (or four) neighbouring weights of it. A weight is ``scale * field + minimum`` with
a scale and a minimum a block, so a block's part of a row's sum is ``scale * sum(field * x) + minimum * sum(x)``.
A field is cut out by a mask alone, which leaves it multiplied by a power of two; ``spread_columns`` divides the other
factor by it beforehand, which is exact. The instructions are written out, since whether a compiler would find them is
luck.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from .atomics import address, intrinsics, jit
from .layout import GROUP, LANES, Array, Packed

__all__ = ["multiply_packed", "spread_columns"]

LANE = ir.VectorType(ir.IntType(32), LANES)
NUMBERS = ir.VectorType(ir.FloatType(), LANES)
WIDE = ir.IntType(64)


@jit
def spread_columns(weights: Packed, given: Array, n_columns: int, spread: Array, sums: Array) -> None:
    """Each column divided by the powers of two of its fields, and its sum over each block."""
    fields = 32 // weights.bits
    n_blocks, width = weights.words.shape[2], (weights.words.shape[4] - 2) * fields
    factor = np.float32(1) / np.float32(1 << weights.bits)
    for column in range(n_columns):
        for block in range(n_blocks):
            total = np.float32(0)
            for first in range(0, width, fields):
                power = np.float32(1)
                for k in range(fields):
                    at = block * width + first + k
                    total += given[column, at]
                    # The last field of a word is shifted down instead: a mask would catch the sign's bit.
                    spread[column, at] = given[column, at] * (power if k < fields - 1 else np.float32(1))
                    power *= factor
            sums[column, block] = total


@jit
def multiply_packed(
    weights: Packed, layer: int, first: int, stop: int, spread: Array, sums: Array, n_columns: int, result: Array
) -> None:
    """Rows ``first`` to ``stop`` of ``result``, whole groups, from what :func:`spread_columns` made."""
    words, n_blocks, n_words = weights.words, weights.words.shape[2], weights.words.shape[4] - 2
    fours = n_columns // 4 * 4
    for row in range(first, stop, GROUP):
        group = layer * words.shape[1] + row // GROUP
        where = (group * n_blocks * GROUP * (n_words + 2), n_blocks, n_words, row)
        for column in range(0, fours, 4):
            if weights.bits == 4:
                _four_bits_by_four(words, where, spread, sums, column, result)
            else:
                _eight_bits_by_four(words, where, spread, sums, column, result)
        for column in range(fours, n_columns):
            if weights.bits == 4:
                _four_bits_by_one(words, where, spread, sums, column, result)
            else:
                _eight_bits_by_one(words, where, spread, sums, column, result)


def _block_product(bits: int, n_columns: int) -> Callable[..., Any]:
    """Compiled code for a group of rows by ``n_columns`` columns.

    ``where`` is the group's first word, its blocks, the words of fields in a block, and its first row.
    """

    @intrinsics
    def product(_typing: Any, words: Any, where: Any, spread: Any, sums: Any, column: Any, result: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _Product(context, builder, signature, arguments, bits, n_columns).write()
            return context.get_dummy_value()

        wanted = types.UniTuple(types.int64, 4)
        return types.void(words, wanted, spread, sums, types.int64, result), generate

    return product


_four_bits_by_one, _four_bits_by_four = _block_product(4, 1), _block_product(4, 4)
_eight_bits_by_one, _eight_bits_by_four = _block_product(8, 1), _block_product(8, 4)


class _Product:
    """Writes the instructions of one such product."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any, bits: int, n_columns: int) -> None:
        self.context, self.builder = context, builder
        self.kinds, self.arguments = signature.args, arguments
        self.bits, self.fields = bits, 32 // bits
        self.vectors, self.columns = range(GROUP // LANES), range(n_columns)
        self.chains = 2 if n_columns == 1 else 1
        self.start, self.n_blocks, self.n_words, self.row = (
            builder.extract_value(arguments[1], index) for index in range(4)
        )
        self.vector_size = builder.mul(builder.add(self.n_words, WIDE(2)), WIDE(LANES))
        self.block_size = builder.mul(self.vector_size, WIDE(GROUP // LANES))
        multiply_and_add = ir.FunctionType(NUMBERS, [NUMBERS] * 3)
        self.fused = cgutils.get_or_insert_function(builder.module, multiply_and_add, f"llvm.fmuladd.v{LANES}f32")
        self.zero = ir.Constant(NUMBERS, None)

    def write(self) -> None:
        """All blocks, with a running total for each vector of rows and column; the totals into the result."""
        builder, cells = self.builder, [(vector, column) for vector in self.vectors for column in self.columns]
        totals = self._loop(self.n_blocks, [self.zero] * len(cells), self._block)
        for (vector, column), total in zip(cells, totals, strict=True):
            row = builder.add(self.row, WIDE(vector * LANES))
            builder.store(total, self._cast(self._cell(5, column, row), NUMBERS), align=4)

    def _block(self, block: Any, totals: list[Any]) -> list[Any]:
        """One block. A sum may have several chains, each of every so manieth field: none waits for another."""
        builder = self.builder
        begin = builder.add(self.start, builder.mul(block, self.block_size))
        starts = [builder.add(begin, builder.mul(self.vector_size, WIDE(vector))) for vector in self.vectors]
        first_word = builder.mul(block, self.n_words)

        def word(index: Any, sums: list[Any]) -> list[Any]:
            packed = [self._vector(start, index, LANE) for start in starts]
            return self._fields(packed, builder.mul(builder.add(first_word, index), WIDE(self.fields)), sums)

        sums = self._loop(self.n_words, [self.zero] * (self.chains * len(totals)), word)
        block_sums = [self._splat(self._cell(3, column, block)) for column in self.columns]
        found = []
        for index, total in enumerate(totals):
            vector, column = divmod(index, len(self.columns))
            mine = sums[self.chains * index : self.chains * (index + 1)]
            product = mine[0] if self.chains == 1 else builder.fadd(*mine)
            scale = self._vector(starts[vector], self.n_words, NUMBERS)
            minimum = self._vector(starts[vector], builder.add(self.n_words, WIDE(1)), NUMBERS)
            total = builder.call(self.fused, [scale, product, total])
            found.append(builder.call(self.fused, [minimum, block_sums[column], total]))
        return found

    def _fields(self, packed: list[Any], first: Any, sums: list[Any]) -> list[Any]:
        """Add the fields of each vector's word, times the numbers from ``first`` on, to the running sums."""
        builder, sums = self.builder, list(sums)
        for field in range(self.fields):
            index = builder.add(first, WIDE(field))
            numbers = [self._splat(self._cell(2, column, index)) for column in self.columns]
            for vector in self.vectors:
                weight = builder.sitofp(self._cut(packed[vector], field), NUMBERS)
                for column in self.columns:
                    slot = self.chains * (vector * len(self.columns) + column) + field % self.chains
                    sums[slot] = builder.call(self.fused, [weight, numbers[column], sums[slot]])
        return sums

    def _cut(self, packed: Any, field: int) -> Any:
        """A field where it stands; the last one, which holds the sign's bit, shifted down."""
        shift = self.bits * field
        if field == self.fields - 1:
            return self.builder.lshr(packed, ir.Constant(LANE, [shift] * LANES))
        return self.builder.and_(packed, ir.Constant(LANE, [((1 << self.bits) - 1) << shift] * LANES))

    def _vector(self, start: Any, word: Any, kind: Any) -> Any:
        """A word of each lane, as integers or as numbers."""
        at = self.builder.add(start, self.builder.mul(word, WIDE(LANES)))
        return self.builder.load(self._cast(self._flat(0, at), kind), align=4)

    def _loop(self, count: Any, carried: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """``for index in range(count): carried = body(index, carried)``; ``count`` is 1 or more."""
        builder = self.builder
        before, inside = builder.block, builder.append_basic_block("loop")
        behind = builder.append_basic_block("behind")
        builder.branch(inside)
        builder.position_at_end(inside)
        index = builder.phi(WIDE)
        index.add_incoming(WIDE(0), before)
        slots = [builder.phi(value.type) for value in carried]
        for slot, value in zip(slots, carried, strict=True):
            slot.add_incoming(value, before)
        found = body(index, slots)
        following = builder.add(index, WIDE(1))
        end = builder.block  # another than ``inside`` where the body has a loop
        index.add_incoming(following, end)
        for slot, value in zip(slots, found, strict=True):
            slot.add_incoming(value, end)
        builder.cbranch(builder.icmp_signed("<", following, count), inside, behind)
        builder.position_at_end(behind)
        return found

    def _flat(self, argument: int, index: Any) -> Any:
        """Address of a number in an array, counted from its start."""
        given = [self.arguments[argument], index]
        return address(self.context, self.builder, self.kinds[argument], given)

    def _cell(self, argument: int, column: int, index: Any) -> Any:
        """Address of a number of ``first column + column`` in an array ``[column, …]``."""
        array = self.context.make_array(self.kinds[argument])(self.context, self.builder, self.arguments[argument])
        width = self.builder.extract_value(array.shape, 1)
        row = self.builder.add(self.arguments[4], WIDE(column))
        return self._flat(argument, self.builder.add(self.builder.mul(row, width), index))

    def _cast(self, pointer: Any, kind: Any) -> Any:
        return self.builder.bitcast(pointer, kind.as_pointer())

    def _splat(self, pointer: Any) -> Any:
        """One number in every lane."""
        number = self.builder.load(pointer)
        lane = self.builder.insert_element(ir.Constant(NUMBERS, ir.Undefined), number, ir.IntType(32)(0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.builder.shuffle_vector(lane, ir.Constant(NUMBERS, ir.Undefined), zeros)
