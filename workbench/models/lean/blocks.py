"""The blocks of a GGUF file taken apart: what fields, scales and minima its quantized tensors are made of.

Every format here means ``weight = scale * field + minimum`` with unsigned fields of up to eight bits and one scale and
minimum a block of 32 or 16 weights (ggml, ``ggml-quants.h``). Scales and minima become float32, which holds them
exactly; no weight is rounded anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["FORMATS", "Fields", "take_apart"]

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """One matrix: ``weight[row, k] = scale[row, k // block] * field[row, k] + minimum[row, k // block]``."""

    fields: Bytes = field(repr=False)
    """``[out, in]``"""
    scales: NDArray[np.float32] = field(repr=False)
    """``[out, in / block]``"""
    minima: NDArray[np.float32] = field(repr=False)
    bits: int
    """4 or 8: how many bits a field needs."""

    @property
    def block(self) -> int:
        return int(self.fields.shape[1] // self.scales.shape[1])


class Format(NamedTuple):
    weights: int
    """In a block as the file has it."""
    size: int
    """Bytes of such a block."""
    bits: int
    read: Callable[[Bytes], tuple[Any, Any, Any]]
    """``[block, size]`` to fields ``[block, weights]``, and scales and minima of each part of a block."""


def take_apart(raw: Bytes, type_name: str, shape: tuple[int, int]) -> Fields:
    """The fields of a tensor of ``shape`` (out, in) from its bytes. ``type_name`` is one of :data:`FORMATS`."""
    known = FORMATS[type_name]
    fields, scales, minima = known.read(raw.reshape(-1, known.size))
    scale, minimum = (np.ascontiguousarray(part, dtype=np.float32).reshape(shape[0], -1) for part in (scales, minima))
    by_row = np.ascontiguousarray(fields, dtype=np.uint8).reshape(shape)
    return Fields(fields=by_row, scales=scale, minima=minimum, bits=known.bits)


def _half(raw: Bytes, first: int) -> NDArray[np.float32]:
    """A 16-bit float of every block, ``[block, 1]``."""
    return np.ascontiguousarray(raw[:, first : first + 2]).view(np.float16).astype(np.float32)


def _nibbles(raw: Bytes) -> Bytes:
    """``[block, n]`` bytes to ``[block, 2 n]`` fields: all low halves, then all high ones."""
    return np.concatenate([raw & 0x0F, raw >> 4], axis=1)


def _q4_0(raw: Bytes) -> tuple[Any, Any, Any]:
    scale = _half(raw, 0)
    return _nibbles(raw[:, 2:]), scale, -8 * scale


def _q4_1(raw: Bytes) -> tuple[Any, Any, Any]:
    return _nibbles(raw[:, 4:]), _half(raw, 0), _half(raw, 2)


def _q5(raw: Bytes) -> Bytes:
    """Fields whose fifth bits stand in four bytes of their own before the nibbles."""
    fifth: Bytes = np.unpackbits(raw[:, :4], axis=1, bitorder="little")
    found: Bytes = _nibbles(raw[:, 4:]) | np.left_shift(fifth, 4, dtype=np.uint8)
    return found


def _q5_0(raw: Bytes) -> tuple[Any, Any, Any]:
    scale = _half(raw, 0)
    return _q5(raw[:, 2:]), scale, -16 * scale


def _q5_1(raw: Bytes) -> tuple[Any, Any, Any]:
    return _q5(raw[:, 4:]), _half(raw, 0), _half(raw, 2)


def _q8_0(raw: Bytes) -> tuple[Any, Any, Any]:
    scale = _half(raw, 0)
    return raw[:, 2:] ^ 0x80, scale, -128 * scale


def _q4_k(raw: Bytes) -> tuple[Any, Any, Any]:
    """Eight parts of 32 with scales and minima of 6 bits, of which the last four keep two bits elsewhere."""
    packed = raw[:, 4:16].reshape(-1, 3, 4)
    scale = np.concatenate([packed[:, 0] & 0x3F, (packed[:, 2] & 0x0F) | ((packed[:, 0] >> 2) & 0x30)], axis=1)
    minimum = np.concatenate([packed[:, 1] & 0x3F, (packed[:, 2] >> 4) | ((packed[:, 1] >> 2) & 0x30)], axis=1)
    quarters = raw[:, 16:].reshape(-1, 32)
    return _nibbles(quarters).reshape(len(raw), -1), _half(raw, 0) * scale, -_half(raw, 2) * minimum


def _q6_k(raw: Bytes) -> tuple[Any, Any, Any]:
    """Sixteen parts of 16 with scales of 8 bits; four low bits and two high bits of a field stand apart."""
    low = _nibbles(raw[:, :128].reshape(-1, 64)).reshape(len(raw), -1)
    high = raw[:, 128:192].reshape(-1, 1, 32) >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None] & 3
    scale = _half(raw, 208) * raw[:, 192:208].view(np.int8)
    return low | high.reshape(len(raw), -1) << 4, scale, -32 * scale


FORMATS: dict[str, Format] = {
    "Q4_0": Format(32, 18, 4, _q4_0),
    "Q4_1": Format(32, 20, 4, _q4_1),
    "Q5_0": Format(32, 22, 8, _q5_0),
    "Q5_1": Format(32, 24, 8, _q5_1),
    "Q8_0": Format(32, 34, 8, _q8_0),
    "Q4_K": Format(256, 144, 4, _q4_k),
    "Q6_K": Format(256, 210, 8, _q6_k),
}
"""The formats that are known, by ggml's names."""
