"""The exponential of compiled code: plain arithmetic, so that a loop over it uses the processor's wide registers."""

from __future__ import annotations

import numpy as np

from .atomics import exact

__all__ = ["LOWEST", "exponential"]

LOWEST = np.float32(-87.0)
"""Below it an exponential counts as zero: it would be no normal float32."""
LOG2_E = np.float32(1.4426950408889634)
LN_2_HIGH, LN_2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
"""The logarithm of 2 in two parts, the first one with so few bits that its small multiples are exact."""
ROUNDER = np.float32(12582912.0)
"""1.5 * 2**23: adding it to a small number leaves no bits behind the point."""


@exact
def exponential(x: np.float32) -> np.float32:
    """``exp(x)`` for ``LOWEST <= x <= 0``, within 1e-7 of itself.

    ``x = n ln 2 + r``: a polynomial gives ``exp(r)`` (Cephes, ``expf``), and ``n`` is added to its exponent's bits.
    """
    shifted = x * LOG2_E + ROUNDER  # whose last bits are n
    n = shifted - ROUNDER
    r = (x - n * LN_2_HIGH) - n * LN_2_LOW
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = (p * (r * r) + r) + np.float32(1)
    exponent = np.int32(np.float32(shifted).view(np.int32) << np.int32(23))
    return np.int32(np.float32(p).view(np.int32) + exponent).view(np.float32)
