"""Random numbers that are a function of what they are for: Philox 4x32-10 (Salmon et al. 2011, "Random123").

Nothing here has a state. A number is named by its seed, chain, block, iteration, purpose and index, so no two draws
share a counter, a chain's numbers do not depend on how many chains there are, and any of them can be drawn again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Purpose", "branch_seed", "counter_of", "key_of", "philox", "uniform", "uniform_of", "uniform_one"]

Words: TypeAlias = NDArray[np.uint32]

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
"""What the key grows by each round: the golden ratio and the square root of three less one, as 32-bit fractions."""
ROUNDS = 10
LOW = 0xFFFFFFFF
MOST_POSITIONS = 1 << 24
"""What the index of a draw has room for; there are no more blocks than positions."""


class Purpose(IntEnum):
    """What a random number decides. Draws for different purposes never share a counter."""

    PIVOT = 1
    TOKEN = 2
    ACCEPT = 3
    CHOICE = 4
    """Which of several tries is put forward."""
    SWAP = 5
    """Whether two chains of a temperature ladder exchange their states."""
    BRANCH = 6
    """The seed of a chain that branches off."""


def philox(counter: ArrayLike, key: ArrayLike) -> Words:
    """Ten rounds over ``counter[..., 4]`` under ``key[..., 2]``, all uint32; gives ``[..., 4]`` uint32.

    Known answers (Random123): counter 0, key 0 give 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
    """
    words = np.moveaxis(np.asarray(counter, dtype=np.uint64), -1, 0)
    halves = np.moveaxis(np.asarray(key, dtype=np.uint64), -1, 0)
    rounds = _rounds(words[0], words[1], words[2], words[3], halves[0], halves[1])
    return np.stack(np.broadcast_arrays(*rounds), axis=-1).astype(np.uint32)


def _rounds(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """On Python's integers as on arrays of uint64: every product fits 64 bits."""
    for _ in range(ROUNDS):
        left, right = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (right >> 32) ^ c1 ^ k0, right & LOW, (left >> 32) ^ c3 ^ k1, left & LOW
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return c0, c1, c2, c3


def key_of(seed: int) -> Words:
    """The key ``[2]`` of a seed in ``[0, 2**64)``: its low and its high half."""
    return np.array([seed & 0xFFFFFFFF, seed >> 32], dtype=np.uint32)


def counter_of(
    *, chain: ArrayLike, block: ArrayLike, iteration: ArrayLike, purpose: Purpose, index: ArrayLike = 0
) -> Words:
    """The counter ``[..., 4]`` of a draw: (iteration, chain, purpose and block, index).

    The third word is ``purpose + 256 * block``. ``index`` tells draws of one purpose in one iteration apart: the
    position of a token, with the number of the try in its top eight bits.
    """
    words = np.broadcast_arrays(
        np.asarray(iteration, dtype=np.uint64),
        np.asarray(chain, dtype=np.uint64),
        np.uint64(purpose) + (np.asarray(block, dtype=np.uint64) << np.uint64(8)),
        np.asarray(index, dtype=np.uint64),
    )
    return np.stack(words, axis=-1).astype(np.uint32)


def uniform_of(words: Words) -> NDArray[np.float64]:
    """Numbers in [0, 1) with 53 random bits, from the first two words of ``[..., 4]``."""
    fractions: NDArray[np.float64] = _fraction(words[..., 0], words[..., 1])
    return fractions


def _fraction(first: Any, second: Any) -> Any:
    return ((first >> 5) * 67108864.0 + (second >> 6)) / 9007199254740992.0


def uniform(
    seed: int,
    *,
    chain: ArrayLike,
    block: ArrayLike,
    iteration: ArrayLike,
    purpose: Purpose,
    index: ArrayLike = 0,
) -> NDArray[np.float64]:
    """The uniform numbers of these draws, float64 in [0, 1); arguments broadcast against each other."""
    counter = counter_of(chain=chain, block=block, iteration=iteration, purpose=purpose, index=index)
    return uniform_of(philox(counter, key_of(seed)))


def uniform_one(seed: int, *, chain: int, block: int, iteration: int, purpose: Purpose, index: int = 0) -> float:
    """The same for one draw, on Python's integers: a fraction of the time that arrays of one would take."""
    words = _rounds(iteration, chain, int(purpose) + (block << 8), index, seed & LOW, seed >> 32)
    return float(_fraction(words[0], words[1]))


def branch_seed(seed: int, *, chain: int, block: int, iteration: int, index: int) -> int:
    """The seed in ``[0, 2**64)`` of branch number ``index`` from a decision: a key, hence numbers, of its own."""
    words = _rounds(iteration, chain, int(Purpose.BRANCH) + (block << 8), index, seed & LOW, seed >> 32)
    return int(words[0]) + (int(words[1]) << 32)
